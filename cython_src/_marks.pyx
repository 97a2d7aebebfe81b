"""Sweeps of dual coordinate descent by several threads that mark rows which need a step (the problem: _dual_cd.pyx).

As Chiang, Lee and Lin (KDD 2016): of every batch of rows all threads compute the gradients at one and the same w; then
one thread alone visits the rows that may need a step. Those whose alpha is free always do, and are left to it. Where w
is small, the others go on meanwhile to the gradients of the next batch, at a copy of w made before these steps. So
nothing depends on the number of threads, as long as there are two, or on how fast they are.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from _dual cimport DUALS_AHEAD, SHRINK, STEP, Dual, Seen, State, Visits, begin, dual_of, look, move_kept, row_of, step
from _dual cimport end as end_visits
from _sparse cimport TABLE_AHEAD, Ahead, Row, ask_for_entry, look_ahead, prefetch, value_t
from _threads cimport count, load, publish, replace, rest

cdef enum:
    TILES = 64  # of a batch: what a thread takes at a time
    LARGEST_BATCH = 32768
    LARGEST_TILE = LARGEST_BATCH // TILES
    FREE = 3  # not looked at: it will need a step

# The rows order[start .. end-1], in tiles.
cdef struct Batch:
    int64_t start
    int64_t end
    int64_t tile_rows
    int64_t n_tiles
    int8_t[LARGEST_BATCH] marks
    double[TILES][5] found  # of a tile: highest and lowest projected gradient, losses, visits, gap


# What threads share in a sweep. Tiles are numbered through all batches: those below `limit` can be looked at, `next` is
# the first that nobody has, `done` have been. They are of the batch `open`, whose first tile is `first`. most: rows of
# a batch, which are looked at by w_before, a copy of w, or, if there is none, by w itself: then the steps of a batch
# are made before the next one is looked at.
cdef struct Shared:
    int64_t limit
    int64_t[7] apart0
    int64_t next
    int64_t[7] apart1
    int64_t done
    int64_t[7] apart2
    int64_t first
    int64_t open
    int64_t most
    double* w_before
    Visits looking
    Batch[2] batches
    int32_t[LARGEST_BATCH] chosen  # rows of a batch that need a step, and their marks
    int8_t[LARGEST_BATCH] marks


SHARED_BYTES, MOST_ROWS, MOST_THREADS = sizeof(Shared), LARGEST_BATCH, TILES


cdef inline bint is_free(const Visits* v, int32_t slot) noexcept nogil:
    return 0 < dual_of(v, slot).alpha < v.codes[row_of(v, slot).code].U


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
            ask_for_entry(row_of(v, order[s + TABLE_AHEAD]), v.row_stride)
            if not v.beside:
                prefetch(&dual_of(v, order[s + TABLE_AHEAD]).gradient)
        marks[s] = FREE
        if not is_free(v, order[s]):
            chosen[n_chosen] = order[s]
            places[n_chosen] = <int32_t>s
            n_chosen += 1
    for s in range(n_chosen):
        look_ahead(&ahead, v.rows, v.row_stride, &chosen[0], s, n_chosen, sizeof(value_t))
        mark = look(v, chosen[s], &seen, kind)
        marks[places[s]] = mark
        gap += seen.gap
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
    cdef Ahead ahead = [0, 0]
    cdef Seen seen
    for s in range(batch.start, batch.end):
        marks[n_chosen] = batch.marks[s - batch.start]
        chosen[n_chosen] = v.order[s]
        n_chosen += marks[n_chosen] == STEP or marks[n_chosen] == FREE
    v.steps += n_chosen
    for k in range(n_chosen):
        look_ahead(&ahead, v.rows, v.row_stride, chosen, k, n_chosen, sizeof(value_t))
        if not v.beside and k + DUALS_AHEAD < n_chosen:
            prefetch(&dual_of(v, chosen[k + DUALS_AHEAD]).gradient)
        look(v, chosen[k], &seen, kind)
        if marks[k] == FREE:
            v.gap += seen.gap
            v.visits += 1
            v.losses += seen.loss
            v.highest = max(v.highest, seen.projected)
            v.lowest = min(v.lowest, seen.projected)
        step(v, chosen[k], &seen, &v.sum_alpha, &v.sum_square, kind)


def prepare(uint8_t[::1] memory, double[::1] w_before):
    """Gives sweeps room for a copy of w, or none."""
    (<Shared*>&memory[0]).w_before = &w_before[0] if w_before.shape[0] else NULL


def convene(uint8_t[::1] memory, int64_t most, int64_t n_helpers):
    """Before a sweep: nothing can be looked at yet. A batch has up to `most` rows. Threads may help, however many."""
    cdef Shared* shared = <Shared*>&memory[0]
    shared.most = most
    shared.limit = shared.next = shared.done = shared.first = shared.open = 0
    shared.batches[0].n_tiles = 0


def dismiss(uint8_t[::1] memory):
    """Ends what helps in a sweep, also if nobody leads it."""
    publish(&(<Shared*>&memory[0]).limit, -1)


def help(uint8_t[::1] memory, const value_t[::1] kind):
    """What every other thread does while one sweeps."""
    cdef Shared* shared = <Shared*>&memory[0]
    cdef Visits looking
    cdef int64_t rests = 0
    with nogil:
        while load(&shared.limit) == 0:
            rest(&rests)
        looking = shared.looking
        while load(&shared.limit) >= 0:
            if not take_tile(&looking, shared, &kind[0]):
                rest(&rests)


cdef void lead(Visits* v, Shared* shared, int64_t start, int64_t end, const value_t* kind) noexcept nogil:
    """What the thread does that sweeps."""
    cdef Visits looking = shared.looking
    cdef Batch* batch = &shared.batches[shared.open]
    cdef bint copying = looking.w != v.w
    cdef int64_t rests = 0
    batch.start = batch.end = start
    while True:
        start = batch.end
        if copying and start < end:
            memcpy(looking.w, v.w, (v.last_weight + 1) * sizeof(double))
            open_batch(shared, start, min(start + shared.most, end))
        sum_tiles(v, batch)
        visit_marked(v, shared, batch, kind)
        move_kept(v, &batch.marks[0], batch.start, batch.end)
        if start == end:
            break
        if not copying:
            open_batch(shared, start, min(start + shared.most, end))
        while take_tile(&looking, shared, kind):
            pass
        while load(&shared.done) < shared.limit:
            rest(&rests)
        batch = &shared.batches[shared.open]
    publish(&shared.limit, -1)


def sweep(
    const Row[:] rows, Dual[:] duals, int32_t[::1] order, int64_t start, int64_t end, double[::1] w,
    const double[:, ::1] codes, State[::1] state, const value_t[::1] kind, uint8_t[::1] memory
):
    """As sweep of _dual_cd.pyx. memory: SHARED_BYTES, prepared, and convened for every call. Returns True: no thread is
    waited for that has not come."""
    cdef Visits v
    cdef Shared* shared = <Shared*>&memory[0]
    begin(&v, rows, duals, order, start, w, codes, &state[0])
    shared.looking = v
    if shared.w_before != NULL:
        shared.looking.w = shared.w_before
    with nogil:
        lead(&v, shared, start, end, &kind[0])
    end_visits(&v, start, &state[0])
    return True
