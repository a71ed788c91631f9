"""Identifiers as Kafka writes them: 128-bit ids in 22 characters of unpadded URL-safe base64.

What always holds: an id made here is never one of Kafka's reserved ones (all zero; the metadata topic's) and its text
never starts with a dash, so that it can stand on a command line.
"""

from __future__ import annotations

import base64
import uuid

ZERO_UUID = uuid.UUID(int=0)
_RESERVED = {ZERO_UUID, uuid.UUID(int=1)}


def random_uuid() -> uuid.UUID:
    while True:
        candidate = uuid.uuid4()
        if candidate not in _RESERVED and not uuid_to_text(candidate).startswith("-"):
            return candidate


def uuid_to_text(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> uuid.UUID:
    """The reverse of `uuid_to_text`; raises ValueError for anything else."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an id: {error}") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not an id: it holds {len(raw)} bytes, an id has 16")
    return uuid.UUID(bytes=raw)
