"""Sends the requests of one member, one after the other: its state decides what to send, and gets the outcome.

What always holds: there is one request at a time, so a heartbeat never overtakes a join. Temporary failures are retried
after a pause, with the coordinator looked up again. A permanent failure becomes the member's error, which the user is
told. `on_change` is called after every event.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable

from tidelog.client.consumer.assignors import TopicLayout
from tidelog.client.consumer.coordinator_channel import CoordinatorChannel
from tidelog.client.consumer.membership_classic import ClassicMember
from tidelog.client.consumer.membership_consumer import ConsumerMember
from tidelog.client.errors import ClientError, FatalError, RetriableError, UnsupportedVersionError
from tidelog.client.network.connection import Connection
from tidelog.client.network.routing import Coordinator
from tidelog.client.types import ClusterMetadata, TopicPartition
from tidelog.common.clock import Clock
from tidelog.protocol import Api, ErrorCode
from tidelog.protocol.messages.k11_join_group import JOIN_GROUP, JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.k12_heartbeat import HEARTBEAT, HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.k14_sync_group import SYNC_GROUP, SyncGroupRequest, SyncGroupResponse
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

logger = logging.getLogger(__name__)

_APIS: dict[type, tuple[Api, type]] = {
    JoinGroupRequest: (JOIN_GROUP, JoinGroupResponse),
    SyncGroupRequest: (SYNC_GROUP, SyncGroupResponse),
    HeartbeatRequest: (HEARTBEAT, HeartbeatResponse),
    ConsumerGroupHeartbeatRequest: (CONSUMER_GROUP_HEARTBEAT, ConsumerGroupHeartbeatResponse),
}

_STATIC_MEMBERS_FROM = 5  # of JoinGroup
_REGEX_FROM = 1  # of ConsumerGroupHeartbeat
# A join is answered when all members have joined, or when time is up for those that have not.
_JOIN_MARGIN_S = 5.0
# How often a leader looks for subscribed topics that do not exist yet.
_MISSING_TOPICS_S = 5.0
_LAYOUT_ATTEMPTS = 5


class MemberLoop:
    """Runs one member on the event loop."""

    def __init__(
        self,
        member: ClassicMember | ConsumerMember,
        coordinator: Coordinator,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._member = member
        self._coordinator = coordinator
        self._cluster = coordinator.cluster
        self._clock = clock
        self._on_change = on_change
        self._channel = CoordinatorChannel(coordinator)
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._asking_names: asyncio.Task[None] | None = None
        self._missing_topics: frozenset[str] = frozenset()
        self._missing_at_ms = float("inf")
        self._stop_listening: Callable[[], None] | None = None
        self._names_wait_ms = 0.0

    def start(self) -> None:
        if self._task is None:
            self._stop_listening = self._cluster.add_listener(self._on_metadata)
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The loop ends only when it is stopped: any other end is a bug, which must not go unnoticed."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            failure = FatalError(f"group {self._coordinator.key}: the membership failed unexpectedly: {error!r}")
            failure.__cause__ = error
            self._member.fail(failure)
            self._on_change()

    async def stop(self) -> None:
        """End the loop; a pending request is abandoned together with its connection."""
        tasks = [task for task in (self._task, self._asking_names) if task is not None]
        self._task = self._asking_names = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        self._channel.drop()

    def nudge(self) -> None:
        """The member has changed: ask it again what to send."""
        self._news.set()

    def drop_connection(self) -> None:
        """Abandon the pending request, such as a join whose result no longer matters."""
        self._channel.drop()

    # The loop

    async def _run(self) -> None:
        member = self._member
        while True:
            self._news.clear()
            now_ms = self._clock.monotonic_ms()
            if member.coordinator_is_suspect:
                member.coordinator_is_suspect = False
                self._coordinator.forget()
            topics = member.topics_needed() if isinstance(member, ClassicMember) else None
            if topics is not None and isinstance(member, ClassicMember):
                await self._share_out(member, topics)
                self._on_change()
                continue
            if isinstance(member, ConsumerMember):
                self._ask_names(member, now_ms)
            request = member.next_request(now_ms)
            if request is not None:
                await self._exchange(request)
                self._on_change()
                continue
            if member.error is not None:
                self._on_change()
            await self._wait(min(member.next_at_ms(), self._missing_at_ms, self._names_wait_ms or float("inf")), now_ms)
            await self._look_for_missing()

    async def _wait(self, until_ms: float, now_ms: float) -> None:
        timeout_s = None if until_ms == float("inf") else max(until_ms - now_ms, 0.0) / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return

    async def _exchange(self, request: object) -> None:
        api, response_class = _APIS[type(request)]
        try:
            connection = await self._channel.connection()
            if not self._is_supported(connection, request):
                return
            response: object = await connection.request(
                api, request, response_class, timeout_s=self._timeout_s(request)
            )
        except RetriableError as error:
            logger.info("group %s: %s failed, retrying: %s", self._coordinator.key, api.name, error)
            self._coordinator.note_error(error)
            self._member.on_failure(request, error, self._clock.monotonic_ms())
        except ClientError as error:
            self._member.fail(error)
        else:
            self._member.on_response(request, response, self._clock.monotonic_ms())

    def _is_supported(self, connection: Connection, request: object) -> bool:
        """Whether the broker is new enough for the settings; if not, the member gets an error or a fallback."""
        group = f"group {self._coordinator.key}"
        if isinstance(request, JoinGroupRequest) and request.group_instance_id is not None:
            if connection.version_for(JOIN_GROUP) < _STATIC_MEMBERS_FROM:
                raise UnsupportedVersionError(
                    f"{group}: the broker at {connection.address} does not know group.instance.id; "
                    "leave it out, or use brokers of Kafka 2.3 or later"
                )
        elif isinstance(request, ConsumerGroupHeartbeatRequest):
            if not connection.supports(CONSUMER_GROUP_HEARTBEAT):
                raise UnsupportedVersionError(
                    f"{group}: the broker at {connection.address} does not know group.protocol=consumer; "
                    "use group.protocol=classic, or brokers of Kafka 4.0 or later"
                )
            if request.subscribed_topic_regex and connection.version_for(CONSUMER_GROUP_HEARTBEAT) < _REGEX_FROM:
                assert isinstance(self._member, ConsumerMember)
                self._member.match_names()
                return False
        return True

    def _timeout_s(self, request: object) -> float:
        request_timeout_s = self._cluster.settings.request_timeout_s
        member = self._member
        if isinstance(request, JoinGroupRequest):
            return max(request_timeout_s, request.rebalance_timeout_ms / 1000 + _JOIN_MARGIN_S)
        if isinstance(member, ClassicMember) and isinstance(request, HeartbeatRequest):
            # After that long without a word, the coordinator has forgotten the member.
            return min(request_timeout_s, member.config.session_timeout_ms / 1000)
        return request_timeout_s

    # Topics

    async def _share_out(self, member: ClassicMember, topics: frozenset[str]) -> None:
        """The member leads: fetch the topics' metadata, then let it make the plan."""
        for attempt in range(1, _LAYOUT_ATTEMPTS + 1):
            try:
                told = await self._cluster.refresh(topics)
            except RetriableError as error:
                logger.info("group %s: the leader is waiting for metadata: %s", self._coordinator.key, error)
            except ClientError as error:
                member.fail(error)
                return
            else:
                # A topic that is being created has no leaders for a moment; it is worth waiting for.
                passing = [code for code in told.errors.values() if code is ErrorCode.LEADER_NOT_AVAILABLE]
                if not passing or attempt == _LAYOUT_ATTEMPTS:
                    layout = self._layout(topics)
                    self._missing_topics = topics - layout.partition_counts.keys()
                    self._plan_look_for_missing()
                    member.share_out(layout)
                    return
            await asyncio.sleep(self._cluster.settings.retry.pause_s(attempt))

    def _layout(self, topics: Iterable[str]) -> TopicLayout:
        counts: dict[str, int] = {}
        racks: dict[TopicPartition, frozenset[str]] = {}
        racks_of = {node_id: node.rack for node_id, node in self._cluster.nodes.items() if node.rack}
        for name in topics:
            topic = self._cluster.known_topic(name)
            if topic is None:
                continue
            counts[name] = len(topic.partitions)
            if racks_of:
                for row in topic.partitions:
                    present = frozenset(racks_of[node_id] for node_id in row.replicas if node_id in racks_of)
                    racks[TopicPartition(name, row.partition)] = present
        return TopicLayout(counts, racks)

    def _plan_look_for_missing(self) -> None:
        pause_ms = _MISSING_TOPICS_S * 1000
        self._missing_at_ms = self._clock.monotonic_ms() + pause_ms if self._missing_topics else float("inf")

    async def _look_for_missing(self) -> None:
        """A leader watches for subscribed topics that do not exist yet."""
        member = self._member
        if self._clock.monotonic_ms() < self._missing_at_ms or not isinstance(member, ClassicMember):
            return
        self._plan_look_for_missing()
        if not member.is_leader:
            self._missing_at_ms = float("inf")
            return
        try:
            await self._cluster.refresh(self._missing_topics)
        except ClientError as error:
            logger.info("group %s: could not look for missing topics: %s", self._coordinator.key, error)

    def _on_metadata(self, told: ClusterMetadata) -> None:
        member = self._member
        if isinstance(member, ClassicMember):
            counts = {name: len(topic.partitions) for name, topic in told.topics.items()}
            for name, code in told.errors.items():
                if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    counts[name] = 0
            member.on_partition_counts(counts)
        else:
            member.name_topics(self._name_of)
        self._on_change()
        self.nudge()

    def _name_of(self, topic_id: uuid.UUID) -> str | None:
        return self._cluster.topic_name(topic_id)

    def _ask_names(self, member: ConsumerMember, now_ms: float) -> None:
        """Look up the names of assigned topics, alongside the heartbeats."""
        self._names_wait_ms = 0.0
        if not member.unknown_topic_ids():
            return
        member.name_topics(self._name_of)
        if not member.unknown_topic_ids():
            self._on_change()
            return
        if self._asking_names is None or self._asking_names.done():
            self._asking_names = asyncio.get_running_loop().create_task(self._refresh_names(member))
        self._names_wait_ms = now_ms + self._cluster.settings.retry.longest_s * 1000

    async def _refresh_names(self, member: ConsumerMember) -> None:
        try:
            # With a regular expression, only the coordinator knows which topics these are.
            await self._cluster.refresh(None if member.uses_regex else member.topics)
        except ClientError as error:
            logger.info("group %s: could not look up assigned topics: %s", self._coordinator.key, error)
            await asyncio.sleep(self._cluster.settings.retry.longest_s)
