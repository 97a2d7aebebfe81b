"""Chunks to rows, and what a chunk is.

A chunk, before zstd, is a header of 32 bytes and five runs of bytes, each number cut into byte planes (all lowest
bytes, then all second bytes, ...), because a plane of high bytes compresses to almost nothing:

    header   int64 rows, int64 nonzeros, uint8 label bytes, length bytes, index bytes, value mode, value bytes,
             uint8 dictionary size - 1, 2 unused, uint32 common length, uint32 values that are listed in mode 3
    labels   1 or 2 planes of label codes
    lengths  nonzeros of each row, 1-4 planes; none (length bytes = 0) where all rows have the common length
    indexes  distance to the feature before in the row, minus 1; none (index bytes = 0) where every row is 0, 1, 2, ...
    values   mode 0: 4 or 8 planes; mode 1: one number a row; mode 2: a dictionary of at most 256, then one byte each;
             mode 3 (from version 2 of the format on): a number that is common, a bit for each value, from the lowest of
             the first byte on, set where the value is that number, then 4 or 8 planes of all others

All integers are little-endian.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from _chunk cimport COMMON_NUMBER, DICTIONARY, HEADER, ROW_CONSTANT, Header
from _sparse cimport value_t

cdef extern from "_planes.h":
    void join_planes "llsvm_get_planes"(const uint8_t* p, uint32_t* numbers, int64_t n, int planes) noexcept nogil


cdef const uint8_t* get_planes(const uint8_t* source, uint32_t* numbers, int64_t n, int planes) noexcept nogil:
    join_planes(source, numbers, n, planes)
    return source + planes * n


cdef int64_t payload_size(const Header* header) noexcept nogil:
    cdef int64_t size = HEADER + header.rows * (header.label_bytes + header.length_bytes)
    size += header.nonzeros * header.index_bytes
    if header.value_mode == ROW_CONSTANT:
        return size + header.rows * header.value_bytes
    if header.value_mode == DICTIONARY:
        return size + (header.last_entry + 1) * header.value_bytes + header.nonzeros
    if header.value_mode == COMMON_NUMBER:
        return size + (header.nonzeros + 7) // 8 + (<int64_t>header.listed + 1) * header.value_bytes
    return size + header.nonzeros * header.value_bytes


cdef int64_t sum_differences(int32_t* features, const int32_t* lengths, int64_t rows, bint dense) noexcept nogil:
    """Features from their differences, in place; returns the largest, -1 for a negative one."""
    cdef int64_t r, k, largest = 0, last
    for r in range(rows):
        last = -1
        if dense:
            for k in range(lengths[r]):
                features[k] = <int32_t>k
            last = lengths[r] - 1
        else:
            for k in range(lengths[r]):
                last += <int64_t><uint32_t>features[k] + 1
                features[k] = <int32_t>last
        if last > largest:
            largest = last
        features += lengths[r]
    return largest


cdef void get_value_planes(const uint8_t* p, value_t* values, int64_t n) noexcept nogil:
    cdef uint8_t* raw = <uint8_t*>values
    cdef int64_t k
    cdef int plane
    if value_t is float:
        get_planes(p, <uint32_t*>values, n, 4)
    else:
        for plane in range(8):
            for k in range(n):
                raw[8 * k + plane] = p[k]
            p += n


cdef bint get_common(const uint8_t* p, int64_t listed, value_t* values, int64_t n) noexcept nogil:
    """Mode 3: the listed values are put at the end and moved to their places from the first on; False where the bits do
    not leave as many."""
    cdef value_t[2] choice
    cdef const uint8_t* bits = p + sizeof(value_t)
    cdef int64_t k, at = n - listed
    if listed > n:
        return False
    memcpy(&choice[1], p, sizeof(value_t))
    get_value_planes(bits + (n + 7) // 8, values + at, listed)
    for k in range(n):
        if at < k:
            return False
        choice[0] = values[min(at, n - 1)]
        p = bits + (k >> 3)
        at += 1 - ((p[0] >> (k & 7)) & 1)
        values[k] = choice[(p[0] >> (k & 7)) & 1]
    return at == n


cdef bint get_values(const uint8_t* p, const Header* header, const int32_t* lengths, value_t* values) noexcept nogil:
    """False where they contradict the header."""
    cdef value_t[256] entries
    cdef value_t first
    cdef int64_t k, j, n = header.nonzeros
    cdef uint8_t last_entry = 0
    if header.value_mode == ROW_CONSTANT:
        for k in range(header.rows):
            memcpy(&first, p + k * sizeof(value_t), sizeof(value_t))
            for j in range(lengths[k]):
                values[j] = first
            values += lengths[k]
    elif header.value_mode == DICTIONARY:
        memcpy(entries, p, (header.last_entry + 1) * sizeof(value_t))
        p += (header.last_entry + 1) * sizeof(value_t)
        for k in range(n):
            last_entry = max(last_entry, p[k])
        if last_entry > header.last_entry:
            return False
        for k in range(n):
            values[k] = entries[p[k]]
    elif header.value_mode == COMMON_NUMBER:
        return get_common(p, header.listed, values, n)
    else:
        get_value_planes(p, values, n)
    return True


def decode(
    const uint8_t[::1] payload, int64_t n_features, int64_t n_labels, uint16_t[::1] codes, int32_t[::1] lengths,
    int32_t[::1] features, value_t[::1] values
):
    """The rows of one chunk into arrays of exactly its size; False where the payload contradicts itself."""
    cdef Header header
    cdef const uint8_t* p
    cdef int64_t r, total = 0, largest = -1, largest_code = 0
    cdef int32_t* length = &lengths[0]
    cdef int32_t* feature = &features[0] if features.shape[0] else NULL
    if payload.shape[0] < HEADER:
        return False
    memcpy(&header, &payload[0], HEADER)
    if (not 1 <= header.label_bytes <= 2 or header.length_bytes > 4 or header.index_bytes > 4 or header.value_mode > 3):
        return False
    if (header.rows != codes.shape[0] or header.nonzeros != features.shape[0] or header.value_bytes != sizeof(value_t)
            or payload_size(&header) != payload.shape[0]):
        return False
    with nogil:
        p = &payload[0] + HEADER
        for r in range(header.rows):
            codes[r] = p[r]
        p += header.rows
        if header.label_bytes == 2:
            for r in range(header.rows):
                codes[r] |= <uint16_t>p[r] << 8
            p += header.rows
        for r in range(header.rows):
            largest_code = max(largest_code, codes[r])
        if header.length_bytes:
            p = get_planes(p, <uint32_t*>length, header.rows, header.length_bytes)
        else:
            for r in range(header.rows):
                length[r] = <int32_t>header.common_length
        for r in range(header.rows):
            if length[r] < 0:
                total = -1
                break
            total += length[r]
        if total == header.nonzeros:
            largest = 0
            if feature != NULL:
                if header.index_bytes:
                    p = get_planes(p, <uint32_t*>feature, header.nonzeros, header.index_bytes)
                largest = sum_differences(feature, length, header.rows, header.index_bytes == 0)
                if not get_values(p, &header, length, &values[0]):
                    total = -1
    return largest_code < n_labels and total == header.nonzeros and (feature == NULL or largest < n_features)
