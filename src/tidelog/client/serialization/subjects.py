"""The subject under which a registry stores the schemas of a topic's keys or values: the three common strategies."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.client.errors import SerializationError

# (topic, is_key, full name of the record type or None) -> subject
SubjectName = Callable[[str, bool, str | None], str]


def topic_subject(topic: str, is_key: bool, record_name: str | None) -> str:
    """`orders-value`: all values of a topic have one evolving type; the default."""
    return f"{topic}-{'key' if is_key else 'value'}"


def record_subject(topic: str, is_key: bool, record_name: str | None) -> str:
    """`shop.Order`: a type evolves the same way in all topics, and a topic may hold several types."""
    return _named(record_name)


def topic_record_subject(topic: str, is_key: bool, record_name: str | None) -> str:
    """`orders-shop.Order`: a topic may hold several types, which evolve independently in each topic."""
    return f"{topic}-{_named(record_name)}"


def _named(record_name: str | None) -> str:
    if not record_name:
        raise SerializationError("a subject by record name needs a schema that has a name")
    return record_name
