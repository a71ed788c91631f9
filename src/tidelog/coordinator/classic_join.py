"""JoinGroup to a classic group: who may join, and what happens in each state of the group.

The first join of a dynamic member gets an id to rejoin with (KIP-394), so a client that disappears before it sees the
answer leaves nothing but that id behind. Older clients become members immediately. Static members that come back
(KIP-345) are handled in `classic_static`.

What always holds: an exchange is answered immediately, waits as its member's only one, or waits for a write. If a
client repeats its join, the newest is answered; the older one gets REBALANCE_IN_PROGRESS.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import Final

from tidelog.coordinator import classic_static
from tidelog.coordinator.actions import Action, Answer, Client, Now
from tidelog.coordinator.classic_group import ClassicGroup, ClassicState
from tidelog.coordinator.classic_member import ClassicMember, Protocols, protocols_of, same_subscription
from tidelog.coordinator.classic_records import rebalance_timeout_ms
from tidelog.coordinator.rebalance_history import RebalanceCause
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse

_ID_REQUIRED_FROM: Final = 4

NEW_MEMBER_TIMEOUT_MS: Final = 300_000
"""How long a join without an earlier answer may wait. Its client can't send heartbeats, and if it went away and joined
again nobody knows; five minutes are Kafka's."""

_METADATA_CHANGED: Final = "cached metadata has changed"
"""The reason that Java's consumers give when their topics have other partitions than before."""


def join(group: ClassicGroup, request: JoinGroupRequest, client: Client, now: Now, exchange: int) -> list[Action]:
    """Handle one request; the group may have been created for it."""
    out: list[Action] = []
    protocols = protocols_of(request.protocols)
    if not _has_room(group, request):
        _turn_away(group, request.member_id, now, out)
        out.append(_refusal(exchange, ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
    elif not _speaks(group, request.protocol_type, protocols):
        out.append(_refusal(exchange, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
    elif error := _check_memory(group, request, client, protocols):
        out.append(_refusal(exchange, error, request.member_id))
    elif request.member_id:
        _join_with_id(group, request, client, protocols, now, exchange, out)
    elif request.group_instance_id is not None:
        instance = _new_member(request, client, f"{request.group_instance_id}-{uuid.uuid4()}", protocols)
        if group.members.static_id(request.group_instance_id) is None:
            _add(group, instance, request, now, exchange, out)
        else:
            # Checked again if it had to wait: by then the group may be in another state, or have other members.
            again = partial(join, group, request, client, exchange=exchange)
            classic_static.come_back(group, instance, exchange, client.api_version, again, now, out)
    elif client.api_version >= _ID_REQUIRED_FROM:
        member_id = f"{client.client_id}-{uuid.uuid4()}"
        group.members.give_id(member_id)
        group.expect_join(member_id, request.session_timeout_ms, now, out)
        out.append(_refusal(exchange, ErrorCode.MEMBER_ID_REQUIRED, member_id))
    else:
        member = _new_member(request, client, f"{client.client_id}-{uuid.uuid4()}", protocols)
        _add(group, member, request, now, exchange, out)
    return out


def _has_room(group: ClassicGroup, request: JoinGroupRequest) -> bool:
    """Members have their place; newcomers are taken up to group.max.size."""
    if group.is_empty:
        return True
    members = group.members
    member_id = request.member_id
    if not member_id and request.group_instance_id is not None:
        member_id = members.static_id(request.group_instance_id) or ""
    member = members.get(member_id)
    if group.state is ClassicState.PREPARING_REBALANCE:
        # Counting only those who have rejoined lets a group shrink after its limit was lowered.
        return (
            member is not None and member.joining is not None
        ) or members.joining_count < group.config.group_max_size
    return member is not None or len(members) < group.config.group_max_size


def _check_memory(group: ClassicGroup, request: JoinGroupRequest, client: Client, protocols: Protocols) -> ErrorCode:
    """Whether there is room for the member's details; they replace its earlier ones."""
    members = group.members
    known = members.get(request.member_id)
    if known is None and request.group_instance_id is not None:
        known = members.get(members.static_id(request.group_instance_id) or "")
    joining = _new_member(request, client, request.member_id, protocols)
    return group.shard.check_room(group.footprint, joining.size_bytes - (0 if known is None else known.size_bytes))


def _turn_away(group: ClassicGroup, member_id: str, now: Now, out: list[Action]) -> None:
    member = group.members.get(member_id)
    if member is not None:
        group.remove_member(member, out)
    elif group.members.take_back_id(member_id):
        group.forget_session(member_id, out)
    group.complete_join_when_all_have(now, out)


def _speaks(group: ClassicGroup, protocol_type: str, protocols: Protocols) -> bool:
    """Whether these protocols have one in common with all members."""
    if group.is_empty:
        return bool(protocol_type) and bool(protocols)
    return protocol_type == group.protocol_type and group.members.speak_one_of(name for name, _ in protocols)


def _new_member(request: JoinGroupRequest, client: Client, member_id: str, protocols: Protocols) -> ClassicMember:
    return ClassicMember(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=client.client_id,
        client_host=client.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms(request.rebalance_timeout_ms, request.session_timeout_ms),
        session_timeout_ms=request.session_timeout_ms,
        protocols=protocols,
    )


def _add(
    group: ClassicGroup, member: ClassicMember, request: JoinGroupRequest, now: Now, exchange: int, out: list[Action]
) -> None:
    member.joining = exchange
    member.is_new = True
    group.note_newcomer()
    if not len(group.members):
        group.protocol_type = request.protocol_type
    group.members.add(member)
    group.expect_heartbeat(member, now, out, NEW_MEMBER_TIMEOUT_MS)
    group.rebalance(member.trigger(RebalanceCause.MEMBER_JOINED, request.reason), now, out)


def _join_with_id(
    group: ClassicGroup,
    request: JoinGroupRequest,
    client: Client,
    protocols: Protocols,
    now: Now,
    exchange: int,
    out: list[Action],
) -> None:
    if request.member_id in group.members.pending_join and request.group_instance_id is None:
        _add(group, _new_member(request, client, request.member_id, protocols), request, now, exchange, out)
        return
    member = group.members.find(request.member_id, request.group_instance_id)
    if isinstance(member, ErrorCode):
        out.append(_refusal(exchange, member, request.member_id))
        return
    same = member.protocols == protocols
    if group.state is ClassicState.COMPLETING_REBALANCE and same:
        # Its answer was lost, or it has not synced yet: it gets the answer again.
        out.append(Answer(exchange, group.join_response(member)))
    elif group.state is ClassicState.STABLE and same and not group.members.is_leader(member.member_id):
        out.append(Answer(exchange, group.join_response(member)))
    else:
        cause = _cause(group, member, protocols, request.reason)
        _join_again(group, member, request, protocols, exchange, out)
        group.rebalance(member.trigger(cause, request.reason), now, out)


def _join_again(
    group: ClassicGroup,
    member: ClassicMember,
    request: JoinGroupRequest,
    protocols: Protocols,
    exchange: int,
    out: list[Action],
) -> None:
    if member.joining is not None:
        out.append(_refusal(member.joining, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    group.members.update(member, protocols)
    member.rebalance_timeout_ms = rebalance_timeout_ms(request.rebalance_timeout_ms, request.session_timeout_ms)
    member.session_timeout_ms = request.session_timeout_ms
    group.members.set_joining(member, exchange)


def _cause(group: ClassicGroup, member: ClassicMember, protocols: Protocols, reason: str | None) -> RebalanceCause:
    """Why a member rejoins, as far as that is known."""
    if not same_subscription(group.protocol_type, group.protocol_name, member.protocols, protocols):
        return RebalanceCause.SUBSCRIPTION_CHANGED
    if not group.members.is_leader(member.member_id):
        return RebalanceCause.MEMBER_REJOINED
    if group.partitions_grew() or (reason or "").startswith(_METADATA_CHANGED):
        return RebalanceCause.PARTITIONS_GREW
    return RebalanceCause.LEADER_REJOINED


def _refusal(exchange: int, error: ErrorCode, member_id: str) -> Answer:
    return Answer(exchange, JoinGroupResponse(error_code=error, member_id=member_id))
