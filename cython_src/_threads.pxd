# What threads tell each other through memory that they share, and how they wait.

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sched.h>
    #include <stdint.h>
    #if defined(__x86_64__) || defined(__i386__)
    #define llsvm_pause() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define llsvm_pause() __asm__ volatile("isb")
    #else
    #define llsvm_pause() ((void)0)
    #endif
    #define llsvm_load(number) __atomic_load_n(number, __ATOMIC_ACQUIRE)
    #define llsvm_publish(number, value) __atomic_store_n(number, value, __ATOMIC_RELEASE)
    #define llsvm_count(number) __atomic_fetch_add(number, 1, __ATOMIC_ACQ_REL)
    #define llsvm_replace(number, from, to) \\
        __atomic_compare_exchange_n(number, from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
    #if defined(__linux__) && defined(CPU_SETSIZE)
    static inline int64_t llsvm_core(void) { return sched_getcpu(); }
    static inline void llsvm_leave_core(int64_t core) {
        cpu_set_t all, others;
        if (core < 0 || core >= CPU_SETSIZE || core != sched_getcpu() || sched_getaffinity(0, sizeof all, &all)) return;
        others = all;
        CPU_CLR(core, &others);
        if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others)) sched_setaffinity(0, sizeof all, &all);
    }
    #else
    static inline int64_t llsvm_core(void) { return -1; }
    static inline void llsvm_leave_core(int64_t core) { (void)core; }
    #endif
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
    # The core that this thread is on, -1 if unknown; and to another one, if it is on this.
    int64_t core "llsvm_core"() noexcept nogil
    void leave_core "llsvm_leave_core"(int64_t core) noexcept nogil

cdef enum:
    MOST_MEMBERS = 16
    TOGETHER = 1
    ALONE = 2
    # Rests of a thread that waits for the others to begin; in a sweep at first, and for each time that they meet, at
    # most; and until a thread looks whether it shares a core with the first.
    ARRIVAL = 1 << 14
    PATIENCE = 1 << 15
    MORE_PATIENCE = 32
    OFTEN = 256

# How often a thread has met the others, on a cache line of its own.
cdef struct Member:
    int64_t number
    int64_t[7] apart


# Threads that begin together, or not at all, and meet on the way. The first one leads; core: where it began; patience:
# how much longer it waits; dissolved: it goes on without the others; n_helpers: how many others are
# to come.
cdef struct Meeting:
    int64_t arrived
    int64_t[7] apart0
    int64_t begun
    int64_t core
    int64_t patience
    int64_t dissolved
    int64_t n_helpers
    int64_t[3] apart1
    Member[MOST_MEMBERS] members


cdef inline void convene_meeting(Meeting* meeting, int64_t n_helpers) noexcept nogil:
    cdef int64_t t
    meeting.n_helpers = n_helpers
    meeting.arrived = meeting.begun = meeting.dissolved = 0
    meeting.core = -1
    meeting.patience = PATIENCE
    for t in range(MOST_MEMBERS):
        meeting.members[t].number = 0


cdef inline void dismiss_meeting(Meeting* meeting) noexcept nogil:
    """Sends home who waits for one that nobody leads."""
    if not load(&meeting.begun):
        publish(&meeting.begun, ALONE)


cdef inline int64_t join(Meeting* meeting) noexcept nogil:
    """The number of a thread that does not lead."""
    return count(&meeting.arrived) + 1


cdef inline bint begin_together(Meeting* meeting, int64_t me) noexcept nogil:
    """Waits for the others, if any are to come; returns whether they have."""
    cdef int64_t rests = 0, n_helpers = meeting.n_helpers
    if me:
        leave_core(load(&meeting.core))
        while not load(&meeting.begun):
            rest(&rests)
    else:
        publish(&meeting.core, core())
        while load(&meeting.arrived) < n_helpers and rests < ARRIVAL:
            rest(&rests)
        publish(&meeting.begun, TOGETHER if n_helpers and load(&meeting.arrived) == n_helpers else ALONE)
    return load(&meeting.begun) == TOGETHER


cdef inline void meet(Meeting* meeting, int64_t me, int64_t n, int64_t lag) noexcept nogil:
    """Waits until all have met as often as this thread, this time included, but for so many times."""
    cdef int64_t t, rests = 0, number = meeting.members[me].number + 1
    publish(&meeting.members[me].number, number)
    for t in range(n):
        while load(&meeting.members[t].number) < number - lag:
            rest(&rests)
            if me and rests % OFTEN == 0:
                leave_core(load(&meeting.core))
    if not me:
        meeting.patience = min(meeting.patience + MORE_PATIENCE, <int64_t>PATIENCE) - rests
