"""A produce that waits: for the followers (acks=all), for a flush to disk (flush.messages), or for both.

What always holds: each partition of the request is decided separately, and only once; a partition that is undecided
when the producer's timeout expires gets REQUEST_TIMED_OUT, though its records stay in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from tidelog.broker.partition import Partition
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import ErrorCode

ResponseT = TypeVar("ResponseT")


@dataclass(slots=True)
class PendingAppend(Generic[ResponseT]):
    """Records in the leader's log that are not acknowledged yet; the caller owns the response."""

    partition: Partition
    end_offset: int
    leader_epoch: int
    required_acks: int
    response: ResponseT
    error: ErrorCode = ErrorCode.REQUEST_TIMED_OUT


def track_append(
    partition: Partition, end_offset: int, leader_epoch: int, required_acks: int, response: ResponseT
) -> PendingAppend[ResponseT] | ErrorCode:
    """Whether the records before `end_offset` are acknowledged, or what to wait for while that is undecided."""
    error = partition.acknowledgement(end_offset, leader_epoch, required_acks)
    return PendingAppend(partition, end_offset, leader_epoch, required_acks, response) if error is None else error


class DelayedProduce(Generic[ResponseT]):
    """The undecided partitions of one request."""

    __slots__ = ("_undecided",)

    def __init__(self, appends: Iterable[PendingAppend[ResponseT]]) -> None:
        self._undecided: dict[Partition, list[PendingAppend[ResponseT]]] = {}
        for append in appends:
            self._undecided.setdefault(append.partition, []).append(append)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(self._undecided)

    def is_satisfied(self, partition: Partition, /) -> bool:
        left = []
        for append in self._undecided.get(partition, ()):
            error = partition.acknowledgement(append.end_offset, append.leader_epoch, append.required_acks)
            if error is None:
                left.append(append)
            else:
                append.error = error
        if left:
            self._undecided[partition] = left
        else:
            self._undecided.pop(partition, None)
        return not self._undecided
