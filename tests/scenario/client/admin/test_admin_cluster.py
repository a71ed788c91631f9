from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog import Admin
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.errors import BrokerError
from tidelog.client.types import RecordMetadata, TopicPartition

MakeTopic = Callable[..., str]


@pytest.mark.on_three_brokers
def test_the_cluster_is_described(admin: Admin, client_cluster: BrokerProcess) -> None:
    described = admin.describe_cluster()
    assert described.cluster_id
    assert ",".join(str(node.address) for node in described.nodes) == client_cluster.bootstrap
    assert described.controller_id in {node.node_id for node in described.nodes}


def test_features_are_described(admin: Admin) -> None:
    features = admin.describe_features()
    assert features.finalized
    for name, agreed in features.finalized.items():
        possible = features.supported[name]
        assert possible.min_version <= agreed.min_version <= agreed.max_version <= possible.max_version
    assert features.finalized_epoch is not None


@pytest.mark.on_three_brokers
def test_log_directories_are_described(
    admin: Admin, make_topic: MakeTopic, produce: Callable[..., RecordMetadata]
) -> None:
    name = make_topic(2)
    produce(name, bytes(1000), partition=1)
    leader_id = admin.describe_topics(name)[name].partitions[1].leader_id
    node = next(node for node in admin.describe_cluster().nodes if node.node_id == leader_id)
    keys = [TopicPartition(name, 0), TopicPartition(name, 1)]
    (directory,) = admin.describe_log_dirs(partitions=keys)[node.node_id]
    assert directory.node_id == node.node_id
    assert directory.error is None
    assert directory.total_bytes >= directory.usable_bytes > 0
    sizes = {replica.topic_partition: replica.size_bytes for replica in directory.replicas}
    assert sizes.keys() == set(keys)
    assert sizes[keys[0]] == 0
    assert sizes[keys[1]] > 1000
    (everything,) = admin.describe_log_dirs([node.node_id])[node.node_id]
    assert set(keys) <= {replica.topic_partition for replica in everything.replicas}
    assert not any(replica.is_future or replica.offset_lag for replica in everything.replicas)


def test_brokers_that_are_not_there_are_their_own_errors(admin: Admin) -> None:
    node, *_ = admin.describe_cluster().nodes
    described = admin.describe_log_dirs([node.node_id + 1000, node.node_id])
    assert list(described.succeeded) == [node.node_id]
    with pytest.raises(BrokerError, match=f"broker {node.node_id + 1000} is not in the cluster"):
        described.raise_for_errors()
