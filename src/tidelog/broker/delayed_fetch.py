"""A fetch across partitions: what it asks for, and the wait until enough bytes are available (KIP-74, long poll).

What always holds: a change in one partition only looks at that partition, however many the fetch names; anything the
client has to know immediately (an error, lost leadership) ends the wait. It reads sizes, not records: the records are
read after the wait.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.fetch_session import PartitionFetch
from tidelog.broker.partition import Partition, PartitionRead
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import KafkaError


@dataclass(slots=True)
class FetchParams:
    """What a fetch asks for, apart from its partitions."""

    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 2**31 - 1
    read_committed: bool = False
    # A follower's id, or -1 for a consumer.
    replica_id: int = -1
    replica_epoch: int = -1
    # Since version 11 consumers say where they are, and may read from followers (KIP-392).
    may_read_followers: bool = False
    client_rack: str = ""


@dataclass(slots=True)
class _Awaited:
    fetch: PartitionFetch
    leader_epoch: int
    is_leader: bool
    size_bytes: int

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= max(1, self.fetch.max_bytes)


class DelayedFetch:
    """The partitions of one fetch that may still get data."""

    __slots__ = ("_awaited", "_measure", "_params", "_size_bytes")

    def __init__(self, params: FetchParams, measure: Callable[[Partition, PartitionFetch], int]) -> None:
        """`measure` returns how many bytes a read of the partition would return now, or `min_bytes` to end the wait."""
        self._params = params
        self._measure = measure
        self._awaited: dict[Partition, _Awaited] = {}
        self._size_bytes = 0

    def add(self, partition: Partition, fetch: PartitionFetch, read: PartitionRead) -> None:
        self._awaited[partition] = _Awaited(fetch, partition.leader_epoch, partition.is_leader, read.size_bytes)
        self._size_bytes += read.size_bytes

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(self._awaited)

    def is_satisfied(self, partition: Partition, /) -> bool:
        awaited = self._awaited[partition]
        fetch = awaited.fetch
        if partition.is_leader != awaited.is_leader or partition.leader_epoch != awaited.leader_epoch:
            return True
        if partition.unavailable:
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
            # The read after the wait meets the same error and reports it.
            return True
        self._size_bytes += size_bytes - awaited.size_bytes
        awaited.size_bytes = size_bytes
        return self._size_bytes >= params.min_bytes or self._is_full(awaited)

    def _is_full(self, changed: _Awaited) -> bool:
        """Whether every partition has reached its own limit, even though together they are below `min_bytes`."""
        return changed.is_full and all(awaited.is_full for awaited in self._awaited.values())
