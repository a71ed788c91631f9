"""The wire types of Kafka's protocol, as annotations that a type checker reads as plain Python types.

In a declaration such as `generation_id: Int32`, mypy sees an `int` and the codec sees the attached `Wire`. A type
written as `X | None` may be null on the wire; `list[X]` is an array. Whether lengths have their classic or compact form
is not part of the type: it follows from the message's flexible versions.

This module only describes the types. The codecs do the conversions.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID


class RecordsSlice(Protocol):
    """Records in a file that are sent straight from it: a part of an encoded message without bytes in memory."""

    @property
    def size_bytes(self) -> int: ...


Part: TypeAlias = bytes | bytearray | memoryview | RecordsSlice


class Wire(NamedTuple):
    """A type on the wire. Types of fixed size have a `struct` code; the others have only a name."""

    name: str
    code: str = ""
    size_bytes: int = 0


Bool = Annotated[bool, Wire("bool", "?", 1)]
Int8 = Annotated[int, Wire("int8", "b", 1)]
Int16 = Annotated[int, Wire("int16", "h", 2)]
Int32 = Annotated[int, Wire("int32", "i", 4)]
Int64 = Annotated[int, Wire("int64", "q", 8)]
Uint16 = Annotated[int, Wire("uint16", "H", 2)]
Uint32 = Annotated[int, Wire("uint32", "I", 4)]
Float64 = Annotated[float, Wire("float64", "d", 8)]
Uuid = Annotated[UUID, Wire("uuid", "16s", 16)]
String = Annotated[str, Wire("string")]
Bytes = Annotated[bytes, Wire("bytes")]
# Decoding yields a memoryview into the input, or None; encoding takes any of these.
Records = Annotated[Part, Wire("records")]

STRING_LENGTH_MAX: Final = 0x7FFF  # bytes; the most that the classic form can express, kept for the compact form
