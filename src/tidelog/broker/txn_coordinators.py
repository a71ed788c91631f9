"""Asks the coordinator of a transaction whether a partition is part of it, whichever broker that is (KIP-890).

What always holds: the coordinator is the one that the image names now; where it can't be reached or has moved, the
error is one after which producers try again. Whether anything was added to a transaction is known only to its
coordinator, so a lost answer counts as no, and the producer's next batch asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.broker.internal_topics import coordinator_of
from tidelog.broker.txn_service import TRANSACTION_TOPIC
from tidelog.broker.txn_verification import Answers
from tidelog.client.errors import ClientError, error_code
from tidelog.coordinator.actions import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k24_add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from tidelog.broker.peers import Peers
    from tidelog.broker.replica_manager import ReplicaManager
    from tidelog.broker.txn_service import TransactionService

_TIMEOUT_S: Final = 10.0
"""A producer waits meanwhile, and tries again by itself after its request.timeout.ms of 30 s."""


class TransactionCoordinators:
    """The coordinators of all brokers, as partitions ask them: a `TransactionVerifier`."""

    def __init__(self, local: TransactionService, replicas: ReplicaManager, peers: Peers) -> None:
        self._local = local
        self._replicas = replicas
        self._peers = peers

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Answers | Awaitable[Answers]:
        image = self._replicas.image
        coordinator = coordinator_of(transactional_id, TRANSACTION_TOPIC, image)
        if coordinator is None and TRANSACTION_TOPIC in image.topics:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if coordinator is None or coordinator.node_id == self._replicas.node_id:
            return self._local.verify(transactional_id, producer_id, producer_epoch, partitions, add)
        return self._verify_remotely(
            coordinator.node_id, transactional_id, producer_id, producer_epoch, partitions, add
        )

    async def _verify_remotely(
        self,
        node_id: int,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Answers:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            verify_only=not add,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
        )
        try:
            response = await self._peers.call(
                node_id,
                ADD_PARTITIONS_TO_TXN,
                AddPartitionsToTxnRequest(transactions=[transaction]),
                AddPartitionsToTxnResponse,
                timeout_s=_TIMEOUT_S,
            )
        except ClientError:
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        if response.error_code:
            return dict.fromkeys(partitions, error_code(response.error_code))
        return {
            (topic.name, partition.partition_index): error_code(partition.partition_error_code)
            for result in response.results_by_transaction
            if result.transactional_id == transactional_id
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
