"""Sweeps of dual coordinate descent by several threads, each with rows and a copy of w (the problem: _dual_cd.pyx).

A round gives every thread a stretch of rows. Batch by batch it computes their products with its own copy of w, and
tells the others what the step of each row will do to the bias. When all have, every thread follows the weight of the
bias through the batches of all, one after the other, makes the steps of its own rows, and adds them to its copy. After
the round all changes of the copies are added to w, which is copied anew, and all changes of the bias to its weight.
So a row is told of the bias by every step before its own; what other features it shares with the rows of its batch and
the one before, and with those of other threads in the round, is left out. Products of a batch are made before the
steps of the one before it, so that no thread waits for a message that has just been sent. What the steps were expected
to add to D is returned: where it is more than they did, stretches are too long for the data.

A thread that gets no core would hold up all others. So they begin together or not at all, and if one is late too often
the first goes on alone, with all stretches and all copies. That changes no bit of the result.
"""

from libc.math cimport fabs
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy

from _dual cimport SHRINK, Dual, State, Visits, begin, dual_of, move_kept, row_of, square_of
from _dual cimport end as end_visits
from _loss cimport SMALLEST, above_zero, gap_at, loss_at, square_of_change
from _sparse cimport ROWS_AHEAD, TABLE_AHEAD, Row, prefetch_near, row_size, row_axpy, row_dot, value_t
from _threads cimport MOST_MEMBERS, Meeting, begin_together, convene_meeting, dismiss_meeting, join, meet

cdef enum:
    SLOTS = 4  # batches that may be needed at a time
    BATCH = 32  # rows of a thread

# The rows order[start .. end-1]; every round each thread has so many of them, or what is left is shared out. copies: of
# w without the weight of the bias, one behind the other.
cdef struct Plan:
    int64_t start
    int64_t end
    int64_t stretch
    int64_t n_threads
    int64_t n_features
    double* w
    double* copies
    int8_t* marks
    double weight  # of the bias


# A row of a batch.
cdef struct Entry:
    double product
    double alpha
    double square
    int32_t slot
    uint16_t code


# What a row of a batch tells all threads: its step adds constant - slope * weight to the weight of the bias, but not
# less than lowest and not more than highest.
cdef struct BiasStep:
    double constant
    double slope
    double lowest
    double highest


# Of one thread: its batches; the changes of alphas, times y, of the last one; that of the bias in the round; and what
# came of its visits.
cdef struct Member:
    BiasStep[SLOTS][BATCH] bias_steps
    Entry[SLOTS][BATCH] batches
    double[BATCH] changes
    double bias_change
    Visits v
    int64_t[8] apart


cdef struct Shared:
    Meeting meeting
    Plan plan
    Member[MOST_MEMBERS] members


SHARED_BYTES, MOST_THREADS = sizeof(Shared), MOST_MEMBERS


cdef inline int64_t stretch_start(const Plan* plan, int64_t start, int64_t t) noexcept nogil:
    return start + min(plan.stretch * plan.n_threads, plan.end - start) * t // plan.n_threads


cdef inline int64_t size_of_batch(const Plan* plan, int64_t start, int64_t t, int64_t number) noexcept nogil:
    cdef int64_t first = stretch_start(plan, start, t) + number * BATCH
    return max(<int64_t>0, min(<int64_t>BATCH, stretch_start(plan, start, t + 1) - first))


cdef inline void foretell(const Visits* v, const Entry* entry, BiasStep* bias_step) noexcept nogil:
    cdef double y = v.codes[entry.code].y, U = v.codes[entry.code].U, d = v.codes[entry.code].d, Q, sway = y * v.bias
    cdef double down = sway * -entry.alpha, up = sway * (U - entry.alpha)
    Q = entry.square + d
    sway = sway / Q if Q > 0 else 0
    bias_step.constant = sway * (1 - d * entry.alpha - y * entry.product)
    bias_step.slope = sway * y * v.bias
    bias_step.lowest = min(down, up)
    bias_step.highest = max(down, up)


cdef inline void ask_for(const Visits* v, int64_t s, int64_t end, const value_t* kind) noexcept nogil:
    """Rows that follow the one at s of the order. They are not asked into the nearest cache: its few requests at a time
    are for w."""
    cdef const Row* row
    cdef uint64_t line
    if s + ROWS_AHEAD + TABLE_AHEAD < end:
        prefetch_near(row_of(v, v.order[s + ROWS_AHEAD + TABLE_AHEAD]))
        prefetch_near(&dual_of(v, v.order[s + ROWS_AHEAD + TABLE_AHEAD]).gradient)
    if s + ROWS_AHEAD < end:
        row = row_of(v, v.order[s + ROWS_AHEAD])
        line = row.data & ~<uint64_t>63
        while line < row.data + row_size(row, sizeof(value_t)):
            prefetch_near(<const void*>line)
            line += 64


cdef inline void look(
    const Plan* plan, Member* member, int64_t t, int64_t start, int64_t number, const value_t* kind
) noexcept nogil:
    """A batch of thread t in the round that starts there: the products of its rows."""
    cdef const Visits* v = &member.v
    cdef int64_t first = stretch_start(plan, start, t) + number * BATCH, end = stretch_start(plan, start, t + 1), s, k
    cdef Entry* entry
    cdef const Row* row
    for k in range(size_of_batch(plan, start, t, number)):
        s = first + k
        ask_for(v, s, end, kind)
        row = row_of(v, v.order[s])
        entry = &member.batches[number % SLOTS][k]
        entry.product = row_dot(v.w, row, kind)
        entry.alpha = dual_of(v, v.order[s]).alpha
        entry.square = square_of(v, row)
        entry.slot = v.order[s]
        entry.code = row.code
        foretell(v, entry, &member.bias_steps[number % SLOTS][k])


cdef inline double step_of_bias(const BiasStep* bias_step, double weight) noexcept nogil:
    """Its weight after the step of a row."""
    cdef double wanted = weight + bias_step.constant - bias_step.slope * weight
    return min(max(wanted, weight + bias_step.lowest), weight + bias_step.highest)


cdef inline double follow_bias(const BiasStep* bias_steps, int64_t n, double weight) noexcept nogil:
    """Its weight after the steps of n rows."""
    cdef int64_t k
    for k in range(n):
        weight = step_of_bias(&bias_steps[k], weight)
    return weight


cdef inline double decide(
    const Plan* plan, Member* member, int64_t t, int64_t start, int64_t number, double weight
) noexcept nogil:
    """The steps of a batch of thread t, before which the bias has this weight; returns that after them.

    As judge and best_alpha, but without branches: which rows need a step cannot be guessed.
    """
    cdef Visits* v = &member.v
    cdef const Entry* entry
    cdef int64_t first = stretch_start(plan, start, t) + number * BATCH, k, steps = 0
    cdef double y, U, d, Q, z, G, old, new, change, loss, projected
    cdef double bias = v.bias, highest = v.highest, lowest = v.lowest, bias_change = 0
    cdef double gap = 0, losses = 0, sum_alpha = 0, sum_square = 0, gain = 0
    cdef bint is_low, is_high, needs_step, leaves
    for k in range(size_of_batch(plan, start, t, number)):
        entry = &member.batches[number % SLOTS][k]
        old = entry.alpha
        y = v.codes[entry.code].y
        U = v.codes[entry.code].U
        d = v.codes[entry.code].d
        Q = entry.square + d
        z = 1 - y * (entry.product + weight * bias)
        weight = step_of_bias(&member.bias_steps[number % SLOTS][k], weight)
        loss = loss_at(above_zero(z), U, d)
        gap += gap_at(loss, z, old, d)
        losses += loss
        G = old * d - z
        is_low = (old == 0) & (G > 0)
        is_high = (old == U) & (G < 0)
        projected = G * (1 - (is_low | is_high))
        needs_step = fabs(projected) > SMALLEST
        leaves = v.shrink & ((is_low & (G > v.highest_before)) | (is_high & (G < v.lowest_before)))
        plan.marks[first + k] = SHRINK * leaves
        highest = max(highest, projected)
        lowest = min(lowest, projected)
        new = old - projected / Q if Q > 0 else (U if projected < 0 else 0)
        new = min(above_zero(new), U)
        if v.round_alpha:
            new = <double><float>new
        new = new if needs_step else old
        steps += needs_step
        change = new - old
        dual_of(v, entry.slot).gradient = <float>G
        dual_of(v, entry.slot).alpha = new
        member.changes[k] = change * y
        bias_change += change * y * bias
        sum_alpha += change
        sum_square += square_of_change(old, new, d)
        gain -= change * (G + 0.5 * Q * change)
    v.highest = highest
    v.lowest = lowest
    v.gap += gap
    v.visits += size_of_batch(plan, start, t, number)
    v.losses += losses
    v.steps += steps
    v.sum_alpha += sum_alpha
    v.sum_square += sum_square
    v.expected += gain
    member.bias_change += bias_change
    return weight


cdef inline void add(const Member* member, int64_t number, int64_t n, const value_t* kind) noexcept nogil:
    """The steps of a batch to the copy of w."""
    cdef int64_t k
    for k in range(n):
        if member.changes[k] != 0:
            row_axpy(member.changes[k], row_of(&member.v, member.batches[number % SLOTS][k].slot), member.v.w, kind)


cdef inline void merge(const Plan* plan, Shared* shared, int64_t t) noexcept nogil:
    """Adds the changes of all copies to the t-th part of w."""
    cdef int64_t f, u, first = plan.n_features * t // plan.n_threads, last = plan.n_features * (t + 1) // plan.n_threads
    cdef double* w = plan.w
    cdef double* all = shared.members[0].v.w
    cdef const double* other
    for u in range(1, plan.n_threads - 1):
        other = shared.members[u].v.w
        for f in range(first, last):
            all[f] += other[f] - w[f]
    other = shared.members[plan.n_threads - 1].v.w
    for f in range(first, last):
        w[f] = all[f] + (other[f] - w[f])


cdef inline double change_of_bias(const Shared* shared) noexcept nogil:
    """By the steps of a round."""
    cdef double change = 0
    cdef int64_t t
    for t in range(shared.plan.n_threads):
        change += shared.members[t].bias_change
    return change


cdef inline void begin_round(const Plan* plan, Member* member) noexcept nogil:
    memcpy(member.v.w, plan.w, plan.n_features * sizeof(double))
    member.bias_change = 0


cdef inline void visit_round(
    const Plan* plan, Shared* shared, int64_t me, int64_t last, int64_t start, double weight, const value_t* kind
) noexcept nogil:
    """The stretches of the threads from `me` to before last, the bias having this weight at the start."""
    cdef int64_t n = plan.n_threads, t, b, size
    cdef int64_t n_batches = (stretch_start(plan, start, n) - stretch_start(plan, start, n - 1) + BATCH - 1) // BATCH
    for b in range(-1, n_batches):
        for t in range(me, last):
            look(plan, &shared.members[t], t, start, b + 1, kind)
        if last - me < n:
            meet(&shared.meeting, me, n, 1)
        if b < 0:
            continue
        for t in range(n):
            size = size_of_batch(plan, start, t, b)
            if me <= t < last:
                weight = decide(plan, &shared.members[t], t, start, b, weight)
            else:
                weight = follow_bias(&shared.members[t].bias_steps[b % SLOTS][0], size, weight)
        for t in range(me, last):
            add(&shared.members[t], b, size_of_batch(plan, start, t, b), kind)


cdef bint work(Plan* plan, Shared* shared, int64_t me, bint alone, const value_t* kind) noexcept nogil:
    """What thread `me` has to do; the first leads. Returns whether the others were there to the end."""
    cdef Meeting* meeting = &shared.meeting
    cdef int64_t n = plan.n_threads, start = plan.start, t, last
    cdef double weight = plan.weight
    while start < plan.end and not (me and meeting.dissolved):
        alone = alone or meeting.dissolved
        last = n if alone else me + 1
        for t in range(me, last):
            begin_round(plan, &shared.members[t])
        visit_round(plan, shared, me, last, start, weight, kind)
        if not alone:
            meet(meeting, me, n, 0)
            if not me:
                meeting.dissolved = meeting.patience < 0
        for t in range(me, last):
            merge(plan, shared, t)
        weight += change_of_bias(shared)
        if not alone:
            meet(meeting, me, n, 0)
        start = stretch_start(plan, start, n)
    if not me:
        plan.weight = weight
    return not alone


cdef inline void add_up(Visits* all, const Visits* v) noexcept nogil:
    all.highest = max(all.highest, v.highest)
    all.lowest = min(all.lowest, v.lowest)
    all.sum_alpha += v.sum_alpha
    all.sum_square += v.sum_square
    all.losses += v.losses
    all.visits += v.visits
    all.gap += v.gap
    all.steps += v.steps
    all.expected += v.expected


def prepare(uint8_t[::1] memory, double[:, ::1] copies, int8_t[::1] marks):
    """Gives sweeps room for a copy of w a thread, without the weight of the bias, and for a mark of each row of the
    order."""
    cdef Plan* plan = &(<Shared*>&memory[0]).plan
    plan.n_threads = copies.shape[0]
    plan.n_features = copies.shape[1]
    plan.copies = &copies[0, 0]
    plan.marks = &marks[0]


def convene(uint8_t[::1] memory, int64_t stretch, int64_t n_helpers):
    """Before a sweep: nobody has arrived. A thread has a stretch of so many rows a round; so many others will come."""
    cdef Shared* shared = <Shared*>&memory[0]
    convene_meeting(&shared.meeting, n_helpers)
    shared.plan.stretch = stretch


def dismiss(uint8_t[::1] memory):
    """Sends home who waits for a sweep that nobody leads."""
    dismiss_meeting(&(<Shared*>&memory[0]).meeting)


def help(uint8_t[::1] memory, const value_t[::1] kind):
    """What every other thread does while one sweeps."""
    cdef Shared* shared = <Shared*>&memory[0]
    cdef int64_t me
    with nogil:
        me = join(&shared.meeting)
        if begin_together(&shared.meeting, me) and me < shared.plan.n_threads:
            work(&shared.plan, shared, me, False, &kind[0])


def sweep(
    const Row[:] rows, Dual[:] duals, int32_t[::1] order, int64_t start, int64_t end, double[::1] w,
    const double[:, ::1] codes, State[::1] state, const value_t[::1] kind, uint8_t[::1] memory
):
    """As sweep of _dual_cd.pyx. memory: SHARED_BYTES, prepared, and convened for every call. Returns whether the other
    threads were there to the end."""
    cdef Shared* shared = <Shared*>&memory[0]
    cdef Plan* plan = &shared.plan
    cdef Visits all
    cdef int64_t t
    cdef bint helped
    begin(&all, rows, duals, order, start, w, codes, &state[0])
    plan.start = start
    plan.end = end
    plan.w = &w[0]
    plan.weight = w[all.last_weight]
    for t in range(plan.n_threads):
        shared.members[t].v = all
        shared.members[t].v.w = plan.copies + t * plan.n_features
    with nogil:
        helped = work(plan, shared, 0, not begin_together(&shared.meeting, 0), &kind[0])
        w[all.last_weight] = plan.weight
        for t in range(plan.n_threads):
            add_up(&all, &shared.members[t].v)
        move_kept(&all, plan.marks + start, start, end)
    end_visits(&all, start, &state[0])
    return helped
