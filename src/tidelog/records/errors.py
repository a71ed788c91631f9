"""Errors of this layer: CorruptBatchError for bytes that are not a valid record batch, and its special cases."""

from __future__ import annotations


class CorruptBatchError(Exception):
    """The bytes are not a valid record batch; `reason` says what was found and what was expected."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OversizedBatchError(CorruptBatchError):
    """The records decompress to more bytes than the caller allows; they may be valid, or a decompression bomb."""


class TimestampRangeError(CorruptBatchError):
    """A record's timestamp does not fit 64 bits."""


class UnsupportedMagicError(CorruptBatchError):
    """The batch may be valid but has a format version other than 2; Kafka 4 no longer serves the older ones either."""
