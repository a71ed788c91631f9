"""Serializers: plain types, JSON, MessagePack, and Avro, Protobuf and JSON Schema with a schema registry.

What always holds: None stands for the absent key or the tombstone and passes through all of them. Any other value that
can't be converted raises `SerializationError`. Serializers know nothing about producers, and producers know them only
as callables. Users import them from `tidelog.serialization`, which loads a format, and the packages it needs, on first
use.
"""
