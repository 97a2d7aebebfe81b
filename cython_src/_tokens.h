/* Many bytes of text at a time: where tokens end, and digits as numbers. */

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Counting bits is one instruction on most machines; which, is found out when the module is loaded. */
#if defined(__has_attribute)
#if __has_attribute(target_clones) && defined(__x86_64__) && defined(__GLIBC__)
#define LLSVM_BIT_CLONES __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef LLSVM_BIT_CLONES
#define LLSVM_BIT_CLONES
#endif

/* Eight digits as one number, in pairs, fours and eights. */
static inline uint64_t llsvm_join(uint64_t digits) {
    digits = (digits * 10 + (digits >> 8)) & 0x00FF00FF00FF00FFULL;
    digits = (digits * 100 + (digits >> 16)) & 0x0000FFFF0000FFFFULL;
    return (digits * 10000 + (digits >> 32)) & 0xFFFFFFFFULL;
}

/* Bit k is set where text[k] is a colon, a blank or any byte below the blank. */
__attribute__((always_inline)) static inline uint64_t llsvm_ends(const uint8_t *text) {
    uint64_t ends = 0;
#if defined(__SSE2__)
    const __m128i blank = _mm_set1_epi8(' '), colon = _mm_set1_epi8(':');
    for (int part = 0; part < 4; part++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(text + 16 * part));
        __m128i found = _mm_or_si128(_mm_cmpeq_epi8(_mm_max_epu8(bytes, blank), blank), _mm_cmpeq_epi8(bytes, colon));
        ends |= (uint64_t)(uint32_t)_mm_movemask_epi8(found) << (16 * part);
    }
#else
    const uint64_t low = 0x7F7F7F7F7F7F7F7FULL, ones = 0x0101010101010101ULL;
    for (int part = 0; part < 8; part++) {
        uint64_t bytes, other, above;
        memcpy(&bytes, text + 8 * part, 8);
        other = bytes ^ (':' * ones);
        above = (((bytes & low) + (0x7F - ' ') * ones) | bytes) & (((other & low) + low) | other) & ~low;
        ends |= (((above ^ ~low) >> 7) * 0x0102040810204080ULL >> 56) << (8 * part);
    }
#endif
    return ends;
}

/* The places in text of the ends from *at on, until there are `enough` or stop is passed; *at moves on.
   Needs room for enough + 71. */
LLSVM_BIT_CLONES static int llsvm_find_ends(
    const uint8_t *text, int64_t *at, int64_t stop, int64_t *places, int enough) {
    int count = 0;
    while (count < enough && *at < stop) {
        uint64_t mask = llsvm_ends(text + *at);
        int found = __builtin_popcountll(mask);
        for (int k = 0; k < found; k += 8)
            for (int j = 0; j < 8; j++) {
                places[count + k + j] = *at + __builtin_ctzll(mask | 1ULL << 63); /* bits beyond `found` do not count */
                mask &= mask - 1;
            }
        count += found;
        *at += 64;
    }
    return count;
}

/* Two numbers of eight digits each (bytes 0-9, the first lowest), if they are digits. */
static inline int llsvm_join_digits(uint64_t first, uint64_t second, uint64_t *number, uint64_t *other) {
#if defined(__SSE2__)
    __m128i digits = _mm_set_epi64x((int64_t)second, (int64_t)first), nine = _mm_set1_epi8(9);
    if (_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(digits, nine), nine)) != 0xFFFF) return 0;
    digits = _mm_add_epi16(_mm_mullo_epi16(_mm_and_si128(digits, _mm_set1_epi16(255)), _mm_set1_epi16(10)),
                           _mm_srli_epi16(digits, 8));
    digits = _mm_madd_epi16(digits, _mm_set1_epi32(1 << 16 | 100));
    digits = _mm_madd_epi16(_mm_packs_epi32(digits, digits), _mm_set1_epi32(1 << 16 | 10000));
    second = (uint64_t)_mm_cvtsi128_si64(digits);
    *number = (uint32_t)second;
    *other = second >> 32;
    return 1;
#else
    const uint64_t tens = 0x7676767676767676ULL, high = 0x8080808080808080ULL;
    if ((first | (first + tens) | second | (second + tens)) & high) return 0;
    *number = llsvm_join(first);
    *other = llsvm_join(second);
    return 1;
#endif
}
