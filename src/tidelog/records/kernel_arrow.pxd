# C types for kernel_arrow.py, like kernel.pxd for kernel.py.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from libc.string cimport memcpy

from tidelog.records.kernel cimport RecordReader

cdef int64_t INT64_MAX


cdef Py_ssize_t VIEW_WORDS
cdef Py_ssize_t WORD_SIZE
cdef Py_ssize_t VIEW_PREFIX_SIZE
cdef Py_ssize_t VIEW_INLINE_MAX


cdef bint IS_COMPILED


@cython.final
cdef class ViewColumn:
    cdef unsigned char[::1] views
    cdef int32_t[::1] words
    cdef unsigned char[::1] validity
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t nulls

    @cython.locals(word=Py_ssize_t, at=Py_ssize_t, index=Py_ssize_t)
    cdef int append(self, RecordReader reader, Py_ssize_t start, Py_ssize_t length, int32_t buffer_number) except -1


@cython.locals(length=Py_ssize_t)
cpdef int fill_headers(
    ViewColumn keys, ViewColumn values, RecordReader reader, Py_ssize_t count, int64_t from_offset, int32_t buffer_number
) except -1


@cython.final
cdef class BinarySource:
    cdef const unsigned char[::1] data
    cdef const int32_t[::1] offsets
    cdef const unsigned char[::1] validity
    cdef Py_ssize_t first

    @cython.locals(start=Py_ssize_t, length=Py_ssize_t)
    cdef Py_ssize_t length(self, Py_ssize_t row) except -2
    cdef Py_ssize_t start(self, Py_ssize_t row) except -2


@cython.final
cdef class ColumnsWriter:
    cdef unsigned char[::1] out
    cdef readonly Py_ssize_t position
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp

    @cython.locals(raw=uint64_t)
    cdef int write_varint(self, int64_t value) except -1
    @cython.locals(start=Py_ssize_t)
    cdef int write_part(self, BinarySource source, Py_ssize_t row, Py_ssize_t length) except -1
    @cython.locals(row=Py_ssize_t, length=Py_ssize_t)
    cdef int write_headers(self, BinarySource keys, BinarySource values, Py_ssize_t first, Py_ssize_t end) except -1


# Written out by hand for speed: a slice of a view, even an empty one, costs more than most records.

# Copy bytes of a column to the writer's position.
cdef inline int copy_part(ColumnsWriter writer, BinarySource source, Py_ssize_t start, Py_ssize_t length) except -1:
    if length <= 0:
        return 0
    if writer.position < 0 or writer.position > writer.out.shape[0] - length:
        raise IndexError("a record would leave its buffer")
    if start < 0 or start > source.data.shape[0] - length:
        raise IndexError("a row would leave its column")
    memcpy(&writer.out[writer.position], &source.data[start], length)
    writer.position += length
    return 0


# Write a zigzag varint at the writer's position.
cdef inline int put_varint(ColumnsWriter writer, int64_t value) except -1:
    cdef uint64_t raw = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef Py_ssize_t size = 1
    cdef unsigned char* target
    cdef uint64_t rest = raw >> 7
    while rest:
        size += 1
        rest >>= 7
    if writer.position < 0 or writer.position > writer.out.shape[0] - size:
        raise IndexError("a record would leave its buffer")
    target = &writer.out[writer.position]
    while raw >= 0x80:
        target[0] = <unsigned char>(raw | 0x80)
        target += 1
        raw >>= 7
    target[0] = <unsigned char>raw
    writer.position += size
    return 0


@cython.locals(raw=uint64_t, size=Py_ssize_t)
cdef Py_ssize_t size_of_varint(int64_t value) noexcept
cdef Py_ssize_t size_of_part(Py_ssize_t length) noexcept
@cython.locals(row=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t size_of_headers(BinarySource keys, BinarySource values, Py_ssize_t first, Py_ssize_t end) except -1

@cython.locals(row=Py_ssize_t, timestamp=int64_t, delta=int64_t, key_length=Py_ssize_t, value_length=Py_ssize_t,
               first=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t)
cpdef int encode_columns(
    ColumnsWriter writer,
    Py_ssize_t rows,
    BinarySource keys,
    BinarySource values,
    const int64_t[::1] timestamps,
    const int32_t[::1] headers_offsets,
    BinarySource header_keys,
    BinarySource header_values,
) except -1
