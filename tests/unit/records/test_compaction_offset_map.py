"""The map of keys to offsets: its hash against published vectors, the map against a dict, compiled and interpreted."""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SECRET = bytes(range(16))
# SipHash-2-4 with 128 bits over the bytes 0, 1, 2 ..., by length, as its authors publish it.
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
    5: "1368875980776f8854527a07690e9627",
    6: "14eeca338b208613485ea0308fd7a15e",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    23: "c9d184ddd5a9f5e0cf8ce29a9abf691c",
    63: "5150d1772f50834a503e069a973fbd7c",
}
SLOT_SIZE = 24


class Twin(Protocol):
    kernel_offset_map: ModuleType


def hash_of(twin: Twin, data: bytes, start: int, length: int) -> bytes:
    hashing = twin.kernel_offset_map.KeyHash(
        data, int.from_bytes(SECRET[:8], "little"), int.from_bytes(SECRET[8:], "little")
    )
    hashing.compute(start, length)
    return bytes(hashing.low.to_bytes(8, "little") + hashing.high.to_bytes(8, "little"))


@pytest.mark.parametrize(("length", "digest"), VECTORS.items())
def test_hash_is_siphash(twin: Twin, length: int, digest: str) -> None:
    data = bytes(range(64))
    assert hash_of(twin, data, 0, length).hex() == digest
    # The same in the midst of other bytes, of which none may count.
    assert hash_of(twin, b"\xff\xfe" + data[:length] + b"\xfd", 2, length).hex() == digest


@settings(deadline=None, max_examples=100)
@given(data=st.binary(max_size=300))
def test_hashes_of_twins_are_equal(compiled: Twin, interpreted: Twin, data: bytes) -> None:
    assert hash_of(compiled, data, 0, len(data)) == hash_of(interpreted, data, 0, len(data))


def test_hash_outside_of_the_data_is_refused(twin: Twin) -> None:
    with pytest.raises(IndexError):
        hash_of(twin, bytes(10), 3, 8)


KEYS = st.binary(max_size=3) | st.binary(min_size=30, max_size=40)


@settings(deadline=None, max_examples=200)
@given(
    slots=st.integers(2, 40),
    load_factor=st.sampled_from([0.5, 0.9, 1.0]),
    puts=st.lists(st.tuples(KEYS, st.integers(0, 2**63 - 1)), max_size=120),
)
def test_map_is_like_a_dict(
    compiled: Twin, interpreted: Twin, slots: int, load_factor: float, puts: list[tuple[bytes, int]]
) -> None:
    for chosen in (compiled, interpreted):
        offset_map = chosen.kernel_offset_map.OffsetMap(slots * SLOT_SIZE, load_factor)
        capacity = min(int(slots * load_factor), slots - 1)
        assert offset_map.capacity == capacity
        model: dict[bytes, int] = {}
        latest = -1
        for key, offset in puts:
            is_taken = key in model or len(model) < capacity
            assert offset_map.put(key, offset) == is_taken
            if is_taken:
                model[key] = max(model.get(key, -1), offset)
                latest = max(latest, offset)
        assert offset_map.size == len(model)
        assert offset_map.latest_offset == latest
        assert offset_map.is_full == (len(model) == capacity)
        for key, _ in puts:
            assert offset_map.get(key) == model.get(key, -1)
        assert offset_map.get(b"a key that was never put") == -1


def test_map_holds_as_many_keys_as_its_memory_allows(twin: Twin) -> None:
    memory_bytes = 1_000 * SLOT_SIZE + 5
    offset_map = twin.kernel_offset_map.OffsetMap(memory_bytes)
    assert offset_map.memory_bytes == memory_bytes
    assert offset_map.slots * SLOT_SIZE <= memory_bytes
    assert offset_map.capacity == 900
    for number in range(900):
        assert not offset_map.is_full
        assert offset_map.put(b"key %d" % number, number)
    assert offset_map.is_full
    assert not offset_map.put(b"one more", 900)
    assert offset_map.put(b"key 17", 901)
    assert offset_map.get(b"one more") == -1
    assert [offset_map.get(b"key %d" % number) for number in (0, 17, 899)] == [0, 901, 899]


def test_clear_forgets_everything_and_may_take_less_memory(twin: Twin) -> None:
    offset_map = twin.kernel_offset_map.OffsetMap(100_000 * SLOT_SIZE)
    for round_keys, capacity_min in ((None, 90_000), (10, 10), (0, 1), (200_000, 90_000)):
        offset_map.put(b"key", 5)
        offset_map.clear(round_keys)
        assert (offset_map.size, offset_map.latest_offset, offset_map.get(b"key")) == (0, -1, -1)
        assert offset_map.capacity >= capacity_min
        assert offset_map.slots <= 100_000
    offset_map.clear(10)
    assert offset_map.slots < 100
    for number in range(10):
        assert offset_map.put(b"key %d" % number, number)


def test_latest_offset_never_goes_back(twin: Twin) -> None:
    offset_map = twin.kernel_offset_map.OffsetMap(10 * SLOT_SIZE)
    offset_map.update_latest_offset(7)
    offset_map.update_latest_offset(5)
    assert offset_map.latest_offset == 7


def test_every_map_has_its_own_secret(twin: Twin) -> None:
    """With one secret for all, keys that collide could be found on one broker and sent to another."""
    secrets = {
        (offset_map.secret_low, offset_map.secret_high)
        for offset_map in (twin.kernel_offset_map.OffsetMap(10 * SLOT_SIZE) for _ in range(3))
    }
    assert len(secrets) == 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((SLOT_SIZE,), "too few"),
        ((0,), "too few"),
        ((-5,), "too few"),
        ((1000, 0.0), "load factor"),
        ((1000, 1.1), "load factor"),
        ((1000, 0.9, b"short"), "16 bytes"),
    ],
)
def test_a_map_that_can_not_be_is_refused(twin: Twin, arguments: tuple[object, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        twin.kernel_offset_map.OffsetMap(*arguments)


def test_a_negative_offset_is_refused(twin: Twin) -> None:
    with pytest.raises(ValueError, match="negative"):
        twin.kernel_offset_map.OffsetMap(1000).put(b"key", -1)
