"""Ten thousand malformed frames at one broker, while a well-behaved client writes and reads beside them.

The frames are fuzzed headers and sizes, requests of every API in every version with bytes changed, cut off or put in,
and record batches that lie about themselves or grow a thousandfold when they are opened. The broker may answer or close
the connection; it may not stall the good client, lose its records, grow, leak or fail.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.bench.processes import resident_bytes_of
from tidelog.broker import handlers
from tidelog.broker.registry import Handler, registered_handlers
from tidelog.protocol import (
    ProtocolError,
    RequestHeader,
    decode,
    decode_request_header,
    encode,
    encode_request_header,
    request_class,
)
from tidelog.protocol.messages.k00_produce import PRODUCE, PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.schema import Field, fields_of
from tidelog.records import BATCH_HEADER_SIZE, Compression, encode_batch
from tidelog.records.batch import parse_header, write_header
from tidelog.testing.raw_client import frame

if TYPE_CHECKING:
    from tests.chaos.conftest import GoodClient, ServedBroker, StartServed

# Tests that measure run one after another, also where others run beside them.
pytestmark = pytest.mark.xdist_group("measured")

SOAK_SEED = int(os.environ.get("FRAMES_SEED", "45"))
WARM_UP_FRAMES = 1_000
# Two threads open batches of up to 64 MiB each, and the allocator keeps some of that. What leaks with every frame, or
# waits for the garbage collector, is far more after ten thousand of them.
RESIDENT_GROWTH_BYTES_MAX = (32 + 2 * 64) << 20
# As many connections wait for their end at once; one that waits longer than the patience is reset by the client.
OPEN_MAX = 48
PATIENCE_S = 0.5
# What the topics that some frames make keep open.
SPARE_FILES = 24
# Sound requests that ask for much work are not what is tested here.
PARTITIONS_MAX = 4
BOMB_BYTES = 100 << 20

TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "forced": {"compression.type": "gzip"},
    "opened": {"compression.type": "uncompressed"},
    "compacted": {"cleanup.policy": "compact"},
}
INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


# Sound requests of every API


class RequestMaker:
    """Makes requests that a broker can read, with values that lead deep into the handlers."""

    def __init__(self, source: random.Random, batches: list[bytes]) -> None:
        self._source = source
        self._batches = batches

    def make(self, handler: Handler, version: int) -> bytes:
        request = self._message(request_class(handler.api), version)
        header = RequestHeader(handler.api.key, version, self._source.randrange(1 << 31), self._client_id())
        return encode_request_header(header) + encode(request, version)

    def _client_id(self) -> str | None:
        return self._source.choice([None, "", "fuzz", "ü" * 90])

    def _message(self, cls: type, version: int) -> Any:
        values: dict[str, object] = {}
        for field in fields_of(cls):
            if not field.versions.holds(version):
                continue
            if field.is_nullable(version) and self._source.random() < 0.1:
                values[field.name] = None
            elif field.is_array:
                values[field.name] = [self._value(field, version) for _ in range(self._source.randrange(3))]
            else:
                values[field.name] = self._value(field, version)
        return cls(**values)

    def _value(self, field: Field, version: int) -> object:
        source = self._source
        if field.struct is not None:
            return self._message(field.struct, version)
        assert field.wire is not None
        name = field.wire.name
        if name in INTEGERS:
            return self._integer(field.name, INTEGERS[name])
        values: dict[str, Callable[[], object]] = {
            "bool": lambda: source.random() < 0.5,
            "uint16": lambda: source.randrange(1 << 16),
            "uint32": lambda: source.randrange(1 << 32),
            "float64": source.random,
            "uuid": lambda: uuid.UUID(int=source.choice([0, 1, source.getrandbits(128)])),
            "string": self._text,
            "bytes": lambda: source.randbytes(source.randrange(20)),
            "records": lambda: source.choice(self._batches),
        }
        return values[name]()

    def _integer(self, name: str, bits: int) -> int:
        source = self._source
        values = [-2, -1, 0, 0, 0, 1, 1, 2]
        if name in ("timeout_ms", "max_wait_ms"):
            # Else most of the time would go by in waiting.
            values = [0, 0, 1, 5, -1]
        elif source.random() < 0.2:
            values += [-(1 << (bits - 1)), (1 << (bits - 1)) - 1]
        return source.choice(values)

    def _text(self) -> str:
        source = self._source
        known = [*TOPICS, "retention.ms", "cleanup.policy", "0", "1"]
        odd = ["", ".", "..", "no/name", "\x00", "x" * 250, "ü" * 100, "\U0001f30a", f"fuzz-{source.randrange(20)}"]
        return source.choice(known if source.random() < 0.7 else odd)


# Record batches that lie


def batches_of(source: random.Random, now_ms: int) -> list[bytes]:
    """Sound batches and false ones, in every codec."""
    made: list[bytes] = []
    for codec in Compression:
        records = [(b"key", b"value" * 20, (("header", b"x"),), now_ms)] * 3
        good = bytes(encode_batch(records, compression=codec, now_ms=now_ms))
        made += [good, bytes(encode_batch([(None, None, (), now_ms)], compression=codec, now_ms=now_ms))]
        made += list(lies_about(good, source))
        made.append(bomb(codec, now_ms))
        # A time far ahead makes the broker look for the records to blame.
        made.append(bomb(codec, 1 << 60))
    made += [b"", b"\x00" * BATCH_HEADER_SIZE, source.randbytes(200)]
    return made


def lies_about(good: bytes, source: random.Random) -> Iterator[bytes]:
    """The batch with one field false; the CRC is right unless the lie is about it."""
    header = parse_header(good)
    for changed in (
        {"records_count": 1_000_000, "last_offset_delta": 999_999},
        {"records_count": 2, "last_offset_delta": 1},
        {"records_count": 0, "last_offset_delta": -1},
        {"records_count": -5},
        {"last_offset_delta": 0x7FFFFFFF},
        {"base_offset": -(1 << 63)},
        {"max_timestamp": (1 << 63) - 1},
        {"base_timestamp": (1 << 63) - 1},
        {"attributes": header.attributes | 0x20},
        {"attributes": header.attributes | 0x10},
        {"attributes": header.attributes | 0x07},
        {"attributes": header.attributes ^ 0x01},
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": -1},
        {"producer_id": 7, "producer_epoch": -3, "base_sequence": 0x7FFFFFFF},
    ):
        lie = bytearray(good)
        write_header(lie, header._replace(**changed))
        yield bytes(lie)
    for position, value in ((16, 0), (16, 1), (16, 3), (17, good[17] ^ 1), (8, 0x7F), (11, good[11] ^ 4)):
        lie = bytearray(good)
        lie[position] = value
        yield bytes(lie)
    yield good[:BATCH_HEADER_SIZE]
    yield good[: source.randrange(1, len(good))]
    yield good + good


def bomb(codec: Compression, timestamp_ms: int) -> bytes:
    """A small batch that opens to very much."""
    if codec is Compression.NONE:
        return bytes(encode_batch([(b"k", bytes(100_000), (), timestamp_ms)], now_ms=timestamp_ms))
    size_bytes = BOMB_BYTES if codec is not Compression.SNAPPY else BOMB_BYTES // 8
    return bytes(encode_batch([(b"k", bytes(size_bytes), (), timestamp_ms)], compression=codec, now_ms=timestamp_ms))


# Malformed frames


class Fuzzer:
    """An endless, seeded stream of frames, most of them malformed."""

    def __init__(self, seed: int) -> None:
        handlers.load_all()
        self._source = random.Random(seed)
        self._batches = batches_of(self._source, time.time_ns() // 1_000_000)
        self._maker = RequestMaker(self._source, self._batches)
        self._apis = [
            (handler, version)
            for handler in registered_handlers()
            for version in range(handler.version_min, handler.version_max + 1)
        ]
        self._next_api = 0

    def frames(self) -> Iterator[bytes]:
        kinds = (
            [self._mutated] * 12
            + [self._false_batch] * 3
            + [self._fuzzed_header] * 3
            + [self._false_size] * 3
            + [self._noise]
        )
        while True:
            yield self._source.choice(kinds)()

    def _body(self) -> bytes:
        """A sound request: all APIs and versions have their turn."""
        handler, version = self._apis[self._next_api % len(self._apis)]
        self._next_api += 1
        return self._maker.make(handler, version)

    def _mutated(self) -> bytes:
        source = self._source
        while True:
            body = self._body()
            for _ in range(source.randrange(4)):
                body = self._mutate(body)
            if not asks_for_much(body):
                return struct.pack(">i", len(body)) + body

    def _mutate(self, body: bytes) -> bytes:
        source = self._source
        at = source.randrange(len(body) + 1)
        changed = bytearray(body)
        match source.randrange(7):
            case 0:
                changed[at : at + 1] = bytes([source.randrange(256)])
            case 1:
                changed[at : at + 1] = bytes([changed[at] ^ 1 << source.randrange(8)]) if at < len(body) else b"\x80"
            case 2:
                changed[at : at + 4] = struct.pack(">i", source.choice([-1, 0, 0x7FFFFFFF, -0x80000000, 0x00FFFFFF]))
            case 3:
                changed[at : at + 5] = source.choice([b"\xff\xff\xff\xff\x0f", b"\xff" * 5, b"\x80" * 10])
            case 4:
                del changed[at:]
            case 5:
                changed[at:at] = source.randbytes(source.randrange(1, 9))
            case _:
                changed[at:at] = changed[at : at + source.randrange(64)]
        return bytes(changed)

    def _false_batch(self) -> bytes:
        """A sound request with a false batch, sent to where it is believed and to where it is opened."""
        source = self._source
        data = PartitionProduceData(index=0, records=source.choice(self._batches))
        topic = TopicProduceData(name=source.choice(list(TOPICS)), partition_data=[data])
        request = ProduceRequest(acks=source.choice([-1, 0, 1]), timeout_ms=1_000, topic_data=[topic])
        return frame(PRODUCE, request, source.randrange(3, 13))

    def _fuzzed_header(self) -> bytes:
        """Keys and versions that nobody serves, names of clients and tags that lie about their length."""
        source = self._source
        key = source.choice([source.randrange(-0x8000, 0x8000), *(handler.api.key for handler, _ in self._apis)])
        version = source.choice([-1, 0, 1, 9, 12, 99, 0x7FFF, -0x8000])
        header = struct.pack(">hhi", key, version, source.randrange(1 << 31))
        client_id = struct.pack(">h", source.choice([-1, -2, 0, 3, 0x7FFF])) + b"abc"
        tags = source.choice(
            [b"", b"\x00", b"\x01\x00\x7f", b"\xff\xff\xff\xff\x0f", b"\x7f" * 40, b"\x02\x00\x00\x00"]
        )
        body = header + client_id + tags + source.randbytes(source.randrange(32))
        return b"" if asks_for_much(body) else struct.pack(">i", len(body)) + body

    def _false_size(self) -> bytes:
        source = self._source
        body = self._body()
        size = source.choice(
            [-1, -0x80000000, 0, 1, 7, len(body) + source.randrange(1, 1 << 20), 100 << 20, 0x7FFFFFFF, len(body) - 1]
        )
        return b"" if 0 < size <= len(body) and asks_for_much(body[:size]) else struct.pack(">i", size) + body

    def _noise(self) -> bytes:
        source = self._source
        return source.choice(
            [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", source.randbytes(300), b"\x00" * 64]
        )


def asks_for_much(body: bytes) -> bool:
    """Whether the request came out sound and would do what administrators do: make many partitions, set brokers."""
    try:
        header, offset = decode_request_header(body)
        handler = {handler.api.key: handler for handler in registered_handlers()}[header.api_key]
        request: Any = decode(request_class(handler.api), body, header.api_version, offset)
    except (ProtocolError, KeyError, struct.error):
        return False
    match handler.api.name:
        case "CreateTopics":
            return any(topic.num_partitions > PARTITIONS_MAX for topic in request.topics)
        case "CreatePartitions":
            return any(topic.count > PARTITIONS_MAX for topic in request.topics)
        case "AlterConfigs" | "IncrementalAlterConfigs":
            return any(resource.resource_type == 4 for resource in request.resources)
    return False


# Sending them


class Shooter:
    """Sends every frame over a connection of its own and sees each of them to its end, many at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, float] = {}  # with the time since when
        self._answered: set[socket.socket] = set()
        self.outcomes: Counter[str] = Counter()

    def shoot(self, data: bytes) -> None:
        sock = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        try:
            sock.sendall(data)
            # What is half a request ends here; what is a whole one is still answered.
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            # The broker was quicker to close than we to send.
            self._end(sock, "closed")
            return
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ)
        self._open[sock] = time.monotonic()
        self._reap(0)
        while len(self._open) >= OPEN_MAX:
            self._reap_or_reset()

    def finish(self) -> None:
        while self._open:
            self._reap_or_reset()

    def _reap_or_reset(self) -> None:
        """Wait for the broker, or give up on what waits too long, as a fetch does that may wait for days."""
        oldest, since_s = next(iter(self._open.items()))
        left_s = since_s + PATIENCE_S - time.monotonic()
        if left_s > 0:
            self._reap(left_s)
            return
        oldest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._end(oldest, "reset")

    def _reap(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            try:
                while sock.recv(1 << 20):
                    self._answered.add(sock)
            except BlockingIOError:
                continue
            except OSError:
                pass
            self._end(sock, "answered" if sock in self._answered else "closed")

    def _end(self, sock: socket.socket, outcome: str) -> None:
        self.outcomes[outcome] += 1
        if self._open.pop(sock, None) is not None:
            self._selector.unregister(sock)
        self._answered.discard(sock)
        sock.close()


@pytest.mark.parametrize(
    ("seed", "count"),
    [(44, 10_000), pytest.param(SOAK_SEED, 300_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_thousands_of_malformed_frames(
    serve: StartServed,
    good_client: Callable[[ServedBroker], GoodClient],
    wait_until: Callable[[Callable[[], bool], str], None],
    seed: int,
    count: int,
) -> None:
    broker = serve()
    for name, configs in TOPICS.items():
        broker.create_topic(name, configs=configs)
    client = good_client(broker)
    frames = Fuzzer(seed).frames()
    shooter = Shooter(broker.port)
    for _ in range(WARM_UP_FRAMES):
        shooter.shoot(next(frames))
    shooter.finish()
    files, resident_bytes = broker.open_files(), resident_bytes_of(broker.pid)
    for _ in range(count):
        shooter.shoot(next(frames))
    shooter.finish()
    seen = client.finish()

    seen.check()
    # Frames of all kinds did arrive: some were read and answered, most ended their connection.
    assert shooter.outcomes["answered"] > count / 10
    assert shooter.outcomes["closed"] > count / 3
    assert "Traceback" not in broker.output()
    assert resident_bytes_of(broker.pid) < resident_bytes + RESIDENT_GROWTH_BYTES_MAX
    # Topics that came and went since keep a file open or not; connections do not.
    wait_until(lambda: broker.open_files() <= files + SPARE_FILES, "the files of closed connections are closed")
    broker.stop()
    assert "shut down cleanly" in broker.output()
