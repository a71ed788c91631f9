"""The replicas of a broker over real logs: what an image makes of them, what clients are told, disks that fail."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.broker import follower_fetches
from tidelog.broker.delayed_fetch import FetchParams
from tidelog.broker.fetch_session import PartitionFetch
from tidelog.broker.follower_fetches import FollowerFetch, follower_key
from tidelog.broker.handlers.k35_describe_log_dirs import handle_describe_log_dirs
from tidelog.broker.partition import Partition, PartitionRead
from tidelog.broker.replica_manager import LargeRead
from tidelog.broker.request_context import RequestContext
from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.ids import ZERO_UUID
from tidelog.common.steps import run_through
from tidelog.controller.image import EMPTY_IMAGE, NO_LEADER, BrokerInfo, ClusterImage, PartitionState, TopicImage
from tidelog.log import LogStorageError, NotInMemoryError, PartitionLog
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import ConfigResource, ResourceType
from tidelog.protocol.messages.k01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from tidelog.protocol.messages.k35_describe_log_dirs import DESCRIBE_LOG_DIRS, DescribeLogDirsRequest

if TYPE_CHECKING:
    from tests.unit.broker.data.conftest import Node

    Run = Callable[[Callable[[Node], Coroutine[Any, Any, None]]], None]

NODE, OTHER = 1, 2
BROKERS = {
    NODE: BrokerInfo(NODE, 10, (Endpoint(PLAINTEXT, "one.example", 9092),)),
    OTHER: BrokerInfo(OTHER, 20, (Endpoint(PLAINTEXT, "two.example", 9093),), rack="r2"),
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


def fetch_request(topic: TopicImage, offset: int = 0, *, replica: ReplicaState | None = None) -> FetchRequest:
    epoch = -1 if replica is None else 4
    wanted = FetchPartition(partition=0, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        replica_state=replica or ReplicaState(),
        min_bytes=1,
        topics=[FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=[wanted])],
    )


def fails(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


def test_partitions_are_found_by_name_and_id(run: Run) -> None:
    async def scenario(node: Node) -> None:
        elsewhere = state(OTHER, (OTHER,))
        topic = topic_of("t", state(), elsewhere)
        await node.apply(image_of(topic))
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
        await node.apply(image_of(topic))
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
        await node.apply(image_of(topic))
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
        refused = await node.fetch(fetch_request(topic, 1, replica=former_life))
        assert (refused.error_code, refused.responses) == (ErrorCode.STALE_BROKER_EPOCH, [])
        # Before version 15 a follower can't say which process of its broker it is.
        old = fetch_request(topic, 1)
        old.replica_id = OTHER
        (data,) = (await node.fetch(old, version=14)).responses[0].partitions
        assert (data.error_code, bool(data.records)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, False)

    run(scenario)


def test_the_session_of_a_broker_that_has_restarted_ends(run: Run) -> None:
    """Its fetch, which waits, does too: it is of a process that is gone."""

    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(NODE, (NODE, OTHER)))
        image = image_of(topic)
        await node.apply(image)
        request = fetch_request(topic, replica=ReplicaState(replica_id=OTHER, replica_epoch=20))
        request.session_epoch, request.max_wait_ms = 0, 0
        request.session_id = (await node.fetch(request)).session_id
        request.session_epoch, request.max_wait_ms = 1, 60_000
        waiting = asyncio.ensure_future(node.fetch(request))
        await asyncio.sleep(0)
        assert (len(node.replicas.follower_fetches), waiting.done()) == (1, False)
        restarted = replace(BROKERS[OTHER], epoch=21)
        await node.apply(replace(image, revision=image.revision + 1, brokers={**BROKERS, OTHER: restarted}))
        assert len(node.replicas.follower_fetches) == 0
        async with asyncio.timeout(20):
            await waiting

    run(scenario)


def test_a_high_watermark_is_told_with_the_next_records_or_after_a_moment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = ReplicaState(replica_id=OTHER, replica_epoch=20)

    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(NODE, (NODE, OTHER)))
        await node.apply(image_of(topic))

        async def fetch(offset: int, session_id: int, session_epoch: int) -> FetchResponse:
            request = fetch_request(topic, offset, replica=follower)
            request.session_id, request.session_epoch, request.max_wait_ms = session_id, session_epoch, 60_000
            return await node.fetch(request)

        def produce() -> asyncio.Future[object]:
            return asyncio.ensure_future(node.produce("t", timeout_ms=60_000))

        waiting = [produce()]
        await asyncio.sleep(0)
        session_id = (await fetch(0, 0, 0)).session_id
        # Nobody is told the high watermark that this fetch moves, as nobody waits for it; new records bring it along.
        monkeypatch.setattr(follower_fetches, "NEWS_DELAY_S", 3600.0)
        parked = asyncio.ensure_future(fetch(1, session_id, 1))
        await waiting[0]
        assert node.replicas.find("t", 0).log.high_watermark == 1
        assert not parked.done()
        waiting.append(produce())
        (data,) = (await parked).responses[0].partitions
        assert (data.high_watermark, bool(data.records)) == (1, True)
        # Without new records it is told after a moment.
        monkeypatch.setattr(follower_fetches, "NEWS_DELAY_S", 0.001)
        (data,) = (await fetch(2, session_id, 2)).responses[0].partitions
        assert (data.high_watermark, bool(data.records)) == (2, False)
        await asyncio.gather(*waiting)

    run(scenario)


def test_a_high_watermark_is_not_forgotten_when_records_must_come_from_disk(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = ReplicaState(replica_id=OTHER, replica_epoch=20)

    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(NODE, (NODE, OTHER)), state(NODE, (NODE, OTHER)))
        await node.apply(image_of(topic))
        waiting = [asyncio.ensure_future(node.produce("t", index, timeout_ms=60_000)) for index in (0, 1)]
        await asyncio.sleep(0)
        request = fetch_request(topic, replica=follower)
        request.session_epoch = 0
        session = node.replicas.follower_fetches._sessions[(await node.fetch(request)).session_id]
        first_key, key = (follower_key(topic.topic_id, index) for index in (0, 1))
        session.fetches[key] = other = FollowerFetch("", topic.topic_id, 1, 0, 1 << 20, 4, -1, 0)
        fetch = session.fetches[first_key]
        node.replicas.follower_fetches.name(session, replace(fetch, fetch_offset=1, is_sent=False))
        session.mark(key, is_urgent=True)

        def read(partition: Partition, *_: object, **__: object) -> PartitionRead:
            if partition.partition == other.partition:
                raise NotInMemoryError
            return partition.describe()

        monkeypatch.setattr(Partition, "read", read)
        with pytest.raises(NotInMemoryError):
            run_through(node.replicas.follower_fetches.collect(session, 1 << 20))
        assert session.due == {first_key: False, key: True}
        for each in waiting:
            each.cancel()

    run(scenario)


def test_a_large_fetch_that_nobody_wants_any_more_leaves_no_wait_behind(run: Run) -> None:
    async def scenario(node: Node) -> None:
        read = LargeRead(FetchParams(max_wait_ms=60_000, min_bytes=1, max_bytes=100), ())
        wait = run_through(node.replicas.delay_in_steps(read))
        # Its connection is gone: a coroutine that is never awaited would warn here.
        del wait
        gc.collect()

    run(scenario)


def test_a_produce_that_waits_too_long_is_told(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_of(topic_of("t", state(NODE, (NODE, OTHER)))))
        answer = await node.produced("t")
        assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert node.replicas.find("t", 0).log.log_end_offset == 1
        assert node.replicas.waiting(node.replicas.find("t", 0)) == 0

    run(scenario)


def test_a_lost_leadership_ends_waits(run: Run) -> None:
    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(NODE, (NODE, OTHER)))
        await node.apply(image_of(topic))
        produce = asyncio.ensure_future(node.produce("t", timeout_ms=60_000))
        long_poll = fetch_request(topic)
        long_poll.max_wait_ms = 60_000
        # Without an epoch, and since version 11, the follower that this broker becomes would serve it, too (KIP-392).
        long_poll.topics[0].partitions[0].current_leader_epoch = node.replicas.find("t", 0).leader_epoch
        fetch = asyncio.ensure_future(node.fetch(long_poll))
        for _ in range(3):
            await asyncio.sleep(0)
        assert node.replicas.waiting(node.replicas.find("t", 0)) == 2
        moved = replace(topic, partitions=(state(OTHER, (NODE, OTHER), leader_epoch=5, partition_epoch=5),))
        await node.apply(image_of(moved))
        response = await produce
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert response.responses[0].partition_responses[0].current_leader.leader_id == OTHER
        refused = (await fetch).responses[0].partitions[0]
        assert refused.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert refused.current_leader.leader_id == OTHER

    run(scenario)


def test_a_replica_whose_files_are_gone_is_copied_once_others_lead(run: Run) -> None:
    """It is not made anew while it may have been the last one: its offsets would be given out twice."""

    async def scenario(node: Node) -> None:
        alone = topic_of("t", state(NO_LEADER, (NODE, OTHER), isr=(), partition_epoch=1))
        node.logs.withhold("t", 0, "its disk is missing")
        await node.apply(image_of(alone))
        with fails(ErrorCode.KAFKA_STORAGE_ERROR):
            node.replicas.find("t", 0)
        followed = replace(alone, partitions=(state(OTHER, (NODE, OTHER), isr=(OTHER,), partition_epoch=2),))
        await node.apply(image_of(followed))
        assert node.replicas.find("t", 0).is_follower

    run(scenario)


def test_a_topic_made_anew_has_a_log_of_its_own(run: Run) -> None:
    """13: in one image, and when the old one's files are found at a start."""

    async def scenario(node: Node) -> None:
        old, new = topic_of("t", state()), topic_of("t", state())
        await node.apply(image_of(old))
        await node.produced("t")
        await node.apply(image_of(new))
        assert node.replicas.find("t", 0).topic_id == new.topic_id
        assert node.replicas.find("t", 0).log.log_end_offset == 0
        with fails(ErrorCode.UNKNOWN_TOPIC_ID):
            node.replicas.find_by_id(old.topic_id, 0)
        await node.produced("t")
        newest = topic_of("t", state())
        node.replicas._by_id.clear()
        node.replicas._by_name.clear()
        node.replicas.apply(EMPTY_IMAGE, image_of(newest))
        await node.replicas.settled()
        assert node.replicas.find("t", 0).log.log_end_offset == 0

    run(scenario)


def test_settings_reach_the_logs_they_concern(run: Run) -> None:
    async def scenario(node: Node) -> None:
        one, two = topic_of("one", state(NODE, (NODE, OTHER))), topic_of("two", state())
        await node.apply(image_of(one, two, configs={"one": {"min.insync.replicas": "2"}}))
        logs = [node.replicas.find(name, 0).log for name in ("one", "two")]
        assert [log.config.min_insync_replicas for log in logs] == [2, 1]
        config = logs[1].config
        await node.apply(image_of(one, two, configs={"one": {"max.message.bytes": "100"}}))
        assert [log.config.min_insync_replicas for log in logs] == [1, 1]
        assert logs[0].config.max_message_bytes == 100
        assert logs[1].config is config

    run(scenario)


def test_another_min_insync_replicas_lets_the_high_watermark_go_on(run: Run) -> None:
    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(NODE, (NODE, OTHER), isr=(NODE,)))
        await node.apply(image_of(topic, configs={"t": {"min.insync.replicas": "2"}}))
        await node.produced("t", acks=1)
        log = node.replicas.find("t", 0).log
        assert log.high_watermark == 0
        await node.apply(image_of(topic))
        assert log.high_watermark == 1

    run(scenario)


def test_a_flush_that_fails_takes_the_directory_offline(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """63: nobody is acknowledged, everybody is told KAFKA_STORAGE_ERROR from then on."""

    def fail(log: PartitionLog, up_to: int | None = None) -> None:
        log.health.take_offline("fsync failed")
        raise LogStorageError("fsync failed")

    monkeypatch.setattr(PartitionLog, "flush", fail)

    async def scenario(node: Node) -> None:
        flushed, other = topic_of("flushed", state()), topic_of("other", state())
        await node.apply(image_of(flushed, other, configs={"flushed": {"flush.messages": "1"}}))
        assert (await node.produced("other")).error_code == 0
        response = await node.produce("flushed", timeout_ms=60_000)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await node.produced("other")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        fetched = await node.fetch(fetch_request(other))
        assert fetched.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        described = run_through(
            handle_describe_log_dirs(
                DescribeLogDirsRequest(topics=None),
                RequestContext(api=DESCRIBE_LOG_DIRS, version=4, services=node.services),
            )
        )
        assert [result.error_code for result in described.results] == [ErrorCode.KAFKA_STORAGE_ERROR]
        await node.apply(image_of(flushed, other, late := topic_of("late", state()), base=node.replicas.image))
        with fails(ErrorCode.KAFKA_STORAGE_ERROR):
            node.replicas.find_by_id(late.topic_id, 0)

    run(scenario)
    assert "goes offline" in caplog.text


def test_an_append_that_was_undone_is_told_and_may_be_tried_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """63: a full disk refuses records, it does not end the partition."""

    async def scenario(node: Node) -> None:
        await node.apply(image_of(topic_of("t", state())))

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
        await node.apply(image_of(topic_of("t", state()), configs={"t": {"flush.messages": "1"}}))
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
        await node.apply(image_of(topic))
        for index in (0, 1):
            await node.produced("t", index)
        size = len(node.batch())

        def sizes(max_bytes: int) -> list[int]:
            fetches = [PartitionFetch("t", ZERO_UUID, index, 0, 1 << 20) for index in (1, 0)]
            return [read.size_bytes for read in node.replicas.read(FetchParams(max_bytes=max_bytes), fetches)]

        assert sizes(0) == [size, 0]
        assert sizes(size) == [size, 0]
        assert sizes(2 * size) == [size, size]

    run(scenario)
