/* Values of a kernel between sparse rows and tiles of landmarks, for several instruction sets, as in _dense.h: every one
   of them adds in the same order, so that all give the same bits. */

#include "_dense.h"

#define LLSVM_TILE 32
#define LLSVM_LINEAR 0
#define LLSVM_POLYNOMIAL 1
#define LLSVM_RBF 2
#define LLSVM_INLINE static inline __attribute__((always_inline))

typedef int64_t llsvm_longs __attribute__((vector_size(64)));

/* exp(x) of x <= 0, to about one unit in the last place; 0 below -708. x = n ln 2 + r, |r| <= ln 2 / 2: the sum of 1.5 2^52
   and n has n in its last bits, and the series of exp(r) is cut behind r^13 / 13! (4e-18). */
LLSVM_INLINE llsvm_doubles llsvm_exp(llsvm_doubles x) {
    const double rounder = 6755399441055744.0;
    llsvm_doubles sum = x * 1.44269504088896340736 + rounder, n = sum - rounder;
    llsvm_doubles r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    llsvm_doubles p = r * (1.0 / 6227020800) + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    llsvm_longs power = ((llsvm_longs)sum + 1023) << 52;
    p = p * (llsvm_doubles)power;
    return (llsvm_doubles)((llsvm_longs)p & (x > -708.0));
}

LLSVM_INLINE llsvm_doubles llsvm_of_dot(
    llsvm_doubles dot, llsvm_doubles square, double own_square, int kind, double gamma, double coef0, int degree) {
    if (kind == LLSVM_RBF) {
        llsvm_doubles distance = (square + own_square) - 2.0 * dot;
        distance = (llsvm_doubles)((llsvm_longs)distance & (distance > 0.0));
        return llsvm_exp(-gamma * distance);
    }
    if (kind == LLSVM_POLYNOMIAL) {
        llsvm_doubles base = gamma * dot + coef0, power = base;
        for (int factor = 1; factor < degree; factor++) power *= base;
        return power;
    }
    return dot;
}

/* out[r, j] = K(row r, landmark j of the tile) of rows start .. end - 1. columns: (features, TILE), what the landmarks
   have of each feature; features below 0 are none of theirs. squares: of the landmarks; own_squares: of the rows. */
#define LLSVM_KERNEL(type)                                                                                         \
    LLSVM_CLONES __attribute__((unused)) static void llsvm_kernel_tile_##type(                                     \
        const double *columns, const double *squares, int kind, double gamma, double coef0, int degree,            \
        const int64_t *indptr, const int32_t *features, const type *values, const double *own_squares,             \
        int64_t start, int64_t end, double *out) {                                                                 \
        llsvm_doubles squares0 = LLSVM_LOAD_double(squares), squares1 = LLSVM_LOAD_double(squares + 8);            \
        llsvm_doubles squares2 = LLSVM_LOAD_double(squares + 16), squares3 = LLSVM_LOAD_double(squares + 24);      \
        for (int64_t r = start; r < end; r++, out += LLSVM_TILE) {                                                 \
            llsvm_doubles dot0 = {0}, dot1 = {0}, dot2 = {0}, dot3 = {0};                                          \
            for (int64_t k = indptr[r]; k < indptr[r + 1]; k++) {                                                  \
                if (features[k] < 0) continue;                                                                     \
                const double *column = columns + (int64_t)features[k] * LLSVM_TILE;                                \
                double value = values[k];                                                                          \
                dot0 += value * LLSVM_LOAD_double(column);                                                         \
                dot1 += value * LLSVM_LOAD_double(column + 8);                                                     \
                dot2 += value * LLSVM_LOAD_double(column + 16);                                                    \
                dot3 += value * LLSVM_LOAD_double(column + 24);                                                    \
            }                                                                                                      \
            dot0 = llsvm_of_dot(dot0, squares0, own_squares[r], kind, gamma, coef0, degree);                       \
            dot1 = llsvm_of_dot(dot1, squares1, own_squares[r], kind, gamma, coef0, degree);                       \
            dot2 = llsvm_of_dot(dot2, squares2, own_squares[r], kind, gamma, coef0, degree);                       \
            dot3 = llsvm_of_dot(dot3, squares3, own_squares[r], kind, gamma, coef0, degree);                       \
            memcpy(out, &dot0, sizeof dot0);                                                                       \
            memcpy(out + 8, &dot1, sizeof dot1);                                                                   \
            memcpy(out + 16, &dot2, sizeof dot2);                                                                  \
            memcpy(out + 24, &dot3, sizeof dot3);                                                                  \
        }                                                                                                          \
    }

LLSVM_KERNEL(float)
LLSVM_KERNEL(double)
