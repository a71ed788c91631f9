"""EndTxn (key 26): commits or aborts a transaction.

Versions served: 0-5.
- 1: throttled after the answer (KIP-219). 2: PRODUCER_FENCED may be answered (KIP-588). 3: flexible.
- 4: TRANSACTION_ABORTABLE may be answered (KIP-890). 5: raises the epoch, and says which it is (KIP-890).

The answer comes when the end is decided and written down; markers follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.coordinator.transaction import TRANSACTION_VERSION_2, ProducerIdentity
from tidelog.coordinator.txn_requests import EndTxn
from tidelog.coordinator.txn_state import ProducerResult
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k26_end_txn import END_TXN, EndTxnRequest, EndTxnResponse

_FENCED_FROM_VERSION = 2
_EPOCH_BUMP_FROM_VERSION = 5


@handles(END_TXN, "0-5")
def handle_end_txn(
    request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse | Coroutine[None, None, EndTxnResponse]:
    ask = EndTxn(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        request.committed,
        TRANSACTION_VERSION_2 if context.version >= _EPOCH_BUMP_FROM_VERSION else 0,
    )
    try:
        answer = context.services.transactions.ask(
            request.transactional_id, lambda shard, now, exchange: shard.end_txn(ask, now, exchange)
        )
    except KafkaError as error:
        return EndTxnResponse(error_code=error.code)
    if isinstance(answer, asyncio.Future):
        return _answer_later(answer, context.version)
    return _response(answer, context.version)


async def _answer_later(answer: asyncio.Future[ProducerResult], version: int) -> EndTxnResponse:
    return _response(await answer, version)


def _response(result: ProducerResult, version: int) -> EndTxnResponse:
    if result.error is ErrorCode.PRODUCER_FENCED and version < _FENCED_FROM_VERSION:
        return EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
    return EndTxnResponse(error_code=result.error, producer_id=result.producer_id, producer_epoch=result.producer_epoch)
