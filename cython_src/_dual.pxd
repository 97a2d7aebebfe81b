# A visit of one row by dual coordinate descent (the problem: _dual_cd.pyx), for sweeps of one thread and of many.

from libc.math cimport INFINITY, fabs
from libc.stdint cimport int8_t, int32_t, int64_t, uint16_t, uint64_t

from _loss cimport SMALLEST, Code, codes_of, gap_at, loss_at, square_of_change
from _sparse cimport Row, row_at, row_axpy, row_dot, value_t

cdef enum:
    DUALS_AHEAD = 8  # rows, whose duals are asked for before their turn
    NOTHING = 0
    STEP = 1
    SHRINK = 2

# Of a row in a problem: its dual variable, and the gradient of -D in it when it was last looked at.
cdef packed struct Dual:
    double alpha
    float gradient


# Of one problem: what sweeps need to know beside rows and w, and what they find.
# bias: the value of the bias feature. highest_before, lowest_before: bounds for shrinking, from the sweep before.
# Of the last sweep: highest and lowest projected gradient; gap, what the rows visited have in the duality gap:
# loss_i - a_i (z_i - d_i a_i / 2); steps, rows that needed one; expected, what steps of threads together should add to
# D; kept, rows that stay active, which are the first of the order then. Summed over sweeps: the changes of sum a and of
# sum d a^2 / 2, losses met, visits. round_alpha keeps alphas representable in float32; with shrink, rows that have
# stayed at a bound leave.
cdef struct State:
    double bias
    double highest_before
    double lowest_before
    double highest
    double lowest
    double gap
    double steps
    double expected
    double sum_alpha
    double sum_square
    double losses
    double visits
    int64_t kept
    int64_t round_alpha
    int64_t shrink


# The problem, and what visits have found. Rows and duals stand so many bytes apart; beside: each dual by its row.
cdef struct Visits:
    const Row* rows
    Dual* duals
    int64_t row_stride
    int64_t dual_stride
    bint beside
    int32_t* order
    double* w
    int64_t last_weight
    double bias
    const Code* codes
    bint round_alpha
    bint shrink
    double highest_before
    double lowest_before

    double highest
    double lowest
    double sum_alpha
    double sum_square
    double losses
    double visits
    double gap
    double steps
    double expected
    int64_t kept


# A row at one w: y and its bounds, its loss, its part of the gap, the gradient of -D, 0 where alpha cannot follow.
cdef struct Seen:
    double y
    double U
    double d
    double loss
    double gap
    double gradient
    double projected


cdef inline void see(Visits* v, const Row[:] rows, Dual[:] duals) noexcept:
    v.rows = &rows[0] if rows.shape[0] else NULL
    v.duals = &duals[0] if duals.shape[0] else NULL
    v.row_stride = rows.strides[0]
    v.dual_stride = duals.strides[0]
    v.beside = v.row_stride == v.dual_stride


cdef inline const Row* row_of(const Visits* v, int64_t slot) noexcept nogil:
    return row_at(v.rows, v.row_stride, slot)


cdef inline Dual* dual_of(const Visits* v, int64_t slot) noexcept nogil:
    return <Dual*>(<uint64_t>v.duals + <uint64_t>(slot * v.dual_stride))


cdef inline void begin(
    Visits* v, const Row[:] rows, Dual[:] duals, int32_t[::1] order, int64_t start, double[::1] w,
    const double[:, ::1] codes, const State* state
) noexcept:
    """A sweep that starts there in the order, having visited the rows before."""
    see(v, rows, duals)
    v.order = &order[0] if order.shape[0] else NULL
    v.w = &w[0]
    v.last_weight = w.shape[0] - 1
    v.bias = state.bias
    v.codes = codes_of(codes)
    v.round_alpha = state.round_alpha
    v.shrink = state.shrink
    v.highest_before = state.highest_before
    v.lowest_before = state.lowest_before
    v.highest = -INFINITY
    v.lowest = INFINITY
    v.sum_alpha = v.sum_square = v.losses = v.visits = v.gap = v.steps = v.expected = 0
    v.kept = state.kept if start else 0


cdef inline void end(const Visits* v, int64_t start, State* state) noexcept:
    """What was found before the start belongs to the sweep."""
    state.highest = max(v.highest, state.highest) if start else v.highest
    state.lowest = min(v.lowest, state.lowest) if start else v.lowest
    state.gap = v.gap + (state.gap if start else 0)
    state.steps = v.steps + (state.steps if start else 0)
    state.expected = v.expected
    state.kept = v.kept
    state.sum_alpha += v.sum_alpha
    state.sum_square += v.sum_square
    state.losses += v.losses
    state.visits += v.visits


cdef inline int8_t judge(const Visits* v, uint16_t code, double old, double product, Seen* seen) noexcept nogil:
    """What a row of this label with this alpha is where w.x, the bias included, is the product; what it needs."""
    cdef double y = v.codes[code].y, U = v.codes[code].U, d = v.codes[code].d, z = 1 - y * product, G = old * d - z
    seen.y = y
    seen.U = U
    seen.d = d
    seen.loss = loss_at(z, U, d) if z > 0 else 0
    seen.gap = gap_at(seen.loss, z, old, d)
    seen.gradient = G
    seen.projected = 0
    if old == 0 and G > 0:
        return SHRINK if v.shrink and G > v.highest_before else NOTHING
    if old == U and G < 0:
        return SHRINK if v.shrink and G < v.lowest_before else NOTHING
    seen.projected = G
    return STEP if fabs(G) > SMALLEST else NOTHING


cdef inline int8_t look(const Visits* v, int32_t slot, Seen* seen, const value_t* kind) noexcept nogil:
    """What the row in a slot is by w as it is, and what it needs."""
    cdef const Row* row = row_of(v, slot)
    cdef double product = row_dot(v.w, row, kind) + v.w[v.last_weight] * v.bias
    cdef Dual* dual = dual_of(v, slot)
    cdef int8_t mark = judge(v, row.code, dual.alpha, product, seen)
    dual.gradient = <float>seen.gradient
    return mark


cdef inline double best_alpha(const Visits* v, double old, double square, const Seen* seen) noexcept nogil:
    """Where D is largest in the alpha of a row, square being x.x, the bias included."""
    cdef double Q = square + seen.d
    cdef double new = old - seen.gradient / Q if Q > 0 else (seen.U if seen.gradient < 0 else 0)
    if new < 0:
        new = 0
    elif new > seen.U:
        new = seen.U
    return <double><float>new if v.round_alpha else new


cdef inline double square_of(const Visits* v, const Row* row) noexcept nogil:
    return <double>row.norm * row.norm + v.bias * v.bias


cdef inline void step(
    const Visits* v, int32_t slot, const Seen* seen, double* sum_alpha, double* sum_square, const value_t* kind
) noexcept nogil:
    """Makes D largest in the alpha of the row in this slot."""
    cdef const Row* row = row_of(v, slot)
    cdef Dual* dual = dual_of(v, slot)
    cdef double old = dual.alpha, new = best_alpha(v, old, square_of(v, row), seen), change
    if new != old:
        dual.alpha = new
        sum_alpha[0] += new - old
        sum_square[0] += square_of_change(old, new, seen.d)
        change = (new - old) * seen.y
        row_axpy(change, row, v.w, kind)
        v.w[v.last_weight] += change * v.bias


cdef inline void move_kept(Visits* v, const int8_t* marks, int64_t start, int64_t end) noexcept nogil:
    """The rows before start are those that were kept, then those that were not: does the same with the rows from start
    to end, which have these marks."""
    cdef int64_t s
    cdef int32_t slot
    for s in range(start, end):
        if marks[s - start] != SHRINK:
            slot = v.order[s]
            v.order[s] = v.order[v.kept]
            v.order[v.kept] = slot
            v.kept += 1
