"""A DeleteRecords that waits until all replicas in the ISRs have deleted the records.

What always holds: each partition of the request is decided separately; one that is undecided when the time-out expires
gets REQUEST_TIMED_OUT, though the leader has deleted its records.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.broker.partition import Partition
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import ErrorCode


@dataclass(slots=True)
class PendingDelete:
    """Records that the leader has deleted, and the followers perhaps not."""

    partition: Partition
    leader_epoch: int
    log_start_offset: int
    error: ErrorCode = ErrorCode.REQUEST_TIMED_OUT

    @property
    def is_decided(self) -> bool:
        partition = self.partition
        if partition.unavailable:
            self.error = partition.unavailable
        elif not partition.is_leader or partition.leader_epoch != self.leader_epoch:
            self.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif partition.low_watermark >= self.log_start_offset:
            self.error = ErrorCode.NONE
        else:
            return False
        return True


class DelayedDelete:
    """The undecided partitions of one request."""

    __slots__ = ("_undecided",)

    def __init__(self, deletes: Iterable[PendingDelete]) -> None:
        self._undecided = {delete.partition: delete for delete in deletes}

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(self._undecided)

    def is_satisfied(self, partition: Partition, /) -> bool:
        delete = self._undecided.get(partition)
        if delete is not None and delete.is_decided:
            del self._undecided[partition]
        return not self._undecided
