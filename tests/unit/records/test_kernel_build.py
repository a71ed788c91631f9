"""The builder of batches: what it writes is what `encode_batch` writes, compiled and interpreted alike."""

from __future__ import annotations

import gc
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.records import kernel_build
from tidelog.records.batch import BATCH_HEADER_SIZE
from tidelog.records.codec import encode_batch

MURMUR2_OF_KAFKA = {  # from the tests of Kafka's own client
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

Pair = tuple[str, bytes | None]
RecordRow = tuple[bytes | None, bytes | None, list[Pair], int]

parts = st.none() | st.binary(max_size=300)
rows = st.tuples(
    parts,
    parts,
    st.lists(st.tuples(st.text(max_size=10), parts), max_size=3),
    st.integers(min_value=-1, max_value=2**62),
)


def load_interpreted() -> ModuleType:
    source = Path(str(kernel_build.__file__)).parent / "kernel_build.py"
    spec = importlib.util.spec_from_file_location("interpreted_kernel_build", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


INTERPRETED = load_interpreted()


@pytest.fixture(params=["compiled", "interpreted"])
def build(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "interpreted":
        return INTERPRETED
    assert not str(kernel_build.__file__).endswith(".py"), "the record kernel is not compiled; `make setup` builds it"
    return kernel_build


def written(build: ModuleType, records: list[RecordRow], capacity: int = 100_000) -> bytes:
    builder = build.BatchBuilder(bytearray(capacity), capacity)
    for index, (key, value, headers, timestamp) in enumerate(records):
        encoded = build.encode_header_list(headers) if headers else None
        assert builder.append(key, value, encoded, timestamp) == index
    return bytes(builder.buffer[BATCH_HEADER_SIZE : builder.size])


@settings(max_examples=200, deadline=None)
@given(st.lists(rows, min_size=1, max_size=20))
def test_records_are_what_encode_batch_writes(records: list[RecordRow]) -> None:
    first = records[0][3]
    for row in records:  # the distance between timestamps has to fit 64 bits, in both ways of writing
        assert row[3] - first < 2**63
    expected = bytes(encode_batch(records)[BATCH_HEADER_SIZE:])
    assert written(kernel_build, records) == expected
    assert written(INTERPRETED, records) == expected


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8193])
def test_varints_of_many_records(build: ModuleType, count: int) -> None:
    records: list[RecordRow] = [(None, b"x", [], index) for index in range(count)]
    assert written(build, records, 200_000) == bytes(encode_batch(records)[BATCH_HEADER_SIZE:])


def test_what_does_not_fit_is_not_begun(build: ModuleType) -> None:
    size = len(encode_batch([(None, b"x" * 50, (), 1)]))
    builder = build.BatchBuilder(bytearray(size), size)
    assert builder.append(None, b"x" * 51, None, 1) == -1
    assert (builder.size, builder.count, builder.max_timestamp) == (BATCH_HEADER_SIZE, 0, -1)
    assert builder.append(None, b"x" * 50, None, 1) == 0
    assert builder.size == size
    assert builder.append(None, None, None, 1) == -1


def test_a_closed_builder_takes_nothing(build: ModuleType) -> None:
    builder = build.BatchBuilder(bytearray(1000), 1000)
    builder.append(b"k", b"v", None, 5)
    builder.close()
    assert builder.append(b"k", b"v", None, 5) == -1
    assert len(builder.take_buffer()) == 1000
    assert builder.take_buffer() is None
    assert builder.append(b"k", b"v", None, 5) == -1


def test_a_growing_batch_keeps_its_records(build: ModuleType) -> None:
    builder = build.BatchBuilder(bytearray(200), 200)
    records: list[RecordRow] = [(b"key", b"a" * 90, [], 7), (None, b"b" * 900, [], 9)]
    builder.append(*records[0][:2], None, 7)
    assert builder.append(None, b"b" * 900, None, 9) == -1
    assert len(builder.move_to(bytearray(2000), 2000)) == 200
    assert builder.append(None, b"b" * 900, None, 9) == 1
    assert bytes(builder.buffer[BATCH_HEADER_SIZE : builder.size]) == bytes(encode_batch(records)[BATCH_HEADER_SIZE:])
    with pytest.raises(ValueError, match="do not fit"):
        builder.move_to(bytearray(500), 500)


def test_values_that_can_not_be_written_are_refused(build: ModuleType) -> None:
    builder = build.BatchBuilder(bytearray(1000), 1000)
    with pytest.raises(ValueError, match="a timestamp is -1 or"):
        builder.append(None, b"v", None, -2)
    with pytest.raises(ValueError, match="does not fit"):
        build.BatchBuilder(bytearray(10), 1000)
    with pytest.raises(ValueError, match="does not fit"):
        build.BatchBuilder(bytearray(1000), 60)
    builder.append(None, None, None, -1)
    with pytest.raises(ValueError, match="too far"):
        builder.append(None, None, None, 2**63 - 1)
    with pytest.raises(TypeError, match="header 'h'"):
        build.encode_header_list([("h", "text")])


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 8190, 8192, 100_000])
def test_no_record_is_larger_than_its_bound(build: ModuleType, size: int) -> None:
    headers = [("name", b"x" * size)]
    bound = build.record_size_max(b"k" * size, b"v" * size, build.encode_header_list(headers))
    last = [(b"k" * size, b"v" * size, headers, 2**61)]
    before = [(None, None, (), 0)]
    real = len(encode_batch([*before, *last])) - len(encode_batch(before))
    assert real <= bound < real + 20


# Hashes


@pytest.mark.parametrize("data", MURMUR2_OF_KAFKA)
def test_murmur2_is_kafkas(build: ModuleType, data: bytes) -> None:
    assert build.murmur2(data) == MURMUR2_OF_KAFKA[data] & 0xFFFFFFFF


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=70))
def test_murmur2_of_both_kernels_is_that_of_another_client(data: bytes) -> None:
    assert kernel_build.murmur2(data) == INTERPRETED.murmur2(data) == aiokafka_murmur2(data) & 0xFFFFFFFF


def test_partitions_lie_within_the_topic(build: ModuleType) -> None:
    keys = [number.to_bytes(4, "big") for number in range(1000)]
    assert {build.partition_for_key(key, 7) for key in keys} == set(range(7))
    with pytest.raises(ValueError, match="at least one"):
        build.partition_for_key(b"key", 0)


# The appender


class Scene:
    """An appender with one topic of three partitions, all with an open batch."""

    def __init__(self, build: ModuleType) -> None:
        self.build = build

        class Receipt(build.RecordReceipt):  # type: ignore[misc,name-defined]  # the module is a variable here
            __slots__ = ()

        self.receipt_class = Receipt
        self.appender = build.RecordAppender(Receipt)
        self.slots = build.TopicSlots(3, True, True)
        self.appender.add_topic("t", self.slots)
        self.batches = [build.BatchBuilder(bytearray(1000), 1000) for _ in range(3)]
        for number, batch in enumerate(self.batches):
            self.slots.set_open(number, batch)

    def counts(self) -> list[int]:
        return [batch.count for batch in self.batches]


@pytest.fixture
def scene(build: ModuleType) -> Scene:
    return Scene(build)


def test_a_partition_given_wins_over_the_key(scene: Scene) -> None:
    assert scene.appender.append("t", b"v", b"key", None, 2, None) == 1
    assert scene.counts() == [0, 0, 1]
    assert scene.slots.sticky_bytes == 0


def test_keys_choose_by_hash_and_others_stick(scene: Scene) -> None:
    assert scene.appender.append("t", b"v", b"key", None, None, None) == 1
    assert scene.batches[scene.build.partition_for_key(b"key", 3)].count == 1
    scene.slots.stick_to(1, 1000)
    size = scene.batches[1].size
    before = scene.batches[1].count
    assert scene.appender.append("t", b"v", None, None, None, None) == 1
    assert scene.batches[1].count == before + 1
    assert scene.slots.sticky_bytes == scene.batches[1].size - size


@pytest.mark.parametrize(
    "record",
    [
        ("other", b"v", None, None, None, None),
        (7, b"v", None, None, None, None),
        ("t", "text", None, None, None, None),
        ("t", bytearray(b"v"), None, None, None, None),
        ("t", b"v", "text", None, None, None),
        ("t", b"v", None, None, 3, None),
        ("t", b"v", None, None, -1, None),
        ("t", b"v", None, None, "1", None),
        ("t", b"v", None, None, None, 1.5),
        ("t", b"v" * 2000, None, None, None, None),
    ],
)
def test_what_needs_a_decision_is_refused_and_not_written(scene: Scene, record: tuple[object, ...]) -> None:
    assert scene.appender.append(*record) == 0
    assert scene.appender.append_with_receipt(*record, None) is None
    assert scene.counts() == [0, 0, 0]


def test_nothing_is_appended_where_it_is_not_enabled_or_not_open(scene: Scene) -> None:
    scene.appender.set_enabled(False)
    assert scene.appender.append("t", b"v", None, None, 0, None) == 0
    scene.appender.set_enabled(True)
    scene.batches[0].close()
    assert scene.appender.append("t", b"v", None, None, 0, None) == 0
    scene.slots.set_open(1, None)
    assert scene.appender.append("t", b"v", None, None, 1, None) == 0
    scene.appender.forget_topic("t")
    assert scene.appender.append("t", b"v", None, None, 2, None) == 0


def test_a_topic_with_a_partitioner_of_its_own_needs_it(build: ModuleType) -> None:
    appender = build.RecordAppender(build.RecordReceipt)
    slots = build.TopicSlots(1, False, False)
    slots.set_open(0, build.BatchBuilder(bytearray(1000), 1000))
    appender.add_topic("t", slots)
    assert appender.append("t", b"v", b"k", None, None, None) == 0
    assert appender.append("t", b"v", b"k", None, 0, None) == 1


def test_a_sticky_choice_has_its_end(scene: Scene) -> None:
    scene.slots.stick_to(1, 20)
    results = [scene.appender.append("t", b"v" * 5, None, None, None, None) for _ in range(3)]
    assert results == [1, 1, 0]
    assert scene.appender.append("t", b"v", None, None, 1, None) == 1


def test_a_grown_topic_has_more_slots(scene: Scene) -> None:
    scene.slots.grow(5)
    assert scene.slots.get_open(4) is None
    scene.slots.set_open(4, scene.build.BatchBuilder(bytearray(1000), 1000))
    assert scene.appender.append("t", b"v", None, None, 4, None) == 1


def test_a_receipt_tells_where_the_record_went(scene: Scene) -> None:
    told: list[object] = []
    scene.appender.append("t", b"first", None, None, 1, None)
    receipt = scene.appender.append_with_receipt("t", b"value", b"k", None, 1, 77, told.append)
    assert isinstance(receipt, scene.receipt_class)
    assert receipt.batch is scene.batches[1]
    assert (receipt.index, receipt.timestamp, receipt.key_size, receipt.value_size) == (1, 77, 1, 5)
    assert scene.batches[1].take_callbacks() == [receipt]
    assert scene.batches[1].take_callbacks() == []
    assert receipt.on_delivery == told.append


def test_a_sender_leaves_to_its_subclass_what_can_not_be_appended(scene: Scene) -> None:
    slow: list[tuple[object, ...]] = []

    class Producer(scene.build.RecordSender):  # type: ignore[name-defined, misc]
        def _send(self, *record: object) -> None:
            slow.append(record)

    producer = Producer()
    producer._set_appender(scene.appender)
    producer.send_nowait("t", b"v")
    assert isinstance(producer.send("t", b"v", on_delivery=slow.append), scene.receipt_class)
    assert slow == []
    producer.send("t", b"v", headers=[])
    producer.send_nowait("t", b"v", key=b"k", on_delivery=print)
    producer.send_nowait("unknown", b"v", partition=3, timestamp=7)
    scene.appender.set_enabled(False)
    producer.send("t", b"late")
    assert slow == [
        ("t", b"v", None, [], None, None, None),
        ("t", b"v", b"k", None, None, None, print),
        ("unknown", b"v", None, None, 3, 7, None),
        ("t", b"late", None, None, None, None, None),
    ]


def test_records_without_a_timestamp_get_the_time_of_now(scene: Scene) -> None:
    before = int(time.time() * 1000)
    receipt = scene.appender.append_with_receipt("t", None, None, None, 0, None, None)
    assert before <= receipt.timestamp <= int(time.time() * 1000)
    assert (receipt.key_size, receipt.value_size) == (-1, -1)
    assert scene.batches[0].take_callbacks() == []


# The garbage collector


@contextmanager
def collections_run(code: Callable[[], object]) -> Iterator[None]:
    """Every object that the garbage collector is told of starts it, and with it this code, as a thread would run that
    takes over while the collector ends other objects."""
    is_running = False

    def run(phase: str, _: object) -> None:
        nonlocal is_running
        if phase == "start" and not is_running:
            is_running = True
            code()
            is_running = False

    thresholds = gc.get_threshold()
    gc.callbacks.append(run)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(run)


class Batch(kernel_build.BatchBuilder):
    """As the producer has them: a Python class over the compiled one."""


class Receipt(kernel_build.RecordReceipt):
    pass


def test_nothing_is_appended_while_a_batch_moves() -> None:
    slices: list[slice] = []
    for _ in range(100):
        batch = Batch(bytearray(400), 400)
        batch.append(None, b"early", None, 5)
        before = bytes(batch.buffer or b"")[: batch.size]
        buffer = bytearray(b"\xff" * 800)
        # They empty the interpreter's stock of such objects, so that whoever needs one has to make it.
        slices += [slice(0, 1), slice(0, 2)]
        with collections_run(lambda batch=batch: batch.append(None, b"late", None, 5)):  # type: ignore[misc]
            batch.move_to(buffer, 800)
        assert batch.buffer is buffer
        assert len(buffer) == 800
        size = batch.size
        assert bytes(buffer[: len(before)]) == before
        again = Batch(bytearray(400), 400)
        again.append(None, b"early", None, 5)
        for _ in range(batch.count - 1):
            again.append(None, b"late", None, 5)
        assert bytes(again.buffer or b"")[:size] == bytes(buffer[:size])


def test_whoever_wants_to_be_told_is_told_of_every_record() -> None:
    """A batch may be sent and answered once a record is in it, but not before it is noted who wants to be told."""
    slots = kernel_build.TopicSlots(1, True, True)
    told: list[kernel_build.RecordReceipt] = []

    def end_batch() -> None:
        batch = slots.get_open(0)
        if batch is not None and batch.count:
            slots.set_open(0, None)
            batch.close()
            told.extend(batch.take_callbacks())

    appended = []
    for _ in range(100):

        class Another(Receipt):  # nothing is known of a new class, so its methods have to be looked up
            pass

        appender = kernel_build.RecordAppender(Another)
        appender.add_topic("t", slots)
        slots.set_open(0, Batch(bytearray(400), 400))
        with collections_run(end_batch):
            receipt = appender.append_with_receipt("t", b"value", None, None, 0, None, print)
        assert receipt is not None
        appended.append(receipt)
        end_batch()
    assert told == appended
