"""FindCoordinator: finds the broker that coordinates a group, a transactional id or a share partition.

Changes by version:

- v1: key types, throttle time, error message (KIP-98)
- v2: responds before throttling (KIP-219)
- v3: flexible (KIP-482)
- v4: several keys at once (KIP-699)
- v5: may return TRANSACTION_ABORTABLE (KIP-890)
- v6: share coordinators, by the key "group:topic id:partition" (KIP-932)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int8, Int16, Int32, String

FIND_COORDINATOR = Api(10, versions="0-6", flexible="3+")


@request(FIND_COORDINATOR)
class FindCoordinatorRequest:
    key: String = v("0-3", default="")
    key_type: Int8 = v("1+", default=0)
    coordinator_keys: list[String] = v("4+", factory=list)


@struct
class Coordinator:
    key: String = v("4+", default="")
    node_id: Int32 = v("4+", default=0)
    host: String = v("4+", default="")
    port: Int32 = v("4+", default=0)
    error_code: Int16 = v("4+", default=0)
    error_message: String | None = v("4+", default="", ignorable=True)


@response(FIND_COORDINATOR)
class FindCoordinatorResponse:
    throttle_time_ms: Int32 = v("1+", default=0, ignorable=True)
    error_code: Int16 = v("0-3", default=0)
    error_message: String | None = v("1-3", default="", ignorable=True)
    node_id: Int32 = v("0-3", default=0)
    host: String = v("0-3", default="")
    port: Int32 = v("0-3", default=0)
    coordinators: list[Coordinator] = v("4+", factory=list)
