"""What the source reads is what kcat reads: every range, codec, transaction and gap, byte for byte."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

from tidelog import Consumer, Producer, TopicPartition

if TYPE_CHECKING:
    from tidelog.bench.brokers import BrokerProcess

DEADLINE_S = 60
RANGES = 4
_READ_COMMITTED = ("-X", "isolation.level=read_committed", "-X", "check.crcs=true")
Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture
def read_with_kcat(cluster: BrokerProcess) -> Callable[[str], list[Row]]:
    """All committed records of a topic; keys, values and header values are text here."""

    def read(topic: str) -> list[Row]:
        done = subprocess.run(
            ["kcat", "-b", cluster.bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J", *_READ_COMMITTED],
            capture_output=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return [_row_of_kcat(json.loads(line)) for line in done.stdout.splitlines()]

    return read


def _row_of_kcat(row: dict[str, Any]) -> Row:
    named = row.get("headers") or []
    headers = tuple(zip(named[::2], (_bytes(value) for value in named[1::2]), strict=True))
    return row["partition"], row["offset"], row["ts"], _bytes(row["key"]), _bytes(row["payload"]), headers


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _row_of_spark(row: Any) -> Row:
    headers = tuple((header.key, _plain(header.value)) for header in row.headers or ())
    return row.partition, row.offset, row.milliseconds, _plain(row.key), _plain(row.value), headers


def _plain(value: bytes | bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def digest(rows: Iterable[Row]) -> str:
    hashed = hashlib.sha256()
    for row in sorted(rows, key=lambda row: row[:2]):
        hashed.update(repr(row).encode())
    return hashed.hexdigest()


def send_some(
    producer: Producer, topic: str, numbers: Iterable[int], seed: random.Random, *, without_key: float = 0.2
) -> None:
    for number in numbers:
        producer.send(
            topic,
            None if seed.random() < 0.05 else (f"value {number} " * seed.randrange(1, 30)).encode(),
            key=None if seed.random() < without_key else f"key {seed.randrange(50)}".encode(),
            headers=[("number", str(number).encode()), ("none", None)] if seed.random() < 0.3 else [],
            partition=number % 3,
            timestamp=1_700_000_000_000 + number * 7,
        )


def write_codecs(bootstrap: str, topic: str, seed: random.Random) -> None:
    """Every codec, in batches of many sizes."""
    for round_number in range(2):
        for codec_number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
            first = (round_number * 5 + codec_number) * 300
            with Producer(
                bootstrap_servers=bootstrap, compression_type=codec, batch_size=seed.choice([200, 4000, 65536])
            ) as producer:
                send_some(producer, topic, range(first, first + 300), seed)


def write_transactions(bootstrap: str, topic: str, seed: random.Random) -> None:
    """Two producers whose transactions overlap; some are aborted, the last ends with markers, plain records between."""
    names = [f"{topic}-{number}" for number in range(2)]
    producers = [Producer(bootstrap_servers=bootstrap, transactional_id=name) for name in names]
    number = 0
    try:
        for producer in producers:
            producer.init_transactions()
        with Producer(bootstrap_servers=bootstrap) as plain:
            for _ in range(12):
                for producer in producers:
                    producer.begin_transaction()
                for producer in seed.choices([*producers, plain], k=5):
                    send_some(producer, topic, range(number, number + 20), seed)
                    producer.flush()
                    number += 20
                for producer in seed.sample(producers, 2):
                    if seed.random() < 0.5:
                        producer.commit_transaction()
                    else:
                        producer.abort_transaction()
    finally:
        for producer in producers:
            producer.close()


def write_compacted(bootstrap: str, topic: str, seed: random.Random) -> None:
    """Few keys again and again, until the cleaner has left gaps; then some more."""
    first = 0

    def offsets() -> list[int]:
        key = TopicPartition(topic, 0)
        found: list[int] = []
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([key])
            end = consumer.end_offsets([key])[key]
            while consumer.position(key) < end:
                found += [record.offset for record in consumer.poll(1.0)]
        return found

    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        with Producer(bootstrap_servers=bootstrap, batch_size=2000) as producer:
            send_some(producer, topic, range(first, first + 600), seed, without_key=0)
        first += 600
        found = offsets()
        if len(found) < (found[-1] - found[0] + 1) * 0.8:
            return
        assert time.monotonic() < deadline_s, "the cleaner left no gap"
        time.sleep(0.2)  # segments close by time, and the cleaner has its own pace


WRITERS = {"codecs": write_codecs, "transactions": write_transactions, "compacted": write_compacted}
CONFIGS: dict[str, dict[str, str]] = {
    "compacted": {
        "cleanup_policy": "compact",
        "segment_ms": "100",
        "min_cleanable_dirty_ratio": "0.01",
        "max_compaction_lag_ms": "100",
    }
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_range_is_what_kcat_reads(
    kind: str,
    cluster: BrokerProcess,
    source: Any,
    new_topic: Callable[..., str],
    read_with_kcat: Callable[[str], list[Row]],
) -> None:
    seed = random.Random(f"ranges of {kind}")
    topic = new_topic(kind, partitions=3, retention_ms="-1", **CONFIGS.get(kind, {}))
    WRITERS[kind](cluster.bootstrap, topic, seed)
    if kind == "compacted":
        # Nothing is to be cleaned between the two reads.
        stop_cleaning(cluster.bootstrap, topic)
    expected = read_with_kcat(topic)
    assert len(expected) > 500

    def read(**options: object) -> list[Row]:
        everything = source.batch(subscribe=topic, includeHeaders=True, **options)
        rows = everything.selectExpr("*", "unix_millis(timestamp) AS milliseconds").collect()
        return [_row_of_spark(row) for row in rows]

    assert digest(read(maxRecordsPerPartition=seed.randrange(50, 300))) == digest(expected)
    ends = {
        partition: max(row[1] for row in expected if row[0] == partition) + 1 for partition in {r[0] for r in expected}
    }
    for _ in range(RANGES):
        bounds = {partition: sorted(seed.choices(range(end + 1), k=2)) for partition, end in ends.items()}
        start = {topic: {str(partition): low for partition, (low, _) in bounds.items()}}
        end = {topic: {str(partition): high for partition, (_, high) in bounds.items()}}
        got = read(startingOffsets=json.dumps(start), endingOffsets=json.dumps(end), minPartitions=seed.randrange(1, 7))
        inside = [row for row in expected if bounds[row[0]][0] <= row[1] < bounds[row[0]][1]]
        assert digest(got) == digest(inside), (start, end)


def stop_cleaning(bootstrap: str, topic: str) -> None:
    """Stop the cleaner: from now on the topic keeps all that it holds."""
    from tidelog import Admin
    from tidelog.client.admin import ConfigResource

    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.incremental_alter_configs(
            {ConfigResource.topic(topic): {"cleanup.policy": "delete", "retention.ms": "-1"}}
        ).raise_for_errors()
