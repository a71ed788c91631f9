"""Reading assigned partitions from a broker: everything that a Consumer promises without a group."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from tidelog import AsyncConsumer, Consumer, ConsumerInterceptor, ConsumerRecord, TopicPartition
from tidelog.client.consumer.fetch_answers import Asked
from tidelog.client.consumer.fetcher import Fetcher
from tidelog.client.errors import (
    ClientError,
    ClosedError,
    ConcurrentUseError,
    FatalError,
    ForkedError,
    NoOffsetError,
    NoSuchPartitionError,
    OffsetOutOfRangeError,
    UsageError,
    WakeupError,
)

if TYPE_CHECKING:
    from tidelog.bench.brokers import BrokerProcess

DEADLINE_S = 60.0

MakeTopic = Callable[..., str]
Write = Callable[..., None]
MakeConsumer = Callable[..., Consumer]


@pytest.fixture
def consumer(client_cluster: BrokerProcess) -> MakeConsumer:
    def make(topic: str | None = None, partitions: int = 1, **options: object) -> Consumer:
        chosen = {"auto_offset_reset": "earliest", **options}
        made = Consumer({name.replace("_", "."): value for name, value in chosen.items()} | bootstrap)
        if topic is not None:
            made.assign([TopicPartition(topic, number) for number in range(partitions)])
        return made

    bootstrap = {"bootstrap.servers": client_cluster.bootstrap}
    return make


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """So many records, however many polls it takes."""
    records: list[ConsumerRecord] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(records) < count:
        assert time.monotonic() < deadline_s, f"only {len(records)} of {count} records came"
        records += consumer.poll(0.5)
    assert len(records) == count
    return records


def values(records: list[ConsumerRecord]) -> list[bytes]:
    return [record.value for record in records]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression(consumer: MakeConsumer, make_topic: MakeTopic, write: Write, codec: str) -> None:
    topic = make_topic(codec)
    write(topic, numbers(0, 2_000), headers=[("a", b"1"), ("b", None)], key=b"k", settings={"compression.type": codec})
    with consumer(topic) as reader:
        records = read(reader, 2_000)
        assert values(records) == numbers(0, 2_000)
        assert {(record.key, record.headers) for record in records} == {(b"k", (("a", b"1"), ("b", None)))}
        assert [record.offset for record in records] == list(range(2_000))
        assert all(abs(record.timestamp - time.time() * 1000) < 600_000 for record in records[:5])
        assert reader.current_lag(TopicPartition(topic, 0)) == 0
        reader.seek_to_beginning()
        table = reader.poll_arrow(10)
        assert table is not None
        assert table.column("value").to_pylist() == numbers(0, table.num_rows)
        assert table.column("headers")[0].as_py() == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]


def test_polls_are_bounded_and_positions_follow(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    write(topic, numbers(0, 100))
    with consumer(topic, max_poll_records=30) as reader:
        seen = 0
        while seen < 100:
            records = reader.poll(5)
            assert 0 < len(records) <= 30
            seen += len(records)
            assert reader.position(partition) == seen
        assert reader.poll(0) == []
        assert reader.end_offsets([partition]) == {partition: 100}
        assert reader.beginning_offsets([partition]) == {partition: 0}
        assert reader.metrics().records_consumed_total == 100
        assert reader.metrics().partitions[partition].lag == 0


@pytest.mark.on_three_brokers
def test_many_partitions(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic(partitions=5)
    for partition in range(5):
        write(topic, numbers(0, 50), partition=partition)
    with consumer(topic, 5) as reader:
        records = read(reader, 250)
        for partition in range(5):
            mine = [record for record in records if record.partition == partition]
            assert values(mine) == numbers(0, 50)


@pytest.mark.on_three_brokers
def test_seeking(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    write(topic, numbers(0, 1_000))
    with consumer(topic) as reader:
        reader.seek(partition, 777)
        assert reader.poll(10)[0].value == b"777"
        reader.seek(partition, 3)
        assert reader.position(partition) == 3
        assert reader.poll(10)[0].value == b"3"
        reader.seek_to_end([partition])
        assert reader.position(partition) == 1_000
        assert reader.poll(0) == []
        write(topic, [b"new"])
        assert values(read(reader, 1)) == [b"new"]
        reader.seek_to_beginning()
        assert reader.poll(10)[0].offset == 0
        with pytest.raises(ClientError, match="not assigned"):
            reader.seek(TopicPartition(topic, 7), 0)


def test_resets(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    hour_ms = 3_600_000
    now_ms = int(time.time() * 1000)
    write(topic, [b"old"], timestamp=now_ms - 5 * hour_ms)
    write(topic, [b"young"], timestamp=now_ms - hour_ms)
    with consumer(topic, auto_offset_reset="latest") as reader:
        assert reader.position(partition) == 2
    with consumer(topic, auto_offset_reset="by_duration:PT2H") as reader:
        assert values(read(reader, 1)) == [b"young"]
    with consumer(topic, auto_offset_reset="by_duration:PT1M") as reader:
        assert reader.position(partition) == 2
    with consumer(topic, auto_offset_reset="none") as reader:
        for _ in range(2):
            with pytest.raises(NoOffsetError, match=f"{topic}-0"):
                reader.poll(10)
        reader.seek(partition, 1)
        assert values(read(reader, 1)) == [b"young"]
        reader.seek(partition, 55)
        with pytest.raises(OffsetOutOfRangeError, match="offset 55"):
            reader.poll(10)
        reader.seek(partition, 0)
        assert values(read(reader, 2)) == [b"old", b"young"]
    with consumer(topic, auto_offset_reset="earliest") as reader:
        reader.seek(partition, 55)
        assert values(read(reader, 2)) == [b"old", b"young"]


@pytest.mark.on_three_brokers
def test_times(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic(partitions=2)
    for number in range(3):
        write(topic, [b"x"], timestamp=1_000_000 + number * 1_000)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer() as reader:
        found = reader.offsets_for_times({first: 1_000_500, second: 0})
        assert found[second] is None
        assert found[first] == (1, 1_001_000, ANY)
        assert reader.offsets_for_times({first: 2_000_000}) == {first: None}
        with pytest.raises(ValueError, match="milliseconds"):
            reader.offsets_for_times({first: -1})


@pytest.mark.on_three_brokers
def test_a_poll_waits_for_the_first_record(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    """One long wait at the broker, which ends with the record; no asking again and again meanwhile."""
    topic = make_topic()
    with consumer(
        topic, fetch_max_wait_ms=20_000, value_deserializer=lambda topic, value, headers: int(value)
    ) as reader:
        assert reader.poll(0.1) == []
        fetches = reader.metrics().fetches_total
        writer = threading.Timer(0.3, write, (topic, [b"7"]))
        writer.start()
        began_s = time.monotonic()
        (record,) = reader.poll(60)
        assert time.monotonic() - began_s < 19
        assert record.value == 7
        assert reader.metrics().fetches_total - fetches <= 3
        writer.join()


def test_pausing(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic(partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(topic, numbers(0, 10), partition=0)
    write(topic, numbers(0, 10), partition=1)
    with consumer(topic, 2) as reader:
        reader.pause([first])
        assert {record.partition for record in read(reader, 10)} == {1}
        assert reader.poll(0.2) == []
        assert reader.paused() == {first}
        reader.pause([second])
        reader.resume([first])
        assert {record.partition for record in read(reader, 10)} == {0}


def test_iteration_ends_and_gives_back(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    write(topic, numbers(0, 20))
    with consumer(topic, consumer_timeout_ms=300) as reader:
        assert [record.value for record in reader] == numbers(0, 20)
        reader.seek(partition, 0)
        for record in reader:
            if record.offset == 4:
                break
        assert reader.position(partition) == 5
        assert reader.poll(5)[0].offset == 5
        reader.seek(partition, 0)
        next(iter(reader))
        table = reader.poll_arrow(5)
        assert table is not None
        assert table.column("offset")[0].as_py() == 1


def test_wakeup(consumer: MakeConsumer, make_topic: MakeTopic) -> None:
    with consumer(make_topic()) as reader:
        timer = threading.Timer(0.2, reader.wakeup)
        timer.start()
        with pytest.raises(WakeupError):
            reader.poll(None)
        timer.join()
        assert reader.poll(0) == []
        reader.wakeup()
        with pytest.raises(WakeupError):
            reader.poll(0)


def test_two_threads_at_once_are_refused(consumer: MakeConsumer, make_topic: MakeTopic) -> None:
    with consumer(make_topic()) as reader:
        polling = threading.Thread(target=lambda: reader.poll(2.0))
        polling.start()
        deadline_s = time.monotonic() + DEADLINE_S
        while reader._one_thread._owner != polling.ident:
            assert time.monotonic() < deadline_s
        with pytest.raises(ConcurrentUseError, match="another thread"):
            reader.poll(0)
        with pytest.raises(ConcurrentUseError, match="another thread"):
            reader.close()
        polling.join()
        assert reader.poll(0) == []


def test_use_after_close_is_refused(consumer: MakeConsumer, make_topic: MakeTopic) -> None:
    reader = consumer(make_topic())
    reader.close()
    reader.close()
    with pytest.raises(ClosedError):
        reader.poll(0)


def test_nothing_assigned_is_said(consumer: MakeConsumer) -> None:
    with consumer() as reader:
        with pytest.raises(UsageError, match="subscribe"):
            reader.poll(0)
        with pytest.raises(UsageError, match="group"):
            reader.subscribe(["x"])
        with pytest.raises(UsageError, match="group"):
            reader.commit_sync()
        with pytest.raises(UsageError, match="group"):
            reader.seek_to_committed()


def test_one_partition_will_do_where_several_are_taken(
    client_cluster: BrokerProcess, consumer: MakeConsumer, make_topic: MakeTopic, write: Write
) -> None:
    topic = make_topic()
    write(topic, numbers(0, 3))
    only = TopicPartition(topic, 0)
    with consumer() as reader:
        reader.assign(only)
        reader.pause(only)
        assert reader.paused() == {only}
        reader.resume(only)
        assert reader.beginning_offsets(only) == {only: 0}
        assert reader.end_offsets(only) == {only: 3}
        assert values(read(reader, 3)) == numbers(0, 3)
        reader.seek_to_beginning(only)
        assert reader.position(only) == 0
        calls: list[Callable[[Any], object]] = [reader.assign, reader.pause, reader.seek_to_end, reader.committed]
        for call in calls:
            with pytest.raises(TypeError, match=r"a partition is a topic and a number, as TopicPartition\('x', 0\)"):
                call("x")
        assert reader.assignment() == {only}

    async def run() -> None:
        async with AsyncConsumer(bootstrap_servers=client_cluster.bootstrap) as reader:
            await reader.assign(only)
            reader.pause(only)
            reader.resume(only)
            assert await reader.end_offsets(only) == {only: 3}
            with pytest.raises(TypeError, match="a partition is"):
                reader.pause("x")  # type: ignore[arg-type]  # which is the point

    asyncio.run(run())


def test_positions_are_told_all_at_once(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic(partitions=2)
    write(topic, numbers(0, 3), partition=1)
    with consumer(topic, 2, consumer_timeout_ms=30_000) as reader:
        reader.position(TopicPartition(topic, 0))
        assert next(reader).value == b"0"
        assert {key: value.offset for key, value in reader.positions().items()} == {(topic, 0): 0, (topic, 1): 1}


def test_a_missing_topic(consumer: MakeConsumer, fresh_name: Callable[[str], str]) -> None:
    with consumer(allow_auto_create_topics=False) as reader, pytest.raises(NoSuchPartitionError, match="no topic"):
        reader.partitions_for(fresh_name("missing"))


def test_topics_are_listed(consumer: MakeConsumer, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    with consumer() as reader:
        assert len(reader.partitions_for(topic)) == 3
        listed = reader.list_topics()
        assert len(listed[topic].partitions) == 3
        assert "__consumer_offsets" not in listed


def test_interceptors(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    class Odd(ConsumerInterceptor):
        closed = False

        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            return [record for record in records if record.offset % 2]

        def close(self) -> None:
            self.closed = True

    class Broken(ConsumerInterceptor):
        def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
            raise ValueError("never mind")

    odd = Odd()
    topic = make_topic()
    write(topic, numbers(0, 6))
    with consumer(topic, interceptor_classes=[odd, Broken()]) as reader:
        assert values(reader.poll(10)) == [b"1", b"3", b"5"]
    assert odd.closed


def test_a_defect_in_the_background_is_told(
    consumer: MakeConsumer, make_topic: MakeTopic, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better a poll that says what happened than one that waits for ever."""
    topic = make_topic()
    write(topic, [b"x"])

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("tidelog.client.consumer.fetcher.read_row", broken)
    with consumer(topic) as reader, pytest.raises(FatalError, match="a defect"):
        read(reader, 1)


def test_an_unexpected_error_while_topics_are_asked_for_is_told(
    consumer: MakeConsumer, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: object, **options: object) -> None:
        raise RuntimeError("a defect")

    with consumer(group_id=fresh_name("group")) as reader:
        with pytest.raises(TypeError, match="a topic must be a string, not 3"):
            reader.subscribe([3])  # type: ignore[list-item]  # which is the point
        assert reader.subscription() == frozenset()
        monkeypatch.setattr("tidelog.client.consumer.core.Cluster.refresh", broken)
        reader.subscribe(["topic"])
        with pytest.raises(FatalError, match="a defect"):
            reader.poll(DEADLINE_S)


def test_a_fork_leaves_the_consumer_to_the_parent(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic()
    write(topic, [b"x"])
    with consumer(topic) as reader:
        read(reader, 1)
        child = os.fork()
        if child == 0:
            try:
                reader.poll(0)
            except ForkedError:
                reader.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        write(topic, [b"y"])
        assert values(read(reader, 1)) == [b"y"]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_after_close(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic()
    write(topic, numbers(0, 10))
    with consumer(topic) as reader:  # whatever is made once is made now
        read(reader, 10)
    threads, files = set(threading.enumerate()), open_files()
    for _ in range(3):
        with consumer(topic, group_id="left-nothing", enable_auto_commit=False) as reader:
            read(reader, 10)
            assert set(threading.enumerate()) > threads
    assert set(threading.enumerate()) == threads
    assert open_files() == files


def test_a_slow_reader_bounds_memory(consumer: MakeConsumer, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic(partitions=2)
    for partition in range(2):
        write(topic, [bytes(10_000)] * 1_000, partition=partition)
    bound = 2_000_000
    with consumer(topic, 2, queued_max_bytes=bound, max_partition_fetch_bytes=500_000) as reader:
        assert len(reader.poll(10)) > 0
        deadline_s = time.monotonic() + 10
        while time.monotonic() < deadline_s and reader._core.queue.bytes < bound * 0.6:
            time.sleep(0.01)
        highest = 0
        seen = 0
        deadline_s = time.monotonic() + DEADLINE_S
        while seen < 1_500:
            assert time.monotonic() < deadline_s
            # A batch of librdkafka is up to 1 MB, and one batch per broker may go beyond the bound.
            highest = max(highest, reader._core.queue.bytes)
            seen += len(reader.poll(1))
        assert highest > bound * 0.5, "nothing was fetched ahead"
        assert highest <= bound + 1_000_000


@pytest.mark.parametrize("options", [{}, {"max_partition_fetch_bytes": 1_000_000}, {"fetch_growth_max_bytes": 0}])
def test_fetches_grow_while_a_consumer_catches_up(
    consumer: MakeConsumer,
    make_topic: MakeTopic,
    write: Write,
    options: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic()
    write(topic, [bytes(10_000)] * 1_500)
    sizes: list[int] = []
    choose_size = Fetcher._choose_size

    def note_size(self: Fetcher, asked: Asked, received: int) -> None:
        sizes.append(asked.wanted.max_bytes)
        choose_size(self, asked, received)

    monkeypatch.setattr(Fetcher, "_choose_size", note_size)
    with consumer(topic, 1, **options) as reader:
        seen = 0
        deadline_s = time.monotonic() + DEADLINE_S
        while seen < 1_500:
            assert time.monotonic() < deadline_s
            seen += len(reader.poll(1))
        for number in range(2):
            write(topic, [b"one more"])
            while seen < 1_501 + number:
                assert time.monotonic() < deadline_s
                seen += len(reader.poll(1))
    mib = 1024 * 1024
    if options:
        assert max(sizes) <= mib
    else:
        assert sizes[:3] == [mib, 2 * mib, 4 * mib]
        assert max(sizes) == 4 * mib
        assert len(sizes) < 10
        assert sizes[-1] == mib, "it has caught up, so its fetches are of the usual size again"


def test_async_consumer(client_cluster: BrokerProcess, make_topic: MakeTopic, write: Write) -> None:
    topic = make_topic(partitions=2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(topic, numbers(0, 700), partition=0)
    write(topic, numbers(0, 10), partition=1)

    async def run() -> None:
        async with AsyncConsumer(
            bootstrap_servers=client_cluster.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=500
        ) as reader:
            await reader.assign([first, second])
            seen = [record async for record in reader]
            assert len(seen) == 710
            assert values([record for record in seen if record.partition == 0]) == numbers(0, 700)
            assert await reader.position(first) == 700
            assert await reader.end_offsets([first]) == {first: 700}
            reader.seek_to_beginning([first])
            table = await reader.poll_arrow(10, max_rows=50)
            assert table is not None
            assert table.num_rows == 50
            assert await reader.position(first) == 50
            reader.seek_to_end([first])
            polling = asyncio.create_task(reader.poll(20))
            await asyncio.sleep(0)  # the task starts
            with pytest.raises(ConcurrentUseError):
                await reader.poll(0)
            reader.wakeup()
            with pytest.raises(WakeupError):
                await polling
        with pytest.raises(ClosedError):
            await reader.poll(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
