"""Unfinished writes, each with the function to call when its outcome is known.

What always holds: a write is finished once. What it decides takes effect when it is committed and not before, so that a
crash or another leader never finds less than what was answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from tidelog.coordinator.actions import Action, Append, GroupRecord, Now
from tidelog.protocol import ErrorCode

Outcome = Callable[[ErrorCode, Now], list[Action]]
"""Takes NONE once the records are committed, or the error of the log when they are not, and the time of it."""

_BATCH_BYTES_MAX: Final = 256 * 1024
"""Where records that need not be one batch are split: far below any max.message.bytes that people set."""
RECORD_OVERHEAD_BYTES: Final = 24


class Appends:
    """The unfinished writes of one shard."""

    def __init__(self) -> None:
        self._outcomes: dict[int, Outcome] = {}
        self._next_token = 0

    def __len__(self) -> int:
        return len(self._outcomes)

    def start(self, records: Iterable[GroupRecord], outcome: Outcome) -> Append:
        """The action that writes these records, all or none; `outcome` is called when that is decided."""
        token = self._next_token
        self._next_token += 1
        self._outcomes[token] = outcome
        return Append(tuple(records), token)

    def start_all(self, records: Sequence[GroupRecord], outcome: Outcome) -> list[Action]:
        """As `start` for any number of records, in as many batches as that takes; some may be written, others not.

        `outcome` is called when all are decided, with the first error.
        """
        if not records:
            raise ValueError("a write without records would never complete")
        return self.start_batches(tuple(split_batches(records)), outcome)

    def start_batches(self, batches: Sequence[tuple[GroupRecord, ...]], outcome: Outcome) -> list[Action]:
        """As `start_all` for records that are split already."""
        left = len(batches)
        first_error = ErrorCode.NONE

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            nonlocal left, first_error
            left -= 1
            first_error = first_error or error
            return [] if left else outcome(first_error, now)

        return [self.start(batch, finish) for batch in batches]

    def finish(self, token: int, error: ErrorCode, now: Now) -> list[Action]:
        return self._outcomes.pop(token)(error, now)


def split_batches(records: Sequence[GroupRecord]) -> Iterator[tuple[GroupRecord, ...]]:
    """As many batches as these records take when none may grow large."""
    start = size_bytes = 0
    for index, (key, value) in enumerate(records):
        size_bytes += len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if size_bytes > _BATCH_BYTES_MAX and index > start:
            yield tuple(records[start:index])
            start = index
            size_bytes = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
    if start < len(records):
        yield tuple(records[start:])


_COORDINATOR_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """The error for group members when writing to the coordinator's partition failed with this one."""
    return _COORDINATOR_ERRORS.get(error, error)
