"""Keyed records for the compaction benchmark: made once, sent to both brokers, recognized when they are read back.

What always holds: the record at an offset follows from the offset and its key, and the keys are kept as numbers, so
what must be left after a clean is known exactly, record by record, without another copy of the data.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.bench.bare import FETCH_VERSION, IN_FLIGHT, PRODUCE_VERSION, BareConnection, check_accepted, frame
from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.errors import MeasurementError
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.records import (
    BATCH_HEADER_SIZE,
    Compression,
    Record,
    decode_records,
    encode_batch,
    iter_headers,
    parse_header,
)

VALUE_BYTES = 100
KEY_BYTES = 12
RECORD_OVERHEAD_BYTES = 12  # lengths, deltas and flags of a small record
ONE_RECORD_BYTES = KEY_BYTES + VALUE_BYTES + RECORD_OVERHEAD_BYTES
_FETCH_BYTES = 8 << 20
_WORDS_BYTES = 4 << 20
_NO_KEY = -1


@dataclass(frozen=True, slots=True)
class KeyedLoad:
    """What is sent: how many bytes of records before compression, in which batches, with how many keys."""

    megabytes: int
    keys: int
    batch_bytes: int
    compression: Compression

    @property
    def records_per_batch(self) -> int:
        return self.batch_bytes // ONE_RECORD_BYTES

    @property
    def label(self) -> str:
        size = "one record" if self.records_per_batch == 1 else f"{self.batch_bytes // 1000} KB"
        return f"batches of {size}, {self.compression.label}"


@dataclass(slots=True)
class MadeLoad:
    """The batches in a file, and the key of every offset."""

    path: Path
    words: bytes = field(repr=False)
    key_of: array[int] = field(default_factory=lambda: array("q"), repr=False)

    def key(self, offset: int) -> bytes:
        return b"user-%07d" % self.key_of[offset]

    def value(self, offset: int) -> bytes:
        """Text that looks like an event, compressible as real ones are, and unlike that of any other offset."""
        head = b'{"id":%d,"user":%d,"text":"' % (offset, self.key_of[offset])
        start = offset * 7919 % (len(self.words) - VALUE_BYTES)
        return head + self.words[start : start + VALUE_BYTES - len(head)]


def make_load(path: Path, load: KeyedLoad, seed: int = 7) -> MadeLoad:
    """Write the batches to a file, one after the other."""
    source = random.Random(seed)
    vocabulary = [f"{source.getrandbits(40):x}" for _ in range(2000)]
    words = " ".join(source.choice(vocabulary) for _ in range(_WORDS_BYTES // 10)).encode()
    made = MadeLoad(path, words)
    batches = max(1, load.megabytes * 1_000_000 // load.batch_bytes)
    now_ms = time.time_ns() // 1_000_000
    with path.open("wb") as file:
        for _ in range(batches):
            first = len(made.key_of)
            made.key_of.extend(source.choices(range(load.keys), k=load.records_per_batch))
            offsets = range(first, len(made.key_of))
            records = [(made.key(offset), made.value(offset), (), now_ms) for offset in offsets]
            file.write(encode_batch(records, compression=load.compression))
    return made


def send(broker: BrokerProcess, topic: str, made: MadeLoad) -> None:
    """Produce all batches with acks=1, some at a time."""
    connection = BareConnection(broker.port)
    try:
        in_flight = 0
        for batches in _chunks(made.path):
            if in_flight == IN_FLIGHT:
                _receive_produced(broker, connection)
                in_flight -= 1
            data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batches)])
            request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data])
            connection.sock.sendall(frame(PRODUCE, request, PRODUCE_VERSION))
            in_flight += 1
        for _ in range(in_flight):
            _receive_produced(broker, connection)
    finally:
        connection.close()


def _receive_produced(broker: BrokerProcess, connection: BareConnection) -> None:
    answer = connection.receive(PRODUCE, ProduceResponse, PRODUCE_VERSION)
    check_accepted(broker, answer.responses[0].partition_responses[0].error_code)


def _chunks(path: Path) -> Iterator[bytes]:
    """One batch at a time, because a produce request may hold only one per partition."""
    with path.open("rb") as file:
        while header := file.read(BATCH_HEADER_SIZE):
            yield header + file.read(parse_header(header, whole_batch=False).size_bytes - BATCH_HEADER_SIZE)


def check_cleaned(broker: BrokerProcess, topic: str, made: MadeLoad, clean_end: int) -> int:
    """Read the whole topic and compare it with what must be left; returns the number of records."""
    expected = _left_after(made, clean_end)
    count = 0
    for record in _read(broker, topic, len(made.key_of)):
        offset = next(expected, None)
        if record.offset != offset:
            raise MeasurementError(f"{broker.name} has offset {record.offset} where {offset} should be")
        if record.key != made.key(offset) or record.value != made.value(offset):
            raise MeasurementError(f"{broker.name} has another record at offset {offset} than was sent")
        count += 1
    missing = next(expected, None)
    if missing is not None:
        raise MeasurementError(f"{broker.name} has lost offset {missing} and whatever should follow")
    return count


def _left_after(made: MadeLoad, clean_end: int) -> Iterator[int]:
    """The last offset of every key in the cleaned part, then everything behind it."""
    last_of = array("q", [_NO_KEY]) * (max(made.key_of) + 1)
    for offset in range(clean_end):
        last_of[made.key_of[offset]] = offset
    yield from sorted(offset for offset in last_of if offset != _NO_KEY)
    yield from range(clean_end, len(made.key_of))


def _read(broker: BrokerProcess, topic: str, end_offset: int) -> Iterator[Record]:
    connection = BareConnection(broker.port)
    try:
        offset = 0
        while offset < end_offset:
            asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
            topics = [FetchTopic(topic=topic, partitions=[asked])]
            request = FetchRequest(
                max_wait_ms=500, min_bytes=1, max_bytes=_FETCH_BYTES, session_epoch=-1, topics=topics
            )
            connection.sock.sendall(frame(FETCH, request, FETCH_VERSION))
            answer = connection.receive(FETCH, FetchResponse, FETCH_VERSION).responses[0].partitions[0]
            check_accepted(broker, answer.error_code)
            if not isinstance(answer.records, memoryview) or not len(answer.records):
                raise MeasurementError(f"{broker.name} had no records at offset {offset} of {end_offset}")
            for position, header in iter_headers(answer.records, allow_partial=True):
                yield from decode_records(answer.records, position)
                offset = header.next_offset
    finally:
        connection.close()
