"""Sweeps of dual coordinate descent by several threads, each with a part of the features (the problem: _dual_cd.pyx).

Of every batch of rows each thread computes the products with its own part of w. When all have, every thread finds the
same steps of all rows, one after the other, and adds them to its own part of w. What a row is told of the steps just
before its own is the bias alone, which all rows have in common; the features that it shares with the rows of its own
batch and of the one before are left out. Products of a batch are made before the steps of the one before it, so that
no thread waits for a message that has just been sent. What the steps were expected to add to D is returned: where it is
more than they did, batches are too large for the data.

A thread that gets no core would hold up all others. So they begin together or not at all, and if one is late too often
the first goes on alone. That changes no bit of the result.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t

from _dual cimport SHRINK, STEP, Dual, Seen, State, Visits, begin, best_alpha, dual_of, judge, row_of, square_of
from _dual cimport end as end_visits
from _loss cimport square_of_change
from _sparse cimport (COUNTED, ONE_VALUE, SHORT, TABLE_AHEAD, Row, ask_for_entry, axpy_of, dot_of, index_t, prefetch,
                      row_feature, row_values, value_t, values_offset)
from _threads cimport MOST_MEMBERS, Meeting, begin_together, convene_meeting, dismiss_meeting, join, meet

cdef enum:
    MOST = 8  # rows of a batch
    SLOTS = 4  # batches whose products may be needed at a time
    FEW = 64  # nonzeros, which are counted rather than searched
    NUMBERS_AHEAD = 512  # bytes of a row's part that are asked for: of feature numbers and of values
    VALUES_AHEAD = 2048
    NEVER = -1

# The rows order[start .. end-1], in batches of so many; rows so far ahead are asked for. cuts: the first feature of
# each part, and one number behind the last; weight: of the bias.
cdef struct Plan:
    int64_t start
    int64_t end
    int64_t together
    int64_t ahead
    int64_t n_parts
    int64_t[MOST_MEMBERS + 1] cuts
    double weight


# Products of batches with one part of w.
cdef struct Products:
    double[SLOTS][MOST] products


# leave: the first goes on alone after that batch.
cdef struct Shared:
    Meeting meeting
    int64_t leave
    int64_t[7] apart
    Visits v
    Plan plan
    Products[MOST_MEMBERS] parts


SHARED_BYTES, MOST_THREADS = sizeof(Shared), MOST_MEMBERS


# A row of a batch and the part of it that a thread has. Its duals are written by the first thread alone.
cdef struct BatchRow:
    const Row* row
    const void* index  # of dense rows: the number of the first feature
    const void* values
    int64_t length
    int32_t slot
    uint16_t code
    uint16_t layout
    double alpha
    double square
    double change


cdef inline int64_t count_below(const index_t* index, int64_t n, int64_t cut) noexcept nogil:
    cdef int64_t k, first = 0, half
    if n <= FEW:
        for k in range(n):
            first += index[k] < cut
        return first
    while n > 0:
        half = n >> 1
        if index[first + half] < cut:
            first += half + 1
            n -= half + 1
        else:
            n = half
    return first


cdef inline int64_t place_of(const Row* row, int64_t cut) noexcept nogil:
    """Of the first nonzero of a row whose feature is not below the cut."""
    if cut == 0:
        return 0
    if row.layout & COUNTED:
        return min(<int64_t>row.length, cut)
    if row.layout & SHORT:
        return count_below(<const uint16_t*>row.data, row.length, cut)
    return count_below(<const int32_t*>row.data, row.length, cut)


cdef inline int64_t number_width(const Row* row) noexcept nogil:
    return 0 if row.layout & COUNTED else (2 if row.layout & SHORT else 4)


cdef inline void take(BatchRow* batch_row, int64_t first, int64_t last, const value_t* kind) noexcept nogil:
    """The nonzeros first .. last-1 of the row."""
    cdef const Row* row = batch_row.row
    batch_row.layout = row.layout
    batch_row.length = last - first
    batch_row.index = <const void*>(first if row.layout & COUNTED else row.data + number_width(row) * first)
    batch_row.values = row_values(row, kind) + (0 if row.layout & ONE_VALUE else first)


cdef inline int64_t first_counted(const BatchRow* batch_row) noexcept nogil:
    """Where w begins for it."""
    return <int64_t>batch_row.index if batch_row.layout & COUNTED else 0


cdef inline double batch_row_dot(const double* w, const BatchRow* batch_row, const value_t* kind) noexcept nogil:
    return dot_of(w + first_counted(batch_row), batch_row.layout, batch_row.index, <const value_t*>batch_row.values,
                  batch_row.length)


cdef inline void batch_row_axpy(const BatchRow* batch_row, double* w, const value_t* kind) noexcept nogil:
    axpy_of(batch_row.change, batch_row.layout, batch_row.index, <const value_t*>batch_row.values, batch_row.length,
            w + first_counted(batch_row))


cdef inline void ask_between(uint64_t address, int64_t first, int64_t last) noexcept nogil:
    while first < last:
        prefetch(<const void*>(address + <uint64_t>first))
        first += 64


cdef inline void ask_for(const Row* row, int64_t low, int64_t high, int value_size) noexcept nogil:
    """Where the part of a row from low to high, in 256ths, is likely to be."""
    cdef int64_t n = row.length, first = n * low >> 8, last = n * high >> 8, width = number_width(row)
    if width:
        ask_between(row.data, width * first, min(width * last, width * first + NUMBERS_AHEAD))
    if not row.layout & ONE_VALUE:
        ask_between(row.data + values_offset(n, row.layout, value_size), value_size * first,
                    min(value_size * last, value_size * first + VALUES_AHEAD))


cdef inline int64_t size_of_batch(const Plan* plan, int64_t number) noexcept nogil:
    return max(<int64_t>0, min(plan.together, plan.end - plan.start - number * plan.together))


cdef inline void look(
    const Visits* v, const Plan* plan, BatchRow* batch_rows, Shared* shared, int64_t number, int64_t part,
    const value_t* kind
) noexcept nogil:
    """Products of the rows of a batch with a part of w."""
    cdef int64_t s, k, start = plan.start + number * plan.together, ahead = plan.ahead
    cdef int64_t low = 256 * part // plan.n_parts, high = 256 * (part + 1) // plan.n_parts, last
    cdef double* products = &shared.parts[part].products[number % SLOTS][0]
    cdef const Row* row
    for k in range(size_of_batch(plan, number)):
        s = start + k
        if s + ahead + TABLE_AHEAD < plan.end:
            ask_for_entry(row_of(v, v.order[s + ahead + TABLE_AHEAD]), v.row_stride)
            if not v.beside:
                prefetch(&dual_of(v, v.order[s + ahead + TABLE_AHEAD]).gradient)
        if s + ahead < plan.end:
            ask_for(row_of(v, v.order[s + ahead]), low, high, sizeof(value_t))
        row = row_of(v, v.order[s])
        batch_rows[k].row = row
        batch_rows[k].slot = v.order[s]
        batch_rows[k].code = row.code
        batch_rows[k].alpha = dual_of(v, v.order[s]).alpha
        batch_rows[k].square = square_of(v, row)
        last = row.length if part + 1 == plan.n_parts else place_of(row, plan.cuts[part + 1])
        take(&batch_rows[k], place_of(row, plan.cuts[part]), last, kind)
        products[k] = batch_row_dot(v.w, &batch_rows[k], kind)


cdef inline void decide(
    Visits* v, Plan* plan, BatchRow* batch_rows, const Shared* shared, int64_t number, bint leading
) noexcept nogil:
    """The steps of the rows of a batch, one after the other; the leading thread writes down what becomes of them."""
    cdef int64_t k, part, start = plan.start + number * plan.together
    cdef double product, new, change, weight = plan.weight
    cdef Seen seen
    cdef BatchRow* batch_row
    cdef int8_t mark
    for k in range(size_of_batch(plan, number)):
        batch_row = &batch_rows[k]
        product = shared.parts[0].products[number % SLOTS][k]
        for part in range(1, plan.n_parts):
            product += shared.parts[part].products[number % SLOTS][k]
        mark = judge(v, batch_row.code, batch_row.alpha, product + weight * v.bias, &seen)
        batch_row.change = 0
        if leading:
            dual_of(v, batch_row.slot).gradient = <float>seen.gradient
            v.gap += seen.gap
            v.visits += 1
            v.losses += seen.loss
        if mark == SHRINK:
            continue
        if leading:
            if v.kept != start + k:
                v.order[start + k] = v.order[v.kept]
                v.order[v.kept] = batch_row.slot
            v.kept += 1
            v.highest = max(v.highest, seen.projected)
            v.lowest = min(v.lowest, seen.projected)
        if mark != STEP:
            continue
        new = best_alpha(v, batch_row.alpha, batch_row.square, &seen)
        change = new - batch_row.alpha
        batch_row.change = change * seen.y
        weight += batch_row.change * v.bias
        if leading:
            v.steps += 1
            dual_of(v, batch_row.slot).alpha = new
            v.sum_alpha += change
            v.sum_square += square_of_change(batch_row.alpha, new, seen.d)
            v.expected -= change * (seen.gradient + 0.5 * (batch_row.square + seen.d) * change)
    plan.weight = weight


cdef inline void add(const Visits* v, BatchRow* batch_rows, int64_t n, bint alone, const value_t* kind) noexcept nogil:
    cdef int64_t k
    for k in range(n):
        if batch_rows[k].change != 0:
            if alone:
                take(&batch_rows[k], 0, batch_rows[k].row.length, kind)
            batch_row_axpy(&batch_rows[k], v.w, kind)


cdef inline void look_alone(
    const Visits* v, const Plan* plan, BatchRow* batch_rows, Shared* shared, int64_t number, const value_t* kind
) noexcept nogil:
    cdef int64_t part
    for part in range(plan.n_parts):
        look(v, plan, batch_rows, shared, number, part, kind)


cdef bint work(Visits* v, Plan* plan, Shared* shared, int64_t me, bint alone, const value_t* kind) noexcept nogil:
    """What thread `me` has to do; the first leads. Returns whether the others were there to the end."""
    cdef BatchRow[2][MOST] batch_rows
    cdef int64_t b = 0, n = plan.n_parts
    cdef bint helped = not alone
    if alone:
        look_alone(v, plan, batch_rows[0], shared, 0, kind)
    else:
        look(v, plan, batch_rows[0], shared, 0, me, kind)
        meet(&shared.meeting, me, n, 1)
    while size_of_batch(plan, b):
        if alone:
            look_alone(v, plan, batch_rows[(b + 1) & 1], shared, b + 1, kind)
        else:
            look(v, plan, batch_rows[(b + 1) & 1], shared, b + 1, me, kind)
            if not me and helped and shared.meeting.patience < 0:
                helped = False
                shared.leave = b + 1
            meet(&shared.meeting, me, n, 1)
        if me:
            decide(v, plan, batch_rows[b & 1], shared, b, False)
        else:
            decide(v, plan, batch_rows[b & 1], shared, b, True)
        add(v, batch_rows[b & 1], size_of_batch(plan, b), alone, kind)
        if not alone and (size_of_batch(plan, b + 1) == 0 or shared.leave == b):
            meet(&shared.meeting, me, n, 0)
            if me:
                break
            alone = True
        b += 1
    return helped


def prepare(uint8_t[::1] memory, const int64_t[::1] cuts, int64_t ahead):
    """Gives sweeps the parts (at most MOST_THREADS), and how many rows ahead they ask for."""
    cdef Plan* plan = &(<Shared*>&memory[0]).plan
    cdef int64_t part
    plan.ahead = ahead
    plan.n_parts = cuts.shape[0] - 1
    for part in range(cuts.shape[0]):
        plan.cuts[part] = cuts[part]


def convene(uint8_t[::1] memory, int64_t together, int64_t n_helpers):
    """Before a sweep: nobody has arrived. So many rows are a batch; so many other threads will come."""
    cdef Shared* shared = <Shared*>&memory[0]
    convene_meeting(&shared.meeting, n_helpers)
    shared.leave = NEVER
    shared.plan.together = together


def dismiss(uint8_t[::1] memory):
    """Sends home who waits for a sweep that nobody leads."""
    dismiss_meeting(&(<Shared*>&memory[0]).meeting)


def help(uint8_t[::1] memory, const value_t[::1] kind):
    """What every other thread does while one sweeps."""
    cdef Shared* shared = <Shared*>&memory[0]
    cdef Visits v
    cdef Plan plan
    cdef int64_t me
    with nogil:
        me = join(&shared.meeting)
        if begin_together(&shared.meeting, me) and me < shared.plan.n_parts:
            v = shared.v
            plan = shared.plan
            work(&v, &plan, shared, me, False, &kind[0])


def sweep(
    const Row[:] rows, Dual[:] duals, int32_t[::1] order, int64_t start, int64_t end, double[::1] w,
    const double[:, ::1] codes, State[::1] state, const value_t[::1] kind, uint8_t[::1] memory
):
    """As sweep of _dual_cd.pyx. memory: SHARED_BYTES, prepared, and convened for every call. Returns whether the other
    threads were there to the end."""
    cdef Shared* shared = <Shared*>&memory[0]
    cdef Visits* v = &shared.v
    cdef Plan* plan = &shared.plan
    cdef bint helped
    begin(v, rows, duals, order, start, w, codes, &state[0])
    plan.start = start
    plan.end = end
    plan.weight = w[v.last_weight]
    with nogil:
        helped = work(v, plan, shared, 0, not begin_together(&shared.meeting, 0), &kind[0])
    w[v.last_weight] = plan.weight
    end_visits(v, start, &state[0])
    return helped


def count_nonzeros(const Row[:] rows, int64_t shift, int64_t[::1] counts):
    """Of features: counts[f >> shift] of the rows."""
    cdef int64_t r, k
    with nogil:
        for r in range(rows.shape[0]):
            for k in range(rows[r].length):
                counts[row_feature(&rows[r], k) >> shift] += 1
