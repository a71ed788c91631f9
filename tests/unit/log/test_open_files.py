"""Few open files for many logs: what is closed, what never is, and what a process without descriptors does."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.log import LogConfig, LogStorageError, PartitionLog
from tidelog.log.open_files import OPEN_FILES, OpenFiles, open_descriptor
from tidelog.log.segment import Segment
from tidelog.records import Record

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

ReadLog = Callable[..., list[Record]]
SMALL_SEGMENTS = LogConfig(segment_bytes=200, index_interval_bytes=1)


class _Holder:
    """A file that counts what is done to it."""

    def __init__(self, name: str, *, is_unflushed: bool = False, fails: bool = False) -> None:
        self.path = Path("data/topic-0") / name
        self.was_used = False
        self.is_open = True
        self.is_unflushed = is_unflushed
        self.fails = fails
        self.syncs = 0

    def let_go(self) -> bool:
        self.is_open = self.is_unflushed
        return not self.is_unflushed

    def sync_file(self) -> None:
        self.syncs += 1
        if self.fails:
            raise OSError(errno.EIO, "broken")
        self.is_unflushed = False


@pytest.fixture
def open_files() -> OpenFiles:
    return OpenFiles(limit=4)


@pytest.fixture(autouse=True)
def own_limit() -> Iterator[None]:
    yield
    OPEN_FILES.set_limit(None)


def use(holders: list[_Holder], open_files: OpenFiles) -> None:
    for holder in holders:
        open_files.add(holder)
        holder.was_used = False


def test_nothing_is_closed_within_the_limit(open_files: OpenFiles) -> None:
    holders = [_Holder(str(number)) for number in range(4)]
    use(holders, open_files)
    open_files.trim()
    assert all(holder.is_open for holder in holders)
    assert len(open_files) == 4


def test_those_not_used_for_longest_go_first(open_files: OpenFiles) -> None:
    holders = [_Holder(str(number)) for number in range(6)]
    use(holders, open_files)
    holders[0].was_used = True
    open_files.trim()
    assert [holder.is_open for holder in holders] == [True, False, False, True, True, True]
    assert len(open_files) == 4


def test_if_all_were_used_the_limit_still_holds(open_files: OpenFiles) -> None:
    holders = [_Holder(str(number)) for number in range(6)]
    for holder in holders:
        open_files.add(holder)
    open_files.trim()
    assert sum(holder.is_open for holder in holders) == len(open_files) == 4


def test_what_was_not_flushed_is_flushed_before_it_is_closed(open_files: OpenFiles) -> None:
    holders = [_Holder(str(number), is_unflushed=True) for number in range(6)]
    use(holders, open_files)
    open_files.trim()
    assert [(holder.is_open, holder.syncs) for holder in holders] == [(False, 1)] * 2 + [(True, 0)] * 4


def test_a_file_that_can_not_be_flushed_stays_open_and_is_told(open_files: OpenFiles) -> None:
    holders = [_Holder(str(number), is_unflushed=True, fails=number == 0) for number in range(5)]
    use(holders, open_files)
    open_files.trim()
    assert holders[0].is_open
    assert open_files.take_failures([Path("elsewhere")]) == []
    ((path, error),) = open_files.take_failures([Path("data")])
    assert (path, error.errno) == (holders[0].path, errno.EIO)
    assert open_files.take_failures([Path("data")]) == []


def test_without_descriptors_flushed_files_go_and_nothing_is_waited_for(open_files: OpenFiles) -> None:
    holders = [_Holder(str(number), is_unflushed=number % 2 == 0) for number in range(16)]
    use(holders, open_files)
    open_files.make_room()
    assert [number for number, holder in enumerate(holders) if not holder.is_open] == [1, 3]
    assert sum(holder.syncs for holder in holders) == 0
    assert len(open_files) == 14


def test_without_descriptors_and_all_unflushed_a_few_are_flushed(open_files: OpenFiles) -> None:
    holders = [_Holder(str(number), is_unflushed=True) for number in range(64)]
    use(holders, open_files)
    open_files.make_room()
    assert sum(not holder.is_open for holder in holders) == 8


def test_a_log_that_is_gone_is_forgotten(open_files: OpenFiles) -> None:
    holders = [_Holder(str(number)) for number in range(6)]
    use(holders, open_files)
    del holders[1:]
    open_files.trim()
    assert holders[0].is_open
    assert len(open_files) <= 4


def fill(store: Store, make_batch: MakeBatch, count: int = 20) -> PartitionLog:
    log = store.create(SMALL_SEGMENTS)
    for number in range(count):
        log.append_as_leader(make_batch([b"%d" % number, bytes(100)]), leader_epoch=0)
    log.advance_high_watermark(log.log_end_offset)
    return log


def open_descriptors(directory: Path) -> int:
    """How many descriptors of this process are on files below."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith(str(directory))
        except FileNotFoundError:
            continue
    return count


def test_a_log_of_many_segments_stays_within_the_limit_and_reads_the_same(
    store: Store, make_batch: MakeBatch, read_log: ReadLog
) -> None:
    log = fill(store, make_batch)
    log.flush()
    assert len(log.segments) == 20
    expected = [record.value for record in read_log(log)]
    for segment in log.segments:
        assert next(segment.headers_from(segment.base_offset + 1))[1].base_offset == segment.base_offset
    assert open_descriptors(store.path) > 16
    OPEN_FILES.set_limit(8)
    OPEN_FILES.trim()
    assert len(OPEN_FILES) <= 8
    # The directory's lock is one, too.
    assert open_descriptors(store.path) <= 9
    assert [record.value for record in read_log(log)] == expected
    assert log.offset_for_timestamp(0) is not None
    log.append_as_leader(make_batch([b"more"]), leader_epoch=0)
    assert [record.value for record in read_log(log)][-1] == b"more"


def test_a_slice_outlives_the_file_of_its_segment(store: Store, make_batch: MakeBatch) -> None:
    log = fill(store, make_batch, 2)
    log.flush()
    found = log.read(0, 10_000, limit_offset=2, min_one_batch=True).slices[0]
    expected = found.read()
    assert log.segments[0].let_go()
    # A descriptor of that number would now be another file's if it had been closed.
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
    assert found.read() == expected
    for fd in others:
        os.close(fd)


def test_an_unflushed_segment_is_not_let_go(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.append_as_leader(make_batch(), leader_epoch=0)
    segment = log.segments[0]
    fd = segment.file.fd
    assert not segment.let_go()
    assert segment.file.fd == fd
    segment.sync_file()
    assert segment.let_go()
    log.append_as_leader(make_batch(), leader_epoch=0)
    assert not segment.let_go()


def test_a_flush_that_failed_is_not_repeated_as_if_it_could_succeed(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create()
    log.append_as_leader(make_batch(), leader_epoch=0)
    segment = log.segments[0]

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="broken"):
            segment.sync_file()
    with pytest.raises(OSError, match="broken"):
        segment.sync_file()
    assert not segment.let_go()


def test_a_file_let_go_in_the_middle_of_a_write_is_kept(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread saw it flushed, just before the write was done."""
    log = store.create()
    log.append_as_leader(make_batch(), leader_epoch=0)
    segment = log.segments[0]
    segment.sync_file()
    fd = segment.file.fd
    real_pwrite = os.pwrite

    def write_and_lose(fd: int, data: memoryview, position: int) -> int:
        written = real_pwrite(fd, data, position)
        assert segment.let_go()
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write_and_lose)
        log.append_as_leader(make_batch(), leader_epoch=0)
    assert segment.file.fd == fd
    assert not segment.let_go()


def test_appends_reads_and_flushes_while_everything_is_closed_all_the_time(
    store: Store, make_batch: MakeBatch, read_log: ReadLog
) -> None:
    log = store.create(LogConfig(segment_bytes=2_000, index_interval_bytes=1))
    OPEN_FILES.set_limit(0)
    is_done = threading.Event()
    failures: list[Exception] = []

    def until_done(step: Callable[[], None]) -> None:
        try:
            while not is_done.is_set():
                step()
        except (OSError, ValueError, LogStorageError) as error:  # told by the test itself
            failures.append(error)

    threads = [threading.Thread(target=until_done, args=(step,)) for step in (OPEN_FILES.trim, log.flush)]
    for thread in threads:
        thread.start()
    try:
        for number in range(400):
            log.append_as_leader(make_batch([b"%d" % number]), leader_epoch=0)
            log.advance_high_watermark(log.log_end_offset)
            if number % 20 == 0:
                assert [record.value for record in read_log(log)] == [b"%d" % n for n in range(number + 1)]
    finally:
        is_done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert not list(log.verify())
    log = store.reopen(clean=True)
    assert [record.value for record in read_log(log)] == [b"%d" % number for number in range(400)]


def test_an_index_being_written_survives_being_unmapped(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(index_interval_bytes=1))
    for number in range(10):
        log.append_as_leader(make_batch([b"%d" % number]), leader_epoch=0)
        segment = log.segments[0]
        assert segment.offset_index.let_go()
        assert segment.time_index.let_go()
        assert next(segment.headers_from(number))[1].base_offset <= number
    assert [offset for offset, _ in segment.offset_index.entries()] == list(range(1, 10))
    store.reopen(clean=True)
    (path,) = store.files(".index")
    assert path.stat().st_size == 9 * 8, "trimmed to its entries, though it was not mapped"
    assert not list(store.log.verify())


def test_a_process_without_descriptors_closes_log_files_and_opens(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fill(store, make_batch)
    log.flush()
    real_open = os.open

    def open_while_few(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if len(OPEN_FILES) > 10:
            raise OSError(errno.EMFILE, "too many open files")
        return real_open(path, flags, mode)

    before = len(OPEN_FILES)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_while_few)
        while len(OPEN_FILES) > 10:
            # Each attempt closes a quarter of them, and the last one succeeds.
            with suppress(OSError):
                os.close(open_descriptor("/dev/null", os.O_RDONLY))
        log.append_as_leader(make_batch([b"more"]), leader_epoch=1)
    assert before > len(OPEN_FILES)
    assert not log.is_offline
    assert log.log_end_offset == 41


def test_an_append_that_gets_no_descriptor_at_all_is_refused_and_the_log_goes_on(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create()

    def no_open(path: str | Path, flags: int, mode: int = 0o777) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_open)
        for _ in range(2):
            with pytest.raises(Exception, match="too many open files"):
                log.append_as_leader(make_batch([b"refused"]), leader_epoch=3)
    assert not log.is_offline
    log.append_as_leader(make_batch([b"taken"]), leader_epoch=3)
    assert (log.log_end_offset, log.latest_epoch) == (1, 3)
    assert store.reopen(clean=False).latest_epoch == 3


def test_closing_a_segment_forgets_its_files(store: Store, make_batch: MakeBatch) -> None:
    log = fill(store, make_batch, 3)
    before = len(OPEN_FILES)
    segment: Segment = log.segments[0]
    held = (segment._file is not None) + (segment.offset_index._map is not None) + (segment.time_index._map is not None)
    segment.close()
    assert held
    assert len(OPEN_FILES) == before - held
