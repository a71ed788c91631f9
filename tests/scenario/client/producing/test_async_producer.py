"""The producer for asyncio against a broker."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from proxied_cluster import ProxiedCluster
from tidelog import AsyncProducer
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.errors import (
    BufferFullError,
    ClientError,
    ClosedError,
    ConnectError,
    DeliveryTimeoutError,
    RequestTimeoutError,
    SerializationError,
)
from tidelog.client.types import RecordMetadata

DEADLINE_S = 60.0

MakeTopic = Callable[..., str]
ReadTopic = Callable[..., list[Any]]


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await coroutine

    asyncio.run(bounded())


def test_all_ways_to_send(client_cluster: BrokerProcess, make_topic: MakeTopic, read_topic: ReadTopic) -> None:
    topic = make_topic()

    async def main() -> None:
        producer = AsyncProducer({"bootstrap.servers": client_cluster.bootstrap}, linger_ms=20)
        async with producer:
            metadata = await producer.send_and_wait(topic, b"0", key=b"k", timestamp=1_700_000_000_000)
            assert metadata == RecordMetadata(topic, 0, 0, 1_700_000_000_000, 1, 1)
            delivery = await producer.send(topic, b"1", headers=[("h", b"v")])
            assert not delivery.done()
            assert (await delivery).offset == 1
            told: list[RecordMetadata | None] = []
            await producer.send_nowait(topic, b"2", on_delivery=lambda metadata, error: told.append(metadata))
            await producer.send_nowait(topic, b"3")
            await producer.flush(DEADLINE_S)
            assert [metadata.offset for metadata in told if metadata is not None] == [2]
            assert [row.partition for row in await producer.partitions_for(topic)] == [0]
            assert producer.metrics().records_delivered == 4
            assert "open" in repr(producer)
        with pytest.raises(ClosedError):
            await producer.send(topic, b"4")
        with pytest.raises(ClosedError):
            await producer.send_nowait(topic, b"4")
        await producer.close()

    run(main())
    assert [row.value for row in read_topic(topic)] == [b"0", b"1", b"2", b"3"]


def test_many_tasks_send_at_once(client_cluster: BrokerProcess, make_topic: MakeTopic, read_topic: ReadTopic) -> None:
    topic = make_topic(partitions=2)

    async def main() -> None:
        async with AsyncProducer(
            bootstrap_servers=client_cluster.bootstrap, buffer_memory=100_000, batch_size=2000
        ) as producer:

            async def work(name: int) -> None:
                for number in range(2000):
                    await producer.send_nowait(topic, b"%d %d" % (name, number), partition=name % 2)

            await asyncio.gather(*(work(name) for name in range(4)))
            await producer.flush()

    run(main())
    stored: dict[int, list[int]] = {}
    for row in read_topic(topic, 2):
        name, number = row.value.split()
        stored.setdefault(int(name), []).append(int(number))
    assert stored == {name: list(range(2000)) for name in range(4)}


def test_a_loop_of_sends_lets_the_sender_work(client_cluster: BrokerProcess, make_topic: MakeTopic) -> None:
    topic = make_topic()

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=client_cluster.bootstrap) as producer:
            await producer.send_and_wait(topic, b"first")
            for _ in range(100_000):
                await producer.send_nowait(topic, b"x" * 100)
            assert producer.metrics().requests_sent > 2  # although nothing has waited for it

    run(main())


def test_a_full_buffer_holds_senders_back(proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("full")

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=proxied_cluster.bootstrap) as producer:
            await producer.send_and_wait(topic, b"first")  # which makes the topic
        async with AsyncProducer(
            bootstrap_servers=proxied_cluster.bootstrap,
            buffer_memory=100_000,
            max_block_ms=300,
            delivery_timeout_ms=2000,
            request_timeout_ms=1000,
            retry_backoff_ms=20,
        ) as producer:
            await producer.send_and_wait(topic, b"stored")
            proxied_cluster.cut_off()
            lost = await producer.send(topic, b"x" * 60_000)
            with pytest.raises(BufferFullError, match=r"buffer\.memory, 100000"):
                await producer.send(topic, b"x" * 60_000)
            with pytest.raises(RequestTimeoutError, match="1 records were not acknowledged"):
                await producer.flush(0.05)
            with pytest.raises(DeliveryTimeoutError):
                await lost

    run(main())


def test_an_unreachable_broker_ends_a_send_in_time() -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers="127.0.0.1:1", max_block_ms=200) as producer:
            with pytest.raises(ConnectError):
                await producer.send("topic", b"v")
            with pytest.raises(SerializationError):
                await producer.send("topic", "text")

    run(main())


def test_who_gives_up_waiting_does_no_harm(
    client_cluster: BrokerProcess, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic()

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=client_cluster.bootstrap, linger_ms=50) as producer:
            waiting = asyncio.create_task(producer.send_and_wait(topic, b"v"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            first = await producer.send(topic, b"first")
            giving_up = asyncio.ensure_future(_wait(first))
            await asyncio.sleep(0)
            giving_up.cancel()
            assert isinstance((await producer.send_and_wait(topic, b"second")).offset, int)
            assert first.done()

    async def _wait(delivery: Any) -> None:
        await delivery

    run(main())
    assert [row.value for row in read_topic(topic)][-2:] == [b"first", b"second"]


def test_close_fails_what_is_not_delivered_in_time(
    proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("late")

    async def main() -> None:
        producer = AsyncProducer(bootstrap_servers=proxied_cluster.bootstrap)
        await producer.send_and_wait(topic, b"v")
        proxied_cluster.cut_off()
        told: list[ClientError | None] = []
        late = await producer.send(topic, b"late", on_delivery=lambda metadata, error: told.append(error))
        before_s = time.monotonic()
        await producer.close(0.2)
        assert time.monotonic() - before_s < 10
        with pytest.raises(ClosedError, match="closed before the record was acknowledged"):
            await late
        assert len(told) == 1

    run(main())


def test_it_belongs_to_one_loop(client_cluster: BrokerProcess, make_topic: MakeTopic) -> None:
    topic = make_topic()
    producer = AsyncProducer(bootstrap_servers=client_cluster.bootstrap)

    async def use() -> None:
        await producer.send_and_wait(topic, b"v")

    async def use_in_another() -> None:
        with pytest.raises(RuntimeError, match="belongs to the event loop"):
            await producer.send_and_wait(topic, b"v")

    async def main() -> None:
        await use()
        other = asyncio.new_event_loop()
        try:
            await asyncio.get_running_loop().run_in_executor(None, other.run_until_complete, use_in_another())
        finally:
            other.close()
        await producer.close()

    run(main())


def test_one_left_open_is_warned_about_and_an_unused_one_is_not(client_cluster: BrokerProcess) -> None:
    async def main() -> None:
        AsyncProducer(bootstrap_servers=client_cluster.bootstrap)
        producer = AsyncProducer(bootstrap_servers=client_cluster.bootstrap)
        await producer.flush()
        core = producer._core
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del producer
            gc.collect()
        assert [warning.category for warning in caught if "AsyncProducer" in str(warning.message)] == [ResourceWarning]
        await core.close(0)

    run(main())


def test_no_socket_is_left(client_cluster: BrokerProcess, make_topic: MakeTopic) -> None:
    topic = make_topic()

    async def main() -> None:
        files = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            async with AsyncProducer(bootstrap_servers=client_cluster.bootstrap) as producer:
                await producer.send_and_wait(topic, b"v")
        assert len(os.listdir("/proc/self/fd")) <= files
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
