"""The registry of pipelines: which runs and switches it takes, what it keeps, and what the dead leave behind."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.pipeline.errors import AlreadyRunningError
from tidelog.pipeline.versions.registry import Registry, RegistryError
from tidelog.pipeline.versions.registry_rows import Progress, has_reached
from tidelog.pipeline.versions.run_lock import RunLock


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    clock = itertools.count(1_000)
    with Registry(tmp_path / "state", now_ms=lambda: next(clock)) as opened:
        opened.note_version("revenue", 1, file="shop.py", source="version = 1")
        opened.note_version("revenue", 2, file="shop.py", source="version = 2")
        yield opened


def test_the_first_live_run_makes_its_version_the_live_one(registry: Registry) -> None:
    assert registry.live_version("revenue") is None
    registry.start_run("revenue", 1, "live")
    assert registry.live_version("revenue") == 1
    assert [version.is_live for version in registry.versions("revenue")] == [True, False]


def test_a_live_version_that_never_finished_a_batch_is_not_in_the_way(registry: Registry) -> None:
    with RunLock(registry.state_dir, "revenue", 1):
        run_id = registry.start_run("revenue", 1, "live")
        with pytest.raises(RegistryError, match="version 1 of revenue is live"):
            registry.start_run("revenue", 2, "live")
        registry.end_run(run_id, "failed", "no broker")
    registry.start_run("revenue", 2, "live")
    assert registry.live_version("revenue") == 2


def test_a_live_run_of_another_version_is_refused_with_the_way_out(registry: Registry) -> None:
    run_id = registry.start_run("revenue", 1, "live")
    registry.note_progress(run_id, Progress(processed={"orders": {0: 1}}))
    with pytest.raises(RegistryError, match=r"version 1 of revenue is live.*pipeline replay.*pipeline promote revenue"):
        registry.start_run("revenue", 2, "live")


def test_a_shadow_of_the_live_version_and_one_of_nothing_are_refused(registry: Registry) -> None:
    with pytest.raises(RegistryError, match=r"no version of revenue is live yet.*pipeline run"):
        registry.start_run("revenue", 2, "shadow")
    registry.start_run("revenue", 1, "live")
    with pytest.raises(RegistryError, match=r"version 1 of revenue is the live one.*another version"):
        registry.start_run("revenue", 1, "shadow")
    registry.start_run("revenue", 2, "shadow")


def test_progress_stays_with_the_version_when_the_run_has_ended(registry: Registry) -> None:
    run_id = registry.start_run("revenue", 1, "live")
    progress = Progress(batch_id=4, rows=10, processed={"orders": {0: 7, 1: 3}}, ends={"orders": {0: 9, 1: 3}})
    registry.note_progress(run_id, progress)
    registry.end_run(run_id, "stopped")
    run = registry.run(run_id)
    assert run.progress == progress
    assert run.progress.lag == {"orders": {0: 2, 1: 0}}
    assert run.progress.lag_rows == 2
    assert (run.outcome, run.is_open) == ("stopped", False)
    version = registry.version("revenue", 1)
    assert version is not None
    assert version.processed == {"orders": {0: 7, 1: 3}}


def test_a_run_is_alive_while_its_process_holds_the_lock(registry: Registry) -> None:
    with RunLock(registry.state_dir, "revenue", 1) as lock:
        run_id = registry.start_run("revenue", 1, "live")
        running = registry.running("revenue", 1)
        assert running is not None
        assert (running.run_id, running.pid) == (run_id, os.getpid())
        with pytest.raises(AlreadyRunningError), RunLock(registry.state_dir, "revenue", 1):
            pass
        lock.release()
        assert registry.running("revenue", 1) is None
    next_id = registry.start_run("revenue", 1, "live")
    assert registry.run(run_id).outcome == "killed"
    assert registry.run(next_id).is_open


def test_the_lock_of_a_killed_process_is_free(registry: Registry) -> None:
    code = (
        "import sys, time; from tidelog.pipeline.versions.run_lock import RunLock\n"
        "lock = RunLock(sys.argv[1], 'revenue', 1); print(lock.try_acquire(), flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(registry.state_dir)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        lock = RunLock(registry.state_dir, "revenue", 1)
        assert lock.is_held()
        assert not lock.try_acquire()
        holder.kill()
        holder.wait()
    assert not lock.is_held()
    assert lock.try_acquire()
    lock.release()


def test_a_stop_is_asked_for_once_and_seen_by_the_run(registry: Registry) -> None:
    run_id = registry.start_run("revenue", 1, "live")
    assert not registry.stop_requested(run_id)
    registry.request_stop(run_id, "first")
    registry.request_stop(run_id, "second")
    assert registry.stop_requested(run_id)
    assert registry.run(run_id).stop_reason == "first"


def test_one_switch_is_open_at_a_time_and_moves_the_live_version_with_its_step(registry: Registry) -> None:
    registry.start_run("revenue", 1, "live")
    switch = registry.begin_switch("revenue", "promote", 2, "stop")
    with pytest.raises(RegistryError, match="already being switched from version 1 to 2"):
        registry.begin_switch("revenue", "promote", 2, "stop")
    registry.start_run("revenue", 1, "live")  # to end its last batch
    moved = registry.advance_switch(switch, "write", {"old_offsets": {}, "keys": 3})
    with pytest.raises(RegistryError, match=r"being switched from version 1 to 2.*--abandon"):
        registry.start_run("revenue", 1, "live")
    with pytest.raises(RegistryError, match="another command has continued"):
        registry.advance_switch(switch, "write")
    moved = registry.advance_switch(moved, "end", {"more": 1}, live_version=2)
    assert moved.data == {"old_offsets": {}, "keys": 3, "more": 1}
    assert registry.live_version("revenue") == 2
    done = registry.advance_switch(moved, "end", outcome="done")
    assert (done.is_open, done.outcome) == (False, "done")
    assert registry.open_switch("revenue") is None
    registry.start_run("revenue", 2, "live")
    back = registry.begin_switch("revenue", "rollback", 1, "stop")
    assert (back.from_version, back.to_version) == (2, 1)


def test_a_switch_to_the_live_version_is_refused(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="no version of revenue is live"):
        registry.begin_switch("revenue", "promote", 2, "stop")
    registry.start_run("revenue", 1, "live")
    with pytest.raises(RegistryError, match="version 1 of revenue is already live"):
        registry.begin_switch("revenue", "promote", 1, "stop")


def test_history_tells_everything_in_order(registry: Registry) -> None:
    run_id = registry.start_run("revenue", 1, "live")
    registry.end_run(run_id, "failed", "no broker")
    switch = registry.begin_switch("revenue", "promote", 2, "stop")
    registry.advance_switch(switch, "end", outcome="abandoned")
    events = registry.history("revenue")
    kinds = ["version", "version", "first-live", "run", "failed", "promote", "promote-abandoned"]
    assert [event.kind for event in events] == kinds
    assert events[4].details == {"error": "no broker"}
    assert [event.at_ms for event in events] == sorted(event.at_ms for event in events)


def test_a_failed_change_leaves_nothing_behind(registry: Registry) -> None:
    run_id = registry.start_run("revenue", 1, "live")
    registry.note_progress(run_id, Progress(processed={"orders": {0: 1}}))
    before = registry.history("revenue")
    with pytest.raises(RegistryError):
        registry.start_run("revenue", 2, "live")
    assert registry.history("revenue") == before
    assert registry.runs("revenue", 2) == []


def test_readers_never_wait_for_a_writer(registry: Registry) -> None:
    run_id = registry.start_run("revenue", 1, "live")
    with Registry(registry.state_dir) as other, registry._transaction() as cursor:
        cursor.execute("UPDATE runs SET error = 'half done' WHERE run_id = ?", (run_id,))
        assert other.run(run_id).error is None
        assert other.live_version("revenue") == 1


def test_many_writers_in_threads_and_connections(registry: Registry) -> None:
    run_id = registry.start_run("revenue", 1, "live")
    others = [Registry(registry.state_dir) for _ in range(3)]

    def write(one: Registry) -> None:
        for number in range(20):
            one.note_progress(run_id, Progress(batch_id=number, processed={"orders": {0: number}}))

    threads = [threading.Thread(target=write, args=(one,)) for one in [registry, registry, *others]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.run(run_id).progress.batch_id == 19
    for one in others:
        one.close()


def test_reached_offsets() -> None:
    assert has_reached({"a": {0: 5}}, {"a": {0: 5}})
    assert has_reached({"a": {0: 5, 1: 0}}, {"a": {0: 4}})
    assert not has_reached({"a": {0: 5}}, {"a": {0: 5, 1: 1}})
    assert has_reached({}, {"a": {0: 0}})
    assert has_reached({}, {})
