"""The compiled kernel against the interpreted one: equal results, equal refusals."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.records import CorruptBatchError, kernel_is_compiled
from tidelog.records.kernel import RecordTuple


class Twin(Protocol):
    kernel: ModuleType
    kernel_arrow: ModuleType
    kernel_check: ModuleType


TIMESTAMPS = st.integers(-1, 2**40) | st.integers(-1, 2**63 - 2)
RECORD_LISTS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), max_size=3),
        st.none() | TIMESTAMPS,
    ),
    min_size=1,
    max_size=150,
)


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except CorruptBatchError as error:
        return f"refused: {error.reason}"


def decode(twin: Twin, data: bytes, count: int, base_offset: int, base_timestamp: int) -> object:
    return outcome(
        lambda: [
            (record.offset, record.timestamp, record.key, record.value, record.headers)
            for record in twin.kernel.decode_objects(data, count, base_offset, base_timestamp, 77, False)
        ]
    )


def scan(twin: Twin, data: bytes, count: int, base_timestamp: int) -> object:
    def call() -> object:
        found = twin.kernel_check.scan_records(data, count, base_timestamp, 10)
        return found.max_timestamp, found.min_timestamp, found.index_of_max_timestamp, found.keyless_indexes

    return outcome(call)


def find(twin: Twin, data: bytes, count: int, base_timestamp: int, timestamp: int, first_offset: int) -> object:
    return outcome(
        lambda: twin.kernel.find_timestamp(data, count, 0, base_timestamp, 77, False, timestamp, first_offset)
    )


def encode(twin: Twin, records: list[RecordTuple]) -> tuple[bytes, int, int, int]:
    out = bytearray()
    written = twin.kernel.encode_objects(out, records, 5)
    return bytes(out), written.count, written.base_timestamp, written.max_timestamp


def test_kernel_is_compiled(compiled: Twin, interpreted: Twin) -> None:
    assert kernel_is_compiled()
    for module in ("kernel", "kernel_arrow"):
        assert not str(getattr(compiled, module).__file__).endswith(".py")
        assert str(getattr(interpreted, module).__file__).endswith(".py")


@settings(deadline=None, max_examples=150)
@given(records=RECORD_LISTS, base_offset=st.integers(-1, 2**62), base_timestamp=st.integers(-(2**63), 2**63 - 1))
def test_objects(
    compiled: Twin, interpreted: Twin, records: list[RecordTuple], base_offset: int, base_timestamp: int
) -> None:
    encoded = encode(compiled, records)
    assert encoded == encode(interpreted, records)
    data, count, first, _ = encoded
    assert decode(compiled, data, count, base_offset, first) == decode(interpreted, data, count, base_offset, first)
    assert decode(compiled, data, count, base_offset, first) == [
        (base_offset + index, 5 if timestamp is None else timestamp, key, value, tuple(headers))
        for index, (key, value, headers, timestamp) in enumerate(records)
    ]
    wanted, first_offset = max(first, 0) + 1, len(records) // 3
    stamps = [5 if timestamp is None else timestamp for _, _, _, timestamp in records]
    assert find(compiled, data, count, first, wanted, first_offset) == next(
        ((stamp, index) for index, stamp in enumerate(stamps) if stamp >= wanted and index >= first_offset), None
    )
    # With any base the sums may leave 64 bits, and then both say so.
    assert decode(compiled, data, count, 0, base_timestamp) == decode(interpreted, data, count, 0, base_timestamp)
    assert scan(compiled, data, count, base_timestamp) == scan(interpreted, data, count, base_timestamp)


@settings(deadline=None, max_examples=150)
@given(data=st.binary(max_size=300), count=st.integers(0, 40))
def test_random_bytes(compiled: Twin, interpreted: Twin, data: bytes, count: int) -> None:
    assert decode(compiled, data, count, 0, 0) == decode(interpreted, data, count, 0, 0)
    assert scan(compiled, data, count, 0) == scan(interpreted, data, count, 0)
    assert find(compiled, data, count, 0, 3, 1) == find(interpreted, data, count, 0, 3, 1)


def test_mutated_records(compiled: Twin, interpreted: Twin) -> None:
    generator = random.Random(7)
    records: list[RecordTuple] = [(b"key", b"v" * 80, [("h", b"x"), ("é", None)], 1000), (None, None, [], 2**40)]
    data, count, first, _ = encode(compiled, records * 3)
    refused = 0
    for _ in range(5_000):
        mutated = bytearray(data)
        for _ in range(generator.randint(1, 3)):
            mutated[generator.randrange(len(mutated))] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, 2, 3))
        result = decode(compiled, bytes(mutated), count, 0, first)
        assert result == decode(interpreted, bytes(mutated), count, 0, first)
        assert scan(compiled, bytes(mutated), count, first) == scan(interpreted, bytes(mutated), count, first)
        assert find(compiled, bytes(mutated), count, first, 2**40, 1) == find(
            interpreted, bytes(mutated), count, first, 2**40, 1
        )
        refused += isinstance(result, str)
    assert 1_000 < refused < 5_000
