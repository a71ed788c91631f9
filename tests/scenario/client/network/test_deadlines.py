"""Every call that takes a time-out ends in that time, whatever is wrong with the broker.

The broker is down (connections are refused), hangs (connections are made and nothing is answered), is cut off (packets
to it vanish), or its name takes for ever to look up.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from tidelog import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from tidelog.client.errors import ClientError
from tidelog.client.network import connection

TIMEOUT_S = 0.1
# Time-outs of the client itself are far longer (10 s to connect, 60 s for most calls), so this tells them apart.
LATE_S = 4.0
PARTITION = TopicPartition("topic", 0)


@pytest.fixture(params=["down", "hanging", "cut off", "slow name"])
def bootstrap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "down":
            with socket.create_server(("127.0.0.1", 0)) as once:
                port = once.getsockname()[1]
            yield f"127.0.0.1:{port}"
            return
        if request.param == "slow name":

            async def resolve(address: object) -> list[object]:
                await asyncio.sleep(3600)
                return []

            monkeypatch.setattr(connection, "_resolve", resolve)
            yield "broker.example:9092"
            return
        backlog = 0 if request.param == "cut off" else 100
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=backlog))
        if request.param == "cut off":
            # The kernel drops the packets of further connections once the backlog is full.
            stack.enter_context(socket.create_connection(listener.getsockname()))
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def ends_in_time(call: Callable[[], object]) -> None:
    before_s = time.monotonic()
    with suppress(ClientError):
        call()
    assert time.monotonic() - before_s < LATE_S


async def async_ends_in_time(call: Callable[[], Awaitable[object]]) -> None:
    before_s = time.monotonic()
    with suppress(ClientError):
        await call()
    assert time.monotonic() - before_s < LATE_S


def test_calls_of_a_producer(bootstrap: str) -> None:
    producer = Producer(bootstrap_servers=bootstrap)
    ends_in_time(lambda: producer.send("topic", b"value").result(TIMEOUT_S))
    ends_in_time(lambda: producer.send("topic", b"value", key=b"key", headers={"a": b"b"}).exception(TIMEOUT_S))
    ends_in_time(lambda: producer.flush(TIMEOUT_S))
    ends_in_time(lambda: producer.close(TIMEOUT_S))
    ends_in_time(lambda: Producer(bootstrap_servers=bootstrap).close(TIMEOUT_S))


def test_calls_of_a_producer_that_wait_for_max_block_ms(bootstrap: str) -> None:
    producer = Producer(bootstrap_servers=bootstrap, max_block_ms=int(TIMEOUT_S * 1000), transactional_id="id")
    ends_in_time(producer.init_transactions)
    ends_in_time(lambda: producer.partitions_for("topic"))
    ends_in_time(lambda: producer.close(TIMEOUT_S))
    producer = Producer(bootstrap_servers=bootstrap, max_block_ms=int(TIMEOUT_S * 1000))
    ends_in_time(lambda: producer.send_nowait("topic", b"value"))
    ends_in_time(lambda: producer.send("topic", b"value").result())
    ends_in_time(producer.flush)
    ends_in_time(producer.close)


def test_calls_of_a_consumer(bootstrap: str) -> None:
    consumer = Consumer(bootstrap_servers=bootstrap, group_id="group")
    consumer.subscribe(["topic"])
    ends_in_time(lambda: consumer.poll(TIMEOUT_S))
    ends_in_time(lambda: consumer.poll_arrow(TIMEOUT_S))
    ends_in_time(lambda: consumer.commit({PARTITION: 1}, TIMEOUT_S))
    ends_in_time(lambda: consumer.committed([PARTITION], TIMEOUT_S))
    ends_in_time(lambda: consumer.end_offsets([PARTITION], TIMEOUT_S))
    ends_in_time(lambda: consumer.beginning_offsets([PARTITION], TIMEOUT_S))
    ends_in_time(lambda: consumer.offsets_for_times({PARTITION: 0}, TIMEOUT_S))
    ends_in_time(lambda: consumer.partitions_for("topic", TIMEOUT_S))
    ends_in_time(lambda: consumer.list_topics(TIMEOUT_S))
    ends_in_time(lambda: consumer.close(TIMEOUT_S))
    consumer = Consumer(bootstrap_servers=bootstrap)
    consumer.assign([PARTITION])
    ends_in_time(lambda: consumer.poll(TIMEOUT_S))
    ends_in_time(lambda: consumer.position(PARTITION, TIMEOUT_S))
    ends_in_time(lambda: consumer.close(TIMEOUT_S))


def test_calls_of_an_admin(bootstrap: str) -> None:
    admin = Admin(bootstrap_servers=bootstrap, default_api_timeout_ms=int(TIMEOUT_S * 1000), request_timeout_ms=100)
    ends_in_time(admin.list_topics)
    ends_in_time(admin.describe_cluster)
    ends_in_time(lambda: admin.describe_consumer_groups(["group"]))
    ends_in_time(lambda: admin.delete_topics(["topic"]))
    ends_in_time(admin.list_groups)
    ends_in_time(admin.close)


def test_calls_of_the_asynchronous_clients(bootstrap: str) -> None:
    asyncio.run(_call_asynchronous_clients(bootstrap))


async def _call_asynchronous_clients(bootstrap: str) -> None:
    async def within(awaitable: Awaitable[object]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await awaitable

    producer = AsyncProducer(bootstrap_servers=bootstrap)
    await async_ends_in_time(lambda: within(producer.send("topic", b"value")))
    await async_ends_in_time(lambda: within(producer.send_and_wait("topic", b"value")))
    await async_ends_in_time(lambda: producer.flush(TIMEOUT_S))
    await async_ends_in_time(lambda: producer.close(TIMEOUT_S))
    consumer = AsyncConsumer(bootstrap_servers=bootstrap, group_id="group")
    consumer.subscribe(["topic"])
    await async_ends_in_time(lambda: consumer.poll(TIMEOUT_S))
    await async_ends_in_time(lambda: consumer.commit({PARTITION: 1}, TIMEOUT_S))
    await async_ends_in_time(lambda: consumer.end_offsets([PARTITION], TIMEOUT_S))
    await async_ends_in_time(lambda: consumer.close(TIMEOUT_S))
    admin = AsyncAdmin(bootstrap_servers=bootstrap, default_api_timeout_ms=int(TIMEOUT_S * 1000))
    await async_ends_in_time(admin.list_topics)
    await async_ends_in_time(admin.close)
