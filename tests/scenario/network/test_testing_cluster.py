"""`tidelog.testing.Cluster`: brokers of one cluster inside a test, and what they leave behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tidelog import Admin, Consumer, Producer
from tidelog.testing import Cluster


def test_the_fixture_gives_three_brokers_of_one_cluster(tidelog_cluster: Cluster) -> None:
    with Admin(bootstrap_servers=tidelog_cluster.bootstrap) as admin:
        nodes = admin.describe_cluster().nodes
    expected = {(node_id, broker.port) for node_id, broker in tidelog_cluster.brokers.items()}
    assert {(node.node_id, node.address.port) for node in nodes} == expected
    assert tidelog_cluster.running == (1, 2, 3)


def test_topics_are_replicated_and_internal_ones_small(tidelog_cluster: Cluster) -> None:
    cluster = tidelog_cluster
    cluster.create_topic("orders", partitions=3)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("created-by-use", b"first").result(30)
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id="group", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["created-by-use"])
        assert [record.value for record in consumer.poll(30)] == [b"first"]
        consumer.commit()
    image = cluster.wait(lambda image: "__consumer_offsets" in image.topics)
    assert {len(state.replicas) for topic in image.topics.values() for state in topic.partitions} == {3}
    assert sorted(state.leader for state in image.topics["orders"].partitions) == [1, 2, 3]
    assert len(image.topics["__consumer_offsets"].partitions) < 10


def test_brokers_die_stop_and_come_back_with_their_ports_and_data() -> None:
    with Cluster() as cluster:
        cluster.create_topic("orders", replicas=[(3, 1, 2)])
        ports = {node_id: broker.port for node_id, broker in cluster.brokers.items()}
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("orders", b"to 3").result(30)
            cluster.kill(3)
            assert cluster.running == (1, 2)
            assert cluster.leader("orders") == 1
            producer.send("orders", b"to 1").result(30)
            cluster.start(3)
            cluster.wait_until_in_sync()
            cluster.restart(1)
            cluster.wait_until_in_sync()
            cluster.stop(2)
            producer.send("orders", b"without 2").result(30)
        cluster.start()
        assert list(cluster.running) == [1, 2, 3]
        assert {node_id: broker.port for node_id, broker in cluster.brokers.items()} == ports
        with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([("orders", 0)])
            values: list[bytes | None] = []
            while len(values) < 3:
                values += [record.value for record in consumer.poll(30)]
        assert values == [b"to 3", b"to 1", b"without 2"]


def test_a_leader_moves_where_it_is_told_and_stays_there() -> None:
    with Cluster() as cluster:
        cluster.create_topic("orders", replicas=[(1, 2, 3)])
        cluster.create_topic("two", replicas=[(1, 2)])
        for node_id in (3, 2, 1, 1, 3):
            cluster.move_leader("orders", 0, node_id)
            assert cluster.leader("orders", 0) == node_id
        assert cluster.leader("two") == 1
        image = cluster.wait(lambda image: not image.topics["orders"].partitions[0].is_reassigned)
        state = image.topics["orders"].partitions[0]
        assert state.replicas[0] == 3
        assert set(state.isr) == {1, 2, 3}
        with pytest.raises(ValueError, match="broker 3 has no replica of two-0"):
            cluster.move_leader("two", 0, 3)


def test_racks_and_settings_reach_the_brokers() -> None:
    with Cluster(2, settings={"num.partitions": 4}, racks=["east", "west"]) as cluster:
        cluster.create_topic("orders", partitions=-1)
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            assert [node.rack for node in admin.describe_cluster().nodes] == ["east", "west"]
            partitions = admin.describe_topics("orders")["orders"].partitions
    assert [len(partition.replicas) for partition in partitions] == [2, 2, 2, 2]
    with pytest.raises(ValueError, match="2 brokers need as many racks, not 1"):
        Cluster(2, racks=["east"])


def test_nothing_is_left_behind_but_a_directory_that_was_given(tmp_path: Path) -> None:
    threads_before = set(threading.enumerate())
    with Cluster(2) as cluster:
        temporary = cluster.data_dir
        cluster.create_topic("orders")
    assert not temporary.exists()
    with Cluster(2, data_dir=tmp_path) as cluster:
        cluster.create_topic("kept")
    with Cluster(2, data_dir=tmp_path) as cluster:
        assert cluster.leader("kept") in (1, 2)
    left = [thread for thread in set(threading.enumerate()) - threads_before if thread.is_alive()]
    assert not left


def test_a_start_that_fails_ends_those_that_had_started(tmp_path: Path) -> None:
    cluster = Cluster(2, data_dir=tmp_path, settings={"broker.rack": "east", "log.dirs": [str(tmp_path / "one")]})
    with pytest.raises(Exception, match="in use"), cluster:
        pass
    assert cluster.running == ()
