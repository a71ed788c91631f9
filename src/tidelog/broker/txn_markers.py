"""Writes the markers of decided transactions into their partitions, whichever brokers lead them.

What always holds: a marker counts as written when it is committed, as with acks=all. A partition that no longer exists
needs none. A partition whose leader can't be reached, or has changed, gives an error, and the coordinator tries again.
Each broker has at most one request in flight; what comes up meanwhile goes out together in the next one, so many small
transactions cost few requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidelog.broker.delayed_produce import PendingAppend, track_append
from tidelog.broker.partition import ACKS_ALL
from tidelog.client.errors import ClientError, error_code
from tidelog.common.steps import with_pauses
from tidelog.coordinator.actions import TopicPartition, TxnMarker
from tidelog.coordinator.transaction import TRANSACTION_VERSION_2
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k27_write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.peers import Peers
    from tidelog.broker.replica_manager import ReplicaManager

MarkerErrors = Mapping[TopicPartition, ErrorCode]

_TIMEOUT_MS: Final = 30_000
"""How long replicas may take. What is not confirmed by then is sent again."""

_PARTITIONS_AT_ONCE_MAX: Final = 64
"""More are written with pauses, in which others are served: a marker takes some 30 microseconds."""

_MARKERS_PER_REQUEST_MAX: Final = 500
"""So that a coordinator that takes over thousands of decided transactions does not send them as one huge request."""


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
        here = self._replicas.find_some(partitions)
        is_idle = self._replicas.log_opening.is_idle
        if len(partitions) > _PARTITIONS_AT_ONCE_MAX or not (is_idle or all(each.log.is_open for each in here)):
            return self._write_patiently(marker, partitions)
        pending: list[PendingAppend[TopicPartition]] = []
        errors = {partition: self._write(marker, partition, pending) for partition in partitions}
        return self._wait(errors, pending) if pending else errors

    async def _write_patiently(self, marker: TxnMarker, partitions: Sequence[TopicPartition]) -> MarkerErrors:
        """As `write`, for many partitions, or for logs that a thread has to open first."""
        await self._replicas.log_opening.open(each.log for each in self._replicas.find_some(partitions))
        pending: list[PendingAppend[TopicPartition]] = []
        errors = {partition: self._write(marker, partition, pending) async for partition in with_pauses(partitions)}
        return await self._wait(errors, pending) if pending else errors

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


class _Sent(NamedTuple):
    """A marker on its way to another broker, and who waits for its outcome."""

    marker: TxnMarker
    partitions: Sequence[TopicPartition]
    outcome: asyncio.Future[MarkerErrors]


class ClusterMarkerWriter:
    """Reaches the partitions of all brokers."""

    def __init__(self, replicas: ReplicaManager, peers: Peers) -> None:
        """Create it on the running event loop."""
        self._replicas = replicas
        self._peers = peers
        self._local = LocalMarkerWriter(replicas)
        self._waiting: dict[int, list[_Sent]] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Send nothing more; what is in flight fails, and its coordinator is gone as well."""
        senders = list(self._senders.values())
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)

    def write(self, marker: TxnMarker, partitions: Sequence[TopicPartition]) -> MarkerErrors | Awaitable[MarkerErrors]:
        node_id = self._replicas.node_id
        by_leader: dict[int, list[TopicPartition]] = {}
        for name in partitions:
            state = self._replicas.image.partition(*name)
            # Partitions without a leader, and those that are gone, are for the local writer to tell.
            leader = node_id if state is None or state.leader < 0 else state.leader
            by_leader.setdefault(leader, []).append(name)
        local = self._local.write(marker, by_leader.pop(node_id)) if node_id in by_leader else {}
        if not by_leader:
            return local
        return self._gather(local, [self._send(leader, marker, names) for leader, names in by_leader.items()])

    async def _gather(
        self, local: MarkerErrors | Awaitable[MarkerErrors], remote: Iterable[asyncio.Future[MarkerErrors]]
    ) -> MarkerErrors:
        errors = dict(await local if isinstance(local, Awaitable) else local)
        for outcome in remote:
            errors |= await outcome
        return errors

    def _send(
        self, node_id: int, marker: TxnMarker, partitions: Sequence[TopicPartition]
    ) -> asyncio.Future[MarkerErrors]:
        outcome: asyncio.Future[MarkerErrors] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node_id, []).append(_Sent(marker, partitions, outcome))
        if node_id not in self._senders:
            sender = asyncio.get_running_loop().create_task(self._send_all(node_id), name=f"markers to {node_id}")
            self._senders[node_id] = sender
        return outcome

    async def _send_all(self, node_id: int) -> None:
        """Send what waits for this broker, one request after another, until nothing does."""
        sending: list[_Sent] = []
        try:
            while waiting := self._waiting.pop(node_id, None):
                sending, left = waiting[:_MARKERS_PER_REQUEST_MAX], waiting[_MARKERS_PER_REQUEST_MAX:]
                if left:
                    self._waiting[node_id] = left
                await self._send_once(node_id, sending)
        finally:
            del self._senders[node_id]
            for sent in [*sending, *self._waiting.pop(node_id, ())]:
                sent.outcome.cancel()

    async def _send_once(self, node_id: int, sending: Sequence[_Sent]) -> None:
        request = WriteTxnMarkersRequest(markers=[_message(sent) for sent in sending])
        try:
            response = await self._peers.call(
                node_id, WRITE_TXN_MARKERS, request, WriteTxnMarkersResponse, timeout_s=_TIMEOUT_MS / 1000
            )
        except ClientError:
            # The coordinator says which markers failed and why; they may have been written, and are sent again.
            for sent in sending:
                _end(sent, dict.fromkeys(sent.partitions, ErrorCode.NETWORK_EXCEPTION))
            return
        answers = (
            response.markers if len(response.markers) == len(sending) else [WritableTxnMarkerResult()] * len(sending)
        )
        for sent, answer in zip(sending, answers, strict=True):
            told = {
                (topic.name, partition.partition_index): error_code(partition.error_code)
                for topic in answer.topics
                for partition in topic.partitions
            }
            _end(
                sent,
                {name: self._outcome(told.get(name, ErrorCode.UNKNOWN_SERVER_ERROR), name) for name in sent.partitions},
            )

    def _outcome(self, error: ErrorCode, name: TopicPartition) -> ErrorCode:
        is_gone = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._replicas.image.partition(*name) is None
        return ErrorCode.NONE if is_gone else error


def _message(sent: _Sent) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, index in sent.partitions:
        topics.setdefault(topic, []).append(index)
    marker = sent.marker
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.committed,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


def _end(sent: _Sent, errors: MarkerErrors) -> None:
    if not sent.outcome.done():
        sent.outcome.set_result(errors)
