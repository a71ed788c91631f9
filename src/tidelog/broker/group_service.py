"""Runs the group coordinators of this broker: one shard for each partition of __consumer_offsets that it leads.

What always holds: a shard takes requests only after the whole log of its partition was replayed, and none once this
broker has lost the partition; what a shard wants written is one batch, and its outcome reaches the shard in the order
of the writes; a write whose outcome is not known in offsets.commit.timeout.ms makes the shard be loaded anew from the
log, the only one who knows. Everything runs on the event loop, but for the reading of logs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.delayed_produce import PendingAppend
from tidelog.broker.group_image import ClusterTopics
from tidelog.broker.group_loading import load_shard
from tidelog.broker.group_timers import TimerHeap
from tidelog.broker.offsets_topic import OFFSETS_TOPIC, OffsetsTopicCreation, coordinator_of, partition_for
from tidelog.broker.partition import ACKS_ALL, Partition
from tidelog.coordinator.actions import Action, Answer, Append, CancelTimer, Client, Now, SetTimer
from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.shard import GroupShard
from tidelog.log import AppendOrigin
from tidelog.protocol import ErrorCode, KafkaError, ProtocolError
from tidelog.records import Compression, CorruptBatchError, encode_batch

if TYPE_CHECKING:
    from tidelog.broker.replica_manager import ReplicaManager
    from tidelog.broker.request_context import RequestContext
    from tidelog.common.clock import Clock
    from tidelog.common.settings import Settings
    from tidelog.controller import Controller
    from tidelog.controller.image import BrokerInfo, ClusterImage

logger = logging.getLogger(__name__)

Ask = Callable[[GroupShard, Client, Now, int], list[Action]]

_UNANSWERED: Final = object()

# Records have two bytes for the length of a group id, and a character takes up to four.
_GROUP_ID_CHARACTERS_MAX: Final = 8191

_GROUP_SETTINGS: Final = (
    "group.consumer.assignment.interval.ms",
    "group.consumer.assignors",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.max.size",
    "group.consumer.migration.policy",
    "group.consumer.regex.refresh.interval.ms",
    "group.consumer.session.timeout.ms",
    "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms",
    "group.max.size",
    "group.min.session.timeout.ms",
    "offset.metadata.max.bytes",
    "offsets.retention.check.interval.ms",
    "offsets.retention.minutes",
)


class _Held:
    """A shard of this broker, from the moment it begins to be loaded until the partition is lost."""

    __slots__ = ("index", "is_active", "is_loaded", "leader_epoch", "loading", "partition", "shard")

    def __init__(self, partition: Partition, shard: GroupShard) -> None:
        self.index = partition.partition
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.is_loaded = False
        # False once it is unloaded or could not be loaded.
        self.is_active = True
        self.loading: asyncio.Task[None] | None = None


class GroupService:
    """The coordinators of all groups whose partition this broker leads."""

    def __init__(self, *, settings: Settings, clock: Clock, controller: Controller, replicas: ReplicaManager) -> None:
        """To be made on the running event loop."""
        self._clock = clock
        self._controller = controller
        self._replicas = replicas
        self._config = group_config(settings)
        self._commit_timeout_ms = settings.get_int("offsets.commit.timeout.ms")
        self._compression = Compression(settings.get_int("offsets.topic.compression.codec"))
        self._load_buffer_bytes = settings.get_int("offsets.load.buffer.size")
        self._creation = OffsetsTopicCreation(settings, controller, replicas)
        self._loop = asyncio.get_running_loop()
        self._timers = TimerHeap(clock, self._on_timer)
        self._held: dict[int, _Held] = {}
        self._topics = ClusterTopics(controller.image)
        # Requests by exchange: the answer if there is one, else the future that waits for it.
        self._waiting: dict[int, Any] = {}
        self._exchanges = itertools.count()
        self._appending: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Load what this broker leads already, and follow what changes from now on."""
        self._topics = ClusterTopics(self._controller.image)
        self._unsubscribe = self._controller.subscribe(self._on_image)
        self._replicas.on_leadership_changed = self._on_leadership
        for partition in tuple(self._replicas.partitions()):
            self._on_leadership(partition)

    async def close(self) -> None:
        """Serve nobody any more and wait for what runs."""
        self._replicas.on_leadership_changed = None
        if self._unsubscribe is not None:
            self._unsubscribe()
        for held in tuple(self._held.values()):
            self._unload(held, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._timers.close()
        await self._creation.close()
        await asyncio.gather(*self._appending, return_exceptions=True)

    # Finding coordinators

    async def find_coordinator(self, group_id: str) -> BrokerInfo | None:
        """The broker that coordinates the group; makes the topic if this is the first time that anyone asks."""
        if OFFSETS_TOPIC not in self._controller.image.topics or self._creation.is_running:
            await self._creation.ensure()
        return coordinator_of(group_id, self._controller.image)

    def shard_of(self, group_id: str) -> GroupShard:
        """The shard that this broker has for the group; raises KafkaError when it can't be asked here or now."""
        return self._find(group_id).shard

    def shards(self) -> list[GroupShard]:
        """All shards; raises KafkaError while one of them is being loaded, as a list would not be whole."""
        if any(not held.is_loaded for held in self._held.values()):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [held.shard for held in self._held.values()]

    def _find(self, group_id: str) -> _Held:
        if len(group_id) > _GROUP_ID_CHARACTERS_MAX:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is too long to be written down")
        topic = self._controller.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        index = partition_for(group_id, len(topic.partitions))
        held = self._held.get(index)
        if held is None:
            # While its files are being made the right broker was asked, only too early.
            is_opening = index in self._replicas.opening(topic.topic_id)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_opening else ErrorCode.NOT_COORDINATOR)
        if not held.is_loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return held

    # Requests

    def submit(self, group_id: str, context: RequestContext, ask: Ask) -> Any:
        """Ask the group's shard; returns its answer, or the future of it. Raises KafkaError as `shard_of`."""
        held = self._find(group_id)
        exchange = next(self._exchanges)
        waiting = self._waiting
        waiting[exchange] = _UNANSWERED
        client = Client(context.client_id or "", context.client_host, context.version)
        try:
            self._run(held, ask(held.shard, client, self._now(), exchange))
        except BaseException:
            del waiting[exchange]
            raise
        answer = waiting[exchange]
        if answer is not _UNANSWERED:
            del waiting[exchange]
            return answer
        future: asyncio.Future[Any] = self._loop.create_future()
        waiting[exchange] = future
        # It is cancelled when its connection goes away; the answer then finds nobody.
        future.add_done_callback(lambda _: waiting.pop(exchange, None))
        return future

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.now_ms())

    # Actions

    def _run(self, held: _Held, actions: Iterable[Action]) -> None:
        """Carry out actions, and what follows from writes that are decided at once."""
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            if isinstance(action, Answer):
                self._answer(action)
            elif not held.is_active:
                # The partition belongs to another broker by now; only those who wait here are still told.
                continue
            elif isinstance(action, Append):
                error = self._append(held, action)
                if error is not None:
                    queue.extend(held.shard.on_appended(action.token, error, self._now()))
            elif isinstance(action, SetTimer):
                self._timers.set((held.index, action.key), action.due_ms)
            elif isinstance(action, CancelTimer):
                self._timers.cancel((held.index, action.key))

    def _answer(self, action: Answer) -> None:
        waiting = self._waiting.get(action.exchange)
        if waiting is _UNANSWERED:
            self._waiting[action.exchange] = action.response
        elif isinstance(waiting, asyncio.Future) and not waiting.done():
            waiting.set_result(action.response)

    def _append(self, held: _Held, action: Append) -> ErrorCode | None:
        """Write to the shard's partition; the error or NONE, or None while replicas are waited for."""
        now_ms = self._clock.now_ms()
        batch = encode_batch([(key, value, (), now_ms) for key, value in action.records], compression=self._compression)
        partition = held.partition
        try:
            if partition.leader_epoch != held.leader_epoch:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            result = self._replicas.append(partition, memoryview(batch), ACKS_ALL, AppendOrigin.COORDINATOR)
        except KafkaError as error:
            logger.warning(
                "%s-%d could not be written to: %s", OFFSETS_TOPIC, held.index, error.message or error.code.name
            )
            return error.code
        end_offset = result.last_offset + 1
        error_code = partition.acknowledgement(end_offset, held.leader_epoch, ACKS_ALL)
        if error_code is None:
            pending = PendingAppend(partition, end_offset, held.leader_epoch, ACKS_ALL, None)
            task = self._loop.create_task(self._wait_for_commit(held, pending, action.token))
            self._appending.add(task)
            task.add_done_callback(self._appending.discard)
        return error_code

    async def _wait_for_commit(self, held: _Held, pending: PendingAppend[None], token: int) -> None:
        await self._replicas.wait_for_acknowledgement([pending], self._commit_timeout_ms)
        self._run(held, held.shard.on_appended(token, pending.error, self._now()))
        if pending.error and held.is_active:
            logger.warning(
                "a write to %s-%d is undecided (%s): its groups are loaded anew",
                OFFSETS_TOPIC,
                held.index,
                pending.error.name,
            )
            self._unload(held, ErrorCode.NOT_COORDINATOR)
            self._on_leadership(held.partition)

    def _on_timer(self, index: int, key: Hashable) -> None:
        assert isinstance(key, tuple)  # as _run set it
        held = self._held.get(index)
        if held is None:
            return
        try:
            self._run(held, held.shard.on_timer(key, self._now()))
        except Exception:  # a mistake of ours in one group may not stop the timers of all others
            logger.exception("a timer of %s-%d failed: %r", OFFSETS_TOPIC, index, key)

    # What this broker leads

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.topics_by_id is new.topics_by_id:
            return
        self._topics = ClusterTopics(new)
        for held in tuple(self._held.values()):
            if held.is_loaded:
                self._run(held, held.shard.on_topics_changed(self._topics, self._now()))

    def _on_leadership(self, partition: Partition) -> None:
        """A partition of this broker has another leader or epoch, was opened, or is gone."""
        if partition.topic != OFFSETS_TOPIC:
            return
        held = self._held.get(partition.partition)
        if held is not None:
            if partition.is_leader and held.partition is partition and held.leader_epoch == partition.leader_epoch:
                return
            if held.partition is partition or partition.is_leader:
                self._unload(held, ErrorCode.NOT_COORDINATOR)
        if partition.is_leader:
            self._load(partition)

    def _load(self, partition: Partition) -> None:
        shard = GroupShard(partition.partition, self._config, self._topics)
        held = self._held[partition.partition] = _Held(partition, shard)
        if partition.log.log_start_offset == partition.log.log_end_offset:
            self._on_loaded(held)
        else:
            held.loading = self._loop.create_task(self._load_from_log(held))

    async def _load_from_log(self, held: _Held) -> None:
        began_ms = self._clock.monotonic_ms()
        try:
            count = await load_shard(held.shard, held.partition, self._load_buffer_bytes)
        except (KafkaError, CorruptBatchError, ProtocolError, OSError) as error:
            # As in Kafka the groups of this partition can't be used then; those of the others can.
            logger.error("%s-%d can't be loaded, its groups are out of service: %s", OFFSETS_TOPIC, held.index, error)
            if held.is_active:
                self._unload(held, ErrorCode.NOT_COORDINATOR)
            return
        if held.is_active:
            self._on_loaded(held)
            took_ms = self._clock.monotonic_ms() - began_ms
            logger.debug("loaded %d records of %s-%d in %.0f ms", count, OFFSETS_TOPIC, held.index, took_ms)

    def _on_loaded(self, held: _Held) -> None:
        held.loading = None
        held.is_loaded = True
        # Topics may have changed while the log was read.
        held.shard.state.image = self._topics
        self._run(held, held.shard.on_loaded(self._now()))

    def _unload(self, held: _Held, error: ErrorCode) -> None:
        held.is_active = False
        if self._held.get(held.index) is held:
            del self._held[held.index]
        self._timers.cancel_all(held.index)
        if held.is_loaded:
            self._run(held, held.shard.on_unloaded(error))


def group_config(settings: Settings) -> GroupConfig:
    """The settings of groups as their coordinators read them."""
    values: dict[str, Any] = {name.replace(".", "_"): settings[name] for name in _GROUP_SETTINGS}
    values["group_consumer_assignors"] = tuple(values["group_consumer_assignors"])
    return GroupConfig(**values)
