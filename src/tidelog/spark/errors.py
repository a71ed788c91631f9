"""Errors raised by the source, other than those about options and those of the client."""

from __future__ import annotations


class SourceError(Exception):
    """The requested data can't be read; the message says what to change."""


class DataLossError(SourceError):
    """Records are gone before they were read, and `failOnDataLoss` is true."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. Records may be lost: retention, or the deletion of their topic, may have removed them before "
            "they were read. To continue with the remaining records, set the option failOnDataLoss to false"
        )
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (DataLossError, (self.reason,))
