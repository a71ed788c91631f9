"""What compiled codecs and headers share: varints, ids, and errors that name the field."""

from __future__ import annotations

from typing import Final
from uuid import UUID, SafeUUID

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.errors import ProtocolError, TooManyElementsError
from tidelog.protocol.types import STRING_LENGTH_MAX, Part

ONE_BYTE: Final = tuple(bytes((number,)) for number in range(128))  # the varints that take one byte
_UVARINT_MAX: Final = 0xFFFFFFFF

ELEMENTS_MAX: Final = 20_000
"""The most array elements and tagged fields that one request may have in total.

A broker decodes and answers requests on its event loop. 20,000 partitions in a Fetch take 100 ms of work, and as many
topics in a Metadata request 70 ms. A tiny element on the wire also takes 50 times its size in memory. Real brokers have
thousands of partitions, so more than this is not needed.
"""

ERROR_MESSAGE_BYTES_MAX: Final = 1000

_ZERO_ID: Final = bytes(16)

_new_object = object.__new__
_set_int = UUID.int.__set__  # type: ignore[attr-defined, misc]  # slots; writing them skips a slow __init__
_set_is_safe = UUID.is_safe.__set__  # type: ignore[attr-defined, misc]  # likewise


def write_uvarint(number: int) -> bytes:
    if 0 <= number < 128:
        return ONE_BYTE[number]
    if not 0 <= number <= _UVARINT_MAX:
        raise ProtocolError(f"{number} does not fit in an unsigned varint")
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_uvarint(buffer: bytes | bytearray | memoryview, offset: int) -> tuple[int, int]:
    """Return the number and the offset after it. Raises IndexError if the buffer ends first."""
    number = 0
    for shift in (0, 7, 14, 21, 28):
        byte = buffer[offset]
        offset += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if number > _UVARINT_MAX:
                break
            return number, offset
    raise ProtocolError("an unsigned varint has more than 32 bits")


def write_string_length(number: int) -> bytes:
    """Encode a compact string length, which is one more than the number of bytes so that zero can mean null."""
    if number > STRING_LENGTH_MAX + 1:
        raise ProtocolError(f"a string has {number - 1} bytes; the limit is {STRING_LENGTH_MAX}")
    return write_uvarint(number)


def error_text(message: str) -> bytes:
    """Encode an error message, truncated to a length that a person might read."""
    raw = message.encode()
    if len(raw) <= ERROR_MESSAGE_BYTES_MAX:
        return raw
    return raw[:ERROR_MESSAGE_BYTES_MAX].decode(errors="ignore").encode() + b"..."


def read_string_length(buffer: bytes | bytearray | memoryview, offset: int) -> tuple[int, int]:
    number, offset = read_uvarint(buffer, offset)
    if number > STRING_LENGTH_MAX + 1:
        raise ProtocolError(f"a string has a length of {number - 1} bytes; the limit is {STRING_LENGTH_MAX}")
    return number, offset


def uuid_from_bytes(raw: bytes) -> UUID:
    if raw == _ZERO_ID:
        return ZERO_UUID
    value = _new_object(UUID)
    _set_int(value, int.from_bytes(raw, "big"))
    _set_is_safe(value, SafeUUID.unknown)
    return value


def records_size_bytes(records: Part) -> int:
    if isinstance(records, bytes | bytearray):
        return len(records)
    if isinstance(records, memoryview):
        return records.nbytes
    return records.size_bytes


def skip_tags(buffer: bytes | bytearray | memoryview, offset: int, end: int) -> int:
    """Return the offset after a section of tagged fields, all of them unknown."""
    count, offset = read_uvarint(buffer, offset)
    if count > ELEMENTS_MAX:
        raise elements_refused("the tagged fields of the header", ELEMENTS_MAX)
    for _ in range(count):
        _, offset = read_uvarint(buffer, offset)
        size, offset = read_uvarint(buffer, offset)
        offset += size
        if offset > end:
            raise ProtocolError("a tagged field is longer than the remaining bytes")
    return offset


def null_refused(path: str) -> ProtocolError:
    return ProtocolError(f"{path} must not be null")


def length_refused(path: str, length: int, left: int) -> ProtocolError:
    return ProtocolError(f"{path} has a length of {length}, but only {left} bytes are left")


def elements_refused(path: str, elements_max: int) -> TooManyElementsError:
    return TooManyElementsError(f"with {path}, the request has more than {elements_max} elements")


def field_refused(path: str, version: int) -> ProtocolError:
    return ProtocolError(f"{path} is set, but version {version} does not have it")


def tag_refused(path: str) -> ProtocolError:
    return ProtocolError(f"{path} does not fill the size of its tagged field")
