"""A shard by hand: time stands still until it is moved, writes are decided by the test, and a crash replays the log."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import TypeVar

import pytest

from tidelog.common.steps import Steps, run_through
from tidelog.coordinator.actions import (
    Action,
    ActionSteps,
    Answer,
    Append,
    AppendInTransaction,
    CancelTimer,
    Client,
    GroupRecord,
    Now,
    Prepared,
    SetTimer,
    TimerKey,
    Work,
)
from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.shard import GroupShard
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k09_offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tidelog.protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

T = TypeVar("T")

WALL_START_MS = 1_700_000_000_000


class Topics:
    """Topics with their partitions; one that is made anew gets another id."""

    def __init__(self, counts: dict[str, int], generation: int = 0) -> None:
        self._counts = counts
        self._ids = {name: uuid.uuid5(uuid.NAMESPACE_DNS, f"{name} {generation}") for name in counts}

    def topic_id(self, name: str) -> uuid.UUID | None:
        return self._ids.get(name)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name, known in self._ids.items() if known == topic_id), None)

    def partition_count(self, name: str) -> int:
        return self._counts.get(name, 0)

    def partition_racks(self, name: str) -> tuple[frozenset[str], ...]:
        return (frozenset(),) * self.partition_count(name)

    def topic_names(self) -> Collection[str]:
        return self._counts.keys()


class Offsets:
    """One shard with its surroundings, asked about offsets."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.image = Topics({"t": 3, "u": 1})
        self.now_ms = 1_000.0
        self.log: list[GroupRecord] = []
        self.batches = 0
        # While set, writes are neither committed nor refused until the test says so.
        self.holds_writes = False
        self.writes: deque[Append] = deque()
        # While set, long work goes on only when the test takes a step of it.
        self.holds_work = False
        self.works: deque[ActionSteps] = deque()
        self.timers: dict[TimerKey, float] = {}
        self.answers: dict[int, object] = {}
        self._exchange = 0
        self.shard = GroupShard(0, self.config, self.image)
        self._carry_out(chain.from_iterable(self.shard.on_loaded(self.now)))

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_START_MS + round(self.now_ms))

    def _carry_out(self, actions: Iterable[Action]) -> None:
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            if isinstance(action, Work):
                self.works.append(action.steps)
                if not self.holds_work:
                    self.finish_work()
            elif isinstance(action, Answer):
                assert action.exchange not in self.answers
                self.answers[action.exchange] = action.response
            elif isinstance(action, Append):
                self.writes.append(action)
                if not self.holds_writes:
                    queue.extend(self._decide(ErrorCode.NONE))
            elif isinstance(action, AppendInTransaction):
                first_offset = len(self.log)
                self.log.extend(action.records)
                queue.extend(self.shard.on_txn_appended(action.token, ErrorCode.NONE, first_offset, self.now))
            elif isinstance(action, SetTimer):
                self.timers[action.key] = action.due_ms
            elif isinstance(action, CancelTimer):
                self.timers.pop(action.key, None)

    def step(self) -> bool:
        """Take one step of the oldest long work; False when there is none left."""
        while self.works:
            actions = next(self.works[0], None)
            if actions is not None:
                self._carry_out(actions)
                return True
            self.works.popleft()
        return False

    def finish_work(self) -> None:
        while self.step():
            pass

    def _decide(self, error: ErrorCode) -> list[Action]:
        write = self.writes.popleft()
        if not error:
            self.log.extend(write.records)
            self.batches += 1
        return self.shard.on_appended(write.token, error, self.now)

    def decide(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Let the oldest write be committed or refused."""
        self._carry_out(self._decide(error))

    def crash(self) -> None:
        """Start over with what is in the log."""
        self.writes.clear()
        self.works.clear()
        self.timers.clear()
        self.shard = GroupShard(0, self.config, self.image)
        for offset, record in enumerate(self.log):
            self.shard.replay(record, offset)
        self._carry_out(chain.from_iterable(self.shard.on_loaded(self.now)))

    def change_topics(self, image: Topics) -> None:
        self.image = image
        self._carry_out(self.shard.on_topics_changed(image, self.now))

    def advance(self, *, days: float = 0, minutes: float = 0) -> None:
        """Move time on, timer by timer."""
        end_ms = self.now_ms + (days * 24 * 60 + minutes) * 60_000
        while due := sorted((due_ms, key) for key, due_ms in self.timers.items() if due_ms <= end_ms):
            due_ms, key = due[0]
            self.now_ms = max(self.now_ms, due_ms)
            del self.timers[key]
            self._carry_out(self.shard.on_timer(key, self.now))
        self.now_ms = end_ms

    def submit(self, ask: Callable[[int], list[Action]]) -> int:
        self._exchange += 1
        self._carry_out(ask(self._exchange))
        return self._exchange

    def submit_prepared(self, steps: Steps[Prepared]) -> int:
        return self.submit(lambda exchange: run_through(steps)(self.now, exchange))

    def answer(self, kind: type[T], exchange: int) -> T:
        answer = self.answers[exchange]
        assert isinstance(answer, kind)
        return answer

    def send_commit(self, request: OffsetCommitRequest, version: int = 8) -> int:
        client = Client("client", "/127.0.0.1", version)
        return self.submit_prepared(self.shard.offset_commit(request, client, self.now))

    def commit(self, request: OffsetCommitRequest, version: int = 8) -> list[int]:
        """The error codes, partition by partition."""
        return codes(self.answer(OffsetCommitResponse, self.send_commit(request, version)))

    def fetch(self, group_id: str, topic: str, *partitions: int, require_stable: bool = False) -> list[tuple[int, int]]:
        """Offset and error of each partition."""
        asked = OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions))
        group = OffsetFetchRequestGroup(group_id=group_id, topics=[asked])
        [found] = run_through(self.shard.offset_fetch(group, require_stable=require_stable)).topics
        return [(partition.committed_offset, partition.error_code) for partition in found.partitions]

    def fetch_all(self, group_id: str) -> dict[tuple[str, int], int]:
        group = OffsetFetchRequestGroup(group_id=group_id, topics=None)
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in run_through(self.shard.offset_fetch(group, require_stable=False)).topics
            for partition in topic.partitions
        }

    def delete_offsets(self, group_id: str, topic: str, *partitions: int) -> tuple[int, list[int]]:
        """The error of the group, and those of the partitions."""
        rows = [OffsetDeleteRequestPartition(partition_index=partition) for partition in partitions]
        request = OffsetDeleteRequest(group_id=group_id, topics=[OffsetDeleteRequestTopic(name=topic, partitions=rows)])
        exchange = self.submit_prepared(self.shard.offset_delete(request))
        answer = self.answer(OffsetDeleteResponse, exchange)
        return answer.error_code, [row.error_code for each in answer.topics for row in each.partitions]

    def delete_group(self, group_id: str) -> ErrorCode:
        return self.answer(ErrorCode, self.submit(lambda number: self.shard.delete_group(group_id, number)))


def codes(response: OffsetCommitResponse) -> list[int]:
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def _commit_request(
    group_id: str,
    topic: str,
    offsets: dict[int, int],
    *,
    generation: int = -1,
    member_id: str = "",
    metadata: str | None = "",
    retention_time_ms: int = -1,
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        retention_time_ms=retention_time_ms,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=metadata
                    )
                    for partition, offset in offsets.items()
                ],
            )
        ],
    )


@pytest.fixture
def commit_request() -> Callable[..., OffsetCommitRequest]:
    """A request for one topic: group id, topic, offsets by partition."""
    return _commit_request


@pytest.fixture
def make_offsets() -> type[Offsets]:
    """Shards with settings of the test's choice."""
    return Offsets


@pytest.fixture
def make_topics() -> type[Topics]:
    """Topics by name with their numbers of partitions, and which making of them it is."""
    return Topics


@pytest.fixture
def offsets() -> Offsets:
    return Offsets()
