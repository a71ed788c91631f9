"""Runs coordinators: one shard for each partition of a coordinator's topic that this broker leads.

What always holds: a shard takes requests only after the whole log of its partition was replayed and all of that is
committed, and none once this broker has lost the partition. Each write of a shard is one batch, and the shard learns
the outcomes in the order of the writes. If an outcome is not known in time, the shard is reloaded from the log. What
was prepared for one shard is never carried out on another. Everything except reading logs runs on the event loop. What
is special about groups and transactions is in `group_service` and `txn_service`.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from tidelog.broker.delayed_produce import PendingAppend, track_append
from tidelog.broker.group_timers import TimerHeap
from tidelog.broker.internal_topics import InternalTopicCreation, coordinator_of, partition_for
from tidelog.broker.partition import ACKS_ALL, Partition
from tidelog.common.steps import Steps, run_through, run_with_pauses
from tidelog.coordinator.actions import (
    Action,
    ActionSteps,
    Answer,
    Append,
    CancelTimer,
    Client,
    Now,
    Prepared,
    SetTimer,
    TimerKey,
    Work,
)
from tidelog.protocol import ErrorCode, KafkaError, ProtocolError
from tidelog.records import BatchDraft, Compression, CorruptBatchError

if TYPE_CHECKING:
    from tidelog.broker.replica_manager import ReplicaManager
    from tidelog.broker.request_context import RequestContext
    from tidelog.broker.topic_creation import TopicCreation
    from tidelog.common.clock import Clock
    from tidelog.controller.cluster_view import ClusterView
    from tidelog.controller.image import BrokerInfo, ClusterImage
    from tidelog.controller.requests import NewTopic
    from tidelog.log.txn_guard import TransactionGuard

logger = logging.getLogger(__name__)

_UNANSWERED: Final = object()

# Records have two bytes for the length of an id, and a character takes up to four.
KEY_CHARACTERS_MAX: Final = 8191


class Shard(Protocol):
    """What the shards of all coordinators have."""

    def on_loaded(self, now: Now) -> ActionSteps: ...

    def on_unloaded(self, error: ErrorCode) -> list[Action]: ...

    def on_abandoned(self, key: str, exchange: int, now: Now) -> list[Action]: ...

    def on_appended(self, token: int, error: ErrorCode, now: Now) -> list[Action]: ...

    def on_timer(self, key: TimerKey, now: Now) -> list[Action]: ...


ShardT = TypeVar("ShardT", bound=Shard)

_AT_ONCE_MAX: Final = 256
"""A request about more things than this is prepared in steps; so many take half a millisecond."""

SLICE_S: Final = 0.002
"""How much of a turn of the loop long work takes."""

# Called with NONE or the error of a write, the offset of its first record, and the time; returns the resulting actions.
Decided = Callable[[ErrorCode, int, Now], list[Action]]


class Held(Generic[ShardT]):
    """A shard of this broker, from the start of loading until the partition is lost."""

    __slots__ = ("index", "is_active", "is_loaded", "is_replayed", "leader_epoch", "loading", "partition", "shard")

    def __init__(self, partition: Partition, shard: ShardT) -> None:
        self.index = partition.partition
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        # Whether its whole log was replayed; a moment later it is loaded, and takes requests.
        self.is_replayed = False
        self.is_loaded = False
        # False once it is unloaded or could not be loaded.
        self.is_active = True
        self.loading: asyncio.Task[None] | None = None


class CoordinatorService(ABC, Generic[ShardT]):
    """The coordinators of all partitions that this broker leads."""

    topic: ClassVar[str]
    # What its shards hold, as log lines call it.
    noun: ClassVar[str]

    def __init__(
        self,
        *,
        clock: Clock,
        cluster: ClusterView,
        creation: TopicCreation,
        replicas: ReplicaManager,
        commit_timeout_ms: int,
        compression: Compression,
    ) -> None:
        """To be made on the running event loop."""
        self._clock = clock
        self._cluster = cluster
        self._replicas = replicas
        self._commit_timeout_ms = commit_timeout_ms
        self._compression = compression
        self._creation = InternalTopicCreation(self._new_topic, cluster, creation)
        self._loop = asyncio.get_running_loop()
        self._timers = TimerHeap(clock, self._on_timer)
        self._held: dict[int, Held[ShardT]] = {}
        # Requests by exchange: the answer if there is one, else the future that waits for it.
        self._waiting: dict[int, Any] = {}
        self._exchanges = itertools.count()
        self._running: set[asyncio.Task[None]] = set()
        # Long work of all shards, that whose turn is next first.
        self._works: deque[tuple[Held[ShardT], ActionSteps]] = deque()
        self._is_working = False
        self._is_started = False

    # What each kind of coordinator provides

    @abstractmethod
    def _new_topic(self, image: ClusterImage) -> NewTopic:
        """How to create the topic when it is first needed."""

    @abstractmethod
    def _make_shard(self, partition: Partition) -> ShardT:
        """A new, empty shard."""

    @abstractmethod
    async def _replay(self, shard: ShardT, partition: Partition) -> int:
        """Replay the partition's log; returns how many records it holds."""

    def _perform(self, held: Held[ShardT], action: Action, now: Now) -> list[Action]:
        """Carry out an action that only this kind of coordinator has; returns what follows from it immediately."""
        raise TypeError(f"a coordinator of {self.noun} asked for {action!r}")

    def start(self) -> None:
        """Load what this broker already leads, and follow changes from now on."""
        self._is_started = True
        self._replicas.leadership_listeners.append(self._on_leadership)
        for partition in tuple(self._replicas.partitions()):
            self._on_leadership(partition)

    async def close(self) -> None:
        """Stop serving; whoever loads the log next finds there what became of writes that still wait for replicas."""
        if self._is_started:
            self._replicas.leadership_listeners.remove(self._on_leadership)
        for held in tuple(self._held.values()):
            self._unload(held, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._timers.close()
        await self._creation.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    # Finding coordinators

    async def find_coordinator(self, key: str) -> BrokerInfo | None:
        """The broker that coordinates this id; creates the topic on the first request."""
        if self.topic not in self._cluster.image.topics or self._creation.is_running:
            await self._creation.ensure()
        return coordinator_of(key, self.topic, self._cluster.image)

    def shard_of(self, key: str) -> ShardT:
        """This broker's shard for the id; raises KafkaError if it isn't here or isn't ready."""
        return self._find(key).shard

    def shards(self) -> list[ShardT]:
        """All shards; raises KafkaError while one of them is loading, because the list would be incomplete."""
        if any(not held.is_loaded for held in self._held.values()):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [held.shard for held in self._held.values()]

    def _find(self, key: str) -> Held[ShardT]:
        topic = self._cluster.image.topics.get(self.topic)
        if topic is None or not self._replicas.is_serving:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        index = partition_for(key, len(topic.partitions))
        held = self._held.get(index)
        if held is None:
            # While its files are being created, the client asked the right broker, only too early.
            is_opening = index in self._replicas.opening(topic.topic_id)
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_opening else ErrorCode.NOT_COORDINATOR)
        if not held.is_loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return held

    # Requests

    def submit(self, key: str, context: RequestContext, ask: Callable[[ShardT, Client, Now, int], list[Action]]) -> Any:
        """Send a request to the id's shard; returns its answer or a future. Raises KafkaError as `shard_of` does."""
        client = Client(context.client_id or "", context.client_host, context.version)
        return self._submit(key, lambda shard, now, exchange: ask(shard, client, now, exchange))

    def submit_prepared(
        self,
        key: str,
        context: RequestContext,
        prepare: Callable[[ShardT, Client, Now], Steps[Prepared]],
        *,
        refuse: Callable[[ErrorCode], Steps[Any]],
        size: int,
    ) -> Any:
        """As `submit` for a request about `size` things, which is prepared first, in steps if there are many.

        `refuse` makes the response to an error. A large request is carried out in a turn of the loop of its own, so
        that what it takes to prepare it does not come on top.
        """
        client = Client(context.client_id or "", context.client_host, context.version)
        if size > _AT_ONCE_MAX:
            return self._prepare_in_steps(key, client, prepare, refuse)
        try:
            held, now = self._find(key), self._now()
            return self._ask(held, key, run_through(prepare(held.shard, client, now)), now)
        except KafkaError as error:
            return run_through(refuse(error.code))

    def _prepare_in_steps(
        self,
        key: str,
        client: Client,
        prepare: Callable[[ShardT, Client, Now], Steps[Prepared]],
        refuse: Callable[[ErrorCode], Steps[Any]],
    ) -> Steps[Any]:
        try:
            held = self._find(key)
        except KafkaError as error:
            return (yield from refuse(error.code))
        prepared = yield from prepare(held.shard, client, self._now())
        return self._carry_out(key, held, prepared, refuse)

    async def _carry_out(
        self, key: str, held: Held[ShardT], prepared: Prepared, refuse: Callable[[ErrorCode], Steps[Any]]
    ) -> Any:
        try:
            if self._find(key) is not held:
                # It was lost, or loaded again, and would not know what was prepared.
                return refuse(ErrorCode.NOT_COORDINATOR)
            answer = self._ask(held, key, prepared, self._now())
        except KafkaError as error:
            return refuse(error.code)
        return await answer if isinstance(answer, asyncio.Future) else answer

    def _submit(self, key: str, ask: Callable[[ShardT, Now, int], list[Action]]) -> Any:
        held = self._find(key)
        shard = held.shard
        return self._ask(held, key, lambda now, exchange: ask(shard, now, exchange), self._now())

    def _ask(self, held: Held[ShardT], key: str, ask: Prepared, now: Now) -> Any:
        """The answer of a shard, or a future of it."""
        exchange = next(self._exchanges)
        waiting = self._waiting
        waiting[exchange] = _UNANSWERED
        try:
            self._run_at(now, held, ask(now, exchange))
        except BaseException:
            del waiting[exchange]
            raise
        answer = waiting[exchange]
        if answer is not _UNANSWERED:
            del waiting[exchange]
            return answer
        future: asyncio.Future[Any] = self._loop.create_future()
        waiting[exchange] = future
        future.add_done_callback(functools.partial(self._on_answered, held, key, exchange))
        return future

    def _on_answered(self, held: Held[ShardT], key: str, exchange: int, future: asyncio.Future[Any]) -> None:
        self._waiting.pop(exchange, None)
        # It is cancelled when its connection closes, because nobody would read the answer.
        if future.cancelled() and held.is_loaded and held.is_active:
            self._run(held, held.shard.on_abandoned(key, exchange, self._now()))

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.now_ms())

    # Actions

    def _run(self, held: Held[ShardT], actions: Iterable[Action]) -> None:
        """Carry out actions, and what follows from writes whose outcome is known immediately."""
        self._run_at(self._now(), held, actions)

    def _run_at(self, now: Now, held: Held[ShardT], actions: Iterable[Action]) -> None:
        """The same at a known time: a request is dealt with in one moment."""
        queue = list(actions)
        for action in queue:  # which grows meanwhile
            if isinstance(action, Answer):
                self._answer(action)
            elif not held.is_active:
                # The partition now belongs to another broker; only requests that wait here are still answered.
                continue
            elif isinstance(action, Append):
                queue += self._append(held, action, now)
            elif isinstance(action, SetTimer):
                self._timers.set((held.index, action.key), action.due_ms)
            elif isinstance(action, CancelTimer):
                self._timers.cancel((held.index, action.key))
            elif isinstance(action, Work):
                self._begin(held, action)
            else:
                queue += self._perform(held, action, now)

    def _begin(self, held: Held[ShardT], work: Work) -> None:
        self._works.append((held, work.steps))
        if len(self._works) == 1 and not self._is_working:
            self._is_working = True
            self._start(self._work())

    async def _work(self) -> None:
        """All long work takes turns, so that together it takes one slice of each turn of the loop."""
        while self._works:
            held, steps = self._works.popleft()
            if self._advance(held, steps):
                self._works.append((held, steps))
            await asyncio.sleep(0)
        self._is_working = False

    def _advance(self, held: Held[ShardT], steps: ActionSteps) -> bool:
        """Take steps for a while; False if none are left."""
        began_s = time.perf_counter()
        try:
            while time.perf_counter() - began_s < SLICE_S:
                actions = next(steps, None) if held.is_active else None
                if actions is None:
                    steps.close()
                    return False
                self._run(held, actions)
        except Exception:  # as with timers
            logger.exception("long work in %s-%d failed", self.topic, held.index)
            steps.close()
            return False
        return True

    def _start(self, work: Any) -> None:
        """Run a coroutine that `close` ends."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _answer(self, action: Answer) -> None:
        waiting = self._waiting.get(action.exchange)
        if waiting is _UNANSWERED:
            self._waiting[action.exchange] = action.response
        elif isinstance(waiting, asyncio.Future) and not waiting.done():
            waiting.set_result(action.response)

    def _append(self, held: Held[ShardT], action: Append, now: Now) -> list[Action]:
        time_ms, token, shard = now.wall_ms, action.token, held.shard
        draft = BatchDraft([(key, value, (), time_ms) for key, value in action.records], self._compression)
        return self._write(held, draft, lambda error, _, now: shard.on_appended(token, error, now), now)

    def _write(
        self,
        held: Held[ShardT],
        draft: BatchDraft,
        decided: Decided,
        now: Now,
        guard: TransactionGuard | None = None,
    ) -> list[Action]:
        """Write to the shard's partition; returns what follows, unless it has to wait for replicas first."""
        partition = held.partition
        try:
            if partition.leader_epoch != held.leader_epoch:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            result = self._replicas.append(partition, draft, ACKS_ALL, guard)
        except KafkaError as error:
            logger.warning(
                "%s-%d could not be written to: %s", self.topic, held.index, error.message or error.code.name
            )
            return decided(error.code, -1, now)
        first_offset = result.first_offset
        tracked = track_append(partition, result.last_offset + 1, held.leader_epoch, ACKS_ALL, first_offset)
        if isinstance(tracked, ErrorCode):
            return decided(tracked, first_offset, now)
        self._start(self._wait_for_commit(held, tracked, decided))
        return []

    async def _wait_for_commit(self, held: Held[ShardT], pending: PendingAppend[int], decided: Decided) -> None:
        await self._replicas.wait_for_acknowledgement([pending], self._commit_timeout_ms)
        self._run(held, decided(pending.error, pending.response, self._now()))
        if pending.error and held.is_active:
            self._reload(held, pending.error)

    def _reload(self, held: Held[ShardT], error: ErrorCode) -> None:
        """Reload a shard from its log, because it is no longer certain what the log holds."""
        logger.warning(
            "the outcome of a write to %s-%d is unknown (%s): reloading its %s from the log",
            self.topic,
            held.index,
            error.name,
            self.noun,
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
        except Exception:  # a bug in one group must not stop the timers of all others
            logger.exception("a timer of %s-%d failed: %r", self.topic, index, key)

    # What this broker leads

    def _on_leadership(self, partition: Partition) -> None:
        """A partition of this broker got a new leader or epoch, was opened, or is gone."""
        if partition.topic != self.topic:
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
        held = self._held[partition.partition] = Held(partition, self._make_shard(partition))
        if partition.log.log_start_offset == partition.log.log_end_offset:
            run_through(self._finish_loading(held))
        else:
            held.loading = self._loop.create_task(self._load_from_log(held))

    async def _load_from_log(self, held: Held[ShardT]) -> None:
        began_ms = self._clock.monotonic_ms()
        end_offset = held.partition.log.log_end_offset
        try:
            count = await self._replay(held.shard, held.partition)
            await self._wait_until_committed(held, end_offset)
        except (KafkaError, CorruptBatchError, ProtocolError, OSError) as error:
            # As in Kafka, only the contents of this partition are unavailable then.
            logger.error(
                "%s-%d can't be loaded, its %s are out of service: %s", self.topic, held.index, self.noun, error
            )
            if held.is_active:
                self._unload(held, ErrorCode.NOT_COORDINATOR)
            return
        await run_with_pauses(self._finish_loading(held))
        if held.is_active:
            took_ms = self._clock.monotonic_ms() - began_ms
            logger.debug("loaded %d records of %s-%d in %.0f ms", count, self.topic, held.index, took_ms)

    async def _wait_until_committed(self, held: Held[ShardT], end_offset: int) -> None:
        """Wait until what was replayed can't be lost any more; raises KafkaError if this broker no longer leads.

        A leader may have records that too few replicas have. If another leader is elected without them, offsets that
        this one had told of would go back, and transactions would be undecided again.
        """
        while held.is_active and held.partition.log.high_watermark < end_offset:
            tracked = track_append(held.partition, end_offset, held.leader_epoch, ACKS_ALL, None)
            if isinstance(tracked, ErrorCode):
                raise KafkaError(tracked)
            await self._replicas.wait_for_acknowledgement([tracked], self._commit_timeout_ms)

    def _finish_loading(self, held: Held[ShardT]) -> Steps[None]:
        """The log was replayed: start the timers and what else follows from it, then take requests."""
        if not held.is_active:
            return
        held.is_replayed = True
        for actions in held.shard.on_loaded(self._now()):
            self._run(held, actions)
            yield 0
            if not held.is_active:
                return
        held.loading = None
        held.is_loaded = True

    def _unload(self, held: Held[ShardT], error: ErrorCode) -> None:
        held.is_active = False
        if self._held.get(held.index) is held:
            del self._held[held.index]
        self._timers.cancel_all(held.index)
        if held.is_replayed:
            self._run(held, held.shard.on_unloaded(error))
