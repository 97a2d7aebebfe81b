"""Weights of a model as text, `%.17g` and a blank behind each, and back."""

from libc.stdint cimport int32_t, int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod

from _sparse cimport radix_sort


def format_weights(const double[:, ::1] weights, char[::1] out):
    """Rows of weights as lines into out (at least 26 bytes a weight and 1 a row). Returns the bytes written."""
    cdef int64_t r, c, at = 0
    with nogil:
        for r in range(weights.shape[0]):
            for c in range(weights.shape[1]):
                if weights[r, c] == 0:
                    out[at] = 48
                    at += 1
                else:
                    at += snprintf(&out[at], 26, "%.17g", weights[r, c])
                out[at] = 32
                at += 1
            out[at] = 10
            at += 1
    return at


def parse_weights(bytes text, int64_t start, double[::1] weights):
    """Fills weights with the numbers from text[start:]. Returns (how many there were, the position behind them)."""
    cdef const char* first = text
    cdef const char* p = first + start
    cdef char* behind
    cdef int64_t k = 0, n = weights.shape[0]
    with nogil:
        while k < n:
            while p[0] == 32 or p[0] == 10 or p[0] == 13 or p[0] == 9:
                p += 1
            if p[0] == 48 and (p[1] == 32 or p[1] == 10):
                weights[k] = 0
                p += 1
            else:
                weights[k] = strtod(p, &behind)
                if behind == p or not (behind[0] == 32 or behind[0] == 10 or behind[0] == 13 or behind[0] == 9):
                    break
                p = behind
            k += 1
    return k, p - first


def count_lines(bytes text, int64_t start, int64_t end):
    """Newlines in text[start:end]."""
    cdef const char* first = text
    cdef int64_t k, count = 0
    with nogil:
        for k in range(start, end):
            count += first[k] == 10
    return count


def sort_ids(int64_t[::1] ids, int32_t[::1] places, int64_t[::1] spare_ids, int32_t[::1] spare_places):
    """Sorts ids, all different, and with them their places, by means of spare arrays of the same length."""
    if ids.shape[0]:
        with nogil:
            radix_sort(&ids[0], &places[0], ids.shape[0], &spare_ids[0], &spare_places[0])
