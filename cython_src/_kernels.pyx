"""Values of a kernel between rows and landmarks: as a matrix, or summed with coefficients as decision values are.

    linear  x.z        polynomial  (gamma x.z + coef0)^degree        RBF  exp(-gamma |x - z|^2)

Landmarks stand in tiles of 32, each (features, 32): what the landmarks of the tile have of each feature.
"""

from libc.stdint cimport int32_t, int64_t

from _sparse cimport value_t

cdef extern from "_kernels.h":
    enum:
        LLSVM_TILE
    void tile_float "llsvm_kernel_tile_float"(
        const double* columns, const double* squares, int kind, double gamma, double coef0, int degree,
        const int64_t* indptr, const int32_t* features, const float* values, const double* own_squares,
        int64_t start, int64_t end, double* out) noexcept nogil
    void tile_double "llsvm_kernel_tile_double"(
        const double* columns, const double* squares, int kind, double gamma, double coef0, int degree,
        const int64_t* indptr, const int32_t* features, const double* values, const double* own_squares,
        int64_t start, int64_t end, double* out) noexcept nogil
    double dense_dot_double "llsvm_dense_dot_double"(const double* w, const double* x, int64_t n) noexcept nogil

cdef enum:
    BAND = 64  # rows whose values with one tile are computed at a time: 16 KB, which the nearest cache holds

TILE = LLSVM_TILE

ctypedef fused out_t:
    float
    double


# kind: 0 linear, 1 polynomial, 2 RBF.
cdef struct Formula:
    int kind
    double gamma
    double coef0
    int degree


cdef inline void one_tile(
    const double[:, ::1] columns, const double* squares, const Formula* formula, const int64_t[::1] indptr,
    const int32_t[::1] features, const value_t[::1] values, const double[::1] own_squares, int64_t start, int64_t end,
    double* out
) noexcept nogil:
    cdef const int32_t* of_features = &features[0] if features.shape[0] else NULL
    cdef const value_t* of_values = &values[0] if values.shape[0] else NULL
    if value_t is float:
        tile_float(&columns[0, 0], squares, formula.kind, formula.gamma, formula.coef0, formula.degree, &indptr[0],
                   of_features, of_values, &own_squares[0], start, end, out)
    else:
        tile_double(&columns[0, 0], squares, formula.kind, formula.gamma, formula.coef0, formula.degree, &indptr[0],
                    of_features, of_values, &own_squares[0], start, end, out)


def fill(
    const double[:, :, ::1] tiles, const double[::1] squares, Formula formula, const int64_t[::1] indptr,
    const int32_t[::1] features, const value_t[::1] values, const double[::1] own_squares, out_t[:, ::1] out
):
    """out[r, j] = K(row r, landmark j), for as many landmarks as out has columns. Rows are CSR, their features numbered
    as those of the landmarks are, or below 0; own_squares: x.x of each; squares: of the landmarks, padded to whole
    tiles."""
    cdef double[BAND * 32] band
    cdef int64_t b, start, end, r, j, t, first, width, n = out.shape[0], p = out.shape[1]
    with nogil:
        for b in range((n + BAND - 1) / BAND):
            start = b * BAND
            end = min(start + BAND, n)
            for t in range(tiles.shape[0]):
                first = t * LLSVM_TILE
                width = min(<int64_t>LLSVM_TILE, p - first)
                one_tile(tiles[t], &squares[first], &formula, indptr, features, values, own_squares, start, end, band)
                for r in range(start, end):
                    for j in range(width):
                        out[r, first + j] = <out_t>band[(r - start) * LLSVM_TILE + j]


def add_sums(
    const double[:, :, ::1] tiles, const double[::1] squares, Formula formula, const int64_t[::1] indptr,
    const int32_t[::1] features, const value_t[::1] values, const double[::1] own_squares,
    const double[:, :, ::1] coefs, double[:, ::1] out
):
    """out[r, c] += sum_j K(row r, landmark j) coefs[tile of j, c, j within it]; the rest as of fill."""
    cdef double[BAND * 32] band
    cdef int64_t b, start, end, r, c, t, n = out.shape[0], columns = out.shape[1]
    with nogil:
        for b in range((n + BAND - 1) / BAND):
            start = b * BAND
            end = min(start + BAND, n)
            for t in range(tiles.shape[0]):
                one_tile(tiles[t], &squares[t * LLSVM_TILE], &formula, indptr, features, values, own_squares, start,
                         end, band)
                for r in range(start, end):
                    for c in range(columns):
                        out[r, c] += dense_dot_double(&coefs[t, c, 0], band + (r - start) * LLSVM_TILE, LLSVM_TILE)


def row_squares(const int64_t[::1] indptr, const value_t[::1] values, double[::1] out):
    """out[r] = x.x of row r."""
    cdef int64_t r, k
    cdef double sum
    with nogil:
        for r in range(out.shape[0]):
            sum = 0
            for k in range(indptr[r], indptr[r + 1]):
                sum += <double>values[k] * values[k]
            out[r] = sum
