"""The common part of serializers and deserializers with a registry: None, errors that name their place, and caches.

What always holds: every failure is a `SerializationError` that names the topic, and whether it is the key or the value.
Errors from the registry keep their own type, so that a program can recognize a temporary one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, Unpack

from tidelog.client.errors import ClientError, SerializationError
from tidelog.client.serialization.bounded_cache import BoundedCache
from tidelog.client.serialization.contract import Headers
from tidelog.client.serialization.objects import Builder, builder_of
from tidelog.client.serialization.registry import SchemaRegistry
from tidelog.client.serialization.registry_errors import SchemaRegistryError
from tidelog.client.serialization.schema import Schema, SchemaReference
from tidelog.client.serialization.schema_choice import CACHE_SIZE, SchemaChoice, SchemaOptions, place
from tidelog.client.serialization.wire_format import prefix

T = TypeVar("T")
ParsedT = TypeVar("ParsedT")

_REASON_CHARACTERS = 300  # how much of a library's message is shown, so that an error stays on one line


class SchemaSerializer(ABC, Generic[T, ParsedT]):
    """Writes values with a registered schema; subclasses define the format."""

    # Whether to request schemas in encoded form, which only Protobuf has.
    _asks_for_serialized = False

    def __init__(
        self, registry: SchemaRegistry, to_dict: Callable[[T], Any] | None = None, **options: Unpack[SchemaOptions]
    ) -> None:
        self._to_dict = to_dict
        self._choice = SchemaChoice(registry, serialized=self._asks_for_serialized, **options)
        self._ready: BoundedCache[str, tuple[bytes, ParsedT]] = BoundedCache(CACHE_SIZE)
        self._parsed: BoundedCache[int, ParsedT] = BoundedCache(CACHE_SIZE)

    def __call__(self, topic: str, value: T | None, headers: Headers = (), /) -> bytes | None:
        if value is None:
            return None
        try:
            start, parsed = self._schema_for(topic)
            return self._write(start, parsed, value)
        except Exception as error:
            raise _told_at(place(topic, self._choice.is_key), error) from error

    def prepare(self, topic: str) -> None:
        """Request everything that the first record of a topic would need from the registry.

        An asyncio program does this in a thread before it sends, so that its loop never waits for the registry.
        """
        try:
            self._schema_for(topic)
        except Exception as error:
            raise _told_at(place(topic, self._choice.is_key), error) from error

    def _schema_for(self, topic: str) -> tuple[bytes, ParsedT]:
        """The prefix of a value, and the schema it is written with."""
        if self._choice.may_change:
            return self._choose(topic)
        return self._ready.get_or_load(topic, lambda: self._choose(topic))

    def _choose(self, topic: str) -> tuple[bytes, ParsedT]:
        registered = self._choice.of(topic, self._record_name(), self._own_schema)
        parsed = self._parsed.get_or_load(registered.id, lambda: self._parse(registered.schema))
        return prefix(registered.id), parsed

    @abstractmethod
    def _own_schema(self) -> Schema: ...

    @abstractmethod
    def _record_name(self) -> str | None: ...

    @abstractmethod
    def _parse(self, schema: Schema) -> ParsedT: ...

    @abstractmethod
    def _write(self, start: bytes, parsed: ParsedT, value: T) -> bytes: ...


class SchemaDeserializer(ABC, Generic[T]):
    """Reads values by the schema that their bytes name; subclasses define the format."""

    def __init__(self, into: Builder[Any] | None, is_key: bool) -> None:
        self._build = builder_of(into)
        self._is_key = is_key

    def __call__(self, topic: str, data: bytes | None, headers: Headers = (), /) -> T | None:
        if data is None:
            return None
        try:
            value = self._read(data)
        except Exception as error:
            where = f"{place(topic, self._is_key)}: can't deserialize {len(data)} bytes"
            raise _told_at(where, error) from error
        built: T = value if self._build is None else self._build(topic, value)
        return built

    @abstractmethod
    def _read(self, data: bytes) -> Any: ...


def referenced(
    registry: SchemaRegistry, schema: Schema, *, serialized: bool = False
) -> Iterator[tuple[SchemaReference, Schema]]:
    """All schemas that one refers to, each once, and before those that refer to it."""
    seen: set[tuple[str, str, int]] = set()

    def below(needing: Schema) -> Iterator[tuple[SchemaReference, Schema]]:
        for reference in needing.references:
            key = (reference.name, reference.subject, reference.version)
            if key in seen:
                continue
            seen.add(key)
            needed = registry.version(reference.subject, reference.version, serialized=serialized).schema
            yield from below(needed)
            yield reference, needed

    return below(schema)


def _told_at(where: str, error: Exception) -> SerializationError:
    if isinstance(error, SchemaRegistryError):
        return error.told_at(where)
    reason = " ".join(str(error).split()) or type(error).__name__
    if len(reason) > _REASON_CHARACTERS:
        reason = f"{reason[:_REASON_CHARACTERS]}..."
    if not isinstance(error, ClientError):
        # A library's message seldom says what kind of problem it is.
        reason = f"{type(error).__name__}: {reason}" if reason != type(error).__name__ else reason
    return SerializationError(f"{where}: {reason}")
