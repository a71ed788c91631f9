"""All workloads of a torture on a real cluster, with a broker and workers killed: what they note must be true."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tidelog.bench.brokers import kafka_jars
from tidelog.client.admin import Admin
from tidelog.testing import Cluster
from tidelog.torture.history import FAIL, OK, UNDER_WAY, Operation, read_history
from tidelog.torture.workloads import WORKLOADS, Place, Workload
from tidelog.torture.workloads.copy import CopyWorkload

SETTINGS = {"min.insync.replicas": 2, "group.initial.rebalance.delay.ms": 0, "broker.session.timeout.ms": 3000}
# Low enough for a busy machine that runs other tests beside this one.
RATES = {"queue": 1_000.0, "transactions": 200.0, "table": 100.0, "handover": 200.0, "copy": 200.0}
STUCK_S = 60.0
KILLED = 2


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


def histories(directory: Path, name: str) -> Iterator[Operation]:
    for path in sorted((directory / name).glob("*.jsonl")):
        yield from read_history(path)


def finally_read(directory: Path, name: str) -> dict[str, list[int]]:
    """The values of each partition, in order, as the last reader of committed records found them."""
    found: dict[str, list[int]] = {}
    for operation in read_history(directory / name / f"{name}-final.jsonl"):
        assert (operation.f, operation.outcome) == ("final", OK)
        for _, key, _offsets, values in operation.events:
            found.setdefault(key, []).extend(values)
    return found


def sent(directory: Path, name: str) -> dict[str, Counter[tuple[str, int]]]:
    """By outcome, what was sent where."""
    found: dict[str, Counter[tuple[str, int]]] = {}
    for operation in histories(directory, name):
        of_outcome = found.setdefault(operation.outcome, Counter())
        for event in operation.events:
            if event[0] == "send":
                of_outcome.update((event[1], value) for value in event[2])
            elif event[0] == "append":
                of_outcome[event[1], event[2]] += 1
    return found


def check_sends(directory: Path, name: str) -> None:
    """Everything acknowledged is there once, and nothing that failed."""
    stored = Counter((key, value) for key, values in finally_read(directory, name).items() for value in values)
    by_outcome = sent(directory, name)
    assert set(stored.values()) == {1}, name
    assert set(by_outcome[OK].values()) == {1}, name
    assert by_outcome[OK].keys() <= stored.keys(), name
    assert not by_outcome.get(FAIL, Counter()).keys() & stored.keys(), name


def check_reads(directory: Path, name: str) -> None:
    """Somebody who assigned itself the partitions, and somebody in the group, has read everything."""
    stored = {(key, value) for key, values in finally_read(directory, name).items() for value in values}
    read: dict[str, set[tuple[str, int]]] = {"assign": set(), "member": set()}
    for path in sorted((directory / name).glob(f"{name}-*.jsonl")):
        if "final" not in path.stem:
            kind = "assign" if "-assign" in path.stem else "member"
            for operation in read_history(path):
                if operation.outcome == OK or operation.error == UNDER_WAY:
                    polled = [event for event in operation.events if event[0] == "poll"]
                    read[kind].update((event[1], value) for event in polled for value in event[3])
    for kind, values in read.items():
        assert (kind == "assign" and name == "handover") or values >= stored, (name, kind, len(values), len(stored))


def check_copies(directory: Path, families: Sequence[str]) -> None:
    """Each copy is the source, partition by partition, in order."""
    found = finally_read(directory, "copy")
    sources = [key for key in found if "-source-" in key]
    assert sources
    for family in families:
        for key in sources:
            assert found[key.replace("-source-", f"-{family}-")] == found[key], (family, key)


def check_table(directory: Path) -> None:
    """The last scan shows no row older than its newest acknowledged put."""
    (scan,) = [each for each in read_history(directory / "table" / "table-final.jsonl") if each.outcome == OK]
    shown = {(key, row): offset for _, key, offset, row, _ in scan.events}
    newest: dict[tuple[str, str], tuple[int, Any]] = {}
    for operation in histories(directory, "table"):
        for event in operation.events:
            if event[0] == "put" and operation.outcome == OK:
                _, key, row, value, offset = event
                newest[key, row] = max(newest.get((key, row), (-1, None)), (offset, value), key=lambda put: put[0])
    assert newest
    for place, (offset, value) in newest.items():
        assert value is None or shown[place] >= offset, place


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
    for name in ("queue", "transactions", "append", "handover", "probe"):
        check_sends(tmp_path, name)
    for name in ("queue", "transactions", "handover"):
        check_reads(tmp_path, name)
    check_table(tmp_path)
    check_copies(tmp_path, ["tidelog", "confluent"])
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
    check_copies(tmp_path, ["tidelog", "confluent", "java"])
