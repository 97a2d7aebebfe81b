"""Pegasos: stochastic sub-gradient descent on the primal of linear SVM.

    min_w  w.w / 2 + sum_i C_i max(0, 1 - y_i w.x_i),          which is C l times
           lambda / 2 w.w + 1 / l sum_i C_i / C max(0, 1 - y_i w.x_i),    lambda = 1 / (C l)

Step t, with a batch B of rows (Shalev-Shwartz et al., ICML 2007; the overview by Rupnik, section 3.2; Yu et al., KDD
2010, Algorithm 3):

    w <- (1 - 1/t) w + l / (t |B|) sum over i in B with y_i w.x_i < 1 of C_i y_i x_i
    w <- min(1, r / |w|) w,    r^2 = sum_i C_i    (1 / lambda, where all C_i are C)

w is kept as scale v, so that a step costs the nonzeros of its rows; the sum of the w averaged is kept as averaging v +
u for the same reason. With -B b every row has one more feature of value b, whose weight is the last entry of v.

After the first step w = sum_i alpha_i y_i x_i, where a step multiplies all alphas by (1 - 1/t) and by the projection
and then adds l / (t |B|) C_i to those of the rows it used. The state carries sum_i alpha_i and a bound on alpha_i / C_i
(largest = that of all passes before, plus that of the visits of this pass, of which a row has one), so that alpha /
bound is a point of the dual, max sum_i alpha_i - w.w / 2 over 0 <= alpha_i <= C_i, and its value a lower bound of the
optimum. """

import numpy as np

from libc.math cimport sqrt
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from _loss cimport loss_at
from _sparse cimport Ahead, Row, look_ahead, mix, row_axpy, row_dot, row_feature, row_values, value_mask, value_t

cdef double SMALLEST_SCALE = 1e-100, LARGEST_RATIO = 1e4


# batch: rows of a step, or at most so many (l known: as even as can be), 0 where end_batch ends them; growing: l is the
# number of rows so far; hold: t stays where nothing moved; bias: the value of the bias feature.
# t: number of the coming step; square: w.w; alphas: their sum; bound, fresh_bound: see above; averaging, averaged: the
# sum of scale over the steps averaged, and their number; losses: met on the way; radius_square: r^2; n_rows: l. Of the
# batch under way: pending rows, touched features of the sum that it will add, costs of the rows in it.
cdef struct State:
    int64_t batch
    int64_t growing
    int64_t hold
    double bias
    double t
    double scale
    double square
    double alphas
    double bound
    double fresh_bound
    double averaging
    double averaged
    double losses
    double radius_square
    double n_rows
    double costs
    int64_t pending
    int64_t touched
    int64_t n_batches


cdef State _state
STATE = np.asarray(<State[:1]>&_state).dtype


cdef inline void multiply(State* state, double factor) noexcept nogil:
    """w <- factor w, and all that goes with it."""
    state.scale *= factor
    state.square *= factor * factor
    state.alphas *= factor
    state.bound *= factor
    state.fresh_bound *= factor


cdef inline void settle_average(State* state, double[::1] v, double[::1] u) noexcept nogil:
    """What has been averaged no longer depends on v. Long rows, whose projections shrink w again and again, would
    otherwise make averaging v and u large and opposite."""
    cdef Py_ssize_t k
    for k in range(u.shape[0]):
        u[k] += state.averaging * v[k]
    state.averaging = 0


cdef inline void shrink(State* state, double[::1] v, double[::1] u) noexcept nogil:
    """w <- (1 - 1/t) w."""
    cdef Py_ssize_t k
    if state.t > 1:
        multiply(state, 1 - 1 / state.t)
        if state.scale < SMALLEST_SCALE:
            for k in range(v.shape[0]):
                v[k] *= state.scale
            state.averaging /= state.scale
            state.scale = 1
        return
    multiply(state, 0)
    settle_average(state, v, u)
    memset(&v[0], 0, v.shape[0] * sizeof(double))
    state.scale = 1


cdef inline void finish_step(State* state, bint moved, double[::1] v, double[::1] u) noexcept nogil:
    """The projection, the average, and t."""
    if state.square > state.radius_square:
        multiply(state, sqrt(state.radius_square / state.square))
        state.square = state.radius_square
    if u.shape[0]:
        if state.averaging > LARGEST_RATIO * state.averaged * state.scale:
            settle_average(state, v, u)
        state.averaging += state.scale
        state.averaged += 1
    if moved or not state.hold:
        state.t += 1


cdef inline void apply_batch(
    State* state, double size, double[::1] v, double[::1] u, double[::1] gradient, int32_t[::1] touched,
    uint8_t[::1] marks
) noexcept nogil:
    """The step of a batch of this size, of which gradient holds sum C_i y_i x_i over the rows that count."""
    cdef double pace = state.n_rows / (state.t * size), dot = 0, square = 0, step
    cdef bint average = u.shape[0] > 0
    cdef int64_t k
    cdef int32_t feature
    shrink(state, v, u)
    for k in range(state.touched):
        feature = touched[k]
        dot += v[feature] * gradient[feature]
        square += gradient[feature] * gradient[feature]
    state.square += 2 * pace * state.scale * dot + pace * pace * square
    if average and state.square > LARGEST_RATIO * state.radius_square:
        settle_average(state, v, u)
    step = pace / state.scale
    for k in range(state.touched):
        feature = touched[k]
        v[feature] += step * gradient[feature]
        if average:
            u[feature] -= state.averaging * step * gradient[feature]
        gradient[feature] = 0
        marks[feature] = 0
    state.alphas += pace * state.costs
    if state.touched and pace > state.fresh_bound:
        state.fresh_bound = pace
    finish_step(state, state.touched > 0, v, u)
    state.pending = state.touched = 0
    state.costs = 0


def end_batch(
    State[::1] state, double size, double[::1] v, double[::1] u, double[::1] gradient, int32_t[::1] touched,
    uint8_t[::1] marks
):
    """Makes the step of a batch that is known to be complete."""
    with nogil:
        apply_batch(&state[0], size, v, u, gradient, touched, marks)


def visit(
    const Row[:] rows, const int32_t[::1] order, State[::1] states, double[::1] v, double[::1] u,
    double[::1] gradient, int32_t[::1] touched, uint8_t[::1] marks, const double[:, ::1] codes, const value_t[::1] kind
):
    """Visits rows[order], one step for every state.batch of them, at most; changes v, u and the state.

    u is empty where nothing is averaged; gradient, touched and marks (a number a feature, all zero between batches) are
    empty where batch = 1. codes[code] = (y, C_i, 0). kind is any array of the value type.
    """
    cdef State* state = &states[0]
    cdef const Row* row
    cdef Ahead ahead = [0, 0]
    cdef const value_t* values
    cdef int64_t s, k, mask, n_visits = order.shape[0], last = v.shape[0] - 1, batch = state.batch
    cdef bint average = u.shape[0] > 0, growing = state.growing
    cdef double y, C, margin, pace, step, bias = state.bias
    with nogil:
        for s in range(n_visits):
            look_ahead(&ahead, &rows[0], rows.strides[0], &order[0], s, n_visits, sizeof(value_t))
            row = &rows[order[s]]
            y = codes[row.code, 0]
            C = codes[row.code, 1]
            if growing:
                state.n_rows += 1
                state.radius_square += C
            margin = y * state.scale * (row_dot(&v[0], row, &kind[0]) + v[last] * bias)
            if margin < 1:
                state.losses += loss_at(1 - margin, C, 0)
            if batch == 1:
                pace = state.n_rows / state.t
                shrink(state, v, u)
                if margin < 1:
                    if state.t > 1:
                        state.square += 2 * pace * C * margin * (1 - 1 / state.t)
                    state.square += pace * C * pace * C * (<double>row.norm * row.norm + bias * bias)
                    if average and state.square > LARGEST_RATIO * state.radius_square:
                        settle_average(state, v, u)
                    step = pace * C * y / state.scale
                    row_axpy(step, row, &v[0], &kind[0])
                    v[last] += step * bias
                    if average:
                        row_axpy(-state.averaging * step, row, &u[0], &kind[0])
                        u[last] -= state.averaging * step * bias
                    state.alphas += pace * C
                    if pace > state.fresh_bound:
                        state.fresh_bound = pace
                finish_step(state, margin < 1, v, u)
                continue
            if margin < 1:
                values, mask = row_values(row, &kind[0]), value_mask(row)
                for k in range(row.length):
                    touch(row_feature(row, k), y * C * values[k & mask], state, gradient, touched, marks)
                touch(<int32_t>last, y * C * bias, state, gradient, touched, marks)
                state.costs += C
            state.pending += 1
            if batch and state.pending == batch_size(state):
                apply_batch(state, batch if growing else <double>state.pending, v, u, gradient, touched, marks)
                state.n_batches += 1


cdef inline void touch(
    int32_t feature, double change, State* state, double[::1] gradient, int32_t[::1] touched, uint8_t[::1] marks
) noexcept nogil:
    gradient[feature] += change
    if not marks[feature]:
        marks[feature] = 1
        touched[state.touched] = feature
        state.touched += 1


cdef inline int64_t batch_size(const State* state) noexcept nogil:
    """Of the batch under way: l rows go into as few batches as can be, the first of which are larger by one."""
    cdef int64_t n_rows = <int64_t>state.n_rows, n_batches = (n_rows + state.batch - 1) // state.batch
    if state.growing:
        return state.batch
    return n_rows // n_batches + (state.n_batches % n_batches < n_rows % n_batches)


def random_start(double[::1] v, uint64_t seed, double norm):
    """v <- a random vector of this length, the same for the same seed."""
    cdef Py_ssize_t k
    cdef double square = 0
    with nogil:
        for k in range(v.shape[0]):
            v[k] = <double><int64_t>mix(seed, <uint64_t>k) / <double>(<uint64_t>1 << 63)
            square += v[k] * v[k]
        if square > 0:
            for k in range(v.shape[0]):
                v[k] *= norm / sqrt(square)
