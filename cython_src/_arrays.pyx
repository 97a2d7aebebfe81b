"""Memory for arrays."""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef enum:
    LARGE = 1 << 23       # bytes from which on large pages are asked for; most of a piece's arrays is not used
    PATIENCE = 1000000    # ns for a large page; clearing takes a fifth, as many small ones three quarters

cdef extern from *:
    """
    #define llsvm_is_raised(flag) __atomic_load_n(flag, __ATOMIC_RELAXED)
    #define llsvm_raise(flag) __atomic_exchange_n(flag, 1, __ATOMIC_RELAXED)
    #include <stddef.h>
    #include <stdint.h>
    #if defined(__GLIBC__)
    #include <malloc.h>
    static void llsvm_keep_freed(int largest, int most) {
        mallopt(M_MMAP_THRESHOLD, largest);
        mallopt(M_TRIM_THRESHOLD, most);
    }
    #else
    static void llsvm_keep_freed(int largest, int most) { (void)largest; (void)most; }
    #endif
    #if defined(__linux__)
    #include <sys/mman.h>
    #include <time.h>
    #include <unistd.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    static void llsvm_advise(void *data, size_t size, int advice) {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        uintptr_t start = ((uintptr_t)data + page - 1) / page * page, end = ((uintptr_t)data + size) / page * page;
        if (start < end) madvise((void *)start, end - start, advice);
    }
    static void llsvm_ask_for_large_pages(void *data, size_t size) { llsvm_advise(data, size, MADV_HUGEPAGE); }
    static void llsvm_refuse_large_pages(void *data, size_t size) { llsvm_advise(data, size, MADV_NOHUGEPAGE); }
    static int64_t llsvm_populate(void *data, size_t size) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        llsvm_advise(data, size, MADV_POPULATE_WRITE);
        clock_gettime(CLOCK_MONOTONIC, &end);
        return (end.tv_sec - begin.tv_sec) * (int64_t)1000000000 + end.tv_nsec - begin.tv_nsec;
    }
    #else
    static void llsvm_ask_for_large_pages(void *data, size_t size) { (void)data; (void)size; }
    static void llsvm_refuse_large_pages(void *data, size_t size) { (void)data; (void)size; }
    static int64_t llsvm_populate(void *data, size_t size) { (void)data; (void)size; return 0; }
    #endif
    """
    void c_keep_freed "llsvm_keep_freed"(int largest, int most) noexcept nogil
    void ask_for_large_pages "llsvm_ask_for_large_pages"(void* data, size_t size) noexcept nogil
    void refuse_large_pages "llsvm_refuse_large_pages"(void* data, size_t size) noexcept nogil
    bint is_raised "llsvm_is_raised"(const uint8_t* flag) noexcept nogil
    bint raise_flag "llsvm_raise"(uint8_t* flag) noexcept nogil  # whether it was raised before
    int64_t populate "llsvm_populate"(void* data, size_t size) noexcept nogil  # ns that it took


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


def touch(int32_t[::1] table, const int64_t[::1] places, uint8_t[::1] touched):
    """Has the system find memory for those parts of a table in which these places are, unless `touched`, a byte for
    each of equal parts, says that it has or that another thread is at it. What is in the table stays.

    Of a virtual machine that gives free memory back to its host, small pages are mostly those it still has, while a
    large page may take ten times as long: then the rest of the table gets small ones.
    """
    cdef int64_t n = table.shape[0], size = n // touched.shape[0], part, k
    with nogil:
        for k in range(places.shape[0]):
            part = places[k] // size
            if places[k] < n and not is_raised(&touched[part]) and not raise_flag(&touched[part]):
                if populate(&table[part * size], size * sizeof(int32_t)) > PATIENCE:
                    refuse_large_pages(&table[0], n * sizeof(int32_t))


def keep_freed(int largest, int most):
    c_keep_freed(largest, most)
