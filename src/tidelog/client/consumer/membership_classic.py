"""A member of a classic group: it joins, a leader assigns the partitions, and all send heartbeats until a rebalance.

What always holds: a heartbeat, commit or sync carries the generation it was made in, and an answer to an older
generation changes nothing. With eager assignors a member owns nothing while it joins. With cooperative ones it keeps
what it owned, and gives up departing partitions before it joins again to release them. If the coordinator no longer
knows the member, everything it owned is lost. Pure: no sockets, no clock; `membership` says how it is driven.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping

from tidelog.client.consumer.assignors import Assignor, MemberSubscription, TopicLayout
from tidelog.client.consumer.group_leader import GroupLeader
from tidelog.client.consumer.group_refusals import explain_refusal
from tidelog.client.consumer.member_bytes import read_assignment, read_subscription, write_subscription
from tidelog.client.consumer.membership import NO_GENERATION, NO_MEMBER_ID, Identity, Retries, Turn
from tidelog.client.errors import ClientError, FatalError, InvalidResponseError, error_code
from tidelog.client.types import TopicPartition
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import ErrorCode, ProtocolError
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

logger = logging.getLogger(__name__)

PROTOCOL_TYPE = "consumer"

_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class _Phase(enum.Enum):
    UNJOINED = enum.auto()  # not in the group, or about to rejoin
    JOINING = enum.auto()  # JoinGroup is in flight
    ASSIGNING = enum.auto()  # this is the leader, and it needs the topics' metadata
    SYNCING = enum.auto()  # SyncGroup is to be sent or in flight
    STABLE = enum.auto()
    STALE = enum.auto()  # left because the user did not poll
    RESTING = enum.auto()  # an error must be raised to the user first


@dataclass(frozen=True, slots=True)
class ClassicConfig:
    """The settings of a classic member."""

    group_id: str
    assignors: tuple[Assignor, ...]
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_interval_ms: int = 3_000
    rack: str | None = None

    @property
    def is_cooperative(self) -> bool:
        """All assignors must agree: members have to know how to rebalance before they join."""
        return all(assignor.is_cooperative for assignor in self.assignors)


class ClassicMember:
    """One member of a classic group."""

    def __init__(self, config: ClassicConfig, pause_ms: Callable[[int], float]) -> None:
        self.config = config
        self.owned: frozenset[TopicPartition] = frozenset()
        self.error: ClientError | None = None
        self.coordinator_is_suspect = False
        self._phase = _Phase.UNJOINED
        self._generation = NO_GENERATION
        self._member_id = NO_MEMBER_ID
        self._topics: frozenset[str] = frozenset()
        self._rejoin_reason: str | None = "joins"
        self._is_prepared = False  # whether the partitions to give up before the join were given up
        self._in_turn = False
        self._leader: GroupLeader | None = None  # while this member is the group's leader
        self._protocol_name = ""
        self._plan: list[SyncGroupRequestAssignment] = []
        self._assignment: frozenset[TopicPartition] | None = None  # assigned, but not adopted yet
        self._retries = Retries(pause_ms)
        self._heartbeat_at_ms = 0.0
        self._in_flight: object | None = None

    # State

    @property
    def identity(self) -> Identity:
        return Identity(self._generation, self._member_id, self.config.instance_id)

    @property
    def is_stable(self) -> bool:
        return self._phase is _Phase.STABLE

    @property
    def is_stale(self) -> bool:
        return self._phase is _Phase.STALE

    @property
    def is_leader(self) -> bool:
        return self._leader is not None

    @property
    def _wants_to_join(self) -> bool:
        return self._rejoin_reason is not None and bool(self._topics)

    # Requests

    def next_request(self, now_ms: float) -> JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | None:
        request: JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | None = None
        if self._in_flight is not None or now_ms < self._retries.retry_at_ms:
            return None
        if self._phase is _Phase.SYNCING:
            request = self._sync_request()
        elif self._may_join():
            request = self._join_request()
        elif self._phase is _Phase.STABLE and now_ms >= self._heartbeat_at_ms:
            self._heartbeat_at_ms = now_ms + self.config.heartbeat_interval_ms
            request = HeartbeatRequest(
                group_id=self.config.group_id,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=self.config.instance_id,
            )
        self._in_flight = request
        return request

    def next_at_ms(self) -> float:
        if self._in_flight is not None:
            return float("inf")
        if self._phase is _Phase.SYNCING or self._may_join():
            return self._retries.retry_at_ms
        if self._phase is _Phase.STABLE:
            return max(self._heartbeat_at_ms, self._retries.retry_at_ms)
        return float("inf")

    def _may_join(self) -> bool:
        if self._phase not in (_Phase.UNJOINED, _Phase.STABLE) or not self._wants_to_join or self._in_turn:
            return False
        # An assignment that has arrived is adopted before the member rejoins.
        return self._assignment is None and (self._is_prepared or self._nothing_to_prepare())

    def _join_request(self) -> JoinGroupRequest | None:
        protocols = self._protocols()
        if protocols is None:
            return None
        reason = self._rejoin_reason
        self._phase = _Phase.JOINING
        self._rejoin_reason = None
        self._is_prepared = False
        self._leader = None
        return JoinGroupRequest(
            group_id=self.config.group_id,
            session_timeout_ms=self.config.session_timeout_ms,
            rebalance_timeout_ms=self.config.rebalance_timeout_ms,
            member_id=self._member_id,
            group_instance_id=self.config.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=reason,
        )

    def _protocols(self) -> list[JoinGroupRequestProtocol] | None:
        """The metadata that each assignor sends to the leader; None if one failed."""
        protocols = []
        for assignor in self.config.assignors:
            try:
                user_data = assignor.user_data(self._topics)
            except Exception as error:  # noqa: BLE001 - an assignor may be the user's own, and raise anything
                self._blame(assignor, error)
                return None
            subscription = MemberSubscription(
                topics=self._topics,
                owned=tuple(self.owned),
                generation=self._generation,
                user_data=user_data,
                rack=self.config.rack,
            )
            protocols.append(JoinGroupRequestProtocol(name=assignor.name, metadata=write_subscription(subscription)))
        return protocols

    def _sync_request(self) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self.config.group_id,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=self.config.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol_name,
            assignments=self._plan,
        )

    # Answers

    def on_response(self, request: object, response: object, now_ms: float) -> None:
        if request is not self._in_flight:
            return  # the member has left since then
        self._in_flight = None
        if isinstance(response, JoinGroupResponse):
            self._on_join(response, now_ms)
        elif isinstance(response, SyncGroupResponse):
            self._on_sync(response, now_ms)
        elif isinstance(response, HeartbeatResponse):
            self._on_heartbeat(response, now_ms)
        else:
            raise TypeError(f"not an answer to a member: {type(response).__name__}")

    def on_failure(self, request: object, error: ClientError, now_ms: float) -> None:
        """The request could not be sent or was not answered."""
        if request is not self._in_flight:
            return
        self._in_flight = None
        if isinstance(request, (JoinGroupRequest, SyncGroupRequest)):
            self._join_again("the coordinator could not be reached")
        self.coordinator_is_suspect = True
        self._fail(now_ms)

    def _fail(self, now_ms: float) -> None:
        """Retry the join or heartbeat after a pause."""
        self._retries.failed(now_ms)
        self._heartbeat_at_ms = self._retries.retry_at_ms

    def _on_join(self, response: JoinGroupResponse, now_ms: float) -> None:
        code = error_code(response.error_code)
        if code is ErrorCode.NONE:
            self._retries.succeeded()
            self._generation = response.generation_id
            self._member_id = response.member_id
            self._protocol_name = response.protocol_name or ""
            self._plan = []
            self._phase = _Phase.SYNCING
            if response.leader == response.member_id:
                members = {
                    row.member_id: read_subscription(row.member_id, row.metadata, row.group_instance_id)
                    for row in response.members
                }
                self._leader = GroupLeader(members, skips_plan=response.skip_assignment)
                self._phase = _Phase.ASSIGNING
            return
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
            self._join_again("needs a member id")
            self._is_prepared = True
        elif not self._is_thrown_out(code):
            self._join_again("the join was refused")
            self._on_refusal(code, "join", now_ms)

    def _on_sync(self, response: SyncGroupResponse, now_ms: float) -> None:
        code = error_code(response.error_code)
        if code is ErrorCode.NONE:
            try:
                assignment = read_assignment(response.assignment)
            except ProtocolError as error:
                self.fail(
                    InvalidResponseError(
                        f"group {self.config.group_id}: the leader's assignment can't be read: {error}; "
                        f"do all members use the same kind of {self._protocol_name} assignor?"
                    )
                )
                return
            self._retries.succeeded()
            self._heartbeat_at_ms = now_ms + self.config.heartbeat_interval_ms
            self._phase = _Phase.STABLE
            self._take(assignment, now_ms)
            return
        if not self._is_thrown_out(code):
            self._join_again("the group has started the next rebalance")
            if code is not ErrorCode.REBALANCE_IN_PROGRESS:
                self._on_refusal(code, "sync", now_ms)

    def _take(self, assignment: frozenset[TopicPartition], now_ms: float) -> None:
        """An assignment arrived; partitions of topics that were unsubscribed since then are not adopted."""
        unwanted = sorted({partition.topic for partition in assignment} - self._topics)
        if unwanted:
            logger.info("group %s: got %s, which it does not subscribe to", self.config.group_id, ", ".join(unwanted))
            self.request_rejoin("the subscription has changed")
            self._retries.failed(now_ms)
        else:
            self._assignment = assignment

    def _on_heartbeat(self, response: HeartbeatResponse, now_ms: float) -> None:
        code = error_code(response.error_code)
        if code is ErrorCode.NONE:
            self._retries.succeeded()
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("the group is rebalancing")
        elif not self._is_thrown_out(code):
            self._on_refusal(code, "heartbeat", now_ms)

    def _is_thrown_out(self, code: ErrorCode) -> bool:
        """Whether the coordinator no longer knows the member or its generation; then it owns nothing any more."""
        if code not in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            return False
        self._forget_membership(keeps_id=code is ErrorCode.ILLEGAL_GENERATION)
        return True

    def _on_refusal(self, code: ErrorCode, what: str, now_ms: float) -> None:
        if code in _MOVED:
            self.coordinator_is_suspect = True
            self._fail(now_ms)
        elif code.retriable or code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._fail(now_ms)
        else:
            self.fail(self._explain(code, what))

    def _explain(self, code: ErrorCode, what: str) -> ClientError:
        return explain_refusal(
            code,
            what,
            group_id=self.config.group_id,
            instance_id=self.config.instance_id,
            assignors=[assignor.name for assignor in self.config.assignors],
            session_timeout_ms=self.config.session_timeout_ms,
        )

    # The leader's work

    def topics_needed(self) -> frozenset[str] | None:
        """The topics whose metadata this leader needs before it can assign partitions."""
        return self._leader.topics if self._phase is _Phase.ASSIGNING and self._leader is not None else None

    def share_out(self, layout: TopicLayout) -> None:
        """The leader has the topics' metadata: make the plan."""
        if self._phase is not _Phase.ASSIGNING or self._leader is None:
            return
        assignor = self._assignor()
        if assignor is None:
            self.fail(self._explain(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "join"))
            return
        try:
            self._plan = self._leader.share_out(assignor, layout, is_cooperative=self.config.is_cooperative)
        except Exception as error:  # noqa: BLE001 - an assignor may be the user's own, and raise anything
            self._blame(assignor, error)
            return
        self._phase = _Phase.SYNCING

    def _assignor(self) -> Assignor | None:
        return next((each for each in self.config.assignors if each.name == self._protocol_name), None)

    def _blame(self, assignor: Assignor, error: Exception) -> None:
        wrapped = ClientError(f"group {self.config.group_id}: assignor {assignor.name} failed: {error}")
        wrapped.__cause__ = error
        self.fail(wrapped)

    def on_partition_counts(self, counts: Mapping[str, int]) -> None:
        """Fresh metadata of some topics: a leader whose plan is outdated asks for a rebalance."""
        if self._leader is None or self._rejoin_reason is not None:
            return
        changed = self._leader.changed(counts)
        if changed:
            self.request_rejoin(f"partitions of {', '.join(changed)} have changed")

    # Changes

    def subscribe(self, topics: frozenset[str], regex: str | None = None) -> None:
        """Classic members send topic names; those with a pattern resolve it themselves."""
        if topics != self._topics:
            self._topics = topics
            if self._phase is not _Phase.STALE:
                self.request_rejoin("the subscription has changed")

    def request_rejoin(self, reason: str) -> None:
        if self._rejoin_reason is None:
            self._rejoin_reason = reason
            self._is_prepared = False

    def _join_again(self, reason: str) -> None:
        """The pending join or sync failed; what was given up for it stays given up."""
        self._phase = _Phase.UNJOINED
        if self._rejoin_reason is None:
            self._rejoin_reason = reason
        self._is_prepared = self._gave_up_enough()

    def _forget_membership(self, *, keeps_id: bool) -> None:
        """The coordinator has moved on without this member: everything it owned is lost."""
        self._generation = NO_GENERATION
        if not keeps_id:
            self._member_id = NO_MEMBER_ID
        self._assignment = None
        self._leader = None
        self._phase = _Phase.UNJOINED
        self._rejoin_reason = self._rejoin_reason or "the group removed the member"
        self._is_prepared = False

    def poll_expired(self) -> bool:
        """The user has stopped polling: leave, so that others get the partitions right away."""
        tells = self._member_id != NO_MEMBER_ID and self.config.instance_id is None
        self._forget_membership(keeps_id=False)
        self._in_flight = None
        self._phase = _Phase.STALE
        return tells

    def poll_resumed(self) -> None:
        if self._phase is _Phase.STALE:
            self._phase = _Phase.UNJOINED

    def left(self) -> None:
        self._forget_membership(keeps_id=False)
        self._in_flight = None
        self._topics = frozenset()
        self._rejoin_reason = None
        self._in_turn = False  # a pending one was abandoned
        self.owned = frozenset()

    def fail(self, error: ClientError) -> None:
        """A problem that will not go away by itself: stop until the user has been told."""
        self._in_flight = None
        self.error = error
        self._phase = _Phase.RESTING
        self._assignment = None
        self._rejoin_reason = self._rejoin_reason or "tries again after an error"
        self._generation = NO_GENERATION
        if isinstance(error, FatalError):
            self._member_id = NO_MEMBER_ID

    def error_taken(self) -> None:
        """The user has been told; unless the error is fatal, try again."""
        if self.error is None or isinstance(self.error, FatalError):
            return
        self.error = None
        self._phase = _Phase.UNJOINED
        self._is_prepared = False

    def on_commit_error(self, code: ErrorCode, identity: Identity) -> None:
        if identity != self.identity or self._phase is not _Phase.STABLE:
            return  # it belongs to a generation that is gone anyway
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("the group is rebalancing")
        elif not self._is_thrown_out(code) and code is ErrorCode.FENCED_INSTANCE_ID:
            self.fail(self._explain(code, "commit"))

    # The user's turns

    def turn(self) -> Turn | None:
        if self._assignment is not None:
            return self._completion(self._assignment)
        if self._phase in (_Phase.UNJOINED, _Phase.STABLE):
            waits = self._wants_to_join and not self._is_prepared and not self._nothing_to_prepare()
            return self._preparation() if waits else None
        if self._phase in (_Phase.STALE, _Phase.RESTING) and self.owned:
            return self._preparation()
        return None

    def begin_turn(self) -> Turn | None:
        turn = self.turn()
        self._in_turn = turn is not None
        return turn

    def _gave_up_enough(self) -> bool:
        """Whether the member owns nothing that it must not own while it joins."""
        if self._generation != NO_GENERATION and self.config.is_cooperative:
            return all(partition.topic in self._topics for partition in self.owned)
        return not self.owned

    def _nothing_to_prepare(self) -> bool:
        """An eager member is told of every rebalance, even if it owns nothing."""
        is_told = self._generation != NO_GENERATION and not self.config.is_cooperative
        return not is_told and self._gave_up_enough()

    def _preparation(self) -> Turn:
        """Before a join: without a generation all is lost; eager members give all up, cooperative ones keep it."""
        if self._generation == NO_GENERATION:
            return Turn(tuple(sorted(self.owned)), frozenset(), is_lost=True, tells_going=True)
        going = self.owned
        if self.config.is_cooperative:
            going = frozenset(partition for partition in self.owned if partition.topic not in self._topics)
        return Turn(tuple(sorted(going)), self.owned - going, tells_going=True)

    def _completion(self, assignment: frozenset[TopicPartition]) -> Turn:
        going = self.owned - assignment
        return Turn(
            going=tuple(sorted(going)),
            remaining=self.owned - going,
            tells_going=bool(going),
            assignment=assignment,
            coming=tuple(sorted(assignment - self.owned)),
        )

    def turn_done(self, turn: Turn, now_ms: float) -> None:
        self._in_turn = False
        self.owned = turn.owned_after
        if turn.assignment is None:
            self._is_prepared = self._gave_up_enough()
            return
        if turn.assignment is not self._assignment:
            return  # removed from the group meanwhile: what was just adopted is lost in the next turn
        self._assignment = None
        assignor = self._assignor()
        if assignor is not None:
            try:
                assignor.on_assignment(tuple(sorted(turn.assignment)), self._generation)
            except Exception as error:  # noqa: BLE001 - an assignor may be the user's own, and raise anything
                self._blame(assignor, error)
                return
        if turn.going and self.config.is_cooperative:
            self.request_rejoin("gave partitions up, which can now go to others")
