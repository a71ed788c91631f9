"""Leaving a group: telling the coordinator, so that other members get the partitions right away, not after a timeout.

What always holds: it is tried once, and a failure is logged, not raised: the consumer leaves in any case, and the
coordinator notices when the session ends.
"""

from __future__ import annotations

import asyncio
import logging

from tidelog.client.consumer.commits import GroupOffsets
from tidelog.client.consumer.membership import Identity
from tidelog.client.errors import ClientError, error_code
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k13_leave_group import (
    LEAVE_GROUP,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

logger = logging.getLogger(__name__)

_SEVERAL_MEMBERS_FROM = 3


async def leave_group(
    offsets: GroupOffsets,
    group_id: str,
    identity: Identity,
    heartbeat: ConsumerGroupHeartbeatRequest | None,
    reason: str,
    timeout_s: float,
) -> None:
    """Tell the coordinator: with the last `heartbeat` of the consumer protocol, or else as a classic member.

    It uses the commit connection: a join may be in flight on the other one, and leaving must come after commits. Static
    members of classic groups don't tell: their place is kept until the session ends.
    """
    if heartbeat is None and identity.instance_id is not None:
        return
    try:
        async with asyncio.timeout(timeout_s):
            if heartbeat is None:
                code = await _leave_classic(offsets, group_id, identity, reason)
            else:
                code = await _leave_consumer(offsets, heartbeat)
    except (ClientError, TimeoutError) as error:
        logger.info("group %s: could not notify the coordinator that this member is leaving: %s", group_id, error)
        return
    if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
        logger.info("group %s: the coordinator refused to remove this member: %s", group_id, code.description)


async def _leave_classic(offsets: GroupOffsets, group_id: str, identity: Identity, reason: str) -> ErrorCode:
    connection = await offsets.connection()
    version = connection.version_for(LEAVE_GROUP)
    request = LeaveGroupRequest(group_id=group_id)
    if version >= _SEVERAL_MEMBERS_FROM:
        request.members = [MemberIdentity(member_id=identity.member_id, reason=reason)]
    else:
        request.member_id = identity.member_id
    response = await connection.request(LEAVE_GROUP, request, LeaveGroupResponse, version=version)
    refusals = [row.error_code for row in response.members if row.error_code != ErrorCode.NONE]
    return error_code(response.error_code or next(iter(refusals), 0))


async def _leave_consumer(offsets: GroupOffsets, heartbeat: ConsumerGroupHeartbeatRequest) -> ErrorCode:
    connection = await offsets.connection()
    response = await connection.request(CONSUMER_GROUP_HEARTBEAT, heartbeat, ConsumerGroupHeartbeatResponse)
    return error_code(response.error_code)
