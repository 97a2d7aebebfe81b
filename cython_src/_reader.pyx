"""Rows in memory: laid out, moved together, copied. See _sparse.pxd for the layout of a row."""

import numpy as np

from libc.math cimport INFINITY, sqrt
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy, memmove

from _dual cimport Dual
from _sparse cimport (COUNTED, ONE_VALUE, SHORT, WIDE, Row, radix_sort, row_feature, row_size, row_values,
                      shuffle_order, size_of, value_mask, value_t, values_offset)


cdef Row _row
cdef Dual _dual
ROW, DUAL = np.asarray(<Row[:1]>&_row).dtype, np.asarray(<Dual[:1]>&_dual).dtype


def shuffle(int32_t[::1] order, int64_t n, uint64_t seed, uint64_t counter):
    """A random order of the first n entries, the same for the same seed and counter."""
    if n > 1:
        with nogil:
            shuffle_order(&order[0], n, seed, counter)


def fill(
    const uint16_t[::1] codes, const int32_t[::1] lengths, const int32_t[::1] features, const value_t[::1] values,
    int32_t chunk, uint8_t[::1] room, Row[:] rows
):
    """Lays the rows of a chunk out in room, and describes them in rows.

    Returns (bytes used, largest squared norm), the latter infinite where a value is not a number."""
    cdef int64_t r, length, at = 0
    cdef uint8_t* out = &room[0]
    cdef uint8_t* start = out
    cdef double square, largest = 0
    cdef int layout
    cdef int32_t bits = 0
    cdef bint short
    with nogil:
        for at in range(features.shape[0]):
            bits |= features[at]
        short, at = bits < 65536, 0
        for r in range(codes.shape[0]):
            length = lengths[r]
            layout = layout_of(&features[at], &values[at], length, short) if length else WIDE
            rows[r].data = <uint64_t>out
            rows[r].length = <int32_t>length
            rows[r].code = codes[r]
            rows[r].layout = layout
            rows[r].chunk = chunk
            rows[r].place = <int32_t>r
            square = 0
            if length:
                square = lay_out(&features[at], &values[at], length, layout, out)
            rows[r].norm = <float>sqrt(square)
            if not square <= largest:
                largest = square if square == square else INFINITY
            out += size_of(length, layout, sizeof(value_t))
            at += length
    return out - start, largest


def sort_rows(Row[:] rows, int64_t longest, const value_t[::1] kind):
    """Every row by feature number, in place; none has more nonzeros than the longest."""
    cdef int32_t[::1] keys = np.empty(longest, np.int32), spare_keys = np.empty(longest, np.int32)
    cdef value_t[::1] items = np.empty_like(kind, shape=longest), spare_items = np.empty_like(kind, shape=longest)
    cdef int64_t r, k, n
    cdef Row* row
    cdef value_t* values
    cdef bint is_sorted
    with nogil:
        for r in range(rows.shape[0]):
            row = &rows[r]
            n = row.length
            is_sorted = True
            for k in range(n - 1):
                is_sorted &= row_feature(row, k) < row_feature(row, k + 1)
            if is_sorted:
                continue
            for k in range(n):
                keys[k] = row_feature(row, k)
            values = &items[0] if row.layout & ONE_VALUE else <value_t*>row_values(row, &kind[0])
            radix_sort(&keys[0], values, n, &spare_keys[0], &spare_items[0])
            for k in range(n):
                if row.layout & SHORT:
                    (<uint16_t*>row.data)[k] = <uint16_t>keys[k]
                else:
                    (<int32_t*>row.data)[k] = keys[k]


cdef inline int layout_of(const int32_t* features, const value_t* values, int64_t n, bint short) noexcept nogil:
    """The smallest way to keep a row; short: its feature numbers have 16 bits."""
    cdef int64_t k
    if features[0] == 0 and features[n - 1] == n - 1:
        k = 1
        while k < n and features[k] == k:
            k += 1
        if k == n:
            return COUNTED
    k = 1
    while k < n and values[k] == values[0]:
        k += 1
    return (SHORT if short else WIDE) | (ONE_VALUE if k == n else 0)


cdef inline double lay_out(
    const int32_t* features, const value_t* values, int64_t n, int layout, uint8_t* out
) noexcept nogil:
    """Returns x.x."""
    cdef int64_t k
    cdef uint16_t* short_features = <uint16_t*>out
    cdef value_t* copy = <value_t*>(out + values_offset(n, layout, sizeof(value_t)))
    cdef double square = 0
    if layout & SHORT:
        for k in range(n):
            short_features[k] = <uint16_t>features[k]
    elif not layout & COUNTED:
        memcpy(out, features, 4 * n)
    if layout & ONE_VALUE:
        copy[0] = values[0]
        return n * (<double>values[0] * values[0])
    for k in range(n):
        copy[k] = values[k]
        square += <double>values[k] * values[k]
    return square


def unpack(
    const Row[:] rows, uint16_t[::1] codes, int64_t[::1] indptr, int32_t[::1] features, value_t[::1] values
):
    """The opposite of fill: rows in memory as one stretch of features and of values."""
    cdef int64_t r, k, length, mask, at = 0
    cdef const value_t* row_value
    with nogil:
        for r in range(rows.shape[0]):
            length = rows[r].length
            codes[r] = rows[r].code
            indptr[r] = at
            row_value = row_values(&rows[r], <const value_t*>NULL)
            mask = value_mask(&rows[r])
            for k in range(length):
                features[at + k] = row_feature(&rows[r], k)
                values[at + k] = row_value[k & mask]
            at += length
        indptr[rows.shape[0]] = at


def copy(const Row[::1] rows, const uint8_t[::1] chosen, uint8_t[::1] room, Row[::1] copies, int value_size):
    """Copies chosen rows into room, described in copies, as long as both have space. They may stand there already, each
    at its new place or behind it.

    Returns (rows copied, bytes, rows that were looked at)."""
    cdef int64_t r = 0, n = 0
    cdef uint64_t size
    cdef uint64_t used = 0, space = room.shape[0]
    with nogil:
        while r < chosen.shape[0]:
            if chosen[r]:
                size = row_size(&rows[r], value_size)
                if used + size > space or n == copies.shape[0]:
                    break
                memmove(&room[0] + used, <const void*>rows[r].data, size)
                copies[n] = rows[r]
                copies[n].data = <uint64_t>(&room[0] + used)
                used += size
                n += 1
            r += 1
    return n, used, r


def divide(uint16_t[:] codes, int64_t n_labels, int64_t n_folds, int64_t first, uint16_t[::1] next_folds):
    """Codes of labels become codes of labels in folds, label + n_labels * fold: the k-th row of a label goes to fold
    (first + k) mod n_folds. next_folds: room for a number a label."""
    cdef int64_t r
    cdef uint16_t label
    with nogil:
        next_folds[:n_labels] = <uint16_t>(first % n_folds)
        for r in range(codes.shape[0]):
            label = codes[r]
            codes[r] = <uint16_t>(label + n_labels * next_folds[label])
            next_folds[label] = <uint16_t>((next_folds[label] + 1) % n_folds)
