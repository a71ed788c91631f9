"""Copies the partitions that this broker follows: one fetcher for each leader broker, over Kafka's Fetch.

What always holds: a partition is fetched from the end of its log, with the epoch of its last record, so that its leader
finds out where histories differ (KIP-595), again in each leader epoch; what differs is truncated, and nothing else ever
is, no matter where the high watermark lies. Batches are checked and written as they came, with one write a run; the
high watermark and the start of the log follow the leader's. A partition with a problem is tried again after a pause of
its own, while the others go on. A fetcher holds one answer in memory, or two while one is on its way. All waiting for
the disk is done by threads, and an answer is dealt with in slices, so that others have their turns on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol

from tidelog.broker.follower_state import UNKNOWN_EPOCH, ReplicationTerms
from tidelog.broker.partition import NO_EPOCH, Partition
from tidelog.broker.replication_throttle import ReplicationQuota
from tidelog.client.errors import ClientError, InvalidResponseError
from tidelog.client.network.backoff import Backoff
from tidelog.client.network.connection import Connection
from tidelog.common.background import report_failure, start_background
from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import Settings
from tidelog.log import BelowStartError, LogStorageError, PartitionLog
from tidelog.protocol import Api, ErrorCode, KafkaError
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from tidelog.protocol.messages.k02_list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.records import LOG_OVERHEAD

logger = logging.getLogger(__name__)

_FIRST_SESSION_EPOCH: Final = 0
_UNNAMED: Final = -1
_NO_SESSION: Final = 0
_EPOCH_MAX: Final = 2**31 - 1
_LATEST: Final = -1
_EARLIEST: Final = -2

IN_FLIGHT_MAX: Final = 2
"""A second request goes out while the first waits at the leader, and makes the leader answer that one at once."""

NAMED_PER_REQUEST_MAX: Final = 500
"""Request and answer are encoded and decoded in one go, on both sides; this many partitions take some milliseconds."""

_SLICE_BYTES: Final = 256 * 1024
"""How much is appended in one go: batches of one small record, the worst case, take about 10 ms."""

_TURN_S: Final = 0.005

_RETRY_FIRST_S: Final = 0.01
"""Most errors mean that an image has reached one broker and not yet the other, which takes a few milliseconds."""

_FULL_PAUSE_S: Final = 10.0
"""How often a follower with a full disk looks where its leader's log begins."""

_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

FollowedKey = tuple[uuid.UUID, int]


class PeerConnections(Protocol):
    """Connections to other brokers, see `peers`."""

    async def open(self, node_id: int) -> Connection: ...

    async def call(
        self, node_id: int, api: Api, request: object, response_class: type[ListOffsetsResponse], *, timeout_s: float
    ) -> ListOffsetsResponse: ...


class Followers(Protocol):
    """What is needed of the replica manager."""

    def change_log(self, partition: Partition, work: Callable[[], object]) -> asyncio.Future[None]:
        """Have a thread change the log of a partition that this broker follows."""

    async def open_log(self, partition: Partition) -> None:
        """Have a thread open a log at rest."""

    def on_followed(self, partition: Partition) -> asyncio.Future[None] | None:
        """The log has grown, or its watermarks moved; returns the flush to wait for, if one is due."""

    def on_storage_error(self, partition: Partition, error: LogStorageError) -> None:
        """The log could not be written."""


@dataclass(frozen=True, slots=True)
class FetcherConfig:
    """How followers fetch."""

    fetchers_per_leader: int
    wait_max_ms: int
    partition_bytes_max: int
    response_bytes_max: int
    retry: Backoff
    timeout_s: float

    @classmethod
    def from_settings(cls, settings: Settings) -> FetcherConfig:
        return cls(
            fetchers_per_leader=settings.get_int("num.replica.fetchers"),
            wait_max_ms=settings.get_int("replica.fetch.wait.max.ms"),
            partition_bytes_max=settings.get_int("replica.fetch.max.bytes"),
            response_bytes_max=settings.get_int("replica.fetch.response.max.bytes"),
            retry=Backoff(_RETRY_FIRST_S, settings.get_int("replica.fetch.backoff.ms") / 1000),
            timeout_s=settings.get_int("replica.socket.timeout.ms") / 1000,
        )


class Followed:
    """A partition that is copied, in one leader epoch."""

    __slots__ = (
        "changed",
        "failures",
        "is_busy",
        "is_held",
        "key",
        "lags",
        "leader_epoch",
        "named_by",
        "named_offset",
        "partition",
        "timer",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key = partition.topic_id, partition.partition
        self.leader_epoch = partition.leader_epoch
        # The last request that named it to the leader, and the offset that it named.
        self.named_by = _UNNAMED
        self.named_offset = -1
        # Something is done to its log, after which it is named again.
        self.is_busy = False
        # Whether it lacks records that are committed, and whether `timer` is a pause for the quota.
        self.lags = True
        self.is_held = False
        self.failures = 0
        self.timer: asyncio.TimerHandle | None = None
        # There may be room for its log again, or nobody copies it any more.
        self.changed = asyncio.Event()


class ReplicaFetching:
    """All fetchers of a broker."""

    def __init__(
        self,
        node_id: int,
        followers: Followers,
        peers: PeerConnections,
        terms: ReplicationTerms,
        config: FetcherConfig,
        quota: ReplicationQuota,
    ) -> None:
        self.node_id = node_id
        self.followers = followers
        self.peers = peers
        self.terms = terms
        self.config = config
        self.quota = quota
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._by_partition: dict[Partition, ReplicaFetcher] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def follow(self, partition: Partition) -> None:
        """Copy the partition from its current leader; start over if its leader epoch has changed."""
        if self._is_closed:
            return
        place = partition.leader, (partition.topic_id.int + partition.partition) % self.config.fetchers_per_leader
        before = self._by_partition.get(partition)
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = ReplicaFetcher(self, partition.leader)
        if before is not None and before is not fetcher:
            self.unfollow(partition)
        self._by_partition[partition] = fetcher
        fetcher.follow(partition)

    def name_again(self, partition: Partition) -> None:
        """Tell the leader anew how far its copy has come: the leader may have forgotten, or there is room again."""
        fetcher = self._by_partition.get(partition)
        if fetcher is not None:
            fetcher.name_again(partition)

    def unfollow(self, partition: Partition) -> None:
        """Stop copying: this broker leads it, or has it no longer. A thread that works on the log goes on."""
        fetcher = self._by_partition.pop(partition, None)
        if fetcher is None:
            return
        fetcher.unfollow(partition)
        if fetcher.is_idle:
            self._fetchers = {place: other for place, other in self._fetchers.items() if other is not fetcher}
            closing = asyncio.get_running_loop().create_task(fetcher.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def on_registered(self) -> None:
        """This broker has a new epoch, which its fetches must carry, or none."""
        for fetcher in self._fetchers.values():
            fetcher.wake()

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.gather(*self._closing, *(fetcher.close() for fetcher in self._fetchers.values()))


class _SessionLostError(Exception):
    """The leader no longer knows the session, or this broker has a new epoch."""


class ReplicaFetcher:
    """Copies partitions from one leader broker."""

    def __init__(self, owner: ReplicaFetching, leader_id: int) -> None:
        self._owner = owner
        self._leader_id = leader_id
        self._config = owner.config
        self._quota = owner.quota
        self._followed: dict[FollowedKey, Followed] = {}
        # What the next request says: partitions to fetch, and those that are no longer fetched.
        self._to_name: dict[FollowedKey, None] = {}
        self._to_forget: dict[FollowedKey, None] = {}
        self._session_id = _NO_SESSION
        self._session_epoch = _FIRST_SESSION_EPOCH
        self._broker_epoch = UNKNOWN_EPOCH
        # Requests are counted, so that it is known which of them an answer belongs to.
        self._requests = 0
        self._in_flight: deque[tuple[int, asyncio.Future[FetchResponse]]] = deque()
        self._failures = 0
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._task = start_background(self._run(), f"fetcher of broker {leader_id}")

    @property
    def is_idle(self) -> bool:
        return not self._followed

    def follow(self, partition: Partition) -> None:
        key = partition.topic_id, partition.partition
        followed = self._followed.get(key)
        if followed is not None:
            if followed.leader_epoch == partition.leader_epoch and followed.partition is partition:
                if followed.is_held and followed.timer is not None:
                    # It may have joined the ISR, and is throttled no longer.
                    followed.timer.cancel()
                    self._retry(followed)
                return
            self._drop(followed)
        self._followed[key] = Followed(partition)
        self._to_forget.pop(key, None)
        self._name(key)

    def name_again(self, partition: Partition) -> None:
        followed = self._followed.get((partition.topic_id, partition.partition))
        if followed is not None:
            followed.changed.set()
            if not followed.is_busy and followed.timer is None:
                self._name(followed.key)

    def unfollow(self, partition: Partition) -> None:
        followed = self._followed.get((partition.topic_id, partition.partition))
        if followed is not None:
            self._drop(followed)
            if followed.named_by != _UNNAMED:
                self._to_forget[followed.key] = None

    def _drop(self, followed: Followed) -> None:
        del self._followed[followed.key]
        followed.changed.set()
        self._to_name.pop(followed.key, None)
        if followed.timer is not None:
            followed.timer.cancel()

    def wake(self) -> None:
        self._event.set()

    async def close(self) -> None:
        """Stop fetching; wait for threads that work on logs."""
        self._task.cancel()
        await asyncio.wait([self._task])
        for followed in tuple(self._followed.values()):
            self._drop(followed)
        await asyncio.gather(*self._running, return_exceptions=True)

    # The exchange with the leader

    async def _run(self) -> None:
        while True:
            connection: Connection | None = None
            try:
                connection = await self._owner.peers.open(self._leader_id)
                await self._fetch_over(connection)
            except ClientError as error:
                self._failures += 1
                logger.info("fetching from broker %d failed, trying again: %s", self._leader_id, error)
                await asyncio.sleep(self._config.retry.pause_s(self._failures))
            finally:
                if connection is not None:
                    connection.close()

    async def _fetch_over(self, connection: Connection) -> None:
        """Fetch until the connection fails; raises ClientError."""
        self._begin_session()
        while True:
            try:
                await self._take_turn(connection)
            except _SessionLostError as reason:
                self._failures += 1
                logger.info("a new fetch session with broker %d: %s", self._leader_id, reason)
                await asyncio.sleep(self._config.retry.pause_s(self._failures))
                self._begin_session()

    def _begin_session(self) -> None:
        """Name every partition again; answers that are on their way no longer count."""
        self._session_id, self._session_epoch = _NO_SESSION, _FIRST_SESSION_EPOCH
        self._in_flight.clear()
        self._to_forget.clear()
        for followed in self._followed.values():
            followed.named_by = _UNNAMED
            if not followed.is_busy and followed.timer is None:
                self._to_name[followed.key] = None

    async def _take_turn(self, connection: Connection) -> None:
        """Send what there is to say, and deal with the answers that have come; or wait for one of both."""
        broker_epoch = self._owner.terms.broker_epoch
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            if self._session_id != _NO_SESSION or self._in_flight:
                raise _SessionLostError("this broker has a new registration")
        if self._may_send():
            self._send(connection)
        self._event.clear()
        if self._in_flight and self._in_flight[0][1].done():
            number, answer = self._in_flight.popleft()
            await self._take_answer(number, answer.result())
        elif not self._may_send():
            await self._event.wait()

    def _may_send(self) -> bool:
        if self._broker_epoch == UNKNOWN_EPOCH or not (self._followed or self._to_forget):
            return False
        if not self._in_flight:
            # Without a session, there is nothing to wait for at the leader.
            return bool(self._to_name) or self._session_id != _NO_SESSION
        return (
            bool(self._to_name or self._to_forget)
            and self._session_id != _NO_SESSION
            and len(self._in_flight) < IN_FLIGHT_MAX
        )

    def _send(self, connection: Connection) -> None:
        is_first = self._session_epoch == _FIRST_SESSION_EPOCH
        self._requests += 1
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._owner.node_id, replica_epoch=self._broker_epoch),
            # The answer to the first request brings the session, which later requests need.
            max_wait_ms=0 if is_first else self._config.wait_max_ms,
            min_bytes=1,
            max_bytes=self._config.response_bytes_max,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=self._named_topics(),
            forgotten_topics_data=self._forgotten_topics(),
        )
        if not is_first:
            self._session_epoch = 1 if self._session_epoch == _EPOCH_MAX else self._session_epoch + 1
        answer = connection.send(FETCH, request, FetchResponse, timeout_s=self._config.timeout_s)
        answer.add_done_callback(lambda _: self._event.set())
        self._in_flight.append((self._requests, answer))

    def _named_topics(self) -> list[FetchTopic]:
        topics: dict[uuid.UUID, FetchTopic] = {}
        max_bytes = self._config.partition_bytes_max
        for key in tuple(itertools.islice(self._to_name, NAMED_PER_REQUEST_MAX)):
            del self._to_name[key]
            followed = self._followed[key]
            if not followed.partition.has_room:
                # Its leader would let it into the ISR for what it holds, and it would have to leave again.
                self._start(followed, self._wait_for_room(followed))
                continue
            log = followed.partition.log
            followed.named_by = self._requests
            followed.named_offset = log.log_end_offset
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = FetchTopic(topic_id=key[0], partitions=[])
            topic.partitions.append(
                FetchPartition(
                    partition=key[1],
                    current_leader_epoch=followed.leader_epoch,
                    fetch_offset=log.log_end_offset,
                    last_fetched_epoch=log.last_record_epoch,
                    log_start_offset=log.log_start_offset,
                    partition_max_bytes=max_bytes,
                )
            )
        return list(topics.values())

    def _forgotten_topics(self) -> list[ForgottenTopic]:
        if not self._to_forget:
            return []
        topics: dict[uuid.UUID, ForgottenTopic] = {}
        for topic_id, index in self._to_forget:
            topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[])).partitions.append(index)
        self._to_forget = {}
        return list(topics.values())

    # Answers

    async def _take_answer(self, number: int, response: FetchResponse) -> None:
        if response.error_code:
            error = _error(response.error_code)
            raise _SessionLostError(error.name if error in _SESSION_ERRORS else error.description)
        if self._session_id == _NO_SESSION:
            if response.session_id == _NO_SESSION:
                raise InvalidResponseError(f"broker {self._leader_id} gives followers no fetch session")
            self._session_id, self._session_epoch = response.session_id, 1
        self._failures = 0
        resumed_s = time.perf_counter()
        for topic in response.responses:
            for row in topic.partitions:
                key = topic.topic_id, row.partition_index
                followed = self._followed.get(key)
                if followed is None or followed.is_busy or not _UNNAMED < followed.named_by <= number:
                    continue  # it was named again since, perhaps in another epoch
                for _ in self._take_row(followed, row):
                    if time.perf_counter() - resumed_s > _TURN_S:
                        await asyncio.sleep(0)
                        resumed_s = time.perf_counter()
                        if self._followed.get(key) is not followed:
                            break

    def _take_row(self, followed: Followed, row: PartitionData) -> Iterator[int]:
        """Deal with what the leader says about one partition, in steps; in a pause, it may be taken from here."""
        if row.error_code:
            self._on_error(followed, _error(row.error_code))
            return
        if row.diverging_epoch.epoch != NO_EPOCH:
            epoch, end_offset = row.diverging_epoch.epoch, row.diverging_epoch.end_offset
            self._start(followed, self._truncate(followed, epoch, end_offset))
            return
        records = row.records
        log = followed.partition.log
        if isinstance(records, memoryview) and len(records):
            if self._is_throttled(followed):
                self._quota.record(len(records))
            if not followed.partition.has_room:
                self._start(followed, self._wait_for_room(followed))
                return
            if not log.is_open:
                self._start(followed, self._owner.followers.open_log(followed.partition))
                return
            try:
                for part in slices(records, _SLICE_BYTES):
                    log.append_as_follower(part, leader_epoch=followed.leader_epoch)
                    yield len(part)
            except BelowStartError as error:
                self._start(followed, self._begin_with(followed, error.base_offset, records, row))
                return
            except LogStorageError as error:
                self._on_storage_error(followed, error)
                return
            except KafkaError as error:
                logger.warning("%s: records from broker %d are refused: %s", log.name, self._leader_id, error.message)
                self._retry_later(followed)
                return
            if log.log_end_offset == followed.named_offset:
                # None of it could be taken, as it was written after the leader had lost its role.
                self._retry_later(followed)
                return
        try:
            self._take_watermarks(followed, row)
        except LogStorageError as error:
            self._on_storage_error(followed, error)

    def _take_watermarks(self, followed: Followed, row: PartitionData) -> None:
        log = followed.partition.log
        followed.failures = 0
        followed.lags = log.log_end_offset < row.high_watermark
        log.advance_high_watermark(row.high_watermark)
        is_start_moved = log.log_start_offset < row.log_start_offset <= log.high_watermark
        if is_start_moved:
            if not log.is_open:
                self._start(followed, self._open_and_start_at(followed, row.log_start_offset))
                return
            log.set_log_start_offset(row.log_start_offset)
        flush = self._owner.followers.on_followed(followed.partition)
        if flush is not None:
            # What is not flushed does not count yet: the leader may acknowledge it once it is named.
            self._start(followed, _wait_for(flush))
        elif is_start_moved or log.log_end_offset != followed.named_offset:
            self._go_on(followed)

    async def _open_and_start_at(self, followed: Followed, offset: int) -> None:
        await self._owner.followers.open_log(followed.partition)
        if self._followed.get(followed.key) is followed:
            followed.partition.log.set_log_start_offset(offset)

    def _is_throttled(self, followed: Followed) -> bool:
        """Whether what is copied counts towards the quota, and waits for it (KIP-73): never for replicas in sync."""
        partition = followed.partition
        return (
            self._quota.applies_to(partition.topic, partition.partition)
            and followed.lags
            and self._owner.node_id not in partition.isr
        )

    def _go_on(self, followed: Followed) -> None:
        """Name it to the leader, once the quota has room for it."""
        pause_s = self._quota.pause_s() if self._is_throttled(followed) else 0.0
        if pause_s:
            followed.is_held = True
            followed.timer = self._loop.call_later(pause_s, self._retry, followed)
        else:
            self._name(followed.key)

    def _name(self, key: FollowedKey) -> None:
        self._to_name[key] = None
        self._event.set()

    # Trouble

    def _on_error(self, followed: Followed, error: ErrorCode) -> None:
        name = followed.partition.log.name
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._start(followed, self._start_over(followed))
            return
        logger.debug("%s can't be fetched from broker %d: %s", name, self._leader_id, error.name)
        self._retry_later(followed)

    def _on_storage_error(self, followed: Followed, error: LogStorageError) -> None:
        if not followed.failures:
            logger.error("%s", error.message)
        self._owner.followers.on_storage_error(followed.partition, error)
        # If the whole log went offline, it is not followed any more.
        self._retry_later(followed)

    def _retry_later(self, followed: Followed) -> None:
        if self._followed.get(followed.key) is not followed:
            return
        followed.failures += 1
        pause_s = self._config.retry.pause_s(followed.failures)
        followed.timer = self._loop.call_later(pause_s, self._retry, followed)

    def _retry(self, followed: Followed) -> None:
        followed.timer = None
        followed.is_held = False
        if self._followed.get(followed.key) is followed and not followed.is_busy:
            self._go_on(followed)

    def _start(self, followed: Followed, work: Awaitable[None]) -> None:
        """Do something to the partition's log that takes a while, and name it again afterwards."""
        followed.is_busy = True
        task = self._loop.create_task(self._finish(followed, work))
        self._running.add(task)
        task.add_done_callback(self._on_finished)

    def _on_finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        report_failure(task)

    async def _finish(self, followed: Followed, work: Awaitable[None]) -> None:
        try:
            await work
        except LogStorageError as error:
            followed.is_busy = False
            self._on_storage_error(followed, error)
        except (ClientError, KafkaError) as error:
            logger.info("%s: %s", followed.partition.log.name, error)
            followed.is_busy = False
            self._retry_later(followed)
        else:
            followed.is_busy = False
            if self._followed.get(followed.key) is followed:
                self._go_on(followed)

    async def _wait_for_room(self, followed: Followed) -> None:
        """Copy nothing while the disk is full; follow the start of the leader's log, as deletions make room."""
        log = followed.partition.log
        while not followed.partition.has_room and self._followed.get(followed.key) is followed:
            followed.changed.clear()
            start_offset, _ = await self._listed_offset(followed, _EARLIEST)
            if start_offset > log.log_end_offset:
                await self._start_over(followed)  # which needs no room
            elif start_offset > log.log_start_offset:
                await self._owner.followers.open_log(followed.partition)
                # What was deleted was committed.
                log.advance_high_watermark(start_offset)
                log.set_log_start_offset(start_offset)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(followed.changed.wait(), _FULL_PAUSE_S)

    # Logs that differ from the leader's

    async def _truncate(self, followed: Followed, epoch: int, end_offset: int) -> None:
        """Remove what the leader does not have, as far as the epoch tells in which it began to differ."""
        partition, log = followed.partition, followed.partition.log
        before = log.log_end_offset, log.last_record_epoch
        high_watermark = log.high_watermark
        await self._change_log(partition, lambda: log.truncate_to(truncation_offset(log, epoch, end_offset)))
        level = logging.WARNING if log.log_end_offset < high_watermark else logging.INFO
        logger.log(
            level,
            "%s differs from broker %d from epoch %d on: cut from offset %d to %d, the high watermark was %d",
            log.name,
            self._leader_id,
            epoch,
            before[0],
            log.log_end_offset,
            high_watermark,
        )
        if (log.log_end_offset, log.last_record_epoch) == before:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the leader finds a difference where there is none")

    async def _start_over(self, followed: Followed) -> None:
        """The leader's log ends before this one, or begins after it."""
        partition, log = followed.partition, followed.partition.log
        end_offset, _ = await self._listed_offset(followed, _LATEST)
        if end_offset < log.log_end_offset:
            # Only after an unclean election: what was committed was lost.
            logger.warning(
                "%s ends at offset %d, but the log of its leader, broker %d, at %d; removing the rest",
                log.name,
                log.log_end_offset,
                self._leader_id,
                end_offset,
            )
            await self._change_log(partition, lambda: log.truncate_to(end_offset))
            return
        start_offset, _ = await self._listed_offset(followed, _EARLIEST)
        if start_offset > log.log_end_offset:
            logger.info("%s starts over from offset %d, where its leader's log begins", log.name, start_offset)
            await self._change_log(partition, lambda: log.truncate_fully_and_start_at(start_offset))
            return
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "the leader's log has changed meanwhile")

    async def _listed_offset(self, followed: Followed, timestamp: int) -> tuple[int, int]:
        partition = followed.partition
        wanted = ListOffsetsPartition(
            partition_index=partition.partition, current_leader_epoch=followed.leader_epoch, timestamp=timestamp
        )
        response = await self._owner.peers.call(
            self._leader_id,
            LIST_OFFSETS,
            ListOffsetsRequest(
                replica_id=self._owner.node_id,
                topics=[ListOffsetsTopic(name=partition.topic, partitions=[wanted])],
            ),
            ListOffsetsResponse,
            timeout_s=self._config.timeout_s,
        )
        row = response.topics[0].partitions[0]
        if row.error_code:
            raise KafkaError(_error(row.error_code))
        if self._followed.get(followed.key) is not followed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader has changed")
        return row.offset, row.leader_epoch

    async def _begin_with(self, followed: Followed, base_offset: int, records: memoryview, row: PartitionData) -> None:
        """Let the log begin with a batch that the start of the leader's log lies in."""
        log = followed.partition.log
        await self._change_log(followed.partition, lambda: log.truncate_fully_and_start_at(base_offset))
        if self._followed.get(followed.key) is followed:
            log.append_as_follower(records, leader_epoch=followed.leader_epoch)
            self._take_watermarks(followed, row)

    async def _change_log(self, partition: Partition, work: Callable[[], object]) -> None:
        # A thread can't be stopped, and the log is not free before it has finished.
        await asyncio.shield(self._owner.followers.change_log(partition, work))


def truncation_offset(log: PartitionLog, epoch: int, end_offset: int) -> int:
    """Where to cut the log of a follower whose leader says that this epoch ended there (KIP-101, KIP-279).

    A follower that does not know the epoch goes back to the end of its latest one before, and asks again.
    """
    log.open()
    own_epoch, own_end_offset = log.end_offset_for_epoch(epoch)
    if own_epoch == NO_EPOCH:
        return min(end_offset, log.log_end_offset)
    if own_epoch == epoch:
        return min(own_end_offset, end_offset, log.log_end_offset)
    return min(own_end_offset, log.log_end_offset)


def slices(records: memoryview, size_bytes: int) -> Iterator[memoryview]:
    """Batches in parts of about this size, each with at least one whole batch."""
    start = position = 0
    while len(records) - start > size_bytes and len(records) - position > LOG_OVERHEAD:
        batch_bytes = LOG_OVERHEAD + int.from_bytes(records[position + 8 : position + LOG_OVERHEAD], "big")
        position += batch_bytes
        if position - start >= size_bytes and position <= len(records):
            yield records[start:position]
            start = position
    yield records[start:]


async def _wait_for(future: asyncio.Future[None]) -> None:
    await asyncio.shield(future)


def _error(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
