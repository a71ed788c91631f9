"""A fetch across partitions: what it asks for, and the wait until enough bytes are there (KIP-74, long poll).

What always holds: a change of one partition is judged by that partition alone, whatever the number the fetch names;
anything that has to be told at once (an error, a lost leadership) ends the wait. It reads sizes, not records: after the
wait the records are read anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.broker.fetch_session import PartitionFetch
from tidelog.broker.partition import Partition, PartitionRead
from tidelog.protocol import KafkaError


@dataclass(frozen=True, slots=True)
class FetchParams:
    """What a fetch asks for beside its partitions."""

    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2**31 - 1
    read_committed: bool = False
    # A follower's id, or -1 for a consumer.
    replica_id: int = -1
    replica_epoch: int = -1


@dataclass(slots=True)
class _Awaited:
    fetch: PartitionFetch
    leader_epoch: int
    size_bytes: int


class DelayedFetch:
    """The partitions of one fetch that may still get data."""

    __slots__ = ("_awaited", "_measure", "_params", "_size_bytes")

    def __init__(self, params: FetchParams, measure: Callable[[Partition, PartitionFetch], int]) -> None:
        """`measure` tells how many bytes a read of the partition would give now."""
        self._params = params
        self._measure = measure
        self._awaited: dict[Partition, _Awaited] = {}
        self._size_bytes = 0

    def add(self, partition: Partition, fetch: PartitionFetch, read: PartitionRead) -> None:
        self._awaited[partition] = _Awaited(fetch, partition.leader_epoch, read.size_bytes)
        self._size_bytes += read.size_bytes

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(self._awaited)

    def is_satisfied(self, partition: Partition, /) -> bool:
        awaited = self._awaited[partition]
        fetch = awaited.fetch
        if not partition.is_leader or partition.leader_epoch != awaited.leader_epoch:
            return True
        if fetch.fetch_offset < partition.log.log_start_offset:
            return True
        params = self._params
        if partition.visible_end_offset(params.replica_id, params.read_committed) <= fetch.fetch_offset:
            return False
        if params.min_bytes <= 1:
            return True
        try:
            size_bytes = self._measure(partition, fetch)
        except KafkaError:
            # The read that follows the wait meets the same error and tells it.
            return True
        self._size_bytes += size_bytes - awaited.size_bytes
        awaited.size_bytes = size_bytes
        return self._size_bytes >= params.min_bytes
