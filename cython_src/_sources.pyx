"""XXH64, the digest of an input: what `xxhsum -H64` prints, at the speed of memory."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    STRIPE = 32

cdef uint64_t PRIME_1 = 0x9E3779B185EBCA87
cdef uint64_t PRIME_2 = 0xC2B2AE3D27D4EB4F
cdef uint64_t PRIME_3 = 0x165667B19E3779F9
cdef uint64_t PRIME_4 = 0x85EBCA77C2B2AE63
cdef uint64_t PRIME_5 = 0x27D4EB2F165667C5


cdef inline uint64_t rotate(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline uint64_t word(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline uint64_t add(uint64_t lane, uint64_t value) noexcept nogil:
    return rotate(lane + value * PRIME_2, 31) * PRIME_1


cdef inline uint64_t merge(uint64_t total, uint64_t lane) noexcept nogil:
    return (total ^ add(0, lane)) * PRIME_1 + PRIME_4


cdef class Digest:
    """Of bytes that come in parts."""

    cdef uint64_t lane0, lane1, lane2, lane3, size
    cdef uint8_t[STRIPE] rest

    def __cinit__(self):
        self.lane0, self.lane1, self.lane2, self.lane3 = PRIME_1 + PRIME_2, PRIME_2, 0, -PRIME_1

    cdef void consume(self, const uint8_t* at, uint64_t stripes) noexcept nogil:
        cdef uint64_t lane0 = self.lane0, lane1 = self.lane1, lane2 = self.lane2, lane3 = self.lane3
        for _ in range(stripes):
            lane0 = add(lane0, word(at))
            lane1 = add(lane1, word(at + 8))
            lane2 = add(lane2, word(at + 16))
            lane3 = add(lane3, word(at + 24))
            at += STRIPE
        self.lane0, self.lane1, self.lane2, self.lane3 = lane0, lane1, lane2, lane3

    def update(self, const uint8_t[::1] data):
        cdef uint64_t n = data.shape[0], held = self.size % STRIPE, more
        cdef const uint8_t* at
        if n == 0:
            return
        at = &data[0]
        with nogil:
            self.size += n
            if held:
                more = min(n, STRIPE - held)
                memcpy(self.rest + held, at, more)
                at += more
                n -= more
                if held + more == STRIPE:
                    self.consume(self.rest, 1)
            if n:
                self.consume(at, n // STRIPE)
                memcpy(self.rest, at + n // STRIPE * STRIPE, n % STRIPE)

    def hexdigest(self):
        cdef uint64_t total = PRIME_5, at = 0, held = self.size % STRIPE
        cdef uint32_t half
        if self.size >= STRIPE:
            total = rotate(self.lane0, 1) + rotate(self.lane1, 7) + rotate(self.lane2, 12) + rotate(self.lane3, 18)
            total = merge(merge(merge(merge(total, self.lane0), self.lane1), self.lane2), self.lane3)
        total += self.size
        while at + 8 <= held:
            total = rotate(total ^ add(0, word(self.rest + at)), 27) * PRIME_1 + PRIME_4
            at += 8
        if at + 4 <= held:
            memcpy(&half, self.rest + at, 4)
            total = rotate(total ^ half * PRIME_1, 23) * PRIME_2 + PRIME_3
            at += 4
        while at < held:
            total = rotate(total ^ self.rest[at] * PRIME_5, 11) * PRIME_1
            at += 1
        total = (total ^ (total >> 33)) * PRIME_2
        total = (total ^ (total >> 29)) * PRIME_3
        return f"{total ^ (total >> 32):016x}"
