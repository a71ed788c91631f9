"""Asks the controller for changes of ISRs, by AlterPartition (KIP-497).

Leaders ask for who is in sync; any other replica asks only to leave, once it can't be written: Kafka's brokers report
their failed directories to the controller instead (KIP-858).

What always holds: one request is in flight at a time, and carries all changes that have gathered by then, so a broker
that falls behind in a thousand partitions costs its leaders a few requests; a change whose outcome is unknown is asked
for again until the controller, or an image, has decided it. What is asked for, and what an answer means, is up to each
`partition`. It runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.broker.follower_state import UNKNOWN_EPOCH, ReplicationTerms
from tidelog.broker.partition import IsrOutcome, Partition, PendingIsr
from tidelog.broker.unopened_replica import UnopenedReplica
from tidelog.client.network.backoff import Backoff
from tidelog.common.background import start_background
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k56_alter_partition import (
    ALTER_PARTITION,
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
)

if TYPE_CHECKING:
    import uuid

    from tidelog.broker.controller_channel import ControllerChannel

logger = logging.getLogger(__name__)

CHANGES_PER_REQUEST_MAX: Final = 1000
"""The controller writes a request's changes in one go, and others wait meanwhile."""

CALL_TIMEOUT_S: Final = 30.0

_RETRY: Final = Backoff(0.05, 1.0)


Replica: TypeAlias = Partition | UnopenedReplica


class IsrManager:
    """The changes that wait to be sent, and the one request in flight."""

    def __init__(
        self,
        node_id: int,
        terms: ReplicationTerms,
        channel: ControllerChannel,
        on_changed: Callable[[Replica], None],
    ) -> None:
        """`on_changed` is called after each answer for a partition, as its high watermark may have moved."""
        self._node_id = node_id
        self._terms = terms
        self._channel = channel
        self._on_changed = on_changed
        self._waiting: dict[Replica, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def submit(self, partition: Replica) -> None:
        """Have the partition's pending change sent."""
        if self._is_closed:
            return
        self._waiting[partition] = None
        if self._task is None:
            self._start()

    def _start(self) -> None:
        self._task = start_background(self._send_all(), "alter partitions")
        self._task.add_done_callback(self._on_sent)

    async def close(self) -> None:
        """Send nothing more; what was asked for stays pending."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._waiting and not self._is_closed:
            # It came after the task had looked for the last time, and before the task was seen to have ended.
            self._start()

    async def _send_all(self) -> None:
        failures = 0
        while self._waiting:
            changes = self._take_changes()
            if not changes:
                continue
            unknown = await self._send(changes)
            if not unknown:
                failures = 0
                continue
            for partition in unknown:
                self._waiting[partition] = None
            failures += 1
            await asyncio.sleep(_RETRY.pause_s(failures))

    def _take_changes(self) -> dict[Replica, PendingIsr]:
        changes: dict[Replica, PendingIsr] = {}
        while self._waiting and len(changes) < CHANGES_PER_REQUEST_MAX:
            partition = next(iter(self._waiting))
            del self._waiting[partition]
            # An image may have decided it while it waited.
            if partition.pending_isr is not None:
                changes[partition] = partition.pending_isr
        return changes

    async def _send(self, changes: dict[Replica, PendingIsr]) -> list[Replica]:
        """Ask for the changes; returns those whose outcome is unknown."""
        broker_epoch = self._terms.broker_epoch
        if broker_epoch == UNKNOWN_EPOCH:
            return list(changes)
        request = AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=broker_epoch, topics=_topics(changes.items())
        )
        try:
            response = await self._channel.call(
                ALTER_PARTITION, request, AlterPartitionResponse, timeout_s=CALL_TIMEOUT_S
            )
        except KafkaError as error:
            logger.warning("the controller could not be asked for changes of %d ISRs: %s", len(changes), error)
            return list(changes)
        if response.error_code:
            logger.info("the controller refused %d changes of ISRs: error %d", len(changes), response.error_code)
            return list(changes)
        rows = {(topic.topic_id, row.partition_index): row for topic in response.topics for row in topic.partitions}
        return [
            partition
            for partition, pending in changes.items()
            if self._decide(partition, pending, rows.get((partition.topic_id, partition.partition)))
            is IsrOutcome.UNKNOWN
        ]

    def _decide(
        self, partition: Replica, pending: PendingIsr, row: AlterPartitionResponsePartitionData | None
    ) -> IsrOutcome:
        if row is None:
            return IsrOutcome.UNKNOWN
        try:
            error = ErrorCode(row.error_code)
        except ValueError:
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        before = partition.isr
        outcome = partition.decide_isr(
            pending, error, leader_epoch=row.leader_epoch, partition_epoch=row.partition_epoch
        )
        if outcome is IsrOutcome.DECIDED:
            logger.info("%s-%d: the ISR %s becomes %s", partition.topic, partition.partition, before, tuple(row.isr))
        elif error is not ErrorCode.NONE:
            logger.info(
                "%s-%d: the ISR %s could not become %s: %s",
                partition.topic,
                partition.partition,
                before,
                tuple(member.node_id for member in pending.members),
                error.name,
            )
        self._on_changed(partition)
        return outcome


def _topics(changes: Iterable[tuple[Replica, PendingIsr]]) -> list[AlterPartitionRequestTopicData]:
    topics: dict[uuid.UUID, AlterPartitionRequestTopicData] = {}
    for partition, pending in changes:
        topic = topics.get(partition.topic_id)
        if topic is None:
            topic = topics[partition.topic_id] = AlterPartitionRequestTopicData(topic_id=partition.topic_id)
        topic.partitions.append(
            AlterPartitionRequestPartitionData(
                partition_index=partition.partition,
                leader_epoch=pending.leader_epoch,
                partition_epoch=pending.partition_epoch,
                # A leader that was elected uncleanly recovers by starting from what it has (KIP-704).
                leader_recovery_state=0,
                new_isr_with_epochs=[
                    BrokerState(broker_id=member.node_id, broker_epoch=member.broker_epoch)
                    for member in pending.members
                ],
            )
        )
    return list(topics.values())
