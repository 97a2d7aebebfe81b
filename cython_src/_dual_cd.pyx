"""Dual coordinate descent for linear SVM.

    min_w  P(w) = w.w / 2 + sum_i loss_i(1 - y_i w.x_i)
    max_a  D(a) = sum_i (a_i - d_i a_i^2 / 2) - w.w / 2,   w = sum_i a_i y_i x_i,   0 <= a_i <= U_i

    hinge:          loss(z) = C max(0, z),    U = C,         d = 0
    squared hinge:  loss(z) = C max(0, z)^2,  U = infinity,  d = 1 / (2C)

both being loss(z) = max over 0 <= a <= U of (a z - d a^2 / 2). With -B b every row has one more feature of value b,
whose weight is the last entry of w. One step makes D largest in one a_i (Hsieh et al., ICML 2008, Algorithm 3;
shrinking and stopping as in LIBLINEAR's solve_l2r_l1l2_svc).
"""

from libc.math cimport INFINITY, fabs
from libc.stdint cimport int32_t, int64_t

from _sparse cimport Ahead, Row, look_ahead, row_axpy, row_dot, row_features, value_t, values_offset


def sweep(
    Row[::1] rows, int32_t[::1] order, int64_t active, int64_t count_from, double[::1] w, double bias,
    const double[::1] signs, const double[:, ::1] box, bint round_alpha, bint shrink, double[::1] state,
    const value_t[::1] kind
):
    """Visits rows[order[0 .. active-1]], changing w, alpha and gradient in place.

    signs[code] = y. box[0] is of the rows with y < 0, box[1] of the others: (U, d). round_alpha keeps alpha
    representable in float32. With shrink, rows that have stayed at a bound leave the first `active` entries of order.
    kind is any array of the value type.
    state = [largest and smallest projected gradient of the sweep before, of this sweep,
             change of sum a, change of sum d a^2 / 2, sum of losses met in slots from count_from, visits of those].
    Returns the new number of active rows.
    """
    cdef int64_t s = 0, n
    cdef int32_t slot
    cdef Row* row
    cdef Ahead ahead = [0, 0]
    cdef const int32_t* features
    cdef const value_t* values
    cdef double* weights = &w[0]
    cdef int64_t last_weight = w.shape[0] - 1
    cdef double bias_square = bias * bias
    cdef double y, U, d, G, PG, old, new, z, best
    cdef double highest_before = state[0], lowest_before = state[1]
    cdef double highest = -INFINITY, lowest = INFINITY
    cdef double sum_alpha = 0, sum_square = 0, losses = 0, visits = 0
    cdef int64_t side
    with nogil:
        while s < active:
            look_ahead(&ahead, &rows[0], &order[0], s, active, sizeof(value_t))
            slot = order[s]
            row = &rows[slot]
            n = row.length
            features = row_features(row)
            values = <const value_t*>(row.data + values_offset(n, sizeof(value_t)))
            y = signs[row.code]
            side = y > 0
            U = box[side, 0]
            d = box[side, 1]
            old = row.alpha
            G = y * (row_dot(weights, features, values, n) + weights[last_weight] * bias) - 1
            if slot >= count_from:
                visits += 1
                if G < 0:
                    z = -G
                    best = U if U * d <= z else z / d
                    losses += best * (z - 0.5 * d * best)
            G += old * d
            row.gradient = <float>G
            PG = G
            if old == 0:
                if G > 0:
                    PG = 0
                    if shrink and G > highest_before:
                        active -= 1
                        order[s] = order[active]
                        order[active] = slot
                        continue
            elif old == U:
                if G < 0:
                    PG = 0
                    if shrink and G < lowest_before:
                        active -= 1
                        order[s] = order[active]
                        order[active] = slot
                        continue
            if PG > highest:
                highest = PG
            if PG < lowest:
                lowest = PG
            if fabs(PG) > 1e-12:
                z = <double>row.norm * row.norm + bias_square + d
                new = old - G / z if z > 0 else (U if G < 0 else 0)
                if new < 0:
                    new = 0
                elif new > U:
                    new = U
                if round_alpha:
                    new = <double><float>new
                if new != old:
                    row.alpha = new
                    sum_alpha += new - old
                    sum_square += 0.5 * d * (new - old) * (new + old)
                    z = (new - old) * y
                    row_axpy(z, features, values, n, weights)
                    weights[last_weight] += z * bias
            s += 1
        state[2] = highest
        state[3] = lowest
        state[4] += sum_alpha
        state[5] += sum_square
        state[6] += losses
        state[7] += visits
    return active
