# C types for kernel_compact.py, as kernel.pxd has them for kernel.py.

cimport cython
from libc.stdint cimport int64_t, uint64_t

from tidelog.records.kernel cimport RecordReader
from tidelog.records.kernel_offset_map cimport KeyHash, OffsetMap

cdef int64_t INT64_MAX
cdef int64_t INT64_MIN
cdef Py_ssize_t RECORD_SIZE_MIN
cdef Py_ssize_t UNLOCKED_SIZE_MIN
cdef int CORRUPT
cdef int DONE
cdef int FULL


@cython.final
cdef class RecordWalk:
    cdef const unsigned char[::1] data
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef int64_t last_offset_delta
    cdef int64_t timestamp_base
    cdef bint is_stamped
    cdef bint is_sound
    cdef Py_ssize_t position
    cdef Py_ssize_t limit
    cdef Py_ssize_t index
    cdef Py_ssize_t start
    cdef Py_ssize_t rest_at
    cdef Py_ssize_t end
    cdef int64_t offset_delta
    cdef int64_t timestamp
    cdef Py_ssize_t key_at
    cdef Py_ssize_t key_length
    cdef Py_ssize_t value_length

    cdef int rewind(self) except -1 nogil
    @cython.locals(length=Py_ssize_t, timestamp_delta=int64_t, offset_delta=int64_t)
    cdef int next_record(self) except -1 nogil
    cdef int has_ended(self) except -1 nogil
    @cython.locals(length=Py_ssize_t, timestamp_delta=int64_t)
    cdef int next_range(self) except -1 nogil
    cdef inline int skip(self, Py_ssize_t length) except -1 nogil
    @cython.locals(headers_count=Py_ssize_t, key_length=Py_ssize_t)
    cdef int skip_headers(self) except -1 nogil
    @cython.locals(length=Py_ssize_t)
    cdef inline Py_ssize_t read_length(self) except -2 nogil
    @cython.locals(byte=uint64_t, raw=uint64_t)
    cdef inline int64_t read_varint(self) except? -998877 nogil
    @cython.locals(raw=uint64_t)
    cdef inline int64_t read_varlong(self) except? -998877 nogil
    @cython.locals(raw=uint64_t, byte=uint64_t, index=int)
    cdef uint64_t read_raw(self, int bytes_max, uint64_t last_byte_max) except? 998877 nogil
    @cython.locals(base=int64_t)
    cdef inline int64_t add_to_base(self, int64_t delta) except? -998877 nogil


@cython.locals(reader=RecordReader, last_offset=int64_t)
cpdef object explain(RecordWalk walk, int64_t base_offset)

@cython.locals(hashing=KeyHash, answer=int)
cpdef bint note_keys(
    RecordWalk walk, OffsetMap offset_map, int64_t base_offset, int64_t start_offset, int64_t end_offset
) except -1

@cython.locals(offset=int64_t)
cdef int run_note_keys(
    RecordWalk walk, OffsetMap offset_map, KeyHash hashing, int64_t base_offset, int64_t start_offset, int64_t end_offset
) except -1 nogil


@cython.final
cdef class Choice:
    cdef unsigned char[::1] bits
    cdef readonly Py_ssize_t kept_count
    cdef readonly Py_ssize_t kept_bytes
    cdef readonly Py_ssize_t keyless_count
    cdef readonly Py_ssize_t tombstones_count
    cdef readonly int64_t max_timestamp

    cdef int keep(self, RecordWalk walk, Py_ssize_t index) except -1 nogil
    cdef bint has(self, Py_ssize_t index) except -1 nogil


@cython.locals(choice=Choice, index=Py_ssize_t)
cpdef Choice choose_all(RecordWalk walk, int64_t base_offset)

@cython.locals(choice=Choice, hashing=KeyHash, answer=int)
cpdef Choice choose_records(RecordWalk walk, OffsetMap offset_map, int64_t base_offset, bint keeps_tombstones)

@cython.locals(offset=int64_t, index=Py_ssize_t)
cdef int run_choose_records(
    RecordWalk walk, OffsetMap offset_map, KeyHash hashing, Choice choice, int64_t base_offset, bint keeps_tombstones
) except -1 nogil


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
