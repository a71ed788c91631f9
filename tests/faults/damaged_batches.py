"""Produced batches that lie: every kind of damage once, with a checksum that is right for it.

A kind has what is sent for the partition and the error code that Apache Kafka 4.3.1 answers; where Tidelog answers
another, it says which and why. The batches are put together field by field, so that each can be wrong by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from crc32c import crc32c

from tidelog.protocol import ErrorCode
from tidelog.records import Compression, compress

NONE = ErrorCode.NONE
CORRUPT = ErrorCode.CORRUPT_MESSAGE
INVALID = ErrorCode.INVALID_RECORD
TIMESTAMP = ErrorCode.INVALID_TIMESTAMP
UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
CODECS = (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD)


def varint(value: int, *, padding: int = 0) -> bytes:
    """A zigzag varint of at most 64 bits; `padding` makes it that many bytes longer than it need be."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    for _ in range(padding):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


@dataclass(frozen=True)
class RawRecord:
    """A record whose lengths and counts may differ from what is there."""

    offset_delta: int = 0
    key: bytes = b"key"
    value: bytes = b"some value"
    headers: tuple[tuple[bytes, bytes], ...] = ((b"header", b"one"),)
    attributes: int = 0
    timestamp_delta: bytes = varint(0)
    key_length: int | None = None
    value_length: int | None = None
    headers_count: int | None = None
    header_key_length: int | None = None
    header_value_length: int | None = None
    length_off_by: int = 0
    length: bytes | None = None
    tail: bytes = b""

    def encode(self) -> bytes:
        body = bytearray([self.attributes])
        body += self.timestamp_delta + varint(self.offset_delta)
        body += varint(len(self.key) if self.key_length is None else self.key_length) + self.key
        body += varint(len(self.value) if self.value_length is None else self.value_length) + self.value
        body += varint(len(self.headers) if self.headers_count is None else self.headers_count)
        for key, value in self.headers:
            body += varint(len(key) if self.header_key_length is None else self.header_key_length) + key
            body += varint(len(value) if self.header_value_length is None else self.header_value_length) + value
        body += self.tail
        length = varint(len(body) + self.length_off_by) if self.length is None else self.length
        return length + bytes(body)


@dataclass(frozen=True)
class RawBatch:
    """A batch whose header may say anything; its checksum is right unless it is given."""

    records: tuple[RawRecord, ...] = tuple(RawRecord(offset_delta=index) for index in range(3))
    now_ms: int = 0
    base_offset: int = 0
    length_off_by: int = 0
    leader_epoch: int = -1
    magic: int = 2
    crc_off_by: int = 0
    attributes: int = 0
    codec: Compression = Compression.NONE
    last_offset_delta: int = 2
    base_timestamp_off_by: int = 0
    base_timestamp: int | None = None
    max_timestamp_off_by: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = 3
    inside: bytes = b""  # behind the records, before they are compressed
    payload: bytes | None = None  # in place of the records, as it is
    change: Callable[[bytes], bytes] = field(default=bytes)  # of the compressed bytes

    def encode(self) -> bytes:
        payload = self.payload
        if payload is None:
            payload = b"".join(record.encode() for record in self.records) + self.inside
            payload = self.change(compress(self.codec, payload))
        base_timestamp = self.now_ms if self.base_timestamp is None else self.base_timestamp
        covered = (
            struct.pack(
                ">hiqqqhii",
                self.attributes | self.codec,
                self.last_offset_delta,
                base_timestamp + self.base_timestamp_off_by,
                self.now_ms + self.max_timestamp_off_by,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.count,
            )
            + payload
        )
        crc = crc32c(covered) ^ self.crc_off_by
        head = struct.pack(">ibI", self.leader_epoch, self.magic, crc)
        length = len(head) + len(covered) + self.length_off_by
        return struct.pack(">qi", self.base_offset, length) + head + covered


@dataclass(frozen=True)
class Damage:
    """One kind: what is sent, what Kafka answers and, where that differs, what Tidelog answers."""

    name: str
    batch: RawBatch | Callable[[int], bytes]
    kafka: ErrorCode
    ours: ErrorCode | None = None
    why: str = ""

    @property
    def code(self) -> ErrorCode:
        return self.kafka if self.ours is None else self.ours

    def encode(self, now_ms: int) -> bytes:
        if isinstance(self.batch, RawBatch):
            return replace(self.batch, now_ms=now_ms).encode()
        return self.batch(now_ms)


def with_first(**fields: object) -> tuple[RawRecord, ...]:
    """Three records of which the first one has other fields."""
    return (RawRecord(**fields), RawRecord(offset_delta=1), RawRecord(offset_delta=2))  # type: ignore[arg-type]


def with_last(**fields: object) -> tuple[RawRecord, ...]:
    """Three records of which the last one has other fields."""
    fields.setdefault("offset_delta", 2)
    return (RawRecord(), RawRecord(offset_delta=1), RawRecord(**fields))  # type: ignore[arg-type]


def offsets(*deltas: int) -> tuple[RawRecord, ...]:
    return tuple(RawRecord(offset_delta=delta) for delta in deltas)


RECORD_DAMAGE: dict[str, dict[str, object]] = {
    "a record a byte shorter than it says": {"records": with_last(length_off_by=1)},
    "a record a byte longer than it says": {"records": with_last(length_off_by=-1)},
    "a first record that takes a byte of the next": {"records": with_first(length_off_by=1)},
    "a first record that leaves a byte to the next": {"records": with_first(length_off_by=-1)},
    "a record beyond the end": {"records": with_last(length_off_by=1_000)},
    "a record of 2 GB": {"records": with_last(length=varint(INT32_MAX))},
    "a record of negative length": {"records": with_first(length=varint(-5))},
    "a record of no length": {"records": with_first(length=varint(0))},
    "a record length of six bytes": {"records": with_first(length=varint(28, padding=5))},
    "a record length that never ends": {"records": with_last(length=b"\xff" * 12)},
    "a key beyond its record": {"records": with_last(key_length=1_000)},
    "a key into its value": {"records": with_last(key_length=5)},
    "a key of 2 GB": {"records": with_last(key_length=INT32_MAX)},
    "a value beyond its record": {"records": with_last(value_length=1_000)},
    "a value of 2 GB": {"records": with_last(value_length=INT32_MAX)},
    "a value that takes the next record": {"records": with_first(value_length=50)},
    "a negative count of headers": {"records": with_last(headers_count=-1)},
    "more headers than there are": {"records": with_last(headers_count=2)},
    "two billion headers": {"records": with_last(headers_count=INT32_MAX)},
    "fewer headers than there are": {"records": with_last(headers_count=0)},
    "a header without a key": {"records": with_last(header_key_length=-1, headers=((b"", b"one"),))},
    "a header's key of length -2": {"records": with_last(header_key_length=-2, headers=((b"", b"one"),))},
    "a header's key beyond the record": {"records": with_last(header_key_length=100)},
    "a header's value beyond the record": {"records": with_last(header_value_length=100)},
    "a timestamp delta of eleven bytes": {"records": with_last(timestamp_delta=varint(0, padding=10))},
    "a byte behind the headers": {"records": with_last(tail=b"x")},
    "a byte behind the records": {"inside": b"x"},
    "zeros behind the records": {"inside": bytes(100)},
    "a record more than announced": {"records": offsets(0, 1, 2, 3)},
    "a record fewer than announced": {"records": offsets(0, 1)},
    "a hundred million records announced": {"count": 10**8, "last_offset_delta": 10**8 - 1},
    "no record in it": {"records": ()},
    "zeros in place of records": {"records": (), "inside": bytes(200)},
    "text in place of records": {"records": (), "inside": b"this is not a record batch at all, just text " * 4},
    "bytes of 0xff in place of records": {"records": (), "inside": b"\xff" * 200},
}
"""Damage of the records themselves, for any codec."""


# Kafka opens compressed records without a look at how long they say they are.
LENGTHS_NOT_LOOKED_AT = frozenset(
    {
        "a record a byte shorter than it says",
        "a record a byte longer than it says",
        "a first record that takes a byte of the next",
        "a first record that leaves a byte to the next",
        "a record beyond the end",
        "a record of 2 GB",
        "a record of negative length",
        "a record of no length",
    }
)
# An exception of Kafka's own, where the length of a record is no varint and no compressed stream catches it.
FAILS_IN_KAFKA = frozenset(
    {"a record length of six bytes", "a record length that never ends", "bytes of 0xff in place of records"}
)

STORED = "Kafka stores it, and its consumers stop there"
FAILURE = "Kafka fails with an exception of its own"


def _record_kinds() -> Iterator[Damage]:
    for name, fields in RECORD_DAMAGE.items():
        for codec in (Compression.NONE, *CODECS):
            batch = RawBatch(codec=codec, **fields)  # type: ignore[arg-type]
            title = f"{name}, {codec.label}"
            if codec is not Compression.NONE and name in LENGTHS_NOT_LOOKED_AT:
                yield Damage(title, batch, NONE, INVALID, STORED)
            elif codec is Compression.NONE and name in FAILS_IN_KAFKA:
                yield Damage(title, batch, UNKNOWN, INVALID, FAILURE)
            else:
                yield Damage(title, batch, INVALID)


OFFSETS = {
    "offsets out of order": (0, 2, 1),
    "offsets that repeat": (0, 0, 0),
    "offsets with a gap": (0, 1, 5),
    "offsets that start at 1": (1, 2, 3),
    "negative offsets": (-3, -2, -1),
    "an offset of 2 billion": (0, 1, INT32_MAX),
}
NEGATIVE_LENGTHS: dict[str, dict[str, object]] = {
    "a key of length -2": {"key_length": -2, "key": b""},
    "a value of length -2": {"value_length": -2, "value": b""},
    "a header's value of length -2": {"header_value_length": -2, "headers": ((b"header", b""),)},
}
HARMLESS: dict[str, dict[str, object]] = {
    "a varint with spare bytes": {"records": with_last(timestamp_delta=varint(0, padding=3))},
    "a timestamp below -1": {"base_timestamp": -5},
    "a largest timestamp that no record has": {"max_timestamp_off_by": 7},
    "a largest timestamp two hours ahead": {"max_timestamp_off_by": 7_200_000},
    "a largest timestamp below the records'": {"records": with_last(timestamp_delta=varint(1_000))},
    "attributes of a record": {"records": with_last(attributes=0x7F)},
    "a header's key that is not UTF-8": {"records": with_last(headers=((b"\xff\xfe", b"one"),))},
}
"""Odd, but every consumer reads it; the largest timestamp is put right, as Kafka does."""


def _other_record_kinds() -> Iterator[Damage]:
    for codec in (Compression.NONE, *CODECS):
        is_plain = codec is Compression.NONE
        for name, deltas in OFFSETS.items():
            batch = RawBatch(codec=codec, records=offsets(*deltas))
            kafka, why = (NONE, STORED) if is_plain else (UNKNOWN, FAILURE)
            yield Damage(f"{name}, {codec.label}", batch, kafka, INVALID, why)
        for name, fields in NEGATIVE_LENGTHS.items():
            batch = RawBatch(codec=codec, records=with_last(**fields))
            yield Damage(f"{name}, {codec.label}", batch, NONE, INVALID, "Kafka takes it for -1, librdkafka does not")
        for name, fields in HARMLESS.items():
            yield Damage(f"{name}, {codec.label}", RawBatch(codec=codec, **fields), NONE)  # type: ignore[arg-type]
        batch = RawBatch(codec=codec, records=with_last(timestamp_delta=b"\x80" * 9 + b"\x02"))
        yield Damage(f"a varint beyond its width, {codec.label}", batch, NONE, INVALID, "Kafka drops the bits beyond")
        batch = RawBatch(codec=codec, records=with_last(attributes=0x80))
        why = "kafka-python and aiokafka stop there"
        yield Damage(f"attributes of a record above 0x7f, {codec.label}", batch, NONE, INVALID, why)
        batch = RawBatch(codec=codec, records=with_first(length=b"\xb8\x80\x80\x80\x70"))
        kafka = INVALID if is_plain else NONE
        yield Damage(f"a record length beyond its width, {codec.label}", batch, kafka, INVALID, STORED)
        for name, delta in {"that leaves 64 bits": INT64_MAX, "two hours ahead": 7_200_000}.items():
            batch = RawBatch(codec=codec, records=with_last(timestamp_delta=varint(delta)))
            yield Damage(f"a timestamp {name}, {codec.label}", batch, TIMESTAMP)


def _codec_kinds() -> Iterator[Damage]:
    for name, codec, fields, kafka in _codec_damage():
        ours = kafka if kafka in (NONE, INVALID) else INVALID
        why = FAILURE if kafka is UNKNOWN else ""
        if kafka is NONE and name.endswith(("behind gzip", "behind lz4")):
            ours, why = INVALID, "Kafka does not look behind the end, other readers do"
        if name == "xerial framing of version 0":
            ours, why = INVALID, "kafka-python and aiokafka stop there"
        if name == "two gzip members":
            ours, why = INVALID, "librdkafka reads only the first, and stops"
        yield Damage(name, RawBatch(codec=codec, **fields), kafka, ours, why)  # type: ignore[arg-type]
    for number in (5, 6, 7):
        ours = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        yield Damage(f"codec {number}", RawBatch(attributes=number), UNKNOWN, ours, FAILURE)


def _codec_damage() -> Iterator[tuple[str, Compression, dict[str, object], ErrorCode]]:
    plain = _plain_records()
    for codec in CODECS:
        label = codec.label
        yield f"text that claims to be {label}", codec, {"payload": b"just some text " * 9}, UNKNOWN
        yield f"zeros that claim to be {label}", codec, {"payload": bytes(200)}, UNKNOWN
        nothing = INVALID if codec is Compression.ZSTD else UNKNOWN
        yield f"nothing that claims to be {label}", codec, {"payload": b""}, nothing
        yield f"records that claim to be {label}", codec, {"payload": plain}, UNKNOWN
        yield f"{label} that claims to be none", Compression.NONE, {"payload": compress(codec, plain)}, INVALID
        yield f"{label} cut in the middle", codec, {"change": lambda data: data[: len(data) // 2]}, UNKNOWN
        yield f"{label} cut before its last byte", codec, {"change": lambda data: data[:-1]}, UNKNOWN
        # Without a checksum of their own, snappy and zstd give another value, which nobody can tell.
        inside = NONE if codec in (Compression.SNAPPY, Compression.ZSTD) else UNKNOWN
        yield f"{label} with a flipped bit inside", codec, {"change": _flip(0.6)}, inside
        yield f"{label} with a flipped bit in its head", codec, {"change": _flip(0.0)}, UNKNOWN
        behind = NONE if codec in (Compression.GZIP, Compression.LZ4) else UNKNOWN
        yield f"text behind {label}", codec, {"change": lambda data: data + b"text"}, behind
        yield f"zeros behind {label}", codec, {"change": lambda data: data + bytes(16)}, behind
        for other in CODECS:
            if other is not codec:
                yield f"{other.label} that claims to be {label}", codec, {"payload": compress(other, plain)}, UNKNOWN
    lz4, snappy, zstd = Compression.LZ4, Compression.SNAPPY, Compression.ZSTD
    yield "an lz4 frame with linked blocks", lz4, {"payload": _linked_lz4(plain)}, UNKNOWN
    yield "two lz4 frames", lz4, {"payload": _twice(lz4, plain)}, INVALID
    yield "two gzip members", Compression.GZIP, {"payload": _twice(Compression.GZIP, plain)}, NONE
    yield "two zstd frames", zstd, {"payload": _twice(zstd, plain)}, NONE
    xerial = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    yield "a xerial block of 2 GB", snappy, {"payload": xerial + struct.pack(">i", INT32_MAX) + bytes(50)}, UNKNOWN
    yield "a xerial block of length -1", snappy, {"payload": xerial + struct.pack(">i", -1) + bytes(50)}, UNKNOWN
    yield "a xerial block of no length", snappy, {"payload": xerial + bytes(4)}, UNKNOWN
    yield "a xerial header alone", snappy, {"payload": xerial}, INVALID
    yield "half a xerial header", snappy, {"payload": xerial[:12]}, UNKNOWN
    yield "xerial framing of version 0", snappy, {"change": lambda data: data[:8] + bytes(8) + data[16:]}, NONE
    yield "snappy that announces 4 GB", snappy, {"payload": b"\xff\xff\xff\xff\x0f" + bytes(100)}, UNKNOWN
    terabyte = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + bytes(20)
    yield "zstd that announces a terabyte", zstd, {"payload": terabyte}, UNKNOWN
    yield "zstd with a window of 2 TB", zstd, {"payload": b"\x28\xb5\x2f\xfd\x00\xf8\x01\x00\x00"}, UNKNOWN


def _twice(codec: Compression, data: bytes) -> bytes:
    return compress(codec, data[:40]) + compress(codec, data[40:])


def _linked_lz4(data: bytes) -> bytes:
    import cramjam

    compressor = cramjam.lz4.Compressor(level=0, content_checksum=False, block_linked=True)
    compressor.compress(data)
    return bytes(compressor.finish())


def _plain_records() -> bytes:
    return b"".join(record.encode() for record in RawBatch().records)


def _flip(where: float) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[int(len(changed) * where)] ^= 0x10
        return bytes(changed)

    return change


def _header_kinds() -> Iterator[Damage]:
    batch = RawBatch()
    size = len(batch.encode())

    def kind(name: str, kafka: ErrorCode, **fields: object) -> Damage:
        return Damage(name, replace(batch, **fields), kafka)  # type: ignore[arg-type]

    yield kind("a wrong checksum", CORRUPT, crc_off_by=1)
    yield kind("a base offset", INVALID, base_offset=5)
    yield kind("a negative base offset", INVALID, base_offset=-1)
    yield kind("the largest base offset", INVALID, base_offset=INT64_MAX)
    yield kind("a batch length one too long", INVALID, length_off_by=1)
    yield kind("a batch length one too short", CORRUPT, length_off_by=-1)
    yield kind("a batch length of zero", CORRUPT, length_off_by=12 - size)
    yield kind("a negative batch length", CORRUPT, length_off_by=-size)
    lie = replace(batch, length_off_by=INT32_MAX - size + 12)
    yield Damage("a batch length of 2 GB", lie, UNKNOWN, INVALID, FAILURE)
    yield kind("a batch length of 49, a header", CORRUPT, length_off_by=12 + 49 - size)
    # What follows is taken for the next batch. The last byte of the timestamps begins its length and is its magic.
    legacy = replace(batch, length_off_by=12 + 14 - size)

    def legacy_ending(last_byte: int) -> Callable[[int], bytes]:
        return lambda now_ms: replace(legacy, now_ms=now_ms & ~0xFF | last_byte).encode()

    yield Damage("a batch length of 14, then garbage", legacy_ending(0xFF), CORRUPT)
    yield Damage("a batch length of 14, then one of 16 MiB", legacy_ending(1), UNKNOWN, CORRUPT, FAILURE)
    for magic in (0, 1):
        yield kind(f"magic {magic}", INVALID, magic=magic)
    for magic in (3, 127, -1):
        yield kind(f"magic {magic}", CORRUPT, magic=magic)
    yield kind("no record announced", INVALID, count=0, last_offset_delta=-1)
    yield kind("a count of zero", INVALID, count=0)
    yield kind("a negative count", INVALID, count=-3, last_offset_delta=-4)
    yield kind("a negative count alone", INVALID, count=-3)
    yield kind("a count below the offsets", INVALID, count=2)
    yield kind("a count above the offsets", INVALID, count=4)
    yield kind("a negative last offset", INVALID, last_offset_delta=-1)
    yield kind("the largest last offset", INVALID, last_offset_delta=INT32_MAX)
    yield kind("a control batch", INVALID, attributes=0x20)
    stamped = replace(batch, attributes=0x08)
    yield Damage("log append time", stamped, NONE, TIMESTAMP, "Kafka takes the batch's largest timestamp for all")
    yield kind("a delete horizon", NONE, attributes=0x40)
    yield kind("an unused attribute", NONE, attributes=0x80)
    yield kind("unused high attributes", NONE, attributes=0x7F00)
    yield kind("a producer without a sequence", INVALID, producer_id=5, producer_epoch=0)
    yield kind("a producer with epoch -1", NONE, producer_id=6, producer_epoch=-1, base_sequence=0)
    yield kind(
        "a producer with epoch -5", ErrorCode.INVALID_PRODUCER_EPOCH, producer_id=7, producer_epoch=-5, base_sequence=0
    )
    yield kind("a sequence without a producer", NONE, base_sequence=3)
    yield kind("an epoch without a producer", NONE, producer_epoch=3)
    yield kind("producer -2", NONE, producer_id=-2)
    yield kind("producer -2 with a sequence", NONE, producer_id=-2, producer_epoch=0, base_sequence=0)
    yield kind("a leader epoch", NONE, leader_epoch=9)

    def cut(name: str, kafka: ErrorCode, change: Callable[[bytes], bytes]) -> Damage:
        return Damage(name, lambda now_ms: change(replace(batch, now_ms=now_ms).encode()), kafka)

    yield cut("nothing", INVALID, lambda data: b"")
    yield cut("one byte", INVALID, lambda data: b"x")
    yield cut("ten zeros", INVALID, lambda data: bytes(10))
    yield cut("a hundred zeros", CORRUPT, lambda data: bytes(100))
    yield cut("half a header", INVALID, lambda data: data[:30])
    yield cut("a header alone", INVALID, lambda data: data[:61])
    yield cut("a batch cut short", INVALID, lambda data: data[:-1])
    yield cut("two batches", INVALID, lambda data: data * 2)
    yield cut("a batch and a byte", NONE, lambda data: data + b"x")
    yield cut("a batch and 40 zeros", CORRUPT, lambda data: data + bytes(40))
    yield cut("a batch and half a batch", NONE, lambda data: (data * 2)[:-20])


def all_kinds() -> list[Damage]:
    return [*_header_kinds(), *_record_kinds(), *_other_record_kinds(), *_codec_kinds()]
