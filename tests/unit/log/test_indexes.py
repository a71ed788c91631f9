"""The mapped indexes: Kafka's bytes, look-ups, laziness, and what is noticed of damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidelog.log.errors import CorruptIndexError
from tidelog.log.index import OffsetIndex, TimeIndex


@pytest.fixture
def offsets(tmp_path: Path) -> OffsetIndex:
    return OffsetIndex(tmp_path / "00000000000000000100.index", 100, 8 * 64)


@pytest.fixture
def times(tmp_path: Path) -> TimeIndex:
    return TimeIndex(tmp_path / "00000000000000000100.timeindex", 100, 12 * 64)


def test_offset_entries_have_kafkas_bytes(offsets: OffsetIndex) -> None:
    offsets.append(105, 4096)
    offsets.append(260, 9000)
    offsets.trim()
    assert offsets.path.read_bytes() == bytes.fromhex("00000005 00001000 000000a0 00002328")


def test_time_entries_have_kafkas_bytes(times: TimeIndex) -> None:
    times.maybe_append(1_700_000_000_000, 105)
    times.trim()
    assert times.path.read_bytes() == bytes.fromhex("0000018bcfe56800 00000005")


def test_lookup_finds_the_entry_at_or_before(offsets: OffsetIndex) -> None:
    for offset, position in ((105, 10), (110, 20), (115, 30)):
        offsets.append(offset, position)
    assert [offsets.lookup(offset) for offset in (100, 104, 105, 109, 110, 114, 115, 999)] == [
        0,
        0,
        10,
        10,
        20,
        20,
        30,
        30,
    ]


def test_time_entries_only_grow(times: TimeIndex) -> None:
    for timestamp, offset in ((1000, 105), (900, 110), (1000, 112), (1001, 115)):
        times.maybe_append(timestamp, offset)
    assert list(times.entries()) == [(1000, 105), (1001, 115)]
    assert times.lookup(999) == (-1, 100)
    assert times.lookup(1000) == (1000, 105)
    assert times.last_entry() == (1001, 115)


def test_no_file_before_the_first_entry(offsets: OffsetIndex) -> None:
    assert len(offsets) == 0
    assert offsets.lookup(500) == 0
    assert not offsets.path.exists()


def test_a_written_index_is_preallocated_and_trimmed(offsets: OffsetIndex) -> None:
    offsets.append(105, 10)
    assert offsets.path.stat().st_size >= 8 * 64
    offsets.trim()
    assert offsets.path.stat().st_size == 8
    assert offsets.lookup(105) == 10


def test_preallocation_takes_no_space(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "00000000000000000000.index", 0, 10 * 1024 * 1024)
    index.append(5, 10)
    assert index.path.stat().st_size >= 10 * 1024 * 1024
    assert index.path.stat().st_blocks * 512 < 100_000
    index.trim()


def test_appending_goes_on_after_a_trim(offsets: OffsetIndex) -> None:
    offsets.append(105, 10)
    offsets.trim()
    again = OffsetIndex(offsets.path, 100, 8 * 64)
    again.append(110, 20)
    assert list(again.entries()) == [(105, 10), (110, 20)]
    again.trim()


def test_an_index_is_full_at_its_size(offsets: OffsetIndex) -> None:
    for slot in range(64):
        assert not offsets.is_full
        offsets.append(101 + slot, slot)
    assert offsets.is_full
    assert len(list(offsets.entries())) == 64


def test_more_entries_than_are_claimed_at_once(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "00000000000000000000.index", 0, 1024 * 1024)
    expected = [(slot, slot * 3) for slot in range(1, 10_000)]
    for offset, position in expected:
        index.append(offset, position)
    index.trim()
    assert list(OffsetIndex(index.path, 0, 1024 * 1024).entries()) == expected


def test_truncation_forgets_later_entries(offsets: OffsetIndex, times: TimeIndex) -> None:
    for slot in range(1, 6):
        offsets.append(100 + slot * 10, slot)
        times.maybe_append(slot, 100 + slot * 10)
    offsets.truncate_to(130)
    times.truncate_to(130)
    assert list(offsets.entries()) == [(110, 1), (120, 2)]
    assert list(times.entries()) == [(1, 110), (2, 120)]


def test_damage_that_is_noticed_without_the_log(offsets: OffsetIndex, times: TimeIndex) -> None:
    with pytest.raises(CorruptIndexError, match="missing"):
        offsets.check(1000)
    offsets.path.write_bytes(bytes(9))
    with pytest.raises(CorruptIndexError, match="multiple of 8"):
        offsets.check(1000)
    offsets.drop()
    offsets.path.write_bytes(bytes.fromhex("00000005 00001000"))
    with pytest.raises(CorruptIndexError, match="outside its log"):
        offsets.check(1000)
    times.path.write_bytes(bytes.fromhex("0000018bcfe56800 00000005 0000000000000000 00000006"))
    with pytest.raises(CorruptIndexError, match="before its first"):
        times.check()


def test_a_full_disk_is_an_error_and_no_signal(offsets: OffsetIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, position: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        offsets.append(105, 10)
    monkeypatch.undo()
    assert len(offsets) == 0
    offsets.append(106, 11)
    assert list(offsets.entries()) == [(106, 11)]
