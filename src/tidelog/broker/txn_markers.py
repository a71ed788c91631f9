"""Writes the markers of decided transactions into partitions that this broker leads.

What always holds: a marker counts as written when it is committed, as with acks=all. A partition that no longer exists
needs none. Partitions that other brokers lead give NOT_LEADER_OR_FOLLOWER, and the coordinator tries again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.broker.delayed_produce import PendingAppend, track_append
from tidelog.broker.partition import ACKS_ALL
from tidelog.coordinator.actions import TopicPartition, TxnMarker
from tidelog.coordinator.transaction import TRANSACTION_VERSION_2
from tidelog.protocol import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidelog.broker.replica_manager import ReplicaManager

MarkerErrors = Mapping[TopicPartition, ErrorCode]

_TIMEOUT_MS: Final = 30_000
"""How long replicas may take. What is not confirmed by then is sent again."""


class MarkerWriter(Protocol):
    """Something that can reach the leaders of partitions."""

    def write(self, marker: TxnMarker, partitions: Sequence[TopicPartition]) -> MarkerErrors | Awaitable[MarkerErrors]:
        """Write a marker to each partition; returns the error of each, NONE if it is committed or no longer needed."""
        ...


class LocalMarkerWriter:
    """Reaches the partitions of this broker."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def write(self, marker: TxnMarker, partitions: Sequence[TopicPartition]) -> MarkerErrors | Awaitable[MarkerErrors]:
        pending: list[PendingAppend[TopicPartition]] = []
        errors = {partition: self._write(marker, partition, pending) for partition in partitions}
        return self._wait(errors, pending) if pending else errors

    def _write(
        self, marker: TxnMarker, name: TopicPartition, pending: list[PendingAppend[TopicPartition]]
    ) -> ErrorCode:
        topic = self._replicas.image.topics.get(name[0])
        if topic is None or name[1] >= len(topic.partitions):
            return ErrorCode.NONE
        try:
            partition = self._replicas.find_leader(*name)
            result = self._replicas.write_txn_marker(
                partition,
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                marker.committed,
                epoch_is_bumped=marker.transaction_version >= TRANSACTION_VERSION_2,
            )
        except KafkaError as error:
            return error.code
        tracked = track_append(partition, result.last_offset + 1, partition.leader_epoch, ACKS_ALL, name)
        if isinstance(tracked, ErrorCode):
            return tracked
        pending.append(tracked)
        return ErrorCode.REQUEST_TIMED_OUT

    async def _wait(
        self, errors: dict[TopicPartition, ErrorCode], pending: list[PendingAppend[TopicPartition]]
    ) -> MarkerErrors:
        await self._replicas.wait_for_acknowledgement(pending, _TIMEOUT_MS)
        return errors | {append.response: append.error for append in pending}
