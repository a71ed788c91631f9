"""All workloads of a torture on a real cluster, with a broker and workers killed: what they note must be true."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidelog.bench.brokers import kafka_jars
from tidelog.client.admin import Admin
from tidelog.testing import Cluster
from tidelog.torture.checker import check
from tidelog.torture.workloads import WORKLOADS, Place, Workload
from tidelog.torture.workloads.copy import CopyWorkload

SETTINGS = {"min.insync.replicas": 2, "group.initial.rebalance.delay.ms": 0, "broker.session.timeout.ms": 3000}
# Low enough for a busy machine that runs other tests beside this one.
RATES = {"queue": 1_000.0, "transactions": 200.0, "table": 100.0, "handover": 200.0, "copy": 200.0}
STUCK_S = 120.0
KILLED = 2
# What there must be in the histories of each workload, or its checks would have had nothing to find.
COUNTED = {
    "queue": ("sends_acknowledged", "records_polled", "rebalances", "commits", "lookups"),
    "transactions": ("sends_acknowledged", "records_polled", "transactions_committed"),
    "append": ("sends_acknowledged", "transactions_committed", "lists"),
    "table": ("sends_acknowledged", "table_scans"),
    "handover": ("sends_acknowledged", "records_polled", "rebalances", "commits", "lookups"),
    "copy": ("sends_acknowledged", "transactions_committed", "records_copied"),
    "probe": ("sends_acknowledged",),
}


def place_of(name: str, cluster: Cluster, directory: Path, java_libs: Path | None = None) -> Place:
    rate = RATES.get(name, WORKLOADS[name].default_rate)
    return Place(cluster.bootstrap, directory / name, seed=7, rate=rate, java_libs=java_libs)


def wait_for_more(workloads: Sequence[Workload], records: int) -> None:
    """Wait until each of them has this many more records acknowledged, as long as they get on."""
    goals = {workload: workload.progress().acknowledged + records for workload in workloads}
    moved_s, seen = time.monotonic(), -1
    while behind := [each for each, goal in goals.items() if each.progress().acknowledged < goal]:
        for workload in workloads:
            workload.supervise()
        done = sum(each.progress().acknowledged for each in behind)
        if done != seen:
            moved_s, seen = time.monotonic(), done
        assert time.monotonic() - moved_s < STUCK_S, [(each.name, each.progress(), each.notes) for each in behind]
        time.sleep(0.05)


def check_history(directory: Path, name: str) -> dict[str, int]:
    """There are no anomalies in what a workload noted; returns what it consists of."""
    checked = check(name, sorted((directory / name).glob("*.jsonl")))
    assert checked.found == {}, [(each.kind, each.key, each.detail) for each in checked.anomalies]
    return checked.counts


def finish(workloads: Sequence[Workload]) -> None:
    """All at once, as most of it is waiting."""
    with ThreadPoolExecutor(len(workloads)) as pool:
        for finished in [pool.submit(workload.finish) for workload in workloads]:
            finished.result()


def run_and_finish(workloads: Sequence[Workload], disturb: Callable[[], None]) -> None:
    try:
        for workload in workloads:
            workload.start()
        wait_for_more(workloads, 10)
        disturb()
        wait_for_more(workloads, 10)
        finish(workloads)
    finally:
        for workload in workloads:
            workload.close()


def test_what_all_workloads_note_is_true_although_a_broker_and_workers_are_killed(tmp_path: Path) -> None:
    with Cluster(3, SETTINGS) as cluster:
        workloads = [make() for make in WORKLOADS.values()]
        for workload in workloads:
            workload.prepare(place_of(workload.name, cluster, tmp_path))

        def disturb() -> None:
            cluster.kill(KILLED)
            for number, workload in enumerate(workloads):
                assert workload.kill_one(random.Random(number))
            wait_for_more(workloads, 5)
            cluster.start(KILLED)

        run_and_finish(workloads, disturb)
        for workload in workloads:
            assert workload.progress().restarts >= 1
            workload.remove_topics()
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            assert admin.list_topics() == []
    for name, counted in COUNTED.items():
        counts = check_history(tmp_path, name)
        assert all(counts.get(each, 0) > 0 for each in counted), (name, counts)
    (copy,) = [workload for workload in workloads if workload.name == "copy"]
    assert list(copy.notes.left_out) == ["copier java"]
    assert "apt-get install maven" in copy.notes.left_out["copier java"]


@pytest.mark.compat
def test_the_copier_in_java_copies_exactly_once(tmp_path: Path) -> None:
    with Cluster(3, SETTINGS) as cluster:
        copy = CopyWorkload()
        copy.prepare(place_of("copy", cluster, tmp_path, kafka_jars()))
        assert copy.notes.left_out == {}

        def java_has_worked() -> bool:
            copy.supervise()
            return any(path.stat().st_size for path in (tmp_path / "copy").glob("copy-java-*.jsonl"))

        def disturb() -> None:
            deadline_s = time.monotonic() + STUCK_S
            while not java_has_worked():
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            cluster.kill(KILLED)
            wait_for_more([copy], 200)
            cluster.start(KILLED)

        run_and_finish([copy], disturb)
    counts = check_history(tmp_path, "copy")
    assert counts["copies"] == 3
    assert counts["records_copied"] >= 3 * 200
