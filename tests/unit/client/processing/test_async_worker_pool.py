"""A worker pool of coroutines over a consumer without a cluster."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tidelog import AsyncConsumer, AsyncKeyedWorkerPool, Consumer, KeyedWorkerPool
from tidelog.client.consumer.rebalance import RebalanceListener
from tidelog.client.errors import ConfigError
from tidelog.client.processing.errors import ProcessingFailedError

WAIT_S = 20
OPTIONS: Any = {"topics": ["orders"], "poll_timeout_s": 0.01}


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, WAIT_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for is another object's state
        await asyncio.sleep(0.001)


def test_everything_is_handled_in_order_and_committed(group_of: Any, fake_async_consumer: Any) -> None:
    group = group_of([[f"key-{offset % 7}" for offset in range(200)] for _ in range(2)])
    running: set[Any] = set()
    handled: dict[Any, list[int]] = defaultdict(list)
    most = 0

    async def handle(record: Any) -> None:
        nonlocal most
        lane = (record.partition, record.key)
        assert lane not in running
        running.add(lane)
        most = max(most, len(running))
        await asyncio.sleep(0)
        if record.offset % 11 == 0 and record.offset not in failed:
            failed.add(record.offset)
            running.remove(lane)
            raise ValueError("not yet")
        handled[lane].append(record.offset)
        running.remove(lane)

    failed: set[int] = set()

    async def main() -> None:
        consumer = fake_async_consumer(group)
        async with AsyncKeyedWorkerPool(consumer, handle, workers=4, retry_backoff_s=0.001, **OPTIONS) as pool:
            await until(lambda: pool.metrics().done == 400)
        assert pool.metrics().retries == len(failed)

    run(main())
    assert group.committed == group.end()
    assert 1 < most <= 4
    for offsets in handled.values():
        assert offsets == sorted(set(offsets))


def test_a_record_that_can_not_be_handled_stops_the_pool(group_of: Any, fake_async_consumer: Any) -> None:
    handled: list[int] = []

    async def handle(record: Any) -> None:
        if record.offset == 10:
            raise ValueError("no ink")
        handled.append(record.offset)

    group = group_of([["a"] * 30])
    pool: Any = None

    async def main() -> None:
        nonlocal pool
        pool = AsyncKeyedWorkerPool(fake_async_consumer(group), handle, attempts=2, retry_backoff_s=0.001, **OPTIONS)
        with pytest.raises(ProcessingFailedError, match=r"orders-0-10 could not be processed \(2 attempts\).*no ink"):
            await pool.run()
        with pytest.raises(ConfigError, match="runs only once"):
            pool.start()

    run(main())
    assert group.committed == {group.places[0]: 10}
    assert handled == list(range(10))


def test_a_retry_without_backoff_begins_after_the_attempt_before_it(group_of: Any, fake_async_consumer: Any) -> None:
    attempts: list[int] = []

    async def handle(record: Any) -> None:
        attempts.append(record.offset)
        await asyncio.sleep(0)
        if attempts.count(record.offset) < 3:
            raise ValueError("not yet")

    group = group_of([["a"] * 5])
    errors: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        consumer = fake_async_consumer(group)
        async with AsyncKeyedWorkerPool(consumer, handle, workers=4, retry_backoff_s=0, **OPTIONS) as pool:
            await until(lambda: pool.metrics().done == 5)
        gc.collect()

    run(main())
    assert errors == []
    assert attempts == [offset for offset in range(5) for _ in range(3)]
    assert group.committed == group.end()


def test_a_handler_that_cancels_itself_has_failed(group_of: Any, fake_async_consumer: Any) -> None:
    async def handle(record: Any) -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        with pytest.raises(ProcessingFailedError, match="CancelledError"):
            await AsyncKeyedWorkerPool(fake_async_consumer(group_of([["a"]])), handle, **OPTIONS).run()

    run(main())


def test_records_may_be_handed_over_by_a_coroutine(group_of: Any, fake_async_consumer: Any) -> None:
    dead: list[int] = []

    async def handle(record: Any) -> None:
        raise ValueError

    async def hand_over(record: Any, error: Exception) -> None:
        await asyncio.sleep(0)
        dead.append(record.offset)

    group = group_of([["a"] * 3])

    async def main() -> None:
        consumer = fake_async_consumer(group)
        async with AsyncKeyedWorkerPool(consumer, handle, attempts=1, on_failure=hand_over, **OPTIONS) as pool:
            await until(lambda: pool.metrics().dead_lettered == 3)

    run(main())
    assert dead == [0, 1, 2]
    assert group.committed == group.end()


def test_revoked_partitions_are_drained_and_committed_first(group_of: Any, fake_async_consumer: Any) -> None:
    group = group_of([["a"] * 20])
    told: list[str] = []
    calls: list[int] = []

    class Listener(RebalanceListener):
        async def on_partitions_revoked(self, partitions: Any) -> None:
            await asyncio.sleep(0)
            told.append("revoked")
            assert group.committed == {group.places[0]: 6}

    async def main() -> None:
        began, go_on = asyncio.Event(), asyncio.Event()

        async def handle(record: Any) -> None:
            calls.append(record.offset)
            if record.offset == 5:
                began.set()
                await go_on.wait()

        consumer = fake_async_consumer(group)
        async with AsyncKeyedWorkerPool(consumer, handle, listener=Listener(), **OPTIONS) as pool:
            await began.wait()
            group.events.extend([("revoked", group.places), ("assigned", group.places)])
            await until(lambda: len(group.events) == 1)
            go_on.set()
            await until(lambda: pool.metrics().done == 20)

    run(main())
    assert told == ["revoked"]
    assert calls == list(range(20))
    assert group.committed == group.end()


@pytest.mark.parametrize("event", ["revoked", "lost"])
def test_a_handler_that_takes_too_long_is_cancelled(group_of: Any, fake_async_consumer: Any, event: str) -> None:
    """Its record is the next owner's, who does not meet it."""
    group = group_of([["a"] * 3])
    calls: list[int] = []
    cancelled: list[int] = []

    async def main() -> None:
        began = asyncio.Event()

        async def handle(record: Any) -> None:
            calls.append(record.offset)
            if len(calls) == 2:
                began.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(record.offset)

        consumer = fake_async_consumer(group)
        async with AsyncKeyedWorkerPool(
            consumer, handle, drain_timeout_s=0.02, commit_interval_s=100, **OPTIONS
        ) as pool:
            await began.wait()
            group.events.extend([(event, group.places), ("assigned", group.places)])
            await until(lambda: pool.metrics().done == (3 if event == "revoked" else 4))

    run(main())
    assert cancelled == [1]
    # What was done before a loss is not committed, and repeated; before a revocation it is.
    assert calls == ([0, 1, 1, 2] if event == "revoked" else [0, 1, 0, 1, 2])
    assert group.committed == group.end()


def test_reading_pauses_at_the_limit_while_polls_go_on(group_of: Any, fake_async_consumer: Any) -> None:
    group = group_of([["a"] * 200])

    async def main() -> None:
        go_on = asyncio.Event()

        async def handle(record: Any) -> None:
            await go_on.wait()

        consumer = fake_async_consumer(group)
        async with AsyncKeyedWorkerPool(consumer, handle, max_in_flight=20, **OPTIONS) as pool:
            await until(lambda: pool.metrics().in_flight == 20)
            polls = consumer.polls
            await until(lambda: consumer.polls > polls + 3)
            assert pool.metrics().in_flight == 20
            assert pool.metrics().paused == set(group.places)
            go_on.set()
            await until(lambda: pool.metrics().done == 200)

    run(main())
    assert group.committed == group.end()


def test_cancelling_the_run_stops_cleanly(group_of: Any, fake_async_consumer: Any) -> None:
    group = group_of([["a"] * 50])

    async def main() -> None:
        began = asyncio.Event()

        async def handle(record: Any) -> None:
            began.set()
            await asyncio.sleep(0.001)

        pool = AsyncKeyedWorkerPool(fake_async_consumer(group), handle, **OPTIONS)
        task = asyncio.create_task(pool.run())
        await began.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert pool.metrics().running == 0
        assert group.committed == {group.places[0]: pool.metrics().done}

    run(main())


def test_a_handler_may_stop_the_pool(group_of: Any, fake_async_consumer: Any) -> None:
    group = group_of([["a"] * 10])

    async def main() -> None:
        pool: Any = None

        async def handle(record: Any) -> None:
            if record.offset == 4:
                await pool.stop()

        pool = AsyncKeyedWorkerPool(fake_async_consumer(group), handle, **OPTIONS)
        await pool.run()

    run(main())
    assert group.committed[group.places[0]] >= 5


def test_consumers_that_commit_by_themselves_or_not_at_all_are_refused() -> None:
    async def refuse_async() -> None:
        async with AsyncConsumer(group_id="g") as consumer:
            with pytest.raises(ConfigError, match="enable_auto_commit=False"):
                AsyncKeyedWorkerPool(consumer, lambda record: asyncio.sleep(0))

    run(refuse_async())
    with Consumer(group_id="g") as consumer, pytest.raises(ConfigError, match="enable_auto_commit=False"):
        KeyedWorkerPool(consumer, lambda record: None)
    with Consumer() as consumer, pytest.raises(ConfigError, match="set group_id"):
        KeyedWorkerPool(consumer, lambda record: None)
