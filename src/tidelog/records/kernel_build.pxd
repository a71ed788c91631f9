# C types for kernel_build.py, like kernel.pxd for kernel.py.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from tidelog.records.kernel_arrow cimport BinarySource

cdef int64_t INT64_MAX
cdef Py_ssize_t HEADER_ROOM
cdef double MILLISECONDS_PER_SECOND
cdef Py_ssize_t VARINT32_SIZE_MAX
cdef uint32_t MURMUR2_SEED
cdef uint32_t MURMUR2_MULTIPLIER
cdef uint32_t MASK_32
cdef uint32_t MASK_31
cdef bint IS_COMPILED


@cython.locals(length=Py_ssize_t, source="const unsigned char*", value=uint32_t, whole=Py_ssize_t, at=Py_ssize_t,
               word=uint32_t, rest=Py_ssize_t)
cpdef uint32_t murmur2(bytes data) except? 0

cpdef Py_ssize_t partition_for_key(bytes key, Py_ssize_t partitions) except -1

@cython.locals(raw=uint64_t, size=Py_ssize_t)
cdef Py_ssize_t varint_length(int64_t value) noexcept
cdef Py_ssize_t part_length(Py_ssize_t length) noexcept
@cython.locals(raw=uint64_t)
cdef Py_ssize_t put_varint(unsigned char* target, Py_ssize_t at, int64_t value) noexcept
@cython.locals(target="unsigned char*", source="const unsigned char*", index=Py_ssize_t)
cdef Py_ssize_t put_bytes(bytearray buffer, Py_ssize_t at, bytes part, Py_ssize_t length) except -1

@cython.locals(pairs=list, size=Py_ssize_t, names=list, encoded=bytes, content=object, out=bytearray, at=Py_ssize_t,
               index=Py_ssize_t)
cpdef bytes encode_header_list(object headers)
@cython.locals(size=Py_ssize_t)
cpdef Py_ssize_t record_size_max(bytes key, bytes value, bytes headers) except -1


cdef class RecordReceipt


cdef class BatchBuilder:
    cdef readonly bytearray buffer
    cdef list callbacks
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly bint is_open

    @cython.locals(base=int64_t, delta=int64_t, key_length=Py_ssize_t, value_length=Py_ssize_t,
                   headers_length=Py_ssize_t, size=Py_ssize_t, buffer=bytearray, target="unsigned char*", at=Py_ssize_t)
    cpdef Py_ssize_t append(self, bytes key, bytes value, bytes headers, int64_t timestamp) except -2
    @cython.locals(old=bytearray, target="unsigned char*", source="const unsigned char*", index=Py_ssize_t)
    cpdef bytearray move_to(self, bytearray buffer, Py_ssize_t capacity)
    cpdef int add_callback(self, RecordReceipt receipt) except -1
    cpdef int fill(self, Py_ssize_t size, Py_ssize_t count, int64_t base_timestamp, int64_t max_timestamp) except -1


cdef class RecordReceipt:
    cdef readonly BatchBuilder batch
    cdef readonly Py_ssize_t index
    cdef readonly int64_t timestamp
    cdef readonly Py_ssize_t key_size
    cdef readonly Py_ssize_t value_size
    cdef readonly object on_delivery

    cpdef int fill_in(
        self,
        BatchBuilder batch,
        Py_ssize_t index,
        int64_t timestamp,
        Py_ssize_t key_size,
        Py_ssize_t value_size,
        object on_delivery,
    ) except -1


cdef int make_callbacks(BatchBuilder batch) except -1
@cython.locals(callbacks=list)
cdef int add_to_callbacks(BatchBuilder batch, RecordReceipt receipt) except -1
cdef int fill_receipt(
    RecordReceipt receipt,
    BatchBuilder batch,
    Py_ssize_t index,
    int64_t timestamp,
    Py_ssize_t key_size,
    Py_ssize_t value_size,
    object on_delivery,
) except -1


@cython.final
cdef class TopicSlots:
    cdef list open_batches
    cdef readonly Py_ssize_t sticky_partition
    cdef readonly int64_t sticky_bytes
    cdef readonly int64_t sticky_bytes_max
    cdef readonly bint chooses_by_key
    cdef readonly bint chooses_sticky


@cython.final
cdef class RecordAppender:
    cdef dict topics
    cdef readonly bint is_enabled
    cdef object receipt_class

    @cython.locals(slots=TopicSlots, batch=BatchBuilder, stamp=int64_t, seconds=double, size=Py_ssize_t)
    cpdef int append(
        self, object topic, object value, object key, bytes headers, object partition, object timestamp
    ) except -1
    @cython.locals(slots=TopicSlots, batch=BatchBuilder, stamp=int64_t, seconds=double, size=Py_ssize_t, index=Py_ssize_t,
                   receipt=RecordReceipt, receipt_class=object, key_size=Py_ssize_t, value_size=Py_ssize_t)
    cpdef RecordReceipt append_with_receipt(
        self,
        object topic,
        object value,
        object key,
        bytes headers,
        object partition,
        object timestamp,
        object on_delivery,
    )


cdef class RecordSender:
    cdef RecordAppender appender

    cpdef int _set_appender(self, RecordAppender appender) except -1


@cython.locals(partitions=Py_ssize_t, number=Py_ssize_t)
cdef BatchBuilder choose_batch(TopicSlots slots, bytes key, object partition)

@cython.locals(data="const unsigned char[::1]", value=uint32_t, end=Py_ssize_t, at=Py_ssize_t, word=uint32_t,
               rest=Py_ssize_t)
cdef uint32_t murmur2_of_row(BinarySource source, Py_ssize_t start, Py_ssize_t length) except? 0
@cython.locals(row=Py_ssize_t, length=Py_ssize_t)
cpdef int partitions_of_keys(BinarySource keys, Py_ssize_t rows, Py_ssize_t partitions, int32_t[::1] out) except -1
