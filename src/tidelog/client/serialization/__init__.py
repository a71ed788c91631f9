"""Keys and values as bytes, and back: plain types, JSON, msgpack, and Avro, Protobuf and JSON Schema with a registry.

What always holds: None stands for the absent key or the tombstone and passes through every one of them; whatever else
can't be turned is a `SerializationError`. Serializers know no producer, and producers know them only as callables.
Users import them from `tidelog.serialization`, which loads a format, and what it needs, when it is first asked for.
"""
