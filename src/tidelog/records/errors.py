"""The one kind of error of this layer: bytes that are not what a record batch must be."""

from __future__ import annotations


class CorruptBatchError(Exception):
    """The bytes are not a sound record batch; `reason` says what was found and what would have been right."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OversizedBatchError(CorruptBatchError):
    """The records open to more bytes than the caller allows; they may be sound, or a bomb."""


class UnsupportedMagicError(CorruptBatchError):
    """The batch may be sound but has another format version than 2; Kafka 4 no longer serves the older ones either."""
