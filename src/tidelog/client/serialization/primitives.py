"""Strings, numbers, UUIDs and bytes, in the format of Apache Kafka's own serializers for these types.

What always holds: numbers are big-endian and of a fixed width, as in Java. A value that does not fit raises an error
and is never truncated.
"""

from __future__ import annotations

import codecs
import struct
import uuid
from typing import ClassVar, Generic, TypeVar

from tidelog.client.errors import ConfigError
from tidelog.client.serialization.contract import Headers, cannot_deserialize, cannot_serialize

NumberT = TypeVar("NumberT", int, float)


class StringSerializer:
    """A str in an encoding, by default UTF-8."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding: str = _known(encoding)

    def __call__(self, topic: str, value: str | None, headers: Headers = (), /) -> bytes | None:
        if value is None:
            return None
        try:
            return value.encode(self.encoding)
        except (AttributeError, UnicodeError) as error:
            raise cannot_serialize(topic, value, f"it takes a str that {self.encoding} can hold") from error


class StringDeserializer:
    """A str from bytes in an encoding, by default UTF-8."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding: str = _known(encoding)

    def __call__(self, topic: str, data: bytes | None, headers: Headers = (), /) -> str | None:
        if data is None:
            return None
        try:
            return data.decode(self.encoding)
        except UnicodeError as error:
            raise cannot_deserialize(topic, data, f"they are not {self.encoding} ({error})") from error


class BytesSerializer:
    """Bytes unchanged; a bytearray or memoryview is copied."""

    def __call__(
        self, topic: str, value: bytes | bytearray | memoryview | None, headers: Headers = (), /
    ) -> bytes | None:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise cannot_serialize(topic, value, "it takes bytes, a bytearray or a memoryview")


class BytesDeserializer:
    """The bytes unchanged."""

    def __call__(self, topic: str, data: bytes | None, headers: Headers = (), /) -> bytes | None:
        return data


class UUIDSerializer:
    """A UUID in its text form of 36 characters."""

    def __call__(self, topic: str, value: uuid.UUID | None, headers: Headers = (), /) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, uuid.UUID):
            raise cannot_serialize(topic, value, "it takes a uuid.UUID")
        return str(value).encode("ascii")


class UUIDDeserializer:
    """A UUID from its text form."""

    def __call__(self, topic: str, data: bytes | None, headers: Headers = (), /) -> uuid.UUID | None:
        if data is None:
            return None
        try:
            return uuid.UUID(data.decode("ascii"))
        except ValueError as error:
            raise cannot_deserialize(topic, data, "they are not the text of a UUID") from error


class BooleanSerializer:
    """True and False as one byte, 1 and 0."""

    def __call__(self, topic: str, value: bool | None, headers: Headers = (), /) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, bool):
            raise cannot_serialize(topic, value, "it takes True or False")
        return b"\x01" if value else b"\x00"


class BooleanDeserializer:
    """True or False from one byte."""

    def __call__(self, topic: str, data: bytes | None, headers: Headers = (), /) -> bool | None:
        if data is None:
            return None
        if data not in (b"\x00", b"\x01"):
            raise cannot_deserialize(topic, data, "a boolean is one byte, 0 or 1")
        return data == b"\x01"


class _NumberSerializer(Generic[NumberT]):
    _layout: ClassVar[struct.Struct]
    _takes: ClassVar[str]

    def __call__(self, topic: str, value: NumberT | None, headers: Headers = (), /) -> bytes | None:
        if value is None:
            return None
        try:
            return self._layout.pack(value)
        except (struct.error, OverflowError) as error:
            raise cannot_serialize(topic, value, f"it takes {self._takes}") from error


class _NumberDeserializer(Generic[NumberT]):
    _layout: ClassVar[struct.Struct]

    def __call__(self, topic: str, data: bytes | None, headers: Headers = (), /) -> NumberT | None:
        if data is None:
            return None
        try:
            number: NumberT = self._layout.unpack(data)[0]
        except struct.error as error:
            name = type(self).__name__.removesuffix("Deserializer")
            raise cannot_deserialize(topic, data, f"{name} takes {self._layout.size}") from error
        return number


class ShortSerializer(_NumberSerializer[int]):
    """An int in two bytes, like Java's ShortSerializer."""

    _layout = struct.Struct(">h")
    _takes = "an int of 16 bits"


class ShortDeserializer(_NumberDeserializer[int]):
    """An int from two bytes."""

    _layout = struct.Struct(">h")


class IntegerSerializer(_NumberSerializer[int]):
    """An int in four bytes, like Java's IntegerSerializer."""

    _layout = struct.Struct(">i")
    _takes = "an int of 32 bits; LongSerializer takes 64"


class IntegerDeserializer(_NumberDeserializer[int]):
    """An int from four bytes."""

    _layout = struct.Struct(">i")


class LongSerializer(_NumberSerializer[int]):
    """An int in eight bytes, like Java's LongSerializer."""

    _layout = struct.Struct(">q")
    _takes = "an int of 64 bits"


class LongDeserializer(_NumberDeserializer[int]):
    """An int from eight bytes."""

    _layout = struct.Struct(">q")


class FloatSerializer(_NumberSerializer[float]):
    """A number in four bytes of IEEE 754, like Java's FloatSerializer; Python's floats lose precision in it."""

    _layout = struct.Struct(">f")
    _takes = "a number that a float of 32 bits can hold; DoubleSerializer takes 64"


class FloatDeserializer(_NumberDeserializer[float]):
    """A float from four bytes."""

    _layout = struct.Struct(">f")


class DoubleSerializer(_NumberSerializer[float]):
    """A number in eight bytes of IEEE 754, like Java's DoubleSerializer; a Python float is kept exactly."""

    _layout = struct.Struct(">d")
    _takes = "a number that a float can hold"


class DoubleDeserializer(_NumberDeserializer[float]):
    """A float from eight bytes."""

    _layout = struct.Struct(">d")


def _known(encoding: str) -> str:
    try:
        return codecs.lookup(encoding).name
    except LookupError as error:
        raise ConfigError(f"no encoding is called {encoding!r}; utf-8 is the usual one") from error
