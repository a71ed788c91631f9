"""Thousands of partitions at once: used as soon as they are created, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.controller import ClusterImage
from tidelog.log import LogManager, PartitionLog
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k20_delete_topics import DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.k23_offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.messages.k37_create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.server.server import BrokerServer
from tidelog.testing import Broker

if TYPE_CHECKING:
    from tests.scenario.data.conftest import RawClient

    Connect = Callable[[Broker], RawClient]
    MakeBatch = Callable[..., bytearray]

MANY = 2_000
BEAT_S = 0.01
LATENESS_MAX_S = 1.0
"""Far above what is seen (0.05 s), for machines with more to do; without a thread of its own, the work took seconds."""


def create(raw: RawClient, name: str, partitions: int, *, timeout_ms: int = 60_000) -> int:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)
    return raw.ask(CREATE_TOPICS, 7, request, CreateTopicsResponse).topics[0].error_code


def delete(raw: RawClient, name: str) -> int:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=60_000)
    return raw.ask(DELETE_TOPICS, 5, request, DeleteTopicsResponse).responses[0].error_code


def grow(raw: RawClient, name: str, count: int, *, timeout_ms: int = 60_000) -> int:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=timeout_ms)
    return raw.ask(CREATE_PARTITIONS, 3, request, CreatePartitionsResponse).results[0].error_code


def end_of_epoch(raw: RawClient, name: str, epoch: int) -> EpochEndOffset:
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=name, partitions=[wanted])])
    response = raw.ask(OFFSET_FOR_LEADER_EPOCH, 4, request, OffsetForLeaderEpochResponse)
    return response.topics[0].partitions[0]


def settle(broker: Broker) -> None:
    async def settled(server: BrokerServer) -> None:
        await server.services.replicas.settled()

    broker.call(settled)


def waits_for_cpu_s() -> dict[str, float]:
    """How long each thread of this process was ready to run while the machine ran something else."""
    waits = {}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
            waits[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return waits


@contextmanager
def heartbeat(broker: Broker) -> Iterator[list[float]]:
    """How late a task on the broker's event loop is, beat by beat, in seconds.

    What a thread of this process was kept waiting by the rest of the machine does not count: it may be the loop's, or
    one that holds the interpreter's lock.
    """
    lateness: list[float] = []

    async def beat() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = waits_for_cpu_s()
            due_s = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late_s = loop.time() - due_s
            waited_s = sum(wait_s - before.get(thread, 0.0) for thread, wait_s in waits_for_cpu_s().items())
            lateness.append(late_s - waited_s)

    async def start(server: BrokerServer) -> asyncio.Task[None]:
        return asyncio.create_task(beat())

    task = broker.call(start)

    async def stop(server: BrokerServer) -> None:
        task.cancel()

    # As `tidelog serve` does: what the test session has piled up is not the broker's, and collecting it takes long.
    gc.collect()
    gc.freeze()
    try:
        yield lateness
    finally:
        gc.unfreeze()
        broker.call(stop)


def test_nobody_waits_while_many_partitions_come_and_go(connect: Connect, batch: MakeBatch) -> None:
    with Broker() as broker:
        raw = connect(broker)
        with heartbeat(broker) as lateness:
            assert create(raw, "many", MANY) == 0
            # Used at once, the last one too.
            assert raw.produce("many", batch(b"a"), partition=MANY - 1).error_code == 0
        assert len(lateness) > 5
        broker.stop()
        broker.start()
        raw = connect(broker)
        # Ready means that every partition can be used.
        response = raw.produce_many({("many", index): batch(b"b") for index in range(MANY)})
        answers = response.responses[0].partition_responses
        assert [answer.error_code for answer in answers] == [0] * MANY
        assert [answer.base_offset for answer in answers] == [0] * (MANY - 1) + [1]
        with heartbeat(broker) as more_lateness:
            assert delete(raw, "many") == 0
            assert raw.produce("many", batch(b"a")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            settle(broker)
        worst_s = max(lateness + more_lateness)
        print(f"\n{MANY} partitions made and deleted: the event loop was at most {worst_s * 1000:.0f} ms late")
        assert worst_s < LATENESS_MAX_S
        assert not broker.server.services.logs.logs()


def test_a_small_topic_comes_up_while_a_large_one_does(connect: Connect, batch: MakeBatch) -> None:
    partitions = MANY // 4
    with Broker() as broker:
        large, small = connect(broker), connect(broker)
        topic = CreatableTopic(name="large", num_partitions=partitions, replication_factor=1)
        asked = large.send(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        assert create(small, "small", 1) == 0
        assert small.produce("small", batch(b"a")).error_code == 0
        answer = large.receive(CREATE_TOPICS, 7, asked, CreateTopicsResponse)
        assert answer.topics[0].error_code == 0
        assert large.produce("large", batch(b"a"), partition=partitions - 1).error_code == 0


def test_deleted_and_made_anew_in_quick_succession(connect: Connect, batch: MakeBatch) -> None:
    """Behaviour 13: a topic never meets the records or files of an earlier one of its name."""
    with Broker() as broker:
        raw = connect(broker)
        for _ in range(10):
            assert create(raw, "again", 50) == 0
            for index in (0, 49):
                assert raw.produce("again", batch(b"a"), partition=index).base_offset == 0
            assert delete(raw, "again") == 0
        assert create(raw, "again", 50) == 0
        broker.stop()
        broker.start()
        raw = connect(broker)
        assert raw.produce("again", batch(b"a"), partition=49).base_offset == 0
        assert len(broker.server.services.logs.logs()) == 50


def test_a_deletion_that_a_crash_cut_short_is_finished_at_the_next_start(
    connect: Connect, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker() as broker:
        raw = connect(broker)
        assert create(raw, "t", 5) == 0
        raw.produce("t", batch(b"a"))
        with monkeypatch.context() as patch:
            patch.setattr(LogManager, "delete", lambda logs, topic, partition: None)
            assert delete(raw, "t") == 0
            broker.crash()
        directory = broker.data_dir / "broker-1"
        assert len(list(directory.glob("t-*"))) == 5
        broker.start()
        left = sorted(path.name for path in directory.glob("t-*"))
        assert [name.rpartition(".")[2][-7:] for name in left] == ["-delete"] * len(left)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every log takes a while to make."""
    get_or_create = LogManager.get_or_create

    def slowly(logs: LogManager, *partition: Any, leader_epoch: int) -> PartitionLog:
        time.sleep(0.05)  # as a busy disk does; no test waits by it
        return get_or_create(logs, *partition, leader_epoch=leader_epoch)

    monkeypatch.setattr(LogManager, "get_or_create", slowly)


@pytest.mark.usefixtures("slow_disk")
def test_what_takes_too_long_is_told_and_comes_into_being(connect: Connect, batch: MakeBatch) -> None:
    with Broker() as broker:
        raw = connect(broker)
        # Without any time nothing is begun, as in Kafka.
        assert create(raw, "none", 10, timeout_ms=0) == ErrorCode.REQUEST_TIMED_OUT
        assert raw.produce("none", batch(b"a")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for timeout_ms in (1, 100):
            assert create(raw, f"t{timeout_ms}", 10, timeout_ms=timeout_ms) == ErrorCode.REQUEST_TIMED_OUT
            assert raw.produce(f"t{timeout_ms}", batch(b"a"), partition=9).error_code in (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.NONE,
            )
        settle(broker)
        assert create(raw, "t1", 10) == ErrorCode.TOPIC_ALREADY_EXISTS
        assert raw.produce("t1", batch(b"a"), partition=9).error_code == 0
        assert grow(raw, "t1", 20, timeout_ms=100) == ErrorCode.REQUEST_TIMED_OUT
        assert raw.produce("t1", batch(b"a"), partition=9).error_code == 0
        settle(broker)
        assert raw.produce("t1", batch(b"a"), partition=19).error_code == 0


def test_one_of_many_partitions_that_can_not_be_made(connect: Connect, batch: MakeBatch) -> None:
    """Its files can't be made, and all others serve."""
    with Broker() as broker:
        (broker.data_dir / "broker-1" / "many-150").touch()
        raw = connect(broker)
        assert create(raw, "many", 200) == 0
        response = raw.produce_many({("many", index): batch(b"a") for index in range(200)})
        failed = {answer.index: answer.error_code for answer in response.responses[0].partition_responses}
        assert failed.pop(150) == ErrorCode.KAFKA_STORAGE_ERROR
        assert set(failed.values()) == {0}


@pytest.mark.parametrize("ending", ["stop", "crash"])
def test_an_epoch_without_records_is_told(connect: Connect, batch: MakeBatch, ending: str) -> None:
    """Behaviour 36: an epoch is written down with its first record; before that it is answered for all the same."""

    def epoch_of(image: ClusterImage) -> int:
        return image.topics["t"].partitions[0].leader_epoch

    with Broker() as broker:
        raw = connect(broker)
        assert create(raw, "t", 1) == 0
        path = broker.data_dir / "broker-1" / "t-0" / "leader-epoch-checkpoint"
        raw.produce("t", batch(b"a", b"b"))
        first = epoch_of(broker.server.services.controller.image)
        assert path.read_text() == f"0\n1\n{first} 0\n"
        for _ in range(2):
            getattr(broker, ending)()
            broker.start()
        raw = connect(broker)
        epoch = epoch_of(broker.server.services.controller.image)
        assert epoch == first + 2
        assert path.read_text() == f"0\n1\n{first} 0\n"
        for asked, expected in (
            (first, (first, 2)),
            (first + 1, (first, 2)),
            (epoch, (epoch, 2)),
            (epoch + 1, (-1, -1)),
        ):
            answer = end_of_epoch(raw, "t", asked)
            assert (answer.leader_epoch, answer.end_offset) == expected
        assert raw.fetch("t", 2, leader_epoch=epoch, last_fetched_epoch=first).error_code == 0
        assert raw.list_offset("t", -1).leader_epoch == epoch
        raw.produce("t", batch(b"c"))
        assert path.read_text() == f"0\n2\n{first} 0\n{epoch} 2\n"
        assert end_of_epoch(raw, "t", first + 1).end_offset == 2
        assert end_of_epoch(raw, "t", epoch).end_offset == 3
