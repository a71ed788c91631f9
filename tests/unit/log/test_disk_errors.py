"""Disks that are full or broken: nothing half done, nothing falsely acknowledged."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.log import LogConfig, LogStorageError, NoRoomError, PartitionLog
from tidelog.protocol import ErrorCode
from tidelog.records import Record

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

ReadLog = Callable[..., list[Record]]
real_pwrite = os.pwrite


def full_disk(fd: int, data: memoryview, position: int) -> int:
    """Half of it still fits, then nothing does."""
    if len(data) > 60:
        return real_pwrite(fd, data[: len(data) // 2], position)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_refuses_and_undoes(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, read_log: ReadLog
) -> None:
    log = store.create()
    fields = {"producer_id": 1, "producer_epoch": 0}
    log.append_as_leader(make_batch([b"kept"], base_sequence=0, **fields), leader_epoch=0)
    size = log.size_bytes
    monkeypatch.setattr(os, "pwrite", full_disk)
    for _ in range(2):
        with pytest.raises(LogStorageError, match="No space left") as refused:
            log.append_as_leader(make_batch([bytes(500)], base_sequence=1, **fields), leader_epoch=0)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (log.log_end_offset, log.size_bytes, store.files(".log")[0].stat().st_size) == (1, size, size)
    monkeypatch.undo()
    assert not log.is_offline
    result = log.append_as_leader(make_batch([b"after"], base_sequence=1, **fields), leader_epoch=0)
    assert (result.first_offset, result.is_duplicate) == (1, False)
    assert [record.value for record in read_log(log)] == [b"kept", b"after"]
    log = store.reopen(clean=False)
    assert [record.value for record in read_log(log)] == [b"kept", b"after"]


def test_a_write_that_cannot_be_undone_takes_the_log_offline(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, read_log: ReadLog
) -> None:
    log = store.create()
    log.append_as_leader(make_batch([b"kept"]), leader_epoch=0)

    def broken(fd: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", full_disk)
    monkeypatch.setattr(os, "ftruncate", broken)
    with pytest.raises(LogStorageError, match="offline"):
        log.append_as_leader(make_batch([bytes(500)]), leader_epoch=0)
    monkeypatch.undo()
    assert log.is_offline
    with pytest.raises(LogStorageError, match="offline"):
        log.append_as_leader(make_batch(), leader_epoch=0)
    with pytest.raises(LogStorageError, match="offline"):
        log.read(0, 100, limit_offset=1, min_one_batch=True)
    log = store.reopen(clean=True)
    assert [record.value for record in read_log(log)] == [b"kept"]


def test_a_failed_fsync_is_never_repeated_as_a_success(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create()
    log.append_as_leader(make_batch(), leader_epoch=0)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(LogStorageError, match="fsync failed"):
        log.flush()
    monkeypatch.undo()
    assert log.flushed_offset == 0
    with pytest.raises(LogStorageError, match="fsync failed"):
        log.flush()
    store.stop(clean=True)
    assert not (store.path / ".kafka_cleanshutdown").exists(), "the disk lost something: the next start must check"
    store.start()
    assert store.log.log_end_offset == 1


def test_a_full_disk_while_rolling(store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    log = store.create(LogConfig(segment_bytes=200))
    log.append_as_leader(make_batch([bytes(60)]), leader_epoch=0)
    real_open = os.open

    def no_new_files(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", no_new_files)
    with pytest.raises(LogStorageError, match="No space left"):
        log.append_as_leader(make_batch([bytes(60)]), leader_epoch=0)
    monkeypatch.undo()
    assert log.append_as_leader(make_batch([bytes(60)]), leader_epoch=0).first_offset == 1
    assert len(log.segments) == 2


def test_indexes_that_cannot_be_written_do_not_stop_appends(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, read_log: ReadLog
) -> None:
    log = store.create(LogConfig(index_interval_bytes=0, segment_bytes=3000))
    log.append_as_leader(make_batch([bytes(100)]), leader_epoch=0)
    real_open = os.open

    def no_indexes(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith("index"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", no_indexes)
    for _ in range(10):
        log.append_as_leader(make_batch([bytes(100)]), leader_epoch=0)
    monkeypatch.undo()
    for _ in range(30):
        log.append_as_leader(make_batch([bytes(100)]), leader_epoch=0)
    assert len(log.segments) > 2
    assert [record.offset for record in read_log(log)] == list(range(41))
    log = store.reopen(clean=True)
    assert [record.offset for record in read_log(log, 5)] == list(range(5, 41))
    assert list(log.verify()) == []


def io_error(*_: object) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_write_that_fails_otherwise_takes_the_log_offline_though_it_was_undone(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, read_log: ReadLog
) -> None:
    """A full disk works; one that answers EIO can't be trusted with the next record either."""
    log = store.create()
    log.append_as_leader(make_batch([b"kept"]), leader_epoch=0)
    monkeypatch.setattr(os, "pwrite", io_error)
    with pytest.raises(LogStorageError, match=r"append failed.*Input/output error"):
        log.append_as_leader(make_batch([b"lost"]), leader_epoch=0)
    monkeypatch.undo()
    assert log.is_offline
    log = store.reopen(clean=True)
    assert [record.value for record in read_log(log)] == [b"kept"]


def test_a_roll_that_found_no_room_leaves_no_segment_behind(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, read_log: ReadLog
) -> None:
    """A smaller batch still goes to the old segment; one that begins within it would be taken for damage."""
    log = store.create(config=LogConfig(segment_bytes=400))
    log.append_as_leader(make_batch([bytes(200)]), leader_epoch=0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tidelog.log.segment.Segment.become_inactive", full)
    with pytest.raises(LogStorageError, match="undone"):
        log.append_as_leader(make_batch([bytes(300)]), leader_epoch=0)
    monkeypatch.undo()
    assert not log.is_offline
    log.append_as_leader(make_batch([b"small"]), leader_epoch=0)
    assert len(store.files(".log")) == 1
    log = store.reopen(clean=False)
    assert [len(record.value or b"") for record in read_log(log)] == [200, 5]


def test_a_snapshot_that_found_no_room_is_done_without(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = store.create(config=LogConfig(segment_bytes=400))
    log.append_as_leader(make_batch([bytes(200)], producer_id=5, producer_epoch=0, base_sequence=0), leader_epoch=0)
    log.append_as_leader(make_batch([bytes(300)], producer_id=5, producer_epoch=0, base_sequence=1), leader_epoch=0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tidelog.log.partition_log.write_snapshot", full)
    log.flush()
    monkeypatch.undo()
    assert "no snapshot of its producers at 1" in caplog.text
    assert log.flushed_offset == 2
    assert not store.files(".snapshot")
    assert store.reopen(clean=False).active_producers()[0].last_sequence == 1


def test_a_new_epoch_that_found_no_room_is_tried_again(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create()
    log.append_as_leader(make_batch(), leader_epoch=0)
    monkeypatch.setattr(os, "pwrite", full_disk_at_once)
    with pytest.raises(LogStorageError, match="leader epoch checkpoint failed and was undone"):
        log.append_as_leader(make_batch(), leader_epoch=5)
    monkeypatch.undo()
    assert log.latest_epoch == 0
    log.append_as_leader(make_batch(), leader_epoch=5)
    assert [(entry.epoch, entry.start_offset) for entry in store.reopen(clean=False).epochs] == [(0, 0), (5, 1)]


def test_a_log_on_a_full_disk_can_be_cut(store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file of epochs is written with the next append; until then, a start ignores the epochs that are gone."""
    log = store.create()
    for epoch in (0, 3):
        log.append_as_leader(make_batch(), leader_epoch=epoch)
    monkeypatch.setattr(os, "pwrite", full_disk_at_once)
    monkeypatch.setattr(os, "write", full_disk_at_once)
    assert log.truncate_to(1)
    assert not log.is_offline
    with pytest.raises(NoRoomError, match="append failed and was undone"):
        log.append_as_leader(make_batch(), leader_epoch=0)
    monkeypatch.undo()
    # In an epoch that the file has already: nothing else would write it.
    log.append_as_leader(make_batch(), leader_epoch=0)
    assert [(entry.epoch, entry.start_offset) for entry in store.reopen(clean=False).epochs] == [(0, 0)]


def full_disk_at_once(fd: int, data: memoryview, position: int = 0) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_that_a_full_disk_kept_closed_is_opened_once_there_is_room(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create()
    log.append_as_leader(make_batch([b"a"]), leader_epoch=0)
    assert log.topic_id is not None
    topic_id = log.topic_id
    store.stop(clean=False)

    def no_room(*_: object, **__: object) -> PartitionLog:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patches:
        patches.setattr("tidelog.log.manager.open_log", no_room)
        manager = store.start()
        with pytest.raises(NoRoomError, match="can't be opened"):
            manager.get_or_create("topic", 0, topic_id, LogConfig())
    assert manager.get_or_create("topic", 0, topic_id, LogConfig()).log_end_offset == 1
