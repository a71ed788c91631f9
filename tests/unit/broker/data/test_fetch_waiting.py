"""When a fetch with `min_bytes` is answered at once and when it waits, over real logs with several segments."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.controller.image import EMPTY_IMAGE, BrokerInfo, ClusterImage, PartitionState, TopicImage
from tidelog.log.file_slice import FileSlice
from tidelog.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

if TYPE_CHECKING:
    from tests.unit.broker.data.conftest import Node

    Run = Callable[[Callable[[Node], Coroutine[Any, Any, None]]], None]

NODE, FOLLOWER = 1, 2
FOR_EVER_MS = 600_000
MUCH_BYTES = 1 << 20


def image_of(partitions: int, replicas: tuple[int, ...] = (NODE,)) -> ClusterImage:
    state = PartitionState(replicas, replicas, NODE, leader_epoch=0, partition_epoch=0)
    topic = TopicImage("t", uuid.uuid4(), (state,) * partitions)
    return ClusterImage(
        revision=EMPTY_IMAGE.revision + 1,
        brokers={NODE: BrokerInfo(NODE, 1, (Endpoint(PLAINTEXT, "localhost", 9092),))},
        topics={"t": topic},
        topics_by_id={topic.topic_id: topic},
    )


def fetch_from(
    *offsets: int,
    min_bytes: int = MUCH_BYTES,
    partition_max_bytes: int = MUCH_BYTES,
) -> FetchRequest:
    """A long poll of one partition for each offset."""
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
        for index, offset in enumerate(offsets)
    ]
    return FetchRequest(
        max_wait_ms=FOR_EVER_MS,
        min_bytes=min_bytes,
        topics=[FetchTopic(topic="t", partitions=partitions)],
    )


async def start(node: Node, request: FetchRequest) -> asyncio.Task[FetchResponse]:
    """Start a fetch and let it come to its answer or to its wait."""
    partition = node.replicas.find("t", 0)
    others = node.replicas.waiting(partition)
    fetch = asyncio.ensure_future(node.fetch(request, version=12))
    while not fetch.done() and node.replicas.waiting(partition) == others:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)
    return fetch


async def cancel(fetch: asyncio.Task[FetchResponse]) -> None:
    fetch.cancel()
    await asyncio.wait([fetch])


def size_of(response: FetchResponse, index: int = 0) -> int:
    records = response.responses[0].partitions[index].records
    assert isinstance(records, FileSlice)
    return records.size_bytes


async def append(node: Node, index: int = 0, *, rolls: bool = False) -> int:
    """Append one batch, in a new segment if asked; its size."""
    if rolls:
        node.replicas.find("t", index).log.roll()
    assert (await node.produced("t", index, acks=1)).error_code == 0
    return len(node.batch())


def test_a_reader_of_an_older_segment_does_not_wait(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_of(1))
        size_bytes = await append(node)
        for _ in range(4):
            await append(node, rolls=True)
        for offset in range(4):
            answered = await start(node, fetch_from(offset))
            assert answered.done()
            assert size_of(answered.result()) == size_bytes
        last = await start(node, fetch_from(4))
        assert not last.done()
        await cancel(last)

    run(scenario)


def test_a_limit_below_min_bytes_in_an_older_segment_does_not_wait_either(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_of(2))
        size_bytes = await append(node)
        await append(node)
        await append(node, rolls=True)
        # The second partition is idle and has room, so that only the older segment of the first ends the wait.
        first = await start(node, fetch_from(0, 0, partition_max_bytes=size_bytes))
        assert first.done()
        assert size_of(first.result()) == size_bytes

    run(scenario)


def test_a_segment_rolled_by_time_ends_the_wait_with_the_next_append(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_of(1))
        size_bytes = await append(node)
        waiting = await start(node, fetch_from(0))
        assert not waiting.done()
        await append(node, rolls=True)
        assert size_of(await asyncio.wait_for(waiting, 30)) == size_bytes
        node.replicas.find("t", 0).log.roll()
        answered = await start(node, fetch_from(1))
        assert answered.done()
        assert size_of(answered.result()) == size_bytes

    run(scenario)


def test_nothing_to_read_waits_however_many_segments_there_are(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_of(1))
        await append(node)
        node.replicas.find("t", 0).log.roll()
        for request in (fetch_from(1), fetch_from(1, partition_max_bytes=0), fetch_from(1, partition_max_bytes=-1)):
            waiting = await start(node, request)
            assert not waiting.done()
            await cancel(waiting)

    run(scenario)


def test_one_partition_in_an_older_segment_ends_the_wait_for_all(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_of(3))
        for index in range(3):
            await append(node, index)
        waiting = await start(node, fetch_from(0, 0, 0))
        assert not waiting.done()
        await append(node, 2, rolls=True)
        await asyncio.wait_for(waiting, 30)
        size_bytes = len(node.batch())
        assert [size_of(waiting.result(), index) for index in range(3)] == [size_bytes] * 3

    run(scenario)


def test_a_reader_below_the_high_watermark_goes_by_it_and_not_by_the_end_of_the_log(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_of(1, (NODE, FOLLOWER)))
        partition = node.replicas.find("t", 0)
        size_bytes = await append(node)
        await append(node)
        await append(node, rolls=True)
        partition.update_follower(FOLLOWER, 1, 0, 1)
        # Only the first batch is committed; the second would be added to what the reader gets.
        consumer = await start(node, fetch_from(0))
        assert not consumer.done()
        partition.update_follower(FOLLOWER, 2, 0, 1)
        node.replicas._purgatory.check(partition)
        # All of the old segment is committed, and the reader's next fetch starts in the new one.
        assert size_of(await asyncio.wait_for(consumer, 30)) == 2 * size_bytes

    run(scenario)


def test_partitions_that_are_all_full_are_not_waited_for(run: Run) -> None:
    """With partition limits that add up to less than min_bytes, a wait could only time out."""

    async def scenario(node: Node) -> None:
        await node.apply(image_of(2))
        size_bytes = await append(node)
        waiting = await start(node, fetch_from(0, 0, partition_max_bytes=size_bytes))
        assert not waiting.done()
        await append(node, 1)
        await asyncio.wait_for(waiting, 30)
        at_once = await start(node, fetch_from(0, 0, partition_max_bytes=size_bytes))
        assert at_once.done()

    run(scenario)
