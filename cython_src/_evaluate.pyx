"""Read-only passes: products, the losses of rows, and decision values."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

from _loss cimport Code, codes_of, cost_of, loss_at
from _sparse cimport Row, dense_dot_double, row_dot, value_t

cdef enum:
    FACTORS = 513  # of w: 0, 1/256, ..., 2

N_FACTORS = FACTORS


def dot(const double[::1] a, const double[::1] b):
    """sum_k a[k] b[k], added in one order on every processor: where BLAS adds in the order that suits the processor,
    the last bits of what training decides by, and so the model, would depend on the machine."""
    cdef double sum
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"{a.shape[0]} and {b.shape[0]} numbers")
    with nogil:
        sum = dense_dot_double(&a[0], &b[0], a.shape[0]) if a.shape[0] else 0
    return sum


def losses(
    const Row[:] rows, const double[::1] w, double bias, const double[:, ::1] codes, const value_t[::1] kind
):
    """sum_i loss_i(1 - y_i w.x_i) over rows; codes as in _dual_cd.sweep."""
    cdef int64_t r
    cdef double total = 0, z
    cdef const Code* code
    with nogil:
        for r in range(rows.shape[0]):
            code = &codes_of(codes)[rows[r].code]
            z = 1 - code.y * (row_dot(&w[0], &rows[r], &kind[0]) + w[w.shape[0] - 1] * bias)
            if z > 0:
                total += loss_at(z, code.U, code.d)
    return total


def loss_of_scores(const double[:] scores, const int32_t[:] labels, const double[:, ::1] codes):
    """As losses, of rows that have these scores and label codes."""
    cdef int64_t r
    cdef double total = 0, z
    cdef const Code* code
    with nogil:
        for r in range(scores.shape[0]):
            code = &codes_of(codes)[labels[r]]
            z = 1 - code.y * scores[r]
            if z > 0:
                total += loss_at(z, code.U, code.d)
    return total


def products(
    const Row[:] rows, const int64_t[::1] slots, const double[::1] w, double bias, double[::1] out,
    const value_t[::1] kind
):
    """out[s] = w.x, the bias included, of the row in slots[s]."""
    cdef int64_t s
    with nogil:
        for s in range(slots.shape[0]):
            out[s] = row_dot(&w[0], &rows[slots[s]], &kind[0]) + w[w.shape[0] - 1] * bias


def ray(
    const Row[:] rows, const double[::1] w, double bias, const double[:, ::1] codes,
    double[:, ::1] sums, const value_t[::1] kind
):
    """Adds to sums (FACTORS, 3) what the losses of rows on the ray s w, s >= 0, are made of.

    A row has a loss, C_i (1 - s m_i) or its square, up to s = 1 / m_i, m_i = y_i w.x_i. Entry f sums C_i, C_i m_i and
    C_i m_i^2 over the rows for which f is the last s = f / 256 with a loss, or the last of all.
    """
    cdef const Code* code
    cdef int64_t r, place
    cdef double C, margin, end
    with nogil:
        for r in range(rows.shape[0]):
            code = &codes_of(codes)[rows[r].code]
            C = cost_of(code)
            margin = code.y * (row_dot(&w[0], &rows[r], &kind[0]) + w[w.shape[0] - 1] * bias)
            place = FACTORS - 1
            if margin > 0:
                end = 256 / margin
                if end < FACTORS - 1:
                    place = <int64_t>end
            sums[place, 0] += C
            sums[place, 1] += C * margin
            sums[place, 2] += C * margin * margin


def scores(
    const int64_t[::1] ids, const value_t[::1] values, const int64_t[::1] indptr, const double[:, ::1] weights,
    const double[::1] offset, double[:, ::1] out
):
    """out[r, c] = offset[c] + sum_k weights[ids[k] - 1, c] values[k] over row r; ids without weights are ignored."""
    cdef int64_t r, k, c, n = weights.shape[0], columns = weights.shape[1], id
    cdef double sum
    with nogil:
        for r in range(indptr.shape[0] - 1):
            if columns == 1:
                sum = offset[0]
                for k in range(indptr[r], indptr[r + 1]):
                    id = ids[k] - 1
                    if <uint64_t>id < <uint64_t>n:
                        sum += weights[id, 0] * values[k]
                out[r, 0] = sum
                continue
            for c in range(columns):
                out[r, c] = offset[c]
            for k in range(indptr[r], indptr[r + 1]):
                id = ids[k] - 1
                if <uint64_t>id < <uint64_t>n:
                    for c in range(columns):
                        out[r, c] += weights[id, c] * values[k]


def write_lines(
    const int32_t[::1] choices, const uint8_t[::1] names, const int64_t[::1] name_ends, const double[:, ::1] columns,
    uint8_t[::1] out
):
    """One line a row: the name of its choice, then its columns (`%.9g`). Returns the bytes written."""
    cdef int64_t r, c, at = 0, start, length
    with nogil:
        for r in range(choices.shape[0]):
            start = name_ends[choices[r]]
            length = name_ends[choices[r] + 1] - start
            memcpy(&out[at], &names[start], length)
            at += length
            for c in range(columns.shape[1]):
                at += snprintf(<char*>&out[at], 26, " %.9g", columns[r, c])
            out[at] = 10
            at += 1
    return at
