"""A topic as a mapping: filled from the first offset, kept current, through restarts and errors."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest

import tidelog
from tidelog import Admin, Producer
from tidelog.client import table as table_module
from tidelog.client.consumer.async_consumer import AsyncConsumer
from tidelog.client.errors import ClientError, NoSuchPartitionError
from tidelog.client.table import Change, Table, TableError
from tidelog.client.types import TopicPartition
from tidelog.testing import Broker

WAIT_S = 20.0
COMPACTED = {"cleanup.policy": "compact"}
WaitUntil = Callable[[Callable[[], bool], str], None]
OpenTable = Callable[..., Table[Any, Any]]


def put(broker: Broker, topic: str, values: Mapping[bytes | None, bytes | None], partition: int | None = None) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        sent = [producer.send(topic, value, key=key, partition=partition) for key, value in values.items()]
        producer.flush()
    for future in sent:
        future.result()


@pytest.fixture
def open_table() -> Iterator[OpenTable]:
    """Makes tables that are closed after the test."""
    with ExitStack() as tables:
        yield lambda *args, **more: tables.enter_context(Table(*args, **more))


@pytest.fixture
def topic(broker: Broker) -> str:
    broker.create_topic("prices", 3, COMPACTED)
    return "prices"


def test_it_is_filled_and_stays_current(
    broker: Broker, topic: str, open_table: OpenTable, wait_until: WaitUntil
) -> None:
    put(broker, topic, {b"k%d" % number: b"v%d" % number for number in range(200)})
    put(broker, topic, {b"k7": b"new", b"k8": None})
    table = open_table(topic, broker.bootstrap)
    table.wait_until_caught_up(WAIT_S)
    assert table.is_caught_up
    assert len(table) == 199
    assert table[b"k7"] == b"new"
    assert b"k8" not in table
    assert table.get(b"k8") is None
    with pytest.raises(KeyError):
        table[b"k8"]
    put(broker, topic, {b"k9": None, b"k10": b"newer", b"k8": b"back"})
    expected = {b"k%d" % number: b"v%d" % number for number in range(200)} | {
        b"k7": b"new",
        b"k8": b"back",
        b"k10": b"newer",
    }
    del expected[b"k9"]
    wait_until(lambda: table == expected, "the changes are seen")
    assert sorted(table) == sorted(expected)
    assert dict(table.items()) == expected
    assert sorted(table.values()) == sorted(expected.values())


def test_a_cache_is_rebuilt_at_the_start_and_kept_current(
    broker: Broker, topic: str, open_table: OpenTable, wait_until: WaitUntil
) -> None:
    """Any client writes, every application that starts has all of it: librdkafka and two tables."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "log_level": 2})

    def write(value: str, count: int) -> None:
        for number in range(count):
            producer.produce(topic, f"{value} {number}", f"key {number}")
        assert producer.flush(WAIT_S) == 0

    write("first", 1_000)
    write("second", 500)
    tables = [open_table(topic, broker.bootstrap) for _ in range(2)]
    for table in tables:
        table.wait_until_caught_up(WAIT_S)
        assert len(table) == 1_000
        assert (table[b"key 499"], table[b"key 500"]) == (b"second 499", b"first 500")
    write("third", 1_000)
    producer.produce(topic, None, "key 7")
    assert producer.flush(WAIT_S) == 0
    expected = {b"key %d" % number: b"third %d" % number for number in range(1_000) if number != 7}
    for table in tables:
        wait_until(functools.partial(table.__eq__, expected), "the changes are seen")


def test_keys_and_values_are_deserialized(broker: Broker, topic: str, open_table: OpenTable) -> None:
    put(broker, topic, {b"tea": b'{"price": 3}', b"milk": b"null"})
    table = open_table(topic, broker.bootstrap, key_deserializer=bytes.decode, value_deserializer=json.loads)
    table.wait_until_caught_up(WAIT_S)
    assert dict(table) == {"tea": {"price": 3}, "milk": None}
    assert "milk" in table


def test_an_empty_topic_is_caught_up_at_once(broker: Broker, topic: str, open_table: OpenTable) -> None:
    table = open_table(topic, broker.bootstrap)
    table.wait_until_caught_up(WAIT_S)
    assert len(table) == 0
    assert not table


def test_iterating_goes_over_what_was_there(
    broker: Broker, topic: str, open_table: OpenTable, wait_until: WaitUntil
) -> None:
    put(broker, topic, {b"a": b"1", b"b": b"2"})
    table = open_table(topic, broker.bootstrap)
    table.wait_until_caught_up(WAIT_S)
    iterators = iter(table), iter(table.items()), iter(table.values())
    first = [next(each) for each in iterators]
    put(broker, topic, {b"a": None, b"b": None, b"c": b"3"})
    wait_until(lambda: table == {b"c": b"3"}, "the changes are seen")
    seen = [{one, *rest} for one, rest in zip(first, iterators, strict=True)]
    assert seen == [{b"a", b"b"}, {(b"a", b"1"), (b"b", b"2")}, {b"1", b"2"}]


def test_changes_are_told(broker: Broker, open_table: OpenTable, wait_until: WaitUntil) -> None:
    """Each with what was before; a record that changes nothing is not told, and what the function raises is logged."""
    broker.create_topic("one", 1, COMPACTED)
    told: list[Change[bytes, bytes]] = []

    def on_change(change: Change[bytes, bytes]) -> None:
        told.append(change)
        raise RuntimeError("no luck")

    put(broker, "one", {b"a": b"1"})
    table = open_table("one", broker.bootstrap, on_change=on_change)
    table.wait_until_caught_up(WAIT_S)
    for value in (b"1", b"2", None, None):
        put(broker, "one", {b"a": value})
    put(broker, "one", {b"b": b"3"})
    wait_until(lambda: b"b" in table, "the changes are seen")
    wait_until(lambda: len(told) >= 4, "the changes are told")
    assert told == [
        Change(b"a", None, b"1"),
        Change(b"a", b"1", b"2"),
        Change(b"a", b"2", None, is_removal=True),
        Change(b"b", None, b"3"),
    ]


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_a_broker_restart_is_waited_out(
    broker: Broker, topic: str, open_table: OpenTable, wait_until: WaitUntil, end: str
) -> None:
    put(broker, topic, {b"a": b"1"})
    table = open_table(topic, broker.bootstrap)
    table.wait_until_caught_up(WAIT_S)
    getattr(broker, end)()
    wait_until(lambda: table.trouble is not None, "the table notices")
    assert table[b"a"] == b"1", "what was read serves meanwhile"
    assert isinstance(table.trouble, ClientError)
    broker.start()
    put(broker, topic, {b"a": b"2", b"b": b"3"})
    wait_until(lambda: table == {b"a": b"2", b"b": b"3"}, "it is read on")
    wait_until(lambda: table.trouble is None, "the trouble is over")


def test_it_may_be_made_before_its_broker_runs(broker: Broker, topic: str, open_table: OpenTable) -> None:
    put(broker, topic, {b"a": b"1"})
    broker.stop()
    table = open_table(topic, broker.bootstrap)
    with pytest.raises(TimeoutError, match=r"not caught up after 0\.2 s"):
        table.wait_until_caught_up(0.2)
    broker.start()
    table.wait_until_caught_up(WAIT_S)
    assert table[b"a"] == b"1"


def test_partitions_that_come_later_are_read(
    broker: Broker, topic: str, open_table: OpenTable, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "LOOK_INTERVAL_S", 0.1)
    table = open_table(topic, broker.bootstrap)
    table.wait_until_caught_up(WAIT_S)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_partitions({topic: 5}).raise_for_errors()
    put(broker, topic, {b"late": b"1"}, partition=4)
    put(broker, topic, {b"early": b"2"}, partition=0)
    wait_until(lambda: table == {b"late": b"1", b"early": b"2"}, "the new partition is read")


def test_a_topic_that_is_not_there_is_told(broker: Broker, open_table: OpenTable) -> None:
    table = open_table("nowhere", broker.bootstrap)
    with pytest.raises(TableError, match="there is no topic 'nowhere'; create it with") as caught:
        table.wait_until_caught_up(WAIT_S)
    assert isinstance(caught.value.__cause__, NoSuchPartitionError)
    for use in (len, list, dict, bool, lambda table: table[b"a"], lambda table: b"a" in table):
        with pytest.raises(TableError, match="nowhere"):
            use(table)


def test_a_topic_that_is_deleted_is_told(
    broker: Broker, topic: str, open_table: OpenTable, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "DELETED_AFTER_S", 0.2)
    table = open_table(topic, broker.bootstrap)
    table.wait_until_caught_up(WAIT_S)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics(topic).raise_for_errors()

    def has_failed() -> bool:
        try:
            return len(table) < 0
        except TableError:
            return True

    wait_until(has_failed, "the deletion is told")


def test_a_topic_made_anew_is_a_new_table(
    broker: Broker, topic: str, open_table: OpenTable, wait_until: WaitUntil
) -> None:
    """The old contents serve until the new ones are read; then the difference is told."""
    put(broker, topic, {b"a": b"1", b"b": b"2", b"c": b"3"})
    told: list[Change[bytes, bytes]] = []
    table = open_table(topic, broker.bootstrap, on_change=told.append)
    table.wait_until_caught_up(WAIT_S)
    told.clear()
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics(topic).raise_for_errors()
    broker.create_topic(topic, 1, COMPACTED)
    put(broker, topic, {b"a": b"1", b"b": b"new"})
    wait_until(lambda: dict(table) == {b"a": b"1", b"b": b"new"}, "the new topic is read")
    wait_until(lambda: len(told) >= 2, "the difference is told")
    # It may have been seen before the second record of the new topic was there.
    assert {change.key for change in told if change.new == b"new"} == {b"b"}
    assert Change(b"c", b"3", None, is_removal=True) in told


def test_deleted_records_are_not_missed_silently(
    broker: Broker, open_table: OpenTable, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's start overtakes a table that is held up: it is built again from what is left."""
    broker.create_topic("short", 1, {"segment.bytes": "400", "cleanup.policy": "compact,delete"})
    gate = threading.Event()
    gate.set()
    poll = AsyncConsumer.poll

    async def held_up(consumer: AsyncConsumer, timeout: float) -> Any:
        assert await asyncio.to_thread(gate.wait, WAIT_S)
        return await poll(consumer, timeout)

    put(broker, "short", {b"a": b"1", b"gone": b"2"})
    monkeypatch.setattr(AsyncConsumer, "poll", held_up)
    # Otherwise all of it would be fetched before the table takes it in.
    monkeypatch.setattr(table_module, "QUEUED_BYTES_MAX", 1)
    table = open_table("short", broker.bootstrap)
    table.wait_until_caught_up(WAIT_S)
    gate.clear()
    for number in range(5):
        put(broker, "short", {b"k%d" % number: bytes(150)})
    put(broker, "short", {b"a": b"9"})
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({TopicPartition("short", 0): 7}).raise_for_errors()
    gate.set()
    wait_until(lambda: dict(table) == {b"a": b"9"}, "the table is built again")


def test_what_a_deserializer_raises_reaches_the_user(
    broker: Broker, open_table: OpenTable, wait_until: WaitUntil
) -> None:
    broker.create_topic("one", 1, COMPACTED)
    put(broker, "one", {b"good": b"1"})
    table = open_table("one", broker.bootstrap, value_deserializer=int)
    table.wait_until_caught_up(WAIT_S)
    put(broker, "one", {b"bad": b"x"})

    def failure() -> str:
        try:
            return str(len(table))
        except TableError as error:
            return str(error)

    wait_until(lambda: failure() != "1", "the failure is told")
    assert "partition one-0 at offset 1 can't be deserialized: ValueError" in failure()


def test_keys_must_be_hashable(broker: Broker, topic: str, open_table: OpenTable) -> None:
    put(broker, topic, {b"[]": b"1"})
    table = open_table(topic, broker.bootstrap, key_deserializer=json.loads)
    with pytest.raises(TableError, match="unhashable"):
        table.wait_until_caught_up(WAIT_S)


def test_records_without_a_key_are_left_out(
    broker: Broker, open_table: OpenTable, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("plain")
    put(broker, "plain", {None: b"x"})
    put(broker, "plain", {b"a": b"1"})
    put(broker, "plain", {None: b"y"})
    table = open_table("plain", broker.bootstrap)
    table.wait_until_caught_up(WAIT_S)
    assert dict(table) == {b"a": b"1"}
    assert caplog.text.count("records without a key") == 1


def test_an_end_that_no_record_reaches_is_reached(
    broker: Broker, topic: str, open_table: OpenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction may have taken the last records: the end offset stays, and nothing leads up to it."""
    put(broker, topic, {b"a": b"1"})
    end_offsets = AsyncConsumer.end_offsets

    async def further(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {key: offset + 5 for key, offset in (await end_offsets(consumer, partitions)).items()}

    monkeypatch.setattr(AsyncConsumer, "end_offsets", further)
    table = open_table(topic, broker.bootstrap)
    table.wait_until_caught_up(WAIT_S)
    assert table[b"a"] == b"1"


def test_only_committed_records_count_unless_all_are_asked_for(
    broker: Broker, open_table: OpenTable, wait_until: WaitUntil
) -> None:
    broker.create_topic("one", 1, COMPACTED)
    put(broker, "one", {b"a": b"1"})
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id="writer") as producer:
        producer.init_transactions()
        for ends in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.send("one", b"x", key=ends.__name__.encode()).result(WAIT_S)
            ends()
        producer.begin_transaction()
        producer.send("one", b"y", key=b"open").result(WAIT_S)
        committed = open_table("one", broker.bootstrap)
        everything = open_table("one", broker.bootstrap, isolation_level="read_uncommitted")
        for table in (committed, everything):
            table.wait_until_caught_up(WAIT_S)
        assert dict(committed) == {b"a": b"1", b"commit_transaction": b"x"}
        assert everything.keys() == {b"a", b"abort_transaction", b"commit_transaction", b"open"}
        producer.commit_transaction()
    wait_until(lambda: b"open" in committed, "what is committed is seen")


def test_on_change_may_close_the_table(broker: Broker, topic: str, wait_until: WaitUntil) -> None:
    put(broker, topic, {b"a": b"1"})
    ready, closed = threading.Event(), threading.Event()

    def on_change(change: Change[bytes, bytes]) -> None:
        assert ready.wait(WAIT_S)
        table.close()
        closed.set()

    table = Table(topic, broker.bootstrap, on_change=on_change)
    ready.set()
    assert closed.wait(WAIT_S)
    wait_until(
        lambda: f"table-{topic}" not in {thread.name for thread in threading.enumerate()}, "the thread has ended"
    )


def test_closing_ends_the_thread_and_keeps_the_contents(broker: Broker, topic: str) -> None:
    put(broker, topic, {b"a": b"1"})
    with Table(topic, broker.bootstrap) as table:
        table.wait_until_caught_up(WAIT_S)
    assert table[b"a"] == b"1"
    assert f"table-{topic}" not in {thread.name for thread in threading.enumerate()}
    table.close()
    table.wait_until_caught_up(WAIT_S)


def test_closing_ends_every_wait(broker: Broker, topic: str) -> None:
    broker.stop()
    table = Table(topic, broker.bootstrap)
    closer = threading.Timer(0.1, table.close)
    closer.start()
    with pytest.raises(TableError, match="closed before it was caught up"):
        table.wait_until_caught_up(WAIT_S)
    closer.join()


def test_it_is_found_where_people_look_for_it() -> None:
    assert tidelog.Table is Table
    with pytest.raises(AttributeError, match="no attribute 'Tabel'"):
        _ = tidelog.Tabel  # type: ignore[attr-defined] # that is the point
