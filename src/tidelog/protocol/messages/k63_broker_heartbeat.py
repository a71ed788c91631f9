"""BrokerHeartbeat: a broker tells the controller that it is alive, and asks to be unfenced or to shut down (KIP-631).

Changes by version:

- v1: directories that went offline (KIP-858)
- v2: directories that take no new replicas (KIP-1066)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, v
from tidelog.protocol.types import Bool, Int16, Int32, Int64, Uuid

BROKER_HEARTBEAT = Api(63, versions="0-2", flexible="0+")


@request(BROKER_HEARTBEAT)
class BrokerHeartbeatRequest:
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64 = 0
    want_fence: Bool = False
    want_shut_down: Bool = False
    offline_log_dirs: list[Uuid] = v("1+", factory=list, tag=0)
    cordoned_log_dirs: list[Uuid] | None = v("2+", default=None, tag=1)


@response(BROKER_HEARTBEAT)
class BrokerHeartbeatResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    is_caught_up: Bool = False
    is_fenced: Bool = True
    should_shut_down: Bool = False
