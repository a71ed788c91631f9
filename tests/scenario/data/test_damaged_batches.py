"""Damaged batches over a socket: each is answered with its code and harms neither the partition nor its readers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from damaged_batches import all_kinds
from tidelog.protocol import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scenario.data.conftest import RawClient

    from tidelog.testing import Broker

    MakeBatch = Callable[..., bytearray]
    NewTopic = Callable[..., str]

READ_DEADLINE_S = 60.0


def test_every_kind_is_answered_and_librdkafka_reads_on(
    broker: Broker, raw: RawClient, new_topic: NewTopic, batch: MakeBatch
) -> None:
    topic = new_topic()
    good: dict[int, bytes] = {}
    end_offset = 0
    for kind in all_kinds():
        sent = kind.encode(time.time_ns() // 1_000_000)
        answer = raw.produce(topic, sent)
        assert ErrorCode(answer.error_code) is kind.code, kind.name
        if kind.code:
            assert answer.base_offset == -1
            assert answer.error_message
        else:
            assert answer.base_offset == end_offset, kind.name
            end_offset += 3
        value = kind.name.encode()
        assert raw.produce(topic, batch(value)).base_offset == end_offset, kind.name
        good[end_offset] = value
        end_offset += 1
    read = read_all(broker, topic, end_offset)
    assert sorted(read) == list(range(end_offset))
    assert {offset: read[offset] for offset in good} == good


def read_all(broker: Broker, topic: str, end_offset: int) -> dict[int, bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "check.crcs": True})
    read: dict[int, bytes | None] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + READ_DEADLINE_S
        while len(read) < end_offset and time.monotonic() < deadline:
            for message in consumer.consume(1_000, 1.0):
                assert message.error() is None, message.error()
                offset = message.offset()
                assert offset is not None
                read[offset] = message.value()
                deadline = time.monotonic() + READ_DEADLINE_S
    finally:
        consumer.close()
    return read
