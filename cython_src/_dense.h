/* Products of w with a row of all features, and of a row with itself, by blocks of 8 numbers, for several instruction
   sets: the machine's is chosen when the module is loaded. Every one of them adds in the same order, so that all give the
   same bits. */

#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__has_attribute)
#if __has_attribute(target_clones) && defined(__x86_64__) && defined(__GLIBC__)
#define LLSVM_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef LLSVM_CLONES
#define LLSVM_CLONES
#endif

typedef double llsvm_doubles __attribute__((vector_size(64)));
typedef float llsvm_floats __attribute__((vector_size(32)));

#if defined(__clang__) || __GNUC__ >= 9
#define LLSVM_WIDE(v) __builtin_convertvector(v, llsvm_doubles)
#else
#define LLSVM_WIDE(v) ((llsvm_doubles){v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]})
#endif
#define LLSVM_LOAD_float(x) ({ llsvm_floats v; memcpy(&v, x, sizeof v); LLSVM_WIDE(v); })
#define LLSVM_LOAD_double(x) ({ llsvm_doubles v; memcpy(&v, x, sizeof v); v; })

#define LLSVM_DENSE(type)                                                                                          \
    LLSVM_CLONES __attribute__((unused)) static double llsvm_dense_dot_##type(                                     \
        const double *w, const type *x, int64_t n) {                                                               \
        llsvm_doubles sums = {0}, others = {0};                                                                    \
        double sum = 0;                                                                                            \
        int64_t k = 0;                                                                                             \
        for (; k + 16 <= n; k += 16) {                                                                             \
            sums += LLSVM_LOAD_double(w + k) * LLSVM_LOAD_##type(x + k);                                           \
            others += LLSVM_LOAD_double(w + k + 8) * LLSVM_LOAD_##type(x + k + 8);                                 \
        }                                                                                                          \
        sums += others;                                                                                            \
        for (int lane = 0; lane < 8; lane++) sum += sums[lane];                                                    \
        for (; k < n; k++) sum += w[k] * x[k];                                                                     \
        return sum;                                                                                                \
    }                                                                                                              \
    LLSVM_CLONES __attribute__((unused)) static double llsvm_square_##type(const type *x, int64_t n) {             \
        llsvm_doubles sums = {0};                                                                                  \
        double sum = 0;                                                                                            \
        int64_t k = 0;                                                                                             \
        for (; k + 8 <= n; k += 8) {                                                                               \
            llsvm_doubles v = LLSVM_LOAD_##type(x + k);                                                            \
            sums += v * v;                                                                                         \
        }                                                                                                          \
        for (int lane = 0; lane < 8; lane++) sum += sums[lane];                                                    \
        for (; k < n; k++) sum += (double)x[k] * x[k];                                                             \
        return sum;                                                                                                \
    }                                                                                                              \
    LLSVM_CLONES __attribute__((unused)) static void llsvm_dense_axpy_##type(                                      \
        double a, const type *x, int64_t n, double *w) {                                                           \
        int64_t k = 0;                                                                                             \
        for (; k + 8 <= n; k += 8) {                                                                               \
            llsvm_doubles v = LLSVM_LOAD_double(w + k) + a * LLSVM_LOAD_##type(x + k);                             \
            memcpy(w + k, &v, sizeof v);                                                                           \
        }                                                                                                          \
        for (; k < n; k++) w[k] += a * x[k];                                                                       \
    }

LLSVM_DENSE(float)
LLSVM_DENSE(double)
