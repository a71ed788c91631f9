"""Chooses the schema that a value is written with, and its id.

What always holds: the registry's client caches its results, so the choice for the next record costs no request. With
`use_latest_version` it asks again when there may be a newer version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from tidelog.client.errors import ConfigError
from tidelog.client.serialization.registry import SchemaRegistry
from tidelog.client.serialization.schema import RegisteredSchema, Schema
from tidelog.client.serialization.subjects import SubjectName, topic_subject

# How many topics, or versions of schemas, one serializer caches.
CACHE_SIZE = 1000


class SchemaOptions(TypedDict, total=False):
    """How a serializer chooses the schema it writes with."""

    is_key: bool  # whether it serializes keys; the registry keeps their schemas separate
    subject_name: SubjectName  # topic_subject by default
    auto_register: bool  # register the schema if it is new; the default unless use_latest_version is set
    use_latest_version: bool  # write with the subject's latest version at that time
    normalize: bool  # have the registry compare schemas in normalized form
    schema_id: int  # write with the schema of this id


class SchemaChoice:
    """The registered schemas for a topic's values; each serializer creates one."""

    def __init__(
        self,
        registry: SchemaRegistry,
        *,
        serialized: bool = False,
        is_key: bool = False,
        subject_name: SubjectName = topic_subject,
        auto_register: bool | None = None,
        use_latest_version: bool = False,
        normalize: bool = False,
        schema_id: int | None = None,
    ) -> None:
        if use_latest_version and auto_register:
            raise ConfigError("a serializer can't have both use_latest_version and auto_register")
        if schema_id is not None and (use_latest_version or auto_register):
            raise ConfigError("a serializer with a schema_id neither registers nor takes the latest version")
        self.registry = registry
        self.is_key = is_key
        self.takes_own_schema = schema_id is None and not use_latest_version
        self._serialized = serialized
        self._subject_name = subject_name
        self._registers = (auto_register is None or auto_register) and self.takes_own_schema
        self._uses_latest = use_latest_version
        self._normalize = normalize
        self._schema_id = schema_id

    @property
    def may_change(self) -> bool:
        """Whether the schema of a topic may change for the next record."""
        return self._uses_latest

    @property
    def registers(self) -> bool:
        return self._registers

    @property
    def normalizes(self) -> bool:
        return self._normalize

    def of(self, topic: str, record_name: str | None, own: Callable[[], Schema]) -> RegisteredSchema:
        """The schema to write with; `own` returns the serializer's own one, should it be needed."""
        if self._schema_id is not None:
            return RegisteredSchema(
                "", -1, self._schema_id, self.registry.schema(self._schema_id, serialized=self._serialized)
            )
        subject = self._subject_name(topic, self.is_key, record_name)
        if self._uses_latest:
            return self.registry.latest(subject, serialized=self._serialized)
        schema = own()
        if self._registers:
            schema_id = self.registry.register(subject, schema, normalize=self._normalize)
            # Nobody uses the version of what is written, so the registry is not asked for it.
            return RegisteredSchema(subject, -1, schema_id, schema)
        return self.registry.lookup(subject, schema, normalize=self._normalize)


def place(topic: str, is_key: bool) -> str:
    """How errors refer to the key or value."""
    return f"topic {topic}, {'key' if is_key else 'value'}"
