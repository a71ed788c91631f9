"""BrokerRegistration: a starting broker registers with the controller and gets its epoch (KIP-631).

Changes by version:

- v1: whether the broker is migrating from ZooKeeper (KIP-866)
- v2: directory ids (KIP-858)
- v3: the previous epoch, which shows whether the shutdown was clean (KIP-966)
- v4: a feature's lowest version may be zero
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, Int64, String, Uint16, Uuid

BROKER_REGISTRATION = Api(62, versions="0-4", flexible="0+")


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


@request(BROKER_REGISTRATION)
class BrokerRegistrationRequest:
    broker_id: Int32 = 0
    cluster_id: String = ""
    incarnation_id: Uuid = ZERO_UUID
    listeners: list[Listener] = v(factory=list)
    features: list[Feature] = v(factory=list)
    rack: String | None = ""
    is_migrating_zk_broker: Bool = v("1+", default=False)
    log_dirs: list[Uuid] = v("2+", factory=list, ignorable=True)
    previous_broker_epoch: Int64 = v("3+", default=-1, ignorable=True)


@response(BROKER_REGISTRATION)
class BrokerRegistrationResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    broker_epoch: Int64 = -1
