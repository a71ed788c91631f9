"""Why a group rebalanced: what a Tidelog broker adds to the descriptions of groups for whoever asks for it.

It travels in tagged fields of requests and responses that Kafka has, with tags far above Kafka's own. Brokers and
clients that don't know them skip them, so a Tidelog client may ask any broker, and gets nothing from one that keeps no
history.
"""

from __future__ import annotations

from typing import Final

from tidelog.protocol.declare import struct
from tidelog.protocol.types import Int32, Int64, String

HISTORY_TAG: Final = 10_000


@struct
class RebalanceEntry:
    """One generation (epoch of a group of the new protocol) and what led to it."""

    generation: Int32 = 0
    cause: String = ""
    reason: String = ""
    member_id: String = ""
    group_instance_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    began_at_ms: Int64 = -1
    # How long consumers stood still; -1 while they still do.
    stood_still_ms: Int64 = -1
    members_before: Int32 = 0
    members_after: Int32 = 0
