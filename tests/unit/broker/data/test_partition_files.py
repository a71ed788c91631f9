"""The order in which partitions' files are made and removed, who waits for what, and disks that refuse."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

from tidelog.broker.partition_files import STEPS_PER_TURN, Opened, PartitionFiles
from tidelog.controller.image import PartitionState, TopicImage
from tidelog.log import LogConfig, LogManager, LogStorageError, PartitionLog
from tidelog.log.epochs import UNDEFINED_EPOCH
from tidelog.protocol import ErrorCode, KafkaError

STATE = PartitionState((1,), (1,), 1)
CONFIG = LogConfig()
DEADLINE_S = 30.0


def topic_of(name: str, partitions: int = 1) -> TopicImage:
    return TopicImage(name, uuid.uuid4(), (STATE,) * partitions)


class RecordedLogs:
    """As much of a log manager as is asked; each step may be held back until the test lets it go on."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str, int]] = []
        self.flushes = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.refused: set[tuple[str, int]] = set()
        self.topic_ids: dict[tuple[str, int], uuid.UUID] = {}
        self.leader_epochs: list[int] = []

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """Nothing was loaded at the start."""
        return None

    def get_or_create(
        self, topic: str, partition: int, topic_id: uuid.UUID, config: LogConfig, *, leader_epoch: int
    ) -> PartitionLog:
        found = self.topic_ids.get((topic, partition))
        if found is not None and found != topic_id:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
        return self.create(topic, partition, topic_id, config, leader_epoch=leader_epoch)

    def create(
        self, topic: str, partition: int, topic_id: uuid.UUID, config: LogConfig, *, leader_epoch: int
    ) -> PartitionLog:
        self._note("open", topic, partition)
        self.topic_ids[topic, partition] = topic_id
        self.leader_epochs.append(leader_epoch)
        return cast(PartitionLog, f"{topic}-{partition}")

    def delete(self, topic: str, partition: int) -> None:
        self._note("delete", topic, partition)
        self.topic_ids.pop((topic, partition), None)

    def is_withheld(self, topic: str, partition: int) -> bool:
        return False

    def flush_deletions(self) -> None:
        self.flushes += 1

    def _note(self, step: str, topic: str, partition: int) -> None:
        assert self.may_go_on.wait(DEADLINE_S)
        self.steps.append((step, topic, partition))
        if (topic, partition) in self.refused:
            raise LogStorageError("the disk is full")


class Files:
    """The files under test with what they handed over."""

    def __init__(self) -> None:
        self.logs = RecordedLogs()
        self.opened: list[Opened] = []
        self.largest = 0
        self.files = PartitionFiles(cast(LogManager, self.logs), self._on_opened)

    def _on_opened(self, opened: Collection[Opened]) -> None:
        self.opened += opened
        self.largest = max(self.largest, len(opened))


Scenario = Callable[[Files], Coroutine[Any, Any, None]]
Run = Callable[[Scenario], None]


@pytest.fixture
def run() -> Run:
    def run_scenario(scenario: Scenario) -> None:
        async def main() -> None:
            files = Files()
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await scenario(files)
            finally:
                files.logs.may_go_on.set()
                await files.files.close()

        asyncio.run(main())

    return run_scenario


def test_what_is_being_opened_counts_from_its_first_partition_until_all_are_open(run: Run) -> None:
    async def scenario(files: Files) -> None:
        topic = topic_of("t", 300)
        files.files.open(topic, range(100, 300), CONFIG)
        assert files.files.opening_from(topic.topic_id) == 100
        while len(files.files.opening(topic.topic_id)) == 200:  # noqa: ASYNC110 - nothing tells of the first turn
            await asyncio.sleep(0)
        assert files.files.opening_from(topic.topic_id) == 100
        await files.files.wait_until_opened([topic.topic_id])
        assert files.files.opening_from(topic.topic_id) is None

    run(scenario)


def test_a_partition_that_moves_here_hides_nothing_from_clients(run: Run) -> None:
    """Its leader serves it elsewhere: clients would believe that the topic has shrunk."""

    async def scenario(files: Files) -> None:
        made = topic_of("t", 3)
        moved = replace(made.partitions[0], partition_epoch=1)
        topic = replace(made, partitions=(moved, *made.partitions[1:]))
        files.files.open(topic, [0], CONFIG)
        assert files.files.opening(topic.topic_id) == {0}
        assert files.files.opening_from(topic.topic_id) is None
        files.files.open(topic, [2], CONFIG)
        assert files.files.opening_from(topic.topic_id) == 2
        await files.files.wait_until_opened([topic.topic_id])

    run(scenario)


def test_what_could_not_be_opened_is_tried_again_and_hides_nothing_meanwhile(run: Run) -> None:
    async def scenario(files: Files) -> None:
        topic = topic_of("t", 2)
        files.files.open(topic, [0], CONFIG, were_tried=True)
        assert files.files.opening_from(topic.topic_id) is None
        await files.files.wait_until_opened([topic.topic_id])

    run(scenario)


def test_a_new_log_is_told_its_epoch_if_this_broker_is_sure_to_lead_it(run: Run) -> None:
    async def scenario(files: Files) -> None:
        alone, together = replace(STATE, replicas=(1,), leader_epoch=4), replace(STATE, replicas=(1, 2), leader_epoch=5)
        topic = TopicImage("t", uuid.uuid4(), (alone, together))
        files.files.open(topic, range(2), CONFIG)
        await files.files.wait_until_opened([topic.topic_id])
        assert files.logs.leader_epochs == [4, UNDEFINED_EPOCH]

    run(scenario)


def test_all_is_opened_a_few_at_a_time(run: Run) -> None:
    async def scenario(files: Files) -> None:
        topic = topic_of("t", 300)
        files.files.open(topic, range(300), CONFIG)
        assert files.files.is_opening(topic.topic_id, 299)
        assert not files.files.is_opening(topic.topic_id, 300)
        assert len(files.files.opening(topic.topic_id)) == 300
        assert not await files.files.wait_until_opened([topic.topic_id, uuid.uuid4()])
        assert [one.partition for one in files.opened] == list(range(300))
        assert {str(one.log) for one in files.opened} == {f"t-{index}" for index in range(300)}
        assert files.largest <= STEPS_PER_TURN
        assert not files.files.opening(topic.topic_id)
        await files.files.settled()

    run(scenario)


def test_a_small_topic_does_not_wait_for_a_large_one(run: Run) -> None:
    async def scenario(files: Files) -> None:
        large, small = topic_of("large", 1000), topic_of("small")
        files.logs.may_go_on.clear()
        files.files.open(large, range(1000), CONFIG)
        files.files.open(small, [0], CONFIG)
        files.logs.may_go_on.set()
        assert not await files.files.wait_until_opened([small.topic_id])
        assert files.files.opening(large.topic_id)
        assert files.logs.steps.index(("open", "small", 0)) <= 2 * STEPS_PER_TURN
        assert not await files.files.wait_until_opened([large.topic_id])

    run(scenario)


def test_what_is_not_open_at_the_deadline_goes_on(run: Run) -> None:
    async def scenario(files: Files) -> None:
        topic, other = topic_of("t"), topic_of("other")
        files.files.open(other, [0], CONFIG)
        await files.files.settled()
        files.logs.may_go_on.clear()
        files.files.open(topic, [0], CONFIG)
        now_s = asyncio.get_running_loop().time()
        for deadline_s in (now_s - 1, now_s, now_s + 0.01):
            late = await files.files.wait_until_opened([topic.topic_id, other.topic_id], deadline_s)
            assert late == {topic.topic_id}
        files.logs.may_go_on.set()
        assert not await files.files.wait_until_opened([topic.topic_id])

    run(scenario)


def test_a_cancelled_wait_leaves_the_others_waiting(run: Run) -> None:
    async def scenario(files: Files) -> None:
        topic = topic_of("t")
        files.logs.may_go_on.clear()
        files.files.open(topic, [0], CONFIG)
        waits = [asyncio.create_task(files.files.wait_until_opened([topic.topic_id])) for _ in range(2)]
        await asyncio.sleep(0)
        waits[0].cancel()
        files.logs.may_go_on.set()
        assert await waits[1] == set()
        assert [str(one.log) for one in files.opened] == ["t-0"]

    run(scenario)


def test_deleted_and_made_anew_in_the_order_asked(run: Run) -> None:
    async def scenario(files: Files) -> None:
        logs = files.logs
        topics = [topic_of("t", 2) for _ in range(5)]
        for topic in topics[:-1]:
            files.files.open(topic, range(2), CONFIG)
            files.files.delete(topic, range(2))
            assert not files.files.opening(topic.topic_id)
        files.files.open(topics[-1], range(2), CONFIG)
        await files.files.settled()
        assert logs.topic_ids == {("t", index): topics[-1].topic_id for index in range(2)}
        assert [one.topic_id for one in files.opened] == [topics[-1].topic_id] * 2

    run(scenario)


def test_a_deleted_topic_is_not_opened_any_more(run: Run) -> None:
    async def scenario(files: Files) -> None:
        topic = topic_of("t", 1000)
        files.logs.may_go_on.clear()
        files.files.open(topic, range(1000), CONFIG)
        waiting = asyncio.create_task(files.files.wait_until_opened([topic.topic_id]))
        await asyncio.sleep(0)
        files.files.delete(topic, range(1000))
        assert await waiting == set()
        files.logs.may_go_on.set()
        await files.files.settled()
        assert files.opened == []
        assert not files.logs.topic_ids
        assert len([step for step in files.logs.steps if step[0] == "open"]) <= STEPS_PER_TURN

    run(scenario)


def test_files_of_a_topic_that_was_deleted_while_away_are_replaced(run: Run) -> None:
    async def scenario(files: Files) -> None:
        topic = topic_of("t")
        files.logs.topic_ids["t", 0] = uuid.uuid4()
        files.files.open(topic, [0], CONFIG)
        await files.files.settled()
        assert files.logs.steps == [("delete", "t", 0), ("open", "t", 0)]

    run(scenario)


def test_a_partition_that_fails_is_told_and_the_others_go_on(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(files: Files) -> None:
        topic = topic_of("t", 3)
        files.logs.refused = {("t", 1)}
        files.files.open(topic, range(3), CONFIG)
        assert not await files.files.wait_until_opened([topic.topic_id])
        assert [(one.partition, one.log) for one in files.opened] == [(0, "t-0"), (1, None), (2, "t-2")]
        files.files.delete(topic, range(3))
        await files.files.settled()

    run(scenario)
    assert "partition t-1 is offline: " in caplog.text
    assert "the files of t-1 could not be removed: " in caplog.text


def test_many_deletions_are_flushed_together(run: Run) -> None:
    async def scenario(files: Files) -> None:
        files.files.delete(topic_of("t", 10 * STEPS_PER_TURN), range(10 * STEPS_PER_TURN))
        await files.files.settled()
        assert files.logs.flushes == 10

    run(scenario)


def test_closing_finishes_a_turn_and_all_deletions_and_drops_the_rest(run: Run) -> None:
    async def scenario(files: Files) -> None:
        topic, gone = topic_of("t", 1000), topic_of("gone", 1000)
        files.logs.may_go_on.clear()
        files.files.open(topic, range(1000), CONFIG)
        files.files.delete(gone, range(1000))
        waits = [asyncio.create_task(files.files.wait_until_opened([topic.topic_id])) for _ in range(2)]
        closing = asyncio.create_task(files.files.close())
        await asyncio.sleep(0)
        assert not closing.done()
        files.logs.may_go_on.set()
        await closing
        assert await asyncio.gather(*waits) == [set(), set()]
        assert len([step for step in files.logs.steps if step[0] == "open"]) == STEPS_PER_TURN
        assert len([step for step in files.logs.steps if step[0] == "delete"]) == 1000
        assert files.opened == []
        await files.files.settled()

    run(scenario)
