"""How serialized values name their schema: a zero byte, the schema's id in four bytes, then the value.

For Protobuf, the path to the message in its file follows the id, as a list of zigzag varints with its length before it;
the path [0], the first message, is the single byte 0. All as Confluent's serializers write it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.client.errors import SerializationError

MAGIC_BYTE = 0
PREFIX_BYTES = 5

# Messages are nested a few levels deep; a longer path is invalid.
_INDEXES_MAX = 64
_VARINT_BYTES_MAX = 5


def prefix(schema_id: int) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big")


def schema_id_of(data: bytes) -> int:
    """The id of the schema; the value starts after the first PREFIX_BYTES."""
    if len(data) < PREFIX_BYTES or data[0] != MAGIC_BYTE:
        raise SerializationError(
            "they begin with no schema id (a zero, then four bytes), so no serializer with a schema registry wrote them"
        )
    return int.from_bytes(data[1:PREFIX_BYTES], "big")


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """The path to a message, as written after the schema id."""
    if list(indexes) == [0]:
        return b"\x00"
    encoded = bytearray()
    for number in (len(indexes), *indexes):
        rest = number << 1
        while rest > 0x7F:
            encoded.append(rest & 0x7F | 0x80)
            rest >>= 7
        encoded.append(rest)
    return bytes(encoded)


def decode_indexes(data: bytes, position: int) -> tuple[list[int], int]:
    """The path to a message at a position, and the position after it."""
    count, position = _decode_varint(data, position)
    if count == 0:
        return [0], position
    if not 0 < count <= _INDEXES_MAX:
        raise SerializationError(f"the path to their message claims {count} levels")
    indexes = []
    for _ in range(count):
        index, position = _decode_varint(data, position)
        if index < 0:
            raise SerializationError("the path to their message has a negative index")
        indexes.append(index)
    return indexes, position


def _decode_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for taken, byte in enumerate(data[position : position + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * taken)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + taken + 1
    raise SerializationError("the path to their message is cut off")
