/* Rows sorted, numbers counted, cut into byte planes and put together again, for several instruction sets: the machine's is
   chosen when the module is loaded. All give the same bits. */

#include <stdint.h>
#include <string.h>

#if defined(__has_attribute)
#if __has_attribute(target_clones) && defined(__x86_64__) && defined(__GLIBC__)
#define LLSVM_PLANE_CLONES __attribute__((unused, target_clones("avx2", "default")))
#endif
#endif
#ifndef LLSVM_PLANE_CLONES
#define LLSVM_PLANE_CLONES __attribute__((unused))
#endif

/* places[i] = how many of the keys are smaller than keys[i], no two of which are equal. What follows them up to the next
   multiple of 16 must be larger than all, and there is as much room for places. */
LLSVM_PLANE_CLONES static void llsvm_rank(const int32_t *restrict keys, int64_t n, int32_t *restrict places) {
    int64_t padded = (n + 15) & ~(int64_t)15;
    memset(places, 0, padded * sizeof *places);
    for (int64_t j = 0; j < n; j += 4) {
        int32_t a = keys[j], b = keys[j + 1], c = keys[j + 2], d = keys[j + 3];
        for (int64_t i = 0; i < padded; i++) places[i] += (a < keys[i]) + (b < keys[i]) + (c < keys[i]) + (d < keys[i]);
    }
}

/* items = key 2^32 + place, sorted by key (not negative); spare has as much room. Returns where the result is. */
__attribute__((unused)) static uint64_t *llsvm_sort_items(const int32_t *keys, int64_t n, uint64_t *items, uint64_t *spare) {
    uint32_t starts[4][256];
    uint32_t largest = 0;
    memset(starts, 0, sizeof starts);
    for (int64_t k = 0; k < n; k++) {
        uint32_t key = (uint32_t)keys[k];
        largest |= key;
        starts[0][key & 255]++;
        starts[1][key >> 8 & 255]++;
        starts[2][key >> 16 & 255]++;
        starts[3][key >> 24]++;
        items[k] = (uint64_t)key << 32 | (uint64_t)k;
    }
    for (int digit = 0; digit < 4 && largest >> 8 * digit; digit++) {
        uint32_t total = 0, *start = starts[digit];
        uint64_t *other;
        for (int d = 0; d < 256; d++) {
            uint32_t count = start[d];
            start[d] = total;
            total += count;
        }
        for (int64_t k = 0; k < n; k++) spare[start[items[k] >> (32 + 8 * digit) & 255]++] = items[k];
        other = items;
        items = spare;
        spare = other;
    }
    return items;
}

LLSVM_PLANE_CLONES static void llsvm_put_planes(uint8_t *out, const uint32_t *numbers, int64_t n, int planes) {
    for (int plane = 0; plane < planes; plane++, out += n)
        for (int64_t k = 0; k < n; k++) out[k] = (uint8_t)(numbers[k] >> 8 * plane);
}

LLSVM_PLANE_CLONES static void llsvm_get_planes(const uint8_t *p, uint32_t *numbers, int64_t n, int planes) {
    const uint8_t *p1 = p + n, *p2 = p1 + n, *p3 = p2 + n;
    if (planes == 1)
        for (int64_t k = 0; k < n; k++) numbers[k] = p[k];
    else if (planes == 2)
        for (int64_t k = 0; k < n; k++) numbers[k] = p[k] | (uint32_t)p1[k] << 8;
    else if (planes == 3)
        for (int64_t k = 0; k < n; k++) numbers[k] = p[k] | (uint32_t)p1[k] << 8 | (uint32_t)p2[k] << 16;
    else
        for (int64_t k = 0; k < n; k++)
            numbers[k] = p[k] | (uint32_t)p1[k] << 8 | (uint32_t)p2[k] << 16 | (uint32_t)p3[k] << 24;
}

#define LLSVM_COUNT(bits)                                                                                          \
    LLSVM_PLANE_CLONES static int64_t llsvm_count_##bits(const uint##bits##_t *x, int64_t n, uint##bits##_t number) { \
        int64_t count = 0;                                                                                         \
        for (int64_t k = 0; k < n; k++) count += x[k] == number;                                                   \
        return count;                                                                                              \
    }

LLSVM_COUNT(32)
LLSVM_COUNT(64)
