"""The table of damaged batches says what Apache Kafka answers; here it is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from client_drivers.tidelog import TidelogDriver
from damaged_batches import all_kinds
from tidelog.bench.brokers import KafkaBroker, kafka_jars
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.testing.raw_client import RawClient, produce_request

KAFKA_VERSION = "4.3.1"
PRODUCE_VERSION = 9


@pytest.fixture
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"), jars=kafka_jars(KAFKA_VERSION))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def wait_until_led(kafka: KafkaBroker) -> None:
    """Kafka answers the creation of a topic before its partitions have taken up their leader."""
    deadline_s = time.monotonic() + 60
    with RawClient(kafka.port) as client:
        while True:
            answer = client.ask(PRODUCE, produce_request("damaged", b"sound"), ProduceResponse, PRODUCE_VERSION)
            code = answer.responses[0].partition_responses[0].error_code
            if code == ErrorCode.NONE:
                return
            assert code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert time.monotonic() < deadline_s


@pytest.mark.compat
def test_kafka_answers_what_the_table_says(kafka: KafkaBroker) -> None:
    admin = TidelogDriver(kafka.bootstrap)
    try:
        admin.create_topic("damaged", 1, {})
    finally:
        admin.close()
    wait_until_led(kafka)
    others: dict[str, str] = {}
    for kind in all_kinds():
        # A connection each: after some of them Kafka may close it.
        with RawClient(kafka.port) as client:
            records = kind.encode(time.time_ns() // 1_000_000)
            data = TopicProduceData(name="damaged", partition_data=[PartitionProduceData(index=0, records=records)])
            request = ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[data])
            answer = client.ask(PRODUCE, request, ProduceResponse, PRODUCE_VERSION).responses[0].partition_responses[0]
        if answer.error_code != kind.kafka:
            others[kind.name] = f"{ErrorCode(answer.error_code).name} instead of {kind.kafka.name}"
    assert not others
