# Inline primitives on one sparse row and on w, shared by the kernels.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define llsvm_prefetch(address) __builtin_prefetch(address)
    #define llsvm_prefetch_near(address) __builtin_prefetch(address, 0, 2)
    #else
    #define llsvm_prefetch(address) ((void)0)
    #define llsvm_prefetch_near(address) ((void)0)
    #endif
    """
    void prefetch "llsvm_prefetch"(const void* address) noexcept nogil
    void prefetch_near "llsvm_prefetch_near"(const void* address) noexcept nogil  # but not into the nearest cache

cdef enum:
    # How far ahead of the visits rows are asked for: so many bytes, but no more of a row than the machine needs to
    # guess the rest, and no more rows. Rows of 1.2 KB: 265 ns a visit instead of 400 with 256 bytes of the eighth row
    # ahead.
    BYTES_AHEAD = 2560
    BYTES_OF_ROW = 2048
    ROWS_AHEAD = 12
    TABLE_AHEAD = 8  # rows, whose entries of the table are asked for before

ctypedef fused value_t:
    float
    double

ctypedef fused item_t:
    float
    double
    int32_t

ctypedef fused key_t:
    int32_t
    int64_t

ctypedef fused index_t:
    int32_t
    uint16_t


cdef extern from "_dense.h":
    double dense_dot_float "llsvm_dense_dot_float"(const double* w, const float* x, int64_t n) noexcept nogil
    double dense_dot_double "llsvm_dense_dot_double"(const double* w, const double* x, int64_t n) noexcept nogil
    void dense_axpy_float "llsvm_dense_axpy_float"(double a, const float* x, int64_t n, double* w) noexcept nogil
    void dense_axpy_double "llsvm_dense_axpy_double"(double a, const double* x, int64_t n, double* w) noexcept nogil

# What stands at the address `data` of a row of n nonzeros: n feature numbers of 32 or 16 bits, or none where they are
# 0 .. n-1; on the next multiple of the value's size, n values, or a single one where all are the same.
cdef enum:
    WIDE = 0
    SHORT = 1
    COUNTED = 2
    ONE_VALUE = 4


# A row in memory, as reader.ROW. norm = ||x||. Solvers only read it: what changes stands elsewhere, by its slot.
cdef packed struct Row:
    uint64_t data
    float norm
    int32_t length
    uint16_t code
    uint16_t layout
    int32_t chunk
    int32_t place


cdef inline uint64_t values_offset(int64_t length, int layout, int value_size) noexcept nogil:
    """Bytes from the start of a row to its first value."""
    cdef uint64_t width = 0 if layout & COUNTED else (2 if layout & SHORT else 4)
    return (width * length + value_size - 1) & ~<uint64_t>(value_size - 1)


cdef inline uint64_t size_of(int64_t length, int layout, int value_size) noexcept nogil:
    """Bytes of a row, a multiple of the value's size."""
    return values_offset(length, layout, value_size) + (1 if layout & ONE_VALUE else length) * value_size


cdef inline uint64_t row_size(const Row* row, int value_size) noexcept nogil:
    return size_of(row.length, row.layout, value_size)


cdef inline int32_t row_feature(const Row* row, int64_t k) noexcept nogil:
    if row.layout & COUNTED:
        return <int32_t>k
    if row.layout & SHORT:
        return (<const uint16_t*>row.data)[k]
    return (<const int32_t*>row.data)[k]


cdef inline const value_t* row_values(const Row* row, const value_t* kind) noexcept nogil:
    return <const value_t*>(row.data + values_offset(row.length, row.layout, sizeof(value_t)))


cdef inline int64_t value_mask(const Row* row) noexcept nogil:
    """The k-th value of a row is row_values[k & value_mask]."""
    return 0 if row.layout & ONE_VALUE else -1


cdef inline const Row* row_at(const Row* rows, int64_t stride, int64_t slot) noexcept nogil:
    """Of a table whose rows are so many bytes apart."""
    return <const Row*>(<uint64_t>rows + <uint64_t>(slot * stride))


cdef inline void ask_for_entry(const Row* row, int64_t stride) noexcept nogil:
    """Of the table, with what stands beside the row; it may lie on two cache lines."""
    prefetch(row)
    prefetch(<const void*>(<uint64_t>row + <uint64_t>stride - 1))


cdef struct Ahead:
    int64_t place  # of the next row to ask for, in the order of visits
    int64_t bytes  # asked for and not visited yet


cdef inline void look_ahead(
    Ahead* ahead, const Row* rows, int64_t stride, const int32_t* order, int64_t s, int64_t end, int value_size
) noexcept nogil:
    """Before the visit of the row in slot order[s] of a table: asks for rows that follow."""
    cdef const Row* row
    cdef int64_t line, size
    ahead.bytes -= min(<int64_t>row_size(row_at(rows, stride, order[s]), value_size), <int64_t>BYTES_OF_ROW)
    if ahead.place <= s:
        ahead.place = s + 1
        ahead.bytes = 0
    while ahead.bytes < BYTES_AHEAD and ahead.place < end and ahead.place < s + ROWS_AHEAD:
        if ahead.place + TABLE_AHEAD < end:
            ask_for_entry(row_at(rows, stride, order[ahead.place + TABLE_AHEAD]), stride)
        row = row_at(rows, stride, order[ahead.place])
        size = min(<int64_t>row_size(row, value_size), <int64_t>BYTES_OF_ROW)
        for line in range(0, size, 64):
            prefetch(<const void*>(row.data + <uint64_t>line))
        ahead.bytes += size
        ahead.place += 1


cdef inline double sum_products(const double* w, const index_t* index, const value_t* value, int64_t n) noexcept nogil:
    cdef double sum0 = 0, sum1 = 0
    cdef int64_t k = 0
    while k + 1 < n:
        sum0 += w[index[k]] * value[k]
        sum1 += w[index[k + 1]] * value[k + 1]
        k += 2
    if k < n:
        sum0 += w[index[k]] * value[k]
    return sum0 + sum1


cdef inline double sum_weights(const double* w, const index_t* index, int64_t n) noexcept nogil:
    cdef double sum0 = 0, sum1 = 0
    cdef int64_t k = 0
    while k + 1 < n:
        sum0 += w[index[k]]
        sum1 += w[index[k + 1]]
        k += 2
    if k < n:
        sum0 += w[index[k]]
    return sum0 + sum1


cdef inline void add_products(
    double a, const index_t* index, const value_t* value, int64_t n, double* w
) noexcept nogil:
    cdef int64_t k
    for k in range(n):
        w[index[k]] += a * value[k]


cdef inline void add_number(double a, const index_t* index, int64_t n, double* w) noexcept nogil:
    cdef int64_t k
    for k in range(n):
        w[index[k]] += a


cdef inline double dot_of(
    const double* w, uint16_t layout, const void* numbers, const value_t* values, int64_t n
) noexcept nogil:
    """Of w and n nonzeros that stand so; w begins at the first of those that are counted."""
    if layout == WIDE:
        return sum_products(w, <const int32_t*>numbers, values, n)
    if layout == SHORT:
        return sum_products(w, <const uint16_t*>numbers, values, n)
    if layout == COUNTED:
        if value_t is float:
            return dense_dot_float(w, values, n)
        else:
            return dense_dot_double(w, values, n)
    if layout & SHORT:
        return values[0] * sum_weights(w, <const uint16_t*>numbers, n)
    return values[0] * sum_weights(w, <const int32_t*>numbers, n)


cdef inline void axpy_of(
    double a, uint16_t layout, const void* numbers, const value_t* values, int64_t n, double* w
) noexcept nogil:
    """As dot_of."""
    if layout == WIDE:
        add_products(a, <const int32_t*>numbers, values, n, w)
    elif layout == SHORT:
        add_products(a, <const uint16_t*>numbers, values, n, w)
    elif layout == COUNTED:
        if value_t is float:
            dense_axpy_float(a, values, n, w)
        else:
            dense_axpy_double(a, values, n, w)
    elif layout & SHORT:
        add_number(a * values[0], <const uint16_t*>numbers, n, w)
    else:
        add_number(a * values[0], <const int32_t*>numbers, n, w)


cdef inline double row_dot(const double* w, const Row* row, const value_t* kind) noexcept nogil:
    """w.x"""
    return dot_of(w, row.layout, <const void*>row.data, row_values(row, kind), row.length)


cdef inline void row_axpy(double a, const Row* row, double* w, const value_t* kind) noexcept nogil:
    """w += a x"""
    axpy_of(a, row.layout, <const void*>row.data, row_values(row, kind), row.length, w)


cdef inline double row_square(const Row* row, const value_t* kind) noexcept nogil:
    """x.x in full precision, which the norm of a row does not have."""
    cdef const value_t* values = row_values(row, kind)
    cdef double sum0 = 0, sum1 = 0
    cdef int64_t k = 0, n = row.length
    if row.layout & ONE_VALUE:
        return n * (<double>values[0] * values[0])
    while k + 1 < n:
        sum0 += <double>values[k] * values[k]
        sum1 += <double>values[k + 1] * values[k + 1]
        k += 2
    if k < n:
        sum0 += <double>values[k] * values[k]
    return sum0 + sum1


cdef inline void radix_sort(
    key_t* keys, item_t* items, Py_ssize_t n, key_t* spare_keys, item_t* spare_items
) noexcept nogil:
    """Sorts non-negative keys, items alongside, with a spare row of n."""
    cdef int32_t[256] start
    cdef key_t largest = 0
    cdef key_t* other_keys
    cdef item_t* other_items
    cdef Py_ssize_t k
    cdef int shift = 0, digit
    cdef int32_t total, count
    for k in range(n):
        largest |= keys[k]
    while largest >> shift:
        memset(start, 0, sizeof(start))
        for k in range(n):
            start[(keys[k] >> shift) & 255] += 1
        total = 0
        for digit in range(256):
            count = start[digit]
            start[digit] = total
            total += count
        for k in range(n):
            digit = (keys[k] >> shift) & 255
            spare_keys[start[digit]] = keys[k]
            spare_items[start[digit]] = items[k]
            start[digit] += 1
        other_keys = keys
        keys = spare_keys
        spare_keys = other_keys
        other_items = items
        items = spare_items
        spare_items = other_items
        shift += 8
        if shift == 8 * sizeof(key_t):
            break
    if (shift // 8) & 1:
        memcpy(spare_keys, keys, n * sizeof(key_t))
        memcpy(spare_items, items, n * sizeof(item_t))


cdef inline uint64_t mix(uint64_t seed, uint64_t counter) noexcept nogil:
    """The counter-th number of the generator seeded by seed (splitmix64), the same on every platform."""
    cdef uint64_t z = seed * <uint64_t>0x9E3779B97F4A7C15 + (counter + 1) * <uint64_t>0xD1B54A32D192ED03
    z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EB
    return z ^ (z >> 31)


cdef inline uint64_t below(uint64_t number, uint64_t n) noexcept nogil:
    """A 64-bit random number turned into one of 0 .. n-1 (n < 2^32) without division."""
    return ((number >> 32) * n) >> 32


cdef inline void shuffle_order(int32_t* order, int64_t n, uint64_t seed, uint64_t counter) noexcept nogil:
    """A random order of n entries, the same for the same seed and counter."""
    cdef int64_t i, j
    cdef int32_t other
    cdef uint64_t stream = mix(seed, counter)
    for i in range(n - 1, 0, -1):
        j = <int64_t>below(mix(stream, <uint64_t>i), <uint64_t>(i + 1))
        other = order[i]
        order[i] = order[j]
        order[j] = other
