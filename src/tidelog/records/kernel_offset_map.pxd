# C types for kernel_offset_map.py, like kernel.pxd for kernel.py.

cimport cython
from libc.stdint cimport int64_t, uint64_t

cdef Py_ssize_t SECRET_SIZE
cdef Py_ssize_t SLOT_WORDS
cdef Py_ssize_t SLOT_SIZE


cdef class KeyQueue


@cython.final
cdef class OffsetMap:
    cdef readonly int64_t memory_bytes
    cdef readonly double load_factor
    cdef readonly int64_t slots
    cdef readonly int64_t capacity
    cdef readonly int64_t size
    cdef readonly int64_t latest_offset
    cdef readonly uint64_t secret_low
    cdef readonly uint64_t secret_high
    cdef readonly object memory
    cdef uint64_t[::1] words
    cdef KeyQueue queue

    @cython.locals(hashing=KeyHash)
    cpdef int64_t get(self, const unsigned char[::1] key) except? -998877
    @cython.locals(hashing=KeyHash)
    cpdef bint put(self, const unsigned char[::1] key, int64_t offset) except -1
    cpdef int update_latest_offset(self, int64_t offset) except -1 nogil
    @cython.locals(word=Py_ssize_t, slots=uint64_t)
    cdef inline uint64_t peek(self, uint64_t low) except? 998877 nogil
    @cython.locals(slot=uint64_t, word=Py_ssize_t, slots=uint64_t)
    cdef Py_ssize_t find_slot(self, uint64_t low, uint64_t high) except -1 nogil
    cdef int64_t offset_at(self, Py_ssize_t word) except? -998877 nogil
    @cython.locals(word=Py_ssize_t)
    cdef int note(self, uint64_t low, uint64_t high, uint64_t offset) except -1 nogil


@cython.final
cdef class KeyQueue:
    cdef Py_ssize_t count
    cdef uint64_t[::1] low
    cdef uint64_t[::1] high
    cdef int64_t[::1] offset
    cdef int64_t[::1] index
    cdef int64_t[::1] size
    cdef int64_t[::1] timestamp
    cdef int64_t[::1] is_tombstone
    cdef uint64_t seen

    cdef int describe(self, int64_t index, int64_t size, int64_t timestamp, bint is_tombstone) except -1 nogil
    cdef int add(self, uint64_t low, uint64_t high, int64_t offset) except -1 nogil
    @cython.locals(count=Py_ssize_t, seen=uint64_t, at=Py_ssize_t)
    cdef Py_ssize_t fetch(self, OffsetMap offset_map) except -1 nogil


@cython.final
cdef class KeyHash:
    cdef const unsigned char[::1] data
    cdef uint64_t secret_low
    cdef uint64_t secret_high
    cdef readonly uint64_t low
    cdef readonly uint64_t high

    @cython.locals(mask=uint64_t, v0=uint64_t, v1=uint64_t, v2=uint64_t, v3=uint64_t, word=uint64_t,
                   words=Py_ssize_t, step=Py_ssize_t, rounds=int)
    cpdef int compute(self, Py_ssize_t start, Py_ssize_t length) except -1 nogil
    @cython.locals(word=uint64_t, index=Py_ssize_t, byte=uint64_t)
    cdef uint64_t load_word(self, Py_ssize_t at, Py_ssize_t length) except? 998877 nogil
