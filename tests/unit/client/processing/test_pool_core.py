"""The worker pool's choice of records under every interleaving: order by key, commits, rebalances and crashes.

A model of a log, a group's committed offsets and a pool goes through random steps: poll, begin, finish, fail, commit,
revoke, lose, crash. Time is turned by hand.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidelog.client.errors import ConfigError
from tidelog.client.processing.offset_progress import OffsetProgress
from tidelog.client.processing.pool_core import Decision, PoolCore, Task
from tidelog.client.processing.pool_types import Drain, OnFailure, PoolSettings
from tidelog.client.types import OffsetAndMetadata, TopicPartition

PARTITIONS = [TopicPartition("orders", number) for number in range(3)]


@dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    offset: int
    key: Any = None
    value: Any = b"value"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    leader_epoch: int = 4

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def key_of(partition: int, index: int) -> bytes | None:
    """Two keys, and now and then none."""
    choice = (index * 3 + partition) % 7
    return None if choice == 6 else b"key-%d" % (choice % 2)


# Offsets have gaps, as compaction leaves them.
LOG = {
    place: [
        Record("orders", place.partition, index * 2 + (index // 5), key_of(place.partition, index))
        for index in range(30)
    ]
    for place in PARTITIONS
}


class Pool(RuleBasedStateMachine):
    """One member of a group whose partitions come and go; what it does not own, nobody works on."""

    order_by: Any = "key"

    def __init__(self) -> None:
        super().__init__()
        self.settings = PoolSettings.checked(
            order_by=self.order_by, retry_backoff_s=1.0, attempts=3, on_failure=OnFailure.SKIP, max_in_flight=20
        )
        self.core: PoolCore[Record] = PoolCore(self.settings)
        self.now_s = 0.0
        self.committed = dict.fromkeys(PARTITIONS, 0)
        self.positions: dict[TopicPartition, int] = {}
        self.running: list[Task[Record]] = []
        # Offsets that were done at least once, ever, and since the partition was assigned.
        self.done_ever: dict[TopicPartition, set[int]] = defaultdict(set)
        self.done_now: dict[TopicPartition, set[int]] = defaultdict(set)
        self.polled: dict[TopicPartition, list[Record]] = defaultdict(list)

    def lane_of(self, record: Record) -> object:
        if self.order_by == "partition":
            return record.place
        if self.order_by == "key":
            return None if record.key is None else (record.place, record.key)
        return self.order_by(record)

    # Steps

    @rule(number=st.integers(0, 2))
    def assign(self, number: int) -> None:
        self.positions.setdefault(PARTITIONS[number], self.committed[PARTITIONS[number]])

    @precondition(lambda self: self.positions)
    @rule(data=st.data(), count=st.integers(1, 8))
    def poll(self, data: st.DataObject, count: int) -> None:
        place = data.draw(st.sampled_from(sorted(self.positions)))
        if place in self.core.wants_pause(list(self.positions)):
            return
        records = [record for record in LOG[place] if record.offset >= self.positions[place]][:count]
        if records:
            self.positions[place] = records[-1].offset + 1
            self.polled[place] += records
            self.core.add(records)

    @rule(count=st.integers(1, 4))
    def begin_some(self, count: int) -> None:
        for _ in range(count):
            self.begin()

    def begin(self) -> None:
        task = self.core.take(self.now_s)
        if task is None:
            return
        lane = self.lane_of(task.record)
        if lane is not None:
            assert all(self.lane_of(other.record) != lane for other in self.running), "two of a lane run at once"
            for before in self.polled[task.record.place]:
                if before.offset < task.record.offset and self.lane_of(before) == lane:
                    assert before.offset in self.done_now[before.place], f"{task.record} passed {before}"
        assert task.record.offset not in self.done_now[task.record.place], "done twice without need"
        self.running.append(task)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        task = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.note_done(task)
        self.core.finish(task)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        task = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        decision = self.core.decide(task, ValueError())
        if decision is Decision.RETRY:
            self.core.retry(task, self.now_s)
        else:
            assert decision is (Decision.LEAVE if task.progress.is_given_up else Decision.SKIP)
            self.note_done(task)
            self.core.finish(task)

    @rule(seconds=st.sampled_from([0.5, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def commit(self) -> None:
        offsets = self.core.committable()
        self.note_committed(offsets)
        self.core.note_committed(offsets)
        assert not self.core.committable()

    @precondition(lambda self: self.positions)
    @rule(data=st.data(), commits=st.booleans(), drain=st.sampled_from(Drain), chance=st.integers(0, 3))
    def revoke_or_lose(self, data: st.DataObject, commits: bool, drain: Drain, chance: int) -> None:
        # Seldom, so that much is in flight when it happens.
        if chance < 3:
            return
        gone = [data.draw(st.sampled_from(sorted(self.positions)))]
        self.core.drop_queued(gone, drain)
        if commits:
            self.note_committed(self.core.committable(gone))
        self.core.give_up(gone)
        assert self.core.is_idle(gone, queued=True)
        for place in gone:
            del self.positions[place]
            self.forget(place)

    @rule(chance=st.integers(0, 7))
    def crash(self, chance: int) -> None:
        if chance < 7:
            return
        self.core = PoolCore(self.settings)
        self.running = []
        for place in list(self.positions):
            self.positions[place] = self.committed[place]
            self.forget(place)

    # What is known

    def note_done(self, task: Task[Record]) -> None:
        place = task.record.place
        self.done_ever[place].add(task.record.offset)
        if not task.progress.is_given_up:
            self.done_now[place].add(task.record.offset)

    def note_committed(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        for place, offset in offsets.items():
            assert offset.leader_epoch == 4
            assert offset.offset > self.committed[place], "a commit goes back"
            for record in LOG[place]:
                assert record.offset >= offset.offset or record.offset in self.done_ever[place], "a record is lost"
            self.committed[place] = offset.offset

    def forget(self, place: TopicPartition) -> None:
        self.done_now[place] = set()
        self.polled[place] = []

    @invariant()
    def counts_are_right(self) -> None:
        unfinished = sum(
            record.offset not in self.done_now[place] for place in PARTITIONS for record in self.polled[place]
        )
        # Between steps nothing is dropped but with its partition.
        assert self.core.in_flight == unfinished
        assert self.core.in_flight_bytes == sum(
            len(record.value) + len(record.key or b"")
            for place in PARTITIONS
            for record in self.polled[place]
            if record.offset not in self.done_now[place]
        )
        assert self.core.running == sum(not task.progress.is_given_up for task in self.running)

    def teardown(self) -> None:
        """Whatever happened: when all partitions are there and handlers succeed, every record is done and committed."""
        for place in PARTITIONS:
            self.assign(place.partition)
        for _ in range(1000):
            for place in PARTITIONS:
                records = [record for record in LOG[place] if record.offset >= self.positions[place]][:5]
                if records:
                    self.positions[place] = records[-1].offset + 1
                    self.polled[place] += records
                    self.core.add(records)
            self.now_s += 20
            self.begin()
            while self.running:
                task = self.running.pop()
                self.note_done(task)
                self.core.finish(task)
        self.note_committed(self.core.committable())
        for place in PARTITIONS:
            assert self.committed[place] == LOG[place][-1].offset + 1
            assert self.done_ever[place] == {record.offset for record in LOG[place]}
        assert self.core.is_idle(queued=True)


class PoolByPartition(Pool):
    order_by = "partition"


class PoolByRouter(Pool):
    # Across partitions, so the order of the lane is that of the polls: only "one at a time" and the commits are held.
    order_by = staticmethod(lambda record: record.offset % 3 if record.key else None)

    def begin(self) -> None:
        task = self.core.take(self.now_s)
        if task is not None:
            lane = self.lane_of(task.record)
            assert lane is None or all(self.lane_of(other.record) != lane for other in self.running)
            self.running.append(task)


BOUNDS = hypothesis_settings(max_examples=50, stateful_step_count=60, deadline=None)
TestPoolByKey = pytest.mark.timeout(120)(Pool.TestCase)
TestPoolByPartition = PoolByPartition.TestCase
TestPoolByRouter = PoolByRouter.TestCase
for machine in (TestPoolByKey, TestPoolByPartition, TestPoolByRouter):
    machine.settings = BOUNDS


def records(*offsets: int, partition: int = 0, key: Any = b"k") -> list[Record]:
    return [Record("orders", partition, offset, key) for offset in offsets]


def core(**options: Any) -> PoolCore[Record]:
    return PoolCore(PoolSettings.checked(**options))


def take(pool: PoolCore[Record], now_s: float = 0.0) -> Task[Record]:
    task = pool.take(now_s)
    assert task is not None
    return task


def test_a_retry_holds_its_lane_and_no_other() -> None:
    pool = core(retry_backoff_s=1)
    pool.add(records(0, 1) + records(2, key=b"other"))
    failing = take(pool)
    pool.retry(failing, 10.0)
    assert take(pool).record.offset == 2
    assert pool.take(10.5) is None
    due_s = pool.next_retry_s()
    assert due_s is not None
    assert 10.8 <= due_s <= 11.2
    assert take(pool, due_s) is failing
    assert failing.attempts == 2


def test_a_halted_pool_begins_nothing() -> None:
    """After a record that must not be passed over, those behind it are not begun."""
    pool = core()
    pool.add(records(0, 1, 2))
    pool.abandon(take(pool))
    assert pool.take(0) is None
    assert pool.committable() == {}


def test_what_runs_holds_its_lane_when_the_partition_comes_back() -> None:
    pool = core()
    pool.add(records(0, 1))
    old = take(pool)
    pool.give_up([PARTITIONS[0]])
    pool.add(records(0, 1))
    assert pool.take(0) is None
    assert pool.decide(old, ValueError()) is Decision.LEAVE
    pool.finish(old)
    assert pool.committable() == {}, "the result of the old one does not count"
    assert take(pool).record.offset == 0


@pytest.mark.parametrize(
    ("options", "error", "decision"),
    [
        ({}, ValueError(), Decision.RETRY),
        ({"attempts": 1}, ValueError(), Decision.STOP),
        ({"attempts": 1, "on_failure": "skip"}, ValueError(), Decision.SKIP),
        ({"attempts": 1, "on_failure": lambda *_: None}, ValueError(), Decision.HAND_OVER),
        ({"retry_on": OSError}, ValueError(), Decision.STOP),
        ({"retry_on": OSError}, ConnectionError(), Decision.RETRY),
        ({"on_failure": "skip"}, KeyboardInterrupt(), Decision.STOP),
    ],
)
def test_what_becomes_of_failures(options: dict[str, Any], error: BaseException, decision: Decision) -> None:
    pool = core(**options)
    pool.add(records(0))
    assert pool.decide(take(pool), error) is decision


def test_reading_stops_at_the_limits_and_goes_on_at_three_quarters() -> None:
    pool = core(max_in_flight=8)
    assigned = PARTITIONS[:1]
    pool.add(records(*range(8), key=None))
    assert pool.wants_pause(assigned) == set(assigned)
    tasks = [take(pool) for _ in range(8)]
    pool.finish(tasks[0])
    assert pool.wants_pause(assigned) == set(assigned)
    pool.finish(tasks[1])
    assert pool.wants_pause(assigned) == set()


def test_bytes_are_a_limit_too() -> None:
    pool = core(max_in_flight_bytes=60)
    pool.add([Record("orders", 0, offset, b"12345", "ä" * 15) for offset in range(3)])
    assert pool.in_flight_bytes == 60
    assert pool.wants_pause(PARTITIONS) == set(PARTITIONS)


def test_a_slow_partition_leaves_room_for_others() -> None:
    pool = core(max_in_flight=10)
    pool.add(records(*range(6)))
    assert pool.wants_pause(PARTITIONS[:2]) == {PARTITIONS[0]}
    assert pool.wants_pause(PARTITIONS[:1]) == set()


def test_what_is_done_behind_an_unfinished_record_is_bounded() -> None:
    pool = core(max_uncommitted=5)
    pool.add(records(*range(6), key=None))
    tasks = [take(pool) for _ in range(6)]
    for task in tasks[1:]:
        pool.finish(task)
    assert pool.wants_pause(PARTITIONS) == {PARTITIONS[0]}
    assert pool.uncommitted() == {PARTITIONS[0]: 6}
    pool.finish(tasks[0])
    assert pool.wants_pause(PARTITIONS) == set()
    assert pool.committable() == {PARTITIONS[0]: OffsetAndMetadata(6, 4)}


def test_draining_closes_the_gaps_before_what_was_begun() -> None:
    """A record that waits before one that runs or is done holds the commit up; one behind all of them does not."""
    pool = core(order_by=lambda record: record.offset % 2)
    pool.add(records(*range(8)))
    first, second = take(pool), take(pool)
    assert (first.record.offset, second.record.offset) == (0, 1)
    pool.finish(second)
    third = take(pool)
    assert third.record.offset == 3
    pool.drop_queued(PARTITIONS[:1], Drain.GAPS)
    assert pool.in_flight == 3
    pool.finish(first)
    pool.finish(third)
    assert not pool.is_idle(PARTITIONS[:1], queued=True)
    gap = take(pool)
    assert gap.record.offset == 2
    pool.finish(gap)
    assert pool.is_idle(PARTITIONS[:1], queued=True)
    assert pool.take(0) is None
    assert pool.committable() == {PARTITIONS[0]: OffsetAndMetadata(4, 4)}


def test_progress_goes_to_the_first_unfinished_record() -> None:
    progress = OffsetProgress(PARTITIONS[0])
    for offset in (3, 4, 7, 9):
        progress.take(offset, 1)
    for offset, done in ((4, None), (9, None), (3, 5), (7, 10)):
        progress.finish(offset)
        assert progress.done == (None if done is None else OffsetAndMetadata(done, 1))
    assert progress.uncommitted == 0


def test_keys_that_can_not_be_compared_are_told() -> None:
    with pytest.raises(ConfigError, match=r"orders-0 can't be put in order.*order_by"):
        core().add([Record("orders", 0, 0, key={"a": 1})])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"order_by": "value"}, "one of key, partition"),
        ({"on_failure": "ignore"}, "one of stop, skip"),
        ({"drain": "none"}, "one of gaps, running, all"),
        ({"workers": 0}, "workers is 0"),
        ({"retry_backoff_s": -1}, "must not be negative"),
        ({"poll_timeout_s": 0}, "more than 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        PoolSettings.checked(**options)
