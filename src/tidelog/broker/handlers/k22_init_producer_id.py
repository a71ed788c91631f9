"""InitProducerId, versions 0 to 5, and 6 where unstable versions are served.

1 changes nothing in the fields, 2 is flexible. 3 lets a producer name the id and epoch it had (KIP-360), 4 may answer
PRODUCER_FENCED (KIP-588), 5 TRANSACTION_ABORTABLE (KIP-890). 6 is for two-phase commit (KIP-939): transactions without
a time-out, and producers that find open what they had prepared. Kafka has not settled it yet.

Without a transactional id the answer is always a fresh producer id at epoch 0. With one it comes from the coordinator
of the transactional id: the same producer id each time, at an epoch that shuts out whoever had it before.
"""

from __future__ import annotations

import asyncio
import logging

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.coordinator.transaction import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdentity
from tidelog.coordinator.txn_init import InitProducerId
from tidelog.coordinator.txn_state import ProducerResult
from tidelog.metadata.store import MetadataStoreError
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

logger = logging.getLogger(__name__)

_FENCED_FROM_VERSION = 4


@handles(INIT_PRODUCER_ID, "0-5", unstable=6)
async def handle_init_producer_id(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    try:
        if request.transactional_id is None:
            return await _allocate(context)
        result = await _init(request, request.transactional_id, context)
    except KafkaError as error:
        return _failure(error.code)
    if result.error is ErrorCode.PRODUCER_FENCED and context.version < _FENCED_FROM_VERSION:
        return _failure(ErrorCode.INVALID_PRODUCER_EPOCH)
    if result.error:
        return _failure(result.error)
    return InitProducerIdResponse(
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
        ongoing_txn_producer_id=result.ongoing.producer_id,
        ongoing_txn_producer_epoch=result.ongoing.producer_epoch,
    )


async def _allocate(context: RequestContext) -> InitProducerIdResponse:
    """An id of its own for an idempotent producer. Whatever keeps the controller from giving ids passes: as with Kafka,
    the error is one that every producer retries after, while STALE_BROKER_EPOCH, for instance, would end it.
    """
    try:
        return InitProducerIdResponse(producer_id=await context.services.producer_ids.allocate(), producer_epoch=0)
    except (KafkaError, MetadataStoreError) as error:
        logger.warning("a producer has to ask for its id again: %s", error)
        return _failure(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


async def _init(request: InitProducerIdRequest, transactional_id: str, context: RequestContext) -> ProducerResult:
    has_id, has_epoch = request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_PRODUCER_EPOCH
    if has_id != has_epoch:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer names its id and its epoch, or neither")
    expected = ProducerIdentity(request.producer_id, request.producer_epoch) if has_id else None
    ask = InitProducerId(
        transactional_id,
        request.transaction_timeout_ms,
        expected,
        is_two_phase=request.enable2_pc,
        keeps_prepared=request.keep_prepared_txn,
    )
    answer = context.services.transactions.ask(
        transactional_id, lambda shard, now, exchange: shard.init_producer_id(ask, now, exchange)
    )
    result: ProducerResult = await answer if isinstance(answer, asyncio.Future) else answer
    return result


def _failure(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
