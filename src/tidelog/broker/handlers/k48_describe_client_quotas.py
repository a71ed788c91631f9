"""DescribeClientQuotas (key 48): the quotas that match a filter (KIP-546).

Versions served: 0-1.
- 1: flexible.

This broker has no quotas, so no entry matches; a filter that makes no sense is refused as Kafka refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k48_describe_client_quotas import (
    DESCRIBE_CLIENT_QUOTAS,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_EXACT, _DEFAULT, _ANY = 0, 1, 2


@handles(DESCRIBE_CLIENT_QUOTAS, "0-1")
def handle_describe_client_quotas(
    request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    refusal = _refusal(request.components)
    if refusal is not None:
        error, message = refusal
        return DescribeClientQuotasResponse(error_code=error, error_message=message, entries=None)
    return DescribeClientQuotasResponse(error_message="")


def _refusal(components: Sequence[ComponentData]) -> tuple[ErrorCode, str] | None:
    types: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            return ErrorCode.INVALID_REQUEST, "A component of the filter has no entity type."
        if kind in types:
            return ErrorCode.INVALID_REQUEST, f"The filter names the entity type {kind} twice."
        types.add(kind)
        if component.match_type == _EXACT and component.match is None:
            return ErrorCode.INVALID_REQUEST, "An exact match needs a name."
        if component.match_type in (_DEFAULT, _ANY) and component.match is not None:
            return ErrorCode.INVALID_REQUEST, "Only an exact match takes a name."
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            return ErrorCode.INVALID_REQUEST, f"There is no match type {component.match_type}."
    unknown = types - {_USER, _CLIENT_ID, _IP}
    if unknown:
        return ErrorCode.UNSUPPORTED_VERSION, f"There is no entity type {', '.join(sorted(unknown))}."
    if _IP in types and len(types) > 1:
        return ErrorCode.INVALID_REQUEST, "A filter by ip can't be combined with others."
    return None
