"""Records to topics that aren't known yet: they wait in order, within bounds, and are told what became of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from tidelog.client.errors import BrokerError, ClientError, ClosedError, ConnectError, RecordTooLargeError
from tidelog.client.producer.accumulator import Accumulator, NoRoom, TopicQueues
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.interceptors import ProducerRecord
from tidelog.client.producer.settings import ProducerSettings
from tidelog.client.producer.unplaced import UnplacedRecord, UnplacedRecords
from tidelog.client.types import RecordMetadata
from tidelog.protocol import ErrorCode
from tidelog.records.kernel import decode_objects

DEADLINE_S = 30.0


class Scene:
    """Unplaced records over a real accumulator; `topic_is_there` says when the topic is known."""

    def __init__(self, *, max_block_s: float = DEADLINE_S, buffer_memory: int = 100_000, partitions: int = 1) -> None:
        settings = ProducerSettings.read(None, {"batch_size": 1000, "buffer_memory": buffer_memory})
        self.accumulator = Accumulator(settings, lambda: 0.0, lambda: None, lambda _: [0])
        self.partitions = partitions
        self.topic_is_there = asyncio.Event()
        self.refusal: ClientError | None = None
        self.unplaced = UnplacedRecords(
            self.accumulator,
            max_block_s=max_block_s,
            pause_s_max=0.0,
            load_queues=self._load,
            append=self._append,
            no_room_error=lambda size: ClientError(f"no room for {size}"),
            note_failed=lambda topic, records, error: self.failed.append((topic, records, error)),
        )
        self.failed: list[tuple[str, int, ClientError]] = []

    async def _load(self, name: str, deadline_s: float) -> TopicQueues:
        if self.refusal is not None:
            raise self.refusal
        try:
            async with asyncio.timeout(max(deadline_s - time.monotonic(), 0.0)):
                await self.topic_is_there.wait()
        except TimeoutError:
            raise ConnectError("nobody is there") from None
        return self.accumulator.topic(name) or self.accumulator.set_partitions(name, self.partitions)

    def _append(self, topic: TopicQueues, unplaced: UnplacedRecord) -> None:
        record, future = unplaced.record, unplaced.future
        partition = record.partition or 0
        self.accumulator.append(
            topic, partition, None, record.value, None, 0, unplaced.on_delivery, future, unplaced.kept_bytes
        )

    def keep(
        self, value: bytes, callback: Callable[..., object] | None = None, partition: int | None = None
    ) -> DeliveryFuture:
        future = self.unplaced.keep(ProducerRecord("t", value, None, None, partition, 1), callback)
        assert future is not None
        return future

    def values(self, partition: int = 0) -> list[bytes | None]:
        topic = self.accumulator.topic("t")
        assert topic is not None
        return [value for batch in topic.queue(partition).batches for value in _values(batch)]

    def deliver(self, partition: int = 0) -> list[bytes | None]:
        topic = self.accumulator.topic("t")
        assert topic is not None
        batch = self.accumulator.take(topic.queue(partition), 0.0)
        values = _values(batch)
        self.accumulator.answered(batch)
        batch.deliver(100)
        self.accumulator.release(batch)
        return values


def _values(batch: ProducerBatch) -> list[bytes | None]:
    assert batch.buffer is not None
    records = bytes(batch.buffer[61 : batch.size])
    return [row.value for row in decode_objects(records, batch.count, 0, batch.base_timestamp, 0, False)]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main()

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what it waits for tells nobody
        await asyncio.sleep(0.001)


def test_nothing_overtakes_records_that_wait_for_their_topic() -> None:
    async def main() -> None:
        scene = Scene()
        scene.unplaced.start()
        scene.keep(b"0")
        scene.keep(b"1")
        # Metadata of the topic comes by another way, and records are sent before those above have their places.
        scene.accumulator.set_partitions("t", 1)
        assert scene.accumulator.appender.find_topic("t") is None
        assert scene.accumulator.appender.append("t", b"fast", None, None, None, None) == 0
        scene.keep(b"2")
        scene.topic_is_there.set()
        await until(lambda: not scene.unplaced.has_topic("t"))
        assert scene.values() == [b"0", b"1", b"2"]
        assert scene.unplaced.keep(ProducerRecord("t", b"3", None, None, None, 1), None) is None
        assert scene.accumulator.appender.append("t", b"3", None, None, None, None) == 1
        assert scene.values() == [b"0", b"1", b"2", b"3"]

    run(main)


def test_futures_callbacks_and_waiting_threads_move_with_the_record() -> None:
    async def main() -> None:
        scene = Scene()
        scene.unplaced.start()
        told: list[RecordMetadata | None] = []
        first = scene.keep(b"0", lambda metadata, error: told.append(metadata))
        second = scene.keep(b"1")
        done: list[DeliveryFuture] = []
        second.add_done_callback(done.append)
        results: list[RecordMetadata] = []
        thread = threading.Thread(target=lambda: results.append(second.result(DEADLINE_S)))
        thread.start()
        waiting = asyncio.ensure_future(_await(first))
        assert not first.done()
        await asyncio.sleep(0)
        scene.topic_is_there.set()
        await until(lambda: not scene.unplaced.has_topic("t"))
        assert not first.done()
        assert not told
        assert not done
        scene.deliver()
        assert (await waiting).offset == 100
        assert [metadata.offset for metadata in told if metadata is not None] == [100]
        assert done == [second]
        thread.join(DEADLINE_S)
        assert [metadata.offset for metadata in results] == [101]
        assert scene.accumulator.pool.lent_bytes == 0

    run(main)


async def _await(future: DeliveryFuture) -> RecordMetadata:
    return await future


def test_a_record_fails_when_its_topic_does_not_come_in_time() -> None:
    async def main() -> None:
        scene = Scene(max_block_s=0.05)
        scene.unplaced.start()
        told: list[ClientError | None] = []
        future = scene.keep(b"0", lambda metadata, error: told.append(error))
        await until(future.done)
        assert isinstance(future.exception(0), ConnectError)
        assert told == [future.exception(0)]
        await until(lambda: not scene.unplaced.has_topic("t"))
        assert scene.accumulator.pool.lent_bytes == 0
        # Later records are none the worse for it.
        scene.topic_is_there.set()
        late = scene.keep(b"1")
        await until(lambda: not scene.unplaced.has_topic("t"))
        assert scene.values() == [b"1"]
        assert not late.done()

    run(main)


def test_a_topic_that_is_refused_fails_all_its_records_at_once() -> None:
    async def main() -> None:
        scene = Scene()
        scene.refusal = BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, subject="topic t")
        futures = [scene.keep(b"0"), scene.keep(b"1")]
        scene.unplaced.start()  # the first records may be sent before it runs
        await until(lambda: all(future.done() for future in futures))
        assert [future.exception(0) for future in futures] == [scene.refusal] * 2

    run(main)


def test_what_waits_counts_against_the_memory() -> None:
    async def main() -> None:
        scene = Scene(buffer_memory=5000)
        scene.unplaced.start()
        futures = [scene.keep(b"x" * 900) for _ in range(4)]
        with pytest.raises(NoRoom) as no_room:
            scene.keep(b"x" * 900)
        # Whoever finds no room waits until this much is free. Less than it needs would have it try again and again.
        assert scene.accumulator.pool.available_bytes < no_room.value.size
        with pytest.raises(RecordTooLargeError):
            scene.keep(b"x" * 2_000_000)
        scene.unplaced.stop(ClosedError("closed"))
        assert [type(future.exception(0)) for future in futures] == [ClosedError] * 4
        assert [(topic, records) for topic, records, _ in scene.failed] == [("t", 4)]
        assert scene.accumulator.pool.lent_bytes == 0

    run(main)


def test_a_record_too_many_for_the_memory_waits_for_it_by_its_own_thread() -> None:
    scene = Scene(buffer_memory=1500)
    assert scene.unplaced.keep(ProducerRecord("t", b"x" * 900, None, None, None, 1), None) is None


def test_what_waits_for_its_topic_gets_room_before_newcomers() -> None:
    """Only when it is placed and sent does memory come free: nobody who wants to add more may stand in its way."""

    async def main() -> None:
        scene = Scene(buffer_memory=5000, partitions=2)
        scene.unplaced.start()
        pool = scene.accumulator.pool
        kept: tuple[list[bytes], list[bytes]] = ([], [])
        needed = 0
        while not needed:
            partition = len(kept[0]) - len(kept[1])  # always another one than before
            value = b"%d-%d" % (partition, len(kept[partition])) + b"x" * 100
            try:
                scene.keep(value, partition=partition)
                kept[partition].append(value)
            except NoRoom as no_room:
                needed = no_room.size
        assert scene.accumulator.wait_for_room(needed, lambda: None) is not None
        scene.topic_is_there.set()
        stored: tuple[list[bytes | None], list[bytes | None]] = ([], [])
        times_short = 0

        def is_short_or_done() -> bool:
            is_short = pool.has_waiters and pool._waiters[0].size == 1000  # a batch for a record that is here
            return is_short or not scene.unplaced.has_topic("t")

        while True:
            await until(is_short_or_done)
            if not scene.unplaced.has_topic("t"):
                break
            times_short += 1
            topic = scene.accumulator.topic("t")
            assert topic is not None
            for partition in range(2):
                while topic.queue(partition).batches:
                    stored[partition].extend(scene.deliver(partition))
            with scene.accumulator.lock:
                pool.wake_waiters()
        assert times_short
        assert [[*stored[partition], *scene.values(partition)] for partition in range(2)] == list(kept)
        assert not scene.failed

    run(main)


def test_a_record_larger_than_a_batch_has_the_room_that_it_kept() -> None:
    async def main() -> None:
        scene = Scene(buffer_memory=10_000)
        scene.unplaced.start()
        futures = [scene.keep(b"x" * 4000) for _ in range(2)]
        scene.topic_is_there.set()
        await until(lambda: not scene.unplaced.has_topic("t"))
        assert scene.values() == [b"x" * 4000] * 2
        assert not any(future.done() for future in futures)
        scene.deliver()
        scene.deliver()
        assert scene.accumulator.pool.lent_bytes == 0

    run(main)


def test_records_that_find_no_room_in_time_are_told() -> None:
    async def main() -> None:
        scene = Scene(max_block_s=0.05, buffer_memory=3000)
        scene.unplaced.start()
        future = scene.keep(b"0")
        lent = scene.accumulator.pool.lend(2500)
        assert lent is not None
        scene.topic_is_there.set()
        await until(future.done)
        assert str(future.exception(0)) == "no room for 1000"
        assert scene.failed == [("t", 1, future.exception(0))]
        assert scene.accumulator.pool.lent_bytes == 2500

    run(main)


def test_records_that_come_while_the_last_is_being_placed_are_not_forgotten() -> None:
    async def main() -> None:
        scene = Scene()
        scene.refusal = BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, subject="topic t")
        scene.unplaced.start()
        refused = scene.keep(b"0")
        release = scene.accumulator.release_topic

        def keep_another() -> None:
            scene.keep(b"1")
            scene.unplaced._start_task("t")  # as the loop would do it that a thread has called at this moment

        def release_and_keep(name: str) -> None:
            release(name)
            scene.accumulator.release_topic = release  # type: ignore[method-assign]
            scene.refusal = None
            scene.topic_is_there.set()
            # It runs when nothing waits any more, and before the loop knows that the task has ended.
            asyncio.get_running_loop().call_soon(keep_another)

        scene.accumulator.release_topic = release_and_keep  # type: ignore[method-assign]
        await until(refused.done)
        await until(lambda: scene.accumulator.topic("t") is not None and not scene.unplaced.has_topic("t"))
        assert scene.values() == [b"1"]

    run(main)


def test_a_defect_fails_what_waits_instead_of_forgetting_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        scene = Scene()

        async def load(name: str, deadline_s: float) -> TopicQueues:
            raise RuntimeError("a defect")

        scene.unplaced._load_queues = load
        scene.unplaced.start()
        futures = [scene.keep(b"0"), scene.keep(b"1")]
        await until(lambda: all(future.done() for future in futures))
        assert str(futures[0].exception(0)) == "the producer failed: RuntimeError: a defect"
        assert "could not place records to topic t" in caplog.text

    run(main)
