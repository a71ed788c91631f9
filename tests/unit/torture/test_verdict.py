from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidelog.torture.errors import TortureError
from tidelog.torture.verdict import (
    ANOMALIES,
    CLEAN,
    INCONCLUSIVE,
    Availability,
    Fault,
    Second,
    ShownAnomaly,
    ShownOperation,
    WorkloadResult,
    judge,
    read_faults,
    read_run,
    read_verdict,
    write_document,
)

RUN = {"seed": 1, "cluster": "kafka", "start_ns": 10**9, "workloads": ["queue"], "ended": "2026-01-31T12:00:00Z"}
QUEUE = WorkloadResult("queue", 10)


@pytest.mark.parametrize(
    ("run", "found", "workloads", "outcome"),
    [
        (RUN, {}, [QUEUE], CLEAN),
        (RUN, {"duplicate": 0}, [QUEUE], CLEAN),
        (RUN, {"duplicate": 1}, [QUEUE], ANOMALIES),
        (RUN, {}, [QUEUE, WorkloadResult("table", 0)], INCONCLUSIVE),
        (RUN, {"duplicate": 1}, [WorkloadResult("table", 0)], ANOMALIES),
        (RUN, {}, [], INCONCLUSIVE),
        (RUN | {"ended": None}, {}, [QUEUE], INCONCLUSIVE),
        (RUN, {}, [WorkloadResult("queue", 10, {"final_incomplete": 1})], INCONCLUSIVE),
    ],
)
def test_only_what_was_proved_is_clean(
    run: dict[str, object], found: dict[str, int], workloads: list[WorkloadResult], outcome: str
) -> None:
    verdict = judge(run, found, (), workloads, (), None)
    assert verdict.outcome == outcome
    assert bool(verdict.reasons) == (outcome == INCONCLUSIVE or not workloads[0].acknowledged)


def test_a_verdict_survives_its_file(tmp_path: Path) -> None:
    operation = ShownOperation("queue-send-1", "send", "ok", 1.0, 2.0, "[]", "")
    anomaly = ShownAnomaly("duplicate", "queue", "queue-0", "twice", (operation,))
    availability = Availability(
        2, 1, 1, 0.5, 1.0, 3.0, 4.0, 5.0, (Second(0, 1, 1, 3, 1, 2.0, 5.0), Second(1, 1, 0, 0, 4))
    )
    fault = Fault("kill", "broker 1", "", 1.0, 2.5)
    verdict = judge(RUN, {"duplicate": 1}, (anomaly,), (QUEUE,), (fault,), availability)
    write_document(tmp_path / "run.json", RUN)
    write_document(tmp_path / "verdict.json", verdict.as_data())
    row = {"kind": "kill", "target": "broker 1", "detail": "", "t0": 2 * 10**9, "t1": 35 * 10**8}
    (tmp_path / "faults.jsonl").write_text(json.dumps(row) + "\n")
    again = read_verdict(tmp_path)
    assert again.as_data() == verdict.as_data()
    assert (again.anomalies, again.workloads, again.faults, again.availability) == (
        [anomaly], [QUEUE], [fault], availability
    )  # fmt: skip


def test_a_fault_is_logged_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    begin = {"kind": "kill", "target": "broker 1", "detail": "", "t0": 3 * 10**9, "t1": None}
    other = {"kind": "pause", "target": "broker 2", "detail": "x", "t0": 2 * 10**9, "t1": None}
    rows = [begin, other, begin | {"t1": 5 * 10**9}]
    (tmp_path / "faults.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "cu')
    assert read_faults(tmp_path, 10**9) == [
        Fault("pause", "broker 2", "x", 1.0, None),
        Fault("kill", "broker 1", "", 2.0, 4.0),
    ]


def test_a_damaged_log_of_faults_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "faults.jsonl").write_text('{"kind": "cu\n{}\n')
    with pytest.raises(TortureError, match=r"faults\.jsonl, line 1: not a fault"):
        read_faults(tmp_path, 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", None, "is not the directory of a torture run"),
        ("run.json", "{", "is not JSON"),
        ("run.json", "[]", "is not a JSON object"),
        ("run.json", '{"seed": 1}', "lacks cluster, start_ns, workloads"),
        ("verdict.json", None, "'tidelog torture check .*' makes it"),
        ("verdict.json", "{}", "makes it anew"),
        ("verdict.json", '{"outcome": "clean"}', "makes it anew"),
    ],
)
def test_a_directory_that_can_not_be_read_says_what_to_do(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    write_document(tmp_path / "run.json", RUN)
    write_document(tmp_path / "verdict.json", judge(RUN, {}, (), (QUEUE,), (), None).as_data())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(TortureError, match=message):
        read_verdict(tmp_path)


def test_a_run_is_read(tmp_path: Path) -> None:
    write_document(tmp_path / "run.json", RUN)
    assert read_run(tmp_path) == RUN
