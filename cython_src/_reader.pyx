"""Rows in memory: laid out, moved together, copied. See _sparse.pxd for the layout of a row."""

from libc.math cimport sqrt
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy

from _sparse cimport Row, below, mix, row_size, value_t, values_offset


ROW_BYTES = sizeof(Row)


def shuffle(int32_t[::1] order, int64_t n, uint64_t seed, uint64_t counter):
    """A random order of the first n entries, the same for the same seed and counter."""
    cdef int64_t i, j
    cdef int32_t other
    cdef uint64_t stream = mix(seed, counter)
    with nogil:
        for i in range(n - 1, 0, -1):
            j = <int64_t>below(mix(stream, <uint64_t>i), <uint64_t>(i + 1))
            other = order[i]
            order[i] = order[j]
            order[j] = other


def fill(
    const uint16_t[::1] codes, const int32_t[::1] lengths, const int32_t[::1] features, const value_t[::1] values,
    int32_t chunk, uint8_t[::1] room, Row[::1] rows
):
    """Lays the rows of a chunk out in room, alpha = 0, and describes them in rows.

    Returns (bytes used, largest squared norm)."""
    cdef int64_t r, k, length, at = 0
    cdef uint8_t* out = &room[0]
    cdef uint8_t* start = out
    cdef value_t value
    cdef value_t* copy
    cdef double square, largest = 0
    with nogil:
        for r in range(codes.shape[0]):
            length = lengths[r]
            rows[r].data = <uint64_t>out
            rows[r].alpha = 0
            rows[r].gradient = 0
            rows[r].length = <int32_t>length
            rows[r].code = codes[r]
            rows[r].chunk = chunk
            rows[r].place = <int32_t>r
            if length:
                memcpy(out, &features[at], 4 * length)
            copy = <value_t*>(out + values_offset(length, sizeof(value_t)))
            square = 0
            for k in range(length):
                value = values[at + k]
                copy[k] = value
                square += <double>value * value
            rows[r].norm = <float>sqrt(square)
            largest = max(largest, square)
            out += row_size(length, sizeof(value_t))
            at += length
    return out - start, largest


def unpack(
    const Row[::1] rows, uint16_t[::1] codes, int64_t[::1] indptr, int32_t[::1] features, value_t[::1] values
):
    """The opposite of fill: rows in memory as one stretch of features and of values."""
    cdef int64_t r, length, at = 0
    with nogil:
        for r in range(rows.shape[0]):
            length = rows[r].length
            codes[r] = <uint16_t>rows[r].code
            indptr[r] = at
            if length:
                memcpy(&features[at], <const void*>rows[r].data, 4 * length)
                memcpy(&values[at], <const void*>(rows[r].data + values_offset(length, sizeof(value_t))),
                       length * sizeof(value_t))
            at += length
        indptr[rows.shape[0]] = at


def copy(const Row[::1] rows, const uint8_t[::1] chosen, uint8_t[::1] room, Row[::1] copies, int value_size):
    """Copies chosen rows into room, described in copies, as long as both have space. Returns (rows, bytes)."""
    cdef int64_t r, n = 0
    cdef uint64_t size
    cdef uint64_t used = 0, space = room.shape[0]
    with nogil:
        for r in range(chosen.shape[0]):
            if chosen[r]:
                size = row_size(rows[r].length, value_size)
                if used + size > space or n == copies.shape[0]:
                    break
                memcpy(&room[0] + used, <const void*>rows[r].data, size)
                copies[n] = rows[r]
                copies[n].data = <uint64_t>(&room[0] + used)
                used += size
                n += 1
    return n, used
