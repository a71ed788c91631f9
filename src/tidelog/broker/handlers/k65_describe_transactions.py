"""DescribeTransactions (key 65): what is known of transactional ids (KIP-664). Version served: 0.

An id that is named several times is answered once.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import KafkaError
from tidelog.protocol.messages.k65_describe_transactions import (
    DESCRIBE_TRANSACTIONS,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)


@handles(DESCRIBE_TRANSACTIONS, "0")
def handle_describe_transactions(
    request: DescribeTransactionsRequest, context: RequestContext
) -> Steps[DescribeTransactionsResponse]:
    response = DescribeTransactionsResponse()
    for transactional_id in dict.fromkeys(request.transactional_ids):
        response.transaction_states.append(_describe(transactional_id, context))
        yield 0
    return response


def _describe(transactional_id: str, context: RequestContext) -> TransactionState:
    try:
        return context.services.transactions.shard_of(transactional_id).describe(transactional_id)
    except KafkaError as error:
        return TransactionState(error_code=error.code, transactional_id=transactional_id)
