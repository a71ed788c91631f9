"""A client that asks the wrong broker is told the right one, over a plain socket (behaviour 44)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.ids import ZERO_UUID
from tidelog.controller.image import BrokerInfo
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.server.server import BrokerServer
from tidelog.testing import Broker

if TYPE_CHECKING:
    import uuid

    from tests.scenario.data.conftest import RawClient

    MakeBatch = Callable[..., bytearray]
    Connect = Callable[[Broker], RawClient]

OTHER, HOST, PORT, RACK = 2, "other.example.org", 19092, "r2"
_topic_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def pair() -> Iterator[Broker]:
    """A broker whose cluster has another member, by name only: nobody listens there."""

    async def register(server: BrokerServer) -> None:
        other = BrokerInfo(OTHER, -1, (Endpoint(PLAINTEXT, HOST, PORT),), RACK)
        await server.services.controller.register_broker(other, clean_shutdown=True)

    with Broker() as broker:
        broker.call(register)
        yield broker


@pytest.fixture
def raw(pair: Broker, connect: Connect) -> RawClient:
    return connect(pair)


@pytest.fixture
def elsewhere(raw: RawClient) -> tuple[str, uuid.UUID]:
    """A topic of two partitions; the first is here, the second is the other broker's."""
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=[node_id]) for index, node_id in enumerate((1, 2))
    ]
    name = f"t-{next(_topic_numbers)}"
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    (created,) = raw.ask(CREATE_TOPICS, 7, request, CreateTopicsResponse).topics
    assert created.error_code == 0
    return name, created.topic_id


@pytest.mark.parametrize("version", [3, 9, 10, 12, 13])
def test_a_produce_is_sent_to_the_leader(
    raw: RawClient, elsewhere: tuple[str, uuid.UUID], batch: MakeBatch, version: int
) -> None:
    """Behaviour 44: who leads and at which address, from version 10 on; partitions that are here succeed."""
    name, topic_id = elsewhere
    both = {(name, index): batch(b"a") for index in range(2)}
    response = raw.produce_many(both, version=version, topic_ids={name: topic_id})
    here, there = response.responses[0].partition_responses
    assert (here.error_code, here.current_leader.leader_id) == (0, -1)
    assert there.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = (there.current_leader.leader_id, there.current_leader.leader_epoch)
    endpoints = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
    if version >= 10:
        assert told == (OTHER, 0)
        assert endpoints == [(OTHER, HOST, PORT, RACK)]
    else:
        assert (told, endpoints) == ((-1, -1), [])


@pytest.mark.parametrize("version", [4, 11, 12, 13, 15, 16, 18])
def test_a_fetch_is_sent_to_the_leader(raw: RawClient, elsewhere: tuple[str, uuid.UUID], version: int) -> None:
    """Behaviour 44: who leads from version 12 on, the address from 16 on; no other replica is ever preferred."""
    name, topic_id = elsewhere
    wanted = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(2)]
    topic = FetchTopic(topic=name, topic_id=topic_id if version >= 13 else ZERO_UUID, partitions=wanted)
    response = raw.ask(FETCH, version, FetchRequest(max_wait_ms=60_000, topics=[topic]), FetchResponse)
    here, there = response.responses[0].partitions
    assert (here.error_code, here.current_leader.leader_id, here.preferred_read_replica) == (0, -1, -1)
    assert (there.error_code, there.preferred_read_replica) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert there.current_leader.leader_id == (OTHER if version >= 12 else -1)
    endpoints = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
    assert endpoints == ([(OTHER, HOST, PORT, RACK)] if version >= 16 else [])


def test_an_older_epoch_is_told_the_current_one(connect: Connect, batch: MakeBatch) -> None:
    """Behaviours 36 and 44: a client that slept through a restart."""
    with Broker() as broker:
        broker.create_topic("t")
        connect(broker).produce("t", batch(b"a"))
        old = broker.server.services.replicas.find("t", 0).leader_epoch
        broker.stop()
        broker.start()
        answer = connect(broker).fetch("t", 0, leader_epoch=old)
        assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (1, old + 1)
