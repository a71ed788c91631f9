"""How partitions come into being and go while the event loop goes on, and what clients are told meanwhile."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.controller.image import EMPTY_IMAGE, ClusterImage, PartitionState, TopicImage
from tidelog.log import LogManager, PartitionLog
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import ConfigResource, ResourceType
from tidelog.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic

if TYPE_CHECKING:
    from tests.unit.broker.data.conftest import Node

    Run = Callable[[Callable[[Node], Coroutine[Any, Any, None]]], None]

NODE, OTHER = 1, 2


def state(leader: int = NODE, replicas: tuple[int, ...] = (NODE,), **changes: Any) -> PartitionState:
    return replace(PartitionState(replicas, replicas, leader, leader_epoch=4, partition_epoch=4), **changes)


def image_of(*topics: TopicImage, configs: dict[str, dict[str, str]] | None = None) -> ClusterImage:
    return replace(
        EMPTY_IMAGE,
        topics={topic.name: topic for topic in topics},
        topics_by_id={topic.topic_id: topic for topic in topics},
        configs={ConfigResource(ResourceType.TOPIC, name): values for name, values in (configs or {}).items()},
    )


def topic_of(name: str, *states: PartitionState) -> TopicImage:
    return TopicImage(name, uuid.uuid4(), states)


def fetch_request(topic: TopicImage, *, max_wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=[wanted])]
    return FetchRequest(min_bytes=1, max_wait_ms=max_wait_ms, topics=topics)


def fails(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, no log is opened."""
    may_go_on = threading.Event()
    get_or_create = LogManager.get_or_create

    def wait(logs: LogManager, *partition: Any, leader_epoch: int) -> PartitionLog:
        assert may_go_on.wait(30)
        return get_or_create(logs, *partition, leader_epoch=leader_epoch)

    monkeypatch.setattr(LogManager, "get_or_create", wait)
    yield may_go_on
    may_go_on.set()


def test_a_partition_is_served_once_it_is_open(run: Run, held_back: threading.Event) -> None:
    """Until then clients are to ask again, and are not sent in circles (KIP-951)."""

    async def scenario(node: Node) -> None:
        topic = topic_of("t", state())
        node.replicas.apply(EMPTY_IMAGE, image_of(topic))
        response = await node.produce("t")
        (answer,) = response.responses[0].partition_responses
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (answer.current_leader.leader_id, response.node_endpoints) == (-1, [])
        for version in (12, 16):
            fetched = await node.fetch(fetch_request(topic), version)
            (data,) = fetched.responses[0].partitions
            assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (data.current_leader.leader_id, fetched.node_endpoints) == (-1, [])
        with fails(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            node.replicas.find_by_id(topic.topic_id, 0)
        assert list(node.replicas.opening(topic.topic_id)) == [0]
        held_back.set()
        assert not await node.replicas.wait_until_opened([topic.topic_id])
        assert (await node.produced("t")).error_code == 0
        assert not node.replicas.opening(topic.topic_id)

    run(scenario)


def test_a_partition_comes_up_as_it_was_last_decided(run: Run, held_back: threading.Event) -> None:
    async def scenario(node: Node) -> None:
        topic = topic_of("t", state(), state())
        node.replicas.apply(EMPTY_IMAGE, image_of(topic))
        elected = replace(topic, partitions=(state(leader_epoch=5, partition_epoch=5), state(OTHER, (NODE, OTHER))))
        newest = image_of(elected, configs={"t": {"max.message.bytes": "100"}})
        node.replicas.apply(node.replicas.image, newest)
        held_back.set()
        await node.replicas.settled()
        partition = node.replicas.find("t", 0)
        assert (partition.leader_epoch, partition.log.config.max_message_bytes) == (5, 100)
        with fails(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            node.replicas.find_leader("t", 1)

    run(scenario)


def test_a_deleted_topic_is_gone_at_once(run: Run, held_back: threading.Event) -> None:
    """Its files are not waited for; those who wait for records are told."""

    async def scenario(node: Node) -> None:
        held_back.set()
        topic, slow = topic_of("t", state()), topic_of("slow", state())
        await node.apply(image_of(topic))
        held_back.clear()
        # Whatever the thread is busy with.
        node.replicas.apply(node.replicas.image, image_of(topic, slow))
        fetch = asyncio.ensure_future(node.fetch(fetch_request(topic, max_wait_ms=60_000)))
        await asyncio.sleep(0)
        assert node.replicas.waiting(node.replicas.find("t", 0)) == 1
        node.replicas.apply(node.replicas.image, image_of(slow))
        assert (await node.produced("t")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await fetch).responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        again = topic_of("t", state())
        node.replicas.apply(node.replicas.image, image_of(slow, again))
        held_back.set()
        await node.replicas.settled()
        assert (await node.produced("t")).base_offset == 0
        assert node.replicas.find("t", 0).topic_id == again.topic_id

    run(scenario)


def test_one_of_many_partitions_that_can_not_be_made(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """63: it is offline, the others serve, and it is tried again when the topic changes."""
    in_the_way = tmp_path / "t-70"
    in_the_way.touch()

    async def scenario(node: Node) -> None:
        topic = topic_of("t", *(state() for _ in range(100)))
        await node.apply(image_of(topic))
        errors = {index: (await node.produced("t", index)).error_code for index in range(100)}
        assert errors == {index: 0 if index != 70 else ErrorCode.KAFKA_STORAGE_ERROR for index in range(100)}
        in_the_way.unlink()
        grown = replace(topic, partitions=(*topic.partitions, state()))
        await node.apply(image_of(grown))
        assert (await node.produced("t", 70)).error_code == 0

    run(scenario)
    assert "partition t-70 is offline: " in caplog.text
