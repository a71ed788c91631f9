"""The interface of serializers and deserializers: plain callables, so a user's own function is as good as ours.

What always holds: they are called in the thread that sends or polls, with the topic and the record's headers. Several
threads may call them at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tidelog.client.errors import MissingExtraError, SerializationError
from tidelog.common.extras import install_command

# The record's headers; None if it has none.
Headers = Sequence[tuple[str, bytes | None]] | None

T_contra = TypeVar("T_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

_SHOWN_CHARACTERS = 60  # how much of a value an error shows, so that it stays on one line


class Serializer(Protocol[T_contra]):
    """Turns a key or value of a topic into bytes; None stays None, which means a record without that key or value."""

    def __call__(self, topic: str, value: T_contra | None, headers: Headers, /) -> bytes | None: ...


class Deserializer(Protocol[T_co]):
    """Turns the bytes of a key or value into an object; None stays None."""

    def __call__(self, topic: str, data: bytes | None, headers: Headers, /) -> T_co | None: ...


def missing_extra(what: str, library: str, extra: str) -> MissingExtraError:
    return MissingExtraError(f"{what} needs {library}, which is not installed: {install_command(extra)}")


def cannot_serialize(topic: str, value: object, reason: str) -> SerializationError:
    """The error for a value, showing as much of it as fits on a line."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}..."
    return SerializationError(f"topic {topic}: can't serialize {shown} of type {type(value).__name__}: {reason}")


def cannot_deserialize(topic: str, data: bytes, reason: str) -> SerializationError:
    return SerializationError(f"topic {topic}: can't deserialize {len(data)} bytes: {reason}")
