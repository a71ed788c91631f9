"""Whole consumers in groups: they share partitions, follow changes, take over, and lose nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tidelog import Admin, Consumer, RebalanceListener, TopicPartition
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.admin.types import NewPartitions
from tidelog.client.errors import BrokerError, CommitFailedError, FencedInstanceError, PollIntervalExceededError

RANGE = {"partition_assignment_strategy": "range"}
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}
NEW = {"group_protocol": "consumer"}
KINDS = [pytest.param(RANGE, id="range"), pytest.param(COOPERATIVE, id="cooperative"), pytest.param(NEW, id="consumer")]


@pytest.mark.parametrize("options", KINDS)
def test_members_share_the_partitions_and_read_everything_once(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(6)
    group.produce(topic, 6, 50)
    first = group.work([topic], **options)
    group.wait_shared(topic, 6, 6)
    group.wait_for(lambda: len(first.records) == 300)
    second, third = group.work([topic], **options), group.work([topic], **options)
    group.wait_shared(topic, 6, 2, 2, 2)
    group.produce(topic, 6, 50, start=50)
    group.wait_for(lambda: sum(len(worker.records) for worker in group.workers) >= 600)
    third.stop()
    group.workers.remove(third)
    group.wait_shared(topic, 6, 3, 3)
    second.stop()
    group.workers.remove(second)
    group.wait_shared(topic, 6, 6)
    group.produce(topic, 6, 50, start=100)
    everybody = [first, second, third]
    group.wait_for(lambda: sum(len(worker.records) for worker in everybody) >= 900)
    read = Counter((record.partition, record.value) for worker in everybody for record in worker.records)
    assert read == {(partition, b"%d" % number): 1 for partition in range(6) for number in range(150)}
    assert all(not worker.errors for worker in everybody)
    assert all(event != "lost" for worker in everybody for event, _ in worker.events)


@pytest.mark.parametrize("options", KINDS)
def test_more_members_than_partitions_and_several_groups(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(1)
    for _ in range(2):
        group.work([topic], **options)
    group.wait_shared(topic, 1, 0, 1)
    group.produce(topic, 1, 20)
    group.wait_for(lambda: sum(len(worker.records) for worker in group.workers) == 20)
    other = group.work([topic], **{**options, "group_id": group.fresh_name("other")})
    group.wait_for(lambda: len(other.records) == 20)


def test_a_cooperative_member_reads_on_what_it_keeps(group: Any) -> None:
    topic = group.make_topic(4)
    first = group.work([topic], **COOPERATIVE)
    group.wait_shared(topic, 4, 4)
    group.work([topic], **COOPERATIVE)
    group.wait_shared(topic, 4, 2, 2)
    gone = [partitions for event, partitions in first.events if event == "revoked"]
    assert [len(partitions) for partitions in gone] == [2]


@pytest.mark.parametrize("options", KINDS)
def test_a_static_member_that_restarts_keeps_its_partitions(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(4)
    first = group.work([topic], group_instance_id="one", **options)
    second = group.work([topic], group_instance_id="two", **options)
    group.wait_shared(topic, 4, 2, 2)
    before, told = set(first.owned), list(second.events)
    first.stop()
    group.workers.remove(first)
    again = group.work([topic], group_instance_id="one", **options)
    group.wait_shared(topic, 4, 2, 2)
    assert again.owned == before
    assert second.events == told


def test_a_second_consumer_with_the_same_instance_id_shuts_the_first_out(group: Any) -> None:
    topic = group.make_topic(1)
    first = group.work([topic], group_instance_id="one")
    group.wait_shared(topic, 1, 1)
    group.work([topic], group_instance_id="one")
    group.wait_for(lambda: first.errors)
    assert isinstance(first.errors[0], FencedInstanceError)
    assert "group.instance.id one" in str(first.errors[0])
    assert first.events[-1][0] == "lost"


_PROGRAM = """
import sys
from tidelog import Consumer
consumer = Consumer(bootstrap_servers=sys.argv[1], group_id=sys.argv[2], session_timeout_ms=6000,
                    heartbeat_interval_ms=300, partition_assignment_strategy=sys.argv[4])
consumer.subscribe([sys.argv[3]])
while True:
    consumer.poll(0.1)
    if len(consumer.assignment()) == 2:
        print("reads", flush=True)
"""


@pytest.mark.parametrize("strategy", ["cooperative-sticky"])
def test_a_member_that_is_killed_is_replaced_when_its_session_ends(group: Any, strategy: str) -> None:
    topic = group.make_topic(4)
    survivor = group.work([topic], partition_assignment_strategy=strategy)
    group.wait_shared(topic, 4, 4)
    arguments = [group.bootstrap, group.group_id, topic, strategy]
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, *arguments], stdout=subprocess.PIPE, text=True) as victim:
        try:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "reads\n"
            group.wait_for(lambda: len(survivor.owned) == 2)
        finally:
            victim.kill()
    group.wait_shared(topic, 4, 4)


@pytest.mark.parametrize("options", KINDS)
def test_a_consumer_that_polls_too_late_is_told_so(
    group: Any, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    topic = group.make_topic(2)
    group.produce(topic, 2, 5)
    slow = group.work([topic], max_poll_interval_ms=1_500, enable_auto_commit=False, **options)
    group.wait_shared(topic, 2, 2)
    group.wait_for(lambda: len(slow.records) == 10)
    slow.may_poll.clear()
    other = group.work([topic], **options)
    group.wait_for(lambda: len(other.owned) == 2)
    with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms=1500") as caught:
        slow.consumer.commit_sync()
    assert isinstance(caught.value.__cause__, PollIntervalExceededError)
    assert "max.poll.records" in str(caught.value)
    assert any("max.poll.interval.ms" in record.message for record in caplog.records)
    slow.may_poll.set()
    group.wait_shared(topic, 2, 1, 1)
    assert "lost" in [event for event, _ in slow.events]


@pytest.mark.parametrize("options", KINDS)
def test_partitions_that_are_added_and_topics_that_begin_to_match(group: Any, options: dict[str, Any]) -> None:
    prefix = group.fresh_name("many")
    group.create(f"{prefix}.a", 1)
    pattern = re.compile(re.escape(prefix) + r"\.[a-z]")
    worker = group.work(pattern, metadata_max_age_ms=300, **options)
    group.wait_for(lambda: worker.owned == {TopicPartition(f"{prefix}.a", 0)})
    group.create(f"{prefix}.b", 1)
    group.create(f"{prefix}.capital", 1)
    with Admin(bootstrap_servers=group.bootstrap) as admin:
        admin.create_partitions({f"{prefix}.a": NewPartitions(2)}).raise_for_errors()
    wanted = {TopicPartition(f"{prefix}.a", 0), TopicPartition(f"{prefix}.a", 1), TopicPartition(f"{prefix}.b", 0)}
    group.wait_for(lambda: worker.owned == wanted)


@pytest.mark.parametrize("options", KINDS)
def test_a_changed_subscription_and_none_at_all(group: Any, options: dict[str, Any]) -> None:
    one, two = group.make_topic(1), group.make_topic(1)
    consumer = group.consumer(**options)
    consumer.subscribe([one])
    group.wait_for(lambda: consumer.poll(0.1) is not None and consumer.assignment() == {TopicPartition(one, 0)})
    consumer.subscribe([two])
    group.wait_for(lambda: consumer.poll(0.1) is not None and consumer.assignment() == {TopicPartition(two, 0)})
    consumer.unsubscribe()
    assert consumer.assignment() == frozenset()
    consumer.subscribe([one, two])
    both = {TopicPartition(one, 0), TopicPartition(two, 0)}
    group.wait_for(lambda: consumer.poll(0.1) is not None and consumer.assignment() == both)


@pytest.mark.parametrize("options", KINDS)
def test_a_topic_that_is_made_after_the_subscription(group: Any, options: dict[str, Any]) -> None:
    topic = group.fresh_name("later")
    worker = group.work([topic], allow_auto_create_topics=False, metadata_max_age_ms=300, **options)
    group.wait_for(lambda: worker.events)
    assert not worker.owned
    group.create(topic, 2)
    group.wait_shared(topic, 2, 2)


def test_assignors_that_do_not_fit_are_named(group: Any) -> None:
    topic = group.make_topic(1)
    group.work([topic], partition_assignment_strategy="range")
    group.wait_shared(topic, 1, 1)
    stranger = group.work([topic], partition_assignment_strategy="sticky")
    group.wait_for(lambda: stranger.errors)
    assert isinstance(stranger.errors[0], BrokerError)
    assert "(sticky)" in str(stranger.errors[0])


@pytest.mark.parametrize("options", KINDS)
def test_what_a_listener_raises_reaches_the_user_and_stops_nothing(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(1)
    group.produce(topic, 1, 3)

    class Clumsy(RebalanceListener):
        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            raise LookupError("no such desk")

    consumer = group.consumer(**options)
    consumer.subscribe([topic], listener=Clumsy())
    with pytest.raises(LookupError, match="no such desk"):
        group.wait_for(lambda: consumer.poll(0.1))
    group.read(consumer, 3)


@pytest.mark.parametrize("options", KINDS)
def test_a_listener_may_seek_and_commit(group: Any, options: dict[str, Any]) -> None:
    topic = group.make_topic(1)
    group.produce(topic, 1, 10)
    partition = TopicPartition(topic, 0)

    class Careful(RebalanceListener):
        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            if partitions:
                consumer.seek(partition, 7)

        def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            if partitions:
                consumer.commit_sync()

    consumer: Consumer = group.consumer(enable_auto_commit=False, **options)
    consumer.subscribe([topic], listener=Careful())
    records = group.read(consumer, 3)
    assert [record.offset for record in records] == [7, 8, 9]
    consumer.unsubscribe()
    committed = consumer.committed([partition])[partition]
    assert committed is not None
    assert committed.offset == 10


@pytest.mark.parametrize("options", KINDS[1:])
def test_a_broker_that_restarts(own_group: Any, own_cluster: BrokerProcess, options: dict[str, Any]) -> None:
    topic = own_group.make_topic(2)
    own_group.produce(topic, 2, 10)
    worker = own_group.work([topic], **options)
    own_group.wait_for(lambda: len(worker.records) == 20)
    own_cluster.kill()
    own_cluster.start()
    own_group.produce(topic, 2, 10, start=10)
    own_group.wait_for(lambda: len(worker.records) >= 40)
    assert not worker.errors
    values = Counter((record.partition, record.value) for record in worker.records)
    assert set(values) == {(partition, b"%d" % number) for partition in range(2) for number in range(20)}
