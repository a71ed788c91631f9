# C types for kernel_fill.py, like kernel.pxd for kernel.py, and its fast loop, which only makes sense in C.

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy

from tidelog.records.kernel cimport RecordReader

cdef int64_t MICROSECONDS_PER_MILLISECOND
cdef int64_t TIMESTAMP_MS_MAX
cdef bint IS_COMPILED


@cython.final
cdef class BytesColumn:
    cdef int32_t[::1] offsets
    cdef unsigned char[::1] data
    cdef unsigned char[::1] validity
    cdef readonly Py_ssize_t end
    cdef readonly Py_ssize_t nulls

    cdef int put(self, Py_ssize_t row, const unsigned char[::1] source, Py_ssize_t start, Py_ssize_t length) except -1


@cython.final
cdef class RecordTable:
    cdef readonly BytesColumn keys
    cdef readonly BytesColumn values
    cdef int64_t[::1] offsets
    cdef int64_t[::1] timestamps
    cdef int32_t[::1] headers_offsets
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t headers


@cython.locals(is_filled=bint, reader=RecordReader)
cpdef int fill_table(
    RecordTable table,
    const unsigned char[::1] data,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    int64_t log_append_time,
    bint is_stamped,
    int64_t from_offset,
) except -1

@cython.locals(row=Py_ssize_t)
cdef int fill_slowly(
    RecordTable table, const unsigned char[::1] data, RecordReader reader, Py_ssize_t count, int64_t from_offset
) except -1


# A varint of at most `bytes_max` bytes, the last of which is at most `last_max`; NULL if it is not one.
cdef inline const unsigned char* take_varint(
    const unsigned char* at, const unsigned char* limit, int bytes_max, unsigned char last_max, int64_t* value
) noexcept nogil:
    cdef uint64_t raw
    cdef int number
    if at >= limit:
        return NULL
    raw = at[0]
    if raw >= 0x80:
        raw &= 0x7F
        number = 1
        while True:
            if at + number >= limit or number >= bytes_max:
                return NULL
            if number == bytes_max - 1 and at[number] > last_max:
                return NULL
            raw |= <uint64_t>(at[number] & 0x7F) << (7 * number)
            number += 1
            if at[number - 1] < 0x80:
                break
        at += number
    else:
        at += 1
    value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    return at


# A length, -1 for null, followed by that many bytes, which end before the limit; NULL if they do not.
cdef inline const unsigned char* take_part(
    const unsigned char* at, const unsigned char* limit, const unsigned char** start, int64_t* length
) noexcept nogil:
    at = take_varint(at, limit, 5, 0x0F, length)
    if at == NULL or length[0] < -1 or length[0] > limit - at:
        return NULL
    start[0] = at
    return at + length[0] if length[0] > 0 else at


cdef inline const unsigned char* skip_headers(
    const unsigned char* at, const unsigned char* limit, int64_t count
) noexcept nogil:
    cdef const unsigned char* start
    cdef int64_t length
    cdef int64_t index
    for index in range(count):
        at = take_part(at, limit, &start, &length)
        if at == NULL or length < 0:
            return NULL
        at = take_part(at, limit, &start, &length)
        if at == NULL:
            return NULL
    return at


# Fill the columns; False if anything is invalid, in which case no counters have changed.
cdef inline bint fill_fast(
    RecordTable table,
    const unsigned char[::1] data,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    int64_t log_append_time,
    bint is_stamped,
    int64_t from_offset,
) except -1:
    cdef Py_ssize_t size = data.shape[0]
    cdef Py_ssize_t row = table.rows
    cdef Py_ssize_t rows_end = row + count
    cdef BytesColumn keys = table.keys
    cdef BytesColumn values = table.values
    cdef Py_ssize_t key_end = keys.end, value_end = values.end
    cdef Py_ssize_t key_room = keys.data.shape[0], value_room = values.data.shape[0]
    cdef Py_ssize_t key_nulls = 0, value_nulls = 0, index
    cdef int64_t headers = table.headers
    cdef int64_t length, timestamp_delta, offset_delta, key_length, value_length, headers_count, offset, timestamp
    cdef const unsigned char* at
    cdef const unsigned char* end
    cdef const unsigned char* limit
    cdef const unsigned char* key
    cdef const unsigned char* value
    cdef bint is_sound = True
    if count <= 0 or size == 0 or count > size // 7 or base_offset < 0 or base_offset > (<int64_t>1 << 62):
        return False
    if base_timestamp > TIMESTAMP_MS_MAX or base_timestamp < -TIMESTAMP_MS_MAX or log_append_time > TIMESTAMP_MS_MAX:
        return False
    if log_append_time < -TIMESTAMP_MS_MAX or key_room == 0 or value_room == 0:
        return False
    if table.offsets.shape[0] < rows_end or table.timestamps.shape[0] < rows_end:
        return False
    if table.headers_offsets.shape[0] <= rows_end or keys.offsets.shape[0] <= rows_end:
        return False
    if values.offsets.shape[0] <= rows_end or keys.validity.shape[0] * 8 < rows_end:
        return False
    if values.validity.shape[0] * 8 < rows_end:
        return False
    cdef int64_t* offsets = &table.offsets[0]
    cdef int64_t* timestamps = &table.timestamps[0]
    cdef int32_t* headers_offsets = &table.headers_offsets[0]
    cdef int32_t* key_offsets = &keys.offsets[0]
    cdef int32_t* value_offsets = &values.offsets[0]
    cdef unsigned char* key_data = &keys.data[0]
    cdef unsigned char* value_data = &values.data[0]
    cdef unsigned char* key_validity = &keys.validity[0]
    cdef unsigned char* value_validity = &values.validity[0]
    at = &data[0]
    limit = at + size
    with nogil:
        for index in range(count):
            is_sound = False
            at = take_varint(at, limit, 5, 0x0F, &length)
            if at == NULL or length < 6 or length > limit - at:
                break
            end = at + length
            at = take_varint(at + 1, end, 10, 0x01, &timestamp_delta)
            if at == NULL:
                break
            at = take_varint(at, end, 5, 0x0F, &offset_delta)
            if at == NULL:
                break
            at = take_part(at, end, &key, &key_length)
            if at == NULL:
                break
            at = take_part(at, end, &value, &value_length)
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
            timestamp = log_append_time
            if not is_stamped:
                # Far beyond any real time; the other loop says what is wrong, if anything is.
                if timestamp_delta > TIMESTAMP_MS_MAX or timestamp_delta < -TIMESTAMP_MS_MAX:
                    break
                timestamp = base_timestamp + timestamp_delta
                if timestamp > TIMESTAMP_MS_MAX or timestamp < -TIMESTAMP_MS_MAX:
                    break
            is_sound = True
            offset = base_offset + offset_delta
            if offset < from_offset:
                continue
            if key_length >= 0:
                key_validity[row >> 3] |= 1 << (row & 7)
                if key_length > key_room - key_end:
                    is_sound = False
                    break
                memcpy(key_data + key_end, key, key_length)
                key_end += key_length
            else:
                key_validity[row >> 3] &= 0xFF ^ (1 << (row & 7))
                key_nulls += 1
            if value_length >= 0:
                value_validity[row >> 3] |= 1 << (row & 7)
                if value_length > value_room - value_end:
                    is_sound = False
                    break
                memcpy(value_data + value_end, value, value_length)
                value_end += value_length
            else:
                value_validity[row >> 3] &= 0xFF ^ (1 << (row & 7))
                value_nulls += 1
            offsets[row] = offset
            timestamps[row] = timestamp * 1000
            headers += headers_count
            row += 1
            key_offsets[row] = <int32_t>key_end
            value_offsets[row] = <int32_t>value_end
            headers_offsets[row] = <int32_t>headers
    if not is_sound or at != limit:
        return False
    table.rows = row
    table.headers = headers
    keys.end = key_end
    keys.nulls += key_nulls
    values.end = value_end
    values.nulls += value_nulls
    return True
