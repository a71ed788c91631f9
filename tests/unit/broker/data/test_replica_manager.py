"""The replicas of a broker over real logs: what an image makes of them, what clients are told, disks that fail."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.delayed_fetch import FetchParams
from tidelog.broker.fetch_session import PartitionFetch
from tidelog.broker.handlers.k00_produce import handle_produce
from tidelog.broker.handlers.k01_fetch import handle_fetch
from tidelog.broker.handlers.k35_describe_log_dirs import handle_describe_log_dirs
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.broker.services import BrokerServices
from tidelog.common.clock import VirtualClock
from tidelog.common.ids import ZERO_UUID
from tidelog.controller.image import (
    EMPTY_IMAGE,
    BrokerInfo,
    ClusterImage,
    ConfigResource,
    PartitionState,
    ResourceType,
    TopicImage,
)
from tidelog.log import LogManager, LogStorageError, PartitionLog
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from tidelog.protocol.messages.k35_describe_log_dirs import DESCRIBE_LOG_DIRS, DescribeLogDirsRequest
from tidelog.records import encode_batch
from tidelog.server.settings_load import load

NODE, OTHER = 1, 2
NOW_MS = time.time_ns() // 1_000_000
BROKERS = {
    NODE: BrokerInfo(NODE, 10, "one.example", 9092),
    OTHER: BrokerInfo(OTHER, 20, "two.example", 9093, rack="r2"),
}


def state(leader: int = NODE, replicas: tuple[int, ...] = (NODE,), **changes: Any) -> PartitionState:
    return replace(PartitionState(replicas, replicas, leader, leader_epoch=4, partition_epoch=4), **changes)


def image_of(
    *topics: TopicImage, configs: dict[str, dict[str, str]] | None = None, base: ClusterImage = EMPTY_IMAGE
) -> ClusterImage:
    return replace(
        base,
        revision=base.revision + 1,
        brokers=BROKERS,
        topics={topic.name: topic for topic in topics},
        topics_by_id={topic.topic_id: topic for topic in topics},
        configs={ConfigResource(ResourceType.TOPIC, name): values for name, values in (configs or {}).items()},
    )


def topic_of(name: str, *states: PartitionState) -> TopicImage:
    return TopicImage(name, uuid.uuid4(), states)


def batch(*values: bytes) -> bytearray:
    return encode_batch([(b"k", value, (), NOW_MS) for value in values], now_ms=NOW_MS)


class Node:
    """A replica manager on real files, with the handlers on top; its clock stands still, its loop is the test's."""

    def __init__(self, path: Path) -> None:
        self.clock = VirtualClock(start_ms=NOW_MS)
        self.logs = LogManager([path], load(options={}), self.clock)
        self.logs.open("cluster", NODE)
        self.logs.load()
        settings = load(options={"node.id": NODE})
        self.replicas = ReplicaManager(
            node_id=NODE, logs=self.logs, settings=settings, table=settings.table, clock=self.clock
        )
        self.services = cast(BrokerServices, SimpleNamespace(replicas=self.replicas, logs=self.logs))

    def apply(self, image: ClusterImage) -> None:
        self.replicas.apply(self.replicas.image, image)

    async def close(self) -> None:
        await self.replicas.close()
        self.logs.close(clean=False)

    async def produce(self, topic: str, index: int = 0, *, acks: int = -1, timeout_ms: int = 0) -> ProduceResponse:
        data = PartitionProduceData(index=index, records=memoryview(batch(b"v")))
        request = ProduceRequest(
            acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        answer = handle_produce(request, RequestContext(api=PRODUCE, version=10, services=self.services))
        response = answer if isinstance(answer, ProduceResponse) else await cast(Coroutine[Any, Any, Any], answer)
        assert isinstance(response, ProduceResponse)
        return response

    async def produced(self, topic: str, index: int = 0, *, acks: int = -1) -> PartitionProduceResponse:
        return (await self.produce(topic, index, acks=acks)).responses[0].partition_responses[0]

    async def fetch(self, request: FetchRequest, version: int = 16) -> FetchResponse:
        answer = handle_fetch(request, RequestContext(api=FETCH, version=version, services=self.services))
        return answer if isinstance(answer, FetchResponse) else await answer


def fetch_request(topic: TopicImage, offset: int = 0, *, replica: ReplicaState | None = None) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        replica_state=replica or ReplicaState(),
        min_bytes=1,
        topics=[FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=[wanted])],
    )


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Node], Coroutine[Any, Any, None]]], None]:
    def run_scenario(scenario: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            node = Node(tmp_path)
            try:
                await scenario(node)
            finally:
                await node.close()

        asyncio.run(main())

    return run_scenario


Run = Callable[[Callable[[Node], Coroutine[Any, Any, None]]], None]


def fails(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


def test_partitions_are_found_by_name_and_id(run: Run) -> None:
    async def scenario(node: Node) -> None:
        elsewhere = state(OTHER, (OTHER,))
        topic = topic_of("t", state(), elsewhere)
        node.apply(image_of(topic))
        replicas = node.replicas
        assert replicas.find("t", 0) is replicas.find_by_id(topic.topic_id, 0)
        for index in (-1, 2):
            with fails(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                replicas.find("t", index)
            with fails(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                replicas.find_by_id(topic.topic_id, index)
        with fails(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            replicas.find("t", 1)
        with fails(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            replicas.find_by_id(topic.topic_id, 1)
        with fails(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            replicas.find("other", 0)
        for topic_id in (uuid.uuid4(), ZERO_UUID):
            with fails(ErrorCode.UNKNOWN_TOPIC_ID):
                replicas.find_by_id(topic_id, 0)
        assert [partition.partition for partition in replicas.partitions()] == [0]

    run(scenario)


def test_who_asks_the_wrong_broker_is_told_the_right_one(run: Run) -> None:
    """44: leader, epoch and address, after NOT_LEADER_OR_FOLLOWER, whether this broker has a replica or none."""

    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(OTHER, (OTHER,)), state(OTHER, (OTHER, NODE)))
        node.apply(image_of(topic))
        for index in (0, 1):
            response = await node.produce("t", index)
            answer = response.responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (OTHER, 4)
            (endpoint,) = response.node_endpoints
            assert (endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack) == (OTHER, "two.example", 9093, "r2")
        for version in (12, 16):
            fetched = await node.fetch(fetch_request(topic), version)
            (data,) = fetched.responses[0].partitions
            assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (OTHER, 4)
            assert [endpoint.node_id for endpoint in fetched.node_endpoints] == ([OTHER] if version >= 16 else [])
        fenced = fetch_request(topic)
        fenced.topics[0].partitions[0].partition = 1
        fenced.topics[0].partitions[0].current_leader_epoch = 3
        (data,) = (await node.fetch(fenced)).responses[0].partitions
        assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert data.current_leader.leader_id == OTHER

    run(scenario)


def test_a_follower_moves_the_high_watermark(run: Run) -> None:
    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(NODE, (NODE, OTHER)))
        node.apply(image_of(topic))
        waiting = asyncio.ensure_future(node.produce("t", timeout_ms=60_000))
        await asyncio.sleep(0)
        follower = ReplicaState(replica_id=OTHER, replica_epoch=20)
        (data,) = (await node.fetch(fetch_request(topic, replica=follower))).responses[0].partitions
        assert data.high_watermark == 0
        assert data.records
        (data,) = (await node.fetch(fetch_request(topic))).responses[0].partitions
        assert not data.records
        await asyncio.sleep(0)
        assert not waiting.done()
        await node.fetch(fetch_request(topic, 1, replica=follower))
        (answer,) = (await waiting).responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (0, 0)
        (data,) = (await node.fetch(fetch_request(topic))).responses[0].partitions
        assert (data.high_watermark, bool(data.records)) == (1, True)
        former_life = ReplicaState(replica_id=OTHER, replica_epoch=19)
        (data,) = (await node.fetch(fetch_request(topic, 1, replica=former_life))).responses[0].partitions
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario)


def test_a_produce_that_waits_too_long_is_told(run: Run) -> None:
    async def scenario(node: Node) -> None:
        node.apply(image_of(topic_of("t", state(NODE, (NODE, OTHER)))))
        answer = await node.produced("t")
        assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert node.replicas.find("t", 0).log.log_end_offset == 1
        assert node.replicas.waiting(node.replicas.find("t", 0)) == 0

    run(scenario)


def test_a_lost_leadership_ends_waits(run: Run) -> None:
    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(NODE, (NODE, OTHER)))
        node.apply(image_of(topic))
        produce = asyncio.ensure_future(node.produce("t", timeout_ms=60_000))
        long_poll = fetch_request(topic)
        long_poll.max_wait_ms = 60_000
        fetch = asyncio.ensure_future(node.fetch(long_poll))
        for _ in range(3):
            await asyncio.sleep(0)
        assert node.replicas.waiting(node.replicas.find("t", 0)) == 2
        moved = replace(topic, partitions=(state(OTHER, (NODE, OTHER), leader_epoch=5, partition_epoch=5),))
        node.apply(image_of(moved))
        response = await produce
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert response.responses[0].partition_responses[0].current_leader.leader_id == OTHER
        assert (await fetch).responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario)


def test_a_topic_made_anew_has_a_log_of_its_own(run: Run) -> None:
    """13: in one image, and when the old one's files are found at a start."""

    async def scenario(node: Node) -> None:
        old, new = topic_of("t", state()), topic_of("t", state())
        node.apply(image_of(old))
        await node.produced("t")
        node.apply(image_of(new))
        assert node.replicas.find("t", 0).topic_id == new.topic_id
        assert node.replicas.find("t", 0).log.log_end_offset == 0
        with fails(ErrorCode.UNKNOWN_TOPIC_ID):
            node.replicas.find_by_id(old.topic_id, 0)
        await node.produced("t")
        newest = topic_of("t", state())
        node.replicas._by_id.clear()
        node.replicas._by_name.clear()
        node.replicas.apply(EMPTY_IMAGE, image_of(newest))
        assert node.replicas.find("t", 0).log.log_end_offset == 0

    run(scenario)


def test_many_partitions_come_up_side_by_side(run: Run) -> None:
    async def scenario(node: Node) -> None:
        topic = topic_of("many", *(state() for _ in range(40)))
        node.apply(image_of(topic))
        for index in (0, 39):
            assert (await node.produced("many", index)).error_code == 0
        elected = tuple(replace(one, leader_epoch=5, partition_epoch=5) for one in topic.partitions)
        node.apply(image_of(replace(topic, partitions=elected)))
        assert {partition.leader_epoch for partition in node.replicas.partitions()} == {5}
        assert {partition.log.latest_epoch for partition in node.replicas.partitions()} == {5}

    run(scenario)


def test_settings_reach_the_logs_they_concern(run: Run) -> None:
    async def scenario(node: Node) -> None:
        one, two = topic_of("one", state(NODE, (NODE, OTHER))), topic_of("two", state())
        node.apply(image_of(one, two, configs={"one": {"min.insync.replicas": "2"}}))
        logs = [node.replicas.find(name, 0).log for name in ("one", "two")]
        assert [log.config.min_insync_replicas for log in logs] == [2, 1]
        config = logs[1].config
        node.apply(image_of(one, two, configs={"one": {"max.message.bytes": "100"}}))
        assert [log.config.min_insync_replicas for log in logs] == [1, 1]
        assert logs[0].config.max_message_bytes == 100
        assert logs[1].config is config

    run(scenario)


def test_another_min_insync_replicas_lets_the_high_watermark_go_on(run: Run) -> None:
    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(NODE, (NODE, OTHER), isr=(NODE,)))
        node.apply(image_of(topic, configs={"t": {"min.insync.replicas": "2"}}))
        await node.produced("t", acks=1)
        log = node.replicas.find("t", 0).log
        assert log.high_watermark == 0
        node.apply(image_of(topic))
        assert log.high_watermark == 1

    run(scenario)


def test_a_flush_that_fails_takes_the_directory_offline(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """63: nobody is acknowledged, everybody is told KAFKA_STORAGE_ERROR from then on."""

    def fail(log: PartitionLog, up_to: int | None = None) -> None:
        log.take_offline("fsync failed")
        raise LogStorageError("fsync failed")

    monkeypatch.setattr(PartitionLog, "flush", fail)

    async def scenario(node: Node) -> None:
        flushed, other = topic_of("flushed", state()), topic_of("other", state())
        node.apply(image_of(flushed, other, configs={"flushed": {"flush.messages": "1"}}))
        assert (await node.produced("other")).error_code == 0
        response = await node.produce("flushed", timeout_ms=60_000)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await node.produced("other")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        fetched = await node.fetch(fetch_request(other))
        assert fetched.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        described = handle_describe_log_dirs(
            DescribeLogDirsRequest(topics=None),
            RequestContext(api=DESCRIBE_LOG_DIRS, version=4, services=node.services),
        )
        assert [result.error_code for result in described.results] == [ErrorCode.KAFKA_STORAGE_ERROR]
        node.apply(image_of(flushed, other, late := topic_of("late", state()), base=node.replicas.image))
        with fails(ErrorCode.KAFKA_STORAGE_ERROR):
            node.replicas.find_by_id(late.topic_id, 0)

    run(scenario)
    assert "goes offline" in caplog.text


def test_an_append_that_was_undone_is_told_and_may_be_tried_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """63: a full disk refuses records, it does not end the partition."""

    async def scenario(node: Node) -> None:
        node.apply(image_of(topic_of("t", state())))

        def full(*_: object, **__: object) -> None:
            raise LogStorageError("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "append_as_leader", full)
            assert (await node.produced("t")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await node.produced("t")).error_code == 0

    run(scenario)


def test_one_flush_acknowledges_all_that_was_appended_before_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A5: group commit."""
    flush = PartitionLog.flush
    flushes = []

    def counted(log: PartitionLog, up_to: int | None = None) -> None:
        flushes.append(log.log_end_offset)
        flush(log, up_to)

    monkeypatch.setattr(PartitionLog, "flush", counted)

    async def scenario(node: Node) -> None:
        node.apply(image_of(topic_of("t", state()), configs={"t": {"flush.messages": "1"}}))
        produces = [asyncio.ensure_future(node.produce("t", timeout_ms=60_000)) for _ in range(20)]
        responses = await asyncio.gather(*produces)
        offsets = [response.responses[0].partition_responses[0].base_offset for response in responses]
        assert offsets == list(range(20))
        assert node.replicas.find("t", 0).log.flushed_offset == 20
        assert len(flushes) <= 3

    run(scenario)


def test_reads_share_the_limit_in_order(run: Run) -> None:
    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(), state())
        node.apply(image_of(topic))
        for index in (0, 1):
            await node.produced("t", index)
        size = len(batch(b"v"))

        def sizes(max_bytes: int) -> list[int]:
            fetches = [PartitionFetch("t", ZERO_UUID, index, 0, 1 << 20) for index in (1, 0)]
            return [read.size_bytes for read in node.replicas.read(FetchParams(max_bytes=max_bytes), fetches)]

        assert sizes(0) == [size, 0]
        assert sizes(size) == [size, 0]
        assert sizes(2 * size) == [size, size]

    run(scenario)
