"""LIBSVM text, scanned.

A piece of text is a run of whole lines, the last byte being a newline, so that every inner loop is stopped by the text
itself and needs no bound; 64 bytes behind it must be readable.

    line    = [label {id ":" value}] ["#" comment] "\n"
    label   = any run of bytes without blank or ":"; text.py looks at each once
    comment = any bytes but 0
    id      = decimal digits, at most 2^63 - 1
    value   = ["+"|"-"] digits ["." digits] [("e"|"E") ["+"|"-"] digits]

Numbers: an integer mantissa below 2^53 and a power of ten within 10^22 are both exact in a double, so one division or
multiplication rounds correctly (Clinger 1990). Others of up to 19 digits are rounded by the powers of _decimal, or by
strtod where that leaves it open.

What most lines are made of, one blank before every id, ids of at most 8 digits and values of at most 8 digits, or of
one, a point and at most 8, is read where the ends of tokens, found 64 bytes at a time, say it is: then no token waits
for the one before. All else is read byte by byte.
"""

from libc.math cimport isinf
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.stdlib cimport strtod
from libc.string cimport memchr, memcmp, memcpy, memset

from _decimal cimport SMALL_POWERS, fill_powers, in_64_bits, is_digit, nearest_double, skip_digits
from _sparse cimport radix_sort, value_t

cdef enum:
    TOKEN_LIMIT = 1023
    PLACES = 1024 - 64    # of ends of tokens that are found at a time
    RECENT_LABELS = 16

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
    ZERO_BYTE = 10

cdef extern from "_tokens.h":
    int list_ends "llsvm_find_ends"(
        const uint8_t* text, int64_t* at, int64_t stop, int64_t* places, int enough) noexcept nogil
    bint join_both "llsvm_join_digits"(
        uint64_t first, uint64_t second, uint64_t* number, uint64_t* other) noexcept nogil

cdef double[23] TEN
cdef double[2][9] DIVISOR        # 10^k and -10^k
cdef uint8_t[256] IS_BLANK       # blank, tab, carriage return
cdef uint8_t[256] ENDS_TOKEN     # the blanks, newline, "#"


def _fill_tables():
    for power in range(23):
        TEN[power] = 10.0 ** power
    for power in range(9):
        DIVISOR[0][power], DIVISOR[1][power] = 10.0 ** power, -(10.0 ** power)
    for byte in range(256):
        IS_BLANK[byte] = byte in b" \t\r"
        ENDS_TOKEN[byte] = byte in b" \t\r\n#"


fill_powers()
_fill_tables()


cdef inline uint64_t load_digits(const uint8_t* p) noexcept nogil:
    """Eight bytes xor "0": what is a digit is then below 10."""
    cdef uint64_t digits
    memcpy(&digits, p, 8)
    return digits ^ <uint64_t>0x3030303030303030


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
        code = slots[hashed & mask] - 1
        if code < 0:
            if n_labels[0] == tokens.shape[0]:
                return -1
            code = n_labels[0]
            slots[hashed & mask] = code + 1
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


cdef struct Ends:
    const uint8_t* text
    int64_t size, unread          # bytes; unread: the first that was not looked at
    int64_t* next                 # the places to come are [next, stop)
    int64_t* stop
    int64_t[PLACES + 73] places


cdef void find_ends(Ends* ends) noexcept nogil:
    """Leaves two places at least, those behind the end of the text being its size."""
    cdef int64_t* stop = ends.places
    while ends.next < ends.stop:
        stop[0] = ends.next[0]
        stop += 1
        ends.next += 1
    stop += list_ends(ends.text, &ends.unread, ends.size, stop, PLACES)
    ends.next = ends.places
    while stop < ends.places + 2:
        stop[0] = ends.size
        stop += 1
    ends.stop = stop


cdef inline const uint8_t* next_end(Ends* ends) noexcept nogil:
    cdef const uint8_t* end
    if ends.next == ends.stop:
        find_ends(ends)
    end = ends.text + ends.next[0]
    ends.next += 1
    return end


cdef void pass_by(Ends* ends, const uint8_t* p) noexcept nogil:
    """The next end will be the first behind p."""
    while ends.text + ends.next[0] <= p:
        next_end(ends)


cdef inline int64_t read_pairs(
    const uint8_t** at, Ends* ends, int64_t zero_based, int64_t* ids, value_t* values, int64_t* last, bint* ascending
) noexcept nogil:
    """Pairs of the usual kind, from the blank before the first on; stops at what is none. Returns their number."""
    cdef const uint8_t* text = ends.text
    cdef const uint8_t* p = at[0]
    cdef const uint8_t* colon
    cdef const uint8_t* end
    cdef const uint8_t* first
    cdef int64_t* next = ends.next
    cdef int64_t* stop = ends.stop
    cdef int64_t count = 0, before = last[0], id, size, id_size, decimals
    cdef bint descends = False
    cdef int negative
    cdef uint64_t digits, number, rest
    while p[0] <= 32 and p[0] != 10:
        if stop - next < 2:
            ends.next = next
            find_ends(ends)
            next = ends.next
            stop = ends.stop
        colon = text + next[0]
        end = text + next[1]
        id_size = colon - p - 1
        first = colon + 1
        negative = first[0] == 45
        first += negative
        size = end - first
        if colon[0] != 58 or <uint64_t>(id_size - 1) >= 8 or (end[0] != 32 and end[0] != 10):
            break
        rest = 0
        decimals = 0
        if size > 2 and first[1] == 46:
            decimals = size - 2
            rest = first[0] - <uint64_t>48
            if rest > 9:
                break
            first += 2
            size = decimals
        if <uint64_t>(size - 1) >= 8:
            break
        digits = load_digits(first) << (64 - 8 * size)
        if not join_both(load_digits(p + 1) << (64 - 8 * id_size), digits, &number, &digits):
            break
        id = <int64_t>number + zero_based
        if id == 0:
            break
        digits += rest * SMALL_POWERS[decimals]
        values[count] = <value_t>(<double><int64_t>digits / DIVISOR[negative][decimals])
        ids[count] = id
        descends |= id <= before
        before = id
        count += 1
        next += 2
        p = end
    ends.next = next
    at[0] = p
    last[0] = before
    if descends:
        ascending[0] = False
    return count


cdef const uint8_t* end_of_line(const uint8_t* p, const uint8_t* stop, int* fault) noexcept nogil:
    """The newline behind p, where a comment may begin; of a zero byte in that, the place."""
    cdef const uint8_t* end = <const uint8_t*>memchr(p, 10, stop - p)
    cdef const uint8_t* zero = <const uint8_t*>memchr(p, 0, end - p)
    if zero != NULL:
        fault[0] = ZERO_BYTE
        return zero
    return end


cdef const uint8_t* read_odd_pair(
    const uint8_t* p, const uint8_t* stop, bint zero_based, int64_t* id, value_t* value, int* fault
) noexcept nogil:
    """An id and a value of any kind, from the blanks before them; returns the byte behind them.

    At the end of a row *id = -1 and the newline is returned; of a fault, the place.
    """
    cdef const uint8_t* token
    cdef const uint8_t* first
    cdef uint64_t digits = 0
    cdef double number
    while IS_BLANK[p[0]]:
        p += 1
    token = p
    if p[0] == 10 or p[0] == 35:
        id[0] = -1
        return end_of_line(p, stop, fault)
    p = skip_digits(p, &digits)
    if p[0] != 58 or p == token:
        fault[0] = NO_COLON if ENDS_TOKEN[p[0]] else BAD_ID
        return token
    if p - token >= 19:
        first = token
        while first[0] == 48:
            first += 1
        if p - first > 19 or digits >> 63 or digits + zero_based >> 63:
            fault[0] = ID_TOO_LARGE
            return token
    id[0] = <int64_t>digits + zero_based
    if id[0] == 0:
        fault[0] = ID_ZERO
        return token
    token = p + 1
    p = read_number(token, &number)
    if p == NULL:
        fault[0] = BAD_VALUE
        return token
    value[0] = <value_t>number
    if isinf(value[0]):
        fault[0] = VALUE_TOO_LARGE
        return token
    return p


cdef inline uint64_t short_key(const uint8_t* token, Py_ssize_t size) noexcept nogil:
    """A number for each token of 1 to 8 bytes, scattered, 0 for any other. Reads eight bytes."""
    cdef uint64_t key
    if <size_t>(size - 1) >= 8:
        return 0
    memcpy(&key, token, 8)
    return (key << (64 - 8 * size)) * <uint64_t>0x9E3779B97F4A7C15


cdef int scan_lines(
    const uint8_t* text, Py_ssize_t size, bint zero_based, int64_t[::1] ids, value_t[::1] values, int64_t[::1] ends,
    uint16_t[::1] codes, int64_t[:, ::1] tokens, int32_t[::1] slots, int64_t* counts, int64_t* where
) noexcept nogil:
    cdef const uint8_t* p = text
    cdef const uint8_t* stop = text + size
    cdef const uint8_t* token
    cdef const uint8_t* end
    cdef int64_t nnz = 0, row_start, id = 0, last
    cdef int64_t rows = 0, lines = 0
    cdef int n_labels = 0, code = 0, fault = OK
    cdef bint ascending
    cdef uint64_t[RECENT_LABELS] recent
    cdef int[RECENT_LABELS] recent_codes
    cdef uint64_t key
    cdef Ends found
    found.text = text
    found.size = size
    found.unread = 0
    found.next = found.stop = found.places
    find_ends(&found)
    memset(recent, 0, sizeof(recent))

    while p < stop:
        end = next_end(&found)
        key = short_key(p, end - p)
        if key and recent[key >> 60] == key and ENDS_TOKEN[end[0]]:
            where[0] = p - text
            code = recent_codes[key >> 60]
            p = end
        else:
            while IS_BLANK[p[0]]:
                p += 1
            if p[0] == 10 or p[0] == 35:
                p = end_of_line(p, stop, &fault)
                if fault:
                    where[0] = p - text
                    return fault
                pass_by(&found, p)
                p += 1
                lines += 1
                counts[1] = lines
                continue
            token = p
            while not ENDS_TOKEN[p[0]] and p[0] != 58:
                p += 1
            where[0] = token - text
            if p[0] == 58:
                return NO_LABEL
            code = label_code(text, token - text, p - token, tokens, slots, &n_labels)
            if code < 0:
                return TOO_MANY_LABELS
            counts[2] = n_labels
            if p == end:
                recent[key >> 60] = key
                recent_codes[key >> 60] = code
            pass_by(&found, p)
        codes[rows] = <uint16_t>code
        tokens[code, 2] += 1
        row_start = nnz
        ascending = True
        last = -1
        while True:
            nnz += read_pairs(&p, &found, zero_based, &ids[nnz], &values[nnz], &last, &ascending)
            if p[0] == 10:
                break
            p = read_odd_pair(p, stop, zero_based, &id, &values[nnz], &fault)
            if fault:
                where[0] = p - text
                return fault
            pass_by(&found, p)
            if id < 0:
                break
            ids[nnz] = id
            nnz += 1
            ascending = ascending and id > last
            last = id
        if not ascending:
            fault = sort_row(&ids[row_start], &values[row_start], nnz - row_start)
            if fault:
                return fault
            last = ids[nnz - 1]
        p += 1
        rows += 1
        lines += 1
        counts[3] = max(counts[3], last)
        ends[rows] = nnz
        counts[0] = rows
        counts[1] = lines
    return OK


cdef tuple scan_values(
    const uint8_t[::1] text, bint zero_based, int64_t[::1] ids, value_t[::1] values, int64_t[::1] ends,
    uint16_t[::1] codes, int64_t[:, ::1] tokens, int32_t[::1] slots
):
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
                slots[:] = 0
            else:
                for code in range(counts[2]):
                    slots[tokens[code, 3]] = 0
    return fault, where, counts[0], counts[1], counts[2], counts[3]


def scan(
    const uint8_t[::1] text, bint zero_based, int64_t[::1] ids, values, int64_t[::1] ends, uint16_t[::1] codes,
    int64_t[:, ::1] tokens, int32_t[::1] slots
):
    """Scans whole lines: row r has ids and values [ends[r], ends[r + 1]), ascending, and the label tokens[codes[r]].

    ids hold 1-based numbers. tokens[c] = (start in text, length, rows with this label, its slot). slots, a hash table,
    must be filled with 0, and is again at the end.
    Returns (fault, position of the fault, rows, lines, labels, largest id); rows before a fault are complete.
    """
    if memoryview(values).itemsize == sizeof(float):
        return scan_values[float](text, zero_based, ids, values, ends, codes, tokens, slots)
    return scan_values[double](text, zero_based, ids, values, ends, codes, tokens, slots)


def translate(const uint16_t[::1] codes, const uint16_t[::1] table, uint16_t[::1] out):
    """out[k] = table[codes[k]]."""
    cdef Py_ssize_t k
    with nogil:
        for k in range(codes.shape[0]):
            out[k] = table[codes[k]]
