"""A consumer without a cluster, whose rebalances the test brings about."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tidelog.client.types import OffsetAndMetadata, TopicPartition


@dataclass(frozen=True)
class FakeRecord:
    topic: str
    partition: int
    offset: int
    key: Any = None
    value: Any = b""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    leader_epoch: int = 0


@dataclass
class FakeGroup:
    """A log of partitions, what was committed, and what happens in the next polls."""

    log: dict[TopicPartition, list[FakeRecord]]
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    events: deque[tuple[str, list[TopicPartition]]] = field(default_factory=deque)

    @classmethod
    def of(cls, keys: Iterable[Iterable[str | None]]) -> FakeGroup:
        """A partition for each list of keys."""
        log = {}
        for number, row in enumerate(keys):
            place = TopicPartition("orders", number)
            log[place] = [
                FakeRecord("orders", number, offset, key.encode() if key else None, b"%d" % offset)
                for offset, key in enumerate(row)
            ]
        return cls(log)

    @property
    def places(self) -> list[TopicPartition]:
        return list(self.log)

    def end(self) -> dict[TopicPartition, int]:
        return {place: len(records) for place, records in self.log.items()}

    def check_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for place, offset in offsets.items():
            assert offset.offset >= self.committed.get(place, 0), "a commit goes back"
            self.committed[place] = offset.offset


class FakePositions:
    """What both kinds of consumers have in common."""

    def __init__(self, group: FakeGroup, max_poll_records: int = 10) -> None:
        self.group = group
        self.listener: Any = None
        self.polls = 0
        self.max_poll_records = max_poll_records
        self.commit_errors: deque[Exception] = deque()
        self.poll_errors: deque[Exception] = deque()
        self.paused: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}

    def subscribe(self, topics: Iterable[str], *, listener: Any = None) -> None:
        assert list(topics) == ["orders"]
        self.listener = listener
        self.group.events.append(("assigned", self.group.places))

    def assign(self, places: Iterable[TopicPartition]) -> None:
        self.positions = {place: self.group.committed.get(place, 0) for place in places}

    def assignment(self) -> Collection[TopicPartition]:
        return frozenset(self.positions)

    def current_lag(self, partition: TopicPartition) -> int | None:
        return len(self.group.log[partition]) - self.positions[partition]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused -= set(partitions)

    def _events(self) -> Iterable[Callable[[], Any]]:
        """Calls of the listener that are due; each to be made before the next is asked for."""
        while self.group.events:
            name, places = self.group.events.popleft()
            if name == "assigned":
                self.positions |= {place: self.group.committed.get(place, 0) for place in places}
            yield partial(getattr(self.listener, f"on_partitions_{name}"), places)
            if name != "assigned":
                for place in places:
                    self.positions.pop(place, None)
                    self.paused.discard(place)

    def _fetch(self) -> list[FakeRecord]:
        found: list[FakeRecord] = []
        for place in sorted(self.positions):
            if place not in self.paused:
                room = self.max_poll_records - len(found)
                records = self.group.log[place][self.positions[place] :][:room]
                self.positions[place] += len(records)
                found += records
        return found


class FakeConsumer(FakePositions):
    """For threads; refuses to be used by two of them."""

    def __init__(self, group: FakeGroup, max_poll_records: int = 10) -> None:
        super().__init__(group, max_poll_records)
        self._thread: threading.Thread | None = None

    def poll(self, timeout: float) -> list[FakeRecord]:
        self._thread = self._thread or threading.current_thread()
        assert self._thread is threading.current_thread(), "polled by two threads"
        self.polls += 1
        if self.poll_errors:
            raise self.poll_errors.popleft()
        for call in self._events():
            call()
        records = self._fetch()
        if not records:
            threading.Event().wait(min(timeout, 0.002))
        return records

    def commit_sync(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        assert self._thread is threading.current_thread(), "committed by another thread"
        if self.commit_errors:
            raise self.commit_errors.popleft()
        self.group.check_commit(offsets)


class FakeAsyncConsumer(FakePositions):
    """For asyncio."""

    async def poll(self, timeout: float) -> list[FakeRecord]:
        self.polls += 1
        if self.poll_errors:
            raise self.poll_errors.popleft()
        for call in self._events():
            told = call()
            if isinstance(told, Awaitable):
                await told
        records = self._fetch()
        await asyncio.sleep(0 if records else min(timeout, 0.002))
        return records

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await asyncio.sleep(0)
        if self.commit_errors:
            raise self.commit_errors.popleft()
        self.group.check_commit(offsets)


@pytest.fixture
def group_of() -> Callable[[Iterable[Iterable[str | None]]], FakeGroup]:
    return FakeGroup.of


@pytest.fixture
def fake_consumer() -> Callable[..., FakeConsumer]:
    return FakeConsumer


@pytest.fixture
def fake_async_consumer() -> Callable[..., FakeAsyncConsumer]:
    return FakeAsyncConsumer
