"""What readers have in common: polls as events, positions, rebalances as their listeners hear of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidelog.client.consumer.rebalance import RebalanceListener
from tidelog.client.types import OffsetAndMetadata, TopicPartition
from tidelog.records.kernel_consume import ConsumerRecord
from tidelog.torture.history import OK
from tidelog.torture.workers.worker import Worker


def poll_events(records: Iterable[ConsumerRecord]) -> list[list[Any]]:
    """An event for each partition, with its records in their order."""
    events: dict[tuple[str, int], list[Any]] = {}
    for record in records:
        at = (record.topic, record.partition)
        event = events.get(at)
        if event is None:
            event = events[at] = ["poll", f"{at[0]}-{at[1]}", [], []]
        event[2].append(record.offset)
        event[3].append(int(record.value))
    return list(events.values())


def keys_of(partitions: Iterable[TopicPartition]) -> list[str]:
    """The names of partitions in a history."""
    return sorted(map(str, partitions))


def has_reached(
    positions: Mapping[TopicPartition, OffsetAndMetadata], ends: Mapping[str, int], wanted: Iterable[TopicPartition]
) -> bool:
    """Whether all these partitions were read up to their ends."""
    return all(
        partition in positions and positions[partition].offset >= ends.get(str(partition), 0) for partition in wanted
    )


class NotedRebalances(RebalanceListener):
    """Notes what the group gives and takes."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("revoked", partitions)

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._note("lost", partitions)

    def _note(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        now_ns = time.monotonic_ns()
        self._worker.note("rebalance", OK, now_ns, [[what, keys_of(partitions)]], end_ns=now_ns)
        self._worker.page.moved()
