"""ControllerRegistration: a controller that starts makes itself known to the active one (KIP-919)."""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, String, Uint16, Uuid

CONTROLLER_REGISTRATION = Api(70, versions="0", flexible="0+")


@struct
class Listener:
    name: String = ""
    host: String = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


@struct
class Feature:
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@request(CONTROLLER_REGISTRATION)
class ControllerRegistrationRequest:
    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    listeners: list[Listener] = v(factory=list)
    features: list[Feature] = v(factory=list)


@response(CONTROLLER_REGISTRATION)
class ControllerRegistrationResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
