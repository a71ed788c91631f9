"""Batch reads: what is chosen by options, columns and filters, and how mistakes and losses are told."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tidelog import Admin, Producer, TopicPartition

if TYPE_CHECKING:
    from tidelog.bench.brokers import BrokerProcess

FIRST_MS = 1_700_000_000_000
PLACES = "partition int, offset long"


@pytest.fixture
def filled(cluster: BrokerProcess, new_topic: Callable[..., str]) -> Callable[..., str]:
    def fill(word: str = "filled", partitions: int = 2, count: int = 100) -> str:
        """Record N is N seconds younger than the first; they go round the partitions."""
        topic = new_topic(word, partitions=partitions, retention_ms="-1")
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(count):
                producer.send(
                    topic,
                    b"value %d" % number,
                    key=b"key %d" % number,
                    headers=[("n", b"%d" % number)] if number % 2 else [],
                    partition=number % partitions,
                    timestamp=FIRST_MS + 1000 * number,
                )
        return topic

    return fill


def places(frame: Any) -> dict[int, list[int]]:
    """The offsets of each partition, in the order in which they were read."""
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return {partition: sorted(offsets) for partition, offsets in sorted(found.items())}


def as_json(topic: str, **numbers: int) -> str:
    return json.dumps({topic: {name.removeprefix("p"): number for name, number in numbers.items()}})


def test_columns_are_those_of_sparks_own_format(source: Any, filled: Callable[..., str]) -> None:
    topic = filled(count=4)
    plain = source.batch(subscribe=topic)
    assert plain.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    with_headers = source.batch(subscribe=topic, includeHeaders="true")
    rows = with_headers.orderBy("timestamp").collect()
    assert [bytes(row.value) for row in rows] == [b"value 0", b"value 1", b"value 2", b"value 3"]
    assert [row.headers and [(each.key, bytes(each.value)) for each in row.headers] for row in rows] == [
        None,
        [("n", b"1")],
        None,
        [("n", b"3")],
    ]
    first = rows[0]
    assert (first.topic, first.partition, first.offset, first.timestampType) == (topic, 0, 0, 0)
    assert first.timestamp == datetime.datetime.fromtimestamp(FIRST_MS / 1000, datetime.UTC).replace(tzinfo=None)


def test_fewer_columns_and_text(source: Any, filled: Callable[..., str]) -> None:
    topic = filled(count=4)
    frame = source.batch("offset long, value string", subscribe=topic)
    assert frame.columns == ["offset", "value"]
    assert sorted(row.value for row in frame.collect()) == ["value 0", "value 1", "value 2", "value 3"]
    assert source.batch("headers array<struct<key: string, value: binary>>", subscribe=topic).count() == 4
    with pytest.raises(PySparkException, match="cast or parse it after the read"):
        source.batch("value int", subscribe=topic).collect()


def test_topics_by_pattern_and_partitions_by_number(source: Any, filled: Callable[..., str]) -> None:
    one, other = filled("apples"), filled("pears")
    stem = one.split("-")[1]
    both = source.batch("topic string", subscribePattern=f"(apples|pears)-{stem}.*")
    assert {row.topic for row in both.distinct().collect()} == {one, other}
    ahead = source.batch("topic string", subscribePattern=f"(?!pears).*{stem}.*")  # look-ahead, which RE2 lacks
    assert {row.topic for row in ahead.distinct().collect()} == {one}
    assigned = source.batch(PLACES, assign=json.dumps({one: [1]}))
    assert places(assigned) == {1: list(range(50))}


def test_ranges_by_offset_time_and_group(source: Any, filled: Callable[..., str], cluster: BrokerProcess) -> None:
    topic = filled()
    start, end = as_json(topic, p0=10, p1=-2), as_json(topic, p0=12, p1=3)
    assert places(source.batch(PLACES, subscribe=topic, startingOffsets=start, endingOffsets=end)) == {
        0: [10, 11],
        1: [0, 1, 2],
    }
    times = {"startingTimestamp": FIRST_MS + 90_000, "endingTimestamp": FIRST_MS + 95_500}
    assert places(source.batch(PLACES, subscribe=topic, **times)) == {0: [45, 46, 47], 1: [45, 46, 47]}
    by_partition = {
        "startingOffsetsByTimestamp": as_json(topic, p0=FIRST_MS + 97_000, p1=FIRST_MS + 99_000),
        "endingOffsetsByTimestamp": as_json(topic, p0=FIRST_MS + 10**9, p1=FIRST_MS + 10**9),
    }
    assert places(source.batch(PLACES, subscribe=topic, **by_partition)) == {0: [49], 1: [49]}
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_consumer_group_offsets(f"g-{topic}", {TopicPartition(topic, 0): 47}).raise_for_errors()
    group = source.batch(PLACES, subscribe=topic, startingOffsets=f"group:g-{topic}")
    assert places(group) == {0: [47, 48, 49], 1: list(range(50))}


def test_a_time_that_no_record_has_reached(source: Any, filled: Callable[..., str]) -> None:
    topic = filled()
    late = {"subscribe": topic, "startingTimestamp": FIRST_MS + 98_500}
    with pytest.raises(PySparkException, match="startingOffsetsByTimestampStrategy to latest"):
        source.batch(**late).count()
    found = source.batch(PLACES, startingOffsetsByTimestampStrategy="latest", **late)
    assert places(found) == {1: [49]}


def test_large_ranges_are_split_and_keep_their_order(source: Any, filled: Callable[..., str]) -> None:
    topic = filled(partitions=1, count=1000)
    frame = source.batch(PLACES, subscribe=topic, maxRecordsPerPartition=300)
    parts = [[row.offset for row in part] for part in frame.rdd.glom().collect()]
    assert parts == [list(range(first, first + 250)) for first in range(0, 1000, 250)]
    assert source.batch(PLACES, subscribe=topic, minPartitions=7).rdd.getNumPartitions() == 7
    assert source.batch(PLACES, subscribe=topic).limit(3).count() == 3


def test_filters_narrow_what_is_read(source: Any, filled: Callable[..., str]) -> None:
    topic = filled(partitions=4, count=400)
    frame = source.batch(f"{PLACES}, timestamp timestamp, topic string", subscribe=topic)
    one = frame.where("partition = 2 AND offset >= 10 AND offset < 12")
    assert places(one) == {2: [10, 11]}
    assert one.rdd.getNumPartitions() == 1
    moment = datetime.datetime.fromtimestamp(FIRST_MS / 1000 + 396, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert places(frame.where(f"timestamp >= '{moment}'")) == {0: [99], 1: [99], 2: [99], 3: [99]}
    assert places(frame.where(f"timestamp > '{moment}'")) == {1: [99], 2: [99], 3: [99]}
    assert frame.where(f"timestamp < '{moment}'").count() == 396
    assert frame.where("topic = 'another' OR partition > 1").count() == 200


def test_old_timestamps_behind_young_ones_are_not_lost_by_a_filter(
    source: Any, new_topic: Callable[..., str], cluster: BrokerProcess
) -> None:
    topic = new_topic("unordered", retention_ms="-1")
    ages = [5, 3, 9, 1, 7, 2, 8, 0, 6, 4]
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for age in ages:
            producer.send(topic, b"%d" % age, timestamp=FIRST_MS + 1000 * age)
            producer.flush()
    frame = source.batch("timestamp timestamp, value string", subscribe=topic)
    for limit in range(11):
        moment = datetime.datetime.fromtimestamp(FIRST_MS / 1000 + limit, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        found = [int(row.value) for row in frame.where(f"timestamp >= '{moment}'").collect()]
        assert found == [age for age in ages if age >= limit]


def test_sessions_that_push_no_filters(source: Any, filled: Callable[..., str]) -> None:
    """The setting is off unless somebody sets it."""
    topic = filled()
    source.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = source.batch(PLACES, subscribe=topic).where("partition = 1 AND offset < 2")
        assert places(frame) == {1: [0, 1]}
    finally:
        source.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_open_transactions_are_not_read(source: Any, new_topic: Callable[..., str], cluster: BrokerProcess) -> None:
    topic = new_topic("transactions")
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for number, outcome in enumerate(("commit", "abort", "open")):
            producer.begin_transaction()
            for _ in range(3):
                producer.send(topic, b"%d" % number)
            producer.flush()
            if outcome == "commit":
                producer.commit_transaction()
            elif outcome == "abort":
                producer.abort_transaction()
        assert places(source.batch(PLACES, subscribe=topic)) == {0: [0, 1, 2]}
        everything = source.batch(PLACES, subscribe=topic, kafka__isolation__level="read_uncommitted")
        assert places(everything) == {0: [0, 1, 2, 4, 5, 6, 8, 9, 10]}
        beyond = {"subscribe": topic, "endingOffsets": as_json(topic, p0=10)}
        with pytest.raises(PySparkException, match="ends at offset 8, but endingOffsets asks for offsets up to 10"):
            source.batch(**beyond).count()
        assert places(source.batch(PLACES, failOnDataLoss="false", **beyond)) == {0: [0, 1, 2]}
        producer.abort_transaction()


def test_records_that_are_gone(source: Any, filled: Callable[..., str], cluster: BrokerProcess) -> None:
    topic = filled(partitions=1, count=100)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 40}).raise_for_errors()
    assert places(source.batch(PLACES, subscribe=topic)) == {0: list(range(40, 100))}
    early = {"subscribe": topic, "startingOffsets": as_json(topic, p0=20), "maxRecordsPerPartition": 15}
    with pytest.raises(PySparkException, match=r"now starts at offset 40, but \d+ was to be read"):
        source.batch(**early).count()
    assert places(source.batch(PLACES, failOnDataLoss="false", **early)) == {0: list(range(40, 100))}


def test_an_empty_topic(source: Any, new_topic: Callable[..., str]) -> None:
    assert source.batch(subscribe=new_topic("empty", partitions=3)).collect() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic"),
        ({"assign": '{"TOPIC":[7]}'}, "there is no partition TOPIC-7"),
        ({}, "exactly one of the options assign, subscribe, subscribePattern"),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{"0":1}}'}, "lacks TOPIC-1; use -2"),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC"'}, "expected JSON like"),
        ({"subscribe": "TOPIC", "startingOfset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "TOPIC", "startingOffsets": '{"TOPIC":{"0":99,"1":0}}'}, "the start is after the end"),
        ({"subscribe": "TOPIC", "kafka.auto.offset.reset": "latest"}, "is controlled by the source"),
        ({"subscribe": "TOPIC", "kafka.bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1"),
    ],
)
def test_mistakes_are_told_with_what_to_do(
    options: dict[str, str], said: str, source: Any, filled: Callable[..., str]
) -> None:
    topic = filled(count=4)
    given = {name: text.replace("TOPIC", topic) for name, text in options.items()}
    with pytest.raises(PySparkException) as raised:
        source.batch(**given).count()
    assert said.replace("TOPIC", topic) in str(raised.value)
