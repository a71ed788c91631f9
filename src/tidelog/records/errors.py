"""What this layer raises: CorruptBatchError for bytes that are not a sound record batch, and its special cases."""

from __future__ import annotations


class CorruptBatchError(Exception):
    """The bytes are not a sound record batch; `reason` says what was found and what would have been right."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OversizedBatchError(CorruptBatchError):
    """The records open to more bytes than the caller allows; they may be sound, or a bomb."""


class TimestampRangeError(CorruptBatchError):
    """A record's timestamp does not fit 64 bits."""


class UnsupportedMagicError(CorruptBatchError):
    """The batch may be sound but has another format version than 2; Kafka 4 no longer serves the older ones either."""
