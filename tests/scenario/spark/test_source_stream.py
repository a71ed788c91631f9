"""Streaming reads: limits, restarts, partitions and topics that come and go, and losses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from tidelog import Admin, NewTopic, Producer, TopicPartition

if TYPE_CHECKING:
    from tidelog.bench.brokers import BrokerProcess

SCHEMA = "topic string, partition int, offset long, value string"
WaitUntil = Callable[[Callable[[], bool], str], None]


@pytest.fixture
def send(cluster: BrokerProcess) -> Callable[..., None]:
    def send(topic: str, first: int, end: int, partitions: int = 2) -> None:
        """Records that hold these numbers, in turn to the partitions."""
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(first, end):
                producer.send(topic, b"%d" % number, partition=number % partitions)

    return send


@pytest.fixture
def admin(cluster: BrokerProcess) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        yield admin


def numbers(batches: list[list[Any]]) -> list[int]:
    return sorted(int(row.value) for batch in batches for row in batch)


def sizes(batches: list[list[Any]]) -> list[int]:
    return [len(batch) for batch in batches]


def offsets_logged(source: Any) -> list[Any]:
    """The ends of all batches, as the checkpoint holds them."""
    files = sorted(
        (each for each in (Path(source.checkpoint) / "offsets").glob("[0-9]*")), key=lambda each: int(each.name)
    )
    return [json.loads(file.read_text().splitlines()[2]) for file in files]


class Running:
    """A query that goes on until the test ends it."""

    def __init__(self, query: Any, batches: list[list[Any]]) -> None:
        self.query = query
        self.batches = batches

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch]

    @property
    def numbers(self) -> list[int]:
        return sorted(int(row.value) for row in self.rows)


@contextmanager
def running(source: Any, **options: object) -> Iterator[Running]:
    batches: list[list[Any]] = []
    query = (
        source.stream(SCHEMA, **options)
        .writeStream.foreachBatch(lambda rows, _: batches.append(rows.collect()))
        .option("checkpointLocation", source.checkpoint)
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        yield Running(query, batches)
    finally:
        query.stop()


def test_batches_are_limited_and_a_restart_goes_on(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None]
) -> None:
    topic = new_topic(partitions=2)
    send(topic, 0, 100)
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    first = source.available_now(SCHEMA, **options)
    assert sizes(first) == [40, 40, 20]
    assert numbers(first) == list(range(100))
    assert source.available_now(SCHEMA, **options) == []
    send(topic, 100, 130)
    assert numbers(source.available_now(SCHEMA, **options)) == list(range(100, 130))
    assert offsets_logged(source)[-1] == {topic: {"0": 65, "1": 65}}


def test_limits_of_bytes_and_from_a_file(
    source: Any, new_topic: Callable[..., str], cluster: BrokerProcess, tmp_path: Path
) -> None:
    topic = new_topic()
    with Producer(bootstrap_servers=cluster.bootstrap, batch_size=1000) as producer:
        for _ in range(400):
            producer.send(topic, b"x" * 1000)
    by_bytes = source.available_now(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="200k")
    assert len(by_bytes) in (2, 3)
    assert sum(sizes(by_bytes)) == 400
    file = tmp_path / "limit"
    file.write_text("150")
    source.checkpoint += "-of-the-file"
    by_file = source.available_now(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTriggerFile=file)
    assert sizes(by_file) == [150, 150, 100]


def test_few_records_wait_for_more(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None], wait_until: WaitUntil
) -> None:
    topic = new_topic(partitions=2)
    send(topic, 0, 10)
    limits = {"minOffsetsPerTrigger": 50, "maxTriggerDelay": "1h", "maxOffsetsPerTrigger": 60}
    with running(source, subscribe=topic, startingOffsets="earliest", **limits) as query:
        wait_until(lambda: query.numbers == list(range(10)), "the first batch does not wait")
        for first in range(10, 70, 10):
            send(topic, first, first + 10)
        wait_until(lambda: len(query.rows) >= 60, "enough is there")
        assert sizes(query.batches)[0] == 10
        assert sizes(query.batches)[1] in (50, 60)


def test_a_failed_batch_is_read_again(source: Any, new_topic: Callable[..., str], send: Callable[..., None]) -> None:
    """The same rows under the same number, though more has come."""
    topic = new_topic(partitions=2)
    send(topic, 0, 30)
    seen: list[tuple[int, list[int]]] = []

    def note(rows: Any, batch_id: int) -> None:
        seen.append((batch_id, sorted(int(row.value) for row in rows.collect())))
        if len(seen) == 1:
            raise RuntimeError("the sink fails once")

    def run() -> None:
        query = (
            source.stream(SCHEMA, subscribe=topic, startingOffsets="earliest")
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", source.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)

    with pytest.raises(StreamingQueryException, match="the sink fails once"):
        run()
    send(topic, 30, 40)
    run()
    assert seen == [(0, list(range(30))), (0, list(range(30))), (1, list(range(30, 40)))]


def test_partitions_that_are_added_while_it_runs(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None], admin: Admin, wait_until: WaitUntil
) -> None:
    topic = new_topic(partitions=1)
    with running(source, subscribe=topic, startingOffsets="latest") as query:
        wait_until(lambda: query.query.lastProgress is not None, "the query has begun")
        send(topic, 0, 5, partitions=1)
        wait_until(lambda: query.numbers == list(range(5)), "the first partition is read")
        admin.create_partitions({topic: 3}).raise_for_errors()
        send(topic, 5, 50, partitions=3)
        wait_until(lambda: len(query.rows) >= 50, "all partitions are read")
        assert query.numbers == list(range(50))


def test_topics_that_come_to_fit_a_pattern(
    source: Any, fresh_name: Callable[[str], str], send: Callable[..., None], admin: Admin
) -> None:
    stem = fresh_name("pattern")
    options = {"subscribePattern": f"{stem}.*", "startingOffsets": "earliest"}
    assert numbers(source.available_now(SCHEMA, **options)) == []
    for number in range(2):
        admin.create_topics(NewTopic(f"{stem}.{number}", 1)).raise_for_errors()
        admin.wait_for_topics(f"{stem}.{number}")
        send(f"{stem}.{number}", 10 * number, 10 * number + 10, partitions=1)
        assert numbers(source.available_now(SCHEMA, **options)) == list(range(10 * number, 10 * number + 10))


def test_where_a_query_begins(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None], cluster: BrokerProcess, admin: Admin
) -> None:
    topic = new_topic(retention_ms="-1")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, timestamp=1_700_000_000_000 + number)
    admin.alter_consumer_group_offsets(f"g-{topic}", {TopicPartition(topic, 0): 8}).raise_for_errors()
    beginnings: list[tuple[dict[str, str], int]] = [
        ({"startingOffsets": json.dumps({topic: {"0": 3}})}, 3),
        ({"startingTimestamp": "1700000000006"}, 6),
        ({"startingOffsetsByTimestamp": json.dumps({topic: {"0": 1_700_000_000_007}})}, 7),
        ({"startingOffsets": f"group:g-{topic}"}, 8),
        ({"startingTimestamp": "1800000000000", "startingOffsetsByTimestampStrategy": "latest"}, 10),
    ]
    first = source.checkpoint
    for number, (options, begin) in enumerate(beginnings):
        source.checkpoint = f"{first}-{number}"
        assert numbers(source.available_now(SCHEMA, subscribe=topic, **options)) == list(range(begin, 10))


def test_a_topic_that_is_deleted(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None], admin: Admin
) -> None:
    kept, lost = new_topic("kept"), new_topic("lost")
    options = {"subscribe": f"{kept},{lost}", "startingOffsets": "earliest"}
    for topic in (kept, lost):
        send(topic, 0, 5, partitions=1)
    assert len(numbers(source.available_now(SCHEMA, **options))) == 10
    admin.delete_topics(lost).raise_for_errors()
    send(kept, 5, 8, partitions=1)
    with pytest.raises(StreamingQueryException, match=rf"partition {lost}-0 no longer exists") as raised:
        source.available_now(SCHEMA, **options)
    assert "set the option failOnDataLoss to false" in str(raised.value)
    assert numbers(source.available_now(SCHEMA, failOnDataLoss="false", **options)) == [5, 6, 7]


def test_a_topic_that_is_made_anew_while_it_runs(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None], admin: Admin, wait_until: WaitUntil
) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, 5, partitions=1)
    with running(source, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false") as query:
        wait_until(lambda: query.numbers == list(range(5)), "the first topic is read")
        admin.delete_topics(topic).raise_for_errors()
        wait_until(lambda: topic not in {each.name for each in admin.list_topics()}, "it is gone")
        admin.create_topics(NewTopic(topic, 1)).raise_for_errors()
        admin.wait_for_topics(topic)
        send(topic, 100, 108, partitions=1)
        wait_until(lambda: 107 in query.numbers, "the second topic is read")
        assert query.numbers == [*range(5), *range(100, 108)]


def test_a_topic_that_is_made_anew_fails_the_query(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None], admin: Admin, wait_until: WaitUntil
) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, 5, partitions=1)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    assert numbers(source.available_now(SCHEMA, **options)) == list(range(5))
    admin.delete_topics(topic).raise_for_errors()
    wait_until(lambda: topic not in {each.name for each in admin.list_topics()}, "it is gone")
    admin.create_topics(NewTopic(topic, 1)).raise_for_errors()
    admin.wait_for_topics(topic)
    send(topic, 0, 2, partitions=1)
    with pytest.raises(StreamingQueryException, match="ends at offset 2 now, but 5 had already been reached"):
        source.available_now(SCHEMA, **options)
    assert numbers(source.available_now(SCHEMA, failOnDataLoss="false", **options)) == [0, 1]


def test_records_that_are_deleted_before_they_are_read(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None], admin: Admin
) -> None:
    topic = new_topic(partitions=1)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    send(topic, 0, 5, partitions=1)
    assert numbers(source.available_now(SCHEMA, **options)) == list(range(5))
    send(topic, 5, 20, partitions=1)
    admin.delete_records({TopicPartition(topic, 0): 12}).raise_for_errors()
    with pytest.raises(StreamingQueryException, match="now starts at offset 12, but 5 was to be read"):
        source.available_now(SCHEMA, **options)
    assert numbers(source.available_now(SCHEMA, failOnDataLoss="false", **options)) == list(range(12, 20))


def test_the_query_is_a_group(
    source: Any,
    new_topic: Callable[..., str],
    send: Callable[..., None],
    admin: Admin,
    cluster: BrokerProcess,
    wait_until: WaitUntil,
) -> None:
    topic = new_topic(partitions=2)
    group = f"lag-{topic}"
    send(topic, 0, 20)

    def committed() -> dict[int, int]:
        found = admin.list_consumer_group_offsets(group)[group]
        return {key.partition: row.offset for key, row in found.items()}

    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 15, "group.id": group}
    batches = source.available_now(SCHEMA, **options)
    assert numbers(batches) == list(range(20))
    assert committed() == {0: 10, 1: 10}  # the last batch too, though the query has ended
    send(topic, 20, 30)
    assert committed() == {0: 10, 1: 10}
    del options["group.id"]
    with running(source, **options, **{"kafka.group.id": group}) as query:
        wait_until(lambda: len(query.rows) == 10, "what has come is read")
        wait_until(lambda: committed() == {0: 15, 1: 15}, "it is published soon")
    send(topic, 30, 34)
    command = [sys.executable, "-m", "tidelog", "groups", "describe", group, "--lag", "--json"]
    done = subprocess.run([*command, "--bootstrap", cluster.bootstrap], capture_output=True, text=True, check=True)
    (described,) = json.loads(done.stdout)
    assert described["state"].lower() == "empty"
    assert [(row["partition"], row["committed"], row["lag"]) for row in described["lag"]] == [(0, 15, 2), (1, 15, 2)]


def test_progress_tells_how_far_the_query_is_behind(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None]
) -> None:
    topic = new_topic(partitions=2)
    send(topic, 0, 100)
    query = (
        source.stream(SCHEMA, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=60)
        .writeStream.format("noop")
        .option("checkpointLocation", source.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    first = query.recentProgress[0]["sources"][0]
    assert json.loads(first["endOffset"]) == {topic: {"0": 30, "1": 30}}
    assert json.loads(first["latestOffset"]) == {topic: {"0": 50, "1": 50}}
    assert first["numInputRows"] == 60


def test_mistakes_are_told_when_the_query_starts(source: Any, new_topic: Callable[..., str]) -> None:
    for options, said in (
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic"),
        ({"subscribe": new_topic(), "endingOffsets": "latest"}, "a streaming query has no end"),
        ({"subscribe": new_topic(), "startingOffsets": "{}x"}, "expected JSON like"),
        ({"subscribe": "any", "kafka.bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1"),
    ):
        with pytest.raises(PySparkException) as raised:
            source.available_now(**options)
        assert said in str(raised.value)


def test_rows_come_once_over_many_batches(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None], wait_until: WaitUntil
) -> None:
    topic = new_topic(partitions=3)
    with running(source, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=50) as query:
        for first in range(0, 300, 50):
            send(topic, first, first + 50, partitions=3)
        wait_until(lambda: len(query.rows) >= 300, "all is read")
    assert Counter(query.numbers) == Counter(range(300))
    by_partition: dict[int, list[int]] = {}
    for row in query.rows:
        by_partition.setdefault(row.partition, []).append(row.offset)
    assert all(offsets == sorted(offsets) for offsets in by_partition.values())


def test_a_broker_that_restarts_while_the_query_runs(
    source: Any, new_topic: Callable[..., str], send: Callable[..., None], cluster: BrokerProcess, wait_until: WaitUntil
) -> None:
    topic = new_topic(partitions=2)
    send(topic, 0, 10)
    with running(source, subscribe=topic, startingOffsets="earliest") as query:
        wait_until(lambda: len(query.rows) == 10, "the query runs")
        cluster.kill()
        cluster.start()
        send(topic, 10, 20)
        wait_until(lambda: len(query.rows) >= 20, "it goes on")
        assert query.numbers == list(range(20))
        assert query.query.isActive
