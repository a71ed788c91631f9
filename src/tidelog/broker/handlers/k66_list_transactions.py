"""ListTransactions (key 66): the transactional ids that this broker coordinates (KIP-664).

Versions served: 0-2.
- 1: only those that run for longer than a given time (KIP-994).
- 2: only those whose id matches a regular expression (KIP-1152).
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.coordinator.topic_regex import InvalidRegexError, compile_regex
from tidelog.coordinator.transaction import STATES_BY_TITLE, Transaction
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k66_list_transactions import (
    LIST_TRANSACTIONS,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


@handles(LIST_TRANSACTIONS, "0-2")
def handle_list_transactions(
    request: ListTransactionsRequest, context: RequestContext
) -> Steps[ListTransactionsResponse]:
    try:
        is_wanted = _filter(request, context.services.clock.now_ms())
        shards = context.services.transactions.shards()
    except InvalidRegexError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    unknown = dict.fromkeys(name for name in request.state_filters if name not in STATES_BY_TITLE)
    response = ListTransactionsResponse(unknown_state_filters=list(unknown))
    for shard in shards:
        # Transactions come and go while others have their turn.
        for transaction in tuple(shard.transactions()):
            if is_wanted(transaction):
                response.transaction_states.append(
                    TransactionState(
                        transactional_id=transaction.transactional_id,
                        producer_id=transaction.producer_id,
                        transaction_state=transaction.state.title,
                    )
                )
            yield 0
    return response


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[Transaction], bool]:
    states = {STATES_BY_TITLE[name] for name in request.state_filters if name in STATES_BY_TITLE}
    producer_ids = set(request.producer_id_filters)
    matches = compile_regex(request.transactional_id_pattern) if request.transactional_id_pattern else None

    def is_wanted(transaction: Transaction) -> bool:
        return (
            (not request.state_filters or transaction.state in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (request.duration_filter < 0 or now_ms - transaction.start_ms > request.duration_filter)
            and (matches is None or matches(transaction.transactional_id))
        )

    return is_wanted
