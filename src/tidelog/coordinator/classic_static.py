"""Static members that come back to a classic group (KIP-345): a restart within the session causes no rebalance.

An instance joins without a member id and replaces its former self under a new id; the old id is fenced. In a stable
group this is written before it takes effect: after a crash, the new coordinator must not fence the one answered last.

What always holds: a group has at most one such write in flight, so each sees what the previous one decided; other
instances that come back wait for it. If the group has changed in the meantime, the join is handled again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.coordinator.actions import Action, Answer, Append, Now
from tidelog.coordinator.appends import coordinator_error
from tidelog.coordinator.classic_group import ClassicGroup, ClassicState, ComingBack
from tidelog.coordinator.classic_member import ClassicMember, same_subscription
from tidelog.coordinator.classic_records import group_record
from tidelog.coordinator.rebalance_history import RebalanceCause
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k11_join_group import JoinGroupResponse

_SKIP_ASSIGNMENT_FROM: Final = 9


def come_back(
    group: ClassicGroup,
    instance: ClassicMember,
    exchange: int,
    api_version: int,
    again: Callable[[Now], list[Action]],
    now: Now,
    out: list[Action],
) -> None:
    """A known instance joins without its member id; `instance` is its new self."""
    old = _current(group, instance)
    if group.state is ClassicState.STABLE and _moves_nothing(group, old, instance):
        group.coming_back.append(ComingBack(exchange, again))
        if len(group.coming_back) == 1:
            out.append(_write(group, old, instance, api_version))
        return
    subscribes_anew = group.state is ClassicState.STABLE
    _take_place(group, old, instance, now, out)
    group.members.set_joining(instance, exchange)
    # Everyone must also rejoin while the leader computes its assignment: it would assign to an id that is gone.
    cause = RebalanceCause.SUBSCRIPTION_CHANGED if subscribes_anew else RebalanceCause.MEMBER_REJOINED
    group.rebalance(instance.trigger(cause), now, out)


def _current(group: ClassicGroup, instance: ClassicMember) -> ClassicMember:
    """The instance's current member."""
    member = group.members.get(group.members.static_id(instance.group_instance_id or "") or "")
    if member is None:
        raise LookupError(f"{instance.group_instance_id} is not a member of group {group.group_id}")
    return member


def _moves_nothing(group: ClassicGroup, old: ClassicMember, instance: ClassicMember) -> bool:
    """Whether the group can stay as it is: same protocol, same subscription."""
    chosen = group.members.choose_protocol({old.member_id: instance.protocols})
    return chosen == group.protocol_name and same_subscription(
        group.protocol_type, group.protocol_name, old.protocols, instance.protocols
    )


def _write(group: ClassicGroup, old: ClassicMember, instance: ClassicMember, api_version: int) -> Append:
    """Write the group with the instance under its new id, then apply that."""
    members = [instance if member is old else member for member in group.members]
    assignment = {member.member_id: member.assignment for member in group.members}
    assignment[instance.member_id] = old.assignment
    leader_id = instance.member_id if group.members.is_leader(old.member_id) else group.members.leader_id

    def outcome(error: ErrorCode, now: Now) -> list[Action]:
        if group.state is ClassicState.DEAD:
            return []  # whoever waited was told so
        out: list[Action] = []
        written, *waiting = group.coming_back
        group.coming_back.clear()
        if error is not ErrorCode.NONE:
            out.append(Answer(written.exchange, JoinGroupResponse(error_code=coordinator_error(error))))
        elif group.state is ClassicState.STABLE and group.members.get(old.member_id) is old:
            # It is the same generation: a later one could be stable only after a later write completed.
            former_leader_id = group.members.leader_id or ""
            _take_place(group, old, instance, now, out)
            out.append(Answer(written.exchange, _response(group, instance, former_leader_id, api_version)))
        else:
            out += written.again(now)
        for other in waiting:
            out += other.again(now)
        return out

    return group.shard.appends.start([group_record(group, members, leader_id, assignment)], outcome)


def _take_place(group: ClassicGroup, old: ClassicMember, instance: ClassicMember, now: Now, out: list[Action]) -> None:
    group.refuse_waiting(old, ErrorCode.FENCED_INSTANCE_ID, out)
    group.forget_session(old.member_id, out)
    instance.assignment = old.assignment
    group.members.replace(old, instance)
    group.expect_heartbeat(instance, now, out)


def _response(
    group: ClassicGroup, instance: ClassicMember, former_leader_id: str, api_version: int
) -> JoinGroupResponse:
    """The current generation. A leader must not assign again: the answer says so, or hides that it is the leader."""
    if api_version >= _SKIP_ASSIGNMENT_FROM:
        return group.join_response(instance, skip_assignment=group.members.is_leader(instance.member_id))
    response = group.join_response(instance)
    response.leader = former_leader_id
    response.members = []
    return response
