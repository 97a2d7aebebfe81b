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

enum { LLSVM_LONG_ROW = 4096, LLSVM_BUCKETS = 26 * 32 };

/* 32 buckets for each power of two, since small numbers are the frequent ones. */
static inline uint16_t llsvm_bucket(int32_t key) {
    float number = (float)(key + 64);
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)((bits >> 18) - (133 << 5));
}

/* Sorts by the upper half; spare has as much room. Returns where the result is. */
static uint64_t *llsvm_radix_items(uint64_t *items, uint64_t *spare, int64_t n) {
    for (int shift = 32; shift < 64; shift += 8) {
        uint32_t starts[256] = {0}, total = 0;
        uint64_t *other = items;
        for (int64_t k = 0; k < n; k++) starts[items[k] >> shift & 255]++;
        for (int d = 0; d < 256; d++) {
            uint32_t count = starts[d];
            starts[d] = total;
            total += count;
        }
        for (int64_t k = 0; k < n; k++) spare[starts[items[k] >> shift & 255]++] = items[k];
        items = spare;
        spare = other;
    }
    return items;
}

/* key 2^32 + tag, sorted by key; no two keys (0 <= key < 2^31 - 64) are equal, n <= LLSVM_LONG_ROW. items and spare have
   room for them; returns where the result is. By buckets, and in them by insertion, unless that moves too many. One pass that
   moves small ones forward without a branch spares most branches of the insertion, and the first is then the smallest. */
LLSVM_PLANE_CLONES static uint64_t *llsvm_sort_items(
    const int32_t *restrict keys, const uint32_t *restrict tags, int64_t n, uint64_t *restrict items,
    uint64_t *restrict spare) {
    uint16_t buckets[LLSVM_LONG_ROW], starts[LLSVM_BUCKETS], last = 0, total = 0;
    uint64_t smallest = ~(uint64_t)0;
    int64_t moves = 8 * n;
    for (int64_t k = 0; k < n; k++) buckets[k] = llsvm_bucket(keys[k]);
    for (int64_t k = 0; k < n; k++) last = buckets[k] > last ? buckets[k] : last;
    memset(starts, 0, (last + 1) * sizeof *starts);
    for (int64_t k = 0; k < n; k++) starts[buckets[k]]++;
    for (int b = 0; b <= last; b++) {
        uint16_t count = starts[b];
        starts[b] = total;
        total += count;
    }
    for (int64_t k = 0; k < n; k++) items[starts[buckets[k]]++] = (uint64_t)(uint32_t)keys[k] << 32 | tags[k];
    for (int64_t k = n - 1; k >= 0; k--) {
        uint64_t item = items[k];
        if (k < n - 1) items[k + 1] = item > smallest ? item : smallest;
        smallest = item < smallest ? item : smallest;
    }
    items[0] = smallest;
    for (int64_t k = 1; k < n; k++) {
        uint64_t item = items[k];
        int64_t place = k;
        if (items[k - 1] <= item) continue;
        do items[place] = items[place - 1];
        while (items[--place - 1] > item);
        items[place] = item;
        if ((moves -= k - place) < 0) return llsvm_radix_items(items, spare, n);
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
