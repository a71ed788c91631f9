"""Replicas that move between the data directories of a broker, while they are written, truncated and deleted."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.data.conftest import Node
from tests.unit.broker.data.test_replica_manager import OTHER, image_of, state, topic_of

from tidelog.broker import replica_moves
from tidelog.broker.handlers.k34_alter_replica_log_dirs import handle_alter_replica_log_dirs
from tidelog.broker.handlers.k35_describe_log_dirs import handle_describe_log_dirs
from tidelog.broker.partition import Partition
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import run_through
from tidelog.log import PartitionLog
from tidelog.log.inspect import verify
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k34_alter_replica_log_dirs import (
    ALTER_REPLICA_LOG_DIRS,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tidelog.protocol.messages.k35_describe_log_dirs import DESCRIBE_LOG_DIRS, DescribeLogDirsRequest
from tidelog.records import assign_offsets, encode_batch, iter_headers

NO_ERROR = ErrorCode.NONE
DEADLINE_S = 120


class Moving:
    """A broker with three data directories and a partition in the first of them."""

    def __init__(self, root: Path) -> None:
        self.paths = [root / name for name in "abc"]
        self.node = Node(*self.paths)
        self.topic = topic_of("t", state())

    async def begin(self, **configs: str) -> None:
        await self.node.apply(image_of(self.topic, configs={"t": {"segment.bytes": "40000", **configs}}))
        self.home = self.log.parent
        self.others = [path for path in self.paths if path != self.home]

    @property
    def partition(self) -> Partition:
        return self.node.replicas.find("t", 0)

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    def append(self, count: int = 1, size_bytes: int = 1000, **producer: Any) -> None:
        for _ in range(count):
            now_ms = self.node.clock.now_ms()
            batch = encode_batch([(b"k", os.urandom(size_bytes), (), now_ms)], now_ms=now_ms, **producer)
            self.node.replicas.append(self.partition, memoryview(batch), 1)

    def append_in_transaction(self, producer_id: int) -> None:
        now_ms = self.node.clock.now_ms()
        guard = self.log.begin_verification(producer_id, 0, 0)
        producer: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        batch = encode_batch([(b"k", b"v", (), now_ms)], now_ms=now_ms, is_transactional=True, **producer)
        self.node.replicas.append(self.partition, memoryview(batch), 1, guard=guard)

    def alter(self, path: Path | str, topic: str = "t", index: int = 0) -> ErrorCode:
        wanted = [AlterReplicaLogDirTopic(name=topic, partitions=[index])]
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(path), topics=wanted)])
        context = RequestContext(api=ALTER_REPLICA_LOG_DIRS, version=2, services=self.node.services)
        answer = run_through(handle_alter_replica_log_dirs(request, context))
        return ErrorCode(answer.results[0].partitions[0].error_code)

    def described(self) -> dict[Path, list[tuple[bool, int]]]:
        """Of each directory: whether the replica there is a future one, and its lag."""
        context = RequestContext(api=DESCRIBE_LOG_DIRS, version=4, services=self.node.services)
        answer = run_through(handle_describe_log_dirs(DescribeLogDirsRequest(topics=None), context))
        return {
            Path(result.log_dir): [
                (row.is_future_key, row.offset_lag) for topic in result.topics for row in topic.partitions
            ]
            for result in answer.results
        }

    def content(self) -> bytes:
        log, parts = self.log, []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            read = log.read(offset, 1 << 20, limit_offset=log.log_end_offset, min_one_batch=True)
            data = b"".join(part.read() for part in read.slices)
            for position, header in iter_headers(data, allow_partial=True):
                parts.append(data[position : position + header.size_bytes])
                offset = header.next_offset
        return b"".join(parts)

    def slow(self) -> None:
        """Copy one piece and then nothing, as the clock stands still."""
        self.node.replicas.moves._quota.rate = 1

    def go_on(self) -> None:
        self.node.replicas.moves._quota.rate = 2**63 - 1

    async def copied_some(self) -> None:
        held = self.log.log_end_offset - self.log.log_start_offset
        await until(lambda: any(status.offset_lag < held for status in self.node.replicas.moves.under_way))

    async def settled(self) -> None:
        moves = self.node.replicas.moves
        await until(lambda: not moves._tasks)

    def futures(self) -> list[Path]:
        return [found for path in self.paths for found in path.glob("*-future")]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - files tell nobody
            await asyncio.sleep(0.002)


@pytest.fixture
def moving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Moving], Coroutine[Any, Any, None]]], None]:
    monkeypatch.setattr("tidelog.broker.replication_throttle.PAUSE_MAX_S", 0.005)
    monkeypatch.setattr(replica_moves, "_PAUSE_S", 0.005)

    def run(scenario: Callable[[Moving], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            moving = Moving(tmp_path)
            try:
                await scenario(moving)
            finally:
                await moving.node.close()

        asyncio.run(main())

    return run


Run = Callable[[Callable[[Moving], Coroutine[Any, Any, None]]], None]


def test_a_replica_moves_while_it_is_written(moving: Run) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin()
        moving.append(100)
        log, target = moving.log, moving.others[0]
        assert moving.alter(target) is NO_ERROR
        assert moving.described()[target] == [(True, 100)]
        count = 0
        while log.parent != target:
            # A loop that does nothing else could append faster than a thread copies.
            if count < 500:
                moving.append()
                count += 1
            await asyncio.sleep(0)
        assert count
        moving.append(10)
        assert log is moving.log
        expected = moving.content()
        assert len(list(iter_headers(expected))) == log.log_end_offset == 110 + count
        await moving.settled()
        assert moving.described() == {path: [(False, 0)] if path == target else [] for path in moving.paths}
        assert list(verify(log.directory)) == []
        assert not moving.futures()
        assert moving.alter(moving.home) is NO_ERROR
        await moving.settled()
        assert log.parent == moving.home
        assert moving.content() == expected

    moving(scenario)


def test_records_that_wait_for_a_flush_are_acknowledged_during_a_move(moving: Run) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin(**{"flush.messages": "1"})
        moving.append(50)
        assert moving.alter(moving.others[0]) is NO_ERROR
        for _ in range(500):
            if moving.log.parent != moving.home:
                break
            response = await moving.node.produce("t", timeout_ms=60_000)
            assert response.responses[0].partition_responses[0].error_code == 0
        await moving.settled()
        await until(lambda: moving.log.high_watermark == moving.log.log_end_offset)
        assert moving.log.flushed_offset == moving.log.log_end_offset > 50

    moving(scenario)


def test_a_move_is_replaced_and_cancelled(moving: Run) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin()
        moving.append(100)
        first, second = moving.others
        moving.slow()
        assert moving.alter(first) is NO_ERROR
        await moving.copied_some()
        ((is_future, lag),) = moving.described()[first]
        assert is_future
        assert 0 < lag < 100
        assert moving.alter(second) is NO_ERROR
        await until(lambda: not list(first.glob("*-future")))
        assert [path for path, rows in moving.described().items() if any(future for future, _ in rows)] == [second]
        assert moving.alter(moving.home) is NO_ERROR
        await moving.settled()
        assert not moving.futures()
        assert moving.log.parent == moving.home
        moving.go_on()
        assert moving.alter(first) is NO_ERROR
        assert moving.alter(second) is NO_ERROR
        await moving.settled()
        assert moving.log.parent == second

    moving(scenario)


def test_what_can_t_be_moved_is_told(moving: Run) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin()
        target = moving.others[0]
        assert moving.alter("/nowhere") is ErrorCode.LOG_DIR_NOT_FOUND
        assert moving.alter("") is ErrorCode.LOG_DIR_NOT_FOUND
        assert moving.alter(target, "other") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert moving.alter(target, index=1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elsewhere = topic_of("elsewhere", state(OTHER, (OTHER,)))
        await moving.node.apply(image_of(moving.topic, elsewhere, base=moving.node.replicas.image))
        assert moving.alter(target, "elsewhere") is ErrorCode.REPLICA_NOT_AVAILABLE
        moving.node.logs.directories.fail(target, "gone")
        assert moving.alter(target) is ErrorCode.KAFKA_STORAGE_ERROR
        assert moving.alter(moving.others[1]) is NO_ERROR
        moving.node.logs.directories.fail(moving.home, "gone")
        await until(lambda: moving.partition.unavailable)
        assert moving.alter(moving.others[1]) is ErrorCode.KAFKA_STORAGE_ERROR
        await moving.settled()
        assert not moving.futures()

    moving(scenario)


@pytest.mark.parametrize("start", [0, 7, 60, 95, 100])
@pytest.mark.parametrize("records", [1, 3])
def test_a_copy_follows_the_start_of_its_log(moving: Run, start: int, records: int) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin()
        for _ in range(100 // records):
            now_ms = moving.node.clock.now_ms()
            batch = encode_batch([(b"k", bytes(900), (), now_ms)] * records, now_ms=now_ms)
            moving.node.replicas.append(moving.partition, memoryview(batch), 1)
        offset = min(start, moving.log.log_end_offset)
        moving.log.set_log_start_offset(min(2, offset))
        moving.slow()
        assert moving.alter(moving.others[0]) is NO_ERROR
        await moving.copied_some()
        moving.log.set_log_start_offset(offset)
        moving.go_on()
        await moving.settled()
        assert moving.log.parent == moving.others[0]
        assert moving.log.log_start_offset == offset
        moving.append(3)
        assert moving.log.segments[-1].path.parent == moving.log.directory
        assert list(verify(moving.log.directory)) == []
        assert moving.log.log_end_offset == 100 // records * records + 3
        assert moving.content()

    moving(scenario)


@pytest.mark.parametrize("end", [0, 5, 50, 99])
def test_a_copy_follows_truncations(moving: Run, end: int) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin()
        moving.append(100)
        moving.slow()
        assert moving.alter(moving.others[0]) is NO_ERROR
        await moving.copied_some()
        log = moving.log
        await moving.node.replicas.change_log(moving.partition, lambda: log.truncate_to(end))
        moving.append(20, 500)
        moving.go_on()
        expected = moving.content()
        await moving.settled()
        assert log.parent == moving.others[0]
        assert log.log_end_offset == end + 20
        assert moving.content() == expected
        assert list(verify(log.directory)) == []

    moving(scenario)


def test_a_follower_moves_while_it_copies_and_truncates(moving: Run) -> None:
    async def scenario(moving: Moving) -> None:
        moving.topic = topic_of("t", state(OTHER, (OTHER, 1)))
        await moving.begin()
        partition, log = moving.partition, moving.log
        assert partition.is_follower

        def follow(count: int) -> None:
            for _ in range(count):
                batch = memoryview(encode_batch([(b"k", os.urandom(900), (), 1)], now_ms=1))
                assign_offsets(batch, log.log_end_offset, 4)
                log.append_as_follower(batch, leader_epoch=4)

        follow(100)
        target = moving.others[0]
        assert moving.alter(target) is NO_ERROR
        rounds = 0
        while log.parent != target:
            if rounds < 50:
                follow(7)
                rounds += 1
                if rounds % 10 == 0:
                    end_offset = log.log_end_offset - 3
                    await moving.node.replicas.change_log(partition, functools.partial(log.truncate_to, end_offset))
            await asyncio.sleep(0)
        follow(5)
        expected = moving.content()
        await moving.settled()
        assert partition.is_follower
        assert moving.content() == expected
        assert len(list(iter_headers(expected))) == log.log_end_offset
        assert list(verify(log.directory)) == []

    moving(scenario)


def test_a_copy_starts_over_where_its_log_does(moving: Run) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin()
        moving.append(100)
        moving.slow()
        assert moving.alter(moving.others[0]) is NO_ERROR
        await moving.copied_some()
        log = moving.log
        await moving.node.replicas.change_log(moving.partition, lambda: log.truncate_fully_and_start_at(500))
        moving.go_on()
        await moving.settled()
        assert (log.parent, log.log_start_offset, log.log_end_offset) == (moving.others[0], 500, 500)
        moving.append()
        assert log.log_end_offset == 501

    moving(scenario)


def test_a_producer_is_known_though_retention_took_its_records(moving: Run) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin()
        producer = {"producer_id": 7, "producer_epoch": 0}
        moving.append(base_sequence=0, **producer)
        moving.append(base_sequence=1, is_transactional=False, **producer)
        moving.append(100)
        moving.append_in_transaction(8)
        moving.log.set_log_start_offset(90)
        before = [entry.pack() for entry in moving.log.active_producers()]
        unstable = moving.log.last_stable_offset
        assert moving.alter(moving.others[0]) is NO_ERROR
        await moving.settled()
        log = moving.log
        assert log.parent == moving.others[0]
        assert sorted(entry.pack() for entry in log.active_producers()) == sorted(before)
        assert log.last_stable_offset == unstable
        end_offset = log.log_end_offset
        moving.append(base_sequence=1, **producer)
        assert log.log_end_offset == end_offset, "a duplicate"
        moving.append(base_sequence=2, **producer)
        assert log.log_end_offset == end_offset + 1

    moving(scenario)


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_move_ends_with_its_replica(moving: Run, how: str) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin()
        moving.append(100)
        moving.slow()
        assert moving.alter(moving.others[0]) is NO_ERROR
        await moving.copied_some()
        topics = [] if how == "deleted" else [topic_of("t", state(OTHER, (OTHER,)))]
        await moving.node.apply(image_of(*topics, base=moving.node.replicas.image))
        await moving.settled()
        assert not moving.futures()
        assert not [path for each in moving.paths for path in each.glob("t-0")]
        assert moving.node.logs.checkpoint()

    moving(scenario)


def test_a_target_disk_that_fails_ends_the_move_and_nothing_else(moving: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin()
        moving.append(100)
        target = moving.others[0]
        pwrite = os.pwrite

        def failing(fd: int, data: bytes, position: int) -> int:
            if str(target) in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(5, "Input/output error")
            return pwrite(fd, data, position)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", failing)
            assert moving.alter(target) is NO_ERROR
            await moving.settled()
        offline = [each.path for each in moving.node.logs.directories if each.offline_reason is not None]
        assert offline == [target]
        assert moving.log.parent == moving.home
        moving.append()
        assert moving.alter(moving.others[1]) is NO_ERROR
        await moving.settled()
        assert moving.log.parent == moving.others[1]

    moving(scenario)


def test_a_full_target_ends_the_move_and_takes_nothing_offline(moving: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(moving: Moving) -> None:
        await moving.begin()
        moving.append(100)
        target = moving.others[0]
        pwrite = os.pwrite

        def full(fd: int, data: bytes, position: int) -> int:
            if str(target) in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(28, "No space left on device")
            return pwrite(fd, data, position)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            assert moving.alter(target) is NO_ERROR
            await moving.settled()
        assert not moving.node.logs.directories.has_offline
        assert not moving.futures()
        assert moving.alter(target) is NO_ERROR
        await moving.settled()
        assert moving.log.parent == target

    moving(scenario)
