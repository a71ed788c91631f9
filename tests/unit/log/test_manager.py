"""All logs of a broker: locks, identity, restarts, deletion, background work."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import (
    BackgroundTask,
    DataDirectoryLockedError,
    InconsistentClusterIdError,
    LogConfig,
    LogManager,
    LogStorageError,
    PartitionLog,
)
from tidelog.log.recovery import create_log
from tidelog.protocol import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store


def task(manager: LogManager, name: str) -> BackgroundTask:
    (found,) = [task for task in manager.background_tasks() if task.name == name]
    return found


def run(manager: LogManager, name: str) -> None:
    async def once() -> None:
        await task(manager, name).run()

    asyncio.run(once())


def test_a_directory_is_used_once_in_a_process(store: Store) -> None:
    with pytest.raises(DataDirectoryLockedError, match="in use by this process"):
        LogManager([store.path], {}, store.clock).open("cluster", 1)


def test_a_directory_is_used_by_one_process(store: Store) -> None:
    code = (
        "import sys, pathlib; from tidelog.log import LogManager; from tidelog.common.clock import SystemClock;"
        "LogManager([pathlib.Path(sys.argv[1])], {}, SystemClock()).open('cluster', 1)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"DataDirectoryLockedError: the data directory {store.path} is in use by process {os.getpid()}" in (
        result.stderr.replace("tidelog.log.errors.", "")
    )


def test_a_directory_belongs_to_one_broker_of_one_cluster(store: Store) -> None:
    store.stop(clean=True)
    properties = (store.path / "meta.properties").read_text()
    assert "cluster.id=cluster\n" in properties
    assert "node.id=1\n" in properties
    assert "version=1\n" in properties
    for cluster_id, node_id in (("other", 1), ("cluster", 2)):
        with pytest.raises(InconsistentClusterIdError, match=r"other|2"):
            LogManager([store.path], {}, store.clock).open(cluster_id, node_id)
    directory_id = next(iter(store.manager.directories)).directory_id
    assert next(iter(store.start().directories)).directory_id == directory_id


def test_clean_and_unclean_stops_are_told_apart(store: Store) -> None:
    store.create()
    assert not store.manager.was_clean_shutdown
    store.reopen(clean=True)
    assert store.manager.was_clean_shutdown
    store.reopen(clean=False)
    assert not store.manager.was_clean_shutdown


def test_the_broker_epoch_of_a_clean_stop_is_known(store: Store) -> None:
    store.manager.close(broker_epoch=77)
    assert next(iter(store.start().directories)).clean_shutdown_epoch == 77


def test_logs_come_back_with_their_ids_and_watermarks(store: Store, make_batch: MakeBatch) -> None:
    topic_id = random_uuid()
    for partition in range(3):
        log = store.manager.create("my-topic.x", partition, topic_id, LogConfig())
        log.append_as_leader(make_batch([b"a"] * (partition + 1)), leader_epoch=0)
        log.advance_high_watermark(partition)
    store.stop(clean=True)
    manager = store.start()
    logs = [manager.get("my-topic.x", partition) for partition in range(3)]
    assert [(log.topic_id, log.high_watermark, log.log_end_offset) for log in logs if log] == [
        (topic_id, partition, partition + 1) for partition in range(3)
    ]
    assert manager.get("my-topic.x", 3) is None


def test_get_or_create(store: Store) -> None:
    topic_id = random_uuid()
    log = store.manager.get_or_create("topic", 0, topic_id, LogConfig())
    again = store.manager.get_or_create("topic", 0, topic_id, LogConfig(retention_ms=5))
    assert again is log
    assert log.config.retention_ms == 5
    with pytest.raises(KafkaError) as refused:
        store.manager.get_or_create("topic", 0, uuid.uuid4(), LogConfig())
    assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


@pytest.mark.parametrize("clean", [True, False])
def test_a_new_log_may_begin_with_the_epoch_of_its_leader(store: Store, make_batch: MakeBatch, clean: bool) -> None:
    log = store.manager.create("topic", 0, random_uuid(), LogConfig(), leader_epoch=3)
    checkpoint = store.directory / "leader-epoch-checkpoint"
    assert checkpoint.read_text() == "0\n1\n3 0\n"
    assert log.last_record_epoch == -1
    # An epoch without records is replaced by the next one.
    log = store.reopen(clean=clean)
    log.append_as_leader(make_batch([b"a"]), leader_epoch=4)
    assert checkpoint.read_text() == "0\n1\n4 0\n"
    checkpoint.unlink()
    log.append_as_leader(make_batch([b"b"]), leader_epoch=4)
    assert not checkpoint.exists()  # a known epoch is not written again


def test_deleting_a_log(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(file_delete_delay_ms=1000))
    log.append_as_leader(make_batch(), leader_epoch=0)
    part = log.read(0, 100, limit_offset=1, min_one_batch=True).slices[0]
    store.manager.delete("topic", 0)
    assert store.manager.get("topic", 0) is None
    (renamed,) = [path for path in store.path.iterdir() if path.is_dir()]
    assert renamed.name.startswith("topic-0.")
    assert renamed.name.endswith("-delete")
    with pytest.raises(LogStorageError, match="closed"):
        log.append_as_leader(make_batch(), leader_epoch=0)
    run(store.manager, "remove deleted files")
    assert renamed.exists()
    store.clock.advance(ms=1000)
    run(store.manager, "remove deleted files")
    assert not renamed.exists()
    assert part.read()


def test_a_log_set_aside_keeps_its_files_and_is_not_loaded_again(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.append_as_leader(make_batch([b"kept"]), leader_epoch=0)
    content = store.files(".log")[0].read_bytes()
    path = store.manager.set_aside("topic", 0)
    assert path is not None
    assert path.name.endswith("-stray")
    assert store.manager.set_aside("topic", 0) is None
    store.stop(clean=False)
    manager = store.start()
    run(manager, "remove deleted files")
    assert manager.get("topic", 0) is None
    (segment,) = path.glob("*.log")
    assert segment.read_bytes() == content


def test_many_deletions_are_flushed_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(5):
        store.manager.create("many", partition, random_uuid(), LogConfig())
    flushed: list[Path] = []
    monkeypatch.setattr("tidelog.log.manager.fsync_directory", flushed.append)
    for partition in range(5):
        store.manager.delete("many", partition)
    assert flushed == []
    store.manager.flush_deletions()
    store.manager.flush_deletions()
    assert flushed == [store.path]


def test_deletions_that_can_not_be_flushed_are_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.manager.create("one", 0, random_uuid(), LogConfig())

    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tidelog.log.manager.fsync_directory", fail)
    store.manager.delete("one", 0)
    with pytest.raises(LogStorageError, match="can't be flushed"):
        store.manager.flush_deletions()


def test_a_log_that_can_not_be_made_leaves_nothing_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, contents: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tidelog.log.epochs.write_unflushed", full)
        with pytest.raises(LogStorageError, match="can't be created"):
            store.manager.create("new", 0, random_uuid(), LogConfig())
    assert not (store.path / "new-0").exists()
    assert store.manager.create("new", 0, random_uuid(), LogConfig()).log_end_offset == 0


def test_a_log_made_while_its_directory_fails_is_offline(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are made by a thread while the event loop may meet the error."""
    manager = store.manager

    def fail_meanwhile(*arguments: Any, leader_epoch: int) -> PartitionLog:
        log = create_log(*arguments, leader_epoch=leader_epoch)
        manager.directories.fail(store.path, "broken")
        return log

    monkeypatch.setattr("tidelog.log.manager.create_log", fail_meanwhile)
    assert manager.create("late", 0, random_uuid(), LogConfig()).is_offline


def test_a_deleted_log_does_not_come_back(store: Store) -> None:
    store.create()
    store.manager.delete("topic", 0)
    store.stop(clean=False)
    manager = store.start()
    assert manager.get("topic", 0) is None
    run(manager, "remove deleted files")
    assert not [path for path in store.path.iterdir() if path.is_dir()]


def test_a_new_topic_inherits_nothing_of_an_old_one(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.append_as_leader(make_batch([b"old"] * 9), leader_epoch=0)
    log.advance_high_watermark(9)
    log.set_log_start_offset(9)
    store.manager.checkpoint()
    store.manager.delete("topic", 0)
    log = store.create()
    log.append_as_leader(make_batch([b"new"]), leader_epoch=0)
    log = store.reopen(clean=False)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 1, 0)


def test_long_topic_names_can_be_deleted(store: Store) -> None:
    topic = "t" * 249
    store.manager.create(topic, 0, random_uuid(), LogConfig())
    store.manager.delete(topic, 0)
    assert store.manager.get(topic, 0) is None


def test_a_corrupt_partition_can_be_deleted_and_made_anew(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    for _ in range(3):
        log.append_as_leader(make_batch(), leader_epoch=0)
    store.stop(clean=False)
    path = store.files(".log")[0]
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    manager = store.start()
    assert list(manager.offline_partitions) == [("topic", 0)]
    manager.delete("topic", 0)
    assert store.create().log_end_offset == 0


def test_background_flush_by_time_and_of_rolled_segments(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(flush_ms=500))
    log.append_as_leader(make_batch(), leader_epoch=0)
    run(store.manager, "flush logs")
    assert log.flushed_offset == 0
    store.clock.advance(ms=500)
    run(store.manager, "flush logs")
    assert log.flushed_offset == 1
    log.append_as_leader(make_batch(), leader_epoch=0)
    log.roll()
    run(store.manager, "flush rolled segments")
    assert log.flushed_offset == 2


def test_background_checkpoints(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.append_as_leader(make_batch([b"a"] * 4), leader_epoch=0)
    log.advance_high_watermark(4)
    log.set_log_start_offset(3)
    log.flush()
    run(store.manager, "checkpoint recovery points")
    run(store.manager, "checkpoint high watermarks")
    for name, offset in (
        ("recovery-point-offset-checkpoint", 4),
        ("log-start-offset-checkpoint", 3),
        ("replication-offset-checkpoint", 4),
    ):
        assert (store.path / name).read_text() == f"0\n1\ntopic 0 {offset}\n"


def test_background_roll_and_producer_expiry(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(segment_ms=1000))
    log.append_as_leader(make_batch(producer_id=1, producer_epoch=0, base_sequence=0), leader_epoch=0)
    run(store.manager, "expire producers")
    assert len(log.active_producers()) == 1
    store.clock.advance(days=1)
    run(store.manager, "roll segments")
    run(store.manager, "expire producers")
    assert len(log.segments) == 2
    assert log.active_producers() == []


def test_intervals_come_from_the_settings(tmp_path: Path, clock: VirtualClock) -> None:
    manager = LogManager([tmp_path], {"log.flush.offset.checkpoint.interval.ms": 123}, clock)
    assert task(manager, "checkpoint recovery points").interval_ms == 123


def test_a_checkpoint_that_cannot_be_written_takes_the_directory_offline(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create()

    def broken(source: Path, target: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", broken)
    store.manager.checkpoint()
    monkeypatch.undo()
    assert next(iter(store.manager.directories)).offline_reason is not None
    with pytest.raises(LogStorageError, match="offline"):
        store.manager.create("other", 0, random_uuid(), LogConfig())
    store.stop(clean=True)
    assert not (store.path / ".kafka_cleanshutdown").exists()


def test_foreign_directories_are_left_alone(store: Store) -> None:
    for name in ("lost+found", "no-number-x", "-1"):
        (store.path / name).mkdir()
    store.stop(clean=True)
    assert store.start().logs() == []
    assert (store.path / "lost+found").exists()


def test_several_directories_share_the_load(tmp_path: Path, clock: VirtualClock) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    manager = LogManager(paths, {}, clock)
    manager.open("cluster", 1)
    manager.load()
    for partition in range(4):
        manager.create("topic", partition, random_uuid(), LogConfig())
    manager.close()
    assert [len(list(path.glob("topic-*"))) for path in paths] == [2, 2]
    again = LogManager(paths, {}, clock)
    again.open("cluster", 1)
    again.load()
    assert len(again.logs()) == 4
    again.close()
