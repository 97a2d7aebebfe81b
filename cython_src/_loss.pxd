# What hinge and squared hinge loss are (the problem: _dual_cd.pyx), of a row with z = 1 - y w.x:
#
#     loss = max over 0 <= a <= U of a z - d a^2 / 2
#     its part of the duality gap at a: loss - a (z - d a / 2), which is 0 where a is that of the maximum
#     gradient of -D in a: G = d a - z;  where D is largest in a alone: a - G / (x.x + d), within 0 and U

from libc.math cimport fabs

cdef extern from *:
    """
    #define LLSVM_SMALLEST 1e-12
    """
    const double SMALLEST "LLSVM_SMALLEST"  # gradients that ask for a step are larger


# What is true of the rows of a label code in a problem: y, and the bounds 0 <= alpha <= U and curvature d of its loss.
cdef struct Code:
    double y
    double U
    double d


cdef inline const Code* codes_of(const double[:, ::1] codes) noexcept nogil:
    return <const Code*>&codes[0, 0]


cdef inline double cost_of(const Code* code) noexcept nogil:
    """C: the loss is C z, or C z^2, where z > 0."""
    return 0.5 / code.d if code.d > 0 else code.U


cdef inline double above_zero(double x) noexcept nogil:
    """max(x, 0), of which the compiler makes a branch."""
    return 0.5 * (x + fabs(x))


cdef inline double alpha_at(double z, double U, double d) noexcept nogil:
    """Where the maximum is, for z >= 0."""
    return min(U, z / d) if d > 0 else U


cdef inline double loss_at(double z, double U, double d) noexcept nogil:
    """For z >= 0; below, it is 0."""
    cdef double a = alpha_at(z, U, d)
    return a * (z - 0.5 * d * a)


cdef inline double gap_at(double loss, double z, double alpha, double d) noexcept nogil:
    return loss - alpha * (z - 0.5 * d * alpha)


cdef inline double square_of_change(double old, double new, double d) noexcept nogil:
    """By how much d a^2 / 2 grows."""
    return 0.5 * d * (new - old) * (new + old)


cdef inline bint is_free(double alpha, double U) noexcept nogil:
    return 0 < alpha < U


cdef inline bint is_wrong(double alpha, double G) noexcept nogil:
    """Of an alpha at a bound: whether D grows away from it."""
    return G < 0 if alpha == 0 else G > 0
