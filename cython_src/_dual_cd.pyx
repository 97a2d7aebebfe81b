"""Dual coordinate descent for linear SVM.

    min_w  P(w) = w.w / 2 + sum_i loss_i(1 - y_i w.x_i)
    max_a  D(a) = sum_i (a_i - d_i a_i^2 / 2) - w.w / 2,   w = sum_i a_i y_i x_i,   0 <= a_i <= U_i

    hinge:          loss(z) = C max(0, z),    U = C,         d = 0
    squared hinge:  loss(z) = C max(0, z)^2,  U = infinity,  d = 1 / (2C)

both being loss(z) = max over 0 <= a <= U of (a z - d a^2 / 2). With -B b every row has one more feature of value b,
whose weight is the last entry of w. One step makes D largest in one a_i (Hsieh et al., ICML 2008, Algorithm 3;
shrinking and stopping as in LIBLINEAR's solve_l2r_l1l2_svc).
"""

import numpy as np

from libc.math cimport INFINITY
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

from _dual cimport DUALS_AHEAD, SHRINK, STEP, Code, Dual, Seen, State, Visits, begin, dual_of, end, look, see, step
from _sparse cimport Ahead, Row, look_ahead, prefetch, row_axpy, value_t

cdef State _state
STATE = np.asarray(<State[:1]>&_state).dtype


cdef inline int64_t visit_all(Visits* v, int64_t active, const value_t* kind) noexcept nogil:
    """One thread alone; returns the number of rows that stay active, which are the first of order then."""
    cdef int64_t s, kept = 0
    cdef int32_t slot
    cdef int32_t* order = v.order
    cdef Ahead ahead = [0, 0]
    cdef Seen seen
    cdef int8_t mark
    cdef double highest = -INFINITY, lowest = INFINITY
    cdef double sum_alpha = 0, sum_square = 0, losses = 0, gap = 0, steps = 0
    for s in range(active):
        look_ahead(&ahead, v.rows, v.row_stride, order, s, active, sizeof(value_t))
        if not v.beside and s + DUALS_AHEAD < active:
            prefetch(&dual_of(v, order[s + DUALS_AHEAD]).gradient)
        slot = order[s]
        mark = look(v, slot, &seen, kind)
        gap += seen.gap
        losses += seen.loss
        if mark == SHRINK:
            continue
        order[s] = order[kept]
        order[kept] = slot
        kept += 1
        highest = max(highest, seen.projected)
        lowest = min(lowest, seen.projected)
        if mark == STEP:
            steps += 1
            step(v, slot, &seen, &sum_alpha, &sum_square, kind)
    v.highest = highest
    v.lowest = lowest
    v.sum_alpha = sum_alpha
    v.sum_square = sum_square
    v.losses = losses
    v.visits = active
    v.gap = gap
    v.steps = steps
    return kept


def sweep(
    const Row[:] rows, Dual[:] duals, int32_t[::1] order, int64_t active, double[::1] w,
    const double[:, ::1] codes, State[::1] state, const value_t[::1] kind
):
    """Visits rows[order[0 .. active-1]], changing w and their duals in place.

    codes[code] = (y, U, d). kind is any array of the value type. Returns the new number of active rows: with
    state.shrink, rows that have stayed at a bound leave the first `active` entries of order.
    """
    cdef Visits v
    begin(&v, rows, duals, order, w, codes, &state[0])
    with nogil:
        active = visit_all(&v, active, &kind[0])
    end(&v, &state[0])
    return active


def survey(
    const Row[:] rows, Dual[:] duals, const double[::1] w, const double[:, ::1] codes, double bias,
    double[::1] sums, const value_t[::1] kind
):
    """Looks at all rows at one w, changing their gradients alone. Arguments as in sweep.

    sums = [losses, what the rows have in the duality gap, squares of the changes of the gradients].
    """
    cdef Visits v
    cdef Seen seen
    cdef int64_t r
    cdef double before, losses = 0, gap = 0, changes = 0
    see(&v, rows, duals)
    v.w = <double*>&w[0]  # which is only read
    v.last_weight = w.shape[0] - 1
    v.bias = bias
    v.codes = <const Code*>&codes[0, 0]
    v.shrink = False
    with nogil:
        for r in range(rows.shape[0]):
            before = duals[r].gradient
            look(&v, <int32_t>r, &seen, &kind[0])
            losses += seen.loss
            gap += seen.gap
            changes += (seen.gradient - before) * (seen.gradient - before)
    sums[0] = losses
    sums[1] = gap
    sums[2] = changes


def select(
    const Row[:] rows, const Dual[:] duals, int32_t first, const double[:, ::1] codes, double margin,
    int32_t[::1] order
):
    """The slots, from `first` on, of the rows whose alpha is free or at the wrong bound, or whose gradient is within
    the margin: into order; returns how many there are."""
    cdef int64_t r, n = 0
    cdef double alpha, U, G
    with nogil:
        for r in range(rows.shape[0]):
            alpha = duals[r].alpha
            U = codes[rows[r].code, 1]
            G = duals[r].gradient
            order[n] = first + <int32_t>r
            n += 0 < alpha < U or -margin <= G <= margin or (G < 0 if alpha == 0 else G > 0)
    return n


def choose(
    const Row[:] rows, const Dual[:] duals, const double[:, ::1] codes, double margin, uint8_t[::1] chosen
):
    """chosen[r] = 1 where the alpha of row r is free, 0 < alpha < U, or its gradient within the margin, else 0; returns
    how many are."""
    cdef int64_t r, n = 0
    with nogil:
        for r in range(rows.shape[0]):
            chosen[r] = (0 < duals[r].alpha < codes[rows[r].code, 1]) or (-margin <= duals[r].gradient <= margin)
            n += chosen[r]
    return n


def adopt(
    const Row[:] rows, Dual[:] duals, const double[:, ::1] codes, double bias, bint round_alpha,
    double[::1] sums, double[::1] change, const value_t[::1] kind
):
    """Gives every row the alpha that its loss has at the w of a survey: 0 <= a <= U where a z - d a^2 / 2 is largest.

    What was its alpha is forgotten. Adds to change the w of these rows, sum a y x; sums = [sum a, sum d a^2 / 2].
    """
    cdef int64_t r, last = change.shape[0] - 1
    cdef double y, U, d, z, alpha, sum_alpha = 0, sum_square = 0
    with nogil:
        for r in range(rows.shape[0]):
            y = codes[rows[r].code, 0]
            U = codes[rows[r].code, 1]
            d = codes[rows[r].code, 2]
            z = d * duals[r].alpha - duals[r].gradient
            alpha = 0 if z <= 0 else (U if U * d <= z else z / d)
            if round_alpha:
                alpha = <double><float>alpha
            duals[r].alpha = alpha
            if alpha > 0:
                sum_alpha += alpha
                sum_square += 0.5 * d * alpha * alpha
                row_axpy(alpha * y, &rows[r], &change[0], &kind[0])
                change[last] += alpha * y * bias
    sums[0] = sum_alpha
    sums[1] = sum_square


def combine(
    const Row[:] rows, const Dual[:] duals, const double[:, ::1] codes, double bias, double[::1] sums,
    double[::1] change, const value_t[::1] kind
):
    """As adopt, but every row keeps its alpha."""
    cdef int64_t r, last = change.shape[0] - 1
    cdef double y, alpha, sum_alpha = 0, sum_square = 0
    with nogil:
        for r in range(rows.shape[0]):
            y = codes[rows[r].code, 0]
            alpha = duals[r].alpha
            if alpha > 0:
                sum_alpha += alpha
                sum_square += 0.5 * codes[rows[r].code, 2] * alpha * alpha
                row_axpy(alpha * y, &rows[r], &change[0], &kind[0])
                change[last] += alpha * y * bias
    sums[0] = sum_alpha
    sums[1] = sum_square


def read_alphas(const Dual[:] duals, const int32_t[::1] slots, double[::1] alphas):
    """The alphas of the rows in these slots."""
    cdef int64_t k
    with nogil:
        for k in range(slots.shape[0]):
            alphas[k] = duals[slots[k]].alpha


def measure_course(
    const Row[:] rows, const Dual[:] duals, const int32_t[::1] slots, const double[::1] before,
    const double[:, ::1] codes
):
    """Of the change c of alphas since they were `before`: (sum c (1 - d a), sum d c^2)."""
    cdef int64_t k
    cdef double d, alpha, change, slope = 0, curvature = 0
    with nogil:
        for k in range(slots.shape[0]):
            d = codes[rows[slots[k]].code, 2]
            alpha = duals[slots[k]].alpha
            change = alpha - before[k]
            slope += change * (1 - d * alpha)
            curvature += d * change * change
    return slope, curvature


def go_on(
    const Row[:] rows, Dual[:] duals, const int32_t[::1] slots, const double[::1] before, double share,
    double[::1] w, const double[:, ::1] codes, State[::1] state, const value_t[::1] kind
):
    """Alphas change by this share of their change since they were `before`, but stay within their bounds.

    w has made that change already, as if there were no bounds; state as in sweep.
    """
    cdef int64_t k, last = w.shape[0] - 1
    cdef double y, d, old, wanted, new, bias = state[0].bias, sum_alpha = 0, sum_square = 0
    cdef bint round_alpha = state[0].round_alpha
    cdef const Row* row
    with nogil:
        for k in range(slots.shape[0]):
            row = &rows[slots[k]]
            old = duals[slots[k]].alpha
            if old == before[k]:
                continue
            y = codes[row.code, 0]
            d = codes[row.code, 2]
            wanted = old + share * (old - before[k])
            new = min(max(wanted, 0.0), codes[row.code, 1])
            if round_alpha:
                new = <double><float>new
            if new != wanted:
                row_axpy((new - wanted) * y, row, &w[0], &kind[0])
                w[last] += (new - wanted) * y * bias
            duals[slots[k]].alpha = new
            sum_alpha += new - old
            sum_square += 0.5 * d * (new - old) * (new + old)
    state[0].sum_alpha += sum_alpha
    state[0].sum_square += sum_square
