"""Sweeps of dual coordinate descent by several threads, each with rows and a copy of w (the problem: _dual_cd.pyx).

A round gives every thread a stretch of rows. Batch by batch it computes their products with its own copy of w and tells
them to the others. When all have, every thread finds the same steps of the batches of all, one after the other, and
adds those of its own rows to its copy. After the round all changes of the copies are added to w, which is copied anew.
So a row is told of the bias by every step before its own; what other features it shares with the rows of its batch and
the one before, and with those of other threads in the round, is left out. Products of a batch are made before the
steps of the one before it, so that no thread waits for a message that has just been sent. What the steps were expected
to add to D is returned: where it is more than they did, stretches are too long for the data.

A thread that gets no core would hold up all others. So they begin together or not at all, and if one is late too often
the first goes on alone, with all stretches and all copies. That changes no bit of the result.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t
from libc.string cimport memcpy

from _dual cimport SHRINK, STEP, Seen, Visits, begin, best_alpha, judge, square_of
from _dual cimport end as end_visits
from _sparse cimport Ahead, Row, look_ahead, row_axpy, row_dot, value_t
from _threads cimport MOST_MEMBERS, Meeting, begin_together, convene_meeting, dismiss_meeting, join, meet

cdef enum:
    SLOTS = 4  # batches that may be needed at a time
    BATCH = 32  # rows of a thread

# The rows order[start .. end-1]; every round each thread has so many of them, or what is left is shared out.
cdef struct Plan:
    int64_t start
    int64_t end
    int64_t stretch
    int64_t n_threads
    int64_t n_features
    double* w
    int8_t* leavers
    double weight  # of the bias


# A row of a batch, as all threads see it.
cdef struct Entry:
    double product
    double alpha
    double square
    int32_t slot
    uint16_t code


# Of one thread: its batches, the changes of alphas, times y, of the last one, and what came of its visits.
cdef struct Desk:
    Entry[SLOTS][BATCH] batches
    double[BATCH] changes
    int64_t n_changes
    Ahead ahead
    Visits v
    double gain
    int64_t[8] apart


cdef struct Office:
    Meeting meeting
    Plan plan
    Desk[MOST_MEMBERS] desks


OFFICE_BYTES, MOST_THREADS = sizeof(Office), MOST_MEMBERS


cdef inline int64_t stretch_start(const Plan* plan, int64_t start, int64_t t) noexcept nogil:
    return start + min(plan.stretch * plan.n_threads, plan.end - start) * t // plan.n_threads


cdef inline void look(
    const Plan* plan, Desk* desk, int64_t t, int64_t start, int64_t number, const value_t* kind
) noexcept nogil:
    """A batch of thread t in the round that starts there: the products of its rows."""
    cdef const Visits* v = &desk.v
    cdef int64_t first = stretch_start(plan, start, t) + number * BATCH, end = stretch_start(plan, start, t + 1), s, k
    cdef Entry* entries = &desk.batches[number % SLOTS][0]
    cdef const Row* row
    for k in range(max(<int64_t>0, min(<int64_t>BATCH, end - first))):
        s = first + k
        look_ahead(&desk.ahead, v.rows, v.order, s, end, sizeof(value_t))
        row = &v.rows[v.order[s]]
        entries[k].product = row_dot(v.w, row, kind)
        entries[k].alpha = row.alpha
        entries[k].square = square_of(v, row)
        entries[k].slot = v.order[s]
        entries[k].code = row.code


cdef inline double decide(
    const Plan* plan, Desk* desk, int64_t t, int64_t start, int64_t number, double weight, bint is_own
) noexcept nogil:
    """The steps of a batch of thread t, one after the other; what becomes of them is written down by that thread.
    Returns the weight of the bias after them."""
    cdef Visits* v = &desk.v
    cdef const Entry* entries = &desk.batches[number % SLOTS][0]
    cdef int64_t first = stretch_start(plan, start, t) + number * BATCH, k, visits = 0, steps = 0
    cdef int64_t n = max(<int64_t>0, min(<int64_t>BATCH, stretch_start(plan, start, t + 1) - first))
    cdef double old, new, change, bias = v.bias, highest = v.highest, lowest = v.lowest
    cdef double gap = 0, losses = 0, sum_alpha = 0, sum_square = 0, gain = 0
    cdef Seen seen
    cdef Row* row
    cdef int8_t mark
    for k in range(n):
        old = entries[k].alpha
        mark = judge(v, entries[k].code, old, entries[k].product + weight * bias, &seen)
        new = best_alpha(v, old, entries[k].square, &seen) if mark == STEP else old
        change = (new - old) * seen.y
        weight += change * bias
        if is_own:
            row = &v.rows[entries[k].slot]
            row.gradient = <float>seen.gradient
            row.alpha = new
            desk.changes[k] = change
            plan.leavers[first + k] = mark == SHRINK
            gap += seen.gap
            if entries[k].slot >= v.count_from:
                visits += 1
                losses += seen.loss
            highest = max(highest, seen.projected)
            lowest = min(lowest, seen.projected)
            steps += mark == STEP
            sum_alpha += new - old
            sum_square += 0.5 * seen.d * (new - old) * (new + old)
            gain -= (new - old) * (seen.gradient + 0.5 * (entries[k].square + seen.d) * (new - old))
    if is_own:
        v.highest = highest
        v.lowest = lowest
        v.gap += gap
        v.visits += visits
        v.losses += losses
        v.steps += steps
        v.sum_alpha += sum_alpha
        v.sum_square += sum_square
        desk.gain += gain
        desk.n_changes = n
    return weight


cdef inline void add(const Desk* desk, int64_t number, const value_t* kind) noexcept nogil:
    """The steps of a batch to the copy of w."""
    cdef int64_t k
    for k in range(desk.n_changes):
        if desk.changes[k] != 0:
            row_axpy(desk.changes[k], &desk.v.rows[desk.batches[number % SLOTS][k].slot], desk.v.w, kind)


cdef inline void merge(const Plan* plan, Office* office, int64_t t) noexcept nogil:
    """Adds the changes of all copies to the t-th part of w."""
    cdef int64_t f, u, first = plan.n_features * t // plan.n_threads, last = plan.n_features * (t + 1) // plan.n_threads
    cdef double* w = plan.w
    cdef double* all = office.desks[0].v.w
    cdef const double* other
    for u in range(1, plan.n_threads - 1):
        other = office.desks[u].v.w
        for f in range(first, last):
            all[f] += other[f] - w[f]
    other = office.desks[plan.n_threads - 1].v.w
    for f in range(first, last):
        w[f] = all[f] + (other[f] - w[f])


cdef inline void begin_round(const Plan* plan, Desk* desk) noexcept nogil:
    memcpy(desk.v.w, plan.w, plan.n_features * sizeof(double))
    desk.ahead.place = desk.ahead.bytes = 0


cdef inline void visit_round(
    const Plan* plan, Office* office, int64_t me, int64_t last, int64_t start, double* weight, const value_t* kind
) noexcept nogil:
    """The stretches of the threads from `me` to before last."""
    cdef int64_t n = plan.n_threads, t, b
    cdef int64_t n_batches = (stretch_start(plan, start, n) - stretch_start(plan, start, n - 1) + BATCH - 1) // BATCH
    for b in range(-1, n_batches):
        for t in range(me, last):
            look(plan, &office.desks[t], t, start, b + 1, kind)
        if last - me < n:
            meet(&office.meeting, me, n, 1)
        if b < 0:
            continue
        for t in range(n):
            if me <= t < last:
                weight[0] = decide(plan, &office.desks[t], t, start, b, weight[0], True)
            else:
                weight[0] = decide(plan, &office.desks[t], t, start, b, weight[0], False)
        for t in range(me, last):
            add(&office.desks[t], b, kind)


cdef bint work(Plan* plan, Office* office, int64_t me, bint alone, const value_t* kind) noexcept nogil:
    """What thread `me` has to do; the first leads. Returns whether the others were there to the end."""
    cdef Meeting* meeting = &office.meeting
    cdef int64_t n = plan.n_threads, start = plan.start, t, last
    cdef double weight = plan.weight
    while start < plan.end and not (me and meeting.dissolved):
        alone = alone or meeting.dissolved
        last = n if alone else me + 1
        for t in range(me, last):
            begin_round(plan, &office.desks[t])
        visit_round(plan, office, me, last, start, &weight, kind)
        if not alone:
            meet(meeting, me, n, 0)
            if not me:
                meeting.dissolved = meeting.patience < 0
        for t in range(me, last):
            merge(plan, office, t)
        if not alone:
            meet(meeting, me, n, 0)
        start = stretch_start(plan, start, n)
    if not me:
        plan.weight = weight
    return not alone


cdef inline int64_t move_kept(
    int32_t* order, const int8_t* leavers, int64_t start, int64_t end, int64_t kept
) noexcept nogil:
    """Rows before start are those that were kept, then those that were not: does the same with the rows up to end.
    Returns the number of rows kept so far."""
    cdef int64_t s
    cdef int32_t slot
    for s in range(start, end):
        if not leavers[s]:
            slot = order[s]
            order[s] = order[kept]
            order[kept] = slot
            kept += 1
    return kept


cdef inline void add_up(Visits* all, const Visits* v) noexcept nogil:
    all.highest = max(all.highest, v.highest)
    all.lowest = min(all.lowest, v.lowest)
    all.sum_alpha += v.sum_alpha
    all.sum_square += v.sum_square
    all.losses += v.losses
    all.visits += v.visits
    all.gap += v.gap
    all.steps += v.steps


def convene(uint8_t[::1] memory):
    """Before a sweep: nobody has arrived."""
    convene_meeting(&(<Office*>&memory[0]).meeting)


def dismiss(uint8_t[::1] memory):
    """Sends home who waits for a sweep that nobody leads."""
    dismiss_meeting(&(<Office*>&memory[0]).meeting)


def help(uint8_t[::1] memory, const value_t[::1] kind):
    """What every other thread does while one sweeps."""
    cdef Office* office = <Office*>&memory[0]
    cdef int64_t me
    with nogil:
        me = join(&office.meeting)
        if begin_together(&office.meeting, me, 0) and me < office.plan.n_threads:
            work(&office.plan, office, me, False, &kind[0])


def sweep(
    Row[::1] rows, int32_t[::1] order, int64_t start, int64_t end, int64_t kept, int64_t count_from, double[::1] w,
    double bias, const double[::1] signs, const double[:, ::1] box, bint round_alpha, bint shrink, double[::1] state,
    const value_t[::1] kind, uint8_t[::1] memory, double[:, ::1] copies, int8_t[::1] leavers, int64_t stretch,
    int64_t n_helpers
):
    """Visits rows[order[start .. end-1]], of whose predecessors so many were kept. As sweep of _dual_cd.pyx.

    memory: OFFICE_BYTES, convened for every call. copies: room for those of w, one for each thread; leavers: room for
    the order. A thread has a stretch of so many rows a round.
    state[10] is what the steps should add to D. If start is not 0 the sweep goes on, and so do the sums of its state.
    Returns (rows kept so far, whether the other threads were there to the end).
    """
    cdef Office* office = <Office*>&memory[0]
    cdef Visits all
    cdef int64_t t
    cdef bint helped
    begin(&all, rows, order, w, bias, signs, box, round_alpha, shrink, count_from, state)
    office.plan.start = start
    office.plan.end = end
    office.plan.stretch = stretch
    office.plan.n_threads = copies.shape[0]
    office.plan.n_features = copies.shape[1]
    office.plan.w = &w[0]
    office.plan.leavers = &leavers[0]
    office.plan.weight = w[all.last_weight]
    for t in range(copies.shape[0]):
        office.desks[t].v = all
        office.desks[t].v.w = &copies[t, 0]
        office.desks[t].gain = 0
    with nogil:
        helped = work(&office.plan, office, 0, not begin_together(&office.meeting, 0, n_helpers), &kind[0])
    w[all.last_weight] = office.plan.weight
    state[10] = 0
    for t in range(copies.shape[0]):
        add_up(&all, &office.desks[t].v)
        state[10] += office.desks[t].gain
    if start:
        all.highest = max(all.highest, state[2])
        all.lowest = min(all.lowest, state[3])
        all.gap += state[8]
        all.steps += state[9]
    end_visits(&all, state)
    with nogil:
        kept = move_kept(all.order, &leavers[0], start, end, kept)
    return kept, helped
