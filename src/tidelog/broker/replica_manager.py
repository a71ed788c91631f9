"""The partitions of this broker: looked up by name and topic id, kept in line with the cluster image, written and read.

What always holds: a partition is served only while the image has its topic (by id, so that a recreated topic never
returns its predecessor's records) and its disk works; every change to a partition wakes those who wait for it. It runs
on the event loop; what waits for the disk runs in threads: flushes, one per partition at a time, each covering
everything appended before it started, and creating and removing files, which `partition_files` does.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidelog.broker import disk_room
from tidelog.broker.delayed_delete import DelayedDelete, PendingDelete
from tidelog.broker.delayed_fetch import DelayedFetch, FetchParams
from tidelog.broker.delayed_produce import DelayedProduce, PendingAppend
from tidelog.broker.disk_room import DiskRoom
from tidelog.broker.fetch_session import FetchSessionCache, PartitionFetch
from tidelog.broker.follower_fetches import FollowerFetches
from tidelog.broker.follower_state import UNKNOWN_EPOCH, ReplicationTerms
from tidelog.broker.log_opening import LogOpening
from tidelog.broker.partition import DEBUGGING_REPLICA_ID, Partition, PartitionRead
from tidelog.broker.partition_files import Opened, PartitionFiles
from tidelog.broker.purgatory import Purgatory
from tidelog.broker.read_replicas import NO_REPLICA, choose_read_replica
from tidelog.broker.record_checks import RecordChecks
from tidelog.broker.replica_moves import ReplicaMoves
from tidelog.broker.replication_throttle import ReplicationThrottles
from tidelog.broker.topic_config import LogConfigs
from tidelog.broker.txn_verification import TransactionVerification
from tidelog.broker.unopened_replica import UnopenedReplica
from tidelog.common.clock import Clock
from tidelog.common.endpoint import Endpoint
from tidelog.common.ids import ZERO_UUID
from tidelog.common.settings import Settings, SettingsTable
from tidelog.common.steps import Steps, run_through, with_pauses
from tidelog.controller.image import EMPTY_IMAGE, BrokerInfo, ClusterImage, PartitionState, TopicImage
from tidelog.log import (
    AppendResult,
    BackgroundTask,
    LogConfig,
    LogManager,
    LogStorageError,
    NoRoomError,
    NotInMemoryError,
)
from tidelog.log.txn_guard import TransactionGuard
from tidelog.log.validation import ValidatedBatch
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import ResourceType
from tidelog.records import BatchDraft

if TYPE_CHECKING:
    from tidelog.broker.controller_channel import ControllerChannel
    from tidelog.broker.isr_manager import IsrManager, Replica
    from tidelog.broker.replica_fetcher import PeerConnections, ReplicaFetching
    from tidelog.metadata.store import Session

logger = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT")

LOOKUP_THREADS = 4
"""Look-ups that wait for the disk. Apart from the flushes, which producers wait for."""

_COLD_LOOKUPS_MAX = 2
"""Each partition is looked up twice, for its start and its end. More than that means that pages are evicted as fast as
they are read, or that the disk fails, and then the loop may as well find out."""

ROOM_INTERVAL_MS = 1_000
OPEN_PAUSE_S = 10.0
"""Before it is tried again to make files that there was no room for; each attempt that fails is a line in the log."""

DISK_THREADS = 16
"""Flushes of different partitions run side by side: a disk orders and merges them better than we could."""


class LargeRead:
    """A read of many partitions in steps, as far as it has come."""

    def __init__(self, params: FetchParams, fetches: Collection[PartitionFetch]) -> None:
        self.params = params
        self.fetches = tuple(fetches)
        self.reads: list[PartitionRead] = []
        self.size_bytes = 0
        # Whether there is something that is told at once, and whether any partition could give more than it gave.
        self.has_news = False
        self.has_room = False
        # Of the partition that comes next: how often a thread read it first, and whether that failed.
        self.cold_lookups = 0
        self.may_wait_for_disk = False

    def add(self, fetch: PartitionFetch, read: PartitionRead) -> None:
        self.reads.append(read)
        self.size_bytes += read.size_bytes
        self.has_news = self.has_news or _is_told_at_once(read)
        self.has_room = self.has_room or _has_room(fetch, read)
        self.cold_lookups = 0
        self.may_wait_for_disk = False

    @property
    def must_wait(self) -> bool:
        """As `ReplicaManager.must_wait`."""
        params = self.params
        return params.max_wait_ms > 0 and not self.has_news and self.has_room and self.size_bytes < params.min_bytes


class ReplicaManager:
    """All replicas on this broker."""

    def __init__(
        self, *, node_id: int, logs: LogManager, settings: Settings, table: SettingsTable, clock: Clock
    ) -> None:
        """Create it on the running event loop that the broker serves from."""
        self.node_id = node_id
        self.image: ClusterImage = EMPTY_IMAGE
        # While this broker is not a member of its cluster, another one may lead what it has led.
        self.is_fenced = False
        # By which it was registered last.
        self.session: Session | None = None
        self.fetch_sessions = FetchSessionCache(settings.get_int("max.incremental.fetch.session.cache.slots"), clock)
        self.fetch_max_bytes = settings.get_int("fetch.max.bytes")
        self._settings = settings
        self._selects_read_replicas = settings.is_set("replica.selector.class")
        self._terms = ReplicationTerms(clock, settings.get_int("replica.lag.time.max.ms"))
        self._throttles = ReplicationThrottles(settings, clock)
        self.follower_fetches = FollowerFetches(self, self._terms, self._throttles.leader)
        # There from `start_replication` on.
        self._isr_manager: IsrManager | None = None
        self._fetching: ReplicaFetching | None = None
        self._logs = logs
        self._log_configs = LogConfigs(settings, table)
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[uuid.UUID, int], Partition] = {}
        # Called for partitions that this broker starts or stops leading, that change their epoch, or that are gone.
        self.leadership_listeners: list[Callable[[Partition], None]] = []
        # Called for markers appended to partitions led here: producer id, whether it commits, its offset.
        self.on_txn_marker: Callable[[Partition, int, bool, int], None] | None = None
        self.transactions = TransactionVerification(
            is_enabled=settings.get_bool("transaction.partition.verification.enable")
        )
        self._loop = asyncio.get_running_loop()
        self.checks = RecordChecks(self._loop, clock)
        self._purgatory: Purgatory[Partition] = Purgatory(self._loop)
        self._files = PartitionFiles(logs, self._on_opened)
        self._threads = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="partition-disk")
        self._lookup_threads = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="cold-lookups")
        self.log_opening = LogOpening(logs, self._loop, self._lookup_threads)
        self.moves = ReplicaMoves(logs, self._throttles.moves, self._on_moved)
        self.room = DiskRoom(clock)
        # Replicas whose files could not be made, and what there was no room for.
        self._unopened: dict[tuple[uuid.UUID, int], UnopenedReplica] = {}
        self._to_open: set[tuple[uuid.UUID, int]] = set()
        self._open_again_s = 0.0
        self._unsubscribe = logs.directories.subscribe(self._on_directory_offline)

    def start_replication(self, peers: PeerConnections, channel: ControllerChannel) -> None:
        """Copy partitions from their leaders, and report to the controller who keeps up; before the first image."""
        from tidelog.broker.isr_manager import IsrManager
        from tidelog.broker.replica_fetcher import FetcherConfig, ReplicaFetching

        self._isr_manager = IsrManager(self.node_id, self._terms, channel, self._on_isr_answer)
        config = FetcherConfig.from_settings(self._settings)
        self._fetching = ReplicaFetching(self.node_id, self, peers, self._terms, config, self._throttles.follower)

    def on_registered(self, broker_epoch: int) -> None:
        """The controller knows this process under this broker epoch: from now on it may copy from leaders."""
        self._terms.broker_epoch = broker_epoch
        if self._fetching is not None:
            self._fetching.on_registered()

    def background_tasks(self) -> list[BackgroundTask]:
        """What the broker's scheduler should run, and how often."""
        return [
            BackgroundTask("check ISRs", self._terms.lag_max_ms / 2, self._check_isrs),
            BackgroundTask("check for room", ROOM_INTERVAL_MS, self._check_room),
        ]

    async def close(self) -> None:
        """Wait for running threads; the log manager closes the logs."""
        if self._fetching is not None:
            await self._fetching.close()
        if self._isr_manager is not None:
            await self._isr_manager.close()
        await self.moves.close()
        await self._files.close()
        self.checks.close()
        await self._loop.run_in_executor(None, self._threads.shutdown)
        self._lookup_threads.shutdown(wait=False)
        self._unsubscribe()

    # The cluster image

    def apply(self, old: ClusterImage, new: ClusterImage) -> None:
        """Bring the replicas in line with the new image; anything that did not change since the old one is skipped.

        Deleted topics are gone when this returns. New partitions are served once their files exist, which this does not
        wait for: see `wait_until_opened`.
        """
        self.image = new
        if old.configs is not new.configs:
            self._throttles.follow(new)
        if old.brokers is not new.brokers:
            self._apply_brokers(new)
        if old.topics_by_id is not new.topics_by_id:
            for topic_id, topic in old.topics_by_id.items():
                if topic_id not in new.topics_by_id:
                    self._delete(topic)
            for topic_id, topic in new.topics_by_id.items():
                if old.topics_by_id.get(topic_id) is not topic:
                    self._apply_topic(topic)
        if old.configs is not new.configs:
            all_topics = any(
                old.broker_configs(node_id) is not new.broker_configs(node_id) for node_id in (self.node_id, None)
            )
            for topic in new.topics.values() if all_topics else _topics_with_other_configs(old, new):
                self._apply_config(topic)

    async def wait_until_opened(
        self, topic_ids: Iterable[uuid.UUID], deadline_s: float | None = None
    ) -> set[uuid.UUID]:
        """Wait until all partitions of these topics are ready or have failed; returns those left at the deadline."""
        return await self._files.wait_until_opened(topic_ids, deadline_s)

    def opening(self, topic_id: uuid.UUID) -> Collection[int]:
        """The partitions of a topic that are not ready because their files are being created."""
        return self._files.opening(topic_id)

    def opening_from(self, topic_id: uuid.UUID) -> int | None:
        """The first partition of a topic that clients can't see yet, until all from it on are open; None: all are."""
        return self._files.opening_from(topic_id)

    async def settled(self) -> None:
        """Wait until the files of all partitions match the image."""
        await self._files.settled()

    def _apply_brokers(self, image: ClusterImage) -> None:
        self._terms.brokers = image.brokers
        self.follower_fetches.on_brokers_changed()
        for partition in self._by_id.values():
            # Followers that have caught up may have been refused because their brokers were not registered yet.
            if partition.is_leader and len(partition.isr) < len(partition.replicas):
                self.on_caught_up(partition)

    def _apply_topic(self, topic: TopicImage) -> None:
        to_open, to_remove = [], []
        for index, state in enumerate(topic.partitions):
            partition = self._by_id.get((topic.topic_id, index))
            if self.node_id not in state.replicas:
                self._forget_unopened(topic, index)
                if partition is not None or self._files.has(topic, index):
                    to_remove.append(index)
            elif partition is not None:
                self._apply_state(partition, state)
            elif not self._files.is_opening(topic.topic_id, index):
                if any(member != self.node_id for member in state.isr):
                    self._logs.release(topic.name, index)
                to_open.append(index)
                self._withdraw_unopened(topic, index)
        if to_remove:
            self._remove(topic, to_remove)
        if to_open:
            self._files.open(topic, to_open, self._log_config(topic))

    def _apply_state(self, partition: Partition, state: PartitionState) -> None:
        if partition.log.is_truncating:
            return  # `_on_log_changed` applies what is then the latest state
        if partition.apply(state):
            self._on_leadership_changed(partition)
        elif self._fetching is not None and partition.is_follower:
            self._fetching.follow(partition)
        self._progress(partition)
        if partition.is_leader and len(partition.isr) < len(partition.replicas):
            # Only one change of an ISR is under way at a time; another may be due by now.
            self.on_caught_up(partition)
        self._withdraw(partition)

    def _on_leadership_changed(self, partition: Partition) -> None:
        """Copy the partition from its new leader, and wake whoever waits for it or depends on its leadership."""
        if self._fetching is not None:
            if partition.is_follower:
                self._fetching.follow(partition)
            else:
                self._fetching.unfollow(partition)
        self._purgatory.check(partition)
        self.follower_fetches.on_changed(partition)
        for listener in self.leadership_listeners:
            listener(partition)

    def fence(self) -> None:
        """Stop leading and copying: this broker's session is over, and others may lead its partitions by now.

        This broker has to register again. Then it copies again, and leads what the controller gives it in a new epoch.
        Where it still serves, because it is alone in its cluster, it keeps leading what nobody else has.
        """
        self.on_registered(UNKNOWN_EPOCH)
        for partition in tuple(self._by_id.values()):
            was_leader = partition.is_leader
            partition.fence(keep_sole=self.is_serving)
            if was_leader and not partition.is_leader:
                self._on_leadership_changed(partition)

    def _on_opened(self, opened: Iterable[Opened]) -> None:
        """Serve partitions whose logs have been opened, in their current states."""
        for topic_id, index, log, error in opened:
            topic = self.image.topics_by_id[topic_id]
            if log is None:
                self._on_unopened(topic, index, error)
                continue
            self._forget_unopened(topic, index)
            log.update_config(self._log_config(topic))
            partition = Partition(topic.name, index, topic_id, log, self.node_id, self._terms)
            partition.has_room = not self.room.is_full(log.parent)
            self._by_id[topic_id, index] = self._by_name[topic.name, index] = partition
            self._apply_state(partition, topic.partitions[index])
            if log.is_offline:
                self.check_storage(partition)

    def _log_config(self, topic: TopicImage) -> LogConfig:
        return self._log_configs.effective(self.image, topic.name)

    def _apply_config(self, topic: TopicImage) -> None:
        config = self._log_config(topic)
        for index in range(len(topic.partitions)):
            partition = self._by_id.get((topic.topic_id, index))
            if partition is not None and partition.log.config != config:
                partition.log.update_config(config)
                # A new min.insync.replicas or flush.messages may let the high watermark advance.
                self._progress(partition)

    def _delete(self, topic: TopicImage) -> None:
        """Stop serving the topic, and answer those who wait for it; its files are removed later."""
        self._stop_partitions(topic, range(len(topic.partitions)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        here = [index for index, state in enumerate(topic.partitions) if self.node_id in state.replicas]
        if here:
            self._files.delete(topic, here)

    def _remove(self, topic: TopicImage, indexes: Collection[int]) -> None:
        """Other brokers have these partitions of a topic from now on."""
        self._stop_partitions(topic, indexes, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._files.remove(topic, indexes)

    def _stop_partitions(self, topic: TopicImage, indexes: Iterable[int], reason: ErrorCode) -> None:
        for index in indexes:
            self._forget_unopened(topic, index)
            partition = self._by_id.pop((topic.topic_id, index), None)
            if partition is not None:
                del self._by_name[topic.name, index]
                partition.stop(reason)
                self.moves.cancel(partition)
                self._on_leadership_changed(partition)
                self.follower_fetches.forget(partition)

    # Finding partitions

    @property
    def is_serving(self) -> bool:
        """Whether this broker may answer for its partitions now.

        Past the deadline of its session it may not, even if nobody here has heard of that yet: a process that stood
        still goes on with whatever is ready first. A broker that is alone in its cluster has nobody to give way to.
        """
        if self.is_fenced:
            return False
        session = self.session
        return session is None or len(self.image.brokers) < 2 or not session.is_over

    @property
    def fenced_node_ids(self) -> frozenset[int]:
        """This broker while it must not serve: whatever its image says, others may lead its partitions by now."""
        return frozenset() if self.is_serving else frozenset({self.node_id})

    def find(self, topic: str, index: int) -> Partition:
        """The partition of this name; raises a KafkaError that says why this broker has none."""
        partition = self._by_name.get((topic, index))
        if partition is None or not self.is_serving:
            raise self._missing(self.image.topics.get(topic), index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    def find_by_id(self, topic_id: uuid.UUID, index: int) -> Partition:
        """As `find`, by topic id (KIP-516)."""
        partition = self._by_id.get((topic_id, index))
        if partition is None or not self.is_serving:
            raise self._missing(self.image.topics_by_id.get(topic_id), index, ErrorCode.UNKNOWN_TOPIC_ID)
        return partition

    def _missing(self, topic: TopicImage | None, index: int, unknown_topic: ErrorCode) -> KafkaError:
        if topic is None:
            return KafkaError(unknown_topic)
        if not 0 <= index < len(topic.partitions):
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        is_replica = self.node_id in topic.partitions[index].replicas
        if is_replica and self.is_serving and not self._files.is_opening(topic.topic_id, index):
            # It belongs here, so its log could not be opened.
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        # Also while its files are being created: every client retries after this error, while some give up after
        # others.
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def find_leader(self, topic: str, index: int, current_leader_epoch: int = -1) -> Partition:
        """The partition, if this broker leads it in this epoch (-1: in any)."""
        partition = self.find(topic, index)
        partition.check_leader(current_leader_epoch)
        return partition

    def find_some(self, names: Iterable[tuple[str, int]]) -> Iterator[Partition]:
        """Those of the partitions that are here; what is wrong with the others, `find` says."""
        for name in names:
            partition = self._by_name.get(name)
            if partition is not None:
                yield partition

    def partitions(self) -> Iterator[Partition]:
        return iter(self._by_id.values())

    def waiting(self, partition: Partition) -> int:
        """How many requests wait for something to happen to the partition."""
        return self._purgatory.waiting(partition)

    def leader_state(self, topic: str, topic_id: uuid.UUID, index: int) -> PartitionState | None:
        """Who leads a partition, to redirect clients (KIP-951); found by id, or by name if the id is zero.

        None while this broker is about to become the leader: a client redirected here would go in circles; without a
        redirect it waits a little.
        """
        image = self.image
        found = image.topics.get(topic) if topic_id == ZERO_UUID else image.topics_by_id.get(topic_id)
        if found is None or not 0 <= index < len(found.partitions) or self._files.is_opening(found.topic_id, index):
            return None
        return found.partitions[index]

    def endpoints(self, node_ids: Iterable[int], listener_name: str) -> list[tuple[BrokerInfo, Endpoint]]:
        """The known brokers among these ids and where clients of a listener find them (KIP-951)."""
        found = (self.image.brokers.get(node_id) for node_id in sorted(set(node_ids)))
        return [(broker, broker.endpoint(listener_name)) for broker in found if broker is not None]

    # Writing

    def append(
        self,
        partition: Partition,
        records: memoryview | ValidatedBatch | BatchDraft | None,
        required_acks: int,
        guard: TransactionGuard | None = None,
    ) -> AppendResult:
        """Append one batch; raises KafkaError. The partition knows when it may be acknowledged.

        `guard` lets it begin a transaction, once the transaction's coordinator has confirmed it. Raises LongCheckError
        when the batch has to go through `checks` first.
        """
        try:
            result = partition.append(records, required_acks, guard)
        except LogStorageError as error:
            self.on_storage_error(partition, error)
            raise
        self._on_appended(partition)
        return result

    def _on_appended(self, partition: Partition) -> None:
        if partition.log.flush_is_due:
            self._start_flush(partition)
        self._purgatory.check(partition)
        self.follower_fetches.on_changed(partition)

    def write_txn_marker(
        self,
        partition: Partition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        *,
        epoch_is_bumped: bool = False,
    ) -> AppendResult:
        """End a producer's transaction in a partition; raises KafkaError. Acknowledged as with acks=all.

        `epoch_is_bumped`: the end of the transaction has already raised the epoch (transaction.version 2).
        """
        try:
            result = partition.write_txn_marker(
                producer_id, producer_epoch, coordinator_epoch, commit=commit, epoch_is_bumped=epoch_is_bumped
            )
        except LogStorageError as error:
            self.on_storage_error(partition, error)
            raise
        self._on_appended(partition)
        if self.on_txn_marker is not None:
            self.on_txn_marker(partition, producer_id, commit, result.last_offset)
        return result

    async def wait_for_acknowledgement(self, appends: Collection[PendingAppend[ResponseT]], timeout_ms: int) -> None:
        """Wait until the `error` of every append is decided, or the time is up."""
        delayed = DelayedProduce(appends)
        await self._purgatory.wait(delayed, delayed.partitions, max(0, timeout_ms))

    def delete_records_before(self, partition: Partition, offset: int) -> int:
        """Move the start of the log up; returns where it starts now; raises KafkaError."""
        try:
            log_start_offset = partition.delete_records_before(offset)
        except LogStorageError as error:
            self.on_storage_error(partition, error)
            raise
        self._purgatory.check(partition)
        self.follower_fetches.on_changed(partition)
        return log_start_offset

    async def wait_for_deletion(self, deletes: Collection[PendingDelete], timeout_ms: int) -> None:
        """Wait until the logs of all replicas in the ISRs start where these say, or the time is up."""
        delayed = DelayedDelete(deletes)
        await self._purgatory.wait(delayed, delayed.partitions, max(0, timeout_ms))

    async def save_log_start_offsets(self) -> None:
        """Save where logs start, so that records deleted on request do not come back after a crash."""
        await asyncio.to_thread(self._logs.checkpoint)

    # Reading

    def read(
        self, params: FetchParams, fetches: Iterable[PartitionFetch], *, in_memory: bool = False
    ) -> list[PartitionRead]:
        """Read all partitions in the given order, within the fetch's limit; errors are in the results.

        `in_memory`: raise NotInMemoryError rather than wait for the disk; `read_patiently` continues from there.
        """
        left_bytes = params.max_bytes
        # The first partition with records returns at least one whole batch, or a consumer with a small limit would
        # never get past a large one.
        min_one_batch = True
        reads = []
        for fetch in fetches:
            read = self._read_one(params, fetch, min(left_bytes, fetch.max_bytes), min_one_batch, in_memory)
            if read.size_bytes:
                min_one_batch = False
                left_bytes = max(0, left_bytes - read.size_bytes)
            reads.append(read)
        return reads

    def read_in_steps(self, read: LargeRead) -> Steps[None]:
        """As `read` from memory, with pauses; after a NotInMemoryError, another call goes on where this one stopped."""
        params = read.params
        for fetch in read.fetches[len(read.reads) :]:
            max_bytes = max(0, min(params.max_bytes - read.size_bytes, fetch.max_bytes))
            in_memory = not read.may_wait_for_disk
            read.add(fetch, self._read_one(params, fetch, max_bytes, not read.size_bytes, in_memory))
            yield 0

    async def bring_in(self, read: LargeRead, cold: NotInMemoryError) -> None:
        """Have a thread read what a large read stopped at."""
        read.cold_lookups += 1
        try:
            await self._loop.run_in_executor(self._lookup_threads, cold.bring_in)
        except OSError:
            # The read meets the same error and tells it.
            read.may_wait_for_disk = True
        if read.cold_lookups >= _COLD_LOOKUPS_MAX:
            read.may_wait_for_disk = True

    async def bring_in_for(self, cold: NotInMemoryError) -> None:
        """Have a thread read what a look-up stopped at; if that fails, the next look-up says why."""
        try:
            await self._loop.run_in_executor(self._lookup_threads, cold.bring_in)
        except OSError as error:
            raise LogStorageError(f"a log can't be read: {error}") from error

    async def read_patiently(self, params: FetchParams, fetches: Collection[PartitionFetch]) -> list[PartitionRead]:
        """Like `read`, but a thread waits for the disk where needed, and everyone else is served in the meantime."""
        for _ in range(_COLD_LOOKUPS_MAX * len(fetches)):
            try:
                return self.read(params, fetches, in_memory=True)
            except NotInMemoryError as cold:
                try:
                    await self._loop.run_in_executor(self._lookup_threads, cold.bring_in)
                except OSError:
                    # The read below meets the same error and reports it.
                    break
        return self.read(params, fetches)

    def _read_one(
        self, params: FetchParams, fetch: PartitionFetch, max_bytes: int, min_one_batch: bool, in_memory: bool
    ) -> PartitionRead:
        try:
            partition = self._find_fetched(fetch)
            if params.replica_id == DEBUGGING_REPLICA_ID:
                partition.check_available()
            elif params.may_read_followers:
                partition.check_readable(fetch.current_leader_epoch)
            else:
                partition.check_leader(fetch.current_leader_epoch)
            # Only the leader knows where an epoch ended: a follower's history may end before it.
            if fetch.last_fetched_epoch >= 0 and partition.is_leader:
                divergence = partition.find_divergence(fetch.fetch_offset, fetch.last_fetched_epoch)
                if divergence is not None:
                    return partition.describe(divergence)
            if self._selects_read_replicas and params.client_rack and partition.is_leader:
                replica_id = choose_read_replica(partition, self._terms, params.client_rack, fetch.fetch_offset)
                if replica_id != NO_REPLICA:
                    elsewhere = partition.describe()
                    elsewhere.preferred_read_replica = replica_id
                    return elsewhere
            return partition.read(
                fetch.fetch_offset,
                max_bytes,
                replica_id=params.replica_id,
                read_committed=params.read_committed,
                min_one_batch=min_one_batch,
                in_memory=in_memory,
            )
        except LogStorageError as error:
            self.on_storage_error(partition, error)
            return PartitionRead(error=error.code)
        except KafkaError as error:
            return PartitionRead(error=error.code)

    def _find_fetched(self, fetch: PartitionFetch) -> Partition:
        if fetch.topic_id == ZERO_UUID and fetch.topic:
            return self.find(fetch.topic, fetch.partition)
        return self.find_by_id(fetch.topic_id, fetch.partition)

    def must_wait(
        self, params: FetchParams, fetches: Iterable[PartitionFetch], reads: Collection[PartitionRead]
    ) -> bool:
        """Whether a fetch with these results should wait.

        As in Kafka, a reader that is still in an older segment does not wait: one response never spans two segments, so
        there would be nothing to gain. Nor does one whose partitions have all reached their limits.
        """
        if params.max_wait_ms <= 0 or not reads:
            return False
        size_bytes = 0
        has_room = False
        for fetch, read in zip(fetches, reads, strict=True):
            if _is_told_at_once(read):
                return False
            size_bytes += read.size_bytes
            has_room = has_room or _has_room(fetch, read)
        return has_room and size_bytes < params.min_bytes

    async def wait_for_data(
        self, params: FetchParams, fetches: Iterable[PartitionFetch], reads: Iterable[PartitionRead]
    ) -> None:
        """Wait until a waiting fetch would return enough, has an error to report, or its time is up."""
        delayed = DelayedFetch(params, functools.partial(_measure, params))
        if run_through(self._add_in_steps(delayed, fetches, reads)):
            await self._purgatory.wait(delayed, delayed.partitions, params.max_wait_ms)

    def delay_in_steps(self, read: LargeRead) -> Steps[Callable[[], Coroutine[None, None, None]]]:
        """As `wait_for_data`; what is prepared in steps ends in a function that waits, for whoever still wants it."""
        delayed = DelayedFetch(read.params, functools.partial(_measure, read.params))
        is_complete = yield from self._add_in_steps(delayed, read.fetches, read.reads)
        return functools.partial(self._wait_for, delayed, read.params.max_wait_ms if is_complete else 0)

    async def _wait_for(self, delayed: DelayedFetch, max_wait_ms: int) -> None:
        if max_wait_ms > 0:
            await self._purgatory.wait(delayed, delayed.partitions, max_wait_ms)

    def _add_in_steps(
        self, delayed: DelayedFetch, fetches: Iterable[PartitionFetch], reads: Iterable[PartitionRead]
    ) -> Steps[bool]:
        """Have a fetch wait for its partitions; False when one went away since it was read."""
        for fetch, read in zip(fetches, reads, strict=True):
            try:
                delayed.add(self._find_fetched(fetch), fetch, read)
            except KafkaError:
                # It has disappeared since it was read, which has to be reported now; the next read says why.
                return False
            yield 0
        return True

    # Leading

    def on_follower_progress(self, partition: Partition) -> None:
        """The watermarks of a partition may have moved, as a follower has more of its log."""
        self._purgatory.check(partition)
        self.follower_fetches.on_high_watermark(partition)

    def on_caught_up(self, partition: Partition) -> None:
        """A follower of a partition may have caught up, so that it can join the ISR."""
        if partition.propose_expansion() and self._isr_manager is not None:
            self._isr_manager.submit(partition)

    def _on_isr_answer(self, partition: Replica) -> None:
        if isinstance(partition, Partition):
            self._progress(partition)
            self.on_caught_up(partition)
            self._withdraw(partition)

    async def _check_isrs(self) -> None:
        """Let followers that have not kept up leave their ISRs."""
        async for partition in with_pauses(tuple(self._by_id.values())):
            if partition.propose_shrink() and self._isr_manager is not None:
                self._isr_manager.submit(partition)
            elif partition.is_leader and len(partition.isr) < len(partition.replicas):
                self.on_caught_up(partition)
            elif self._fetching is not None and partition.is_follower and self.node_id not in partition.isr:
                # Its leader may have forgotten what it holds, and an idle log gives no other reason to name it.
                self._fetching.name_again(partition)
            self._withdraw(partition)
        for replica in tuple(self._unopened.values()):
            self._withdraw(replica)

    # Following

    def change_log(self, partition: Partition, work: Callable[[], object]) -> asyncio.Future[None]:
        """Have a thread truncate the log of a partition that this broker follows.

        What the controller decides about the partition meanwhile takes effect afterwards: a leader must not append to a
        log that is being truncated.
        """
        log = partition.log
        log.begin_truncation()
        changed: asyncio.Future[None] = self._loop.create_future()
        thread = self._loop.run_in_executor(self._threads, work)
        thread.add_done_callback(functools.partial(self._on_log_changed, partition, changed))
        return changed

    def _on_log_changed(
        self, partition: Partition, changed: asyncio.Future[None], thread: asyncio.Future[object]
    ) -> None:
        partition.log.end_truncation()
        error = thread.exception()
        if error is None:
            changed.set_result(None)
        else:
            changed.set_exception(error)
        if isinstance(error, LogStorageError):
            self.on_storage_error(partition, error)
        topic = self.image.topics_by_id.get(partition.topic_id)
        if topic is not None and self._by_id.get((partition.topic_id, partition.partition)) is partition:
            self._apply_state(partition, topic.partitions[partition.partition])

    async def open_log(self, partition: Partition) -> None:
        """Have a thread open a log at rest."""
        await self.log_opening.open([partition.log])

    def on_followed(self, partition: Partition) -> asyncio.Future[None] | None:
        """The log of a follower or its high watermark has grown; returns the flush to wait for, if one is due."""
        self._purgatory.check(partition)  # consumers may wait here, too
        if not partition.log.flush_is_due:
            return None
        return self._loop.run_in_executor(self._threads, partition.log.flush)

    # Flushing, and disks that fail

    def _progress(self, partition: Partition) -> None:
        """Something that was holding back the high watermark of a partition has changed."""
        if partition.is_leader:
            if partition.advance_high_watermark():
                self.follower_fetches.on_high_watermark(partition)
            self._purgatory.check(partition)
            if partition.log.flush_is_due:
                self._start_flush(partition)

    def _start_flush(self, partition: Partition) -> None:
        if partition.flush_is_running:
            return
        partition.flush_is_running = True
        flush = self._loop.run_in_executor(self._threads, partition.log.flush)
        flush.add_done_callback(functools.partial(self._on_flushed, partition))

    def _on_flushed(self, partition: Partition, flush: asyncio.Future[None]) -> None:
        partition.flush_is_running = False
        try:
            flush.result()
        except LogStorageError as error:
            self.on_storage_error(partition, error)
        else:
            self._progress(partition)

    def _on_moved(self, partition: Partition) -> None:
        """The log of a partition is in another directory; flushes had to wait for that."""
        if partition.log.is_offline:
            self.check_storage(partition)
        else:
            partition.has_room = not self.room.is_full(partition.log.parent)
            self._progress(partition)

    def on_storage_error(self, partition: Partition, error: LogStorageError) -> None:
        """A log could not be written or read.

        One that could undo the failed write, as on a full disk, stays online; others write instead of it, if they can.
        """
        if isinstance(error, NoRoomError):
            self._on_no_room(partition, error)
        else:
            self.check_storage(partition)

    def check_storage(self, partition: Partition) -> None:
        """If the log went offline, so does its whole directory, whose disk can't be trusted."""
        if partition.unavailable or not partition.log.is_offline:
            return
        if partition.log.health.is_damaged:
            self._stop_without_disk(partition)
            return
        directory = partition.log.parent
        self._logs.directories.fail(directory, f"{partition.topic}-{partition.partition} failed")
        self._stop_serving(directory)

    def _on_directory_offline(self, directory: Path) -> None:
        """Called from whichever thread met the error: a timed flush, a checkpoint, an append."""
        self._loop.call_soon_threadsafe(self._stop_serving, directory)

    def _stop_serving(self, directory: Path) -> None:
        for partition in tuple(self._by_id.values()):
            if partition.log.parent == directory and not partition.unavailable:
                self._stop_without_disk(partition)

    def _stop_without_disk(self, partition: Partition) -> None:
        partition.stop(ErrorCode.KAFKA_STORAGE_ERROR)
        self.moves.cancel(partition)
        self._on_leadership_changed(partition)
        self._withdraw(partition)

    def _withdraw(self, replica: Replica) -> None:
        """Leave the ISR of a partition that can't be written here any more, so that others lead and nobody waits."""
        if replica.propose_withdrawal() and self._isr_manager is not None:
            self._isr_manager.submit(replica)

    # Disks that are full

    def _on_no_room(self, partition: Partition, error: LogStorageError) -> None:
        """Nothing is written to a full disk by those who can do without it: more would fail there, one by one."""
        directory = partition.log.parent
        if self.room.note_full(directory):
            logger.warning(
                "log directory %s is full: %s; other replicas are written instead, where there are any in sync: make "
                "room, and it is used again without a restart",
                directory,
                error.message,
            )
            self._tell_of_room(directory)

    def _tell_of_room(self, directory: Path) -> None:
        has_room = not self.room.is_full(directory)
        for partition in tuple(self._by_id.values()):
            if partition.log.parent == directory and partition.has_room != has_room:
                partition.has_room = has_room
                self._withdraw(partition)
                if has_room and self._fetching is not None:
                    self._fetching.name_again(partition)

    async def _check_room(self) -> None:
        """Use directories again that have room."""
        for directory in self.room.due:
            if await asyncio.to_thread(disk_room.has_room, directory):
                self.room.note_room(directory)
                logger.info("log directory %s has room again", directory)
                self._tell_of_room(directory)
        if self._to_open and not self.room.full and self._loop.time() >= self._open_again_s:
            self._open_again_s = self._loop.time() + OPEN_PAUSE_S
            for topic_id, index in tuple(self._to_open):
                topic = self.image.topics_by_id[topic_id]
                if not self._files.is_opening(topic_id, index):
                    self._files.open(topic, [index], self._log_config(topic), were_tried=True)

    def _on_unopened(self, topic: TopicImage, index: int, error: LogStorageError | None) -> None:
        """The files of a replica could not be made."""
        key = topic.topic_id, index
        if key not in self._unopened:
            self._unopened[key] = UnopenedReplica(topic.name, index, topic.topic_id, self.node_id, self._terms)
        if isinstance(error, NoRoomError):
            self._to_open.add(key)
            self._open_again_s = self._loop.time() + OPEN_PAUSE_S
        self._withdraw_unopened(topic, index)

    def _forget_unopened(self, topic: TopicImage, index: int) -> None:
        self._unopened.pop((topic.topic_id, index), None)
        self._to_open.discard((topic.topic_id, index))

    def _withdraw_unopened(self, topic: TopicImage, index: int) -> None:
        replica = self._unopened.get((topic.topic_id, index))
        if replica is not None:
            replica.apply(topic.partitions[index])
            self._withdraw(replica)


def _is_told_at_once(read: PartitionRead) -> bool:
    return (
        bool(read.error)
        or read.ends_segment
        or read.diverging_epoch is not None
        or read.preferred_read_replica != NO_REPLICA
    )


def _topics_with_other_configs(old: ClusterImage, new: ClusterImage) -> Iterator[TopicImage]:
    """Found by the settings that are set, which most of the topics have none of."""
    for resource in old.configs.keys() | new.configs.keys():
        topic = new.topics.get(resource.name) if resource.type is ResourceType.TOPIC else None
        if topic is not None and old.configs.get(resource) is not new.configs.get(resource):
            yield topic


def _has_room(fetch: PartitionFetch, read: PartitionRead) -> bool:
    """Whether the fetch takes more of the partition than it got."""
    return read.size_bytes < max(1, fetch.max_bytes)


def _measure(params: FetchParams, partition: Partition, fetch: PartitionFetch) -> int:
    """How many bytes a fetch would get from this partition now, regardless of its other partitions.

    `min_bytes` if waiting is pointless, so that the fetch is answered.
    """
    try:
        read = partition.read(
            fetch.fetch_offset,
            min(params.max_bytes, fetch.max_bytes),
            replica_id=params.replica_id,
            read_committed=params.read_committed,
            min_one_batch=True,
            in_memory=True,
        )
    except NotInMemoryError:
        # What is only on disk is old, and a reader of old records need not wait for more.
        return params.min_bytes
    return params.min_bytes if read.ends_segment else read.size_bytes
