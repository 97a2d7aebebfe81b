"""Feature ids, numbered in the order in which they first appear."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from _sparse cimport prefetch_near

# The entries of the table of numbers are shared: one thread adds numbers while others look them up. An entry goes from
# 0 to its number once, and whoever sees the 0 has the id numbered later, so nothing more than whole entries is asked
# for.
cdef extern from *:
    """
    #define llsvm_entry(place) __atomic_load_n(place, __ATOMIC_RELAXED)
    #define llsvm_set_entry(place, number) __atomic_store_n(place, number, __ATOMIC_RELAXED)
    """
    int32_t entry "llsvm_entry"(const int32_t* place) noexcept nogil
    void set_entry "llsvm_set_entry"(int32_t* place, int32_t number) noexcept nogil

cdef enum:
    # Whose places in a table are asked for. Of 64 MB: 3.6 ns an id, 4.3 with 48, 9.8 with none; 4.9 to 5.3 where they
    # are asked for into the nearest cache, which has fewer reads under way.
    IDS_AHEAD = 96


cdef inline uint64_t slot_of(int64_t id) noexcept nogil:
    return (<uint64_t>id * <uint64_t>0x9E3779B97F4A7C15) >> 20


def look_up(const int64_t[::1] ids, int32_t[::1] features, int32_t[::1] unknown, const int32_t[::1] direct):
    """features[k] = the number of ids[k] where the table of number() has it already; returns how many have none yet,
    the k of which go to unknown.

    Another thread may be adding numbers to the table meanwhile.
    """
    cdef Py_ssize_t k, n = ids.shape[0]
    cdef int64_t count = 0, ahead, id, limit = direct.shape[0]
    cdef int32_t feature
    with nogil:
        for k in range(n):
            if k + IDS_AHEAD < n:
                ahead = ids[k + IDS_AHEAD]
                if ahead < limit:
                    prefetch_near(&direct[ahead])
            id = ids[k]
            feature = entry(&direct[id]) if id < limit else 0
            features[k] = feature - 1
            unknown[count] = <int32_t>k
            count += feature == 0
    return count


def number(
    const int64_t[::1] ids, int32_t[::1] features, const int32_t[::1] unknown, int32_t[::1] direct,
    int64_t[::1] hashed_ids, int32_t[::1] hashed_features, int64_t[::1] known, int64_t first, int64_t start,
    int64_t n_known, int64_t n_hashed
):
    """Features by order of first appearance: features[k] = the number of ids[k] for all k in unknown, new ids being
    appended to known, which begins with that of feature `first`.

    An id below direct.shape[0] is looked up there (its number + 1, 0: not seen), any other in the open-addressing table
    of the hashed arrays (id 0: empty), kept at most half full. Returns (j, n_known, n_hashed), j < len(unknown) where a
    table is full: the caller enlarges it and calls again from j.
    """
    cdef Py_ssize_t j = start, n = unknown.shape[0]
    cdef int64_t id, limit = direct.shape[0], room = first + known.shape[0], hash_room = hashed_ids.shape[0] // 2
    cdef uint64_t mask = hashed_ids.shape[0] - 1, slot
    cdef int32_t feature
    with nogil:
        while j < n:
            if j + IDS_AHEAD < n:
                id = ids[unknown[j + IDS_AHEAD]]
                prefetch_near(&direct[id] if id < limit else <const void*>&hashed_ids[slot_of(id) & mask])
            id = ids[unknown[j]]
            if id < limit:
                feature = direct[id] - 1
                if feature < 0:
                    if n_known == room:
                        break
                    feature = <int32_t>n_known
                    set_entry(&direct[id], feature + 1)
                    known[n_known - first] = id
                    n_known += 1
            else:
                slot = slot_of(id) & mask
                while hashed_ids[slot] != id and hashed_ids[slot] != 0:
                    slot = (slot + 1) & mask
                if hashed_ids[slot] == 0:
                    if n_known == room or n_hashed >= hash_room:
                        break
                    hashed_ids[slot] = id
                    hashed_features[slot] = <int32_t>n_known
                    known[n_known - first] = id
                    n_known += 1
                    n_hashed += 1
                feature = hashed_features[slot]
            features[unknown[j]] = feature
            j += 1
    return j, n_known, n_hashed


def rehash(
    const int64_t[::1] hashed_ids, const int32_t[::1] hashed_features, int64_t[::1] larger_ids,
    int32_t[::1] larger_features
):
    """Puts all ids of a hash table and their numbers into a larger one."""
    cdef Py_ssize_t k
    cdef uint64_t mask = larger_ids.shape[0] - 1, slot
    with nogil:
        for k in range(hashed_ids.shape[0]):
            if hashed_ids[k] != 0:
                slot = slot_of(hashed_ids[k]) & mask
                while larger_ids[slot] != 0:
                    slot = (slot + 1) & mask
                larger_ids[slot] = hashed_ids[k]
                larger_features[slot] = hashed_features[k]
