# C types for kernel_small.py, like kernel.pxd for kernel.py.

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from tidelog.records.kernel_offset_map cimport KeyHash, KeyQueue, OffsetMap
from tidelog.records.kernel_walk cimport RecordWalk

cdef int64_t INT64_MAX
cdef Py_ssize_t LOG_OVERHEAD
cdef Py_ssize_t HEADER_SIZE
cdef int MAGIC
cdef int DELETE_HORIZON_BIT
cdef int SPECIAL_BITS
cdef Py_ssize_t SPANS_MAX
cdef Py_ssize_t SPAN_COLUMNS
cdef Py_ssize_t QUEUE_SIZE
cdef Py_ssize_t UNLOCKED_SIZE_MIN


cdef class BatchRun


@cython.final
cdef class KeptBatches:
    cdef unsigned char[::1] out
    cdef readonly Py_ssize_t end
    cdef Py_ssize_t span_size
    cdef int64_t[::1] spans
    cdef Py_ssize_t count
    cdef Py_ssize_t span_end

    cdef int begin(self, Py_ssize_t size) except -1
    cdef inline bint has_room(self) except -1 nogil
    @cython.locals(row=Py_ssize_t, size=Py_ssize_t)
    cdef int add(self, BatchRun run) except -1 nogil
    cpdef object data(self)
    @cython.locals(row=Py_ssize_t, column=Py_ssize_t)
    cpdef list rows(self)


@cython.final
cdef class BatchRun:
    cdef const unsigned char[::1] data
    cdef Py_ssize_t size
    cdef Py_ssize_t size_max
    cdef const uint32_t[::1] table
    cdef readonly Py_ssize_t position
    cdef readonly int64_t next_offset
    cdef Py_ssize_t end
    cdef int64_t base_offset
    cdef int64_t last_offset
    cdef int64_t attributes
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp
    cdef readonly int64_t records_read
    cdef readonly int64_t records_kept
    cdef readonly Py_ssize_t last_position
    cdef readonly bint last_is_kept

    @cython.locals(at=Py_ssize_t, length=int64_t, last_offset_delta=int64_t, count=int64_t, crc=int64_t)
    cdef bint find_batch(self, RecordWalk walk) except -1 nogil
    cdef int take_up(self, RecordWalk walk, bint is_kept) except -1 nogil
    cdef int go_back(self, Py_ssize_t position) except -1 nogil
    @cython.locals(byte=int64_t, value=int64_t, index=Py_ssize_t)
    cdef inline int64_t read_int(self, Py_ssize_t at, int size) except? -998877 nogil
    @cython.locals(mask=uint32_t, crc=uint32_t, low=uint32_t, at=Py_ssize_t)
    cdef inline int64_t compute_crc(self, Py_ssize_t start, Py_ssize_t end) except -1 nogil


@cython.locals(hashing=KeyHash, queue=KeyQueue)
cpdef int note_run(
    BatchRun run, RecordWalk walk, OffsetMap offset_map, int64_t start_offset, int64_t end_offset
) except -1

@cython.locals(has_room=bint, offset=int64_t)
cdef int run_note_run(
    BatchRun run,
    RecordWalk walk,
    OffsetMap offset_map,
    KeyHash hashing,
    KeyQueue queue,
    int64_t start_offset,
    int64_t end_offset,
) except -1 nogil

@cython.locals(count=Py_ssize_t, at=Py_ssize_t)
cdef bint note_waiting(BatchRun run, KeyQueue queue, OffsetMap offset_map) except -1 nogil

@cython.locals(hashing=KeyHash)
cpdef int filter_run(
    BatchRun run,
    RecordWalk walk,
    OffsetMap offset_map,
    int64_t now_ms,
    const int64_t[::1] needed_offsets,
    KeptBatches kept,
) except -1

@cython.locals(
    has_horizon=bint, keeps_tombstones=bint, kept_count=Py_ssize_t, is_special=bint, offset=int64_t, is_tombstone=bint
)
cdef int run_filter_run(
    BatchRun run,
    RecordWalk walk,
    OffsetMap offset_map,
    KeyHash hashing,
    int64_t now_ms,
    const int64_t[::1] needed_offsets,
    KeptBatches kept,
) except -1 nogil

@cython.locals(first=Py_ssize_t, end=Py_ssize_t, middle=Py_ssize_t)
cdef bint is_among(const int64_t[::1] numbers, int64_t number) except -1 nogil
