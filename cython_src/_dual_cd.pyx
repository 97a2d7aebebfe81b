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

from _dual cimport DUALS_AHEAD, SHRINK, STEP, Dual, Seen, State, Visits, begin, dual_of, look, see, step
from _dual cimport end as end_visits
from _loss cimport Code, alpha_at, codes_of, is_free, is_wrong, square_of_change
from _sparse cimport Ahead, Row, look_ahead, prefetch, row_axpy, value_t

cdef State _state
STATE = np.asarray(<State[:1]>&_state).dtype


cdef inline void visit_all(Visits* v, int64_t start, int64_t end, const value_t* kind) noexcept nogil:
    """One thread alone."""
    cdef int64_t s, kept = v.kept
    cdef int32_t slot
    cdef int32_t* order = v.order
    cdef Ahead ahead = [0, 0]
    cdef Seen seen
    cdef int8_t mark
    cdef double highest = -INFINITY, lowest = INFINITY
    cdef double sum_alpha = 0, sum_square = 0, losses = 0, gap = 0, steps = 0
    for s in range(start, end):
        look_ahead(&ahead, v.rows, v.row_stride, order, s, end, sizeof(value_t))
        if not v.beside and s + DUALS_AHEAD < end:
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
    v.visits = end - start
    v.gap = gap
    v.steps = steps
    v.kept = kept


def sweep(
    const Row[:] rows, Dual[:] duals, int32_t[::1] order, int64_t start, int64_t end, double[::1] w,
    const double[:, ::1] codes, State[::1] state, const value_t[::1] kind
):
    """Visits rows[order[start .. end-1]], changing w, their duals and the state in place.

    codes[code] = (y, U, d). kind is any array of the value type. With state.shrink, rows that have stayed at a bound
    leave the first entries of order, of which those that stay are the first state.kept. If start is not 0 the sweep of
    the rows before goes on, and so do its sums. Returns state.kept.
    """
    cdef Visits v
    begin(&v, rows, duals, order, start, w, codes, &state[0])
    with nogil:
        visit_all(&v, start, end, &kind[0])
    end_visits(&v, start, &state[0])
    return v.kept


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
    v.codes = codes_of(codes)
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
    the margin, but not of those that the problem leaves out, U = 0: into order; returns how many there are."""
    cdef int64_t r, n = 0
    cdef double alpha, U, G
    with nogil:
        for r in range(rows.shape[0]):
            alpha = duals[r].alpha
            G = duals[r].gradient
            order[n] = first + <int32_t>r
            U = codes[rows[r].code, 1]
            n += U > 0 and (is_free(alpha, U) or -margin <= G <= margin or is_wrong(alpha, G))
    return n


def choose(
    const Row[:] rows, const Dual[:] duals, const double[:, ::1] codes, double margin, uint8_t[::1] chosen
):
    """chosen[r] = 1 where the alpha of row r is free, 0 < alpha < U, or its gradient within the margin, else, or where
    U = 0, 0; returns how many are."""
    cdef int64_t r, n = 0
    cdef double U
    with nogil:
        for r in range(rows.shape[0]):
            U = codes[rows[r].code, 1]
            chosen[r] = U > 0 and (is_free(duals[r].alpha, U) or -margin <= duals[r].gradient <= margin)
            n += chosen[r]
    return n


cdef inline void combine_all(
    const Row[:] rows, const Dual[:] duals, const Code* codes, double bias, double[::1] sums, double[::1] change,
    const value_t* kind
) noexcept nogil:
    cdef int64_t r, last = change.shape[0] - 1
    cdef double alpha, sum_alpha = 0, sum_square = 0
    cdef const Code* code
    for r in range(rows.shape[0]):
        alpha = duals[r].alpha
        if alpha > 0:
            code = &codes[rows[r].code]
            sum_alpha += alpha
            sum_square += square_of_change(0, alpha, code.d)
            row_axpy(alpha * code.y, &rows[r], &change[0], kind)
            change[last] += alpha * code.y * bias
    sums[0] = sum_alpha
    sums[1] = sum_square


def combine(
    const Row[:] rows, const Dual[:] duals, const double[:, ::1] codes, double bias, double[::1] sums,
    double[::1] change, const value_t[::1] kind
):
    """Adds to change the w of these rows, sum a y x; sums = [sum a, sum d a^2 / 2]."""
    with nogil:
        combine_all(rows, duals, codes_of(codes), bias, sums, change, &kind[0])


def adopt(
    const Row[:] rows, Dual[:] duals, const double[:, ::1] codes, double bias, bint round_alpha,
    double[::1] sums, double[::1] change, const value_t[::1] kind
):
    """Gives every row the alpha that its loss has at the w of a survey; what was its alpha is forgotten. Then as
    combine."""
    cdef int64_t r
    cdef double z
    cdef const Code* code
    with nogil:
        for r in range(rows.shape[0]):
            code = &codes_of(codes)[rows[r].code]
            z = code.d * duals[r].alpha - duals[r].gradient
            duals[r].alpha = alpha_at(z, code.U, code.d) if z > 0 else 0
            if round_alpha:
                duals[r].alpha = <double><float>duals[r].alpha
        combine_all(rows, duals, codes_of(codes), bias, sums, change, &kind[0])


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
            sum_square += square_of_change(old, new, d)
    state[0].sum_alpha += sum_alpha
    state[0].sum_square += sum_square
