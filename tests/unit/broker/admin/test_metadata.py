"""Metadata in every version, and the topics that asking for them creates."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tidelog.broker.handlers.k03_metadata import handle_metadata
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import run_through
from tidelog.controller import NewTopic
from tidelog.controller.image import ClusterImage
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataRequestTopic, MetadataResponse

if TYPE_CHECKING:
    from tests.unit.broker.admin.conftest import AdminBroker

VERSIONS = range(14)


def ask(
    broker: AdminBroker, names: list[str] | None, version: int, *, create: bool = True, with_operations: bool = False
) -> MetadataResponse:
    request = MetadataRequest(topics=None if names is None else [MetadataRequestTopic(name=name) for name in names])
    if version >= 4:
        request.allow_auto_topic_creation = create
    if version >= 8:
        request.include_topic_authorized_operations = with_operations
    if 8 <= version <= 10:
        request.include_cluster_authorized_operations = with_operations
    return broker.call(METADATA, request, MetadataResponse, version)


def create(broker: AdminBroker, *names: str, partitions: int = 1) -> None:
    broker.run(broker.controller.create_topics([NewTopic(name, partitions) for name in names]))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_described_with_what_the_version_has(broker: AdminBroker, version: int) -> None:
    create(broker, "orders", partitions=3)
    answer = ask(broker, ["orders"], version)
    assert [(each.node_id, each.host, each.port) for each in answer.brokers] == [(1, "127.0.0.1", 9092)]
    assert answer.brokers[0].rack == ("rack-a" if version >= 1 else None)
    assert answer.cluster_id == (broker.image.cluster_id if version >= 2 else None)
    assert answer.controller_id == (1 if version >= 1 else -1)
    [topic] = answer.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "orders", False)
    assert topic.topic_id == (broker.image.topics["orders"].topic_id if version >= 10 else uuid.UUID(int=0))
    assert topic.topic_authorized_operations == -(2**31)
    assert answer.cluster_authorized_operations == -(2**31)
    assert [partition.partition_index for partition in topic.partitions] == [0, 1, 2]
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (0, 1)
        assert partition.leader_epoch == (0 if version >= 7 else -1)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])


@pytest.mark.parametrize("version", VERSIONS)
def test_null_asks_for_all_and_empty_for_none_except_in_version_0(broker: AdminBroker, version: int) -> None:
    """Behaviour 12."""
    create(broker, "a", "b")
    if version >= 1:
        assert {topic.name for topic in ask(broker, None, version).topics} == {"a", "b"}
    assert {topic.name for topic in ask(broker, [], version).topics} == (set() if version >= 1 else {"a", "b"})


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_topic_is_created_with_the_broker_s_partitions(
    make_broker: Callable[..., AdminBroker], version: int
) -> None:
    """Behaviour 14: the first answer has an error, the next a leader."""
    broker = make_broker("num.partitions=4")
    assert [topic.error_code for topic in ask(broker, ["new"], version).topics] == [3]
    [topic] = ask(broker, ["new"], version).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 4)
    assert {partition.leader_id for partition in topic.partitions} == {1}


@pytest.mark.parametrize("version", range(4, 14))
def test_a_client_may_ask_without_creating(broker: AdminBroker, version: int) -> None:
    """Behaviour 12."""
    assert [topic.error_code for topic in ask(broker, ["new"], version, create=False).topics] == [3]
    assert not broker.image.topics


def test_nothing_is_created_where_the_broker_does_not_allow_it(make_broker: Callable[..., AdminBroker]) -> None:
    broker = make_broker("auto.create.topics.enable=false")
    assert [topic.error_code for topic in ask(broker, ["new"], 12).topics] == [3]
    assert not broker.image.topics


@pytest.mark.parametrize("name", ["", "..", "a b", "a/b", "é", "x" * 250])
def test_a_bad_name_is_refused_and_not_created(broker: AdminBroker, name: str) -> None:
    """Behaviour 12."""
    [topic] = ask(broker, [name], 12).topics
    assert (topic.error_code, topic.name) == (17, name)
    assert not broker.image.topics


def test_internal_topics_are_not_created_by_asking(broker: AdminBroker) -> None:
    assert [topic.error_code for topic in ask(broker, ["__consumer_offsets"], 12).topics] == [3]
    assert not broker.image.topics


def test_one_request_may_hold_known_unknown_bad_and_repeated_names(broker: AdminBroker) -> None:
    create(broker, "a")
    topics = ask(broker, ["a", "b", "!", "a", "b"], 12, create=False).topics
    assert [(topic.name, topic.error_code) for topic in topics] == [("a", 0), ("b", 3), ("!", 17)]


def ask_by_id(broker: AdminBroker, topic_id: uuid.UUID, version: int) -> MetadataResponse:
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
    return broker.call(METADATA, request, MetadataResponse, version)


@pytest.mark.parametrize("version", [12, 13])
def test_topics_by_id(broker: AdminBroker, version: int) -> None:
    """Behaviour 13."""
    create(broker, "a")
    topic_id = broker.image.topics["a"].topic_id
    [topic] = ask_by_id(broker, topic_id, version).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (0, "a", topic_id)
    stranger = uuid.UUID(int=99)
    [topic] = ask_by_id(broker, stranger, version).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (100, None, stranger)
    assert list(broker.image.topics) == ["a"]


@pytest.mark.parametrize("version", [10, 11])
def test_versions_that_carry_ids_but_do_not_take_them(broker: AdminBroker, version: int) -> None:
    create(broker, "a")
    [topic] = ask_by_id(broker, broker.image.topics["a"].topic_id, version).topics
    assert (topic.error_code, topic.name) == (42, "")


@pytest.mark.parametrize("version", range(8, 14))
def test_authorized_operations_are_told_when_asked_for(broker: AdminBroker, version: int) -> None:
    create(broker, "a")
    answer = ask(broker, ["a"], version, with_operations=True)
    assert answer.topics[0].topic_authorized_operations == 0b1101_1111_1000
    assert answer.cluster_authorized_operations == (0b1_1111_1010_0000 if version <= 10 else -(2**31))


def test_a_fenced_broker_s_partitions_have_no_leader(broker: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    create(broker, "a")
    image = broker.image
    fenced: ClusterImage = replace(image, brokers={1: replace(image.brokers[1], fenced=True)})
    monkeypatch.setattr(broker.services.cluster._image, "value", fenced)
    answer = ask(broker, ["a"], 12)
    assert answer.brokers == []
    [partition] = answer.topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.offline_replicas) == (5, -1, [1])


@pytest.mark.parametrize("with_operations", [False, True])
def test_a_topic_that_is_being_opened_has_an_error_and_no_partition(broker: AdminBroker, with_operations: bool) -> None:
    create(broker, "a", partitions=3)
    broker.replicas.first_opening = 0
    [topic] = ask(broker, ["a"], 10, with_operations=with_operations).topics
    assert (topic.error_code, topic.name, topic.partitions) == (ErrorCode.LEADER_NOT_AVAILABLE, "a", [])
    assert topic.topic_id == broker.controller.image.topics["a"].topic_id
    broker.replicas.first_opening = 2
    [topic] = ask(broker, ["a"], 10, with_operations=with_operations).topics
    assert (topic.error_code, [each.leader_id for each in topic.partitions]) == (0, [1, 1])
    broker.replicas.first_opening = None
    [topic] = ask(broker, ["a"], 10, with_operations=with_operations).topics
    assert (topic.error_code, [each.leader_id for each in topic.partitions]) == (0, [1, 1, 1])


def test_many_clients_that_ask_at_once_create_a_topic_once(broker: AdminBroker) -> None:
    revisions: list[int] = []
    broker.services.cluster.subscribe(lambda old, new: revisions.append(new.revision))

    async def ask_often() -> None:
        context = RequestContext(api=METADATA, version=12, services=broker.services)
        for _ in range(50):
            run_through(handle_metadata(MetadataRequest(topics=[MetadataRequestTopic(name="new")]), context))
        await broker.services.auto_topic_creation.wait()

    broker.run(ask_often())
    assert list(broker.image.topics) == ["new"]
    assert len(revisions) == 1


@pytest.mark.parametrize("names", [None, ["a", "b", "c"]])
def test_no_leader_is_missing_among_the_brokers(broker: AdminBroker, names: list[str] | None) -> None:
    """Even if a broker goes while the answer is being made, and another answer has noticed."""
    create(broker, "a", "b", "c")
    context = RequestContext(api=METADATA, version=12, services=broker.services)
    wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=wanted)
    for gone in (frozenset({1}), frozenset[int]()):
        steps = handle_metadata(request, context)
        next(steps)
        next(steps)
        broker.replicas.fenced_node_ids = gone
        run_through(handle_metadata(request, context))
        answer = run_through(steps)
        assert {each.node_id for each in answer.brokers} == {1} - gone
        leaders = [each.leader_id for topic in answer.topics for each in topic.partitions]
        assert leaders == [-1 if gone else 1] * 3
