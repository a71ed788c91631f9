"""Fetch over a plain socket: long polls, limits, epochs, errors."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.records import Compression, parse_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scenario.data.conftest import RawClient

    from tidelog.protocol.messages.k01_fetch import PartitionData
    from tidelog.records import Record
    from tidelog.testing import Broker

    MakeBatch = Callable[..., bytearray]
    NewTopic = Callable[..., str]
    RecordsOf = Callable[[PartitionData], list[Record]]
    Connect = Callable[[Broker], RawClient]


def request_for(
    topic: str, *partitions: int, offset: int = 0, max_wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 30
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
                    for index in partitions
                ],
            )
        ],
    )


def sizes_of(response: FetchResponse) -> dict[int, int]:
    sizes = {}
    for topic in response.responses:
        for partition in topic.partitions:
            assert isinstance(partition.records, memoryview)
            sizes[partition.partition_index] = len(partition.records)
    return sizes


def waiting_fetches(broker: Broker, topic: str, partition: int = 0) -> int:
    replicas = broker.server.services.replicas
    return replicas.waiting(replicas.find(topic, partition))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.002)


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads(
    raw: RawClient, broker: Broker, new_topic: NewTopic, batch: MakeBatch, records: RecordsOf, version: int
) -> None:
    topic = new_topic()
    raw.produce(topic, batch(b"a", b"b"))
    request = request_for(topic, 0)
    request.topics[0].topic_id = broker.server.services.controller.image.topics[topic].topic_id
    response = raw.fetch_many(request, version)
    assert (response.error_code, response.session_id) == (0, 0)
    answer = response.responses[0].partitions[0]
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 2, 2)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert answer.preferred_read_replica == -1
    assert answer.aborted_transactions is None
    assert [record.value for record in records(answer)] == [b"a", b"b"]


def test_an_empty_partition_is_waited_for_the_full_time(raw: RawClient, new_topic: NewTopic) -> None:
    """Behaviour 32: and not longer than asked."""
    topic = new_topic()
    started = time.monotonic()
    answer = raw.fetch(topic, 0, max_wait_ms=300)
    waited_s = time.monotonic() - started
    assert (answer.error_code, answer.records) == (0, b"")
    assert 0.29 <= waited_s < 5


def test_an_append_ends_the_wait(
    broker: Broker, connect: Connect, new_topic: NewTopic, batch: MakeBatch, records: RecordsOf
) -> None:
    """Behaviour 32: for all who wait for that partition, and only for them."""
    topic, other = new_topic(partitions=2), new_topic()
    consumers = [connect(broker) for _ in range(3)]
    ids = [consumer.send(FETCH, 12, request_for(topic, 0, 1, max_wait_ms=60_000)) for consumer in consumers]
    bystander = connect(broker)
    bystander_id = bystander.send(FETCH, 12, request_for(other, 0, max_wait_ms=60_000))
    wait_until(lambda: waiting_fetches(broker, topic, 1) == 3 and waiting_fetches(broker, other) == 1)
    producer = connect(broker)
    producer.produce(topic, batch(b"news"), partition=1)
    for consumer, correlation_id in zip(consumers, ids, strict=True):
        partitions = consumer.receive(FETCH, 12, correlation_id, FetchResponse).responses[0].partitions
        assert [[record.value for record in records(one)] for one in partitions] == [[], [b"news"]]
    assert waiting_fetches(broker, topic) == 0
    assert waiting_fetches(broker, other) == 1
    producer.produce(other, batch(b"x"))
    bystander.receive(FETCH, 12, bystander_id, FetchResponse)


@pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"])
def test_min_bytes_are_waited_for(
    broker: Broker,
    connect: Connect,
    new_topic: NewTopic,
    batch: MakeBatch,
    records: RecordsOf,
    flush_messages: str,
) -> None:
    """Behaviour 32: over all partitions together."""
    topic = new_topic(partitions=2, flush_messages=flush_messages)
    one = batch(bytes(100))
    consumer, producer = connect(broker), connect(broker)
    wanted = request_for(topic, 0, 1, max_wait_ms=60_000, min_bytes=3 * len(one))
    correlation_id = consumer.send(FETCH, 12, wanted)
    wait_until(lambda: waiting_fetches(broker, topic) == 1)
    producer.produce(topic, one)
    producer.produce(topic, one, partition=1)
    assert waiting_fetches(broker, topic) == 1
    producer.produce(topic, one)
    response = consumer.receive(FETCH, 12, correlation_id, FetchResponse)
    assert sizes_of(response) == {0: 2 * len(one), 1: len(one)}


def test_what_is_there_is_given_when_the_time_is_over(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 32: less than min_bytes."""
    topic = new_topic()
    sent = batch(b"little")
    raw.produce(topic, sent)
    answer = raw.fetch(topic, 0, max_wait_ms=100, min_bytes=1_000_000)
    assert isinstance(answer.records, memoryview)
    assert len(answer.records) == len(sent)


def test_a_client_that_goes_away_leaves_nothing_waiting(
    broker: Broker, connect: Connect, new_topic: NewTopic, batch: MakeBatch
) -> None:
    """Behaviour 8: a connection lost in the middle of a long poll."""
    topic = new_topic()
    client = connect(broker)
    client.send(FETCH, 12, request_for(topic, 0, max_wait_ms=600_000))
    wait_until(lambda: waiting_fetches(broker, topic) == 1)
    client.reset()
    wait_until(lambda: waiting_fetches(broker, topic) == 0)
    assert connect(broker).produce(topic, batch(b"a")).error_code == 0


def test_offsets_outside_the_log(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 33: beyond the end is an error at once, the end itself is not."""
    topic = new_topic()
    raw.produce(topic, batch(b"a", b"b"))
    for offset in (3, 100, -1):
        answer = raw.fetch(topic, offset, max_wait_ms=60_000)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (answer.high_watermark, answer.records) == (-1, b"")
    answer = raw.fetch(topic, 2)
    assert (answer.error_code, answer.high_watermark, answer.records) == (0, 2, b"")


def test_limits(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 34: the first batch of the first partition with data is whole, the rest in order within max_bytes."""
    topic = new_topic(partitions=4)
    one = batch(bytes(1000))
    size = len(one)
    for partition in (1, 2, 3):
        for _ in range(3):
            raw.produce(topic, one, partition=partition)
    assert sizes_of(raw.fetch_many(request_for(topic, 0, 1, 2, 3, max_bytes=1))) == {0: 0, 1: size, 2: 0, 3: 0}
    assert sizes_of(raw.fetch_many(request_for(topic, 2, 1, max_bytes=1))) == {2: size, 1: 0}
    within = sizes_of(raw.fetch_many(request_for(topic, 3, 2, 1, max_bytes=4 * size)))
    assert within[3] == 3 * size
    assert within[2] == size
    assert within[1] == 0
    answer = raw.fetch(topic, 0, partition=1, partition_max_bytes=1)
    assert isinstance(answer.records, memoryview)
    assert len(answer.records) == size


def test_an_offset_within_a_batch_gives_the_whole_batch(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 35: the consumer skips what it has."""
    topic = new_topic()
    raw.produce(topic, batch(b"0", b"1"))
    raw.produce(topic, batch(b"2", b"3", b"4"))
    for offset in (2, 3, 4):
        answer = raw.fetch(topic, offset)
        assert isinstance(answer.records, memoryview)
        header = parse_header(answer.records)
        assert (header.base_offset, header.last_offset, header.size_bytes) == (2, 4, len(answer.records))


def test_leader_epochs(raw: RawClient, broker: Broker, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 36: a newer epoch than the leader's, an older one."""
    topic = new_topic()
    raw.produce(topic, batch(b"a"))
    epoch = broker.server.services.replicas.find(topic, 0).leader_epoch
    assert raw.fetch(topic, 0, leader_epoch=epoch).error_code == 0
    assert raw.fetch(topic, 0, leader_epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    if epoch > 0:
        assert raw.fetch(topic, 0, leader_epoch=epoch - 1).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert raw.fetch(topic, 1, last_fetched_epoch=epoch).error_code == 0
    diverged = raw.fetch(topic, 2, last_fetched_epoch=epoch)
    assert (diverged.diverging_epoch.epoch, diverged.diverging_epoch.end_offset) == (epoch, 1)
    assert diverged.records == b""


def test_zstd_is_kept_from_old_clients(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, records: RecordsOf
) -> None:
    """Behaviour 26: they get what comes before it, then an error; nothing is converted silently."""
    topic = new_topic()
    raw.produce(topic, batch(b"plain"))
    raw.produce(topic, batch(b"packed" * 50, compression=Compression.ZSTD))
    assert [record.value for record in records(raw.fetch(topic, 0, version=9))] == [b"plain"]
    refused = raw.fetch(topic, 1, version=9)
    assert (refused.error_code, refused.records) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"")
    assert [record.value for record in records(raw.fetch(topic, 1, version=10))] == [b"packed" * 50]


def test_read_committed(raw: RawClient, new_topic: NewTopic, batch: MakeBatch, records: RecordsOf) -> None:
    """Behaviour 38: without transactions everything is stable and none was aborted."""
    topic = new_topic()
    raw.produce(topic, batch(b"a"))
    answer = raw.fetch(topic, 0, isolation_level=1)
    assert (answer.high_watermark, answer.last_stable_offset, answer.aborted_transactions) == (1, 1, [])
    assert [record.value for record in records(answer)] == [b"a"]
    assert raw.fetch(topic, 1, isolation_level=1).aborted_transactions == []


def test_unknown_topics(raw: RawClient, new_topic: NewTopic) -> None:
    """Behaviours 13 and 33: told at once, whatever the wait."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.fetch("never made", 0, max_wait_ms=60_000).error_code == unknown
    assert raw.fetch(new_topic(), 0, partition=3, max_wait_ms=60_000).error_code == unknown
    request = request_for("", 0, max_wait_ms=60_000)
    for topic_id in (uuid.uuid4(), uuid.UUID(int=0)):
        request.topics[0].topic_id = topic_id
        answer = raw.fetch_many(request, 13).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [12, 13])
def test_deleting_a_topic_ends_the_wait(broker: Broker, connect: Connect, new_topic: NewTopic, version: int) -> None:
    """Behaviours 13 and 32: who waits for it is told."""
    topic = new_topic()
    topic_id = broker.server.services.controller.image.topics[topic].topic_id
    client = connect(broker)
    request = request_for(topic, 0, max_wait_ms=600_000)
    request.topics[0].topic_id = topic_id
    correlation_id = client.send(FETCH, version, request)
    wait_until(lambda: waiting_fetches(broker, topic) == 1)
    broker.call(lambda server: server.services.controller.delete_topics([topic]))
    answer = client.receive(FETCH, version, correlation_id, FetchResponse).responses[0].partitions[0]
    expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
    assert answer.error_code == expected


def test_a_topic_made_anew_does_not_answer_with_the_old_records(
    broker: Broker, raw: RawClient, new_topic: NewTopic, batch: MakeBatch
) -> None:
    """Behaviour 13: same name, other id."""
    topic = new_topic()
    raw.produce(topic, batch(b"old"))
    request = request_for(topic, 0)
    request.topics[0].topic_id = broker.server.services.controller.image.topics[topic].topic_id
    broker.call(lambda server: server.services.controller.delete_topics([topic]))
    broker.create_topic(topic)
    assert raw.fetch_many(request, 13).responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    answer = raw.fetch(topic, 0)
    assert (answer.error_code, answer.high_watermark, answer.records) == (0, 0, b"")
    assert raw.produce(topic, batch(b"new")).base_offset == 0


def test_large_reads_come_in_order_through_sendfile(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, records: RecordsOf
) -> None:
    """Several partitions of a megabyte each in one response."""
    topic = new_topic(partitions=3)
    for partition in range(3):
        for number in range(4):
            raw.produce(topic, batch(bytes([number]) * 250_000), partition=partition)
    response = raw.fetch_many(request_for(topic, 0, 1, 2))
    for answer in response.responses[0].partitions:
        assert [record.value[0] for record in records(answer) if record.value] == [0, 1, 2, 3]
