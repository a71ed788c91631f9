"""A replay's rate, its progress and its end, with a run that reads as its limit file says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog import Admin, NewTopic, Producer
from tidelog.pipeline.versions import replay_monitor
from tidelog.pipeline.versions.pacing import ROWS_PER_S_START
from tidelog.pipeline.versions.registry_rows import Progress
from tidelog.pipeline.versions.replay_monitor import Limits, ReplayMonitor, ReplayStatus
from tidelog.testing import Broker

ROWS = 20_000
TRIGGER_S = 0.1


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as started:
        with Admin(bootstrap_servers=started.bootstrap) as admin:
            admin.create_topics(NewTopic("orders", 2)).raise_for_errors()
        with Producer(bootstrap_servers=started.bootstrap) as producer:
            for number in range(ROWS):
                producer.send_nowait("orders", b"x", partition=number % 2)
        yield started


class FakeRun(threading.Thread):
    """Reads as a query does: at each trigger as many rows as the file allows, or all of them."""

    def __init__(self, limit_file: Path) -> None:
        super().__init__()
        self.progress = Progress()
        self.is_asked_to_stop = threading.Event()
        self._limit_file = limit_file
        self.batches: list[int] = []

    def run(self) -> None:
        done = 0
        while not self.is_asked_to_stop.wait(TRIGGER_S):
            limit = int(self._limit_file.read_text()) if self._limit_file.exists() else ROWS
            rows = min(limit, ROWS - done)
            if rows:
                done += rows
                self.batches.append(rows)
                processed = {"orders": {0: (done + 1) // 2, 1: done // 2}}
                self.progress = Progress(len(self.batches) - 1, done, rows / TRIGGER_S, 50, processed)

    def request_stop(self) -> None:
        self.is_asked_to_stop.set()


def _replay(broker: Broker, directory: Path, limits: Limits) -> tuple[FakeRun, list[ReplayStatus], float]:
    """A replay until it has caught up: the run, what was told, how long it took."""
    limit_file, starts_file = directory / "limit", directory / "starting-offsets.json"
    starts_file.write_text(json.dumps({"orders": {"orders": {"0": 0, "1": 0}}}))
    statuses: list[ReplayStatus] = []
    run = FakeRun(limit_file)
    monitor = ReplayMonitor(
        run,
        broker.bootstrap,
        ["orders"],
        starts_file,
        limit_file,
        limits,
        trigger_s=TRIGGER_S,
        until_caught_up=True,
        on_status=statuses.append,
    )
    with monitor:
        began_s = time.monotonic()
        run.start()
        run.join(60)
        took_s = time.monotonic() - began_s
    assert not run.is_alive()
    assert monitor.is_caught_up
    return run, statuses, took_s


def test_without_a_limit_it_reads_all_at_once(broker: Broker, tmp_path: Path) -> None:
    run, statuses, _ = _replay(broker, tmp_path, Limits())
    assert run.batches == [ROWS]
    assert (tmp_path / "limit").read_text() == str(round(5 * ROWS / TRIGGER_S))  # of about five seconds
    assert (statuses[-1].rows_done, statuses[-1].rows_total, statuses[-1].rows_left) == (ROWS, ROWS, 0)
    assert statuses[-1].limit_rows_per_s is None


def test_a_rate_is_kept_and_the_time_left_is_told(broker: Broker, tmp_path: Path) -> None:
    run, statuses, took_s = _replay(broker, tmp_path, Limits(max_rate=5000))
    assert max(run.batches) <= 5000 * TRIGGER_S
    # What three seconds can read counts as caught up.
    assert run.progress.rows / took_s < 5000 * 1.1
    assert all(status.limit_rows_per_s == 5000 for status in statuses)
    assert any(status.seconds_left and 0 < status.seconds_left < 60 for status in statuses)


def test_yielding_it_finds_a_rate_of_its_own(broker: Broker, tmp_path: Path) -> None:
    run, statuses, _ = _replay(broker, tmp_path, Limits(yields_to_live=True))
    assert run.batches[0] == 1000  # the rate that it starts with
    assert all(status.latency_ms is not None and status.latency_ms > 0 for status in statuses)
    assert all(status.limit_rows_per_s is not None for status in statuses)


def test_a_run_that_has_put_a_stop_to_its_source_is_left_alone(broker: Broker, tmp_path: Path) -> None:
    limit_file, starts_file = tmp_path / "limit", tmp_path / "starting-offsets.json"
    run = FakeRun(limit_file)
    told = threading.Event()
    monitor = ReplayMonitor(
        run,
        broker.bootstrap,
        ["orders"],
        starts_file,
        limit_file,
        Limits(max_rate=1),
        trigger_s=TRIGGER_S,
        on_status=lambda status: told.set(),
    )
    with monitor:
        limit_file.write_text("0")
        assert told.wait(10)
        assert limit_file.read_text() == "0"


def test_probes_that_fail_count_as_slow(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that refuses is the last that should get more work: the rate comes down, however fast it refuses."""
    slowed = threading.Event()

    def watch(status: ReplayStatus) -> None:
        if status.limit_rows_per_s is not None and status.limit_rows_per_s < ROWS_PER_S_START:
            slowed.set()

    limit_file, starts_file = tmp_path / "limit", tmp_path / "starting-offsets.json"
    run = FakeRun(limit_file)
    limits = Limits(yields_to_live=True)
    monitor = ReplayMonitor(
        run, broker.bootstrap, ["orders"], starts_file, limit_file, limits, trigger_s=TRIGGER_S, on_status=watch
    )
    with monitor:
        assert int(limit_file.read_text()) == ROWS_PER_S_START * TRIGGER_S
        # The topic of the probes is gone, so each fails at once; where the other inputs end can still be told.
        monkeypatch.setattr(monitor, "_known_topics", lambda: ["gone"])
        monkeypatch.setattr(replay_monitor, "end_offsets", lambda *_: {"orders": {0: ROWS}})
        assert slowed.wait(60)
        assert int(limit_file.read_text()) < ROWS_PER_S_START * TRIGGER_S
