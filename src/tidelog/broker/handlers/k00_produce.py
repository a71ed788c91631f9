"""Produce, versions 3 to 13.

3 brings the transactional id and record batches of magic 2, the only ones taken. 4 to 6 may answer KAFKA_STORAGE_ERROR
and (5) tell the log start offset. 7 allows zstd (KIP-110). 8 tells which records made a batch fail (KIP-467). 9 is
flexible. 10 names the current leader and its address after NOT_LEADER_OR_FOLLOWER (KIP-951). 11 may answer
TRANSACTION_ABORTABLE, and 12 adds partitions to transactions by itself (KIP-890). 13 names topics by id (KIP-516).

A batch that would begin a transaction in its partition is appended once the transaction's coordinator has confirmed it.

Every partition succeeds or fails on its own. A produce never creates a topic. With acks=0 there is no answer, and an
error closes the connection, the one sign that such a producer can notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import monotonic
from typing import NamedTuple

from tidelog.broker.delayed_produce import PendingAppend
from tidelog.broker.partition import ACKS_ALL, ACKS_LEADER, ACKS_NONE, Partition
from tidelog.broker.registry import CloseConnection, handles
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.broker.txn_verification import BeginningTransaction, adds_partitions, first_sequence, produce_error
from tidelog.log.txn_guard import TransactionGuard
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.records import CorruptBatchError, parse_header

_TOPIC_IDS_FROM = 13
_CURRENT_LEADER_FROM = 10
_ZSTD_FROM = 7
_ACKS = frozenset({ACKS_ALL, ACKS_NONE, ACKS_LEADER})
_BATCH_ATTRIBUTES_LOW_BYTE = 22
_CODEC_MASK = 0x07
_ZSTD = 4

_OPENING_S_MAX = 0.2
"""How long one request may have batches opened before it lets others have their turn.

Plain appends take microseconds and are not counted. A batch that the topic's settings make the broker open, or that is
refused, takes up to a twentieth of a second though it may have only some hundred bytes, and one request can bring
thousands: what is not appended by then is answered with an error on which clients send it again.
"""

# Most responses say nothing here; sharing one object saves making it a partition.
_NO_LEADER = LeaderIdAndEpoch()

Pending = PendingAppend[PartitionProduceResponse]


class Unconfirmed(NamedTuple):
    """A batch that waits for the coordinator of its transaction, and where its answer goes."""

    transaction: BeginningTransaction
    topic: TopicProduceData
    data: PartitionProduceData
    answers: list[PartitionProduceResponse]
    slot: int


@handles(PRODUCE, "3-13")
def handle_produce(
    request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Coroutine[None, None, ProduceResponse] | asyncio.Task[ProduceResponse | None] | None:
    replicas = context.services.replicas
    acks = request.acks
    version = context.version
    response = ProduceResponse(responses=[])
    pending: list[Pending] = []
    unconfirmed: list[Unconfirmed] = []
    acks_are_known = acks in _ACKS
    has_failed = False
    opening_s = 0.0
    for topic in request.topic_data:
        answers: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            began_s = monotonic()
            try:
                if not acks_are_known:
                    raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
                if opening_s > _OPENING_S_MAX:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the request takes too long; send the rest again")
                partition = _find(replicas, topic, data.index, version)
                if request.transactional_id is not None:
                    transaction = _begin_transaction(replicas, partition, data, version)
                    if transaction is not None:
                        replicas.transactions.take_turn(transaction)
                        unconfirmed.append(Unconfirmed(transaction, topic, data, answers, len(answers)))
                        answers.append(PartitionProduceResponse(index=data.index))
                        continue
                answers.append(_produce(replicas, partition, data, acks, version, pending))
                if partition.log.config.opens_batches:
                    opening_s += monotonic() - began_s
            except KafkaError as error:
                has_failed = True
                opening_s += monotonic() - began_s
                if acks == ACKS_NONE:
                    _end_turns(unconfirmed)
                    raise CloseConnection(f"sent records with acks=0 that failed: {error}") from error
                answers.append(_failure(replicas, topic, data, error))
        response.responses.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
    if unconfirmed:
        confirmed = _answer_confirmed(replicas, request, response, unconfirmed, pending, version)
        answer = asyncio.get_running_loop().create_task(confirmed)
        # However it ends: a task that is cancelled before it began ran nothing of its own.
        answer.add_done_callback(lambda _: _end_turns(unconfirmed))
        return answer
    if acks == ACKS_NONE:
        return None
    if pending:
        return _answer_later(replicas, response, pending, request.timeout_ms, version)
    return _answer(replicas, response, version) if has_failed else response


def _find(replicas: ReplicaManager, topic: TopicProduceData, index: int, version: int) -> Partition:
    if version >= _TOPIC_IDS_FROM:
        return replicas.find_by_id(topic.topic_id, index)
    return replicas.find(topic.name, index)


def _produce(
    replicas: ReplicaManager,
    partition: Partition,
    data: PartitionProduceData,
    acks: int,
    version: int,
    pending: list[Pending],
    guard: TransactionGuard | None = None,
) -> PartitionProduceResponse:
    records = data.records
    if records is not None and not isinstance(records, memoryview):
        raise TypeError("decoded records are always a memoryview")
    if version < _ZSTD_FROM and records is not None and _is_zstd(records):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later")
    result = replicas.append(partition, records, acks, guard=guard)
    answer = PartitionProduceResponse(
        index=data.index,
        base_offset=result.first_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        current_leader=_NO_LEADER,
    )
    if acks != ACKS_NONE:
        end_offset = result.last_offset + 1
        error = partition.acknowledgement(end_offset, partition.leader_epoch, acks)
        if error is None:
            pending.append(Pending(partition, end_offset, partition.leader_epoch, acks, answer))
        elif error:
            raise KafkaError(error)
    return answer


def _begin_transaction(
    replicas: ReplicaManager, partition: Partition, data: PartitionProduceData, version: int
) -> BeginningTransaction | None:
    """What the transaction's coordinator must confirm before the batch is appended, if anything."""
    if not isinstance(data.records, memoryview):
        return None
    try:
        header = parse_header(data.records)
    except CorruptBatchError:
        return None  # the append refuses it, and says why
    if not header.is_transactional:
        return None
    partition.check_writable()
    sequence = first_sequence(header.base_sequence, version)
    return replicas.transactions.begin(partition, header.producer_id, header.producer_epoch, sequence)


async def _answer_confirmed(
    replicas: ReplicaManager,
    request: ProduceRequest,
    response: ProduceResponse,
    unconfirmed: list[Unconfirmed],
    pending: list[Pending],
    version: int,
) -> ProduceResponse | None:
    """Append what waits for coordinators as they confirm it, and answer."""
    acks = request.acks
    begun = [item.transaction for item in unconfirmed]
    await replicas.transactions.confirm(request.transactional_id or "", begun, add=adds_partitions(version))
    for transaction, topic, data, answers, slot in unconfirmed:
        error = produce_error(transaction.error, version)
        await transaction.wait_for_turn()
        try:
            if error is not None:
                raise error
            answers[slot] = _produce(replicas, transaction.partition, data, acks, version, pending, transaction.guard)
        except KafkaError as refusal:
            if acks == ACKS_NONE:
                raise CloseConnection(f"sent records with acks=0 that failed: {refusal}") from refusal
            answers[slot] = _failure(replicas, topic, data, refusal)
        finally:
            transaction.end_turn()
    if acks == ACKS_NONE:
        return None
    if pending:
        return await _answer_later(replicas, response, pending, request.timeout_ms, version)
    return _answer(replicas, response, version)


def _end_turns(unconfirmed: list[Unconfirmed]) -> None:
    for item in unconfirmed:
        item.transaction.end_turn()


def _is_zstd(records: memoryview) -> bool:
    return len(records) > _BATCH_ATTRIBUTES_LOW_BYTE and records[_BATCH_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK == _ZSTD


def _failure(
    replicas: ReplicaManager, topic: TopicProduceData, data: PartitionProduceData, error: KafkaError
) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=data.index,
        error_code=error.code,
        base_offset=-1,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in error.record_errors
        ],
        error_message=error.message,
    )


async def _answer_later(
    replicas: ReplicaManager, response: ProduceResponse, pending: list[Pending], timeout_ms: int, version: int
) -> ProduceResponse:
    await replicas.wait_for_acknowledgement(pending, timeout_ms)
    for append in pending:
        if append.error:
            append.response.error_code = append.error
            append.response.base_offset = -1
            append.response.log_append_time_ms = -1
    return _answer(replicas, response, version)


def _answer(replicas: ReplicaManager, response: ProduceResponse, version: int) -> ProduceResponse:
    if version < _CURRENT_LEADER_FROM:
        return response
    leader_ids = set()
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                state = replicas.leader_state(topic.name, topic.topic_id, partition.index)
                if state is not None:
                    partition.current_leader = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
                    leader_ids.add(state.leader)
    if leader_ids:
        response.node_endpoints = [
            NodeEndpoint(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in replicas.endpoints(leader_ids)
        ]
    return response
