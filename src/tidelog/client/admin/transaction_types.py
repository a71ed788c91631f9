"""What calls about transactions take and give: plain rows without behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.client.types import TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id as ListTransactions tells it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator knows it."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None  # None when there has been no transaction yet
    coordinator_id: int
    # Those that the transaction wrote to and that still wait for its marker.
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    """A producer as the leader of a partition remembers it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int  # -1 before the first marker
    transaction_start_offset: int | None  # None without an open transaction


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class ProducerIdAndEpoch(NamedTuple):
    """What a transactional id has after its producers were fenced off."""

    producer_id: int
    producer_epoch: int
