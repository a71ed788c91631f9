"""Arrow tables written as records, without a Python object a record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidelog import AsyncProducer, Producer
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.errors import (
    ClosedError,
    ConfigError,
    NoSuchPartitionError,
    RecordTooLargeError,
    SerializationError,
)
from tidelog.records.arrow import HEADERS_TYPE
from tidelog.records.kernel_build import partition_for_key

DEADLINE_S = 60.0

MakeTopic = Callable[..., str]
ReadTopic = Callable[..., list[Any]]


def test_a_table_becomes_records(client_cluster: BrokerProcess, make_topic: MakeTopic, read_topic: ReadTopic) -> None:
    topic = make_topic()
    table = pa.table(
        {
            "id": pa.array(["a", None, "c"], pa.string()),
            "body": pa.array([b"1", b"2", None], pa.binary()),
            "at": pa.array([1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002], pa.timestamp("ms", tz="UTC")),
            "tags": pa.array([[], [{"key": "h", "value": b"v"}], [{"key": "n", "value": None}]], HEADERS_TYPE),
        }
    )
    with Producer(bootstrap_servers=client_cluster.bootstrap) as producer:
        future = producer.send_arrow(topic, table, key="id", value="body", timestamp="at", headers="tags")
        assert future.result(DEADLINE_S) == [(topic, 0, 0, 3)]
    stored = read_topic(topic)
    assert [(row.key, row.value, row.timestamp, row.headers) for row in stored] == [
        (b"a", b"1", 1_700_000_000_000, ()),
        (None, b"2", 1_700_000_000_001, (("h", b"v"),)),
        (b"c", None, 1_700_000_000_002, (("n", None),)),
    ]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_many_rows_are_cut_into_batches_and_spread(
    client_cluster: BrokerProcess, make_topic: MakeTopic, read_topic: ReadTopic, compression: str
) -> None:
    topic = make_topic(partitions=3)
    count = 30_000
    keys = [None if number % 3 == 0 else b"%d" % (number % 100) for number in range(count)]
    values = [b"%08d" % number for number in range(count)]
    batch = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    with Producer(
        bootstrap_servers=client_cluster.bootstrap,
        batch_growth_max_bytes=50_000,
        buffer_memory=200_000,
        compression_type=compression,
    ) as producer:
        stored_rows = producer.send_arrow(topic, batch).result(DEADLINE_S)
        assert sum(rows.rows for rows in stored_rows) == count
        assert len(stored_rows) > 10
        assert producer.metrics().buffer_exhausted > 0
    stored = read_topic(topic, 3)
    assert sorted(row.value for row in stored) == values
    for partition in range(3):
        keyed = [row for row in stored if row.partition == partition and row.key is not None]
        assert [row.value for row in keyed] == sorted(row.value for row in keyed)
        assert {partition_for_key(row.key, 3) for row in keyed} == {partition}
    assert len({row.partition for row in stored if row.key is None}) > 1  # chosen at random for each batch


def test_rows_follow_the_records_sent_before(
    client_cluster: BrokerProcess, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic()
    batch = pa.record_batch({"value": pa.array([b"2", b"3"], pa.binary())})
    with Producer(bootstrap_servers=client_cluster.bootstrap, linger_ms=1000) as producer:
        producer.send_nowait(topic, b"1")
        producer.send_arrow(topic, batch)
        producer.send_nowait(topic, b"4")
        producer.flush(DEADLINE_S)
    assert [row.value for row in read_topic(topic)] == [b"1", b"2", b"3", b"4"]


def test_partitions_can_be_given(client_cluster: BrokerProcess, make_topic: MakeTopic, read_topic: ReadTopic) -> None:
    topic = make_topic(partitions=3)
    batch = pa.record_batch(
        {"value": pa.array([b"a", b"b", b"c"], pa.binary()), "where": pa.array([2, None, 0], pa.int64())}
    )
    with Producer(bootstrap_servers=client_cluster.bootstrap) as producer:
        producer.send_arrow(topic, batch, partition="where").result(DEADLINE_S)
        assert producer.send_arrow(topic, batch, partition=1).result(DEADLINE_S)[0].partition == 1
        with pytest.raises(NoSuchPartitionError, match="has no partition 3"):
            producer.send_arrow(topic, batch, partition=3)
        far = pa.record_batch({"value": pa.array([b"a"]), "where": pa.array([-1])})
        with pytest.raises(NoSuchPartitionError, match="has no partition -1"):
            producer.send_arrow(topic, far, partition="where")
    placed = {(row.value, row.partition) for row in read_topic(topic, 3)}
    assert {(b"a", 2), (b"c", 0), (b"a", 1), (b"b", 1), (b"c", 1)} <= placed


def test_what_can_not_be_sent_is_refused_before_anything_is(
    client_cluster: BrokerProcess, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic()
    batch = pa.record_batch({"value": pa.array([b"a", b"x" * 2_000_000], pa.binary())})
    with Producer(bootstrap_servers=client_cluster.bootstrap) as producer:
        with pytest.raises(RecordTooLargeError, match=r"larger than max\.request\.size, 1048576"):
            producer.send_arrow(topic, batch)
        with pytest.raises(SerializationError, match="there is no column 'nope' for the key; there are: value"):
            producer.send_arrow(topic, batch, key="nope")
        with pytest.raises(SerializationError, match="takes a pyarrow RecordBatch or Table, not list"):
            producer.send_arrow(topic, [1])
        with pytest.raises(SerializationError, match=r"rows to .* can't be written"):
            producer.send_arrow(topic, pa.record_batch({"value": pa.array([[1]])}))
        with pytest.raises(SerializationError, match=r"neither key nor value: .*\(there are: id, body\).*value='NAME'"):
            producer.send_arrow(topic, pa.table({"id": ["a"], "body": ["b"]}))
        assert producer.send_arrow(topic, batch.slice(0, 0)).result(DEADLINE_S) == []
    assert read_topic(topic) == []
    with pytest.raises(ClosedError):
        producer.send_arrow(topic, batch)
    with (
        Producer(bootstrap_servers=client_cluster.bootstrap, partitioner_class="round_robin") as producer,
        pytest.raises(ConfigError, match="give it a partition column"),
    ):
        producer.send_arrow(topic, batch)


def test_rows_of_a_batch_too_large_for_the_broker_are_split(
    client_cluster: BrokerProcess, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic(max_message_bytes="20000")
    values = [b"%04d" % number * 10 for number in range(5000)]
    with Producer(bootstrap_servers=client_cluster.bootstrap) as producer:
        future = producer.send_arrow(topic, pa.table({"value": pa.array(values, pa.binary())}))
        stored_rows = future.result(DEADLINE_S)
        assert sum(rows.rows for rows in stored_rows) == 5000
        assert len(stored_rows) > 5
        assert "delivered" in repr(future)
    assert [row.value for row in read_topic(topic)] == values


def test_rows_can_be_sent_from_coroutines(
    client_cluster: BrokerProcess, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic()
    values = [b"%05d" % number for number in range(10_000)]

    async def run() -> None:
        async with AsyncProducer(
            bootstrap_servers=client_cluster.bootstrap, buffer_memory=100_000, batch_growth_max_bytes=20_000
        ) as producer:
            future = await producer.send_arrow(topic, pa.table({"value": pa.array(values, pa.binary())}))
            told: list[object] = []
            future.add_done_callback(told.append)
            assert sum(rows.rows for rows in await future) == 10_000
            assert future.done()
            assert told == [future]

    asyncio.run(run())
    assert [row.value for row in read_topic(topic)] == values
