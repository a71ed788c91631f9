"""What the source raises besides the errors of options and of the client."""

from __future__ import annotations


class SourceError(Exception):
    """What was asked for can't be read; the text says what to change."""


class DataLossError(SourceError):
    """Records that were to be read are gone, and `failOnDataLoss` is true."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. Records may be lost: they were deleted before they were read, by retention or with their "
            "topic. To go on with what is left, set the option failOnDataLoss to false"
        )
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (DataLossError, (self.reason,))
