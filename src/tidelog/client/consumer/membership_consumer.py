"""A member of the consumer protocol (KIP-848): the coordinator assigns partitions in its heartbeat responses.

What always holds: the member makes up its own id and keeps it for life. It sends its full state when it joins and after
anything that may have lost a heartbeat, otherwise only changes. It gives up revoked partitions before it says so, and
only then can others get them. After the coordinator has fenced it, everything it owned is lost and it joins again with
epoch 0. Pure: no sockets, no clock; `membership` says how it is driven.
"""

from __future__ import annotations

import base64
import enum
import logging
import uuid
from collections.abc import Callable, Mapping

from tidelog.client.consumer.group_refusals import explain_refusal
from tidelog.client.consumer.membership import Identity, Retries, Turn
from tidelog.client.errors import ClientError, FatalError, error_code
from tidelog.client.types import TopicPartition
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)

logger = logging.getLogger(__name__)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2  # keeps the place for a member that returns with the same group.instance.id

# Coordinators make plans at most once a second, so a member that joins right after another left gets no partitions at
# first. With the next regular heartbeat it would learn of its own after five seconds by default, so it sends a few
# earlier ones.
_EARLY_HEARTBEATS = 6
_EARLY_HEARTBEAT_MS = 500.0

_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


class _Phase(enum.Enum):
    OUTSIDE = enum.auto()  # not in the group; joins once there is a subscription and nothing is owned
    INSIDE = enum.auto()
    STALE = enum.auto()  # left because the user did not poll
    RESTING = enum.auto()  # an error must be raised to the user first


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The settings of a member of the consumer protocol."""

    group_id: str
    instance_id: str | None = None
    remote_assignor: str | None = None
    rebalance_timeout_ms: int = 300_000
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """What the coordinator was last told about this member."""

    topics: frozenset[str]
    regex: str | None
    owned: frozenset[TopicPartition]


class ConsumerMember:
    """One member of a group that uses the consumer protocol."""

    def __init__(
        self, config: ConsumerConfig, pause_ms: Callable[[int], float], *, member_id: str | None = None
    ) -> None:
        self.config = config
        self.owned: frozenset[TopicPartition] = frozenset()
        self.error: ClientError | None = None
        self.coordinator_is_suspect = False
        self._regex_is_refused = False
        self._matched: frozenset[str] = frozenset()  # topics known to match the regular expression
        self._member_id = new_member_id() if member_id is None else member_id
        self._epoch = JOIN_EPOCH
        self._phase = _Phase.OUTSIDE
        self._topics: frozenset[str] = frozenset()
        self._regex: str | None = None
        self._told: _Told | None = None
        self._heartbeat_interval_ms = 0
        self._heartbeat_at_ms = 0.0
        self._early_heartbeats_left = 0
        # The coordinator's latest assignment for this member, by topic id.
        self._target: Mapping[uuid.UUID, frozenset[int]] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._has_new_target = False
        self._knows_assignment = False  # the user was told of an assignment since the member joined
        self._must_confirm = False
        self._in_turn = False
        self._retries = Retries(pause_ms)
        self._in_flight: object | None = None

    # State

    @property
    def identity(self) -> Identity:
        if self._phase is not _Phase.INSIDE:
            return Identity(member_id=self._member_id, instance_id=self.config.instance_id)
        return Identity(self._epoch, self._member_id, self.config.instance_id)

    @property
    def is_stable(self) -> bool:
        return self._phase is _Phase.INSIDE

    @property
    def is_stale(self) -> bool:
        return self._phase is _Phase.STALE

    # Requests

    def next_request(self, now_ms: float) -> ConsumerGroupHeartbeatRequest | None:
        if self._in_flight is not None or now_ms < self._retries.retry_at_ms:
            return None
        if self._may_join():
            self._epoch = JOIN_EPOCH
            self._told = None
            self._early_heartbeats_left = _EARLY_HEARTBEATS
        elif self._phase is not _Phase.INSIDE or not (self._has_news() or now_ms >= self._heartbeat_at_ms):
            return None
        request = self._heartbeat_request()
        self._heartbeat_at_ms = now_ms + self._heartbeat_interval_ms
        self._must_confirm = False
        self._told = _Told(self._topics, self._regex, self.owned)
        self._in_flight = request
        return request

    def next_at_ms(self) -> float:
        if self._in_flight is not None:
            return float("inf")
        if self._may_join() or (self._phase is _Phase.INSIDE and self._has_news()):
            return self._retries.retry_at_ms
        if self._phase is _Phase.INSIDE:
            return max(self._heartbeat_at_ms, self._retries.retry_at_ms)
        return float("inf")

    def _may_join(self) -> bool:
        wanted = bool(self._topics) or self._regex is not None
        return self._phase is _Phase.OUTSIDE and wanted and not self.owned and not self._in_turn

    def _has_news(self) -> bool:
        """Whether there is something to send before the next heartbeat is due."""
        if self._told is None or self._must_confirm:
            return True
        return (self._topics, self._regex) != (self._told.topics, self._told.regex)

    def _heartbeat_request(self) -> ConsumerGroupHeartbeatRequest:
        told, config = self._told, self.config
        request = ConsumerGroupHeartbeatRequest(
            group_id=config.group_id,
            member_id=self._member_id,
            member_epoch=self._epoch,
            instance_id=config.instance_id,
        )
        if told is None:
            request.rack_id = config.rack
            request.rebalance_timeout_ms = config.rebalance_timeout_ms
            request.server_assignor = config.remote_assignor
        if told is None or told.topics != self._topics:
            request.subscribed_topic_names = sorted(self._topics)
        if self._regex is not None and (told is None or told.regex != self._regex):
            request.subscribed_topic_regex = self._regex
        elif self._regex is None and told is not None and told.regex is not None:
            request.subscribed_topic_regex = ""
        if told is None or told.owned != self.owned or self._must_confirm:
            request.topic_partitions = self._owned_rows()
        return request

    def _owned_rows(self) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        rows: dict[str, list[int]] = {}
        for topic, number in sorted(self.owned):
            rows.setdefault(topic, []).append(number)
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=self._topic_ids[topic], partitions=numbers)
            for topic, numbers in rows.items()
        ]

    def leave_request(self) -> ConsumerGroupHeartbeatRequest:
        """The last heartbeat."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.config.group_id,
            member_id=self._member_id,
            member_epoch=LEAVE_EPOCH if self.config.instance_id is None else STATIC_LEAVE_EPOCH,
            instance_id=self.config.instance_id,
        )

    # Answers

    def on_response(self, request: object, response: object, now_ms: float) -> None:
        if request is not self._in_flight:
            return  # the member has left since then
        self._in_flight = None
        if not isinstance(request, ConsumerGroupHeartbeatRequest) or not isinstance(
            response, ConsumerGroupHeartbeatResponse
        ):
            raise TypeError(f"not an answer to a member: {type(response).__name__}")
        code = error_code(response.error_code)
        if code is ErrorCode.NONE:
            self._retries.succeeded()
            self._on_heartbeat(response, now_ms)
            return
        self._told = None
        if code in _FENCED:
            logger.info("group %s: the member was fenced and is rejoining (%s)", self.config.group_id, code.name)
            self._go_outside()
        elif code in _MOVED:
            self.coordinator_is_suspect = True
            self._fail(now_ms)
        elif code is ErrorCode.INVALID_REGULAR_EXPRESSION and self._regex is not None:
            self.match_names()
        elif code.retriable:
            self._fail(now_ms)
        else:
            self.fail(self._explain(code, response.error_message))

    def _on_heartbeat(self, response: ConsumerGroupHeartbeatResponse, now_ms: float) -> None:
        self._phase = _Phase.INSIDE
        self._epoch = response.member_epoch
        if response.member_id:
            self._member_id = response.member_id
        self._heartbeat_interval_ms = response.heartbeat_interval_ms
        if response.assignment is not None:
            target: dict[uuid.UUID, frozenset[int]] = {}
            for row in response.assignment.topic_partitions:
                target[row.topic_id] = target.get(row.topic_id, frozenset()) | frozenset(row.partitions)
            self._target = target
            self._has_new_target = True
        self._heartbeat_at_ms = now_ms + self._until_next_heartbeat_ms()

    def _until_next_heartbeat_ms(self) -> float:
        if self._target or not self._early_heartbeats_left:
            return self._heartbeat_interval_ms
        self._early_heartbeats_left -= 1
        return min(self._heartbeat_interval_ms, _EARLY_HEARTBEAT_MS)

    def on_failure(self, request: object, error: ClientError, now_ms: float) -> None:
        """The request failed or got no response; it may have arrived, so the next one repeats the full state."""
        if request is not self._in_flight:
            return
        self._in_flight = None
        self._told = None
        self.coordinator_is_suspect = True
        self._fail(now_ms)

    def _fail(self, now_ms: float) -> None:
        self._retries.failed(now_ms)
        self._heartbeat_at_ms = self._retries.retry_at_ms

    def _explain(self, code: ErrorCode, message: str | None) -> ClientError:
        config = self.config
        assignors = () if config.remote_assignor is None else (config.remote_assignor,)
        return explain_refusal(
            code,
            "heartbeat",
            group_id=config.group_id,
            instance_id=config.instance_id,
            assignors=assignors,
            message=message,
        )

    # Topic names, because the protocol uses ids

    def unknown_topic_ids(self) -> frozenset[uuid.UUID]:
        """Assigned topics whose names are not known yet; they are adopted only once their names are known."""
        return frozenset(topic_id for topic_id in self._target if topic_id not in self._names)

    def name_topics(self, name_of: Callable[[uuid.UUID], str | None]) -> None:
        for topic_id in self.unknown_topic_ids():
            name = name_of(topic_id)
            if name is not None:
                self._names[topic_id] = name
                self._has_new_target = True

    def _wanted(self) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(self._names[topic_id], number)
            for topic_id, numbers in self._target.items()
            if topic_id in self._names
            for number in numbers
        )

    # Changes

    def subscribe(self, topics: frozenset[str], regex: str | None) -> None:
        self._matched = topics
        self._regex = None if self._regex_is_refused else regex
        self._topics = topics if self._regex is None else frozenset()

    def match_names(self) -> None:
        """The coordinator doesn't support regular expressions, or not this one: send names instead."""
        self._in_flight = None
        self._regex_is_refused = True
        self.subscribe(self._matched, None)

    @property
    def topics(self) -> frozenset[str]:
        return self._topics

    @property
    def uses_regex(self) -> bool:
        return self._regex is not None

    def request_rejoin(self, reason: str) -> None:
        """The coordinator decides when to rebalance; a member can only resend its full state."""
        logger.info("group %s: %s", self.config.group_id, reason)
        self._told = None

    def _go_outside(self) -> None:
        self._phase = _Phase.OUTSIDE
        self._epoch = JOIN_EPOCH
        self._told = None
        self._target = {}
        self._has_new_target = False
        self._knows_assignment = False
        self._must_confirm = False

    def poll_expired(self) -> bool:
        was_inside = self._phase is _Phase.INSIDE
        self._go_outside()
        self._in_flight = None
        self._phase = _Phase.STALE
        return was_inside

    def poll_resumed(self) -> None:
        if self._phase is _Phase.STALE:
            self._phase = _Phase.OUTSIDE

    def left(self) -> None:
        self._go_outside()
        self._in_flight = None
        self._topics = frozenset()
        self._regex = None
        self._in_turn = False  # a pending one was abandoned
        self.owned = frozenset()

    def fail(self, error: ClientError) -> None:
        """A problem that will not go away by itself: stop until the user has been told."""
        self._in_flight = None
        self._go_outside()
        self.error = error
        self._phase = _Phase.RESTING

    def error_taken(self) -> None:
        if self.error is None or isinstance(self.error, FatalError):
            return
        self.error = None
        self._phase = _Phase.OUTSIDE

    def on_commit_error(self, code: ErrorCode, identity: Identity) -> None:
        """Send the next heartbeat immediately, to learn the coordinator's view of this member."""
        if self._phase is _Phase.INSIDE and identity == self.identity:
            self._told = None

    # The user's turns

    def turn(self) -> Turn | None:
        if self._phase is not _Phase.INSIDE:
            return Turn(tuple(sorted(self.owned)), frozenset(), is_lost=True, tells_going=True) if self.owned else None
        if not self._has_new_target:
            return None
        wanted = self._wanted()
        if wanted == self.owned and (self._knows_assignment or self.unknown_topic_ids()):
            return None  # nothing is new, or the new part still needs a name
        going = self.owned - wanted
        return Turn(
            going=tuple(sorted(going)),
            remaining=self.owned - going,
            tells_going=bool(going),
            assignment=wanted,
            coming=tuple(sorted(wanted - self.owned)),
        )

    def begin_turn(self) -> Turn | None:
        turn = self.turn()
        self._in_turn = turn is not None
        if turn is not None and turn.assignment is not None:
            self._has_new_target = False
            self._topic_ids = {
                self._names[topic_id]: topic_id for topic_id in self._target if topic_id in self._names
            } | {topic: self._topic_ids[topic] for topic in {each.topic for each in turn.going}}
        return turn

    def turn_done(self, turn: Turn, now_ms: float) -> None:
        self._in_turn = False
        self.owned = turn.owned_after
        if turn.assignment is not None and self._phase is _Phase.INSIDE:
            self._must_confirm = True
            self._knows_assignment = True


def new_member_id() -> str:
    """A random id in Kafka's text form of UUIDs: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
