"""The loop that makes a consumer's records, compiled and interpreted: equal records, equal refusals, on any bytes."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c

from tidelog.records import (
    Compression,
    ControlRecordType,
    CorruptBatchError,
    TimestampType,
    decode_records,
    decompress,
    encode_batch,
    encode_control_batch,
    iter_headers,
    kernel_consume,
    kernel_is_compiled,
)
from tidelog.records.kernel_consume import ConsumerRecord, DeserializeError, deserialize


@pytest.fixture(scope="session")
def plain_consume(interpreted: Any) -> ModuleType:
    """The interpreted twin, over the interpreted reader of records."""
    import importlib.util

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tidelog.records.kernel", interpreted.kernel)
        source = str(kernel_consume.__file__).split(".cpython")[0].removesuffix(".py") + ".py"
        spec = importlib.util.spec_from_file_location("interpreted_kernel_consume", source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    assert module.RecordReader is interpreted.kernel.RecordReader
    return module


@pytest.fixture(params=["compiled", "interpreted"])
def consume(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "compiled":
        assert kernel_is_compiled()
        assert not str(kernel_consume.__file__).endswith(".py")
        return kernel_consume
    module: ModuleType = request.getfixturevalue("plain_consume")
    return module


def open_records(view: memoryview, codec: int) -> bytes:
    if codec > Compression.ZSTD:
        raise CorruptBatchError(f"codec {codec}")
    return decompress(Compression(codec), view, 1_000_000)


def cursor(
    module: ModuleType,
    data: bytes | bytearray,
    first: int = 0,
    aborted: list[tuple[int, int]] | None = None,
    *,
    checks: bool = True,
) -> Any:
    return module.BatchCursor(
        memoryview(bytes(data)), "t", 3, first, crc32c if checks else None, open_records, aborted or []
    )


def fields(records: list[Any]) -> list[tuple[object, ...]]:
    return [record.__getstate__() for record in records]


def sample(**options: Any) -> bytearray:
    records = [
        (b"k", b"v", [("h", b"1"), ("i", None)], 1000),
        (None, b"", (), 999),
        (b"", None, (), 5000),
        (b"long" * 50, b"value" * 100, (), 1001),
    ]
    return encode_batch(records, **options)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_records_are_those_of_the_other_decoder(consume: ModuleType, codec: Compression, step: int) -> None:
    data = sample(base_offset=10, compression=codec, leader_epoch=7)
    data += sample(base_offset=20, timestamp_type=TimestampType.LOG_APPEND_TIME, now_ms=77, leader_epoch=8)
    expected = [
        (record, header.partition_leader_epoch)
        for position, header in iter_headers(data)
        for record in decode_records(data, position)
    ]
    out: list[Any] = []
    walk = cursor(consume, data)
    while walk.take(out, step):
        assert walk.next_offset == (24 if len(out) == 8 else 14 if len(out) == 4 else out[-1].offset + 1)
    assert [(each.offset, each.timestamp, each.key, each.value, each.headers, each.leader_epoch) for each in out] == [
        (each.offset, each.timestamp, each.key, each.value, each.headers, epoch) for each, epoch in expected
    ]
    assert {(each.topic, each.partition) for each in out} == {("t", 3)}
    assert [each.timestamp_type for each in out] == [TimestampType.CREATE_TIME] * 4 + [
        TimestampType.LOG_APPEND_TIME
    ] * 4
    assert walk.taken_epoch == 8


@pytest.mark.parametrize("first", [0, 1, 3, 4, 5, 9])
def test_it_begins_at_an_offset(consume: ModuleType, first: int) -> None:
    data = sample(base_offset=0) + sample(base_offset=5)
    out: list[Any] = []
    cursor(consume, data, first).take(out, 100)
    assert [each.offset for each in out] == [offset for offset in (0, 1, 2, 3, 5, 6, 7, 8) if offset >= first]


def test_a_batch_that_compaction_emptied(consume: ModuleType) -> None:
    data = bytearray(sample(base_offset=0)[:61])
    data[8:12] = (49).to_bytes(4, "big")
    data[57:61] = (0).to_bytes(4, "big")
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    walk = cursor(consume, data + sample(base_offset=4))
    out: list[Any] = []
    assert walk.take(out, 100) == 4
    assert out[0].offset == 4


def test_going_back_within_the_batch_that_was_read_last(consume: ModuleType) -> None:
    walk = cursor(consume, sample(base_offset=0) + sample(base_offset=4))
    out: list[Any] = []
    walk.take(out, 6)
    walk.move_to(5)
    walk.take(out, 1)
    walk.move_to(8)
    assert walk.take(out, 10) == 0
    assert [each.offset for each in out] == [0, 1, 2, 3, 4, 5, 5]


def aborted_log() -> bytearray:
    """Producers 1 and 2 abort at different times and commit again; producer 3 commits; one writes outside of any."""
    log = bytearray()
    offset = 0

    def add(make: Callable[[int], bytearray], count: int) -> None:
        nonlocal offset
        log.extend(make(offset))
        offset += count

    def data(producer: int) -> Callable[[int], bytearray]:
        return lambda base: encode_batch(
            [(None, b"%d" % producer, (), 1)] * 2,
            base_offset=base,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=producer > 0,
        )

    def marker(producer: int, kind: ControlRecordType) -> Callable[[int], bytearray]:
        return lambda base: encode_control_batch(
            kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1, base_offset=base
        )

    add(data(1), 2)
    add(data(2), 2)
    add(data(0), 2)
    add(marker(1, ControlRecordType.ABORT), 1)
    add(data(1), 2)
    add(data(2), 2)
    add(marker(2, ControlRecordType.ABORT), 1)
    add(marker(1, ControlRecordType.COMMIT), 1)
    add(data(2), 2)
    add(data(3), 2)
    add(marker(2, ControlRecordType.COMMIT), 1)
    add(marker(3, ControlRecordType.COMMIT), 1)
    return log


@pytest.mark.parametrize("first", range(19))
def test_aborted_transactions(consume: ModuleType, first: int) -> None:
    log = aborted_log()
    out: list[Any] = []
    walk = cursor(consume, log, first, [(0, 1), (2, 2)])
    walk.take(out, 100)
    kept = {4: b"0", 5: b"0", 7: b"1", 8: b"1", 13: b"2", 14: b"2", 15: b"3", 16: b"3"}
    assert {each.offset: each.value for each in out} == {key: value for key, value in kept.items() if key >= first}
    assert walk.next_offset == 19


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except CorruptBatchError as error:
        return f"refused: {error.reason}"


def everything(module: ModuleType, data: bytes, first: int, checks: bool) -> object:
    out: list[Any] = []
    walk = cursor(module, data, first, [(0, 1)], checks=checks)
    result = outcome(lambda: walk.take(out, 1_000))
    end = module.find_end(data)
    return result, fields(out), walk.next_offset, (end.next_offset, end.size, end.leader_epoch)


def test_both_do_the_same_on_damaged_bytes(plain_consume: ModuleType) -> None:
    """Thousands of damaged logs: the two kernels give the same records, then the same refusal."""
    chance = random.Random(4711)
    logs = [bytes(aborted_log()), bytes(sample() + sample(base_offset=4, compression=Compression.LZ4) + sample()[:30])]
    refused = 0
    for _ in range(3_000):
        log = bytearray(chance.choice(logs))
        for _ in range(chance.choice([0, 1, 1, 2, 5])):
            log[chance.randrange(len(log))] = chance.randrange(256)
        if chance.random() < 0.3:
            del log[chance.randrange(len(log)) :]
        checks, first = chance.random() < 0.3, chance.randrange(6)
        one = everything(kernel_consume, bytes(log), first, checks)
        other = everything(plain_consume, bytes(log), first, checks)
        assert one == other
        refused += "refused" in str(one)
    assert refused > 500


def test_where_batches_end(consume: ModuleType) -> None:
    data = sample(base_offset=5, leader_epoch=2) + sample(base_offset=9, leader_epoch=3)
    end = consume.find_end(bytes(data) + b"\x00" * 40)
    assert (end.next_offset, end.size, end.leader_epoch) == (13, len(data), 3)
    end = consume.find_end(bytes(data)[:-1])
    assert (end.next_offset, end.leader_epoch) == (9, 2)
    assert consume.find_end(b"").next_offset == -1


def record(**changes: Any) -> ConsumerRecord:
    return ConsumerRecord(**{"topic": "t", "partition": 1, "offset": 2, "key": b"k", "value": b"v", **changes})


def test_records_compare_pickle_and_say_what_they_are() -> None:
    one = record(timestamp=5, headers=(("a", None),), leader_epoch=3)
    assert one == pickle.loads(pickle.dumps(one))
    assert one != record()
    assert one != "a record"
    assert hash(record()) == hash(record())
    assert repr(record()) == (
        "ConsumerRecord(topic='t', partition=1, offset=2, timestamp=-1, key=b'k', value=b'v', headers=())"
    )
    with pytest.raises(AttributeError):
        one.value = b"x"


def test_deserializers_are_not_asked_about_null() -> None:
    records = [record(), record(key=None, value=None)]
    assert deserialize(records, 0, None, lambda topic, data, headers: data.decode()) == 2
    assert [each.value for each in records] == ["v", None]
    with pytest.raises(DeserializeError) as raised:
        deserialize([record(value=None, key=None), record()], 0, lambda *_: 1 // 0, None)
    assert raised.value.index == 1
    assert isinstance(raised.value.cause, ZeroDivisionError)
