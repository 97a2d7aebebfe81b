"""LIBSVM text, scanned.

A piece of text is a run of whole lines, the last byte being a newline, so that every inner loop is stopped by the text
itself and needs no bound; eight bytes behind it must be readable.

    line    = [label {id ":" value}] ["#" comment] "\n"
    label   = any run of bytes without blank or ":"
    id      = decimal digits, at most 2^63 - 1
    value   = ["+"|"-"] digits ["." digits] [("e"|"E") ["+"|"-"] digits]

Numbers: an integer mantissa below 2^53 and a power of ten within 10^22 are both exact in a double, so one division or
multiplication rounds correctly (Clinger 1990). Others of up to 19 digits are rounded by the powers of _decimal, or by
strtod where that leaves it open.
"""

from libc.math cimport isinf
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.stdlib cimport strtod
from libc.string cimport memchr, memcmp, memcpy

from _decimal cimport fill_powers, in_64_bits, nearest_double
from _sparse cimport radix_sort, value_t

cdef enum:
    TOKEN_LIMIT = 1023

# What scan() found wrong; text.py has the sentences.
cdef enum:
    OK = 0
    NO_LABEL = 1
    BAD_ID = 2
    ID_TOO_LARGE = 3
    ID_ZERO = 4
    NO_COLON = 5
    BAD_VALUE = 6
    VALUE_TOO_LARGE = 7
    REPEATED_ID = 8
    TOO_MANY_LABELS = 9

cdef extern from *:
    int trailing_zeros "__builtin_ctzll"(unsigned long long number) noexcept nogil

cdef double[23] TEN
cdef uint64_t[9] POWER
cdef uint8_t[256] IS_BLANK       # blank, tab, carriage return
cdef uint8_t[256] ENDS_TOKEN     # the blanks, newline, "#"


def _fill_tables():
    for power in range(23):
        TEN[power] = 10.0 ** power
    for power in range(9):
        POWER[power] = 10 ** power
    for byte in range(256):
        IS_BLANK[byte] = byte in b" \t\r"
        ENDS_TOKEN[byte] = byte in b" \t\r\n#"


fill_powers()
_fill_tables()


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return <uint8_t>(byte - 48) < 10


cdef inline int read_digits(const uint8_t* p, uint64_t* number) noexcept nogil:
    """Up to eight digits at p, all at once: their count, and *number continued by them. Reads eight bytes.

    Each byte xor "0" is a digit if that is below 10; the digits are shifted to the high end, zeros before them, and
    joined in pairs, fours and eights.
    """
    cdef uint64_t digits, other
    cdef int count
    memcpy(&digits, p, 8)
    digits ^= <uint64_t>0x3030303030303030
    other = (digits | (digits + <uint64_t>0x7676767676767676)) & <uint64_t>0x8080808080808080
    count = trailing_zeros(other) >> 3 if other else 8
    if count == 0:
        return 0
    digits <<= 64 - 8 * count
    digits = (digits * 10 + (digits >> 8)) & <uint64_t>0x00FF00FF00FF00FF
    digits = (digits * 100 + (digits >> 16)) & <uint64_t>0x0000FFFF0000FFFF
    digits = (digits * 10000 + (digits >> 32)) & <uint64_t>0xFFFFFFFF
    number[0] = number[0] * POWER[count] + digits
    return count


cdef inline const uint8_t* skip_digits(const uint8_t* p, uint64_t* number) noexcept nogil:
    """Behind all the digits at p; beyond 19 of them *number is worthless."""
    cdef int count = read_digits(p, number)
    while count == 8:
        p += 8
        count = read_digits(p, number)
    return p + count


cdef const uint8_t* slow_number(
    const uint8_t* start, const uint8_t* behind, Py_ssize_t n_digits, uint64_t mantissa, int exponent, double* number
) noexcept nogil:
    """The number whose token, a right one, is at [start, behind); NULL where it is too long."""
    cdef char[TOKEN_LIMIT + 1] token
    cdef bint signed = start[0] == 45 or start[0] == 43
    if in_64_bits(start + signed, n_digits) and nearest_double(mantissa, exponent, number):
        if start[0] == 45:
            number[0] = -number[0]
        return behind
    if behind - start > TOKEN_LIMIT:
        return NULL
    memcpy(token, start, behind - start)
    token[behind - start] = 0
    number[0] = strtod(token, NULL)
    return behind


cdef inline const uint8_t* read_number(const uint8_t* start, double* number) noexcept nogil:
    """The number at start into *number; the first byte behind it, or NULL."""
    cdef const uint8_t* p = start
    cdef const uint8_t* first
    cdef const uint8_t* point
    cdef uint64_t mantissa = 0
    cdef int exponent = 0
    cdef int power = 0
    cdef bint negative = False
    cdef bint power_negative = False
    cdef Py_ssize_t digits

    if p[0] == 45:
        negative = True
        p += 1
    elif p[0] == 43:
        p += 1
    first = p
    while is_digit(p[0]):
        mantissa = mantissa * 10 + (p[0] - 48)
        p += 1
    digits = p - first
    if p[0] == 46:
        p += 1
        point = p
        p = skip_digits(p, &mantissa)
        exponent = -<int>(p - point)
        digits += p - point
    if digits == 0:
        return NULL
    if (p[0] | 32) == 101:
        p += 1
        if p[0] == 45:
            power_negative = True
            p += 1
        elif p[0] == 43:
            p += 1
        if not is_digit(p[0]):
            return NULL
        while is_digit(p[0]):
            if power < 100000:
                power = power * 10 + (p[0] - 48)
            p += 1
        exponent += -power if power_negative else power
    if not ENDS_TOKEN[p[0]]:
        return NULL
    if digits > 19 or mantissa >> 53 or exponent < -22 or exponent > 22:
        return slow_number(start, p, digits, mantissa, exponent, number)
    number[0] = <double>mantissa / TEN[-exponent] if exponent < 0 else <double>mantissa * TEN[exponent]
    if negative:
        number[0] = -number[0]
    return p


cdef inline int label_code(
    const uint8_t* text, Py_ssize_t start, Py_ssize_t length, int64_t[:, ::1] tokens, int32_t[::1] slots, int* n_labels
) noexcept nogil:
    """The number of this label among the labels of the piece, a new one if need be; -1 when there are too many."""
    cdef uint64_t hashed = 1469598103934665603
    cdef Py_ssize_t k
    cdef int32_t code
    cdef uint64_t mask = slots.shape[0] - 1
    for k in range(length):
        hashed = (hashed ^ text[start + k]) * <uint64_t>1099511628211
    hashed ^= hashed >> 29
    while True:
        code = slots[hashed & mask]
        if code < 0:
            if n_labels[0] == tokens.shape[0]:
                return -1
            code = n_labels[0]
            slots[hashed & mask] = code
            tokens[code, 0] = start
            tokens[code, 1] = length
            tokens[code, 2] = 0
            tokens[code, 3] = <int64_t>(hashed & mask)
            n_labels[0] += 1
            return code
        if tokens[code, 1] == length and memcmp(text + tokens[code, 0], text + start, length) == 0:
            return code
        hashed += 1


cdef int sort_row(int64_t* ids, value_t* values, Py_ssize_t n) noexcept nogil:
    """Sorts a row, with the still unused arrays behind it as the spare row; refuses an id that stands twice."""
    cdef Py_ssize_t k
    radix_sort(ids, values, n, ids + n, values + n)
    for k in range(1, n):
        if ids[k] == ids[k - 1]:
            return REPEATED_ID
    return OK


cdef int scan_lines(
    const uint8_t* text, Py_ssize_t size, bint zero_based, int64_t[::1] ids, value_t[::1] values, int64_t[::1] ends,
    uint16_t[::1] codes, int64_t[:, ::1] tokens, int32_t[::1] slots, int64_t* counts, int64_t* where
) noexcept nogil:
    cdef const uint8_t* p = text
    cdef const uint8_t* stop = text + size
    cdef const uint8_t* token
    cdef const uint8_t* first
    cdef int64_t nnz = 0, row_start, id, last
    cdef int64_t rows = 0, lines = 0
    cdef int n_labels = 0, code = 0, fault
    cdef bint ascending
    cdef double number
    cdef uint64_t digits

    while p < stop:
        while IS_BLANK[p[0]]:
            p += 1
        if p[0] == 10 or p[0] == 35:
            p = <const uint8_t*>memchr(p, 10, stop - p) + 1
            lines += 1
            counts[1] = lines
            continue
        token = p
        while not ENDS_TOKEN[p[0]] and p[0] != 58:
            p += 1
        where[0] = token - text
        if p[0] == 58:
            return NO_LABEL
        if rows and tokens[code, 1] == p - token and memcmp(text + tokens[code, 0], token, p - token) == 0:
            pass
        else:
            code = label_code(text, token - text, p - token, tokens, slots, &n_labels)
            if code < 0:
                return TOO_MANY_LABELS
        codes[rows] = <uint16_t>code
        tokens[code, 2] += 1
        row_start = nnz
        ascending = True
        last = -1
        while True:
            while IS_BLANK[p[0]]:
                p += 1
            token = p
            digits = 0
            p = skip_digits(p, &digits)
            if p[0] != 58 or p == token:
                if p[0] == 10 and p == token:
                    break
                if p[0] == 35 and p == token:
                    p = <const uint8_t*>memchr(p, 10, stop - p)
                    break
                where[0] = token - text
                return NO_COLON if ENDS_TOKEN[p[0]] else BAD_ID
            if p - token >= 19:
                first = token
                while first[0] == 48:
                    first += 1
                if p - first > 19 or digits >> 63:
                    where[0] = token - text
                    return ID_TOO_LARGE
            id = <int64_t>digits
            if zero_based:
                if digits == (<uint64_t>1 << 63) - 1:
                    where[0] = token - text
                    return ID_TOO_LARGE
                id += 1
            elif id == 0:
                where[0] = token - text
                return ID_ZERO
            token = p + 1
            p = read_number(token, &number)
            if p == NULL:
                where[0] = token - text
                return BAD_VALUE
            values[nnz] = <value_t>number
            if isinf(values[nnz]):
                where[0] = token - text
                return VALUE_TOO_LARGE
            ids[nnz] = id
            nnz += 1
            if id <= last:
                ascending = False
                counts[3] = max(counts[3], last)
            last = id
        if not ascending:
            fault = sort_row(&ids[row_start], &values[row_start], nnz - row_start)
            if fault:
                return fault
        p += 1
        rows += 1
        lines += 1
        counts[3] = max(counts[3], last)
        ends[rows] = nnz
        counts[0] = rows
        counts[1] = lines
        counts[2] = n_labels
    return OK


def scan(
    const uint8_t[::1] text, bint zero_based, int64_t[::1] ids, value_t[::1] values, int64_t[::1] ends,
    uint16_t[::1] codes, int64_t[:, ::1] tokens, int32_t[::1] slots
):
    """Scans whole lines: row r has ids and values [ends[r], ends[r + 1]), ascending, and the label tokens[codes[r]].

    ids hold 1-based numbers. tokens[c] = (start in text, length, rows with this label, its slot). slots, a hash table,
    must be filled with -1, and is again at the end.
    Returns (fault, position of the fault, rows, lines, labels, largest id); rows before a fault are complete.
    """
    cdef int64_t[4] counts
    cdef int64_t where = 0, code
    cdef int fault = OK
    counts[:] = [0, 0, 0, 0]
    ends[0] = 0
    if text.shape[0]:
        with nogil:
            fault = scan_lines(
                &text[0], text.shape[0], zero_based, ids, values, ends, codes, tokens, slots, counts, &where)
            if fault:
                slots[:] = -1
            else:
                for code in range(counts[2]):
                    slots[tokens[code, 3]] = -1
    return fault, where, counts[0], counts[1], counts[2], counts[3]


cdef inline uint64_t slot_of(int64_t id) noexcept nogil:
    return (<uint64_t>id * <uint64_t>0x9E3779B97F4A7C15) >> 20


def number(
    const int64_t[::1] ids, int32_t[::1] features, int32_t[::1] direct, int64_t[::1] hashed_ids,
    int32_t[::1] hashed_features, int64_t[::1] known, int64_t start, int64_t n_known, int64_t n_hashed
):
    """Features by order of first appearance: features[k] = the number of ids[k], new ids being appended to known.

    An id below direct.shape[0] is looked up there (its number + 1, 0: not seen), any other in the open-addressing table
    of the hashed arrays (id 0: empty), kept at most half full. Returns (k, n_known, n_hashed), k < len(ids) where a
    table is full: the caller enlarges it and calls again from k.
    """
    cdef Py_ssize_t k = start, n = ids.shape[0]
    cdef int64_t id, limit = direct.shape[0], room = known.shape[0], hash_room = hashed_ids.shape[0] // 2
    cdef uint64_t mask = hashed_ids.shape[0] - 1, slot
    cdef int32_t feature
    with nogil:
        while k < n:
            id = ids[k]
            if id < limit:
                feature = direct[id] - 1
                if feature < 0:
                    if n_known == room:
                        break
                    feature = <int32_t>n_known
                    direct[id] = feature + 1
                    known[n_known] = id
                    n_known += 1
            else:
                slot = slot_of(id) & mask
                while hashed_ids[slot] != id and hashed_ids[slot] != 0:
                    slot = (slot + 1) & mask
                if hashed_ids[slot] == 0:
                    if n_known == room or n_hashed >= hash_room:
                        break
                    hashed_ids[slot] = id
                    hashed_features[slot] = <int32_t>n_known
                    known[n_known] = id
                    n_known += 1
                    n_hashed += 1
                feature = hashed_features[slot]
            features[k] = feature
            k += 1
    return k, n_known, n_hashed


def fill_hash(const int64_t[::1] known, int64_t limit, int64_t[::1] hashed_ids, int32_t[::1] hashed_features):
    """Puts the numbers of all known ids from `limit` up into an empty, larger hash table."""
    cdef Py_ssize_t feature
    cdef uint64_t mask = hashed_ids.shape[0] - 1, slot
    with nogil:
        for feature in range(known.shape[0]):
            if known[feature] >= limit:
                slot = slot_of(known[feature]) & mask
                while hashed_ids[slot] != 0:
                    slot = (slot + 1) & mask
                hashed_ids[slot] = known[feature]
                hashed_features[slot] = <int32_t>feature
