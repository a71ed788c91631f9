# C types for kernel_check.py, like kernel.pxd for kernel.py, and its fast loop, which only makes sense in C.

cimport cython
from libc.stdint cimport int64_t

from tidelog.records.kernel cimport RecordReader
from tidelog.records.kernel_fill cimport skip_headers, take_part, take_varint

cdef int64_t INT64_MAX
cdef int64_t NO_TIMESTAMP
cdef bint IS_COMPILED


@cython.final
cdef class RecordsScan:
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t min_timestamp
    cdef readonly Py_ssize_t index_of_max_timestamp
    cdef readonly list keyless_indexes


@cython.locals(scan=RecordsScan, is_scanned=bint)
cpdef RecordsScan scan_records(
    const unsigned char[::1] data, Py_ssize_t count, int64_t base_timestamp, Py_ssize_t keyless_indexes_max
)

@cython.locals(reader=RecordReader, index=Py_ssize_t, position=Py_ssize_t)
cdef int scan_slowly(
    RecordsScan scan,
    const unsigned char[::1] data,
    Py_ssize_t count,
    int64_t base_timestamp,
    Py_ssize_t keyless_indexes_max,
) except -1


# Scan valid records; False if anything is wrong or, if keys are required, one is missing.
cdef inline bint scan_fast(
    RecordsScan scan, const unsigned char[::1] data, Py_ssize_t count, int64_t base_timestamp, bint needs_keys
) except -1:
    cdef Py_ssize_t size = data.shape[0]
    cdef Py_ssize_t index, index_of_max = 0
    cdef int64_t length, timestamp_delta, offset_delta, part_length, headers_count, timestamp
    cdef int64_t max_timestamp = 0, min_timestamp = scan.min_timestamp
    cdef int64_t furthest = <int64_t>1 << 61  # two of these can be added; no real timestamp is as large
    cdef const unsigned char* at
    cdef const unsigned char* end
    cdef const unsigned char* limit
    cdef const unsigned char* part
    cdef bint is_sound = True
    if count <= 0 or count > size // 7 or base_timestamp > furthest or base_timestamp < -furthest:
        return False
    at = &data[0]
    limit = at + size
    with nogil:
        for index in range(count):
            is_sound = False
            at = take_varint(at, limit, 5, 0x0F, &length)
            if at == NULL or length < 6 or length > limit - at:
                break
            end = at + length
            if at[0] >= 0x80:  # the attributes, see kernel_check.py
                break
            at = take_varint(at + 1, end, 10, 0x01, &timestamp_delta)
            if at == NULL or timestamp_delta > furthest or timestamp_delta < -furthest:
                break
            at = take_varint(at, end, 5, 0x0F, &offset_delta)
            if at == NULL or offset_delta != index:
                break
            at = take_part(at, end, &part, &part_length)
            if at == NULL or (needs_keys and part_length < 0):
                break
            at = take_part(at, end, &part, &part_length)
            if at == NULL:
                break
            at = take_varint(at, end, 5, 0x0F, &headers_count)
            if at == NULL or headers_count < 0 or headers_count > (end - at) // 2:
                break
            if headers_count > 0:
                at = skip_headers(at, end, headers_count)
                if at == NULL:
                    break
            if at != end:
                break
            timestamp = base_timestamp + timestamp_delta
            if index == 0 or timestamp > max_timestamp:
                max_timestamp = timestamp
                index_of_max = index
            if timestamp < min_timestamp and timestamp != -1:
                min_timestamp = timestamp
            is_sound = True
    if not is_sound or at != limit:
        return False
    scan.max_timestamp = max_timestamp
    scan.min_timestamp = min_timestamp
    scan.index_of_max_timestamp = index_of_max
    return True
