# C types for kernel_consume.py, like kernel.pxd for kernel.py.

cimport cython
from libc.stdint cimport int32_t, int64_t

from tidelog.records.kernel cimport RecordReader

cdef Py_ssize_t BATCH_HEADER_SIZE
cdef Py_ssize_t LOG_OVERHEAD
cdef int64_t BATCH_LENGTH_MIN
cdef unsigned char MAGIC
cdef Py_ssize_t LEADER_EPOCH_AT
cdef Py_ssize_t MAGIC_AT
cdef Py_ssize_t CRC_AT
cdef Py_ssize_t ATTRIBUTES_AT
cdef Py_ssize_t LAST_OFFSET_DELTA_AT
cdef Py_ssize_t BASE_TIMESTAMP_AT
cdef Py_ssize_t MAX_TIMESTAMP_AT
cdef Py_ssize_t PRODUCER_ID_AT
cdef Py_ssize_t RECORDS_COUNT_AT
cdef int COMPRESSION_MASK
cdef int TIMESTAMP_TYPE_BIT
cdef int TRANSACTIONAL_BIT
cdef int CONTROL_BIT
cdef int64_t INT64_MAX
cdef Py_ssize_t CONTROL_KEY_SIZE
cdef int ABORT_MARKER
cdef object CREATE_TIME
cdef object LOG_APPEND_TIME


@cython.final
@cython.freelist(1024)
cdef class ConsumerRecord:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly object timestamp_type
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers


@cython.final
cdef class BatchCursor:
    cdef object view
    cdef const unsigned char[::1] data
    cdef Py_ssize_t size
    cdef str topic
    cdef int32_t partition
    cdef readonly int64_t next_offset
    cdef readonly int32_t taken_epoch
    cdef object checksum
    cdef object open_records
    cdef list aborted
    cdef Py_ssize_t aborted_next
    cdef set aborted_ids
    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t batch_at
    cdef readonly Py_ssize_t batch_end
    cdef readonly int32_t batch_epoch
    cdef readonly int64_t batch_next_offset
    cdef readonly int attributes
    cdef readonly int64_t base_offset
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly Py_ssize_t records_count
    cdef RecordReader reader
    cdef Py_ssize_t left

    @cython.locals(taken=Py_ssize_t)
    cpdef Py_ssize_t take(self, list out, Py_ssize_t count) except -1
    @cython.locals(reader=RecordReader, taken=Py_ssize_t, headers=tuple, record=ConsumerRecord)
    cdef Py_ssize_t take_of_batch(self, list out, Py_ssize_t count) except -1
    cdef bint begin_batch(self) except -1
    @cython.locals(codec=int)
    cdef object plain_records(self)
    cpdef int end_batch(self) except -1
    cpdef int move_to(self, int64_t offset) except -1
    @cython.locals(length=int64_t)
    cpdef bint next_batch(self) except -1
    @cython.locals(at=Py_ssize_t, delta=int64_t)
    cdef int read_header(self, int64_t length) except -1
    @cython.locals(crc=int64_t)
    cdef int check_crc(self) except -1
    cdef int64_t producer_id(self) except? -998877
    cdef int note_aborted(self) except -1
    cdef int note_skipped(self) except -1
    @cython.locals(reader=RecordReader)
    cdef int note_marker(self) except -1


@cython.final
cdef class BatchesEnd:
    cdef readonly int64_t next_offset
    cdef readonly Py_ssize_t size
    cdef readonly int32_t leader_epoch


@cython.locals(end=BatchesEnd, size=Py_ssize_t, length=int64_t, base_offset=int64_t, delta=int64_t)
cpdef BatchesEnd find_end(const unsigned char[::1] data)

@cython.locals(number=int64_t, index=Py_ssize_t)
cdef int64_t read_number(const unsigned char[::1] data, Py_ssize_t at, Py_ssize_t size) except? -998877

@cython.locals(index=Py_ssize_t, record=ConsumerRecord)
cpdef Py_ssize_t deserialize(list records, Py_ssize_t first, object key, object value) except -1
