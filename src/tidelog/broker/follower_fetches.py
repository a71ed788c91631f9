"""Answers the fetches of followers, over sessions that look only at partitions in which something has happened.

What always holds: an offset that a follower names is taken as the end of its log only after its epochs have been
compared with this leader's (KIP-595); a fetch costs as much as there are partitions that it names or that have
changed, however many the session has; a partition with new records, a new start or another leader ends the wait of a
fetch; what was sent of a partition is not sent again until the follower names the partition again, and what it did not
take it asks for that way. A new high watermark alone is sent after a moment, so that it usually goes with new records.
Only registered brokers have sessions, each in its current epoch (KIP-903).
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterable
from typing import Final, Protocol

from tidelog.broker.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, INVALID_SESSION_ID, PartitionFetch
from tidelog.broker.follower_state import UNKNOWN_OFFSET, ReplicationTerms
from tidelog.broker.partition import NO_EPOCH, Partition, PartitionRead
from tidelog.broker.replication_throttle import ReplicationQuota
from tidelog.common.light_dataclass import dataclass
from tidelog.common.steps import Steps
from tidelog.log import LogStorageError, NotInMemoryError
from tidelog.protocol import ErrorCode, KafkaError

_EPOCH_MAX: Final = 2**31 - 1
_SESSION_ID_MAX: Final = 2**31 - 1

NEWS_DELAY_S: Final = 0.02
"""How long a new high watermark waits to be sent together with new records. Only readers of followers wait for it."""

SESSIONS_PER_BROKER_MAX: Final = 64
"""More than any num.replica.fetchers in use; each session may hold all partitions of this broker."""

FollowerKey = tuple[int, int]
"""A topic's id and the partition. The id as an int: every record is looked up a dozen times, and the hash of a UUID is
computed in Python."""


def follower_key(topic_id: uuid.UUID, index: int) -> FollowerKey:
    return topic_id.int, index


@dataclass(slots=True)
class FollowerFetch(PartitionFetch):
    """What a follower wants from one partition."""

    # Records were sent, and the follower has not said yet what became of them.
    is_sent: bool = False
    # What is wrong with it, for the next answer.
    refusal: PartitionRead | None = None


FollowerRow = tuple[FollowerFetch, PartitionRead]


class Leaders(Protocol):
    """What is needed of the replica manager."""

    def find_by_id(self, topic_id: uuid.UUID, index: int) -> Partition: ...

    def on_follower_progress(self, partition: Partition) -> None:
        """Watermarks may have moved, so whoever waits for that must look again."""

    def on_caught_up(self, partition: Partition) -> None:
        """A follower outside of the ISR has fetched; it may have caught up."""

    def on_storage_error(self, partition: Partition, error: LogStorageError) -> None:
        """Reading from its log failed."""


class FollowerSession:
    """The partitions that one fetcher of one follower copies."""

    __slots__ = (
        "_held_timer",
        "_news_timer",
        "_waiting",
        "due",
        "epoch",
        "fetches",
        "held",
        "is_hurried",
        "partitions",
        "replica_epoch",
        "replica_id",
        "session_id",
        "terms",
    )

    def __init__(self, session_id: int, replica_id: int, replica_epoch: int, terms: ReplicationTerms) -> None:
        self.session_id = session_id
        self.terms = terms
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.epoch = INITIAL_EPOCH + 1
        self.fetches: dict[FollowerKey, FollowerFetch] = {}
        # Those of them that tell this session of their news.
        self.partitions: dict[FollowerKey, Partition] = {}
        # What has to be looked at, in this order; True: a fetch need not wait any longer.
        self.due: dict[FollowerKey, bool] = {}
        # Throttled partitions whose records wait until the quota has room again.
        self.held: set[FollowerKey] = set()
        # The follower has sent another request, which has to wait for the answer to this one.
        self.is_hurried = False
        self._waiting: asyncio.Future[None] | None = None
        self._news_timer: asyncio.TimerHandle | None = None
        self._held_timer: asyncio.TimerHandle | None = None

    def mark(self, key: FollowerKey, *, is_urgent: bool) -> None:
        self.due[key] = is_urgent or self.due.get(key, False)
        if is_urgent:
            self.end_wait()
        elif self._waiting is not None and self._news_timer is None:
            self._news_timer = asyncio.get_running_loop().call_later(NEWS_DELAY_S, self.end_wait)

    def hold(self, key: FollowerKey, pause_s: float) -> None:
        """Look at a partition again after a pause, whatever is appended to it meanwhile."""
        self.held.add(key)
        if self._held_timer is None:
            self._held_timer = asyncio.get_running_loop().call_later(pause_s, self._release)

    def _release(self) -> None:
        self._held_timer = None
        held, self.held = self.held, set()
        for key in held:
            self.mark(key, is_urgent=True)

    def end_wait(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def hurry(self) -> None:
        self.is_hurried = True
        self.end_wait()

    async def wait(self, max_wait_ms: float) -> None:
        """Wait until something urgent is due, the follower sends another request, or the time is up."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        # What is due and not urgent waits for a moment only.
        timer = loop.call_later(
            min(max_wait_ms / 1000, NEWS_DELAY_S) if self.due else max_wait_ms / 1000, self.end_wait
        )
        self.terms.note_fetch(self.replica_id, 1)
        try:
            if not self.is_hurried and not any(self.due.values()):
                await self._waiting
        finally:
            self.terms.note_fetch(self.replica_id, -1)
            timer.cancel()
            if self._news_timer is not None:
                self._news_timer.cancel()
                self._news_timer = None
            self._waiting = None


class FollowerFetches:
    """The sessions of all followers of the partitions that this broker leads."""

    def __init__(self, leaders: Leaders, terms: ReplicationTerms, quota: ReplicationQuota) -> None:
        self._leaders = leaders
        self._terms = terms
        self._quota = quota
        self._sessions: dict[int, FollowerSession] = {}
        self._followers: dict[Partition, dict[FollowerSession, FollowerKey]] = {}
        self._random = random.SystemRandom()

    def __len__(self) -> int:
        return len(self._sessions)

    # What happens to partitions

    def on_changed(self, partition: Partition) -> None:
        """Records were appended, the log's start moved, or this broker no longer leads the partition as before."""
        for session, key in self._followers.get(partition, {}).items():
            if not session.fetches[key].is_sent and not _stays_held(session, key, partition):
                session.mark(key, is_urgent=True)

    def on_high_watermark(self, partition: Partition) -> None:
        """Followers learn about it with the next answer, soon."""
        for session, key in self._followers.get(partition, {}).items():
            session.mark(key, is_urgent=False)

    def forget(self, partition: Partition) -> None:
        """The partition is gone; its followers learn that, and look it up again by themselves."""
        for session, key in self._followers.pop(partition, {}).items():
            session.partitions.pop(key, None)
            session.mark(key, is_urgent=True)

    def on_brokers_changed(self) -> None:
        """End the sessions of brokers that are gone or have restarted."""
        for session in tuple(self._sessions.values()):
            if self._terms.epoch_of(session.replica_id) != session.replica_epoch:
                self._close(session)

    # Requests

    def open(self, replica_id: int, replica_epoch: int, session_id: int, session_epoch: int) -> FollowerSession:
        """The session that a request belongs to; raises KafkaError."""
        if self._terms.epoch_of(replica_id) != replica_epoch or replica_epoch == NO_EPOCH:
            # An earlier incarnation of that broker: what it held then says nothing about what it holds now. Or a later
            # one that this broker hasn't heard of yet.
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)
        self._terms.note_fetch(replica_id)
        known = self._sessions.get(session_id)
        if known is not None and known.replica_id != replica_id:
            known = None
        if session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if known is not None:
                self._close(known)
            is_kept = session_epoch == INITIAL_EPOCH
            return self._create(replica_id, replica_epoch, is_kept=is_kept)
        if known is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if known.epoch != session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        known.epoch = 1 if known.epoch == _EPOCH_MAX else known.epoch + 1
        return known

    def _create(self, replica_id: int, replica_epoch: int, *, is_kept: bool) -> FollowerSession:
        if not is_kept:
            return FollowerSession(INVALID_SESSION_ID, replica_id, replica_epoch, self._terms)
        session_id = self._random.randint(1, _SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, _SESSION_ID_MAX)
        others = [session for session in self._sessions.values() if session.replica_id == replica_id]
        if len(others) >= SESSIONS_PER_BROKER_MAX:
            self._close(others[0])
        session = self._sessions[session_id] = FollowerSession(session_id, replica_id, replica_epoch, self._terms)
        return session

    def _close(self, session: FollowerSession) -> None:
        self._sessions.pop(session.session_id, None)
        self.drop(session)
        session.end_wait()

    def drop(self, session: FollowerSession) -> None:
        """Forget all partitions of a session that ends."""
        self.forget_fetches(session, tuple(session.fetches))

    def forget_fetches(self, session: FollowerSession, keys: Iterable[FollowerKey]) -> None:
        """The follower does not fetch these any longer in this session."""
        for key in keys:
            fetch = session.fetches.pop(key, None)
            session.due.pop(key, None)
            session.held.discard(key)
            if fetch is not None:
                self._unlink(session, key)

    def _link(self, session: FollowerSession, key: FollowerKey, partition: Partition) -> None:
        """Tell the session of the partition's news, as long as the session lasts."""
        if self._sessions.get(session.session_id) is not session or session.partitions.get(key) is partition:
            return
        self._unlink(session, key)
        session.partitions[key] = partition
        self._followers.setdefault(partition, {})[session] = key

    def _unlink(self, session: FollowerSession, key: FollowerKey) -> None:
        # Not looked up by its id: a broker that was fenced has no partitions to be found, and would be told for ever.
        partition = session.partitions.pop(key, None)
        if partition is None:
            return
        sessions = self._followers[partition]
        del sessions[session]
        if not sessions:
            del self._followers[partition]

    def name(self, session: FollowerSession, fetch: FollowerFetch) -> None:
        """The follower names a partition: it has everything before this offset, and wants what follows."""
        key = follower_key(fetch.topic_id, fetch.partition)
        known = session.fetches.get(key)
        if known is not None:
            fetch.sent_high_watermark = known.sent_high_watermark
            fetch.sent_log_start_offset = known.sent_log_start_offset
        session.fetches[key] = fetch
        session.due.pop(key, None)
        session.held.discard(key)
        try:
            partition = self._leaders.find_by_id(fetch.topic_id, fetch.partition)
            self._link(session, key, partition)
            fetch.refusal = self._take(session, partition, fetch)
        except LogStorageError as error:
            self._leaders.on_storage_error(partition, error)
            fetch.refusal = PartitionRead(error=error.code)
        except KafkaError as error:
            fetch.refusal = PartitionRead(error=error.code)
        session.due[key] = True

    def _take(self, session: FollowerSession, partition: Partition, fetch: FollowerFetch) -> PartitionRead | None:
        """Take a follower's word about its log; returns where it diverged, if it did. Raises KafkaError."""
        _check_leader(partition, session, fetch)
        offset = fetch.fetch_offset
        if fetch.last_fetched_epoch != NO_EPOCH:
            divergence = partition.find_divergence(offset, fetch.last_fetched_epoch)
            if divergence is not None:
                return partition.describe(diverging_epoch=divergence)
        log = partition.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        low_watermark = partition.low_watermark
        is_moved = partition.update_follower(session.replica_id, offset, fetch.log_start_offset, session.replica_epoch)
        if is_moved or partition.low_watermark != low_watermark:
            self._leaders.on_follower_progress(partition)
        if session.replica_id not in partition.isr:
            self._leaders.on_caught_up(partition)
        return None

    def collect(self, session: FollowerSession, max_bytes: int, *, may_wait: bool = False) -> Steps[list[FollowerRow]]:
        """What there is to tell now; may be a part of it, and then the rest is due with the next fetch.

        Nothing if there are only new high watermarks to tell and the fetch `may_wait`: nobody but readers of followers
        waits for them, and a follower that is told would need another request. Raises NotInMemoryError when the first
        of it has to be read from disk.
        """
        rows: list[FollowerRow] = []
        moved: list[FollowerRow] = []
        left_bytes = max_bytes
        has_records = False
        for key in tuple(session.due):
            fetch = session.fetches.get(key)
            if fetch is None:
                continue  # forgotten in a pause
            try:
                read = self._read(session, fetch, min(left_bytes, fetch.max_bytes), not has_records)
            except NotInMemoryError:
                if rows:
                    break
                _put_back(session, moved)
                raise
            if read is None:
                break
            del session.due[key]
            if read.size_bytes:
                has_records = True
                left_bytes -= read.size_bytes
            # An error or a divergence is told once, too: the follower asks again when it has done something about it.
            fetch.is_sent = fetch.is_sent or bool(read.size_bytes or read.error or read.diverging_epoch)
            if _has_only_moved(fetch, read):
                moved.append((fetch, read))
            elif _is_told(fetch, read):
                rows.append((fetch, read))
            yield 0
        if may_wait and not rows:
            _put_back(session, moved)
            return rows
        rows += [(fetch, read) for fetch, read in moved if _is_told(fetch, read)]
        return rows

    def _read(
        self, session: FollowerSession, fetch: FollowerFetch, max_bytes: int, min_one_batch: bool
    ) -> PartitionRead | None:
        """What to tell about one partition; None if its records don't fit in."""
        if fetch.refusal is not None:
            return fetch.refusal
        try:
            partition = self._leaders.find_by_id(fetch.topic_id, fetch.partition)
            _check_leader(partition, session, fetch)
            if fetch.is_sent:
                return partition.describe()
            has_records = fetch.fetch_offset < partition.log.log_end_offset
            is_throttled = has_records and self._is_throttled(session, partition)
            if is_throttled and (pause_s := self._quota.pause_s()):
                session.hold(follower_key(fetch.topic_id, fetch.partition), pause_s)
                return partition.describe()
            if has_records and max_bytes <= 0 and not min_one_batch:
                return None
            read = partition.read(
                fetch.fetch_offset,
                max_bytes,
                replica_id=session.replica_id,
                read_committed=False,
                min_one_batch=min_one_batch,
                in_memory=True,
            )
            if is_throttled:
                self._quota.record(read.size_bytes)
            return None if has_records and not read.size_bytes else read
        except LogStorageError as error:
            self._leaders.on_storage_error(partition, error)
            return PartitionRead(error=error.code)
        except KafkaError as error:
            return PartitionRead(error=error.code)

    def _is_throttled(self, session: FollowerSession, partition: Partition) -> bool:
        """Whether what this follower gets counts towards the quota, and waits for it (KIP-73)."""
        return self._quota.applies_to(partition.topic, partition.partition) and not partition.waits_for(
            session.replica_id
        )


def _stays_held(session: FollowerSession, key: FollowerKey, partition: Partition) -> bool:
    """Whether records wait for the quota; that this broker no longer leads is told at once."""
    epoch = session.fetches[key].current_leader_epoch
    return key in session.held and partition.is_leader and partition.leader_epoch == epoch


def _check_leader(partition: Partition, session: FollowerSession, fetch: FollowerFetch) -> None:
    if fetch.current_leader_epoch == NO_EPOCH:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    partition.check_leader(fetch.current_leader_epoch)
    partition.check_replica(session.replica_id)


def _put_back(session: FollowerSession, moved: Iterable[FollowerRow]) -> None:
    """These have not been told yet. What has become due again in a pause stays as urgent as it is."""
    for fetch, _ in moved:
        key = follower_key(fetch.topic_id, fetch.partition)
        if session.fetches.get(key) is fetch:
            session.due.setdefault(key, False)


def _has_only_moved(fetch: FollowerFetch, read: PartitionRead) -> bool:
    """Whether there is nothing to tell but another high watermark than the one that the follower knows."""
    return (
        not read.size_bytes
        and not read.error
        and read.diverging_epoch is None
        and fetch.sent_log_start_offset == read.log_start_offset
        and UNKNOWN_OFFSET < fetch.sent_high_watermark != read.high_watermark
    )


def _is_told(fetch: FollowerFetch, read: PartitionRead) -> bool:
    return fetch.must_be_told(
        read.high_watermark,
        read.log_start_offset,
        has_news=read.size_bytes > 0 or read.diverging_epoch is not None,
        is_error=read.error != ErrorCode.NONE,
    )
