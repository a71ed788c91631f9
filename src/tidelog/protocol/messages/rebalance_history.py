"""Why a group rebalanced: what a Tidelog broker adds to group descriptions on request.

It is sent in tagged fields of Kafka's own requests and responses, with tags far above Kafka's. Brokers and clients that
don't know these tags skip them, so a Tidelog client can ask any broker, and gets nothing from one without a history.
"""

from __future__ import annotations

from typing import Final

from tidelog.protocol.declare import struct
from tidelog.protocol.types import Int32, Int64, String

HISTORY_TAG: Final = 10_000


@struct
class RebalanceEntry:
    """One generation (in the new protocol, group epoch) and what led to it."""

    generation: Int32 = 0
    cause: String = ""
    reason: String = ""
    member_id: String = ""
    group_instance_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    began_at_ms: Int64 = -1
    # How long consumers were stopped; -1 while they still are.
    stood_still_ms: Int64 = -1
    members_before: Int32 = 0
    members_after: Int32 = 0
