"""Requests of a broker's own parts to the controller."""

from __future__ import annotations

import pytest

from tidelog.broker.controller_channel import LocalControllerChannel
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k17_sasl_handshake import SASL_HANDSHAKE, SaslHandshakeRequest, SaslHandshakeResponse
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.server.server import BrokerServer
from tidelog.testing.broker import Broker

TIMEOUT_S = 20.0


def create(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=2, replication_factor=1)])


def test_the_own_controller_answers_without_the_network(tidelog_broker: Broker) -> None:
    async def run(server: BrokerServer) -> CreateTopicsResponse:
        channel = LocalControllerChannel(lambda: server.services)
        return await channel.call(CREATE_TOPICS, create("orders"), CreateTopicsResponse, timeout_s=TIMEOUT_S)

    response = tidelog_broker.call(run)
    assert [(topic.name, topic.error_code, topic.num_partitions) for topic in response.topics] == [("orders", 0, 2)]


def test_an_answer_that_takes_too_long_is_a_time_out(tidelog_broker: Broker) -> None:
    async def run(server: BrokerServer) -> None:
        channel = LocalControllerChannel(lambda: server.services)
        async with server.services.controller._lock:
            with pytest.raises(KafkaError) as raised:
                await channel.call(CREATE_TOPICS, create("late"), CreateTopicsResponse, timeout_s=0.01)
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT

    tidelog_broker.call(run)


def test_a_request_that_no_broker_serves_is_refused(tidelog_broker: Broker) -> None:
    async def run(server: BrokerServer) -> None:
        channel = LocalControllerChannel(lambda: server.services)
        with pytest.raises(KafkaError) as raised:
            await channel.call(SASL_HANDSHAKE, SaslHandshakeRequest(), SaslHandshakeResponse, timeout_s=TIMEOUT_S)
        assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION

    tidelog_broker.call(run)
