"""Protobuf with a schema registry.

What always holds: the bytes are those of Confluent's serializers: schema id, path to the message in its file, message.
A reader that has the message's class needs no registry, because Protobuf's own rules handle schema changes. A reader
without it uses the writer's descriptor and returns dicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, Unpack, cast, overload

from tidelog.client.errors import ConfigError, SerializationError
from tidelog.client.serialization import protobuf_files
from tidelog.client.serialization.bounded_cache import BoundedCache
from tidelog.client.serialization.contract import missing_extra
from tidelog.client.serialization.objects import Builder
from tidelog.client.serialization.registry import SchemaRegistry
from tidelog.client.serialization.schema import Schema, SchemaReference, SchemaType
from tidelog.client.serialization.schema_choice import CACHE_SIZE, SchemaOptions
from tidelog.client.serialization.schema_serializer import SchemaDeserializer, SchemaSerializer
from tidelog.client.serialization.wire_format import (
    PREFIX_BYTES,
    decode_indexes,
    encode_indexes,
    schema_id_of,
)

try:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from google.protobuf.message import DecodeError, EncodeError, Message
    from google.protobuf.message_factory import GetMessageClass
except ImportError as missing:
    raise missing_extra("ProtobufSerializer", "protobuf", "protobuf") from missing

T = TypeVar("T")
MessageT = TypeVar("MessageT", bound=Message)


class ProtobufSerializer(SchemaSerializer[MessageT | Mapping[str, Any], bytes]):
    """Serializes a message of a class, or a dict of its fields.

    Files that the class's file imports are registered, too, each under its own name, except Google's. Options are those
    of `SchemaOptions`.
    """

    _asks_for_serialized = True

    def __init__(
        self, registry: SchemaRegistry, message_class: type[MessageT], **options: Unpack[SchemaOptions]
    ) -> None:
        super().__init__(registry, None, **options)
        self._class = message_class
        self._descriptor = _descriptor_of(message_class)

    def _own_schema(self) -> Schema:
        return self._schema_of(self._descriptor.file)

    def _record_name(self) -> str | None:
        return self._descriptor.full_name

    def _parse(self, schema: Schema) -> bytes:
        """The path to the message, which may differ in another version of the file."""
        if self._choice.takes_own_schema:
            return encode_indexes(protobuf_files.indexes_of(self._descriptor))
        file = protobuf_files.load(self._choice.registry, schema)
        try:
            message = file.pool.FindMessageTypeByName(self._descriptor.full_name)
        except KeyError as error:
            raise SerializationError(f"the schema has no message {self._descriptor.full_name}") from error
        return encode_indexes(protobuf_files.indexes_of(message))

    def _write(self, start: bytes, parsed: bytes, value: MessageT | Mapping[str, Any]) -> bytes:
        name = self._descriptor.full_name
        if isinstance(value, self._class):
            message: Message = value
        elif isinstance(value, Mapping):
            try:
                message = self._class(**value)
            except (TypeError, ValueError) as error:
                raise SerializationError(f"the value does not fit {name}: {error}") from error
        else:
            raise SerializationError(f"it takes a {name} or a dict, not a {type(value).__name__}")
        try:
            return b"".join((start, parsed, message.SerializeToString()))
        except EncodeError as error:
            raise SerializationError(f"the {name} is not complete: {error}") from error

    def _schema_of(self, file: FileDescriptor) -> Schema:
        """The file with references to those it imports, which are registered first if need be."""
        references = []
        for imported in file.dependencies:
            if protobuf_files.is_known(imported.name):
                continue
            schema = self._schema_of(imported)
            registry, normalize = self._choice.registry, self._choice.normalizes
            if self._choice.registers:
                registry.register(imported.name, schema, normalize=normalize)
            version = registry.lookup(imported.name, schema, normalize=normalize).version
            references.append(SchemaReference(imported.name, imported.name, version))
        return Schema(protobuf_files.text_of(file), SchemaType.PROTOBUF, tuple(references))


class ProtobufDeserializer(SchemaDeserializer[T]):
    """Deserializes to `message_class`; without one, to a dict by the writer's schema, or to what `into` makes of it."""

    @overload
    def __init__(
        self: ProtobufDeserializer[MessageT],
        registry: SchemaRegistry | None,
        message_class: type[MessageT],
        *,
        is_key: bool = False,
    ) -> None: ...
    @overload
    def __init__(
        self: ProtobufDeserializer[dict[str, Any]], registry: SchemaRegistry, *, is_key: bool = False
    ) -> None: ...
    @overload
    def __init__(
        self: ProtobufDeserializer[T], registry: SchemaRegistry, *, into: Builder[T], is_key: bool = False
    ) -> None: ...
    def __init__(
        self,
        registry: SchemaRegistry | None,
        message_class: type[Message] | None = None,
        *,
        into: Builder[Any] | None = None,
        is_key: bool = False,
    ) -> None:
        super().__init__(into, is_key)
        if message_class is None and registry is None:
            raise ConfigError("ProtobufDeserializer needs a registry or a message_class")
        self._registry = registry
        self._class = message_class
        self._files: BoundedCache[int, FileDescriptor] = BoundedCache(CACHE_SIZE)

    def _read(self, data: bytes) -> Any:
        schema_id = schema_id_of(data)
        indexes, position = decode_indexes(data, PREFIX_BYTES)
        if self._class is not None:
            return _decoded(self._class, data[position:])
        file = self._files.get_or_load(schema_id, lambda: self._file(schema_id))
        descriptor = protobuf_files.message_at(file, indexes)
        return to_dict(_decoded(GetMessageClass(descriptor), data[position:]))

    def _file(self, schema_id: int) -> FileDescriptor:
        assert self._registry is not None, "the constructor asks for a registry where no class is given"
        return protobuf_files.load(self._registry, self._registry.schema(schema_id, serialized=True))


def to_dict(message: Message) -> dict[str, Any]:
    """The fields of a message by name: enums as names, maps and messages as dicts, all else as Python has it.

    An unset field is left out if Protobuf can tell that it is unset; otherwise it has its default.
    """
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in _descriptor_of(type(message)).fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: FieldDescriptor, value: Any) -> Any:
    if not field.is_repeated:
        return _item(field, value)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return {key: _item(of_value, item) for key, item in value.items()}
    return [_item(field, item) for item in value]


def _item(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        # A writer may know more values of an enum than this schema.
        return value if known is None else known.name
    return value


def _descriptor_of(message_class: type[Message]) -> Descriptor:
    # Protobuf has two implementations with one interface, and names both in its types.
    return cast(Descriptor, message_class.DESCRIPTOR)


def _decoded(message_class: type[Message], data: bytes) -> Message:
    try:
        return message_class.FromString(data)
    except DecodeError as error:
        raise SerializationError(f"they are no {message_class.DESCRIPTOR.full_name}: {error}") from error
