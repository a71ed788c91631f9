"""The small pieces that compiled codecs and headers share: varints, ids, and the errors that name the field."""

from __future__ import annotations

from typing import Final
from uuid import UUID, SafeUUID

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.errors import ProtocolError, TooManyElementsError
from tidelog.protocol.types import STRING_LENGTH_MAX, Part

ONE_BYTE: Final = tuple(bytes((number,)) for number in range(128))  # the varints that take one byte
_UVARINT_MAX: Final = 0xFFFFFFFF

ELEMENTS_MAX: Final = 20_000
"""How many elements the arrays of one request may have together, and tagged fields.

A broker reads and answers on its event loop: 20,000 partitions of a Fetch take it 100 ms of work, as many topics of a
Metadata request 70 ms, and a tiny element on the wire becomes 50 times its size in memory. Brokers hold thousands of
partitions.
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
        raise ProtocolError(f"{number} does not fit an unsigned varint")
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_uvarint(buffer: bytes | bytearray | memoryview, offset: int) -> tuple[int, int]:
    """The number and the offset after it. Raises IndexError at the end of the buffer."""
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
    """The compact length of a string: one more than its bytes, so that zero can stand for null."""
    if number > STRING_LENGTH_MAX + 1:
        raise ProtocolError(f"a string has {number - 1} bytes, more than {STRING_LENGTH_MAX}")
    return write_uvarint(number)


def error_text(message: str) -> bytes:
    """An error message as it is sent: what is too long for a person to read is cut off."""
    raw = message.encode()
    if len(raw) <= ERROR_MESSAGE_BYTES_MAX:
        return raw
    return raw[:ERROR_MESSAGE_BYTES_MAX].decode(errors="ignore").encode() + b"..."


def read_string_length(buffer: bytes | bytearray | memoryview, offset: int) -> tuple[int, int]:
    number, offset = read_uvarint(buffer, offset)
    if number > STRING_LENGTH_MAX + 1:
        raise ProtocolError(f"a string announces {number - 1} bytes, more than {STRING_LENGTH_MAX}")
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
    """The offset after a section of tagged fields of which none is known here."""
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
    return ProtocolError(f"{path} announces {length} where {left} bytes remain")


def elements_refused(path: str, elements_max: int) -> TooManyElementsError:
    return TooManyElementsError(f"{path} takes the request past {elements_max} elements")


def field_refused(path: str, version: int) -> ProtocolError:
    return ProtocolError(f"{path} is set, but version {version} cannot carry it")


def tag_refused(path: str) -> ProtocolError:
    return ProtocolError(f"{path} does not fill the size of its tagged field")
