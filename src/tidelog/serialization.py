"""Serializers, deserializers and the client of a schema registry, as users import them.

Each is loaded when it is first asked for, and with it the library that it needs. One that is not installed is then an
ImportError that holds the command to install it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.client.errors import MissingExtraError, SerializationError
    from tidelog.client.serialization.avro import AvroDeserializer, AvroSerializer
    from tidelog.client.serialization.contract import Deserializer, Headers, Serializer
    from tidelog.client.serialization.json_schema import JsonSchemaDeserializer, JsonSchemaSerializer
    from tidelog.client.serialization.json_values import JsonDeserializer, JsonSerializer
    from tidelog.client.serialization.msgpack_values import MsgpackDeserializer, MsgpackSerializer
    from tidelog.client.serialization.pickle_refused import PickleDeserializer, PickleSerializer
    from tidelog.client.serialization.primitives import (
        BooleanDeserializer,
        BooleanSerializer,
        BytesDeserializer,
        BytesSerializer,
        DoubleDeserializer,
        DoubleSerializer,
        FloatDeserializer,
        FloatSerializer,
        IntegerDeserializer,
        IntegerSerializer,
        LongDeserializer,
        LongSerializer,
        ShortDeserializer,
        ShortSerializer,
        StringDeserializer,
        StringSerializer,
        UUIDDeserializer,
        UUIDSerializer,
    )
    from tidelog.client.serialization.protobuf import ProtobufDeserializer, ProtobufSerializer
    from tidelog.client.serialization.registry import SchemaRegistry
    from tidelog.client.serialization.registry_errors import (
        IncompatibleSchemaError,
        SchemaNotFoundError,
        SchemaRegistryError,
        SchemaRegistryUnavailableError,
    )
    from tidelog.client.serialization.schema import (
        CompatibilityCheck,
        CompatibilityLevel,
        RegisteredSchema,
        Schema,
        SchemaReference,
        SchemaType,
    )
    from tidelog.client.serialization.schema_choice import SchemaOptions
    from tidelog.client.serialization.subjects import (
        SubjectName,
        record_subject,
        topic_record_subject,
        topic_subject,
    )

__all__ = [
    "AvroDeserializer",
    "AvroSerializer",
    "BooleanDeserializer",
    "BooleanSerializer",
    "BytesDeserializer",
    "BytesSerializer",
    "CompatibilityCheck",
    "CompatibilityLevel",
    "Deserializer",
    "DoubleDeserializer",
    "DoubleSerializer",
    "FloatDeserializer",
    "FloatSerializer",
    "Headers",
    "IncompatibleSchemaError",
    "IntegerDeserializer",
    "IntegerSerializer",
    "JsonDeserializer",
    "JsonSchemaDeserializer",
    "JsonSchemaSerializer",
    "JsonSerializer",
    "LongDeserializer",
    "LongSerializer",
    "MissingExtraError",
    "MsgpackDeserializer",
    "MsgpackSerializer",
    "PickleDeserializer",
    "PickleSerializer",
    "ProtobufDeserializer",
    "ProtobufSerializer",
    "RegisteredSchema",
    "Schema",
    "SchemaNotFoundError",
    "SchemaOptions",
    "SchemaReference",
    "SchemaRegistry",
    "SchemaRegistryError",
    "SchemaRegistryUnavailableError",
    "SchemaType",
    "SerializationError",
    "Serializer",
    "ShortDeserializer",
    "ShortSerializer",
    "StringDeserializer",
    "StringSerializer",
    "SubjectName",
    "UUIDDeserializer",
    "UUIDSerializer",
    "record_subject",
    "topic_record_subject",
    "topic_subject",
]

# In which module each of them is at home; those that are not named here are plain types.
_HOMES = {
    "AvroDeserializer": "avro",
    "AvroSerializer": "avro",
    "CompatibilityCheck": "schema",
    "CompatibilityLevel": "schema",
    "Deserializer": "contract",
    "Headers": "contract",
    "IncompatibleSchemaError": "registry_errors",
    "JsonDeserializer": "json_values",
    "JsonSchemaDeserializer": "json_schema",
    "JsonSchemaSerializer": "json_schema",
    "JsonSerializer": "json_values",
    "MissingExtraError": "contract",
    "MsgpackDeserializer": "msgpack_values",
    "MsgpackSerializer": "msgpack_values",
    "PickleDeserializer": "pickle_refused",
    "PickleSerializer": "pickle_refused",
    "ProtobufDeserializer": "protobuf",
    "ProtobufSerializer": "protobuf",
    "RegisteredSchema": "schema",
    "Schema": "schema",
    "SchemaNotFoundError": "registry_errors",
    "SchemaOptions": "schema_choice",
    "SchemaReference": "schema",
    "SchemaRegistry": "registry",
    "SchemaRegistryError": "registry_errors",
    "SchemaRegistryUnavailableError": "registry_errors",
    "SchemaType": "schema",
    "SerializationError": "registry_errors",
    "Serializer": "contract",
    "SubjectName": "subjects",
    "record_subject": "subjects",
    "topic_record_subject": "subjects",
    "topic_subject": "subjects",
}


# Type checkers would take every name for granted.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        home = _HOMES.get(name, "primitives")
        return getattr(importlib.import_module(f"tidelog.client.serialization.{home}"), name)
