# C types for kernel_walk.py, like kernel.pxd for kernel.py.

cimport cython
from libc.stdint cimport int64_t, uint64_t

from tidelog.records.kernel cimport RecordReader

cdef int64_t INT64_MAX
cdef int64_t INT64_MIN
cdef Py_ssize_t RECORD_SIZE_MIN


@cython.final
cdef class RecordWalk:
    cdef const unsigned char[::1] data
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef int64_t last_offset_delta
    cdef int64_t timestamp_base
    cdef bint is_stamped
    cdef bint is_sound
    cdef Py_ssize_t position
    cdef Py_ssize_t limit
    cdef Py_ssize_t start
    cdef Py_ssize_t rest_at
    cdef Py_ssize_t end
    cdef int64_t offset_delta
    cdef int64_t timestamp
    cdef Py_ssize_t key_at
    cdef Py_ssize_t key_length
    cdef Py_ssize_t value_length

    cdef bint enter(self, Py_ssize_t first, Py_ssize_t size, Py_ssize_t count, int64_t last_offset_delta) except -1 nogil
    cdef int set_times(self, int64_t base_timestamp, int64_t log_append_time, bint is_stamped) except -1 nogil
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
