"""A consumer in a group, as its user sees it: commits, callbacks, listeners, iteration."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from tidelog import (
    AsyncConsumer,
    Consumer,
    ConsumerInterceptor,
    OffsetAndMetadata,
    RebalanceListener,
    TopicPartition,
)
from tidelog.client.errors import ClientError

if TYPE_CHECKING:
    from tidelog.bench.brokers import BrokerProcess

DEADLINE_S = 60.0
FreshName = Callable[[str], str]
MakeTopic = Callable[..., str]
Write = Callable[..., None]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def poll_some(consumer: Consumer) -> list[Any]:
    deadline_s = time.monotonic() + DEADLINE_S
    while not (records := consumer.poll(0.5)):
        assert time.monotonic() < deadline_s, "no record came"
    return records


def committed(bootstrap: str, group: str, partition: TopicPartition) -> int | None:
    with Consumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False) as consumer:
        found = consumer.committed([partition])[partition]
        return None if found is None else found.offset


@pytest.fixture(params=["classic", "consumer"])
def options(request: pytest.FixtureRequest, client_cluster: BrokerProcess) -> dict[str, Any]:
    if request.param == "consumer" and os.environ.get("COMPAT_CLIENT_PEER", "").startswith("3."):
        pytest.skip("Kafka 3.9 has the consumer protocol as a preview only, and switched off")
    return {
        "bootstrap_servers": client_cluster.bootstrap,
        "auto_offset_reset": "earliest",
        "group_protocol": request.param,
        "max_poll_records": 10,
    }


@pytest.mark.on_three_brokers
def test_closing_commits_what_was_handed_out(
    options: dict[str, Any], make_topic: MakeTopic, write: Write, fresh_name: FreshName
) -> None:
    topic, group = make_topic(), fresh_name("group")
    write(topic, numbers(0, 30))
    with Consumer(group_id=group, **options) as consumer:
        consumer.subscribe([topic])
        assert len(poll_some(consumer)) == 10
    assert committed(options["bootstrap_servers"], group, TopicPartition(topic, 0)) == 10
    with Consumer(group_id=group, **options) as consumer:
        consumer.subscribe([topic])
        assert poll_some(consumer)[0].offset == 10


def test_positions_are_committed_as_time_goes_by(
    options: dict[str, Any], make_topic: MakeTopic, write: Write, fresh_name: FreshName
) -> None:
    topic, group = make_topic(), fresh_name("group")
    write(topic, numbers(0, 30))
    seen: list[int] = []

    class Committed(ConsumerInterceptor):
        def on_commit(self, offsets: Any) -> None:
            seen.append(offsets[TopicPartition(topic, 0)].offset)

    with Consumer(group_id=group, auto_commit_interval_ms=50, interceptor_classes=[Committed()], **options) as consumer:
        consumer.subscribe([topic])
        poll_some(consumer)
        deadline_s = time.monotonic() + DEADLINE_S
        while committed(options["bootstrap_servers"], group, TopicPartition(topic, 0)) != 30:
            assert time.monotonic() < deadline_s
            consumer.poll(0.1)
    assert seen[-1] == 30


def test_nothing_is_committed_unless_asked_for(
    options: dict[str, Any], make_topic: MakeTopic, write: Write, fresh_name: FreshName
) -> None:
    topic, group = make_topic(), fresh_name("group")
    partition = TopicPartition(topic, 0)
    bootstrap = options["bootstrap_servers"]
    write(topic, numbers(0, 30))
    calls: list[tuple[object, object, int]] = []

    class Committed(ConsumerInterceptor):
        def __init__(self) -> None:
            self.offsets: list[int] = []

        def on_commit(self, offsets: Any) -> None:
            self.offsets.append(offsets[partition].offset)

    interceptor = Committed()
    with Consumer(group_id=group, enable_auto_commit=False, interceptor_classes=[interceptor], **options) as consumer:
        consumer.subscribe([topic])
        poll_some(consumer)
        assert committed(bootstrap, group, partition) is None
        consumer.commit_sync()
        assert committed(bootstrap, group, partition) == 10
        consumer.commit_sync({partition: OffsetAndMetadata(7, metadata="note")})
        found = consumer.committed([partition])[partition]
        assert found is not None
        assert (found.offset, found.metadata) == (7, "note")
        for offset in (11, 12, 13):
            consumer.commit_async(
                {partition: offset},
                lambda offsets, error: calls.append((offsets[partition].offset, error, threading.get_ident())),
            )
        deadline_s = time.monotonic() + DEADLINE_S
        while len(calls) < 3:
            assert time.monotonic() < deadline_s
            consumer.poll(0.05)
        assert calls == [(offset, None, threading.get_ident()) for offset in (11, 12, 13)]
        assert interceptor.offsets[:2] == [10, 7]
        assert sorted(interceptor.offsets[2:]) == [11, 12, 13]
        assert consumer.metrics().commits_total == 5
    assert committed(bootstrap, group, partition) == 13


def test_iteration_commits_only_what_it_gave_out(
    options: dict[str, Any], make_topic: MakeTopic, write: Write, fresh_name: FreshName
) -> None:
    topic, group = make_topic(), fresh_name("group")
    partition = TopicPartition(topic, 0)
    write(topic, numbers(0, 30))
    with Consumer(group_id=group, **options) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            if record.offset == 3:
                consumer.commit_sync()
                assert committed(options["bootstrap_servers"], group, partition) == 4
            if record.offset == 6:
                break
    assert committed(options["bootstrap_servers"], group, partition) == 7


@pytest.mark.on_three_brokers
def test_a_consumer_goes_back_to_what_is_committed(
    options: dict[str, Any], make_topic: MakeTopic, write: Write, fresh_name: FreshName
) -> None:
    topic, group = make_topic(), fresh_name("group")
    only = TopicPartition(topic, 0)
    write(topic, numbers(0, 40))
    with Consumer(options, group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        assert poll_some(consumer)[0].offset == 0
        consumer.seek_to_committed()  # nothing is, so the reset decides
        assert poll_some(consumer)[0].offset == 0
        consumer.commit()
        assert poll_some(consumer)[0].offset == 10
        assert next(consumer).offset == 20  # and the others of that poll wait
        consumer.seek_to_committed(only)
        assert consumer.positions() == {} or consumer.positions()[only].offset == 10
        assert consumer.position(only) == 10
        assert poll_some(consumer)[0].offset == 10

    async def run() -> None:
        async with AsyncConsumer(options, group_id=group, enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            async with asyncio.timeout(DEADLINE_S):
                assert (await anext(consumer)).offset == 10
                assert consumer.positions()[only].offset == 11
                consumer.seek_to_committed()
                assert (await anext(consumer)).offset == 10

    asyncio.run(run())


def test_a_consumer_that_only_assigns_commits_for_its_group(
    options: dict[str, Any], make_topic: MakeTopic, write: Write, fresh_name: FreshName
) -> None:
    topic, group = make_topic(), fresh_name("group")
    partition = TopicPartition(topic, 0)
    write(topic, numbers(0, 30))
    with Consumer(group_id=group, **{**options, "group_protocol": "classic"}) as consumer:
        consumer.assign([partition])
        poll_some(consumer)
    assert committed(options["bootstrap_servers"], group, partition) == 10
    with Consumer(group_id=group, **{**options, "group_protocol": "classic"}) as consumer:
        consumer.assign([partition])
        assert consumer.position(partition) == 10


def test_listeners_run_in_the_users_thread_and_see_what_they_are_told(
    options: dict[str, Any], make_topic: MakeTopic, write: Write, fresh_name: FreshName
) -> None:
    topic, group = make_topic(partitions=4), fresh_name("group")
    me = threading.get_ident()

    class Listener(RebalanceListener):
        def __init__(self, consumer: Consumer) -> None:
            self.consumer = consumer
            self.owned: set[TopicPartition] = set()
            self.told: list[str] = []

        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            assert threading.get_ident() == me
            assert set(partitions) <= self.consumer.assignment()
            self.owned |= set(partitions)
            self.told.append("assigned")

        def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            assert threading.get_ident() == me
            assert set(partitions) <= self.consumer.assignment()
            self.consumer.commit_sync()  # allowed here: the partitions are still ours
            self.owned -= set(partitions)
            self.told.append("revoked")

    with Consumer(group_id=group, **options) as first, Consumer(group_id=group, **options) as second:
        one, two = Listener(first), Listener(second)
        first.subscribe([topic], listener=one)
        deadline_s = time.monotonic() + DEADLINE_S
        while len(one.owned) < 4:
            assert time.monotonic() < deadline_s
            first.poll(0.1)
        second.subscribe([topic], listener=two)
        while not (len(one.owned) == len(two.owned) == 2):
            assert time.monotonic() < deadline_s
            first.poll(0.05)
            second.poll(0.05)
        assert not one.owned & two.owned
        assert one.owned == first.assignment()
        assert one.told[0] == "assigned"
        assert "revoked" in one.told
        second.unsubscribe()
        assert two.told[-1] == "revoked"
        assert second.assignment() == frozenset()
        while len(one.owned) < 4:
            assert time.monotonic() < deadline_s
            first.poll(0.05)
    assert one.told[-1] == "revoked"


def test_a_poll_that_waits_does_not_leave_the_group(
    options: dict[str, Any], make_topic: MakeTopic, write: Write, fresh_name: FreshName
) -> None:
    topic, group = make_topic(), fresh_name("group")
    with Consumer(group_id=group, max_poll_interval_ms=1_000, session_timeout_ms=6_000, **options) as consumer:
        consumer.subscribe([topic])
        deadline_s = time.monotonic() + DEADLINE_S
        while not consumer.assignment():
            assert time.monotonic() < deadline_s
            consumer.poll(0.1)
        assert consumer.poll(2.5) == []
        write(topic, [b"x"])
        assert len(poll_some(consumer)) == 1
        consumer.commit_sync()


def test_async_members(options: dict[str, Any], make_topic: MakeTopic, write: Write, fresh_name: FreshName) -> None:
    topic, group = make_topic(partitions=2), fresh_name("group")
    for partition in range(2):
        write(topic, numbers(0, 20), partition=partition)

    class Listener(RebalanceListener):
        def __init__(self) -> None:
            self.assigned: set[TopicPartition] = set()

        async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            await asyncio.sleep(0)
            self.assigned |= set(partitions)

    async def run() -> None:
        listener = Listener()
        async with AsyncConsumer(group_id=group, **options) as consumer:
            consumer.subscribe([topic], listener=listener)
            count = 0
            async for _ in consumer:
                count += 1
                if count == 40:
                    break
            assert listener.assigned == consumer.assignment()
            await consumer.commit()
            done: list[object] = []
            consumer.commit_async(callback=lambda offsets, error: done.append(error))
            deadline_s = time.monotonic() + DEADLINE_S
            while not done:
                assert time.monotonic() < deadline_s
                await consumer.poll(0.05)
            assert done == [None]
            found = await consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)])
            assert [offset.offset for offset in found.values() if offset is not None] == [20, 20]

    asyncio.run(run())


def test_pattern_and_names(options: dict[str, Any], make_topic: MakeTopic, write: Write, fresh_name: FreshName) -> None:
    word = fresh_name("prefix")
    topic = make_topic(word)
    write(topic, [b"x"])
    with Consumer(group_id=fresh_name("group"), **options) as consumer:
        consumer.subscribe(pattern=f"{word}.*")
        assert poll_some(consumer)[0].topic == topic
        assert consumer.subscription() == {topic}
        with pytest.raises(ClientError, match="unsubscribe"):
            consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(ValueError, match="not to both"):
            consumer.subscribe([topic], pattern="x")
