"""What clients hand to each other: awkward records, in every compression, plain and in transactions."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from client_drivers.model import ClientDriver, Headers, ProduceOptions, ReadRecord, SentRecord

# The records are years old, and must not be deleted for that while a test reads them.
KEPT: dict[str, str] = {"retention.ms": "-1"}
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

# kcat's layout for headers knows neither commas nor line ends, and its options for bytes 0x1e and 0x1f mark ends.
_PLAIN_BYTES = bytes(byte for byte in range(256) if byte not in (0x1E, 0x1F))
_NOISE = bytes(random.Random(5).choices(_PLAIN_BYTES, k=3_000))
_AWKWARD_HEADERS: Headers = (
    ("trace", b"abc"),
    ("trace", b"again"),
    ("empty", b""),
    ("none", None),
    ("überschrift", "日本語".encode()),
    ("raw", b"\xff\xfe\x80"),
)
RECORDS = tuple(
    SentRecord(key, value, headers, 1_700_000_000_000 + at_ms)
    for key, value, headers, at_ms in (
        (b"k1", b"plain", (), 0),
        (None, b"no key", (), 1),
        (b"k2", None, (), 2),
        (b"", b"empty key", (), 3),
        (b"k3", b"", (), 4),
        (None, None, (), 5),
        (b"k4", b"with headers", _AWKWARD_HEADERS, 6),
        (b"k5", None, (("only", b"header"),), 7),
        (b"k6", b"earlier than those before", (), -86_400_000),
        ("schlüssel".encode(), "日本語 ✓".encode(), (("ü", b"1"), ("ü", b"2")), 8),
        (b"noise", _NOISE, (), 9),
        (b"large", b"0123456789abcdef" * 2_000, (), 10),
    )
)

_names = itertools.count()


def fresh_topic() -> str:
    return f"exchange-{next(_names)}"


def sendable(client: ClientDriver) -> list[SentRecord]:
    """The records as this client can send them."""
    return [
        replace(
            record,
            headers=tuple(pair for pair in record.headers if client.sends_null_headers or pair[1] is not None),
            timestamp_ms=record.timestamp_ms if client.sets_timestamps else None,
        )
        for record in RECORDS
        if client.sends_empty_records or record.key is not None or record.value is not None
    ]


@dataclass(frozen=True, slots=True)
class Written:
    """What one client wrote: in each partition the records with their offsets, and which of them count."""

    topic: str
    everything: dict[int, list[tuple[int, SentRecord]]]
    committed: dict[int, list[tuple[int, SentRecord]]]
    began_ms: int


def write(client: ClientDriver, topic: str) -> Written:
    """A partition for each compression: plain records, then an aborted transaction, then a committed one."""
    began_ms = time.time_ns() // 1_000_000
    everything: dict[int, list[tuple[int, SentRecord]]] = {}
    committed: dict[int, list[tuple[int, SentRecord]]] = {}
    records = sendable(client)
    for partition, compression in enumerate(COMPRESSIONS):
        plain = list(enumerate(records))
        # A producer that is not idempotent may double what it retries, as right after a topic was made.
        once = ProduceOptions(compression, idempotent=True)
        _check_offsets(plain, client.produce(topic, partition, records, once))
        everything[partition], committed[partition] = plain, plain
        if client.has_transactions:
            # The next use of an id waits for the end of the transaction before, so that the offsets are known.
            transaction = ProduceOptions(compression, transactional_id=f"{topic}-{partition}")
            aborted = list(enumerate(records, start=len(records)))
            dropped = client.produce(topic, partition, records, replace(transaction, commits=False))
            _check_offsets(aborted, dropped)
            last = list(enumerate(records, start=2 * len(records) + 1))  # behind the marker of the abort
            _check_offsets(last, client.produce(topic, partition, records, transaction))
            everything[partition], committed[partition] = plain + aborted + last, plain + last
    return Written(topic, everything, committed, began_ms)


def _check_offsets(expected: Sequence[tuple[int, SentRecord]], offsets: Sequence[int | None]) -> None:
    for (due, _), offset in zip(expected, offsets, strict=True):
        assert offset in (None, due), f"offset {offset} where {due} was due"


def check_read(reader: ClientDriver, written: Written) -> None:
    """Every record is read as it was sent, with either isolation level; also from the middle of batches."""
    for isolation, partitions in (
        ("read_uncommitted", written.everything),
        ("read_committed", written.committed),
    ):
        for partition, expected in partitions.items():
            case = f"{reader.name}, {COMPRESSIONS[partition]}, {isolation}"
            _compare(case, reader.consume(written.topic, partition, 0, len(expected), isolation), expected, written)
            rest = expected[len(expected) // 2 + 1 :]
            read = reader.consume(written.topic, partition, rest[0][0], len(rest), isolation)
            _compare(f"{case}, from offset {rest[0][0]}", read, rest, written)


def _compare(
    case: str, read: Sequence[ReadRecord], expected: Sequence[tuple[int, SentRecord]], written: Written
) -> None:
    for found, (offset, sent) in zip(read, expected, strict=True):
        assert found.offset == offset, case
        assert (found.key, found.value, found.headers) == (sent.key, sent.value, sent.headers), f"{case}, {offset}"
        if sent.timestamp_ms is not None:
            assert found.timestamp_ms == sent.timestamp_ms, f"{case}, {offset}"
        else:
            assert written.began_ms <= found.timestamp_ms <= time.time_ns() // 1_000_000, f"{case}, {offset}"
