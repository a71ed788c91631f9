"""AddPartitionsToTxn (key 24): makes partitions part of a transaction, or asks whether they are.

Versions served: 0-5.
- 1: throttled after the answer (KIP-219). 2: PRODUCER_FENCED may be answered (KIP-588). 3: flexible.
- 4: from brokers: many transactions at once, and requests that only verify. 5: TRANSACTION_ABORTABLE (KIP-890).

All partitions of a transaction are added or none: where one is refused, the others are OPERATION_NOT_ATTEMPTED. A
partition that does not exist is refused, and so is one of an internal topic, which only coordinators write to: from
version 4 on the coordinator of a group may be the one that asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Mapping, Sequence

from tidelog.broker.offsets_topic import OFFSETS_TOPIC
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.broker.txn_service import AnswerForEach
from tidelog.broker.txn_verification import Answers
from tidelog.common.steps import with_pauses
from tidelog.controller.image import INTERNAL_TOPICS
from tidelog.coordinator.actions import TopicPartition
from tidelog.coordinator.transaction import TRANSACTION_VERSION_2, ProducerIdentity
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k24_add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

_FENCED_FROM_VERSION = 2
_BATCHED_FROM_VERSION = 4
_ABORTABLE_FROM_VERSION = 5


@handles(ADD_PARTITIONS_TO_TXN, "0-5")
def handle_add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse | Coroutine[None, None, AddPartitionsToTxnResponse]:
    if context.version >= _BATCHED_FROM_VERSION:
        return _add_all(request, context)
    only = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    errors = _add(only, context)
    if isinstance(errors, Mapping):
        return _answer_one(only, errors, context.version)
    return _answer_one_later(only, errors, context.version)


def _answer_one(only: AddPartitionsToTxnTransaction, errors: Answers, version: int) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[_topic_result(topic, errors, version) for topic in only.topics]
    )


async def _answer_one_later(
    only: AddPartitionsToTxnTransaction, errors: Awaitable[Answers], version: int
) -> AddPartitionsToTxnResponse:
    return _answer_one(only, await errors, version)


async def _add_all(request: AddPartitionsToTxnRequest, context: RequestContext) -> AddPartitionsToTxnResponse:
    results = []
    async for transaction in with_pauses(request.transactions):
        errors = _add(transaction, context)
        if not isinstance(errors, Mapping):
            errors = await errors
        topic_results = [_topic_result(topic, errors, context.version) for topic in transaction.topics]
        results.append(
            AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=topic_results)
        )
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _add(transaction: AddPartitionsToTxnTransaction, context: RequestContext) -> Answers | Awaitable[Answers]:
    partitions = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
    refused = {partition: error for partition in partitions if (error := _check(partition, context))}
    if refused:
        return {partition: refused.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED) for partition in partitions}
    return _ask(transaction, partitions, context)


def _check(partition: TopicPartition, context: RequestContext) -> ErrorCode:
    name, index = partition
    # Offsets become part of a transaction by the coordinator of their group, which may be on another broker.
    is_asked_by_coordinator = name == OFFSETS_TOPIC and context.version >= _BATCHED_FROM_VERSION
    if name in INTERNAL_TOPICS and not is_asked_by_coordinator:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = context.services.cluster.image.topics.get(name)
    exists = topic is not None and 0 <= index < len(topic.partitions)
    return ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _ask(
    transaction: AddPartitionsToTxnTransaction, partitions: Sequence[TopicPartition], context: RequestContext
) -> Answers | Awaitable[Answers]:
    transactions = context.services.transactions
    producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    try:
        if transaction.verify_only:
            return transactions.verify(transaction.transactional_id, *producer, partitions, add=False)
        client_version = TRANSACTION_VERSION_2 if context.version >= _BATCHED_FROM_VERSION else 0
        added = transactions.add_partitions(transaction.transactional_id, producer, partitions, client_version)
    except KafkaError as refusal:
        added = refusal.code
    return dict.fromkeys(partitions, added) if isinstance(added, ErrorCode) else AnswerForEach(added, partitions)


def _topic_result(topic: AddPartitionsToTxnTopic, errors: Answers, version: int) -> AddPartitionsToTxnTopicResult:
    return AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            AddPartitionsToTxnPartitionResult(
                partition_index=index, partition_error_code=_for_version(errors[topic.name, index], version)
            )
            for index in topic.partitions
        ],
    )


def _for_version(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and version < _FENCED_FROM_VERSION:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return error
