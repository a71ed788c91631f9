# C types for kernel_compact.py, like kernel.pxd for kernel.py.

cimport cython
from libc.stdint cimport int64_t, uint64_t

from tidelog.records.kernel_offset_map cimport KeyHash, KeyQueue, OffsetMap
from tidelog.records.kernel_walk cimport RecordWalk, explain

cdef int64_t INT64_MAX
cdef int64_t INT64_MIN
cdef Py_ssize_t QUEUE_SIZE
cdef Py_ssize_t UNLOCKED_SIZE_MIN
cdef int CORRUPT
cdef int DONE
cdef int FULL


@cython.locals(hashing=KeyHash, queue=KeyQueue, answer=int)
cpdef bint note_keys(
    RecordWalk walk, OffsetMap offset_map, int64_t base_offset, int64_t start_offset, int64_t end_offset
) except -1

@cython.locals(offset=int64_t)
cdef int run_note_keys(
    RecordWalk walk,
    OffsetMap offset_map,
    KeyHash hashing,
    KeyQueue queue,
    int64_t base_offset,
    int64_t start_offset,
    int64_t end_offset,
) except -1 nogil

@cython.locals(count=Py_ssize_t, at=Py_ssize_t)
cdef bint note_queued(KeyQueue queue, OffsetMap offset_map) except -1 nogil


@cython.final
cdef class Choice:
    cdef unsigned char[::1] bits
    cdef readonly Py_ssize_t kept_count
    cdef readonly Py_ssize_t kept_bytes
    cdef readonly Py_ssize_t keyless_count
    cdef readonly Py_ssize_t tombstones_count
    cdef readonly int64_t max_timestamp

    cdef int keep(self, Py_ssize_t index, Py_ssize_t size, int64_t timestamp, bint is_tombstone) except -1 nogil
    cdef bint has(self, Py_ssize_t index) except -1 nogil


@cython.locals(choice=Choice, index=Py_ssize_t)
cpdef Choice choose_all(RecordWalk walk, int64_t base_offset)

@cython.locals(choice=Choice, hashing=KeyHash, queue=KeyQueue, answer=int)
cpdef Choice choose_records(RecordWalk walk, OffsetMap offset_map, int64_t base_offset, bint keeps_tombstones)

@cython.locals(offset=int64_t, index=Py_ssize_t, size=Py_ssize_t, is_tombstone=bint)
cdef int run_choose_records(
    RecordWalk walk,
    OffsetMap offset_map,
    KeyHash hashing,
    KeyQueue queue,
    Choice choice,
    int64_t base_offset,
    bint keeps_tombstones,
) except -1 nogil

@cython.locals(count=Py_ssize_t, at=Py_ssize_t, word=Py_ssize_t)
cdef int choose_queued(KeyQueue queue, OffsetMap offset_map, Choice choice) except -1 nogil


@cython.final
cdef class RecordCopy:
    cdef unsigned char[::1] out
    cdef Py_ssize_t position

    @cython.locals(raw=uint64_t)
    cdef int write_varint(self, int64_t value) except -1 nogil
    cdef int write_range(self, RecordWalk walk, Py_ssize_t start, Py_ssize_t end) except -1 nogil


cpdef int copy_records(RecordWalk walk, Choice choice, RecordCopy copy) except -1
@cython.locals(start=Py_ssize_t, index=Py_ssize_t)
cdef int run_copy_records(RecordWalk walk, Choice choice, RecordCopy copy) except -1 nogil

@cython.locals(size=Py_ssize_t)
cpdef Py_ssize_t size_with_horizon(RecordWalk walk, Choice choice, int64_t horizon_ms) except -2
@cython.locals(size=Py_ssize_t, length=Py_ssize_t, index=Py_ssize_t)
cdef Py_ssize_t run_size_with_horizon(RecordWalk walk, Choice choice, int64_t horizon_ms) except -2 nogil

cpdef int copy_with_horizon(RecordWalk walk, Choice choice, RecordCopy copy, int64_t horizon_ms) except -1
@cython.locals(delta=int64_t, index=Py_ssize_t)
cdef int run_copy_with_horizon(RecordWalk walk, Choice choice, RecordCopy copy, int64_t horizon_ms) except -1 nogil

@cython.locals(raw=uint64_t, size=Py_ssize_t)
cdef Py_ssize_t size_of_varint(int64_t value) noexcept nogil
