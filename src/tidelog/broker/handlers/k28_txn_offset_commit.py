"""TxnOffsetCommit (key 28): a group's offsets as part of a producer's transaction (KIP-98).

Versions served: 0-5.
- 2: leader epoch of the committed offset (KIP-320). 3: flexible; member and generation, so that a producer whose
  consumer lost its partitions is refused (KIP-447). 4: may answer TRANSACTION_ABORTABLE. 5: adds the offsets to the
  transaction by itself (KIP-890).

The offsets are in __consumer_offsets when this is answered, and count when the transaction is committed.
"""

from __future__ import annotations

import asyncio

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ABORTABLE_FROM = 4

# Errors after which producers of all versions retry, instead of errors that they do not expect here.
_TOLD = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


@handles(TXN_OFFSET_COMMIT, "0-5")
def handle_txn_offset_commit(request: TxnOffsetCommitRequest, context: RequestContext) -> Steps[object]:
    if not request.group_id:
        return _refuse(request, ErrorCode.INVALID_GROUP_ID)
    size = len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
    return _check(request, context, size)


def _check(request: TxnOffsetCommitRequest, context: RequestContext, size: int) -> Steps[object]:
    image = context.services.cluster.image
    for topic in request.topics:
        for partition in topic.partitions:
            if image.partition(topic.name, partition.partition_index) is not None:
                return _commit(request, context, size)
            yield 0
        yield 0
    # There is nothing to commit, so no transaction begins either.
    return (yield from _refuse(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))


async def _commit(request: TxnOffsetCommitRequest, context: RequestContext, size: int) -> object:
    def refuse(error: ErrorCode) -> Steps[TxnOffsetCommitResponse]:
        code = _TOLD.get(error, error)
        if code is ErrorCode.TRANSACTION_ABORTABLE and context.version < _ABORTABLE_FROM:
            code = ErrorCode.INVALID_TXN_STATE
        return _refuse(request, code)

    try:
        answer: object = await context.services.groups.commit_in_transaction(request, context, refuse=refuse, size=size)
    except KafkaError as error:
        return refuse(error.code)
    return await answer if isinstance(answer, asyncio.Future) else answer


def _refuse(request: TxnOffsetCommitRequest, error: ErrorCode) -> Steps[TxnOffsetCommitResponse]:
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        answer = TxnOffsetCommitResponseTopic(name=topic.name)
        for partition in topic.partitions:
            row = TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            answer.partitions.append(row)
            yield 0
        response.topics.append(answer)
        yield 0
    return response
