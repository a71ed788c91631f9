"""Groups whose connections break, whose coordinator stands still, whose topics vanish: all of them recover."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest

from proxied_cluster import ProxiedCluster
from tcp_proxy import TcpProxy
from tidelog import Admin, TopicPartition
from tidelog.client.errors import RetriableError

COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}
NEW = {"group_protocol": "consumer"}
KINDS = [pytest.param(COOPERATIVE, id="cooperative"), pytest.param(NEW, id="consumer")]


@pytest.fixture
def proxied_group(
    proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str], make_group: Callable[..., Any]
) -> Iterator[Any]:
    with ExitStack() as stack:
        yield make_group(proxied_cluster, fresh_name, stack)


def cut_and_let_them_talk(proxy: TcpProxy, answer_bytes: int) -> None:
    """Reset all connections, and wait until clients have come back and were answered so much."""
    proxy.cut_all()
    wanted = proxy.answer_bytes + answer_bytes
    proxy.wait_for(lambda: proxy.answer_bytes >= wanted)


@pytest.mark.parametrize("options", KINDS)
def test_connections_that_break_all_the_time(
    proxied_group: Any, proxied_cluster: ProxiedCluster, options: dict[str, Any]
) -> None:
    group = proxied_group
    topic = group.make_topic(4)
    workers = [group.work([topic], auto_commit_interval_ms=100, **options) for _ in range(2)]
    for round_number in range(6):
        cut_and_let_them_talk(proxied_cluster.proxy, 500 + 500 * round_number)
    group.produce(topic, 4, 25)
    for _ in range(6):
        cut_and_let_them_talk(proxied_cluster.proxy, 1000)
    wanted = {(partition, b"%d" % number) for partition in range(4) for number in range(25)}

    def read() -> set[tuple[int, bytes]]:
        return {(record.partition, record.value) for worker in workers for record in worker.records}

    group.wait_for(lambda: read() == wanted)
    group.wait_shared(topic, 4, 2, 2)
    assert all(not worker.errors for worker in workers)


@pytest.mark.parametrize("options", KINDS[:1])
def test_a_coordinator_that_stands_still_and_comes_back(
    proxied_group: Any, proxied_cluster: ProxiedCluster, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    group = proxied_group
    topic = group.make_topic(2)
    group.produce(topic, 2, 10)
    worker = group.work([topic], request_timeout_ms=1_000, **options)
    group.wait_for(lambda: len(worker.records) == 20)
    proxied_cluster.proxy.stalled = True
    group.wait_for(lambda: caplog.text.count("Heartbeat failed, retrying") > 1)
    proxied_cluster.proxy.stalled = False
    group.produce(topic, 2, 10, start=10)
    values = {(partition, b"%d" % number) for partition in range(2) for number in range(20)}
    group.wait_for(lambda: {(record.partition, record.value) for record in worker.records} == values)
    assert not worker.errors
    assert Counter(event for event, _ in worker.events)["lost"] == 0


@pytest.mark.parametrize("options", KINDS)
def test_a_topic_that_is_deleted_does_not_hold_up_the_group(group: Any, options: dict[str, Any]) -> None:
    gone: str = group.make_topic(2)
    kept: str = group.make_topic(2)
    group.produce(gone, 2, 5)
    group.produce(kept, 2, 5)
    worker = group.work([gone, kept], metadata_max_age_ms=300, allow_auto_create_topics=False, **options)
    group.wait_for(lambda: len(worker.records) == 20)
    with Admin(bootstrap_servers=group.bootstrap) as admin:
        admin.delete_topics([gone]).raise_for_errors()
    group.wait_for(lambda: {partition.topic for partition in worker.owned} == {kept})
    began_s = time.monotonic()
    worker.stop()
    group.workers.remove(worker)
    assert not worker.errors
    assert time.monotonic() - began_s < 10


def test_offsets_of_an_open_transaction_are_waited_for_by_those_who_read_committed(group: Any) -> None:
    topic = group.make_topic(1)
    partition = TopicPartition(topic, 0)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": group.bootstrap, "transactional.id": group.fresh_name("transaction")}
    )
    theirs = confluent_kafka.Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group_id})
    try:
        producer.init_transactions(30)
        producer.begin_transaction()
        offsets = [confluent_kafka.TopicPartition(topic, 0, 7)]
        producer.send_offsets_to_transaction(offsets, theirs.consumer_group_metadata(), 30)
        careless = group.consumer(isolation_level="read_uncommitted")
        careful = group.consumer(isolation_level="read_committed")
        assert careless.committed([partition]) == {partition: None}
        with pytest.raises(RetriableError, match="UNSTABLE_OFFSET_COMMIT"):
            careful.committed([partition], timeout=1.0)
        producer.commit_transaction(30)
        # The careful one waits until the markers are written, which may be after the commit was answered.
        for consumer in (careful, careless):
            found = consumer.committed([partition])[partition]
            assert found is not None
            assert found.offset == 7
    finally:
        theirs.close()


@pytest.mark.parametrize("options", KINDS)
def test_a_connection_that_breaks_anywhere_in_an_answer(
    proxied_group: Any, proxied_cluster: ProxiedCluster, options: dict[str, Any]
) -> None:
    """On the way into the group, each time a few bytes later; every consumer arrives, and its offsets with it."""
    group = proxied_group
    topic = group.make_topic(1)
    partition = TopicPartition(topic, 0)
    proxy = proxied_cluster.proxy
    for cut_after in range(1, 2_600, 130):
        group.group_id = group.fresh_name("group")
        proxy.cut_after_answer_bytes = cut_after
        consumer = group.consumer(**options)
        consumer.subscribe([topic])
        group.wait_for(lambda consumer=consumer: consumer.poll(0.1) is not None and consumer.assignment())
        consumer.commit_sync({partition: cut_after})
        found = consumer.committed([partition])[partition]
        assert found is not None
        assert found.offset == cut_after
        consumer.close()
    assert proxy.cuts > 10
