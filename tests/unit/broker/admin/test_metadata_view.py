"""What Metadata answers are made from follows the image, and is kept while nothing changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.metadata_view import MetadataView
from tidelog.common.steps import run_through
from tidelog.controller import NewPartitions, NewTopic

if TYPE_CHECKING:
    from tests.unit.broker.admin.conftest import AdminBroker


def test_a_topic_is_built_again_only_when_it_changed(broker: AdminBroker) -> None:
    view = MetadataView()
    broker.run(broker.controller.create_topics([NewTopic("a"), NewTopic("b")]))
    view.follow(broker.image)
    a, b = (run_through(view.topic(broker.image.topics[name])) for name in "ab")

    broker.run(broker.controller.create_partitions([NewPartitions("a", 3)]))
    view.follow(broker.image)
    assert len(run_through(view.topic(broker.image.topics["a"])).partitions) == 3
    assert run_through(view.topic(broker.image.topics["a"])) is not a
    assert run_through(view.topic(broker.image.topics["b"])) is b


def test_topics_that_are_gone_are_forgotten(broker: AdminBroker) -> None:
    view = MetadataView()
    broker.run(broker.controller.create_topics([NewTopic(f"t{number}") for number in range(10)]))
    view.follow(broker.image)
    for topic in broker.image.topics.values():
        run_through(view.topic(topic))
    broker.run(broker.controller.delete_topics([f"t{number}" for number in range(9)]))
    view.follow(broker.image)
    assert len(view._topics) == 1


def test_the_brokers_are_those_that_are_alive(broker: AdminBroker) -> None:
    view = MetadataView()
    view.follow(broker.image)
    assert view.live_brokers == {1}
    assert [each.node_id for each in view.brokers("PLAINTEXT")] == [1]


def test_a_broker_without_a_session_sends_nobody_to_itself(broker: AdminBroker) -> None:
    view = MetadataView()
    broker.run(broker.controller.create_topics([NewTopic("a")]))
    for fenced, leader_id in ((frozenset[int](), 1), (frozenset({1}), -1), (frozenset[int](), 1)):
        view.follow(broker.image, fenced=fenced)
        assert [each.node_id for each in view.brokers("PLAINTEXT")] == [1][: 1 - len(fenced)]
        (partition,) = run_through(view.topic(broker.image.topics["a"])).partitions
        assert partition.leader_id == leader_id
