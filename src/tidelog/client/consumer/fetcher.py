"""Fetches records from the leaders of the assigned partitions, continuously and in the background.

What always holds: fetches have connections of their own, because a fetch that waits for records blocks the requests
behind it. Each broker has one fetch in flight, and at most one more for partitions that became wanted since it was
sent. The next one goes out as soon as a response arrives, while the user reads the previous one, as long as the queue
has room. A partition is fetched from its last known leader, but not before its position is known to be in that leader's
log. Temporary errors are retried with pauses and never reach the user. A leader may name a follower in this client's
rack to read from; if anything goes wrong there, the consumer goes back to the leader (KIP-392).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from tidelog.client.address import Address
from tidelog.client.consumer.fetch_answers import Asked, Next, read_row
from tidelog.client.consumer.fetch_queue import FetchedChunk, FetchQueue
from tidelog.client.consumer.fetch_request import send_fetch
from tidelog.client.consumer.fetch_session import FetchSession, SessionRequest, Wanted, without_session
from tidelog.client.consumer.metrics import ConsumerCounts
from tidelog.client.consumer.read_replica import NO_REPLICA
from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.consumer.subscription import PartitionState, SubscriptionState
from tidelog.client.errors import ClientError, ConnectError, ConnectionLostError, error_code, raise_for
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.types import Node, PartitionMetadata, TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import FetchResponse, PartitionData

logger = logging.getLogger(__name__)

_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
# A follower answers with these after its leader has changed, or if the consumer learned of the change first.
_LEADERSHIP_MOVED = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH}
)
# The follower's log begins or ends elsewhere; the leader knows that, and would not name it for this offset.
_OFFSETS_DIFFER = frozenset({ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.OFFSET_OUT_OF_RANGE})


class Fetcher:
    """All fetching of one consumer."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        subscription: SubscriptionState,
        queue: FetchQueue,
        counts: ConsumerCounts,
        *,
        on_new_leader: Callable[[], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """`on_new_leader` is called when a response names a new leader; that leader must be asked before fetching from
        it. `on_crash` gets the error that ended a task which should never end: a bug.
        """
        self._cluster = cluster
        self.settings = settings
        self._subscription = subscription
        self.queue = queue
        self.counts = counts
        self._on_new_leader = on_new_leader
        self.on_crash = on_crash
        self._nodes: dict[int, _NodeFetcher] = {}
        self._refresh: asyncio.Task[None] | None = None
        self._closed = False

    def wake(self) -> None:
        """Positions, the assignment, leaders or room may have changed. Called on the loop."""
        if self._closed:
            return
        unknown: set[str] = set()
        for state in self._subscription.states():
            if not state.is_fetchable:
                continue
            known = self._cluster.metadata.partition(state.topic_partition)
            if known is None or known.leader_id < 0:
                unknown.add(state.topic_partition.topic)
                continue
            node_id = self._source(state, known)
            if node_id not in self._nodes:
                self._nodes[node_id] = _NodeFetcher(self, self._cluster, node_id)
        for node in self._nodes.values():
            node.wake()
        if unknown:
            self.ask_who_leads(unknown)

    async def close(self) -> None:
        self._closed = True
        tasks = [task for node in self._nodes.values() for task in node.tasks()]
        if self._refresh is not None:
            tasks.append(self._refresh)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self._nodes.values():
            node.close()

    def wanted_from(self, node_id: int) -> dict[TopicPartition, Asked]:
        """The partitions to request from this broker now."""
        states = self._subscription.states()
        share = max(self.settings.max_partition_fetch_bytes, self.queue.bytes_max // max(len(states), 1))
        wanted: dict[TopicPartition, Asked] = {}
        for state in states:
            if not state.is_fetchable or state.waits_to_retry or self.queue.bytes_of(state) >= share:
                continue
            asked = self._asked(node_id, state)
            if asked is not None:
                wanted[state.topic_partition] = asked
        return wanted

    def _asked(self, node_id: int, state: PartitionState) -> Asked | None:
        version, offset = state.version, state.fetch_offset
        known = self._cluster.metadata.partition(state.topic_partition)
        if known is None or known.leader_id < 0 or offset < 0 or self._source(state, known) != node_id:
            return None
        if state.fetch_epoch >= 0 and known.leader_epoch > state.checked_leader_epoch:
            return None  # the position keeper asks the new leader first, and wakes us
        topic = self._cluster.metadata.topics[state.topic_partition.topic]
        size = max(self.settings.max_partition_fetch_bytes, state.fetch_size)
        wanted = Wanted(offset, size, known.leader_epoch, topic.topic_id)
        return Asked(state, version, wanted)

    def _source(self, state: PartitionState, known: PartitionMetadata) -> int:
        """The broker to fetch the partition from."""
        if state.read_replica.expire(self._now_s()):
            asyncio.get_running_loop().call_soon(self.wake)  # the leader's turn
        node_id = state.read_replica.node_id
        return node_id if node_id != NO_REPLICA and node_id in self._cluster.nodes else known.leader_id

    def rack_for(self, asked: Mapping[TopicPartition, Asked]) -> str:
        """This client's rack; empty while the leader itself has to serve one of these partitions."""
        if not self.settings.client_rack:
            return ""
        now_s = self._now_s()
        leader_only = any(each.state.read_replica.is_leader_only(now_s) for each in asked.values())
        return "" if leader_only else self.settings.client_rack

    def give_up_replica(self, node_id: int, asked: Iterable[Asked]) -> None:
        """Fetching from this broker failed: go back to the leaders for what was read from it as a follower."""
        for each in asked:
            if each.state.read_replica.node_id == node_id:
                each.state.read_replica.give_up(self._now_s(), self.settings.cluster.metadata_max_age_s)
                asyncio.get_running_loop().call_soon(self.wake)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def read(self, response: FetchResponse, asked: dict[TopicPartition, Asked], node_id: int) -> None:
        """Queue the data of this broker's response and handle its errors."""
        if response.node_endpoints:
            self._cluster.metadata.note_nodes(_nodes_of(response))
        chunks: list[FetchedChunk] = []
        frame_size = 0
        unled: set[str] = set()
        names = {each.wanted.topic_id: topic_partition.topic for topic_partition, each in asked.items()}
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id)
            for row in topic.partitions:
                frame_size += len(row.records) if isinstance(row.records, memoryview) else 0
                each = asked.get(TopicPartition(name, row.partition_index)) if name is not None else None
                if each is None:
                    continue
                if each.state.read_replica.node_id == node_id:
                    if row.error_code:
                        self._leave_replica(node_id, each, row, unled)
                        continue
                    each.state.read_replica.served()
                elif row.preferred_read_replica >= 0:
                    self._go_to_replica(each, row.preferred_read_replica, unled)
                chunk, what_next = read_row(self._subscription, self.settings.reset, each, row)
                if chunk is not None:
                    chunks.append(chunk)
                self._choose_size(each, len(row.records) if isinstance(row.records, memoryview) else 0)
                if what_next is not Next.FETCH_ON:
                    self._retry_later(each.state)
                if what_next is Next.ASK_WHO_LEADS:
                    leader = row.current_leader
                    if self._cluster.note_leader(each.state.topic_partition, leader.leader_id, leader.leader_epoch):
                        self._on_new_leader()
                    else:
                        unled.add(each.state.topic_partition.topic)
        self.counts.fetched_bytes += frame_size
        self.counts.throttled_ms += response.throttle_time_ms
        self.queue.put(chunks, frame_size)
        if unled:
            self.ask_who_leads(unled)

    def _go_to_replica(self, asked: Asked, node_id: int, unled: set[str]) -> None:
        """The leader wants the partition to be read from this follower."""
        state = asked.state
        if node_id not in self._cluster.nodes:
            unled.add(state.topic_partition.topic)  # its address comes with the response
            self._retry_later(state)
        elif state.version == asked.version:
            state.read_replica.prefer(node_id, self._now_s(), self.settings.cluster.metadata_max_age_s)
            asyncio.get_running_loop().call_soon(self.wake)

    def _leave_replica(self, node_id: int, asked: Asked, row: PartitionData, unled: set[str]) -> None:
        """A follower refused. Only the leader knows what is wrong with the partition: a follower may lag behind."""
        state, code = asked.state, error_code(row.error_code)
        if code in _LEADERSHIP_MOVED:
            leader = row.current_leader
            if self._cluster.note_leader(state.topic_partition, leader.leader_id, leader.leader_epoch):
                self._on_new_leader()
            else:
                unled.add(state.topic_partition.topic)
        if code in _LEADERSHIP_MOVED or code in _OFFSETS_DIFFER:
            state.read_replica.leave()
        else:
            self.give_up_replica(node_id, [asked])
        self._retry_later(state)

    def _choose_size(self, asked: Asked, received: int) -> None:
        """A response at the size limit means that more is waiting: fewer, larger responses cost less."""
        if received >= asked.wanted.max_bytes * 3 // 4:
            asked.state.fetch_size = min(2 * asked.wanted.max_bytes, self.settings.fetch_growth_max_bytes)
        else:
            asked.state.fetch_size = 0

    def _retry_later(self, state: PartitionState) -> None:
        state.waits_to_retry = True
        pause_s = self.settings.cluster.retry.pause_s(1)
        asyncio.get_running_loop().call_later(pause_s, self._retry, state)

    def _retry(self, state: PartitionState) -> None:
        state.waits_to_retry = False
        self.wake()

    def ask_who_leads(self, topics: set[str]) -> None:
        """Refresh the metadata; one request at a time."""
        if not self._closed and (self._refresh is None or self._refresh.done()):
            self._refresh = asyncio.create_task(self._ask_metadata(topics))

    async def _ask_metadata(self, topics: set[str]) -> None:
        try:
            told = await self._cluster.refresh(topics, allow_auto_topic_creation=self.settings.allow_auto_create_topics)
        except ClientError as error:
            # The cluster reports when no broker can be reached, and not on every attempt.
            level = logging.INFO if isinstance(error, (ConnectError, ConnectionLostError)) else logging.WARNING
            logger.log(level, "could not find out who leads %s: %s", ", ".join(sorted(topics)), error)
        else:
            for name, code in told.errors.items():
                logger.warning("topic %s can't be read at the moment: %s (%s)", name, code.description, code.name)
        # Partitions still without a leader are looked up again, but not immediately.
        await asyncio.sleep(self.settings.cluster.retry.pause_s(1))
        asyncio.get_running_loop().call_soon(self.wake)


class _Channel:
    """A connection used only for fetches, with the request that is in flight on it."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._connection: Connection | None = None
        self.asked: dict[TopicPartition, Asked] = {}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def connected(self) -> Connection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        self._connection = await self._cluster.open_own_connection(self._node_id)
        return self._connection

    def covers(self, asked: Asked) -> bool:
        """Whether exactly this partition and offset is in flight."""
        mine = self.asked.get(asked.state.topic_partition)
        return (
            mine is not None and mine.version == asked.version and mine.wanted.fetch_offset == asked.wanted.fetch_offset
        )


class _NodeFetcher:
    """The fetches from one broker, one after the other.

    A fetch may wait at the broker for records. Whatever becomes wanted meanwhile, after a seek or through a new
    assignment, is requested over a second connection, so that it need not wait, too.
    """

    def __init__(self, owner: Fetcher, cluster: Cluster, node_id: int) -> None:
        self._owner = owner
        self._node_id = node_id
        self._session = FetchSession()
        self._main = _Channel(cluster, node_id)
        self._aside = _Channel(cluster, node_id)
        self._failures = 0
        self._event = asyncio.Event()
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda task: tell_crash(task, owner.on_crash))
        self._aside_task: asyncio.Task[None] | None = None

    def tasks(self) -> list[asyncio.Task[None]]:
        return [self._task] if self._aside_task is None else [self._task, self._aside_task]

    def close(self) -> None:
        self._main.close()
        self._aside.close()

    def wake(self) -> None:
        self._event.set()
        if self._main.asked and self._aside_task is None:
            asked = self._wanted(beside=self._main)
            size = self._allowed(asked) if asked else 0
            if size:
                self._aside_task = asyncio.create_task(self._fetch_aside(asked, size))
                self._aside_task.add_done_callback(lambda task: tell_crash(task, self._owner.on_crash))

    async def _run(self) -> None:
        while True:
            self._event.clear()
            asked = self._wanted(beside=self._aside)
            size = self._allowed(asked) if asked else 0
            if not size:
                await self._event.wait()
                continue
            try:
                await self._fetch(asked, size)
                self._failures = 0
            except ClientError as error:
                self._session.restart()
                await self._bear(error, asked)

    async def _fetch_aside(self, asked: dict[TopicPartition, Asked], size: int) -> None:
        try:
            rows = {topic_partition: each.wanted for topic_partition, each in asked.items()}
            await self._send(self._aside, without_session(rows), asked, size)
        except ClientError as error:
            await self._bear(error, asked)
        finally:
            self._aside_task = None
            self._event.set()

    async def _bear(self, error: ClientError, asked: dict[TopicPartition, Asked]) -> None:
        self._failures += 1
        logger.info("fetching from broker %d failed, retrying: %s", self._node_id, error)
        self._owner.give_up_replica(self._node_id, asked.values())
        self._owner.ask_who_leads({topic_partition.topic for topic_partition in asked})
        await asyncio.sleep(self._owner.settings.cluster.retry.pause_s(self._failures))

    def _wanted(self, *, beside: _Channel) -> dict[TopicPartition, Asked]:
        """What may be requested now and is not in flight on the other channel."""
        wanted = self._owner.wanted_from(self._node_id)
        if beside.asked:
            wanted = {key: asked for key, asked in wanted.items() if not beside.covers(asked)}
        return wanted

    def _allowed(self, asked: dict[TopicPartition, Asked]) -> int:
        """How many bytes the broker may send now; 0 while the queue has no room worth a request."""
        settings, queue = self._owner.settings, self._owner.queue
        worth = min(settings.max_partition_fetch_bytes, settings.fetch_max_bytes, queue.bytes_max)
        if queue.room < worth:
            queue.wants_room = True  # before the second look, so that a chunk taken meanwhile is not missed
            if queue.room < worth:
                return 0
        return min(settings.fetch_max_bytes, sum(each.wanted.max_bytes for each in asked.values()), queue.room)

    async def _fetch(self, asked: dict[TopicPartition, Asked], size: int) -> None:
        if not self._main.is_open:
            self._session.restart()
            await self._main.connected()
        request = self._session.build({topic_partition: each.wanted for topic_partition, each in asked.items()})
        response = await self._send(self._main, request, asked, size)
        self._session.answered(response.error_code, response.session_id)

    async def _send(
        self, channel: _Channel, request: SessionRequest, asked: dict[TopicPartition, Asked], size: int
    ) -> FetchResponse:
        owner, settings = self._owner, self._owner.settings
        loop = asyncio.get_running_loop()
        owner.queue.reserve(size)
        channel.asked = asked
        try:
            connection = await channel.connected()
            started_s = loop.time()
            response = await send_fetch(connection, settings, request, size, rack_id=owner.rack_for(asked))
        finally:
            channel.asked = {}
            owner.queue.release(size)
        owner.counts.fetches += 1
        owner.counts.fetching_s += loop.time() - started_s
        if response.error_code not in _SESSION_ERRORS:
            raise_for(response.error_code, subject=f"broker {self._node_id}")
            owner.read(response, asked, self._node_id)
        return response


def _nodes_of(response: FetchResponse) -> dict[int, Node]:
    """The leaders' addresses that came with refusals (KIP-951)."""
    return {row.node_id: Node(row.node_id, Address(row.host, row.port), row.rack) for row in response.node_endpoints}


def tell_crash(task: asyncio.Task[None], on_crash: Callable[[BaseException], None]) -> None:
    """The error that ended a background task, if it was an unexpected one."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        on_crash(error)


def log_crash(error: BaseException) -> None:
    logger.error("a consumer's task ended with an unexpected error", exc_info=error)
