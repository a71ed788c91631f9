"""AddOffsetsToTxn (key 25): makes a group's partition of __consumer_offsets part of a transaction.

Versions served: 0-4.
- 1: throttled after the answer (KIP-219). 2: PRODUCER_FENCED may be answered (KIP-588). 3: flexible.
- 4: TRANSACTION_ABORTABLE may be answered (KIP-890).
"""

from __future__ import annotations

from tidelog.broker.internal_topics import partition_for
from tidelog.broker.offsets_topic import OFFSETS_TOPIC
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.coordinator.transaction import ProducerIdentity
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k25_add_offsets_to_txn import (
    ADD_OFFSETS_TO_TXN,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

_FENCED_FROM_VERSION = 2


@handles(ADD_OFFSETS_TO_TXN, "0-4")
async def handle_add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    try:
        error = await _add(request, context)
    except KafkaError as refusal:
        error = refusal.code
    if error is ErrorCode.PRODUCER_FENCED and context.version < _FENCED_FROM_VERSION:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=error)


async def _add(request: AddOffsetsToTxnRequest, context: RequestContext) -> ErrorCode:
    services = context.services
    if OFFSETS_TOPIC not in services.cluster.image.topics:
        # A group that nobody has looked for yet: its partition is made as for one who looks for it.
        await services.groups.find_coordinator(request.group_id)
    topic = services.cluster.image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    partition = (OFFSETS_TOPIC, partition_for(request.group_id, len(topic.partitions)))
    producer = ProducerIdentity(request.producer_id, request.producer_epoch)
    # Producers of transaction.version 2 leave this request out.
    added = services.transactions.add_partitions(request.transactional_id, producer, [partition], client_version=0)
    return added if isinstance(added, ErrorCode) else await added
