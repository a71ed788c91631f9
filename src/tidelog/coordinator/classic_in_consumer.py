"""Members of the classic protocol in a group of the new one: joins, assignments, heartbeats and leaves (KIP-848).

What always holds: such a member is a member like any other; its generation is its member epoch, and the coordinator
computes its assignment. A join is a step towards the member's target, based on what it reports to own; the sync after
it returns what it has now. It is asked to rejoin when there is more for it, or something to give up.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidelog.coordinator import classic_join
from tidelog.coordinator.actions import Action, Answer, CancelTimer, Client, Now, SetTimer
from tidelog.coordinator.classic_group import ClassicGroup
from tidelog.coordinator.classic_member import Protocols, protocols_of
from tidelog.coordinator.classic_records import rebalance_timeout_ms
from tidelog.coordinator.consumer_draft import GroupDraft, trigger_of
from tidelog.coordinator.consumer_group import JOIN_TIMER, SYNC_TIMER, ConsumerGroup
from tidelog.coordinator.consumer_member import ConsumerMember, MemberState
from tidelog.coordinator.consumer_writer import GroupWriter, Waiting, answerer
from tidelog.coordinator.group import CONSUMER_PROTOCOL_TYPE
from tidelog.coordinator.group_records import ClassicMemberMetadata, ClassicProtocol
from tidelog.coordinator.member_bytes import assignment_bytes, owned_partitions, subscription_of
from tidelog.coordinator.migration import downgrade, rebalance_downgraded
from tidelog.coordinator.rebalance_history import RebalanceCause
from tidelog.protocol import ErrorCode, KafkaError, ProtocolError
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.k13_leave_group import MemberIdentity
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from tidelog.coordinator.shard_state import ShardState

_ID_REQUIRED_FROM: Final = 4

FinishLeave = Callable[[list[ErrorCode]], list[Action]]


class ClassicInConsumer:
    """Requests from members of the classic protocol to groups of the new one."""

    def __init__(self, state: ShardState, writer: GroupWriter) -> None:
        self._state = state
        self._writer = writer

    # Joining

    def join(
        self, group: ConsumerGroup, request: JoinGroupRequest, client: Client, now: Now, exchange: int
    ) -> list[Action]:
        def handle(now: Now) -> list[Action]:
            current = self._state.groups.get(request.group_id)
            if current is not group:
                # The group was replaced while the request waited; the client retries.
                return refuse(ErrorCode.REBALANCE_IN_PROGRESS)
            try:
                return self._join(group, request, client, now, exchange)
            except KafkaError as error:
                return refuse(error.code)

        refuse = answerer(exchange, lambda error: JoinGroupResponse(error_code=error, member_id=request.member_id))
        return self._writer.in_turn(request.group_id, Waiting(handle, refuse), now)

    def _join(
        self, group: ConsumerGroup, request: JoinGroupRequest, client: Client, now: Now, exchange: int
    ) -> list[Action]:
        protocols = protocols_of(request.protocols)
        _check_protocols(group, request, protocols)
        if not request.member_id and request.group_instance_id is None and client.api_version >= _ID_REQUIRED_FROM:
            member_id = f"{client.client_id}-{uuid.uuid4()}"
            response = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
            return [Answer(exchange, response)]
        try:
            subscription = subscription_of(protocols[0][1])
        except ProtocolError as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None
        draft = GroupDraft(group, self._state.image)
        member = self._find_member(draft, request, client)
        updated = replace(
            member,
            instance_id=request.group_instance_id,
            rack_id=subscription.rack_id or member.rack_id,
            client_id=client.client_id,
            client_host=client.client_host,
            subscribed_topic_names=frozenset(subscription.topics),
            subscribed_topic_regex=None,
            rebalance_timeout_ms=rebalance_timeout_ms(request.rebalance_timeout_ms, request.session_timeout_ms),
            classic=ClassicMemberMetadata(
                session_timeout_ms=request.session_timeout_ms,
                supported_protocols=[ClassicProtocol(name=name, metadata=data) for name, data in protocols],
            ),
        )
        draft.check_room(updated, self._state)
        draft.put(member, updated)
        draft.note_topics(now)
        draft.assign(now)
        moved = draft.reconcile(updated, owned_partitions(subscription, self._state.image))
        classic = downgrade(draft, self._state, now)
        if classic is not None:
            return self._join_classic(classic, draft, request, client, moved, exchange, now)

        def done(error: ErrorCode, now: Now) -> list[Action]:
            if error:
                return [Answer(exchange, JoinGroupResponse(error_code=error, member_id=moved.member_id))]
            response = JoinGroupResponse(
                generation_id=moved.member_epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=protocols[0][0],
                member_id=moved.member_id,
            )
            sync_due_ms = now.monotonic_ms + moved.rebalance_timeout_ms
            return [
                CancelTimer((group.group_id, JOIN_TIMER, moved.member_id)),
                SetTimer((group.group_id, SYNC_TIMER, moved.member_id), sync_due_ms),
                group.session_timer(moved, now),
                Answer(exchange, response),
            ]

        return self._writer.write(draft, now, done)

    def _join_classic(
        self,
        classic: ClassicGroup,
        draft: GroupDraft,
        request: JoinGroupRequest,
        client: Client,
        member: ConsumerMember,
        exchange: int,
        now: Now,
    ) -> list[Action]:
        """This join replaced the last member of the new protocol: it continues in the classic group."""
        if draft.trigger is None:
            draft.trigger = trigger_of(RebalanceCause.MEMBER_REJOINED, member)

        def done(error: ErrorCode, now: Now) -> list[Action]:
            if error:
                return [Answer(exchange, JoinGroupResponse(error_code=error, member_id=request.member_id))]
            request.member_id = member.member_id
            return [
                *rebalance_downgraded(classic, draft, now),
                *classic_join.join(classic, request, client, now, exchange),
            ]

        return self._writer.write(draft, now, done, instead=classic)

    def _find_member(self, draft: GroupDraft, request: JoinGroupRequest, client: Client) -> ConsumerMember:
        """The existing member, or a new one; raises KafkaError if it may not join."""
        group = draft.group
        if request.group_instance_id is not None:
            static = group.static_member(request.group_instance_id)
            if request.member_id:
                return _check_static(static, request.member_id)
            if static is not None:
                return draft.replace_static(static, f"{request.group_instance_id}-{uuid.uuid4()}")
            member = None
        else:
            member = group.members.get(request.member_id)
        if member is None:
            if len(group.members) >= self._state.config.group_consumer_max_size:
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
            prefix = request.group_instance_id or client.client_id
            member = ConsumerMember(request.member_id or f"{prefix}-{uuid.uuid4()}")
        return member

    # Assignments and heartbeats

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, now: Now, exchange: int) -> list[Action]:
        def handle(now: Now) -> list[Action]:
            try:
                member = self._find(group, request.member_id, request.group_instance_id, request.generation_id)
                classic = member.classic
                assert classic is not None  # _find looked
                name, metadata = classic.supported_protocols[0].name, bytes(classic.supported_protocols[0].metadata)
                if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
                    request.protocol_name not in (None, name)
                ):
                    raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
                if group.epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                    return [*_expect_join(group, member, now), *refuse(ErrorCode.REBALANCE_IN_PROGRESS)]
            except KafkaError as error:
                return refuse(error.code)
            response = SyncGroupResponse(
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=name,
                assignment=assignment_bytes(member.assigned, metadata, self._state.image),
            )
            return [
                CancelTimer((group.group_id, SYNC_TIMER, member.member_id)),
                group.session_timer(member, now),
                Answer(exchange, response),
            ]

        refuse = answerer(exchange, lambda error: SyncGroupResponse(error_code=error))
        return self._writer.in_turn(request.group_id, Waiting(handle, refuse), now)

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, now: Now, exchange: int) -> list[Action]:
        def handle(now: Now) -> list[Action]:
            try:
                member = self._find(group, request.member_id, request.group_instance_id, request.generation_id)
            except KafkaError as error:
                return answer(error.code)
            actions: list[Action] = [group.session_timer(member, now)]
            if not _is_to_join(group, member):
                return actions + answer(ErrorCode.NONE)
            return [*actions, *_expect_join(group, member, now), *answer(ErrorCode.REBALANCE_IN_PROGRESS)]

        answer = answerer(exchange, lambda error: HeartbeatResponse(error_code=error))
        return self._writer.in_turn(request.group_id, Waiting(handle, answer), now)

    def _find(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
    ) -> ConsumerMember:
        if self._state.groups.get(group.group_id) is not group:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        if instance_id is not None:
            member = _check_static(group.static_member(instance_id), member_id)
        else:
            found = group.members.get(member_id)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            member = found
        if member.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation_id != member.member_epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member

    # Leaving

    def leave(
        self, group: ConsumerGroup, leaving: Sequence[MemberIdentity], now: Now, finish: FinishLeave
    ) -> list[Action]:
        """Remove members of either protocol: an administrator may remove anyone.

        `finish` makes the response from an error for each of them.
        """

        def handle(now: Now) -> list[Action]:
            if self._state.groups.get(group.group_id) is not group:
                return refuse(ErrorCode.UNKNOWN_MEMBER_ID)
            draft = GroupDraft(group, self._state.image)
            errors = [_take_out(draft, identity) for identity in leaving]
            gone = [member_id for member_id in group.members if member_id not in draft.members]
            classic = downgrade(draft, self._state, now) if gone else None

            def done(error: ErrorCode, now: Now) -> list[Action]:
                told = [error or own for own in errors]
                actions = [] if error else [action for name in gone for action in group.cancelled_timers(name)]
                if classic is not None and not error:
                    actions += rebalance_downgraded(classic, draft, now)
                return [*actions, *finish(told)]

            return self._writer.write(draft, now, done, instead=classic)

        def refuse(error: ErrorCode) -> list[Action]:
            return finish([error for _ in leaving])

        return self._writer.in_turn(group.group_id, Waiting(handle, refuse), now)


def _take_out(draft: GroupDraft, identity: MemberIdentity) -> ErrorCode:
    if identity.group_instance_id is not None:
        member = draft.group.static_member(identity.group_instance_id)
        if member is not None and identity.member_id not in ("", member.member_id):
            return ErrorCode.FENCED_INSTANCE_ID
    else:
        member = draft.group.members.get(identity.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.member_id in draft.members:  # a request may name a member twice
        draft.remove(member, RebalanceCause.MEMBER_LEFT)
    return ErrorCode.NONE


def _is_to_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether there is a newer epoch, something to give up, or something that became free for the member."""
    if member.member_epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and all(
        group.is_free(topic_id, number)
        for topic_id, numbers in group.target_of(member).items()
        for number in numbers - member.assigned.get(topic_id, frozenset())
    )


def _expect_join(group: ConsumerGroup, member: ConsumerMember, now: Now) -> list[Action]:
    """Ask the member to rejoin; it has its rebalance timeout for that, counted from the first time it was asked."""
    key = (group.group_id, JOIN_TIMER, member.member_id)
    if member.member_id in group.told_to_join:
        return []
    group.told_to_join.add(member.member_id)
    return [SetTimer(key, now.monotonic_ms + member.rebalance_timeout_ms)]


def _check_static(static: ConsumerMember | None, member_id: str) -> ConsumerMember:
    if static is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if static.member_id != member_id:
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
    return static


def _check_protocols(group: ConsumerGroup, request: JoinGroupRequest, protocols: Protocols) -> None:
    """All members of the classic protocol must be able to return to a classic group together."""
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not protocols:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    common = {name for name, _ in protocols}
    for member in group.members.values():
        if member.classic is not None and member.member_id != request.member_id:
            common &= {protocol.name for protocol in member.classic.supported_protocols}
    if not common:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
