"""BrokerRegistration (key 62): a broker that has started makes itself known to the controller (KIP-631).

Versions served: 0-4. For brokers only.

From its registration on a broker counts as alive: it registers once its logs are open. A broker whose last epoch is not
the one that its clean-shutdown marker tells may have lost records, and leaves every ISR first (KIP-966).
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.broker.services import FeatureRange
from tidelog.common.endpoint import Endpoint
from tidelog.controller.image import BrokerInfo
from tidelog.controller.membership import is_same_process
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k62_broker_registration import (
    BROKER_REGISTRATION,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)


@handles(BROKER_REGISTRATION, "0-4", internal=True)
async def handle_broker_registration(
    request: BrokerRegistrationRequest, context: RequestContext
) -> BrokerRegistrationResponse:
    controller = context.services.controller
    if not controller.is_active:
        return BrokerRegistrationResponse(error_code=ErrorCode.NOT_CONTROLLER)
    broker = _broker(request)
    image = controller.image
    if request.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"This is cluster {image.cluster_id}, not {request.cluster_id}."
        )
    _check_features(broker, context.services.features)
    await context.services.broker_watch.confirm(broker.node_id, broker.incarnation)
    known = controller.image.brokers.get(broker.node_id)
    # A process that lost its session may not have heard of its last registration, and names the one before.
    is_clean = known is not None and (
        known.epoch == request.previous_broker_epoch or is_same_process(known.incarnation, broker.incarnation)
    )
    epoch = await controller.register_broker(broker, clean_shutdown=is_clean)
    return BrokerRegistrationResponse(broker_epoch=epoch)


def _broker(request: BrokerRegistrationRequest) -> BrokerInfo:
    if request.broker_id < 0 or not request.listeners:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "A broker needs a node id and a listener.")
    return BrokerInfo(
        request.broker_id,
        -1,
        tuple(Endpoint(each.name, each.host, each.port) for each in request.listeners),
        request.rack,
        directories=tuple(request.log_dirs),
        incarnation=request.incarnation_id,
        features={each.name: (each.min_supported_version, each.max_supported_version) for each in request.features},
    )


def _check_features(broker: BrokerInfo, features: dict[str, FeatureRange]) -> None:
    """Refuse a broker that does not know what the cluster already uses (KIP-584)."""
    for name, feature in features.items():
        first, last = broker.features.get(name, (0, 0))
        if feature.finalized and not first <= feature.finalized <= last:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"The cluster uses level {feature.finalized} of {name}, this broker knows {first} to {last}.",
            )
