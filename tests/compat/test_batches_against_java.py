"""The bytes of our batches are those of the Java client's, and keys go to the same partitions."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from client_drivers.java import JavaDriver
from client_drivers.model import ClientDriver, ProduceOptions
from client_drivers.tidelog import TidelogArrowDriver, TidelogDriver
from exchanged_records import COMPRESSIONS, KEPT, RECORDS, fresh_topic
from tidelog import Consumer, Producer
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.records.batch import Compression, parse_header
from tidelog.records.compression import decompress
from tidelog.records.kernel_build import partition_for_key
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient, fetch_request

pytestmark = pytest.mark.compat

HEADER_BYTES = 61
# What fits into one batch by each client's defaults.
SMALL_RECORDS = [record for record in RECORDS if len(record.value or b"") < 10_000]
BATCH_MAX_BYTES = 1 << 20
# Where fields lie in a batch: those that are each producer's own, and the checksum over them.
CRC = slice(17, 21)
PRODUCER_ID_AND_EPOCH = slice(43, 53)
KEYS = 100_000
WAIT_S = 60.0
PARTITION_COUNTS = [1, 2, 3, 7, 12, 50, 1000]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module", params=["3.9.2", "4.3.1"])
def java(
    request: pytest.FixtureRequest, broker: Broker, java_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaDriver]:
    version: str = request.param
    log = tmp_path_factory.mktemp("java") / "java.log"
    client = JavaDriver(broker.bootstrap, java_jars / f"lib-{version}", version, log)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(params=[TidelogDriver, TidelogArrowDriver])
def ours(request: pytest.FixtureRequest, broker: Broker) -> Iterator[TidelogDriver]:
    client: TidelogDriver = request.param(broker.bootstrap)
    try:
        yield client
    finally:
        client.close()


def one_batch(client: ClientDriver, broker: Broker, options: ProduceOptions) -> bytes:
    """All records in one batch, as the broker keeps it."""
    topic = fresh_topic()
    broker.create_topic(topic, configs=KEPT)
    client.produce(topic, 0, SMALL_RECORDS, options)
    with RawClient(broker.port) as raw:
        (answer,) = raw.ask(FETCH, fetch_request(topic, 0), FetchResponse, 12).responses
    data = answer.partitions[0].records
    assert isinstance(data, bytes | memoryview)
    header = parse_header(data)
    assert header.records_count == len(SMALL_RECORDS)
    return bytes(data[: header.size_bytes])  # in a transaction its marker follows


def test_without_a_producer_id_all_bytes_are_equal(broker: Broker, ours: TidelogDriver, java: JavaDriver) -> None:
    options = ProduceOptions(linger_ms=10_000)
    assert one_batch(ours, broker, options) == one_batch(java, broker, options)


def test_with_a_producer_id_only_that_differs(broker: Broker, ours: TidelogDriver, java: JavaDriver) -> None:
    options = ProduceOptions(linger_ms=10_000, idempotent=True)
    mine, theirs = (bytearray(one_batch(client, broker, options)) for client in (ours, java))
    assert mine[PRODUCER_ID_AND_EPOCH] != theirs[PRODUCER_ID_AND_EPOCH]
    for batch in (mine, theirs):
        batch[CRC] = bytes(4)
        batch[PRODUCER_ID_AND_EPOCH] = bytes(10)
    assert mine == theirs


def test_in_a_transaction_only_the_producer_id_differs(broker: Broker, ours: TidelogDriver, java: JavaDriver) -> None:
    def options(client: ClientDriver) -> ProduceOptions:
        return ProduceOptions(linger_ms=10_000, transactional_id=client.name)

    mine, theirs = (bytearray(one_batch(client, broker, options(client))) for client in (ours, java))
    for batch in (mine, theirs):
        batch[CRC] = bytes(4)
        batch[PRODUCER_ID_AND_EPOCH] = bytes(10)
    assert mine == theirs


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_compressed_batches_hold_the_same(
    compression: str, broker: Broker, ours: TidelogDriver, java: JavaDriver
) -> None:
    options = ProduceOptions(compression, linger_ms=10_000)
    mine, theirs = (one_batch(client, broker, options) for client in (ours, java))
    # Checksum and length depend on how well a library compresses; all else in the header does not.
    assert mine[:8] + mine[12:17] + mine[21:HEADER_BYTES] == theirs[:8] + theirs[12:17] + theirs[21:HEADER_BYTES]
    codec = Compression.from_label(compression)
    inside = [decompress(codec, batch[HEADER_BYTES:], BATCH_MAX_BYTES) for batch in (mine, theirs)]
    assert inside[0] == inside[1]


def test_keys_go_where_javas_go(broker: Broker, java: JavaDriver) -> None:
    chance = random.Random(3)
    keys = [chance.randbytes(chance.randrange(64)) for _ in range(KEYS)]
    expected = dict(zip(PARTITION_COUNTS, java.partitions_of_keys(keys, PARTITION_COUNTS), strict=True))
    for count in PARTITION_COUNTS:
        assert [partition_for_key(key, count) for key in keys] == expected[count], f"{count} partitions"
    keys_topic, rows_topic = fresh_topic(), fresh_topic()
    broker.create_topic(keys_topic, 12)
    broker.create_topic(rows_topic, 12)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        futures = [producer.send(keys_topic, b"", key=key) for key in keys]
        producer.flush()
        assert [future.result(0).partition for future in futures] == expected[12]
        rows = pa.table({"key": pa.array(keys, pa.binary())})
        producer.send_arrow(rows_topic, rows).result(WAIT_S)
    assert read_keys(broker, rows_topic) == {
        partition: [key for key, place in zip(keys, expected[12], strict=True) if place == partition]
        for partition in range(12)
    }


def read_keys(broker: Broker, topic: str) -> dict[int, list[bytes]]:
    """The keys in each partition, in their order."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(12)}
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in found])
        deadline_s = time.monotonic() + WAIT_S
        while sum(map(len, found.values())) < KEYS:
            assert time.monotonic() < deadline_s, "not all rows were read in time"
            for record in consumer.poll(1.0):
                found[record.partition].append(record.key)
    return found
