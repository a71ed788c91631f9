"""Requests of a broker's own parts to the controller, where that is the broker itself."""

from __future__ import annotations

import pytest

from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k17_sasl_handshake import SASL_HANDSHAKE, SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k67_allocate_producer_ids import (
    ALLOCATE_PRODUCER_IDS,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from tidelog.server.server import BrokerServer
from tidelog.testing.broker import Broker

TIMEOUT_S = 20.0


def create(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=2, replication_factor=1)])


def test_the_own_controller_answers_without_the_network(tidelog_broker: Broker) -> None:
    async def run(server: BrokerServer) -> CreateTopicsResponse:
        channel = server.services.channel
        return await channel.call(CREATE_TOPICS, create("orders"), CreateTopicsResponse, timeout_s=TIMEOUT_S)

    response = tidelog_broker.call(run)
    assert [(topic.name, topic.error_code, topic.num_partitions) for topic in response.topics] == [("orders", 0, 2)]


def test_an_answer_that_takes_too_long_is_a_time_out(tidelog_broker: Broker) -> None:
    async def run(server: BrokerServer) -> None:
        async with server.services.controller._lock:
            with pytest.raises(KafkaError) as raised:
                await server.services.channel.call(CREATE_TOPICS, create("late"), CreateTopicsResponse, timeout_s=0.01)
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT

    tidelog_broker.call(run)


def test_errors_are_answers(tidelog_broker: Broker) -> None:
    async def run(server: BrokerServer) -> AllocateProducerIdsResponse:
        request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=99_999)
        return await server.services.channel.call(
            ALLOCATE_PRODUCER_IDS, request, AllocateProducerIdsResponse, timeout_s=TIMEOUT_S
        )

    assert tidelog_broker.call(run).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_request_that_no_broker_serves_is_refused(tidelog_broker: Broker) -> None:
    async def run(server: BrokerServer) -> None:
        with pytest.raises(KafkaError) as raised:
            await server.services.channel.call(
                SASL_HANDSHAKE, SaslHandshakeRequest(), SaslHandshakeResponse, timeout_s=TIMEOUT_S
            )
        assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION

    tidelog_broker.call(run)
