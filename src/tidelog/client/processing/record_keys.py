"""What a record needs in order to be processed here, and the keys that identify repeated ones.

What always holds: a key is bytes of at most `KEY_BYTES_MAX`; a longer one is replaced by its digest, so every database
can index it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

# PostgreSQL indexes at most about 2,700 bytes per row; names and row overhead need some of them, and short keys are
# fast.
KEY_BYTES_MAX = 256


class ConsumedRecord(Protocol):
    """The parts of a consumed record that are used here."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> object: ...
    @property
    def value(self) -> object: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


# Derives the key that identifies a record.
KeyFunction = Callable[[ConsumedRecord], str | bytes]


def by_offset(record: ConsumedRecord) -> str:
    """The record's place in the log: detects repeated delivery, but not records that were written twice."""
    return f"{record.topic}-{record.partition}-{record.offset}"


def by_key(record: ConsumedRecord) -> str | bytes:
    """The record's own key, for topics in which no two records share one."""
    if isinstance(record.key, (str, bytes)):
        return record.key
    raise ValueError(f"{by_offset(record)} has the key {record.key!r}: a deduplication key must be text or bytes")


def by_header(name: str) -> KeyFunction:
    """The value of a header such as `message-id`: also detects records that a producer wrote twice."""

    def key_of(record: ConsumedRecord) -> bytes:
        for header, value in record.headers:
            if header == name and value is not None:
                return value
        raise ValueError(f"{by_offset(record)} has no header {name!r}, which is its deduplication key")

    return key_of


def stored_key(key: str | bytes) -> bytes:
    """The key as stored in databases."""
    raw = key.encode() if isinstance(key, str) else bytes(key)
    if not raw:
        raise ValueError("a deduplication key can't be empty")
    return raw if len(raw) <= KEY_BYTES_MAX else b"sha256:" + hashlib.sha256(raw).hexdigest().encode()
