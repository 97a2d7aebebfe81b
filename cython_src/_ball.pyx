"""StreamSVM: a ball that encloses all rows seen so far, from one pass (Rai, Daume, Venkatasubramanian, IJCAI 2009).

The problem is that of the squared hinge loss,

    min_w  w.w / 2 + sum_i C_i max(0, 1 - y_i w.x_i)^2
    max_a  sum_i (a_i - d_i a_i^2 / 2) - w.w / 2,    w = sum_i a_i y_i x_i,    a_i >= 0,    d_i = 1 / (2 C_i)

Row i stands for the point p_i = (y_i x_i, sqrt(d_i) e_i), whose last part has a direction of its own for every row. The
centre of the smallest ball around such points is c = sum_i b_i p_i with b_i >= 0, sum_i b_i = 1, and any such b gives
the dual point a = b / |c|^2, of value 1 / (2 |c|^2). Only the first part of c is kept, as scale v, and |.|^2 of the
second.

A row at distance d from c that is not inside the ball of radius R moves it (Algorithm 1):

    c <- c + (1 - R / d) / 2 (p - c),    R <- R + (d - R) / 2

With a lookahead of L > 1, L rows outside are held, and then c and R become those of the smallest ball that encloses the
old one and all of them (Algorithm 2). With c as the origin and q_0 = 0, q_i = p_i - c, G_ij = q_i.q_j, its centre is
sum_i z_i q_i with z >= 0, sum_i z_i = 1, for which

    r(z) = z_0 R + sqrt(V - z_0 (1 - z_0) R^2),    V = sum_i z_i G_ii - z.G z

is largest; that is then the new radius. For a given r, sum_i z_i (G_ii - r_i^2) - z.G z with r_0 = r - R, r_i = r is
made largest by steps along pairs of z; then r = r(z), and so on until r stays.
"""

import numpy as np

from libc.math cimport sqrt
from libc.stdint cimport int32_t, int64_t

from _sparse cimport (Ahead, Row, look_ahead, row_axpy, row_dot, row_feature, row_square, row_values, value_mask,
                      value_t)

cdef enum:
    ROUNDS = 50
    STEPS = 1000  # along pairs, for every z

cdef double SMALLEST_SCALE = 1e-100, PRECISION = 1e-12


# bias: the value of the bias feature. square, slack: |c|^2 of the first part and of the second; moves: rows and groups
# of rows that moved c; held: rows outside that wait.
cdef struct State:
    double bias
    double scale
    double square
    double slack
    double radius
    int64_t moves
    int64_t held


cdef State _state
STATE = np.asarray(<State[:1]>&_state).dtype


cdef inline void rescale(State* state, double factor, double[::1] v) noexcept nogil:
    """c <- factor c, of which the caller corrects square and slack."""
    cdef Py_ssize_t k
    state.scale *= factor
    if state.scale < SMALLEST_SCALE:
        for k in range(v.shape[0]):
            v[k] *= state.scale
        state.scale = 1


def visit(
    const Row[::1] rows, const int32_t[::1] order, State[::1] states, Row[::1] held, double[::1] v,
    const double[:, ::1] codes, double[::1] spread, double[:, ::1] work, const value_t[::1] kind
):
    """Visits rows[order] once, changing v and the state; rows outside wait in held, if that has space for more than
    one.

    codes[code] = (y, U, d). spread: zeros, a number a feature, and work: (L + 1, L + 6), both empty where held has one
    place. kind is any array of the value type.
    """
    cdef State* state = &states[0]
    cdef const Row* row
    cdef Ahead ahead = [0, 0]
    cdef int64_t s, n_visits = order.shape[0], last = v.shape[0] - 1
    cdef double y, d, dot, square, distance, step, bias = state.bias
    with nogil:
        for s in range(n_visits):
            look_ahead(&ahead, &rows[0], sizeof(Row), &order[0], s, n_visits, sizeof(value_t))
            row = &rows[order[s]]
            y = codes[row.code, 0]
            d = codes[row.code, 2]
            square = row_square(row, &kind[0]) + bias * bias
            if state.moves == 0:
                row_axpy(y, row, &v[0], &kind[0])
                v[last] += y * bias
                state.square = square
                state.slack = d
                state.moves = 1
                continue
            dot = y * state.scale * (row_dot(&v[0], row, &kind[0]) + v[last] * bias)
            distance = sqrt(max(0.0, state.square - 2 * dot + square) + state.slack + d)
            if distance < state.radius:
                continue
            if held.shape[0] > 1:
                held[state.held] = row[0]
                state.held += 1
                if state.held == held.shape[0]:
                    enclose(state, held, v, codes, spread, work, kind)
                continue
            step = 0.5 * (1 - state.radius / distance)
            rescale(state, 1 - step, v)
            row_axpy(step * y / state.scale, row, &v[0], &kind[0])
            v[last] += step * y * bias / state.scale
            state.square = (1 - step) * (1 - step) * state.square + 2 * step * (1 - step) * dot + step * step * square
            state.slack = (1 - step) * (1 - step) * state.slack + step * step * d
            state.radius += 0.5 * (distance - state.radius)
            state.moves += 1


def enclose_held(
    State[::1] states, Row[::1] held, double[::1] v, const double[:, ::1] codes, double[::1] spread,
    double[:, ::1] work, const value_t[::1] kind
):
    """Encloses the rows that wait, however few."""
    with nogil:
        enclose(&states[0], held, v, codes, spread, work, kind)


cdef void enclose(
    State* state, Row[::1] held, double[::1] v, const double[:, ::1] codes, double[::1] spread, double[:, ::1] work,
    const value_t[::1] kind
) noexcept nogil:
    cdef int64_t n = state.held + 1, size = work.shape[0], i, j, k, last = v.shape[0] - 1
    cdef double[:, ::1] G = work  # G[i, j], then behind it z, the gradient by z, p_i.c, y_i
    cdef double y, value, bias = state.bias, centre = state.square + state.slack, moved = 0, r
    cdef const value_t* values
    cdef int64_t mask, z = size, gradient = size + 1, product = size + 2, sign = size + 3, linear = size + 4
    for i in range(1, n):
        values, mask = row_values(&held[i - 1], &kind[0]), value_mask(&held[i - 1])
        y = codes[held[i - 1].code, 0]
        work[i, sign] = y
        work[i, product] = y * state.scale * (row_dot(&v[0], &held[i - 1], &kind[0]) + v[last] * bias)
        for k in range(held[i - 1].length):
            spread[row_feature(&held[i - 1], k)] = y * values[k & mask]
        for j in range(1, i + 1):
            value = work[j, sign] * row_dot(&spread[0], &held[j - 1], &kind[0])
            G[i, j] = G[j, i] = value + y * work[j, sign] * bias * bias
        for k in range(held[i - 1].length):
            spread[row_feature(&held[i - 1], k)] = 0
        G[i, i] += codes[held[i - 1].code, 2]
    for i in range(1, n):
        for j in range(1, n):
            G[i, j] += centre - work[i, product] - work[j, product]
        G[0, i] = G[i, 0] = 0
    G[0, 0] = 0
    r = smallest_ball(state.radius, n, G, z, gradient, linear)
    rescale(state, work[0, z], v)
    state.slack *= work[0, z] * work[0, z]
    for i in range(1, n):
        moved += work[i, z] * (work[i, product] - centre)
        if work[i, z] > 0:
            y = work[i, z] * work[i, sign] / state.scale
            row_axpy(y, &held[i - 1], &v[0], &kind[0])
            v[last] += y * bias
            state.slack += work[i, z] * work[i, z] * codes[held[i - 1].code, 2]
    state.square = max(0.0, centre + 2 * moved + quadratic(n, work, z) - state.slack)
    state.radius = r
    state.moves += 1
    state.held = 0


cdef inline double quadratic(int64_t n, double[:, ::1] work, int64_t z) noexcept nogil:
    """z.G z"""
    cdef int64_t i, j
    cdef double sum = 0
    for i in range(n):
        for j in range(n):
            sum += work[i, z] * work[j, z] * work[i, j]
    return sum


cdef double smallest_ball(
    double R, int64_t n, double[:, ::1] work, int64_t z, int64_t gradient, int64_t linear
) noexcept nogil:
    """z of the smallest ball around the ball of radius R and the points 1 .. n-1; returns a radius that holds them
    all."""
    cdef int64_t i, j, farthest = 1, up, down
    cdef double V, inner, r, before, change, bend, step, largest
    for i in range(2, n):
        if work[i, i] > work[farthest, farthest]:
            farthest = i
    for i in range(n):
        work[i, z] = 0
    step = 0.5 * (1 - R / sqrt(max(work[farthest, farthest], 1e-300)))
    work[farthest, z] = max(step, 0.0)
    work[0, z] = 1 - work[farthest, z]
    r = 0
    for _ in range(ROUNDS):
        V, inner = 0, quadratic(n, work, z)
        for i in range(n):
            V += work[i, z] * work[i, i]
        before = r
        r = work[0, z] * R + sqrt(max(0.0, V - inner - work[0, z] * (1 - work[0, z]) * R * R))
        if r - before <= PRECISION * r:
            break
        for i in range(n):
            work[i, linear] = work[i, i] - r * r if i else -(r - R) * (r - R)
        for i in range(n):
            work[i, gradient] = work[i, linear]
            for j in range(n):
                work[i, gradient] -= 2 * work[i, j] * work[j, z]
        for _ in range(STEPS * n):
            up, down = 0, -1
            for i in range(n):
                if work[i, gradient] > work[up, gradient]:
                    up = i
                if work[i, z] > 0 and (down < 0 or work[i, gradient] < work[down, gradient]):
                    down = i
            if down < 0:
                break
            change = work[up, gradient] - work[down, gradient]
            if not change > PRECISION * r * r:
                break
            bend = work[up, up] + work[down, down] - 2 * work[up, down]
            step = min(0.5 * change / bend if bend > 0 else 1.0, work[down, z])
            work[up, z] += step
            work[down, z] -= step
            for i in range(n):
                work[i, gradient] -= 2 * step * (work[i, up] - work[i, down])
    largest, inner = 0, quadratic(n, work, z)
    for i in range(n):
        V = work[i, i] + inner
        for j in range(n):
            V -= 2 * work[i, j] * work[j, z]
        largest = max(largest, sqrt(max(0.0, V)) + (R if i == 0 else 0.0))
    return largest
