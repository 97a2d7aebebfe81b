"""Dual coordinate descent for linear SVM.

    min_w  P(w) = w.w / 2 + sum_i loss_i(1 - y_i w.x_i)
    max_a  D(a) = sum_i (a_i - d_i a_i^2 / 2) - w.w / 2,   w = sum_i a_i y_i x_i,   0 <= a_i <= U_i

    hinge:          loss(z) = C max(0, z),    U = C,         d = 0
    squared hinge:  loss(z) = C max(0, z)^2,  U = infinity,  d = 1 / (2C)

both being loss(z) = max over 0 <= a <= U of (a z - d a^2 / 2). With -B b every row has one more feature of value b,
whose weight is the last entry of w. One step makes D largest in one a_i (Hsieh et al., ICML 2008, Algorithm 3;
shrinking and stopping as in LIBLINEAR's solve_l2r_l1l2_svc).

Several threads (as Chiang, Lee and Lin, KDD 2016): of every batch of rows all threads compute the gradients at one and
the same w; then one thread alone visits the rows that may need a step. Those whose alpha is free always do, and are
left to it. Where w is small, the others go on meanwhile to the gradients of the next batch, at a copy of w made before
these steps. So nothing depends on the number of threads, as long as there are two, or on how fast they are.
"""

import numpy as np

from libc.math cimport INFINITY, fabs
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from _sparse cimport Ahead, Row, look_ahead, prefetch, row_axpy, row_dot, value_t

cdef extern from *:
    """
    #include <sched.h>
    #if defined(__x86_64__) || defined(__i386__)
    #define llsvm_pause() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define llsvm_pause() __asm__ volatile("yield")
    #else
    #define llsvm_pause() ((void)0)
    #endif
    #define llsvm_load(number) __atomic_load_n(number, __ATOMIC_ACQUIRE)
    #define llsvm_publish(number, value) __atomic_store_n(number, value, __ATOMIC_RELEASE)
    #define llsvm_count(number) __atomic_fetch_add(number, 1, __ATOMIC_ACQ_REL)
    #define llsvm_replace(number, from, to) \\
        __atomic_compare_exchange_n(number, from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
    static inline void llsvm_rest(int64_t *rests) {
        if (++*rests & 1023) llsvm_pause();
        else sched_yield();
    }
    """
    int64_t load "llsvm_load"(const int64_t* number) noexcept nogil
    void publish "llsvm_publish"(int64_t* number, int64_t value) noexcept nogil
    int64_t count "llsvm_count"(int64_t* number) noexcept nogil
    bint replace "llsvm_replace"(int64_t* number, int64_t* expected, int64_t value) noexcept nogil
    void rest "llsvm_rest"(int64_t* rests) noexcept nogil

cdef enum:
    TILES = 64  # of a batch: what a thread takes at a time
    LARGEST_BATCH = 32768
    LARGEST_TILE = LARGEST_BATCH // TILES
    TABLE_AHEAD = 8  # rows of the table that are asked for ahead
    NOTHING = 0
    STEP = 1
    SHRINK = 2
    FREE = 3  # not looked at: it will need a step

cdef double SMALLEST = 1e-12  # projected gradients that ask for a step are larger


# The problem, and what visits have found.
cdef struct Visits:
    Row* rows
    int32_t* order
    double* w
    int64_t last_weight
    double bias
    const double* signs
    const double* box
    bint round_alpha
    bint shrink
    int64_t count_from
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


# A row at one w: y and its box, its loss, its part of the gap, the gradient of -D, 0 of it where alpha cannot follow.
cdef struct Seen:
    double y
    double U
    double d
    double loss
    double gap
    double gradient
    double projected


# The rows order[start .. end-1], in tiles.
cdef struct Batch:
    int64_t start
    int64_t end
    int64_t tile_rows
    int64_t n_tiles
    int8_t[LARGEST_BATCH] marks
    double[TILES][5] found  # of a tile: highest and lowest projected gradient, losses, visits, gap


# What threads share in a sweep. Tiles are numbered through all batches: those below `limit` can be looked at, `next` is
# the first that nobody has, `done` have been. They are of the batch `open`, whose first tile is `first`.
cdef struct Shared:
    int64_t limit
    int64_t[7] apart0
    int64_t next
    int64_t[7] apart1
    int64_t done
    int64_t[7] apart2
    int64_t first
    int64_t open
    Batch[2] batches
    int32_t[LARGEST_BATCH] chosen  # rows of a batch that need a step, and their marks
    int8_t[LARGEST_BATCH] marks


SHARED_BYTES, MOST_ROWS, MOST_THREADS = sizeof(Shared), LARGEST_BATCH, TILES


cdef void begin(
    Visits* v, Row[::1] rows, int32_t[::1] order, double[::1] w, double bias, const double[::1] signs,
    const double[:, ::1] box, bint round_alpha, bint shrink, int64_t count_from, const double[::1] state
) noexcept:
    v.rows = &rows[0] if rows.shape[0] else NULL
    v.order = &order[0] if order.shape[0] else NULL
    v.w = &w[0]
    v.last_weight = w.shape[0] - 1
    v.bias = bias
    v.signs = &signs[0]
    v.box = &box[0, 0]
    v.round_alpha = round_alpha
    v.shrink = shrink
    v.count_from = count_from
    v.highest_before = state[0]
    v.lowest_before = state[1]
    v.highest = -INFINITY
    v.lowest = INFINITY
    v.sum_alpha = v.sum_square = v.losses = v.visits = v.gap = v.steps = 0


cdef void end(const Visits* v, double[::1] state) noexcept:
    state[2] = v.highest
    state[3] = v.lowest
    state[4] += v.sum_alpha
    state[5] += v.sum_square
    state[6] += v.losses
    state[7] += v.visits
    state[8] = v.gap
    state[9] = v.steps


cdef inline double loss(double G, double U, double d) noexcept nogil:
    """Where y w.x = G + 1 < 1."""
    cdef double best = U if U * d <= -G else -G / d
    return best * (-G - 0.5 * d * best)


cdef inline int8_t look(const Visits* v, Row* row, Seen* seen, const value_t* kind) noexcept nogil:
    """What a row is by w as it is, and what it needs."""
    cdef double y = v.signs[row.code], old = row.alpha, G
    cdef int64_t side = y > 0
    cdef double U = v.box[2 * side], d = v.box[2 * side + 1]
    G = y * (row_dot(v.w, row, kind) + v.w[v.last_weight] * v.bias) - 1
    seen.y = y
    seen.U = U
    seen.d = d
    seen.loss = loss(G, U, d) if G < 0 else 0
    seen.gap = seen.loss + old * (G + 0.5 * d * old)
    G += old * d
    row.gradient = <float>G
    seen.gradient = G
    seen.projected = 0
    if old == 0 and G > 0:
        return SHRINK if v.shrink and G > v.highest_before else NOTHING
    if old == U and G < 0:
        return SHRINK if v.shrink and G < v.lowest_before else NOTHING
    seen.projected = G
    return STEP if fabs(G) > SMALLEST else NOTHING


cdef inline void step(
    const Visits* v, Row* row, const Seen* seen, double* sum_alpha, double* sum_square, const value_t* kind
) noexcept nogil:
    """Makes D largest in the alpha of this row."""
    cdef double old = row.alpha, Q = <double>row.norm * row.norm + v.bias * v.bias + seen.d, change
    cdef double new = old - seen.gradient / Q if Q > 0 else (seen.U if seen.gradient < 0 else 0)
    if new < 0:
        new = 0
    elif new > seen.U:
        new = seen.U
    if v.round_alpha:
        new = <double><float>new
    if new != old:
        row.alpha = new
        sum_alpha[0] += new - old
        sum_square[0] += 0.5 * seen.d * (new - old) * (new + old)
        change = (new - old) * seen.y
        row_axpy(change, row, v.w, kind)
        v.w[v.last_weight] += change * v.bias


cdef inline int64_t visit_all(Visits* v, int64_t active, const value_t* kind) noexcept nogil:
    """One thread alone; returns the number of rows that stay active, which are the first of order then."""
    cdef int64_t s, kept = 0, count_from = v.count_from
    cdef int32_t slot
    cdef Row* rows = v.rows
    cdef int32_t* order = v.order
    cdef Ahead ahead = [0, 0]
    cdef Seen seen
    cdef int8_t mark
    cdef double highest = -INFINITY, lowest = INFINITY
    cdef double sum_alpha = 0, sum_square = 0, losses = 0, visits = 0, gap = 0, steps = 0
    for s in range(active):
        look_ahead(&ahead, rows, order, s, active, sizeof(value_t))
        slot = order[s]
        mark = look(v, &rows[slot], &seen, kind)
        gap += seen.gap
        if slot >= count_from:
            visits += 1
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
            step(v, &rows[slot], &seen, &sum_alpha, &sum_square, kind)
    v.highest = highest
    v.lowest = lowest
    v.sum_alpha = sum_alpha
    v.sum_square = sum_square
    v.losses = losses
    v.visits = visits
    v.gap = gap
    v.steps = steps
    return kept


cdef inline bint is_free(const Visits* v, const Row* row) noexcept nogil:
    return 0 < row.alpha < v.box[2 * (v.signs[row.code] > 0)]


cdef inline void look_at_tile(const Visits* v, Batch* batch, int64_t tile, const value_t* kind) noexcept nogil:
    """Which rows of a tile need a step."""
    cdef int64_t start = batch.start + tile * batch.tile_rows, s, n_chosen = 0
    cdef int64_t n = min(batch.tile_rows, batch.end - start)
    cdef const int32_t* order = v.order + start
    cdef int8_t* marks = &batch.marks[start - batch.start]
    cdef int8_t mark
    cdef double* found = &batch.found[tile][0]
    cdef int32_t[LARGEST_TILE] chosen, places
    cdef Ahead ahead = [0, 0]
    cdef Seen seen
    cdef double highest = -INFINITY, lowest = INFINITY, losses = 0, visits = 0, gap = 0
    for s in range(n):
        if s + TABLE_AHEAD < n:
            prefetch(&v.rows[order[s + TABLE_AHEAD]])
        marks[s] = FREE
        if not is_free(v, &v.rows[order[s]]):
            chosen[n_chosen] = order[s]
            places[n_chosen] = <int32_t>s
            n_chosen += 1
    for s in range(n_chosen):
        look_ahead(&ahead, v.rows, &chosen[0], s, n_chosen, sizeof(value_t))
        mark = look(v, &v.rows[chosen[s]], &seen, kind)
        marks[places[s]] = mark
        gap += seen.gap
        if chosen[s] >= v.count_from:
            visits += 1
            losses += seen.loss
        if mark != SHRINK:
            highest = max(highest, seen.projected)
            lowest = min(lowest, seen.projected)
    found[0] = highest
    found[1] = lowest
    found[2] = losses
    found[3] = visits
    found[4] = gap


cdef inline bint take_tile(const Visits* v, Shared* shared, const value_t* kind) noexcept nogil:
    """Looks at a tile that nobody has; False if there is none."""
    cdef int64_t tile = load(&shared.next)
    while True:
        if tile >= load(&shared.limit):
            return False
        if replace(&shared.next, &tile, tile + 1):
            break
    look_at_tile(v, &shared.batches[shared.open], tile - shared.first, kind)
    count(&shared.done)
    return True


cdef inline void open_batch(Shared* shared, int64_t start, int64_t end) noexcept nogil:
    """Its tiles can be taken from now on."""
    cdef Batch* batch
    shared.first = load(&shared.done)
    shared.open = 1 - shared.open
    batch = &shared.batches[shared.open]
    batch.start = start
    batch.end = end
    batch.tile_rows = max(1, (end - start + TILES - 1) // TILES)
    batch.n_tiles = (end - start + batch.tile_rows - 1) // batch.tile_rows
    publish(&shared.limit, shared.first + batch.n_tiles)


cdef inline void sum_tiles(Visits* v, const Batch* batch) noexcept nogil:
    cdef int64_t tile
    for tile in range(batch.n_tiles):
        v.highest = max(v.highest, batch.found[tile][0])
        v.lowest = min(v.lowest, batch.found[tile][1])
        v.losses += batch.found[tile][2]
        v.visits += batch.found[tile][3]
        v.gap += batch.found[tile][4]


cdef inline void visit_marked(Visits* v, Shared* shared, const Batch* batch, const value_t* kind) noexcept nogil:
    """Steps of the rows that need one."""
    cdef int64_t s, k, n_chosen = 0
    cdef int32_t* chosen = &shared.chosen[0]
    cdef int8_t* marks = &shared.marks[0]
    cdef Row* row
    cdef Ahead ahead = [0, 0]
    cdef Seen seen
    for s in range(batch.start, batch.end):
        marks[n_chosen] = batch.marks[s - batch.start]
        chosen[n_chosen] = v.order[s]
        n_chosen += marks[n_chosen] == STEP or marks[n_chosen] == FREE
    v.steps += n_chosen
    for k in range(n_chosen):
        look_ahead(&ahead, v.rows, chosen, k, n_chosen, sizeof(value_t))
        row = &v.rows[chosen[k]]
        look(v, row, &seen, kind)
        if marks[k] == FREE:
            v.gap += seen.gap
            if chosen[k] >= v.count_from:
                v.visits += 1
                v.losses += seen.loss
            v.highest = max(v.highest, seen.projected)
            v.lowest = min(v.lowest, seen.projected)
        step(v, row, &seen, &v.sum_alpha, &v.sum_square, kind)


cdef inline int64_t move_kept(int32_t* order, const Batch* batch, int64_t kept) noexcept nogil:
    """Rows before the batch are those that were kept, then those that were not: does the same with the rows of the
    batch. Returns the number of rows kept so far."""
    cdef int64_t s
    cdef int32_t slot
    for s in range(batch.start, batch.end):
        if batch.marks[s - batch.start] != SHRINK:
            slot = order[s]
            order[s] = order[kept]
            order[kept] = slot
            kept += 1
    return kept


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
             change of sum a, change of sum d a^2 / 2, sum of losses met in slots from count_from, visits of those,
             what the rows visited have in the duality gap: loss_i + a_i (y_i w.x_i - 1 + d_i a_i / 2),
             rows that needed a step].
    Returns the new number of active rows.
    """
    cdef Visits v
    begin(&v, rows, order, w, bias, signs, box, round_alpha, shrink, count_from, state)
    with nogil:
        active = visit_all(&v, active, &kind[0])
    end(&v, state)
    return active


def convene(uint8_t[::1] shared):
    """Before a sweep: nothing can be looked at yet."""
    cdef Shared* s = <Shared*>&shared[0]
    s.limit = s.next = s.done = s.first = s.open = 0
    s.batches[0].start = s.batches[0].end = s.batches[0].n_tiles = 0


def dismiss(uint8_t[::1] shared):
    """Ends what helps in a sweep, also if nobody leads it."""
    publish(&(<Shared*>&shared[0]).limit, -1)


def sweep_together(
    Row[::1] rows, int32_t[::1] order, int64_t active, int64_t count_from, double[::1] w, double bias,
    const double[::1] signs, const double[:, ::1] box, bint round_alpha, bint shrink, double[::1] state,
    const value_t[::1] kind, uint8_t[::1] memory, double[::1] w_before, int64_t most, bint leading
):
    """As sweep, by all threads that call it with the same arguments; one of them is leading, and returns.

    memory: SHARED_BYTES, convened for every sweep. w_before: room for a copy of w, or w itself, which the steps of a
    batch then change before the next batch is looked at. A batch has up to `most` rows.
    """
    cdef Visits looking, stepping
    cdef Shared* shared = <Shared*>&memory[0]
    cdef Batch* batch
    cdef int64_t rests = 0, kept = 0, start
    cdef bint copying = &w_before[0] != &w[0]
    begin(&looking, rows, order, w_before, bias, signs, box, round_alpha, shrink, count_from, state)
    if not leading:
        with nogil:
            while load(&shared.limit) >= 0:
                if not take_tile(&looking, shared, &kind[0]):
                    rest(&rests)
        return 0
    begin(&stepping, rows, order, w, bias, signs, box, round_alpha, shrink, count_from, state)
    with nogil:
        batch = &shared.batches[shared.open]  # empty
        while True:
            start = batch.end
            if copying and start < active:
                memcpy(&w_before[0], &w[0], w.shape[0] * sizeof(double))
                open_batch(shared, start, min(start + most, active))
            sum_tiles(&stepping, batch)
            visit_marked(&stepping, shared, batch, &kind[0])
            if shrink:
                kept = move_kept(stepping.order, batch, kept)
            if start == active:
                break
            if not copying:
                open_batch(shared, start, min(start + most, active))
            while take_tile(&looking, shared, &kind[0]):
                pass
            while load(&shared.done) < shared.limit:
                rest(&rests)
            batch = &shared.batches[shared.open]
        publish(&shared.limit, -1)
    end(&stepping, state)
    return kept if shrink else active


def survey(
    Row[::1] rows, double[::1] w, double bias, const double[::1] signs, const double[:, ::1] box, double[::1] sums,
    const value_t[::1] kind
):
    """Looks at all rows at one w, changing their gradients alone. Arguments as in sweep.

    sums = [losses, what the rows have in the duality gap, squares of the changes of the gradients].
    """
    cdef Visits v
    cdef Seen seen
    cdef int64_t r
    cdef double before, losses = 0, gap = 0, changes = 0
    cdef int32_t[::1] order = np.empty(0, np.int32)
    begin(&v, rows, order, w, bias, signs, box, False, False, 0, np.zeros(10))
    with nogil:
        for r in range(rows.shape[0]):
            before = rows[r].gradient
            look(&v, &rows[r], &seen, &kind[0])
            losses += seen.loss
            gap += seen.gap
            changes += (seen.gradient - before) * (seen.gradient - before)
    sums[0] = losses
    sums[1] = gap
    sums[2] = changes


def select(
    const Row[::1] rows, int32_t first, const double[::1] signs, const double[:, ::1] box, double margin,
    int32_t[::1] order
):
    """The slots, from `first` on, of the rows whose alpha is free or at the wrong bound, or whose gradient is within
    the margin: into order; returns how many there are."""
    cdef int64_t r, n = 0
    cdef double alpha, U, G
    with nogil:
        for r in range(rows.shape[0]):
            alpha = rows[r].alpha
            U = box[signs[rows[r].code] > 0, 0]
            G = rows[r].gradient
            order[n] = first + <int32_t>r
            n += 0 < alpha < U or -margin <= G <= margin or (G < 0 if alpha == 0 else G > 0)
    return n


def adopt(
    Row[::1] rows, double bias, const double[::1] signs, const double[:, ::1] box, bint round_alpha, double[::1] sums,
    double[::1] change, const value_t[::1] kind
):
    """Gives every row the alpha that its loss has at the w of a survey: 0 <= a <= U where a z - d a^2 / 2 is largest.

    What was its alpha is forgotten. Adds to change the w of these rows, sum a y x; sums = [sum a, sum d a^2 / 2].
    """
    cdef int64_t r, last = change.shape[0] - 1
    cdef double y, U, d, z, alpha, sum_alpha = 0, sum_square = 0
    with nogil:
        for r in range(rows.shape[0]):
            y = signs[rows[r].code]
            U = box[y > 0, 0]
            d = box[y > 0, 1]
            z = d * rows[r].alpha - rows[r].gradient
            alpha = 0 if z <= 0 else (U if U * d <= z else z / d)
            if round_alpha:
                alpha = <double><float>alpha
            rows[r].alpha = alpha
            if alpha > 0:
                sum_alpha += alpha
                sum_square += 0.5 * d * alpha * alpha
                row_axpy(alpha * y, &rows[r], &change[0], &kind[0])
                change[last] += alpha * y * bias
    sums[0] = sum_alpha
    sums[1] = sum_square


def read_alphas(const Row[::1] rows, const int32_t[::1] slots, double[::1] alphas):
    """The alphas of the rows in these slots."""
    cdef int64_t k
    with nogil:
        for k in range(slots.shape[0]):
            alphas[k] = rows[slots[k]].alpha


def measure_course(
    const Row[::1] rows, const int32_t[::1] slots, const double[::1] before, const double[::1] signs,
    const double[:, ::1] box
):
    """Of the change c of alphas since they were `before`: (sum c (1 - d a), sum d c^2)."""
    cdef int64_t k
    cdef double d, change, slope = 0, curvature = 0
    cdef const Row* row
    with nogil:
        for k in range(slots.shape[0]):
            row = &rows[slots[k]]
            d = box[signs[row.code] > 0, 1]
            change = row.alpha - before[k]
            slope += change * (1 - d * row.alpha)
            curvature += d * change * change
    return slope, curvature


def go_on(
    Row[::1] rows, const int32_t[::1] slots, const double[::1] before, double share, double[::1] w, double bias,
    const double[::1] signs, const double[:, ::1] box, bint round_alpha, double[::1] state, const value_t[::1] kind
):
    """Alphas change by this share of their change since they were `before`, but stay in the box.

    w has made that change already, as if there were no box; state as in sweep.
    """
    cdef int64_t k, last = w.shape[0] - 1
    cdef double y, d, old, wanted, new, sum_alpha = 0, sum_square = 0
    cdef Row* row
    with nogil:
        for k in range(slots.shape[0]):
            row = &rows[slots[k]]
            old = row.alpha
            if old == before[k]:
                continue
            y = signs[row.code]
            d = box[y > 0, 1]
            wanted = old + share * (old - before[k])
            new = min(max(wanted, 0.0), box[y > 0, 0])
            if round_alpha:
                new = <double><float>new
            if new != wanted:
                row_axpy((new - wanted) * y, row, &w[0], &kind[0])
                w[last] += (new - wanted) * y * bias
            row.alpha = new
            sum_alpha += new - old
            sum_square += 0.5 * d * (new - old) * (new + old)
    state[4] += sum_alpha
    state[5] += sum_square
