"""Commits: what waits, what does not, what is automatic, who may, and what is read back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tidelog import Admin, AsyncConsumer, OffsetAndMetadata, RebalanceListener, TopicPartition
from tidelog.client.errors import CommitFailedError

NEW = {"group_protocol": "consumer"}
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}
KINDS = [pytest.param({}, id="classic"), pytest.param(COOPERATIVE, id="cooperative"), pytest.param(NEW, id="consumer")]


@pytest.mark.parametrize("options", KINDS)
def test_what_is_committed_is_read_back_with_its_note(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(3)
    group.produce(topic, 3, 5)
    consumer = group.consumer(enable_auto_commit=False, **options)
    consumer.subscribe([topic])
    group.read(consumer, 15)
    zero, one, two = (TopicPartition(topic, number) for number in range(3))
    consumer.commit_sync({zero: OffsetAndMetadata(3, 0, "half of it"), one: 5})
    assert consumer.committed([zero, one, two]) == {
        zero: OffsetAndMetadata(3, 0, "half of it"),
        one: OffsetAndMetadata(5),
        two: None,
    }
    consumer.commit_sync()
    assert {each.offset for each in consumer.committed([zero, one, two]).values() if each} == {5}
    consumer.close()
    again = group.consumer(enable_auto_commit=False, **options)
    again.subscribe([topic])
    group.produce(topic, 3, 1, start=5)
    assert [record.value for record in group.read(again, 3)] == [b"5"] * 3


@pytest.mark.parametrize("options", KINDS)
def test_commits_that_do_not_wait_call_back_in_order(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(1)
    group.produce(topic, 1, 5)
    partition = TopicPartition(topic, 0)
    consumer = group.consumer(enable_auto_commit=False, **options)
    consumer.subscribe([topic])
    group.read(consumer, 5)
    called: list[tuple[int, Exception | None]] = []
    for offset in range(50):
        consumer.commit_async(
            {partition: offset}, lambda offsets, error: called.append((offsets[partition].offset, error))
        )
    consumer.commit_sync({partition: 50})
    group.wait_for(lambda: consumer.poll(0.05) is not None and len(called) == 50)
    assert called == [(offset, None) for offset in range(50)]
    committed = consumer.committed([partition])[partition]
    assert committed is not None
    assert committed.offset == 50


@pytest.mark.parametrize("options", KINDS)
def test_automatic_commits_in_time_and_at_the_end(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(1)
    group.produce(topic, 1, 5)
    partition = TopicPartition(topic, 0)
    observer = group.consumer()
    consumer = group.consumer(auto_commit_interval_ms=200, **options)
    consumer.subscribe([topic])
    group.read(consumer, 5)
    # Handed out is not done: it is committed by a later poll.
    assert observer.committed([partition]) == {partition: None}

    def is_committed(offset: int) -> bool:
        found = observer.committed([partition])[partition]
        return found is not None and found.offset == offset

    group.wait_for(lambda: consumer.poll(0.05) is not None and is_committed(5))
    group.produce(topic, 1, 2, start=5)
    group.read(consumer, 2)
    consumer.close()
    assert is_committed(7)


@pytest.mark.parametrize("is_member", [True, False])
def test_a_poll_that_waits_for_long_commits_what_the_one_before_handed_out(group: Any, is_member: bool) -> None:
    topic = group.make_topic(1)
    group.produce(topic, 1, 5)
    partition = TopicPartition(topic, 0)
    observer = group.consumer()
    consumer = group.consumer(auto_commit_interval_ms=700)
    if is_member:
        consumer.subscribe([topic])
    else:
        consumer.assign([partition])
    group.read(consumer, 5)
    polled: list[Any] = []
    waiting = threading.Thread(target=lambda: polled.extend(consumer.poll(None)))
    waiting.start()
    try:
        group.wait_for(lambda: observer.committed([partition])[partition])
        assert waiting.is_alive()
    finally:
        group.produce(topic, 1, 1, start=5)
        waiting.join()
    assert [record.value for record in polled] == [b"5"]


def test_no_automatic_commits_without_the_wish(group: Any) -> None:
    topic = group.make_topic(1)
    group.produce(topic, 1, 5)
    consumer = group.consumer(enable_auto_commit=False, auto_commit_interval_ms=50)
    consumer.subscribe([topic])
    group.read(consumer, 5)
    # Meanwhile one that has the wish does it more than once.
    committing = group.consumer(group_id=f"{topic}-committing", auto_commit_interval_ms=50)
    committing.subscribe([topic])
    group.read(committing, 5)
    partition = TopicPartition(topic, 0)
    group.wait_for(lambda: committing.poll(0.01) == [] and committing.committed([partition])[partition] is not None)
    consumer.poll(0)
    consumer.close()
    assert group.consumer().committed([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): None}


def test_a_consumer_outside_of_the_group_commits_for_itself(group: Any) -> None:
    topic = group.make_topic(1)
    group.produce(topic, 1, 5)
    partition = TopicPartition(topic, 0)
    consumer = group.consumer(auto_commit_interval_ms=200)
    consumer.assign([partition])
    group.read(consumer, 5)
    metadata = consumer.group_metadata()
    assert (metadata.group_id, metadata.generation_id, metadata.member_id) == (group.group_id, -1, "")
    consumer.close()
    again = group.consumer()
    found = again.committed([partition])[partition]
    assert found is not None
    assert found.offset == 5


@pytest.mark.parametrize("options", [pytest.param({}, id="classic"), pytest.param(NEW, id="consumer")])
def test_a_stranger_may_not_commit_for_a_group_that_has_members(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(1)
    member = group.work([topic], **options)
    group.wait_for(lambda: member.owned)
    stranger = group.consumer()
    stranger.assign([TopicPartition(topic, 0)])
    with pytest.raises(CommitFailedError):
        stranger.commit_sync({TopicPartition(topic, 0): 1})


def test_a_member_commits_before_it_has_joined(group: Any) -> None:
    topic = group.make_topic(1)
    consumer = group.consumer(enable_auto_commit=False)
    consumer.subscribe([group.fresh_name("other")])
    with pytest.raises(CommitFailedError, match=r"call poll\(\)"):
        consumer.commit_sync({TopicPartition(topic, 0): 1})


@pytest.mark.parametrize("options", KINDS)
def test_the_members_own_identity_goes_to_transactions(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(1)
    consumer = group.consumer(**options)
    consumer.subscribe([topic])
    group.wait_for(lambda: consumer.poll(0.1) is not None and consumer.assignment())
    metadata = consumer.group_metadata()
    assert metadata.group_id == group.group_id
    assert metadata.generation_id > 0
    with Admin(bootstrap_servers=group.bootstrap) as admin:
        described = admin.describe_consumer_groups([group.group_id])[group.group_id]
    assert [member.member_id for member in described.members] == [metadata.member_id]


def test_a_commit_during_a_cooperative_rebalance_waits_for_its_end(group: Any) -> None:
    """The member reads on and commits while others join; nothing is refused."""
    topic = group.make_topic(4)
    group.produce(topic, 4, 100)
    done = threading.Event()
    failures: list[BaseException] = []

    def commit_all_the_time() -> None:
        consumer = group.consumer(enable_auto_commit=False, **COOPERATIVE)
        consumer.subscribe([topic])
        try:
            while not done.is_set():
                consumer.poll(0.01)
                for _ in range(5):
                    if consumer.assignment():
                        consumer.commit_sync()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures.append(error)
        finally:
            consumer.close()

    thread = threading.Thread(target=commit_all_the_time)
    thread.start()
    try:
        for _ in range(4):
            other = group.work([topic], **COOPERATIVE)
            group.wait_for(lambda other=other: other.owned)
            other.stop()
            group.workers.remove(other)
    finally:
        done.set()
        thread.join()
    assert failures == []


@pytest.mark.parametrize("options", KINDS)
def test_an_async_consumer_with_an_async_listener(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(2)
    group.produce(topic, 2, 5)
    told: list[str] = []

    class Listener(RebalanceListener):
        async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            await asyncio.sleep(0)
            told.append(f"assigned {len(partitions)}")

        async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            await consumer.commit()
            told.append(f"revoked {len(partitions)}")

    consumer = AsyncConsumer(**group.settings(enable_auto_commit=False, **options))

    async def run() -> None:
        async with consumer:
            consumer.subscribe([topic], listener=Listener())
            records: list[Any] = []
            async with asyncio.timeout(40):
                while len(records) < 10:
                    records += await consumer.poll(0.5)

    asyncio.run(run())
    assert told == ["assigned 2", "revoked 2"]
    observer = group.consumer()
    committed = observer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    assert [found.offset for found in committed.values() if found] == [5, 5]
