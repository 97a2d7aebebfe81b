"""Which rows are active in which problems: lists of problems row by row, and of rows problem by problem.

counts[r] is how many problems row r is active in, and owners are their numbers, those of row 0 first, ascending in
each.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from _sparse cimport Row, row_size


def count(const uint8_t[:, ::1] bits, int32_t[::1] counts):
    """Row r is active in problem p where bits[p] has bit r, the highest of a byte being the first. Sets counts; returns
    their sum."""
    cdef int64_t p, b, r, n = 0
    cdef uint8_t byte
    with nogil:
        counts[:] = 0
        for p in range(bits.shape[0]):
            for b in range(bits.shape[1]):
                byte, r = bits[p, b], 8 * b
                while byte:
                    if byte & 128:
                        counts[r] += 1
                        n += 1
                    byte, r = (byte << 1) & 255, r + 1
    return n


def fill(const uint8_t[:, ::1] bits, int64_t[::1] places, uint16_t[::1] owners):
    """The owners, after count. places: where those of each row begin; becomes where they end."""
    cdef int64_t p, b, r
    cdef uint8_t byte
    with nogil:
        for p in range(bits.shape[0]):
            for b in range(bits.shape[1]):
                byte, r = bits[p, b], 8 * b
                while byte:
                    if byte & 128:
                        owners[places[r]] = <uint16_t>p
                        places[r] += 1
                    byte, r = (byte << 1) & 255, r + 1


def by_owner(const int32_t[::1] counts, const uint16_t[::1] owners, int64_t[::1] ends, int32_t[::1] slots):
    """The rows of each problem, ascending: those of problem p are slots[ends[p - 1] .. ends[p] - 1]. ends: one entry a
    problem and one more, all 0."""
    cdef int64_t r, k, _k, p, before = 0, place = 0
    with nogil:
        for k in range(owners.shape[0]):
            ends[owners[k] + 1] += 1
        for p in range(ends.shape[0]):
            before += ends[p]
            ends[p] = before
        for r in range(counts.shape[0]):
            for _k in range(counts[r]):
                p = owners[place]
                slots[ends[p]] = <int32_t>r
                ends[p] += 1
                place += 1


def row_by_row(const uint16_t[::1] owners, int64_t[::1] places, const uint8_t[::1] marks, uint8_t[::1] out):
    """Marks in the order of by_owner, now in that of owners. places: where those of each problem begin."""
    cdef int64_t k
    with nogil:
        for k in range(owners.shape[0]):
            out[k] = marks[places[owners[k]]]
            places[owners[k]] += 1


def keep(int32_t[::1] counts, uint16_t[::1] owners, const uint8_t[::1] kept):
    """Leaves those owners that are marked, side by side; returns how many they are."""
    cdef int64_t r, _k, place = 0, n = 0, before
    with nogil:
        for r in range(counts.shape[0]):
            before = n
            for _k in range(counts[r]):
                if kept[place]:
                    owners[n] = owners[place]
                    n += 1
                place += 1
            counts[r] = <int32_t>(n - before)
    return n


def add_sizes(
    const Row[:] rows, const int32_t[::1] counts, const uint16_t[::1] owners, int value_size, int64_t[:, ::1] sizes
):
    """Adds to sizes[p] = (rows, bytes) what each problem has of these rows."""
    cdef int64_t r, _k, size, place = 0
    with nogil:
        for r in range(rows.shape[0]):
            size = row_size(&rows[r], value_size)
            for _k in range(counts[r]):
                sizes[owners[place], 0] += 1
                sizes[owners[place], 1] += size
                place += 1
