"""Avro with a schema registry, by fastavro.

What always holds: the bytes are those of Confluent's serializers, including their quirks (a schema of plain `bytes` has
no length before its value). A reader's schema is resolved against the writer's by Avro's rules: added fields take their
defaults, removed fields are skipped, numbers are widened.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from tidelog.client.errors import ConfigError, SerializationError
from tidelog.client.serialization.bounded_cache import BoundedCache
from tidelog.client.serialization.contract import missing_extra
from tidelog.client.serialization.objects import Builder, to_plain
from tidelog.client.serialization.registry import SchemaRegistry
from tidelog.client.serialization.schema import Schema, SchemaType
from tidelog.client.serialization.schema_choice import CACHE_SIZE, SchemaOptions
from tidelog.client.serialization.schema_serializer import SchemaDeserializer, SchemaSerializer, referenced
from tidelog.client.serialization.wire_format import PREFIX_BYTES, schema_id_of

try:
    import fastavro
    import fastavro.repository
    import fastavro.schema
    import fastavro.validation
except ImportError as missing:
    raise missing_extra("AvroSerializer", "fastavro", "avro") from missing

T = TypeVar("T")

# A schema as JSON text, as the parsed JSON, or with references.
AvroSchema = str | Mapping[str, Any] | Sequence[Any] | Schema

# A schema parsed by fastavro.
_Parsed = Any


class AvroSerializer(SchemaSerializer[T, _Parsed]):
    """Serializes a dict, a dataclass, or the result of `to_dict` as Avro.

    `strict` rejects fields that the schema does not have. Options are those of `SchemaOptions`.
    """

    @overload
    def __init__(
        self: AvroSerializer[Any],
        registry: SchemaRegistry,
        schema: AvroSchema | None = None,
        *,
        strict: bool = False,
        **options: Unpack[SchemaOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: AvroSerializer[T],
        registry: SchemaRegistry,
        schema: AvroSchema | None = None,
        *,
        to_dict: Callable[[T], Any],
        strict: bool = False,
        **options: Unpack[SchemaOptions],
    ) -> None: ...
    def __init__(
        self,
        registry: SchemaRegistry,
        schema: AvroSchema | None = None,
        *,
        to_dict: Callable[[Any], Any] | None = None,
        strict: bool = False,
        **options: Unpack[SchemaOptions],
    ) -> None:
        super().__init__(registry, to_dict, **options)
        self._strict = strict
        self._own = None if schema is None else schema_of(schema)
        if self._own is None and self._choice.takes_own_schema:
            raise ConfigError("AvroSerializer needs a schema, unless use_latest_version or schema_id gives it one")
        self._name = None if self._own is None else _name_of(self._own)

    def _own_schema(self) -> Schema:
        assert self._own is not None, "the constructor asks for a schema where one is needed"
        return self._own

    def _record_name(self) -> str | None:
        return self._name

    def _parse(self, schema: Schema) -> _Parsed:
        return parse(self._choice.registry, schema)

    def _write(self, start: bytes, parsed: _Parsed, value: T) -> bytes:
        plain = to_plain(value) if self._to_dict is None else self._to_dict(value)
        if _is_plain_bytes(parsed):
            return start + bytes(plain)
        buffer = io.BytesIO()
        buffer.write(start)
        try:
            fastavro.schemaless_writer(buffer, parsed, plain, strict=self._strict)
        except Exception as error:
            raise SerializationError(_what_does_not_fit(parsed, plain, error)) from error
        return buffer.getvalue()


class AvroDeserializer(SchemaDeserializer[T]):
    """Deserializes Avro to dicts, lists and plain values, or to what `into` makes of them.

    With a `reader_schema`, values have its form, whatever schema they were written with. With `return_record_name`,
    records in unions are returned as (name, dict).
    """

    @overload
    def __init__(
        self: AvroDeserializer[Any],
        registry: SchemaRegistry,
        reader_schema: AvroSchema | None = None,
        *,
        is_key: bool = False,
        return_record_name: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: AvroDeserializer[T],
        registry: SchemaRegistry,
        reader_schema: AvroSchema | None = None,
        *,
        into: Builder[T],
        is_key: bool = False,
        return_record_name: bool = False,
    ) -> None: ...
    def __init__(
        self,
        registry: SchemaRegistry,
        reader_schema: AvroSchema | None = None,
        *,
        into: Builder[Any] | None = None,
        is_key: bool = False,
        return_record_name: bool = False,
    ) -> None:
        super().__init__(into, is_key)
        self._registry = registry
        self._reader = None if reader_schema is None else parse(registry, schema_of(reader_schema))
        self._return_record_name = return_record_name
        self._writers: BoundedCache[int, _Parsed] = BoundedCache(CACHE_SIZE)

    def _read(self, data: bytes) -> Any:
        schema_id = schema_id_of(data)
        writer = self._writers.get_or_load(schema_id, lambda: self._writer(schema_id))
        if _is_plain_bytes(writer):
            return data[PREFIX_BYTES:]
        buffer = io.BytesIO(data)
        buffer.seek(PREFIX_BYTES)
        try:
            return fastavro.schemaless_reader(buffer, writer, self._reader, return_record_name=self._return_record_name)
        except EOFError as error:
            raise SerializationError(f"they end too early for schema {schema_id}") from error

    def _writer(self, schema_id: int) -> _Parsed:
        schema = self._registry.schema(schema_id)
        if schema.type is not SchemaType.AVRO:
            raise SerializationError(f"schema {schema_id} is of type {schema.type}, not AVRO")
        return parse(self._registry, schema)


def schema_of(schema: AvroSchema) -> Schema:
    """The schema in the registry's form, checked to be JSON."""
    if isinstance(schema, Schema):
        given = schema
    elif isinstance(schema, str):
        given = Schema(schema.strip())
    else:
        given = Schema(json.dumps(schema))
    if given.type is not SchemaType.AVRO:
        raise ConfigError(f"Avro takes a schema of type AVRO, not {given.type}")
    try:
        json.loads(given.text)
    except ValueError as error:
        raise ConfigError(f"an Avro schema must be JSON: {error}") from error
    return given


def parse(registry: SchemaRegistry, schema: Schema) -> _Parsed:
    """The schema in fastavro's form, with all schemas it refers to included."""
    named: dict[str, Any] = {}
    for reference, needed in referenced(registry, schema):
        definition = json.loads(needed.text)
        named[reference.name] = definition
        # Other schemas may use it by its full name, whatever this reference calls it.
        if isinstance(definition, dict) and "name" in definition:
            named.setdefault(_full_name(definition), definition)
    try:
        if not named:
            return fastavro.parse_schema(json.loads(schema.text))
        return fastavro.schema.load_schema("", repo=_Definitions(named, json.loads(schema.text)))
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, KeyError, TypeError) as error:
        raise SerializationError(f"the Avro schema can't be used: {type(error).__name__}: {error}") from error


class _Definitions(fastavro.repository.AbstractSchemaRepository):
    """Schemas by name for fastavro, which inserts each where it is first used; the empty name is the schema itself."""

    def __init__(self, named: Mapping[str, Any], root: Any) -> None:
        super().__init__()
        self._texts = {name: json.dumps(definition) for name, definition in {**named, "": root}.items()}

    def load(self, name: str) -> Any:
        # fastavro changes its argument, so it gets a fresh copy each time.
        text = self._texts.get(name)
        return None if text is None else json.loads(text)


def _is_plain_bytes(parsed: _Parsed) -> bool:
    return parsed == "bytes" or (isinstance(parsed, dict) and parsed.get("type") == "bytes")


def _name_of(schema: Schema) -> str | None:
    """The full name of a record, enum or fixed; for a plain type, the type; none for a union."""
    definition = json.loads(schema.text)
    if isinstance(definition, str):
        return definition
    if isinstance(definition, dict):
        return _full_name(definition) if "name" in definition else str(definition.get("type"))
    return None


def _full_name(definition: Mapping[str, Any]) -> str:
    name, namespace = str(definition["name"]), definition.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _what_does_not_fit(parsed: _Parsed, plain: Any, error: Exception) -> str:
    """Names the field that does not fit, which fastavro's writer seldom does but its checker does."""
    reason = f"{type(error).__name__}: {error}"
    try:
        fastavro.validation.validate(plain, parsed)
    except fastavro.validation.ValidationError as found:
        reason = "; ".join(str(problem) for problem in found.errors)
    except (AttributeError, KeyError, TypeError, ValueError):
        # The checker failed in the same way as the writer, whose message is the better one then.
        pass
    return f"the value does not fit the schema: {reason}"
