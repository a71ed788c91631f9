"""JSON with a schema in a registry, by orjson and jsonschema.

What always holds: the bytes are those of Confluent's JSON Schema serializer. A value is checked against its schema
before it is written and, by default, when it is read. A schema that names no draft is treated as draft 7, as the
registry does. References are resolved only in the registry: nothing is fetched from the web.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, overload

import orjson

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
    import jsonschema
    import jsonschema.exceptions
    import jsonschema.protocols
    import referencing
    import referencing.exceptions
    import referencing.jsonschema
except ImportError as missing:
    raise missing_extra("JsonSchemaSerializer", "jsonschema", "json-schema") from missing

T = TypeVar("T")

# A schema as JSON text, as the parsed JSON, or with references.
JsonSchema = str | Mapping[str, Any] | Schema

_Validator = jsonschema.protocols.Validator


class JsonSchemaSerializer(SchemaSerializer[T, _Validator]):
    """Serializes a dict, a dataclass, or the result of `to_dict` as JSON. Options are those of `SchemaOptions`."""

    @overload
    def __init__(
        self: JsonSchemaSerializer[Any],
        registry: SchemaRegistry,
        schema: JsonSchema | None = None,
        *,
        validate: bool = True,
        **options: Unpack[SchemaOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: JsonSchemaSerializer[T],
        registry: SchemaRegistry,
        schema: JsonSchema | None = None,
        *,
        to_dict: Callable[[T], Any],
        validate: bool = True,
        **options: Unpack[SchemaOptions],
    ) -> None: ...
    def __init__(
        self,
        registry: SchemaRegistry,
        schema: JsonSchema | None = None,
        *,
        to_dict: Callable[[Any], Any] | None = None,
        validate: bool = True,
        **options: Unpack[SchemaOptions],
    ) -> None:
        super().__init__(registry, to_dict, **options)
        self._validate = validate
        self._own = None if schema is None else schema_of(schema)
        if self._own is None and self._choice.takes_own_schema:
            raise ConfigError(
                "JsonSchemaSerializer needs a schema, unless use_latest_version or schema_id gives it one"
            )
        definition = None if self._own is None else orjson.loads(self._own.text)
        self._name = definition.get("title") if isinstance(definition, dict) else None

    def _own_schema(self) -> Schema:
        assert self._own is not None, "the constructor asks for a schema where one is needed"
        return self._own

    def _record_name(self) -> str | None:
        return self._name

    def _parse(self, schema: Schema) -> _Validator:
        return parse(self._choice.registry, schema)

    def _write(self, start: bytes, parsed: _Validator, value: T) -> bytes:
        plain = to_plain(value) if self._to_dict is None else self._to_dict(value)
        if self._validate:
            check(parsed, plain)
        return start + orjson.dumps(plain)


class JsonSchemaDeserializer(SchemaDeserializer[T]):
    """Deserializes JSON, checked against `reader_schema`, or else against the schema it was written with.

    Without `validate` nothing is checked, and the registry is not asked.
    """

    @overload
    def __init__(
        self: JsonSchemaDeserializer[Any],
        registry: SchemaRegistry,
        reader_schema: JsonSchema | None = None,
        *,
        is_key: bool = False,
        validate: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self: JsonSchemaDeserializer[T],
        registry: SchemaRegistry,
        reader_schema: JsonSchema | None = None,
        *,
        into: Builder[T],
        is_key: bool = False,
        validate: bool = True,
    ) -> None: ...
    def __init__(
        self,
        registry: SchemaRegistry,
        reader_schema: JsonSchema | None = None,
        *,
        into: Builder[Any] | None = None,
        is_key: bool = False,
        validate: bool = True,
    ) -> None:
        super().__init__(into, is_key)
        self._registry = registry
        self._reader = None if reader_schema is None else parse(registry, schema_of(reader_schema))
        self._validate = validate
        self._writers: BoundedCache[int, _Validator] = BoundedCache(CACHE_SIZE)

    def _read(self, data: bytes) -> Any:
        schema_id = schema_id_of(data)
        value = orjson.loads(memoryview(data)[PREFIX_BYTES:])
        if self._validate:
            check(self._reader or self._writers.get_or_load(schema_id, lambda: self._writer(schema_id)), value)
        return value

    def _writer(self, schema_id: int) -> _Validator:
        schema = self._registry.schema(schema_id)
        if schema.type is not SchemaType.JSON:
            raise SerializationError(f"schema {schema_id} is of type {schema.type}, not JSON")
        return parse(self._registry, schema)


def schema_of(schema: JsonSchema) -> Schema:
    """The schema in the registry's form, checked to be JSON."""
    if isinstance(schema, Schema):
        given = schema
    else:
        text = schema if isinstance(schema, str) else orjson.dumps(schema).decode()
        given = Schema(text, SchemaType.JSON)
    if given.type is not SchemaType.JSON:
        raise ConfigError(f"JSON Schema takes a schema of type JSON, not {given.type}")
    try:
        orjson.loads(given.text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"a JSON schema must be JSON: {error}") from error
    return given


def parse(registry: SchemaRegistry, schema: Schema) -> _Validator:
    """A validator for the schema, with all schemas it refers to included."""
    known: referencing.Registry[Any] = referencing.Registry()
    for reference, needed in referenced(registry, schema):
        resource = referencing.Resource.from_contents(
            orjson.loads(needed.text), default_specification=referencing.jsonschema.DRAFT7
        )
        known = known.with_resource(reference.name, resource)
    definition = orjson.loads(schema.text)
    cls = jsonschema.validators.validator_for(definition, default=jsonschema.Draft7Validator)
    try:
        cls.check_schema(definition)
    except jsonschema.exceptions.SchemaError as error:
        raise SerializationError(f"the JSON schema can't be used: at {error.json_path}: {error.message}") from error
    return cls(definition, registry=known)


def check(validator: _Validator, value: Any) -> None:
    """Raise SerializationError that names the field with the most relevant problem."""
    try:
        found = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except referencing.exceptions.Unresolvable as error:
        raise SerializationError(f"the JSON schema refers to {error.ref}, which is not among its references") from error
    if found is not None:
        raise SerializationError(f"the value does not fit the schema: {found.json_path}: {found.message}")
