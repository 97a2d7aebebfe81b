"""Weights of a model as text, `%.17g` and a blank behind each, and back."""

from libc.math cimport fabs, isfinite
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod
from libc.string cimport memcpy, memmove

from _decimal cimport (
    UNDECIDED, fill_powers, in_64_bits, is_digit, leading_zeros, nearest_double, seventeen_digits, skip_digits,
    split_digits
)
from _sparse cimport key_t, radix_sort

cdef double[2] SIGN = [1, -1]

fill_powers()


cdef inline int write_exponent(char* out, int exponent) noexcept nogil:
    """As C does: a sign and at least two digits. Returns the bytes written."""
    cdef int size = -exponent if exponent < 0 else exponent
    cdef int hundreds = size // 100
    out[0] = 101
    out[1] = 45 if exponent < 0 else 43
    out[2] = 48 + hundreds
    out += 2 + (hundreds > 0)
    out[0] = 48 + size // 10 % 10
    out[1] = 48 + size % 10
    return 4 + (hundreds > 0)


cdef inline int write_weight(char* start, double weight) noexcept nogil:
    """As snprintf by %.17g, but 0 for -0; may write up to 26 bytes. Returns those that count."""
    cdef char* out = start
    cdef uint64_t digits, first, middle, last
    cdef int exponent, n
    if weight == 0:
        out[0] = 48
        return 1
    exponent = seventeen_digits(fabs(weight), &digits) if isfinite(weight) else UNDECIDED
    if exponent == UNDECIDED:
        return snprintf(out, 26, "%.17g", weight)
    out[0] = 45
    out += weight < 0
    middle = digits // 100000000
    last = split_digits(digits - 100000000 * middle)
    first = middle // 100000000
    middle = split_digits(middle - 100000000 * first)
    n = 17 - (leading_zeros(last) >> 3) if last else 9 - (leading_zeros(middle) >> 3) if middle else 1
    if -4 <= exponent < 0:
        memcpy(out, b"0.000", 5)
        out += 1 - exponent
    out[0] = <char>(48 + first)
    middle |= <uint64_t>0x3030303030303030
    last |= <uint64_t>0x3030303030303030
    memcpy(out + 1, &middle, 8)
    memcpy(out + 9, &last, 8)
    if -4 <= exponent < 0:
        return <int>(out - start) + n
    if 0 <= exponent < 17:
        if n <= exponent + 1:
            return <int>(out - start) + exponent + 1
        memmove(out + exponent + 2, out + exponent + 1, 16 - exponent)
        out[exponent + 1] = 46
        return <int>(out - start) + n + 1
    if n > 1:
        memmove(out + 2, out + 1, 16)
        out[1] = 46
        n += 1
    return <int>(out - start) + n + write_exponent(out + n, exponent)


def format_weights(
    const double[:, ::1] weights, const int64_t[::1] ids, int64_t before, int64_t last, const uint8_t[::1] zeros,
    uint8_t[::1] out
):
    """Lines of the ids before + 1 .. last: weights[r] for ids[r], ascending, and zeros for all others.

    zeros: enough lines of zeros to fill any gap. out: at least 26 bytes a weight, 1 a row, and all the zeros. Returns
    the bytes written.
    """
    cdef int64_t r, c, at = 0, gap, line = 2 * weights.shape[1] + 1
    with nogil:
        for r in range(weights.shape[0]):
            gap = (ids[r] - 1 - before) * line
            memcpy(&out[at], &zeros[0], gap)
            at += gap
            before = ids[r]
            for c in range(weights.shape[1]):
                at += write_weight(<char*>&out[at], weights[r, c])
                out[at] = 32
                at += 1
            out[at] = 10
            at += 1
        gap = (last - before) * line
        memcpy(&out[at], &zeros[0], gap)
    return at + gap


cdef inline bint is_blank(uint8_t byte) noexcept nogil:
    return byte == 32 or byte == 10 or byte == 13 or byte == 9


cdef inline const uint8_t* read_weight(const uint8_t* start, double* weight) noexcept nogil:
    """The number at start into *weight; the blank behind it, or NULL where it is no finite number with a blank behind
    it."""
    cdef const uint8_t* first = start + (start[0] == 45)
    cdef const uint8_t* p = first
    cdef const uint8_t* point
    cdef char* behind
    cdef uint64_t digits = 0
    cdef Py_ssize_t n_digits
    cdef int power = 0, exponent = 0
    cdef bint negative
    while is_digit(p[0]):
        digits = digits * 10 + (p[0] - 48)
        p += 1
    n_digits = p - first
    if p[0] == 46:
        p += 1
        point = p
        p = skip_digits(p, &digits)
        power = <int>(point - p)
        n_digits += p - point
    if p[0] == 101:
        negative = p[1] == 45
        p += 1 + (p[1] == 45 or p[1] == 43)
        if not is_digit(p[0]):
            return NULL
        while is_digit(p[0]) and exponent < 1000:
            exponent = exponent * 10 + (p[0] - 48)
            p += 1
        power += -exponent if negative else exponent
    if n_digits and is_blank(p[0]) and in_64_bits(first, n_digits) and nearest_double(digits, power, weight):
        weight[0] *= SIGN[first != start]
        return p
    weight[0] = strtod(<const char*>start, &behind)
    if behind == <char*>start or not is_blank(behind[0]) or not isfinite(weight[0]):
        return NULL
    return <const uint8_t*>behind


def parse_weights(const uint8_t[::1] text, double[::1] weights):
    """Fills weights with the finite numbers in text, behind which 16 zero bytes stand. Returns (numbers found, bytes
    before what is none, or the end)."""
    cdef const uint8_t* p = &text[0]
    cdef const uint8_t* behind
    cdef int64_t k = 0, n = weights.shape[0]
    with nogil:
        while k < n:
            while is_blank(p[0]):
                p += 1
            if p[0] == 48 and (p[1] == 32 or p[1] == 10):
                weights[k] = 0
                p += 1
            else:
                behind = read_weight(p, &weights[k])
                if behind == NULL:
                    break
                p = behind
            k += 1
    return k, p - &text[0]


def count_words(const uint8_t[::1] text):
    """How many runs of bytes beyond the blank there are."""
    cdef int64_t k, start = 1, size = text.shape[0], count = size > 0 and text[0] > 32
    cdef uint8_t some
    with nogil:
        while start < size:
            some = 0  # a byte for what a few bytes hold: vectorised
            for k in range(start, min(start + 224, size)):
                some += (text[k - 1] <= 32) & (text[k] > 32)
            count += some
            start += 224
    return count


def sort_ids(key_t[::1] ids, int32_t[::1] places, key_t[::1] spare_ids, int32_t[::1] spare_places):
    """Sorts ids, all different, and with them their places, by means of spare arrays of the same length."""
    if ids.shape[0]:
        with nogil:
            radix_sort(&ids[0], &places[0], ids.shape[0], &spare_ids[0], &spare_places[0])
