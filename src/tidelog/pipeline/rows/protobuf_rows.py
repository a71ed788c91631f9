"""Converts Protobuf messages to rows and rows to messages, on executors.

What always holds: a message type is sent to executors as descriptors, so a generated module is needed only where the
pipeline is declared; the columns are derived from the descriptor on the driver, before anything runs.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.client.serialization.protobuf import ProtobufDeserializer, ProtobufSerializer
from tidelog.pipeline.errors import DeclarationError
from tidelog.pipeline.formats import Protobuf
from tidelog.pipeline.rows.arrow_rows import Convert, parse_values, registry_client, registry_text

_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TYPES: dict[int, DataType] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(),
    FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: StringType(),
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def protobuf_reader(
    format_: Protobuf, topics: Sequence[str], where: str
) -> tuple[StructType, Callable[[pa.Array], pa.Array]]:
    """The columns, and the function that parses values into them."""
    from tidelog.pipeline.rows.decoding import ERROR

    files, name = describe(format_, where)
    schema = spark_type(_message_class(files, name).DESCRIPTOR, where)
    kind = to_arrow_type(StructType([*schema.fields, StructField(ERROR, StringType())]), timezone="UTC")
    return schema, ProtobufReader(files, name, format_.registry is not None, kind, ERROR).parse


def protobuf_writer(format_: Protobuf, topic: str, where: str) -> Callable[[pa.Array], pa.Array]:
    """The function that converts rows to values."""
    files, name = describe(format_, where)
    registry = None if format_.registry is None else registry_text(format_.registry)
    return ProtobufWriter(files, name, registry, topic).write


def describe(format_: Protobuf, where: str) -> tuple[bytes, str]:
    """The descriptor files of a message, dependencies first, and its full name."""
    if isinstance(format_.message, str):
        assert isinstance(format_.descriptor, bytes), "the declaration asks for it and reads the file"
        try:
            _message_class(format_.descriptor, format_.message)
        except (KeyError, TypeError) as error:
            raise DeclarationError(f"{where}: the descriptor has no message {format_.message!r}: {error}") from error
        return format_.descriptor, format_.message
    descriptor = getattr(format_.message, "DESCRIPTOR", None)
    if descriptor is None:
        raise DeclarationError(f"{where}: Protobuf(message={format_.message!r}) is not a generated message class")
    files: dict[str, FileDescriptorProto] = {}
    _collect(descriptor.file, files)
    return FileDescriptorSet(file=list(files.values())).SerializeToString(), str(descriptor.full_name)


def _collect(file: FileDescriptor, files: dict[str, FileDescriptorProto]) -> None:
    for needed in file.dependencies:
        _collect(needed, files)
    if file.name not in files:
        proto = FileDescriptorProto()
        file.CopyToProto(proto)
        files[file.name] = proto


@lru_cache(maxsize=32)
def _message_class(files: bytes, name: str) -> type[Message]:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(files).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


@dataclass(frozen=True)
class ProtobufReader:
    """Parses values on executors."""

    files: bytes
    message: str
    has_prefix: bool
    kind: pa.StructType
    error: str

    def parse(self, values: pa.Array) -> pa.Array:
        parse = _parser(self.files, self.message, self.has_prefix)
        return parse_values(values, parse, self.kind, self.error)


@dataclass(frozen=True)
class ProtobufWriter:
    """Creates values on executors."""

    files: bytes
    message: str
    registry: tuple[tuple[str, Any], ...] | None
    topic: str

    def write(self, rows: pa.Array) -> pa.Array:
        make = _maker(self.files, self.message, self.registry, self.topic)
        return pa.array([None if row is None else make(row) for row in rows.to_pylist()], pa.binary())


@lru_cache(maxsize=32)
def _parser(files: bytes, name: str, has_prefix: bool) -> Callable[[bytes], dict[str, Any]]:
    message_class = _message_class(files, name)
    convert = _message_conversion(message_class.DESCRIPTOR)
    if has_prefix:
        deserializer = ProtobufDeserializer(None, message_class)
        return lambda data: convert(deserializer("", data))
    return lambda data: convert(message_class.FromString(data))


def _message_conversion(descriptor: Any) -> Callable[[Any], dict[str, Any]]:
    """A function that converts messages of this type to dicts."""
    fields = [(each.name, each.has_presence, _field_conversion(each)) for each in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not message.HasField(name) else made(getattr(message, name))
            for name, has_presence, made in fields
        }

    return convert


def _field_conversion(field: FieldDescriptor) -> Convert:
    if not field.is_repeated:
        return _item_conversion(field)
    if _is_map(field):
        of_value = _item_conversion(_members(field)["value"])
        return lambda items: [(key, of_value(value)) for key, value in items.items()]
    item = _item_conversion(field)
    return lambda items: [item(each) for each in items]


def _item_conversion(field: FieldDescriptor) -> Convert:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return lambda stamp: _EPOCH + datetime.timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
        if name in _WRAPPERS:
            return lambda wrapper: wrapper.value
        return _message_conversion(field.message_type)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    return lambda value: value


@lru_cache(maxsize=32)
def _maker(
    files: bytes, name: str, registry: tuple[tuple[str, Any], ...] | None, topic: str
) -> Callable[[dict[str, Any]], bytes]:
    message_class = _message_class(files, name)
    if registry is None:
        return lambda row: message_class(**_present(row, message_class.DESCRIPTOR)).SerializeToString()
    serializer = ProtobufSerializer(registry_client(registry), message_class)

    def serialize(row: dict[str, Any]) -> bytes:
        data = serializer(topic, message_class(**_present(row, message_class.DESCRIPTOR)))
        assert data is not None
        return data

    return serialize


def _present(row: dict[str, Any], descriptor: Any) -> dict[str, Any]:
    """The fields of a row, in the form that a message takes them; a null field is left unset."""
    made = {}
    for name, value in row.items():
        field = descriptor.fields_by_name.get(name)
        if field is None:
            raise ValueError(f"the message {descriptor.full_name} has no field {name!r}")
        if value is not None:
            made[name] = _written(field, value)
    return made


def _written(field: FieldDescriptor, value: Any) -> Any:
    if not field.is_repeated:
        return _written_item(field, value)
    if _is_map(field):
        of_value = _members(field)["value"]
        return {key: _written_item(of_value, each) for key, each in value}
    return [_written_item(field, each) for each in value]


def _written_item(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            since = value - (_EPOCH if value.tzinfo is not None else _EPOCH.replace(tzinfo=None))
            return {"seconds": since.days * 86400 + since.seconds, "nanos": since.microseconds * 1000}
        if name in _WRAPPERS:
            return {"value": value}
        return _present(value, field.message_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return int(value)
    return value


def _members(field: FieldDescriptor) -> Any:
    """Key and value of a map."""
    assert field.message_type is not None, "a map is a repeated message"
    return field.message_type.fields_by_name


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def spark_type(descriptor: Any, where: str, above: frozenset[str] = frozenset()) -> StructType:
    """The columns of a message."""
    if descriptor.full_name in above:
        raise DeclarationError(f"{where}: {descriptor.full_name} contains itself, and Spark has no type for that")
    inside = above | {descriptor.full_name}
    return StructType([StructField(each.name, _field_type(each, where, inside)) for each in descriptor.fields])


def _field_type(field: FieldDescriptor, where: str, above: frozenset[str]) -> DataType:
    if not field.is_repeated:
        return _item_type(field, where, above)
    if _is_map(field):
        members = _members(field)
        return MapType(_item_type(members["key"], where, above), _item_type(members["value"], where, above))
    return ArrayType(_item_type(field, where, above))


def _item_type(field: FieldDescriptor, where: str, above: frozenset[str]) -> DataType:
    if field.message_type is not None:
        message: Descriptor = field.message_type
        if message.full_name == _TIMESTAMP:
            return TimestampType()
        if message.full_name in _WRAPPERS:
            return _item_type(message.fields_by_name["value"], where, above)
        return spark_type(message, where, above)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else StringType()
    return _TYPES[field.cpp_type]
