"""Memory for arrays."""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    LARGE = 1 << 23       # bytes from which on large pages are asked for; most of a piece's arrays is not used

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #if defined(__linux__)
    #include <sys/mman.h>
    static void llsvm_ask_for_large_pages(void *data, size_t size) {
        size_t skipped = -(uintptr_t)data & 4095;
        madvise((char *)data + skipped, size - skipped, MADV_HUGEPAGE);
    }
    #else
    static void llsvm_ask_for_large_pages(void *data, size_t size) { (void)data; (void)size; }
    #endif
    """
    void ask_for_large_pages "llsvm_ask_for_large_pages"(void* data, size_t size) noexcept nogil


cdef class Memory:
    """So many bytes, cleared or not."""

    cdef void* data
    cdef Py_ssize_t size

    def __cinit__(self, Py_ssize_t size, bint cleared):
        self.data = PyMem_RawCalloc(size, 1) if cleared else PyMem_RawMalloc(size)
        if self.data == NULL:
            raise MemoryError
        self.size = size
        if size >= LARGE:
            ask_for_large_pages(self.data, size)

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, False, flags)


def address(uint8_t[::1] data):
    """Where these bytes, of which there is at least one, begin."""
    return <uint64_t>&data[0]
