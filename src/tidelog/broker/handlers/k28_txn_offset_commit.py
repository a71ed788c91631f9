"""TxnOffsetCommit (key 28): a group's offsets as part of a producer's transaction (KIP-98).

Versions served: 0-5.
- 2: leader epoch of the committed offset (KIP-320). 3: flexible; member and generation, so that a producer whose
  consumer lost its partitions is refused (KIP-447). 4: may answer TRANSACTION_ABORTABLE. 5: adds the offsets to the
  transaction by itself (KIP-890).

The offsets are in __consumer_offsets when this is answered, and count when the transaction is committed.
"""

from __future__ import annotations

from collections.abc import Coroutine

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ABORTABLE_FROM = 4

# What producers of all versions ask again after, in the place of errors that they do not expect here.
_TOLD = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


@handles(TXN_OFFSET_COMMIT, "0-5")
def handle_txn_offset_commit(
    request: TxnOffsetCommitRequest, context: RequestContext
) -> Coroutine[None, None, TxnOffsetCommitResponse]:
    return _commit(request, context)


async def _commit(request: TxnOffsetCommitRequest, context: RequestContext) -> TxnOffsetCommitResponse:
    if not request.group_id:
        return _refuse(request, ErrorCode.INVALID_GROUP_ID)
    image = context.services.cluster.image
    asked = [(topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions]
    if all(image.partition(*each) is None for each in asked):
        # There is nothing to commit, so no transaction begins either.
        return _refuse(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        return await context.services.groups.commit_in_transaction(request, context.version)
    except KafkaError as error:
        code = _TOLD.get(error.code, error.code)
        if code is ErrorCode.TRANSACTION_ABORTABLE and context.version < _ABORTABLE_FROM:
            code = ErrorCode.INVALID_TXN_STATE
        return _refuse(request, code)


def _refuse(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
