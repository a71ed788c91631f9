"""Transactions whose coordinator, groups and partitions are led by different brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog import Admin, Producer
from tidelog.client.admin import NewTopic
from tidelog.client.types import TopicPartition

if TYPE_CHECKING:
    from tests.scenario.cluster.conftest import SmallCluster

# One partition for each broker.
SETTINGS = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}
GROUPS = ("group-0", "group-1", "group-2")


def test_offsets_of_groups_that_any_broker_coordinates(make_cluster: Callable[..., SmallCluster]) -> None:
    cluster = make_cluster(SETTINGS)
    cluster.start(1, 2, 3)
    cluster.wait(lambda image: set(image.brokers) == {1, 2, 3})
    read = TopicPartition("read", 0)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("read", 1, 1), NewTopic("written", 3, 1)]).raise_for_errors()
        with Producer(bootstrap_servers=cluster.bootstrap, transactional_id="copier") as producer:
            for offset in (1, 2):
                with producer.transaction():
                    for partition in range(3):
                        producer.send("written", b"copy", partition=partition)
                    for group_id in GROUPS:
                        producer.send_offsets_to_transaction({read: offset}, group_id)
        described = admin.describe_consumer_groups(GROUPS)
        assert {described[group_id].coordinator_id for group_id in GROUPS} == {1, 2, 3}
        stored = admin.list_consumer_group_offsets({group_id: [read] for group_id in GROUPS}, require_stable=True)
        assert [stored[group_id][read].offset for group_id in GROUPS] == [2, 2, 2]
