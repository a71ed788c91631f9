"""Heartbeats of the new consumer protocol (KIP-848): joining, staying, reporting and leaving, all in one request.

What always holds: a heartbeat's changes are written in one batch; they take effect, and the heartbeat is answered, when
the batch is committed. A member that is silent for its session timeout, or does not give up partitions within its
rebalance timeout, is removed. A classic consumer group becomes one of the new protocol when a member that uses it
joins, and a classic one again when the last such member has left (`migration`).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tidelog.coordinator.actions import Action, Answer, CancelTimer, Client, Now, TimerKey
from tidelog.coordinator.assignors import Partitions
from tidelog.coordinator.classic_group import ClassicGroup
from tidelog.coordinator.consumer_description import describe_group
from tidelog.coordinator.consumer_draft import GroupDraft
from tidelog.coordinator.consumer_group import JOIN_TIMER, REBALANCE_TIMER, ConsumerGroup
from tidelog.coordinator.consumer_member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    NOTHING,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    is_within,
)
from tidelog.coordinator.consumer_writer import Done, GroupWriter, Waiting, answerer, nobody
from tidelog.coordinator.group_records import ConsumerGroupMetadataKey
from tidelog.coordinator.migration import downgrade, rebalance_downgraded, upgrade
from tidelog.coordinator.rebalance_history import RebalanceCause
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from tidelog.protocol.messages.k69_consumer_group_describe import DescribedGroup

if TYPE_CHECKING:
    from tidelog.coordinator.shard_state import ShardState

_MEMBERS_NAME_THEMSELVES_FROM: Final = 1


class ConsumerRequests:
    """The requests of the new protocol in one shard."""

    def __init__(self, state: ShardState, writer: GroupWriter) -> None:
        self._state = state
        self._writer = writer

    def replay(self, key: Any, value: Any | None) -> None:
        """Apply a record of a consumer group."""
        group = self._state.groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = ConsumerGroup(key.group_id, self._state.configs)
            self._state.put_group(group)
        group.apply(key, value)
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            self._state.drop_group(key.group_id)

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, now: Now, exchange: int
    ) -> list[Action]:
        def handle(now: Now) -> list[Action]:
            try:
                _check_request(request, client, self._state.config.group_consumer_assignors)
                if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
                    return self._leave(request, now, exchange)
                return self._stay(request, client, now, exchange)
            except KafkaError as error:
                refusal = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
                return [Answer(exchange, refusal)]

        refuse = answerer(exchange, lambda error: ConsumerGroupHeartbeatResponse(error_code=error))
        return self._writer.in_turn(request.group_id, Waiting(handle, refuse), now)

    def describe(self, group_id: str, *, include_history: bool) -> DescribedGroup:
        group = self._state.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            reason = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
            return DescribedGroup(error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=reason, group_id=group_id)
        described = describe_group(group, self._state.image)
        if include_history:
            described.history = group.history.rows()
        return described

    def on_timer(self, group: ConsumerGroup, key: TimerKey, now: Now) -> list[Action]:
        """A member's session has ended, or its time to give up partitions."""
        _, kind, member_id = key
        expiry = Waiting(lambda now: self._expire(group, str(kind), str(member_id), now), nobody)
        return self._writer.in_turn(group.group_id, expiry, now)

    # A member that stays or joins

    def _stay(self, request: ConsumerGroupHeartbeatRequest, client: Client, now: Now, exchange: int) -> list[Action]:
        draft = self._draft(request.group_id, create=request.member_epoch == JOINING_EPOCH)
        group = draft.group
        owned = _owned(request)
        member = self._find_member(draft, request, owned)
        updated = _updated(member, request, client)
        if updated != member:
            draft.check_room(updated, self._state)
        draft.put(member, updated)
        draft.note_topics(now)
        draft.assign(now)
        moved = draft.reconcile(updated, owned)
        is_full = request.member_epoch == JOINING_EPOCH or (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and owned is not None
        )

        def done(error: ErrorCode, now: Now) -> list[Action]:
            if error:
                return [Answer(exchange, ConsumerGroupHeartbeatResponse(error_code=error))]
            response = ConsumerGroupHeartbeatResponse(
                member_id=moved.member_id,
                member_epoch=moved.member_epoch,
                heartbeat_interval_ms=group.config.group_consumer_heartbeat_interval_ms,
            )
            if is_full or moved.assigned != member.assigned:
                response.assignment = _assignment(moved.assigned)
            return [*_timers(group, member, moved, now), Answer(exchange, response)]

        return self._writer.write(draft, now, done)

    def _draft(self, group_id: str, *, create: bool) -> GroupDraft:
        if create and (error := self._state.check_unchanging(group_id)):
            raise KafkaError(error, "The group is being changed.")
        group = self._state.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return GroupDraft(group, self._state.image)
        if create and group is None:
            return GroupDraft(ConsumerGroup(group_id, self._state.configs), self._state.image)
        if create and isinstance(group, ClassicGroup):
            upgraded = upgrade(group, self._state.configs, self._state.image)
            if upgraded is not None:
                return upgraded
        reason = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, reason)

    def _find_member(
        self, draft: GroupDraft, request: ConsumerGroupHeartbeatRequest, owned: Partitions | None
    ) -> ConsumerMember:
        """The existing member, or a new one; checks that it may send this request."""
        group = draft.group
        is_joining = request.member_epoch == JOINING_EPOCH
        member_id = request.member_id or str(uuid.uuid4())
        if request.instance_id is not None:
            static = group.static_member(request.instance_id)
            if is_joining and static is not None and static.member_id != member_id:
                if static.member_epoch != STATIC_LEAVING_EPOCH and static.classic is None:
                    raise KafkaError(
                        ErrorCode.UNRELEASED_INSTANCE_ID, f"Instance id {request.instance_id} is still in use."
                    )
                return draft.replace_static(static, member_id)
            if not is_joining:
                _check_static(static, request)
        member = group.members.get(member_id)
        if member is None:
            if not is_joining:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group.")
            if len(group.members) >= self._state.config.group_consumer_max_size:
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, "The group is full.")
            return ConsumerMember(member_id)
        _check_epoch(member, request.member_epoch, owned)
        return member

    # A member that leaves, or is gone

    def _leave(self, request: ConsumerGroupHeartbeatRequest, now: Now, exchange: int) -> list[Action]:
        draft = self._draft(request.group_id, create=False)
        group = draft.group
        if request.instance_id is not None:
            _check_static(group.static_member(request.instance_id), request)
        member = group.members.get(request.member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of the group.")

        def done(error: ErrorCode, now: Now) -> list[Action]:
            response = ConsumerGroupHeartbeatResponse(
                error_code=error, member_id=request.member_id, member_epoch=request.member_epoch
            )
            return [Answer(exchange, response)]

        if request.member_epoch == STATIC_LEAVING_EPOCH:
            # It keeps its partitions until its session ends or it comes back.
            draft.put_assignment(replace(member, member_epoch=STATIC_LEAVING_EPOCH, pending_revocation=NOTHING))
            return self._writer.write(draft, now, done)
        return self._remove(draft, member, RebalanceCause.MEMBER_LEFT, now, done)

    def _expire(self, group: ConsumerGroup, kind: str, member_id: str, now: Now) -> list[Action]:
        if self._state.groups.get(group.group_id) is not group:
            return []
        member = group.members.get(member_id)
        if member is None or (kind == REBALANCE_TIMER and not member.pending_revocation):
            return []
        if kind == JOIN_TIMER and member_id not in group.told_to_join:
            return []

        def done(error: ErrorCode, now: Now) -> list[Action]:
            # If the write failed, try again when the member's next session would have ended.
            return [group.session_timer(member, now)] if error else []

        draft = GroupDraft(group, self._state.image)
        return self._remove(draft, member, RebalanceCause.MEMBER_TIMED_OUT, now, done)

    def _remove(
        self, draft: GroupDraft, member: ConsumerMember, cause: RebalanceCause, now: Now, done: Done
    ) -> list[Action]:
        group = draft.group
        draft.remove(member, cause)
        classic = downgrade(draft, self._state, now)

        def removed(error: ErrorCode, now: Now) -> list[Action]:
            actions = [] if error else group.cancelled_timers(member.member_id)
            if classic is not None and not error:
                actions += rebalance_downgraded(classic, draft, now)
            return [*actions, *done(error, now)]

        return self._writer.write(draft, now, removed, instead=classic)


def _timers(group: ConsumerGroup, old: ConsumerMember, new: ConsumerMember, now: Now) -> list[Action]:
    actions: list[Action] = [group.session_timer(new, now)]
    if new.pending_revocation and not old.pending_revocation:
        actions.append(group.rebalance_timer(new, now))
    elif old.pending_revocation and not new.pending_revocation:
        actions.append(CancelTimer((group.group_id, REBALANCE_TIMER, new.member_id)))
    return actions


def _check_static(static: ConsumerMember | None, request: ConsumerGroupHeartbeatRequest) -> None:
    if static is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
    if static.member_id != request.member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID, f"Instance id {request.instance_id} belongs to another member now."
        )


def _check_request(request: ConsumerGroupHeartbeatRequest, client: Client, assignors: Sequence[str]) -> None:
    def refuse(reason: str) -> KafkaError:
        return KafkaError(ErrorCode.INVALID_REQUEST, reason)

    if not request.group_id:
        raise refuse("GroupId can't be empty.")
    if request.instance_id == "":
        raise refuse("InstanceId can't be empty.")
    if request.rack_id == "":
        raise refuse("RackId can't be empty.")
    if not request.member_id and (
        request.member_epoch != JOINING_EPOCH or client.api_version >= _MEMBERS_NAME_THEMSELVES_FROM
    ):
        raise refuse("MemberId can't be empty.")
    if request.member_epoch < STATIC_LEAVING_EPOCH:
        raise refuse(f"MemberEpoch {request.member_epoch} is invalid.")
    if request.member_epoch == STATIC_LEAVING_EPOCH and request.instance_id is None:
        raise refuse("InstanceId can't be null when a static member leaves for a while.")
    if request.member_epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise refuse("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise refuse("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise refuse("SubscribedTopicNames or SubscribedTopicRegex must be set in first request.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    # A member that was fenced, or restarted with the same id, has given up everything before it rejoins.
    if epoch in (JOINING_EPOCH, member.member_epoch):
        return
    # The response with the new epoch may have been lost: then the member still has the previous epoch and some of
    # the partitions it was assigned.
    may_be_late = epoch == member.previous_member_epoch and epoch < member.member_epoch
    if may_be_late and owned is not None and is_within(owned, member.assigned):
        return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member has epoch {epoch}, the coordinator knows {member.member_epoch}. "
        "The member must abandon all its partitions and rejoin.",
    )


def _updated(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client: Client) -> ConsumerMember:
    """The member with the details it sent; what it left out stays as it was."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex or None,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return {row.topic_id: frozenset(row.partitions) for row in request.topic_partitions if row.partitions}


def _assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in sorted(partitions.items())
        ]
    )
