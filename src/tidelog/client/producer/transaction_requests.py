"""The requests of a transactional producer, sent once each: in the right version, with their errors interpreted.

What always holds: a response with several errors raises the one that decides, permanent before temporary. Granted items
are removed from `left`, so a retry requests only the rest. Whom to ask, how often, and what an error means for the
transaction is not decided here but in `transactions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.client.errors import (
    BrokerError,
    ClientError,
    RetriableError,
    TransactionStateError,
    error_code,
    raise_for,
)
from tidelog.client.network.connection import Connection
from tidelog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, group_by_topic
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.protocol.messages.k24_add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.protocol.messages.k25_add_offsets_to_txn import (
    ADD_OFFSETS_TO_TXN,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from tidelog.protocol.messages.k26_end_txn import END_TXN, EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

# The newest versions for a broker that does not add partitions itself; later ones mean that it does.
_ADD_PARTITIONS_AT_MOST = 3  # later ones are for requests between brokers
_TXN_OFFSET_COMMIT_AT_MOST = 4
_END_TXN_AT_MOST = 4
_MEMBERS_FROM = 3
_EPOCH_BUMP_FROM = 3
_TWO_PHASE_FROM = 6
_STABLE_INIT_AT_MOST = 5


class Asker(NamedTuple):
    """The identity of the asking producer."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"transactional id {self.transactional_id!r}"


class InitAsk(NamedTuple):
    """The parameters with which a producer gets its id or another epoch."""

    timeout_ms: int
    two_phase: bool = False
    keep_prepared: bool = False


async def init_producer_id(connection: Connection, asker: Asker, ask: InitAsk) -> InitProducerIdResponse:
    """Get an id and an epoch; a producer that has them already gets the next epoch (KIP-360)."""
    is_new = ask.two_phase or ask.keep_prepared
    version = connection.version_for(INIT_PRODUCER_ID, at_most=None if is_new else _STABLE_INIT_AT_MOST)
    if is_new and version < _TWO_PHASE_FROM:
        raise TransactionStateError(
            f"broker at {connection.address} does not offer two-phase commit; it needs "
            "transaction.two.phase.commit.enable=true and unstable.api.versions.enable=true there"
        )
    request = InitProducerIdRequest(transactional_id=asker.transactional_id, transaction_timeout_ms=ask.timeout_ms)
    if version >= _EPOCH_BUMP_FROM:
        request.producer_id, request.producer_epoch = asker.producer_id, asker.producer_epoch
    if version >= _TWO_PHASE_FROM:
        request.enable2_pc, request.keep_prepared_txn = ask.two_phase, ask.keep_prepared
    response = await connection.request(INIT_PRODUCER_ID, request, InitProducerIdResponse, version=version)
    raise_for(response.error_code, subject=str(asker))
    return response


async def add_partitions(connection: Connection, asker: Asker, left: set[TopicPartition]) -> None:
    """Add these partitions to the transaction."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=asker.transactional_id,
        v3_and_below_producer_id=asker.producer_id,
        v3_and_below_producer_epoch=asker.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in group_by_topic(sorted(left)).items()
        ],
    )
    version = connection.version_for(ADD_PARTITIONS_TO_TXN, at_most=_ADD_PARTITIONS_AT_MOST)
    response = await connection.request(ADD_PARTITIONS_TO_TXN, request, AddPartitionsToTxnResponse, version=version)
    errors: list[BrokerError] = []
    for topic in response.results_by_topic_v3_and_below:
        for row in topic.results_by_partition:
            topic_partition = TopicPartition(topic.name, row.partition_index)
            code = error_code(row.partition_error_code)
            if code is ErrorCode.NONE:
                left.discard(topic_partition)
            elif code is not ErrorCode.OPERATION_NOT_ATTEMPTED:
                errors.append(BrokerError(code, subject=f"partition {topic_partition}"))
    _raise_deciding(errors)
    if left:
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "the coordinator's answer left partitions out")


async def add_offsets(connection: Connection, asker: Asker, group_id: str) -> None:
    """Add the offsets of a group to the transaction."""
    request = AddOffsetsToTxnRequest(
        transactional_id=asker.transactional_id,
        producer_id=asker.producer_id,
        producer_epoch=asker.producer_epoch,
        group_id=group_id,
    )
    response = await connection.request(ADD_OFFSETS_TO_TXN, request, AddOffsetsToTxnResponse)
    raise_for(response.error_code, subject=f"group {group_id!r}")


async def commit_offsets(
    connection: Connection,
    asker: Asker,
    group: ConsumerGroupMetadata,
    left: dict[TopicPartition, OffsetAndMetadata],
    *,
    adds_itself: bool,
) -> None:
    """Have the group's coordinator keep the offsets until the transaction ends."""
    at_most = None if adds_itself else _TXN_OFFSET_COMMIT_AT_MOST
    version = connection.version_for(TXN_OFFSET_COMMIT, at_most=at_most)
    request = TxnOffsetCommitRequest(
        transactional_id=asker.transactional_id,
        group_id=group.group_id,
        producer_id=asker.producer_id,
        producer_epoch=asker.producer_epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[_offset_row(number, left[TopicPartition(name, number)]) for number in numbers],
            )
            for name, numbers in group_by_topic(left).items()
        ],
    )
    if version >= _MEMBERS_FROM:
        request.generation_id = group.generation_id
        request.member_id = group.member_id
        request.group_instance_id = group.group_instance_id
    response = await connection.request(TXN_OFFSET_COMMIT, request, TxnOffsetCommitResponse, version=version)
    errors: list[BrokerError] = []
    for topic in response.topics:
        for row in topic.partitions:
            topic_partition = TopicPartition(topic.name, row.partition_index)
            if row.error_code == ErrorCode.NONE:
                left.pop(topic_partition, None)
            else:
                subject = f"group {group.group_id!r}, partition {topic_partition}"
                errors.append(BrokerError(error_code(row.error_code), subject=subject))
    _raise_deciding(errors)


async def end_transaction(
    connection: Connection, asker: Asker, *, committed: bool, adds_itself: bool
) -> tuple[int, int] | None:
    """Commit or abort; returns the id and epoch to continue with, if the broker sends them."""
    request = EndTxnRequest(
        transactional_id=asker.transactional_id,
        producer_id=asker.producer_id,
        producer_epoch=asker.producer_epoch,
        committed=committed,
    )
    version = connection.version_for(END_TXN, at_most=None if adds_itself else _END_TXN_AT_MOST)
    response = await connection.request(END_TXN, request, EndTxnResponse, version=version)
    raise_for(response.error_code, subject=str(asker))
    return (response.producer_id, response.producer_epoch) if response.producer_id >= 0 else None


def may_pass(error: ClientError) -> bool:
    """Whether a retry may help."""
    if isinstance(error, BrokerError) and error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
        return True
    return isinstance(error, RetriableError)


def _raise_deciding(errors: Sequence[BrokerError]) -> None:
    if errors:
        raise next((error for error in errors if not may_pass(error)), errors[0])


def _offset_row(number: int, offset: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )
