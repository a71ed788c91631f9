# C types for kernel.py, and one step that only makes sense in C. What the code does is in the .py file, which runs
# without this one.
#
# The value after `except?` is returned together with an error; it may also be a result, so a rare one costs least.

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t

cdef int64_t INT64_MAX
cdef int64_t INT64_MIN
cdef bint IS_COMPILED
cdef Py_ssize_t RECORD_SIZE_MIN


@cython.final
@cython.freelist(1024)
cdef class Record:
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly bytes key
    cdef readonly bytes value
    cdef readonly tuple headers


@cython.final
cdef class RecordReader:
    cdef const unsigned char[::1] data
    cdef Py_ssize_t size
    cdef int64_t base_offset
    cdef int64_t base_timestamp
    cdef bint is_stamped
    cdef Py_ssize_t position
    cdef Py_ssize_t limit
    cdef Py_ssize_t index
    cdef int64_t offset
    cdef int64_t timestamp
    cdef Py_ssize_t key_at
    cdef Py_ssize_t key_length
    cdef Py_ssize_t value_at
    cdef Py_ssize_t value_length
    cdef Py_ssize_t headers_count

    @cython.locals(length=Py_ssize_t, delta=int64_t)
    cdef int next_record(self) except -1
    cdef int end_record(self) except -1
    cdef int end_records(self) except -1
    @cython.locals(length=Py_ssize_t)
    cdef int skip_headers(self) except -1
    cdef bytes copy_of(self, Py_ssize_t at, Py_ssize_t length)
    @cython.locals(length=Py_ssize_t, key=str, headers=list)
    cdef tuple read_headers(self)
    @cython.locals(length=Py_ssize_t)
    cdef inline Py_ssize_t read_length(self, str part) except -2
    @cython.locals(length=Py_ssize_t)
    cdef Py_ssize_t read_header_key(self) except -1
    @cython.locals(byte=uint64_t, raw=uint64_t)
    cdef inline int64_t read_varint(self) except? -998877
    @cython.locals(byte=uint64_t, raw=uint64_t)
    cdef inline int64_t read_varlong(self) except? -998877
    @cython.locals(byte=uint64_t, shift=int, last_shift=int)
    cdef inline uint64_t read_varint_rest(self, uint64_t raw, int bytes_max, uint64_t last_byte_max) except? 0
    cdef inline bint leaves_int64(self, int64_t base, int64_t delta) noexcept
    cdef object problem(self, str what)


# Slicing in Python would make a slice object and two numbers for each part.
cdef inline bytes copy_bytes(RecordReader reader, Py_ssize_t at, Py_ssize_t length):
    if length == 0:
        return b""  # it may begin where the data ends
    return PyBytes_FromStringAndSize(<const char*>&reader.data[at], length)


@cython.locals(reader=RecordReader, records=list, record=Record)
cpdef list decode_objects(
    bytes data, Py_ssize_t count, int64_t base_offset, int64_t base_timestamp, int64_t log_append_time, bint is_stamped
)


@cython.locals(reader=RecordReader)
cpdef tuple find_timestamp(
    const unsigned char[::1] data,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    int64_t log_append_time,
    bint is_stamped,
    int64_t timestamp,
    int64_t first_offset,
)


@cython.final
cdef class RecordWriter:
    cdef bytearray out
    cdef readonly int64_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp

    @cython.locals(delta=int64_t, size=int64_t)
    cdef int write(self, bytes key, bytes value, bytearray headers, int64_t timestamp) except -1


@cython.locals(writer=RecordWriter)
cpdef RecordWriter encode_objects(bytearray out, object records, object now_ms)

@cython.locals(out=bytearray, pairs=list)
cdef bytearray encode_headers(object headers)

@cython.locals(raw=uint64_t, size=int64_t)
cdef int64_t varint_size(int64_t value) noexcept

@cython.locals(raw=uint64_t)
cdef int append_varint(bytearray out, int64_t value) except -1
cdef int64_t nullable_size(bytes part) except -1
cdef int append_nullable(bytearray out, bytes part) except -1
