from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog.client.admin_transactions import TransactionAdmin
from tidelog.client.cluster import Cluster, TopicPartition
from tidelog.client.errors import BrokerError
from tidelog.client.transaction_types import OpenTransaction, TransactionDescription, TransactionListing
from tidelog.protocol import ErrorCode

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def opened(
    partition: TopicPartition, producer_id: int, start_offset: int = 5, written_ms: int = 100
) -> OpenTransaction:
    return OpenTransaction(partition, producer_id, 0, -1, start_offset, written_ms)


class Scripted(TransactionAdmin):
    """Leaders answer one list after the other, coordinators what they are given: None is an id that has expired."""

    def __init__(
        self, *looks: list[OpenTransaction], known: Mapping[int, Sequence[TopicPartition] | None] | None = None
    ) -> None:
        super().__init__(Cluster([]))
        self._looks = list(looks)
        self._known = known or {}

    def open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        wanted = set(partitions)
        return [row for row in self._looks.pop(0) if row.topic_partition in wanted]

    def list_transactions(
        self, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), older_than_ms: int | None = None
    ) -> list[TransactionListing]:
        return [
            TransactionListing(str(number), number, "Ongoing", 1) for number in producer_ids if number in self._known
        ]

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        partitions = self._known[int(transactional_id)]
        if partitions is None:
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return TransactionDescription(transactional_id, "Ongoing", int(transactional_id), 0, 0, 0, 1, partitions)


def find(admin: TransactionAdmin) -> list[OpenTransaction]:
    return admin.find_hanging([FIRST, SECOND], written_before_ms=1000)


def test_what_no_coordinator_knows_hangs() -> None:
    rows = [opened(FIRST, 7)]
    assert find(Scripted(rows, rows)) == rows
    assert find(Scripted(rows, rows, known={7: None})) == rows


def test_what_a_coordinator_will_end_does_not_hang() -> None:
    rows = [opened(FIRST, 7), opened(SECOND, 7)]
    assert find(Scripted(rows, rows, known={7: [FIRST, SECOND]})) == []
    assert find(Scripted(rows, rows, known={7: [FIRST]})) == [opened(SECOND, 7)]


def test_what_was_written_to_lately_is_left_alone() -> None:
    rows = [opened(FIRST, 7, written_ms=1001)]
    assert find(Scripted(rows, rows)) == []


def test_what_ended_between_two_looks_does_not_hang() -> None:
    """A transaction that ends while brokers are asked is open at its leader and unknown to its coordinator."""
    rows = [opened(FIRST, 7)]
    assert find(Scripted(rows, [], known={7: []})) == []
    assert find(Scripted(rows, [opened(FIRST, 7, start_offset=9)], known={7: []})) == []
