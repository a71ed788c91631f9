"""More partitions than a process may open files, connections that take all that is left, and one flush for all logs."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.records import decode_records, encode_batch, iter_headers
from tidelog.testing.raw_client import RawClient

if TYPE_CHECKING:
    from tests.chaos.conftest import MakeDisk, ServedBroker, StartServed

WaitUntil = Callable[[Callable[[], bool], str], None]

PARTITIONS = 200
DESCRIPTORS = 150


def produce_to_all(client: RawClient, value: bytes) -> None:
    batch = encode_batch([(None, value, (), None)], now_ms=time.time_ns() // 1_000_000)
    data = [PartitionProduceData(index=index, records=batch) for index in range(PARTITIONS)]
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="many", partition_data=data)]
    )
    (topic,) = client.ask(PRODUCE, request, ProduceResponse, 9).responses
    assert [answer.error_code for answer in topic.partition_responses] == [0] * PARTITIONS


def read_all(client: RawClient) -> list[list[bytes | None]]:
    """The values of each partition."""
    values: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
    for index in range(PARTITIONS):
        asked = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic="many", partitions=[asked])]
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1, topics=topics)
        (partition,) = client.ask(FETCH, request, FetchResponse, 12).responses[0].partitions
        assert partition.error_code == 0
        assert isinstance(partition.records, memoryview)
        for position, _ in iter_headers(partition.records):
            values[index] += (record.value for record in decode_records(partition.records, position))
    return values


def allow_descriptors(broker: ServedBroker, count: int) -> None:
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (count, count))


def test_more_partitions_in_use_than_files_may_be_open(serve: StartServed, wait_until: WaitUntil) -> None:
    broker = serve({"max.open.files": 32})
    idle_files = broker.open_files()
    broker.create_topic("many", PARTITIONS)
    with RawClient(broker.port) as client:
        for number in range(3):
            produce_to_all(client, b"%d" % number)
        # A connection and a thread's own descriptors are a few more.
        wait_until(lambda: broker.open_files() <= idle_files + 32 + 8, "unused files are closed")
        assert read_all(client) == [[b"0", b"1", b"2"]] * PARTITIONS
    broker.kill()
    broker.start()
    with RawClient(broker.port) as client:
        assert read_all(client) == [[b"0", b"1", b"2"]] * PARTITIONS


def test_connections_that_take_all_descriptors_keep_no_log_from_its_files(
    serve: StartServed, wait_until: WaitUntil
) -> None:
    broker = serve()
    broker.create_topic("many", PARTITIONS)
    with ExitStack() as clients:
        first = clients.enter_context(RawClient(broker.port))
        assert first.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1).brokers
        allow_descriptors(broker, DESCRIPTORS)
        crowd = [clients.enter_context(RawClient(broker.port)) for _ in range(DESCRIPTORS)]
        wait_until(lambda: "can't accept connections" in broker.output(), "no more connections are accepted")
        for number in range(3):
            produce_to_all(first, b"%d" % number)
        assert read_all(first) == [[b"0", b"1", b"2"]] * PARTITIONS
        assert broker.open_files() <= DESCRIPTORS
        assert broker.output().count("can't accept connections") == 1
        last = crowd.pop()
        for client in crowd:
            client.close()
        # It waited in the backlog, and is served now that there is room.
        assert last.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1).brokers
        produce_to_all(last, b"3")
    assert "offline" not in broker.output()
    broker.stop()
    broker.start()
    with RawClient(broker.port) as client:
        assert read_all(client) == [[b"0", b"1", b"2", b"3"]] * PARTITIONS


def test_a_stop_that_flushes_all_logs_by_one_call_survives_a_power_cut(serve: StartServed, make_disk: MakeDisk) -> None:
    disk = make_disk(size_mb=256)
    broker = serve(directory=disk.path / "broker")
    broker.create_topic("many", PARTITIONS)
    with RawClient(broker.port) as client:
        produce_to_all(client, b"kept")
    broker.stop()
    disk.cut_power()
    broker.start()
    assert f"loaded {PARTITIONS} logs" in broker.output()
    assert "after a clean shutdown" in broker.output().replace("\n", " ")
    with RawClient(broker.port) as client:
        assert read_all(client) == [[b"kept"]] * PARTITIONS
    broker.kill()
