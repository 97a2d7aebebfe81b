"""Rows to chunks, as _blockset.pyx describes them."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from _chunk cimport COMMON_NUMBER, DICTIONARY, HEADER, PLAIN, ROW_CONSTANT, Header
from _sparse cimport below, mix, radix_sort, value_t

cdef enum:
    COMMON_SHARE = 8      # what is an eighth of all values is common
    SHORT_ROW = 96        # sorted by ranks

cdef extern from "_dense.h":
    double square_float "llsvm_square_float"(const float* x, int64_t n) noexcept nogil
    double square_double "llsvm_square_double"(const double* x, int64_t n) noexcept nogil

cdef extern from "_planes.h":
    void rank "llsvm_rank"(const int32_t* keys, int64_t n, int32_t* places) noexcept nogil
    enum: LONG_ROW "LLSVM_LONG_ROW"
    uint64_t* sort_items "llsvm_sort_items"(
        const int32_t* keys, const uint32_t* tags, int64_t n, uint64_t* items, uint64_t* spare) noexcept nogil
    void cut_planes "llsvm_put_planes"(uint8_t* out, const uint32_t* numbers, int64_t n, int planes) noexcept nogil
    int64_t count_32 "llsvm_count_32"(const uint32_t* x, int64_t n, uint32_t number) noexcept nogil
    int64_t count_64 "llsvm_count_64"(const uint64_t* x, int64_t n, uint64_t number) noexcept nogil


def scatter(
    const uint16_t[::1] codes, const int64_t[::1] indptr, const int32_t[::1] features, values, int64_t row,
    int64_t first_row, uint64_t seed, int64_t target, const uint64_t[::1] chunks, int64_t[::1] sizes
):
    """Appends rows [row, ...) to the open chunks of random blocks; row r of the input goes where mix(seed, r) says.

    chunks, four a block: the addresses of its codes, lengths, features and values; sizes, four a block: rows and
    nonzeros in them, and the room for each. Stops when an open chunk must be closed: returns (next row, its block),
    block = -1 at the end of the rows. target is in nonzeros, a row counting as four.
    """
    cdef int64_t count = codes.shape[0], m = chunks.shape[0] // 4, size = memoryview(values).itemsize
    cdef int64_t block = -1, start, length, at, r
    cdef const uint8_t[::1] bytes = memoryview(values).cast("B") if len(values) else b""
    with nogil:
        while row < count:
            block = <int64_t>below(mix(seed, <uint64_t>(first_row + row)), <uint64_t>m)
            start = indptr[row]
            length = indptr[row + 1] - start
            r = sizes[4 * block]
            at = sizes[4 * block + 1]
            if r == sizes[4 * block + 2] or at + length > sizes[4 * block + 3]:
                break
            (<uint16_t*>chunks[4 * block])[r] = codes[row]
            (<int32_t*>chunks[4 * block + 1])[r] = <int32_t>length
            memcpy((<int32_t*>chunks[4 * block + 2]) + at, &features[0] + start, length * sizeof(int32_t))
            memcpy((<uint8_t*>chunks[4 * block + 3]) + at * size, &bytes[0] + start * size, length * size)
            sizes[4 * block] = r + 1
            sizes[4 * block + 1] = at + length
            row += 1
            if at + length + 4 * (r + 1) >= target:
                break
            block = -1
    return row, block


cdef uint8_t* put_planes(uint8_t* out, const uint32_t* numbers, int64_t n, int planes) noexcept nogil:
    cut_planes(out, numbers, n, planes)
    return out + planes * n


cdef int bytes_needed(uint32_t largest) noexcept nogil:
    if largest < 256:
        return 1
    if largest < 65536:
        return 2
    return 3 if largest < 16777216 else 4


cdef void sort_short_row(int32_t* features, value_t* values, int64_t n, value_t* spare) noexcept nogil:
    """A feature's place is the number of smaller ones: vectorised, so the fastest for a short row."""
    cdef int32_t[SHORT_ROW] keys
    cdef int32_t[SHORT_ROW] places
    cdef int64_t k
    memcpy(keys, features, n * sizeof(int32_t))
    memcpy(spare, values, n * sizeof(value_t))
    for k in range(n, (n + 15) & ~<int64_t>15):
        keys[k] = 0x7FFFFFFF
    rank(keys, n, places)
    for k in range(n):
        features[places[k]] = keys[k]
        values[places[k]] = spare[k]


cdef void sort_row(int32_t* features, value_t* values, int64_t n, value_t* spare) noexcept nogil:
    cdef uint64_t[LONG_ROW] items
    cdef uint64_t[LONG_ROW] others
    cdef uint32_t[LONG_ROW] places
    cdef uint64_t* sorted
    cdef uint32_t bits
    cdef int64_t k
    if value_t is float:
        sorted = sort_items(features, <const uint32_t*>values, n, items, others)
    else:
        memcpy(spare, values, n * sizeof(value_t))
        places[0] = 0  # or the compiler, which cannot know that n > 0, warns
        for k in range(1, n):
            places[k] = <uint32_t>k
        sorted = sort_items(features, places, n, items, others)
    for k in range(n):
        features[k] = <int32_t>(sorted[k] >> 32)
        if value_t is float:
            bits = <uint32_t>sorted[k]
            memcpy(&values[k], &bits, sizeof(bits))
        else:
            values[k] = spare[<uint32_t>sorted[k]]


cdef double sort_rows(
    const int32_t* lengths, int32_t* features, value_t* values, int64_t rows, uint8_t* spare
) noexcept nogil:
    """Every row by feature; returns the largest squared norm of a row. spare holds the longest row."""
    cdef int64_t r, k, n
    cdef double largest = 0, square
    for r in range(rows):
        n = lengths[r]
        for k in range(1, n):
            if features[k] < features[k - 1]:
                if n <= SHORT_ROW:
                    sort_short_row(features, values, n, <value_t*>spare)
                elif n <= LONG_ROW:
                    sort_row(features, values, n, <value_t*>spare)
                else:
                    radix_sort(features, values, n, <int32_t*>(spare + n * sizeof(value_t)), <value_t*>spare)
                break
        if value_t is float:
            square = square_float(values, n)
        else:
            square = square_double(values, n)
        largest = max(largest, square)
        features += n
        values += n
    return largest


cdef bint rows_are_dense(const int32_t* lengths, const int32_t* features, int64_t rows) noexcept nogil:
    cdef int64_t r, k
    for r in range(rows):
        for k in range(lengths[r]):
            if features[k] != k:
                return False
        features += lengths[r]
    return True


cdef uint32_t take_differences(const int32_t* lengths, int32_t* features, int64_t rows) noexcept nogil:
    cdef int64_t r, k
    cdef int32_t last, feature
    cdef uint32_t largest = 0
    for r in range(rows):
        last = -1
        for k in range(lengths[r]):
            feature = features[k]
            features[k] = feature - last - 1
            if <uint32_t>features[k] > largest:
                largest = <uint32_t>features[k]
            last = feature
        features += lengths[r]
    return largest


cdef bint rows_are_constant(const int32_t* lengths, const value_t* values, int64_t rows) noexcept nogil:
    cdef int64_t r, k
    for r in range(rows):
        for k in range(1, lengths[r]):
            if values[k] != values[0]:
                return False
        values += lengths[r]
    return True


cdef inline uint64_t bits_of(value_t value) noexcept nogil:
    cdef uint64_t bits = 0
    memcpy(&bits, &value, sizeof(value_t))
    return bits


cdef int build_dictionary(
    const value_t* values, int64_t n, value_t* entries, int64_t* counts, uint8_t* places
) noexcept nogil:
    """Distinct values in order of appearance, how often each was met, and the place of each value among them.

    Returns their number, or 0 if there are more than 256: then the first 256 of them and their counts until then.
    """
    cdef int32_t[1024] slots
    cdef int64_t k
    cdef uint64_t slot, bits, last = 0
    cdef int size = 0, place = 0
    memset(slots, 255, sizeof(slots))
    for k in range(n):
        bits = bits_of(values[k])
        if k == 0 or bits != last:
            last = bits
            slot = (bits * <uint64_t>0x9E3779B97F4A7C15) >> 54
            while slots[slot] >= 0 and bits_of(entries[slots[slot]]) != bits:
                slot = (slot + 1) & 1023
            if slots[slot] < 0:
                if size == 256:
                    return 0
                entries[size] = values[k]
                counts[size] = 0
                slots[slot] = size
                size += 1
            place = slots[slot]
        counts[place] += 1
        places[k] = <uint8_t>place
    return size


cdef int64_t count_equal(const value_t* values, int64_t n, value_t number) noexcept nogil:
    if value_t is float:
        return count_32(<const uint32_t*>values, n, <uint32_t>bits_of(number))
    else:
        return count_64(<const uint64_t*>values, n, bits_of(number))


cdef int64_t put_common(uint8_t* bits, value_t* values, int64_t n, value_t number) noexcept nogil:
    """Sets a bit for each value that is this number and moves the others to the front; returns how many."""
    cdef int64_t k, j, listed = 0
    cdef uint32_t equal, byte
    for k in range(0, n, 8):
        byte = 0
        for j in range(min(<int64_t>8, n - k)):
            equal = bits_of(values[k + j]) == bits_of(number)
            byte |= equal << j
            values[listed] = values[k + j]
            listed += 1 - equal
        bits[k >> 3] = <uint8_t>byte
    return listed


cdef uint8_t* put_value_planes(uint8_t* out, const value_t* values, int64_t n) noexcept nogil:
    cdef const uint8_t* raw = <const uint8_t*>values
    cdef int64_t k
    cdef int plane
    if value_t is float:
        return put_planes(out, <const uint32_t*>values, n, 4)
    else:
        for plane in range(8):
            for k in range(n):
                out[k] = raw[8 * k + plane]
            out += n
        return out


cdef uint8_t* put_values(uint8_t* out, Header* header, const int32_t* lengths, value_t* values) noexcept nogil:
    """The values of a chunk, which are used up."""
    cdef value_t[256] entries
    cdef int64_t[256] counts
    cdef int64_t k, n = header.nonzeros, rows = header.rows
    cdef int size, most = 0
    cdef value_t first
    header.value_bytes = sizeof(value_t)
    if rows_are_constant(lengths, values, rows):
        header.value_mode = ROW_CONSTANT
        for k in range(rows):
            first = values[0] if lengths[k] else <value_t>0
            memcpy(out + k * sizeof(value_t), &first, sizeof(value_t))
            values += lengths[k]
        return out + rows * sizeof(value_t)
    size = build_dictionary(values, n, entries, counts, out + sizeof(entries))
    if size:
        header.value_mode = DICTIONARY
        header.last_entry = <uint8_t>(size - 1)
        memcpy(out, entries, size * sizeof(value_t))
        memmove(out + size * sizeof(value_t), out + sizeof(entries), n)
        return out + size * sizeof(value_t) + n
    for k in range(256):
        if counts[k] > counts[most]:
            most = <int>k
    if counts[most] > 1 and COMMON_SHARE * count_equal(values, n, entries[most]) >= n and n >> 32 == 0:
        header.value_mode = COMMON_NUMBER
        memcpy(out, &entries[most], sizeof(value_t))
        out += sizeof(value_t)
        header.listed = <uint32_t>put_common(out, values, n, entries[most])
        return put_value_planes(out + (n + 7) // 8, values, header.listed)
    header.value_mode = PLAIN
    return put_value_planes(out, values, n)


cdef tuple encode_values(
    const uint16_t[::1] codes, const int32_t[::1] lengths, int32_t[::1] features, value_t[::1] values,
    uint8_t[::1] out
):
    cdef Header header
    cdef int64_t rows = codes.shape[0], r
    cdef uint32_t largest = 0
    cdef uint16_t largest_code = 0
    cdef bint common = True
    cdef double square = 0
    cdef uint8_t* p = &out[0] + HEADER
    cdef const int32_t* length = &lengths[0]
    cdef int32_t* feature = &features[0] if features.shape[0] else NULL
    cdef value_t* value = &values[0] if values.shape[0] else NULL
    with nogil:
        memset(&header, 0, HEADER)
        header.rows = rows
        header.nonzeros = features.shape[0]
        for r in range(rows):
            largest_code = max(largest_code, codes[r])
            largest = max(largest, <uint32_t>length[r])
            common = common and length[r] == length[0]
        header.label_bytes = 1 if largest_code < 256 else 2
        for r in range(rows):
            p[r] = <uint8_t>codes[r]
        p += rows
        if header.label_bytes == 2:
            for r in range(rows):
                p[r] = <uint8_t>(codes[r] >> 8)
            p += rows
        if common:
            header.common_length = <uint32_t>length[0]
        else:
            header.length_bytes = bytes_needed(largest)
            p = put_planes(p, <const uint32_t*>length, rows, header.length_bytes)
        if feature != NULL:
            square = sort_rows(length, feature, value, rows, p + (-<int64_t>p & 7))
            if not rows_are_dense(length, feature, rows):
                header.index_bytes = bytes_needed(take_differences(length, feature, rows))
                p = put_planes(p, <const uint32_t*>feature, header.nonzeros, header.index_bytes)
        p = put_values(p, &header, length, value)
        memcpy(&out[0], &header, HEADER)
    return p - &out[0], square


def encode(const uint16_t[::1] codes, const int32_t[::1] lengths, int32_t[::1] features, values, uint8_t[::1] out):
    """One chunk into out (its room: payload_room); features and values are used up.

    Returns (bytes written, largest squared norm of a row).
    """
    if memoryview(values).itemsize == sizeof(float):
        return encode_values[float](codes, lengths, features, values, out)
    return encode_values[double](codes, lengths, features, values, out)


def cut_ids(const int64_t[::1] ids, uint8_t[::1] out):
    """Eight planes of the bytes of these ids; returns the largest."""
    cdef int64_t k, n = ids.shape[0], largest = 0
    cdef int plane
    with nogil:
        for k in range(n):
            largest = max(largest, ids[k])
        for plane in range(8):
            if largest >> 8 * plane == 0:
                memset(&out[0] + plane * n, 0, n)
                continue
            for k in range(n):
                out[plane * n + k] = <uint8_t>(ids[k] >> 8 * plane)
    return largest
