"""Second derivatives of the primal value with the squared hinge loss (the problem: _dual_cd.pyx).

    P(w) = w.w / 2 + sum_i z_i^2 / (2 d_i)  over the rows with z_i = 1 - y_i w.x_i > 0
    H    = I + sum_i x_i x_i^T / d_i        over the same rows: those whose adopted alpha, z_i / d_i, is not 0

(Keerthi and DeCoste, JMLR 2005; Galli and Lin, 2021). Rows have the alphas that belong to w: see adopt in _dual_cd.pyx.
"""

from libc.stdint cimport int32_t, int64_t

from _dual cimport Dual
from _sparse cimport Row, row_axpy, row_dot, row_feature, row_values, value_mask, value_t


def add_products(
    const Row[:] rows, const Dual[:] duals, const double[::1] v, double bias, const double[:, ::1] codes,
    double[::1] out, const value_t[::1] kind
):
    """out += (H - I) v, for these rows."""
    cdef int64_t r, last = v.shape[0] - 1
    cdef double share
    cdef const Row* row
    with nogil:
        for r in range(rows.shape[0]):
            row = &rows[r]
            if duals[r].alpha > 0:
                share = (row_dot(&v[0], row, &kind[0]) + v[last] * bias) / codes[row.code, 2]
                row_axpy(share, row, &out[0], &kind[0])
                out[last] += share * bias


def add_diagonal(
    const Row[:] rows, const Dual[:] duals, double bias, const double[:, ::1] codes, double[::1] out,
    const value_t[::1] kind
):
    """out += the diagonal of H - I, for these rows."""
    cdef int64_t r, k, mask, last = out.shape[0] - 1
    cdef double d
    cdef const Row* row
    cdef const value_t* values
    with nogil:
        for r in range(rows.shape[0]):
            row = &rows[r]
            if duals[r].alpha > 0:
                d = codes[row.code, 2]
                values = row_values(row, &kind[0])
                mask = value_mask(row)
                for k in range(row.length):
                    out[row_feature(row, k)] += <double>values[k & mask] * values[k & mask] / d
                out[last] += bias * bias / d


def add_matrix(
    const Row[:] rows, const Dual[:] duals, double bias, const double[:, ::1] codes, double[:, ::1] out,
    const value_t[::1] kind
):
    """out += H - I, for these rows."""
    cdef int64_t r, k, mask, last = out.shape[0] - 1
    cdef int32_t feature
    cdef double share
    cdef const Row* row
    cdef const value_t* values
    with nogil:
        for r in range(rows.shape[0]):
            row = &rows[r]
            if duals[r].alpha > 0:
                share = 1 / codes[row.code, 2]
                values = row_values(row, &kind[0])
                mask = value_mask(row)
                for k in range(row.length):
                    feature = row_feature(row, k)
                    row_axpy(share * values[k & mask], row, &out[feature, 0], &kind[0])
                    out[feature, last] += share * values[k & mask] * bias
                row_axpy(share * bias, row, &out[last, 0], &kind[0])
                out[last, last] += share * bias * bias
