"""The header of a chunk; _blockset.pyx says what follows it."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef enum:
    HEADER = 32
    PLAIN = 0
    ROW_CONSTANT = 1
    DICTIONARY = 2
    COMMON_NUMBER = 3

cdef packed struct Header:
    int64_t rows
    int64_t nonzeros
    uint8_t label_bytes
    uint8_t length_bytes
    uint8_t index_bytes
    uint8_t value_mode
    uint8_t value_bytes
    uint8_t last_entry
    uint8_t[2] unused
    uint32_t common_length
    uint32_t listed
