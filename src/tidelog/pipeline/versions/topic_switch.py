"""Updates keyed topics to their new contents in one transaction, exactly once.

What always holds: `read_committed` consumers see all changes of all topics at once, or none; each changed record
carries the header `tidelog-switch`. The token of the change is committed as the metadata of an offset in the same
transaction, so the successor of a killed writer knows whether it was committed. A key is written to the partition where
the topic already has it, and a new key to the partition where its new contents were found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tidelog import Admin, OffsetAndMetadata, Producer, TopicPartition
from tidelog.client.admin.types import OffsetSpec
from tidelog.pipeline.versions.contents import Change

HEADER = "tidelog-switch"
# A transaction that is left open holds up readers until the switch is resumed, or until the broker aborts it after this
# time. It is therefore short, and longer only if there are many records to write.
_TIMEOUT_MS_MIN = 60_000
_TIMEOUT_MS_MAX = 900_000  # brokers refuse more: transaction.max.timeout.ms
_RECORDS_PER_S_MIN = 10_000


@dataclass(frozen=True, slots=True)
class TopicChange:
    """The changes of one topic; there are `count` of them."""

    topic: str
    changes: Iterable[Change]
    count: int
    # Whether the topic and the source of its new contents have the same number of partitions.
    is_partitioned_alike: bool


class TopicSwitch:
    """The transactions of a pipeline's switches. No other transactions use `name`, and starting one fences others."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._bootstrap = bootstrap
        self._name = name

    def has_landed(self, topics: Iterable[str], token: str) -> bool:
        """Whether the change with this token is committed; first fences a writer that may still be running."""
        with self._producer(_TIMEOUT_MS_MIN) as producer:
            producer.init_transactions()
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            found = admin.list_consumer_group_offsets(self._name, require_stable=True).succeeded.get(self._name, {})
        marks = [found.get(TopicPartition(topic, 0)) for topic in topics]
        return any(mark is not None and mark.metadata == token for mark in marks)

    def write(self, changes: Iterable[TopicChange], token: str) -> int:
        """Write the changes; returns the number of records. Check `has_landed` first."""
        changes = list(changes)
        expected = sum(change.count for change in changes)
        timeout_ms = min(max(expected * 1000 // _RECORDS_PER_S_MIN, _TIMEOUT_MS_MIN), _TIMEOUT_MS_MAX)
        marks = {TopicPartition(change.topic, 0): OffsetAndMetadata(expected, metadata=token) for change in changes}
        headers = [(HEADER, token.encode())]
        written = 0
        with self._producer(timeout_ms) as producer:
            producer.init_transactions()
            with producer.transaction():
                for change in changes:
                    for key, value, partition in _records(change):
                        producer.send_nowait(change.topic, value, key, headers, partition)
                        written += 1
                producer.send_offsets_to_transaction(marks, self._name)
        return written

    def _producer(self, timeout_ms: int) -> Producer:
        settings: Mapping[str, object] = {
            "bootstrap.servers": self._bootstrap,
            "transactional.id": self._name,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 20,
            "delivery.timeout.ms": max(timeout_ms, 120_000),
            "max.block.ms": timeout_ms,
        }
        return Producer(settings)


def _records(topic: TopicChange) -> Iterator[tuple[bytes, bytes | None, int | None]]:
    for change in topic.changes:
        partition = change.old_partition
        if partition is None and topic.is_partitioned_alike:
            partition = change.new_partition
        yield change.key, change.new, partition


def unstable_partitions(bootstrap: str, topics: Iterable[str]) -> list[TopicPartition]:
    """Partitions with an open transaction, whose end is not yet stable."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        described = admin.describe_topics(list(topics)).succeeded
        partitions = [
            TopicPartition(name, row.partition) for name, topic in described.items() for row in topic.partitions
        ]
        latest = dict.fromkeys(partitions, OffsetSpec.LATEST)
        ends = admin.list_offsets(latest)
        stable = admin.list_offsets(latest, isolation_level="read_committed")
        return [each for each in partitions if stable[each].offset < ends[each].offset]
