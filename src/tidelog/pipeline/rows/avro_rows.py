"""Converts Avro values to rows and rows to Avro values, with fastavro on executors.

What always holds: the columns are derived from the reader's schema on the driver, before anything runs; schemas for
which Spark has no type (a union of several types, a recursive schema) are rejected there.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidelog.client.errors import ClientError
from tidelog.client.serialization.avro import AvroDeserializer, AvroSerializer
from tidelog.pipeline.errors import DeclarationError
from tidelog.pipeline.formats import Avro
from tidelog.pipeline.rows.arrow_rows import Convert, parse_values, registry_client, registry_text

_PLAIN: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_LOGICAL: dict[str, DataType] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
    "uuid": StringType(),
    "time-millis": StringType(),
    "time-micros": StringType(),
}
_WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


def avro_reader(format_: Avro, topics: Sequence[str], where: str) -> tuple[StructType, Callable[[pa.Array], pa.Array]]:
    """The columns, and the function that parses values into them."""
    from tidelog.pipeline.rows.decoding import ERROR

    text = _schema_text(format_, topics[0] if topics else "", where)
    schema = spark_type(text, where)
    registry = None if format_.registry is None else registry_text(format_.registry)
    kind = to_arrow_type(StructType([*schema.fields, StructField(ERROR, StringType())]), timezone="UTC")
    return schema, AvroReader(text, registry, kind, ERROR).parse


def avro_writer(format_: Avro, topic: str, where: str) -> Callable[[pa.Array], pa.Array]:
    """The function that converts rows to values."""
    text = _schema_text(format_, topic, where)
    spark_type(text, where)
    registry = None if format_.registry is None else registry_text(format_.registry)
    return AvroWriter(text, registry, topic, format_.schema is not None).write


def _schema_text(format_: Avro, topic: str, where: str) -> str:
    if format_.schema is not None:
        text = format_.schema if isinstance(format_.schema, str) else json.dumps(format_.schema)
    else:
        assert format_.registry is not None, "the declaration asks for a schema or a registry"
        subject = format_.subject or f"{topic}-value"
        try:
            text = registry_client(registry_text(format_.registry)).latest(subject).schema.text
        except ClientError as error:
            raise DeclarationError(f"{where}: can't get the schema of {subject}: {error}") from error
    try:
        fastavro.parse_schema(json.loads(text))
    except Exception as error:
        raise DeclarationError(f"{where}: the Avro schema can't be used: {type(error).__name__}: {error}") from error
    return text


@dataclass(frozen=True)
class AvroReader:
    """Parses values on executors."""

    schema: str
    registry: tuple[tuple[str, Any], ...] | None
    kind: pa.StructType
    error: str

    def parse(self, values: pa.Array) -> pa.Array:
        return parse_values(values, _parser(self.schema, self.registry), self.kind, self.error)


@dataclass(frozen=True)
class AvroWriter:
    """Creates values on executors."""

    schema: str
    registry: tuple[tuple[str, Any], ...] | None
    topic: str
    has_own_schema: bool

    def write(self, rows: pa.Array) -> pa.Array:
        make = _maker(self.schema, self.registry, self.topic, self.has_own_schema)
        return pa.array([None if row is None else make(row) for row in rows.to_pylist()], pa.binary())


@lru_cache(maxsize=32)
def _parser(schema: str, registry: tuple[tuple[str, Any], ...] | None) -> Callable[[bytes], dict[str, Any]]:
    convert = _conversion(json.loads(schema)) or (lambda row: row)
    if registry is not None:
        deserializer = AvroDeserializer(registry_client(registry), schema)
        return lambda data: convert(deserializer("", data))
    parsed = fastavro.parse_schema(_with_numbers(json.loads(schema)))

    def parse(data: bytes) -> dict[str, Any]:
        buffer = io.BytesIO(data)
        row = fastavro.schemaless_reader(buffer, parsed, None)
        if buffer.tell() != len(data):
            raise ValueError(f"there are {len(data) - buffer.tell()} extra bytes after the record")
        made: dict[str, Any] = convert(row)
        return made

    return parse


# Times that are numbers in Arrow as well, so they don't have to become Python objects, which takes a third of the time.
_NUMBERS = frozenset({"timestamp-micros", "local-timestamp-micros", "date"})


def _with_numbers(schema: Any) -> Any:
    """The schema with these times as plain numbers."""
    if isinstance(schema, list):
        return [_with_numbers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") in _NUMBERS:
        return schema["type"]
    nested = {name: _with_numbers(schema[name]) for name in ("type", "items", "values", "fields") if name in schema}
    return {**schema, **nested}


@lru_cache(maxsize=32)
def _maker(
    schema: str, registry: tuple[tuple[str, Any], ...] | None, topic: str, has_own_schema: bool
) -> Callable[[dict[str, Any]], bytes]:
    if registry is not None:
        client = registry_client(registry)
        if has_own_schema:
            serializer = AvroSerializer(client, schema)
        else:
            serializer = AvroSerializer(client, use_latest_version=True)

        def serialize(row: dict[str, Any]) -> bytes:
            data = serializer(topic, _with_maps(row))
            assert data is not None
            return data

        return serialize
    parsed = fastavro.parse_schema(json.loads(schema))

    def write(row: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, _with_maps(row))
        return buffer.getvalue()

    return write


def _with_maps(value: Any) -> Any:
    """Arrow returns a map as a list of pairs, but Avro expects a dict."""
    if isinstance(value, dict):
        return {name: _with_maps(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) and len(each) == 2 for each in value):
            return {key: _with_maps(each) for key, each in value}
        return [_with_maps(each) for each in value]
    return value


def spark_type(text: str, where: str) -> StructType:
    """The columns of a record schema."""
    schema = json.loads(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise DeclarationError(f"{where}: the Avro schema must be a record, so that it has columns")
    made = _type_of(schema, {}, where)
    assert isinstance(made, StructType)
    return made


def _type_of(schema: Any, named: dict[str, Any], where: str) -> DataType:
    if isinstance(schema, list):
        return _union_type(schema, named, where)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema in named:
            known = named[schema]
            if known is None:
                raise DeclarationError(f"{where}: {schema} contains itself, and Spark has no type for that")
            assert isinstance(known, DataType)
            return known
        raise DeclarationError(f"{where}: unknown Avro type {schema!r}")
    logical = schema.get("logicalType")
    if logical == "decimal":
        return DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    kind = schema["type"]
    if kind == "record":
        name = _name(schema)
        named[name] = named[schema["name"]] = None
        fields = [StructField(each["name"], _type_of(each["type"], named, where)) for each in schema["fields"]]
        named[name] = named[schema["name"]] = StructType(fields)
        return StructType(fields)
    if kind in ("enum", "fixed"):
        made: DataType = StringType() if kind == "enum" else BinaryType()
        named[_name(schema)] = named[schema["name"]] = made
        return made
    if kind == "array":
        return ArrayType(_type_of(schema["items"], named, where))
    if kind == "map":
        return MapType(StringType(), _type_of(schema["values"], named, where))
    return _type_of(kind, named, where)


def _union_type(members: list[Any], named: dict[str, Any], where: str) -> DataType:
    real = [each for each in members if each != "null"]
    if len(real) == 1:
        return _type_of(real[0], named, where)
    plain = frozenset(each for each in real if isinstance(each, str))
    if len(plain) == len(real) and plain in _WIDER:
        return _PLAIN[_WIDER[plain]]
    raise DeclarationError(
        f"{where}: Spark has no type for the union {json.dumps(members)}; read it with Raw() and map=, or use a "
        f"reader's schema without it"
    )


def _name(schema: dict[str, Any]) -> str:
    name, namespace = str(schema["name"]), schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _conversion(schema: Any) -> Convert | None:
    """A function that converts fastavro's values to Arrow's; None if they are the same."""
    if isinstance(schema, list):
        found = [made for each in schema if each != "null" and (made := _conversion(each)) is not None]
        if not found:
            return None
        only = found[0]
        return lambda value: None if value is None else only(value)
    if isinstance(schema, str):
        return None
    logical = schema.get("logicalType")
    if logical == "uuid":
        return str
    if logical in ("time-millis", "time-micros"):
        return lambda value: value.isoformat()
    kind = schema.get("type")
    if kind == "record":
        changed = [(each["name"], made) for each in schema["fields"] if (made := _conversion(each["type"])) is not None]
        return (lambda row: _changed(row, changed)) if changed else None
    if kind == "array":
        item = _conversion(schema["items"])
        return None if item is None else lambda items: [item(each) for each in items]
    if kind == "map":
        of_value = _conversion(schema["values"]) or (lambda value: value)
        return lambda items: [(key, of_value(value)) for key, value in items.items()]
    return _conversion(kind) if isinstance(kind, dict | list) else None


def _changed(row: dict[str, Any], changed: list[tuple[str, Convert]]) -> dict[str, Any]:
    for name, convert in changed:
        if row[name] is not None:
            row[name] = convert(row[name])
    return row
