"""Look-ups in files that are not in memory: refused on the event loop, prepared by a thread, and right afterwards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.log import LogConfig, LogRead, NotInMemoryError, PartitionLog
from tidelog.log.index import OffsetIndex, find_position
from tidelog.log.page_cache import bring_in, is_file_in_memory, is_in_memory, read_in_memory

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On a disk: /tmp may be in memory, from where nothing can be taken out."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        yield Path(path)


def evict(directory: Path) -> None:
    for path in directory.iterdir():
        fd = os.open(path, os.O_RDWR)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def read(log: PartitionLog, offset: int) -> LogRead:
    return log.read(
        offset, 1_000, limit_offset=log.high_watermark or log.log_end_offset, min_one_batch=True, in_memory=True
    )


@pytest.fixture
def old_log(store: Store, make_batch: MakeBatch) -> PartitionLog:
    """A log of several segments that was opened again after a clean stop."""
    log = store.create(config=LogConfig(segment_bytes=100_000, index_interval_bytes=4_096))
    for _ in range(100):
        log.append_as_leader(make_batch([bytes(3_000)]), leader_epoch=0)
    return store.reopen(clean=True)


def test_a_look_up_does_not_wait_for_the_disk(store: Store, old_log: PartitionLog) -> None:
    evict(store.directory)
    attempts = 0
    while True:
        try:
            found = read(old_log, 50)
            break
        except NotInMemoryError as cold:
            attempts += 1
            assert attempts <= 2, "what was brought in is not found there"
            cold.bring_in()
    assert attempts > 0, "nothing had to be read from the disk"
    expected = old_log.read(50, 1_000, limit_offset=100, min_one_batch=True)
    assert isinstance(found.records, type(expected.records))
    assert (found.size_bytes, repr(found.records)) == (expected.size_bytes, repr(expected.records))


def test_what_was_just_written_is_found_without_a_look_at_the_disk(
    store: Store, old_log: PartitionLog, make_batch: MakeBatch
) -> None:
    for _ in range(3):
        old_log.append_as_leader(make_batch([bytes(3_000)]), leader_epoch=1)
    evict(store.directory)
    found = old_log.read(101, 1_000_000, limit_offset=103, min_one_batch=True, in_memory=True)
    assert found.size_bytes
    assert [part.is_recent for part in found.slices] == [True]


def test_files_that_are_gone_meanwhile_are_left_to_the_look_up(store: Store, old_log: PartitionLog) -> None:
    evict(store.directory)
    with pytest.raises(NotInMemoryError) as cold:
        read(old_log, 50)
    for path in store.directory.iterdir():
        path.unlink()
    cold.value.bring_in()


def test_positions_are_found_in_the_bytes_of_an_index_as_in_its_map(store: Store, old_log: PartitionLog) -> None:
    segment = old_log.segments[0]
    contents = segment.offset_index.path.read_bytes()
    assert len(contents) > 10 * 8
    index = OffsetIndex(segment.offset_index.path, segment.base_offset, 1_000_000)
    for padding in (b"", bytes(800)):
        for offset in range(old_log.segments[1].base_offset + 5):
            assert find_position(contents + padding, offset) == index.lookup(offset)
    assert find_position(b"", 7) == 0


def test_what_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1_000_000))
    fd = os.open(path, os.O_RDWR)
    try:
        assert is_in_memory(fd, 0, 1_000_000)
        assert read_in_memory(fd, 10, 999_990) == bytes(10)
        evict(tmp_path)
        assert not is_in_memory(fd, 500_000, 100_000)
        assert not is_file_in_memory(path)
        with pytest.raises(BlockingIOError):
            read_in_memory(fd, 10, 800_000)
        bring_in(fd, 500_000, 100_000)
        assert is_in_memory(fd, 500_000, 100_000)
        bring_in(fd, 999_000, 100_000)
        assert is_in_memory(fd, 0, 0)
    finally:
        os.close(fd)
    assert is_file_in_memory(tmp_path / "missing")
