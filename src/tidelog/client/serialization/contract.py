"""What a serializer and a deserializer are: callables, so that a function of the user's own is as good as ours.

What always holds: they are called in the thread that sends or polls, with the topic and the record's headers; they
may be called by several threads at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tidelog.client.errors import MissingExtraError, SerializationError
from tidelog.common.extras import install_command

# Of the record; None where it has none.
Headers = Sequence[tuple[str, bytes | None]] | None

T_contra = TypeVar("T_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

_SHOWN_CHARACTERS = 60  # of a value that can't be serialized, so that an error stays one line


class Serializer(Protocol[T_contra]):
    """Turns a key or value of a topic into bytes; None gives None, which is a record without that key or value."""

    def __call__(self, topic: str, value: T_contra | None, headers: Headers, /) -> bytes | None: ...


class Deserializer(Protocol[T_co]):
    """Turns the bytes of a key or value into an object; None gives None."""

    def __call__(self, topic: str, data: bytes | None, headers: Headers, /) -> T_co | None: ...


def missing_extra(what: str, library: str, extra: str) -> MissingExtraError:
    return MissingExtraError(f"{what} needs {library}, which is not installed: {install_command(extra)}")


def cannot_serialize(topic: str, value: object, reason: str) -> SerializationError:
    """The error for a value, which is shown as far as it fits in a line."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}..."
    return SerializationError(f"topic {topic}: can't serialize {shown} of type {type(value).__name__}: {reason}")


def cannot_deserialize(topic: str, data: bytes, reason: str) -> SerializationError:
    return SerializationError(f"topic {topic}: can't deserialize {len(data)} bytes: {reason}")
