"""Three brokers on one metadata store: one image everywhere, changes by any broker, brokers that go and come back."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog import Admin, Consumer, Producer
from tidelog.controller.image import NO_LEADER, ClusterImage
from tidelog.protocol import ErrorCode, encode
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k20_delete_topics import (
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.messages.k58_envelope import ENVELOPE, EnvelopeRequest, EnvelopeResponse
from tidelog.server.server import BrokerServer, StartError
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient

if TYPE_CHECKING:
    from tests.scenario.cluster.conftest import SmallCluster

MakeCluster = Callable[..., "SmallCluster"]
TIMEOUT_MS = 20_000


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> SmallCluster:
    cluster = make_cluster()
    cluster.start(1, 2, 3)
    cluster.wait(lambda image: set(image.brokers) == {1, 2, 3})
    return cluster


def others(cluster: SmallCluster) -> list[int]:
    """The brokers that are not the controller."""
    return sorted(cluster.running_ids - {cluster.controller_id()})


def create_by(broker: Broker, name: str, partitions: int = 6) -> CreateTopicsResponse:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)], timeout_ms=TIMEOUT_MS
    )
    with RawClient(broker.port) as client:
        return client.ask(CREATE_TOPICS, request, CreateTopicsResponse, 7)


def leaders(image: ClusterImage, topic: str) -> list[int]:
    return [state.leader for state in image.topics[topic].partitions]


def image_of(broker: Broker) -> ClusterImage:
    async def read(server: BrokerServer) -> ClusterImage:
        return server.services.cluster.image

    return broker.call(read)


def test_every_broker_knows_the_cluster(cluster: SmallCluster) -> None:
    controller_id = cluster.controller_id()
    ports = {(node_id, broker.port) for node_id, broker in cluster.brokers.items()}
    cluster_ids = set()
    for broker in cluster.running:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            described = admin.describe_cluster()
        assert described.controller_id == controller_id
        assert {(node.node_id, node.address.port) for node in described.nodes} == ports
        cluster_ids.add(described.cluster_id)
    assert len(cluster_ids) == 1


def test_topics_are_created_and_deleted_by_any_broker(cluster: SmallCluster) -> None:
    for node_id in (1, 2, 3):
        name = f"by-{node_id}"
        (created,) = create_by(cluster[node_id], name).topics
        assert (created.error_code, created.num_partitions) == (0, 6)
        # Whoever has answered knows of it.
        assert image_of(cluster[node_id]).topics[name].topic_id == created.topic_id
        image = cluster.wait_for_topic(name)
        assert set(leaders(image, name)) == {1, 2, 3}
    (again,) = create_by(cluster[others(cluster)[0]], "by-1").topics
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    with RawClient(cluster[others(cluster)[1]].port) as client:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="by-1")], timeout_ms=TIMEOUT_MS)
        response = client.ask(DELETE_TOPICS, request, DeleteTopicsResponse, 6)
    assert [row.error_code for row in response.responses] == [0]
    cluster.wait(lambda image: "by-1" not in image.topics)


@pytest.mark.parametrize("through", [1, 2, 3])
def test_records_go_to_all_brokers_and_come_back_through_any(cluster: SmallCluster, through: int) -> None:
    create_by(cluster[others(cluster)[0]], "orders")
    bootstrap = cluster[through].bootstrap
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(300):
            producer.send("orders", b"%d" % number, partition=number % 6)
        producer.flush()
    with Consumer(bootstrap_servers=bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        seen: list[bytes] = []
        while len(seen) < 300:
            seen += [record.value for record in consumer.poll(20.0) if record.value is not None]
        consumer.commit()
    assert sorted(seen) == sorted(b"%d" % number for number in range(300))


def test_topics_are_created_on_first_use_by_any_broker(cluster: SmallCluster) -> None:
    for node_id in others(cluster):
        with Producer(bootstrap_servers=cluster[node_id].bootstrap) as producer:
            producer.send(f"first-use-{node_id}", b"value").result(20)
        cluster.wait_for_topic(f"first-use-{node_id}")


def test_producer_ids_of_all_brokers_differ(cluster: SmallCluster) -> None:
    async def allocate(server: BrokerServer) -> list[int]:
        return [await server.services.producer_ids.allocate() for _ in range(10)]

    ids = [number for broker in cluster.running for number in broker.call(allocate)]
    assert len(set(ids)) == 30


def test_a_broker_that_is_gone_is_fenced_and_leads_again_when_it_is_back(cluster: SmallCluster) -> None:
    create_by(cluster[1], "orders")
    gone = others(cluster)[1]
    cluster[gone].crash()
    image = cluster.wait(lambda image: image.brokers[gone].fenced)
    assert set(leaders(image, "orders")) == {1, 2, 3} - {gone} | {NO_LEADER}
    epoch = image.brokers[gone].epoch
    # What others lead goes on.
    (created,) = create_by(cluster[others(cluster)[0]], "meanwhile").topics
    assert created.error_code == 0
    cluster.start(gone)
    image = cluster.wait(lambda image: not image.brokers[gone].fenced)
    assert image.brokers[gone].epoch > epoch
    assert set(leaders(image, "orders")) == {1, 2, 3}
    cluster.wait(lambda image: "meanwhile" in image.topics)


def test_another_broker_becomes_controller(cluster: SmallCluster) -> None:
    create_by(cluster[1], "orders")
    first = cluster.controller_id()
    cluster[first].crash()
    second = cluster.controller_id()
    assert second != first
    image = cluster.wait(lambda image: image.brokers[first].fenced and image.controller_id == second)
    assert "orders" in image.topics
    for node_id in cluster.running_ids:
        (created,) = create_by(cluster[node_id], f"after-{node_id}").topics
        assert created.error_code == 0
    cluster.start(first)
    cluster.wait(lambda image: not image.brokers[first].fenced and image.controller_id == second)
    (created,) = create_by(cluster[first], "back").topics
    assert created.error_code == 0


def test_a_broker_that_stops_in_order_hands_over_and_comes_back(cluster: SmallCluster) -> None:
    create_by(cluster[1], "orders")
    first = cluster.controller_id()
    cluster[first].stop()
    assert cluster.controller_id() != first
    cluster.wait(lambda image: image.brokers[first].fenced)
    cluster.start(first)
    image = cluster.wait(lambda image: not image.brokers[first].fenced)
    assert set(leaders(image, "orders")) == {1, 2, 3}


def test_a_topic_that_was_deleted_while_a_broker_was_away_leaves_no_files(cluster: SmallCluster) -> None:
    create_by(cluster[1], "orders")
    away = others(cluster)[0]
    cluster[away].stop()
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_topics("orders")
    files = cluster[away].data_dir / f"broker-{away}"
    assert [path for path in files.iterdir() if path.name.startswith("orders-")]
    cluster.start(away)
    assert not [path for path in files.iterdir() if path.name.startswith("orders-") and "delete" not in path.name]


def test_what_brokers_say_to_each_other_is_not_shown_to_clients(cluster: SmallCluster) -> None:
    def keys(name: str) -> set[int]:
        with RawClient(cluster[1].port) as client:
            request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
            response = client.ask(API_VERSIONS, request, ApiVersionsResponse, 3)
        return {row.api_key for row in response.api_keys}

    internal = {58, 62, 63, 67, 10001}
    assert not keys("some-client") & internal
    assert internal <= keys("tidelog-broker")


def test_envelopes_hold_only_what_is_for_the_controller(cluster: SmallCluster) -> None:
    def ask(node_id: int, data: bytes) -> int:
        with RawClient(cluster[node_id].port) as client:
            return client.ask(ENVELOPE, EnvelopeRequest(request_data=data), EnvelopeResponse, 0).error_code

    controller_id = cluster.controller_id()
    assert ask(others(cluster)[0], b"") == ErrorCode.NOT_CONTROLLER
    assert ask(controller_id, b"") == ErrorCode.INVALID_REQUEST
    assert ask(controller_id, b"\0\3\0\1\0\0\0\0\0\0") == ErrorCode.INVALID_REQUEST
    assert ask(controller_id, b"\0\x13\0\x63\0\0\0\0\0\0") == ErrorCode.UNSUPPORTED_VERSION
    assert ask(controller_id, b"\0\x13\0\5\0\0\0\0\0\0\0") == ErrorCode.INVALID_REQUEST


def test_an_envelope_that_comes_again_is_carried_out_once(cluster: SmallCluster) -> None:
    topic = CreatableTopic(name="once", num_partitions=1, replication_factor=1)
    frame = b"\0\x13\0\5\0\0\0\0\0\0\0" + bytes(encode(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5))

    def ask(request_id: uuid.UUID) -> bytes | None:
        with RawClient(cluster[cluster.controller_id()].port) as client:
            envelope = EnvelopeRequest(request_data=frame, request_id=request_id)
            return client.ask(ENVELOPE, envelope, EnvelopeResponse, 0).response_data

    request_id = uuid.uuid4()
    created = ask(request_id)
    assert created is not None
    assert ask(request_id) == created
    # Another request for the same topic is refused.
    assert ask(uuid.uuid4()) != created


def test_without_a_controller_requests_for_it_are_refused(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.broker.controller_channel.ELECTION_WAIT_S", 0.2)
    node_id = others(cluster)[0]

    async def forget(server: BrokerServer) -> None:
        keeper = server.services.controller._keeper
        assert keeper is not None
        keeper.cancel()
        server.services.controller.location.set(None)

    cluster[node_id].call(forget)
    (refused,) = create_by(cluster[node_id], "orders").topics
    assert refused.error_code == ErrorCode.NOT_CONTROLLER


def test_two_brokers_with_one_id(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.controller.membership._TAKEN_GRACE_S", -11.9)
    cluster = make_cluster()
    cluster.start(1)
    second = Broker(settings=cluster[1]._given_settings, data_dir=cluster.directory / "elsewhere")
    with pytest.raises(StartError, match="node id 1 is used by another running broker"):
        second.start()
    second.close()
    create_by(cluster[1], "orders")
