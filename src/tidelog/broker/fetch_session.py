"""Fetch sessions (KIP-227): a client names its partitions once; later requests and responses carry only changes.

What always holds: the cache holds at most `slots` sessions with PARTITIONS_MAX partitions in all, whatever clients
send. Partitions that just returned data are read last next time, so a small response limit starves none. A request with
a wrong epoch changes nothing. This module knows nothing about logs or the wire format.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Collection, Hashable, Iterable
from dataclasses import field

from tidelog.common.clock import Clock
from tidelog.common.ids import ZERO_UUID
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import ErrorCode, KafkaError

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1
_SESSION_ID_MAX = 2**31 - 1

EVICTION_AGE_MS = 120_000
"""A session not used for so long gives way to any new one; one younger than that gives way to none."""

PARTITIONS_MAX = 200_000
"""Partitions in all sessions together, about 50 MB. Requests beyond are served without a session."""

_UNKNOWN = -1

FetchKey = tuple[Hashable, int]
"""A topic's id (Fetch 13 and later) or its name, and the partition."""


@dataclass(slots=True)
class PartitionFetch:
    """What a client wants from one partition, and what it was last sent about it."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    # Used by sessions only; if unknown, the next response mentions the partition.
    sent_high_watermark: int = _UNKNOWN
    sent_log_start_offset: int = _UNKNOWN

    @property
    def key(self) -> FetchKey:
        return (self.topic if self.topic_id == ZERO_UUID else self.topic_id, self.partition)

    def want(self, newer: PartitionFetch) -> None:
        """Apply what a later request of the session says about the partition."""
        self.fetch_offset = newer.fetch_offset
        self.max_bytes = newer.max_bytes
        self.current_leader_epoch = newer.current_leader_epoch
        self.last_fetched_epoch = newer.last_fetched_epoch
        self.log_start_offset = newer.log_start_offset

    def must_be_told(self, high_watermark: int, log_start_offset: int, *, has_news: bool, is_error: bool) -> bool:
        """Whether an incremental response has to mention the partition; remembers what it then says.

        `has_news` is true for what must always be reported: records, a divergence, an error.
        """
        changed = self.sent_high_watermark != high_watermark or self.sent_log_start_offset != log_start_offset
        self.sent_high_watermark = high_watermark
        self.sent_log_start_offset = log_start_offset
        if is_error:
            # The end of an error is also news: forget what was sent, so that the next response reports it.
            self.sent_high_watermark = _UNKNOWN
        return changed or has_news or is_error


@dataclass(slots=True)
class FetchSession:
    """One client's partitions on this broker."""

    session_id: int
    uses_topic_ids: bool
    created_ms: float
    used_ms: float
    epoch: int = 1
    partitions: dict[FetchKey, PartitionFetch] = field(default_factory=dict)

    def move_to_end(self, key: FetchKey) -> None:
        fetch = self.partitions.pop(key, None)
        if fetch is not None:
            self.partitions[key] = fetch


@dataclass(slots=True)
class FetchExchange:
    """One fetch: what to read, and the session (if any) that its response belongs to."""

    fetches: Collection[PartitionFetch]
    session: FetchSession | None = None
    # The first response of a session is complete, later ones contain what changed.
    is_incremental: bool = False

    @property
    def session_id(self) -> int:
        return INVALID_SESSION_ID if self.session is None else self.session.session_id


class FetchSessionCache:
    """The sessions of one broker, by id."""

    def __init__(self, slots: int, clock: Clock, partitions_max: int = PARTITIONS_MAX) -> None:
        self._slots = slots
        self._clock = clock
        self._partitions_max = partitions_max
        self._sessions: dict[int, FetchSession] = {}
        self._partitions_count = 0
        # Clients must not be able to guess each other's ids: the id is all that ties a request to a session.
        self._random = random.SystemRandom()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions_count(self) -> int:
        return self._partitions_count

    def open(
        self,
        session_id: int,
        session_epoch: int,
        wanted: list[PartitionFetch],
        forgotten: Iterable[FetchKey],
        *,
        uses_topic_ids: bool,
    ) -> FetchExchange:
        """Work out what a request asks for; raises KafkaError if its session is unknown or out of sequence."""
        if session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._close(session_id)
            if session_epoch == FINAL_EPOCH or not wanted:
                return FetchExchange(wanted)
            return FetchExchange(wanted, self._create(wanted, uses_topic_ids))
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self._update(session, wanted, forgotten)
        if not session.partitions:
            self._close(session_id)
            return FetchExchange(())
        return FetchExchange(tuple(session.partitions.values()), session, is_incremental=True)

    def _update(self, session: FetchSession, wanted: list[PartitionFetch], forgotten: Iterable[FetchKey]) -> None:
        size_before = len(session.partitions)
        for fetch in wanted:
            known = session.partitions.setdefault(fetch.key, fetch)
            if known is not fetch:
                known.want(fetch)
        for key in forgotten:
            session.partitions.pop(key, None)
        self._partitions_count += len(session.partitions) - size_before
        if self._partitions_count > self._partitions_max:
            self._close(session.session_id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_ms = self._clock.monotonic_ms()

    def _create(self, wanted: list[PartitionFetch], uses_topic_ids: bool) -> FetchSession | None:
        partitions = {fetch.key: fetch for fetch in wanted}
        now_ms = self._clock.monotonic_ms()
        if self._partitions_count + len(partitions) > self._partitions_max:
            return None
        if len(self._sessions) >= self._slots and not self._evict_for(len(partitions), now_ms):
            return None
        session_id = self._random.randint(1, _SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = self._random.randint(1, _SESSION_ID_MAX)
        session = FetchSession(session_id, uses_topic_ids, now_ms, now_ms, partitions=partitions)
        self._sessions[session_id] = session
        self._partitions_count += len(partitions)
        return session

    def _evict_for(self, size: int, now_ms: float) -> bool:
        """Make room: evict the longest unused session, or else the least valuable one that is old enough."""
        if not self._sessions:
            return False
        sessions = self._sessions.values()
        stale = min(sessions, key=lambda session: session.used_ms)
        if now_ms - stale.used_ms > EVICTION_AGE_MS:
            self._close(stale.session_id)
            return True
        aged = [session for session in sessions if now_ms - session.created_ms > EVICTION_AGE_MS]
        least = min(aged, key=lambda session: len(session.partitions), default=None)
        if least is None or len(least.partitions) >= size:
            return False
        self._close(least.session_id)
        return True

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions_count -= len(session.partitions)
