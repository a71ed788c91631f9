"""The check of a run's histories, right after the run or any time later, and the verdict and the report it ends in.

What always holds: a check reads only what the run kept (run.json, faults.jsonl, histories), so it can be made again,
by a later version of the checker too; it replaces verdict.json and report.html, and nothing else.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.torture.report import write_report
from tidelog.torture.verdict import (
    HISTORIES_DIRECTORY,
    NS_PER_S,
    VERDICT_FILE,
    ShownAnomaly,
    ShownOperation,
    Verdict,
    WorkloadResult,
    judge,
    read_faults,
    read_run,
    write_document,
)

if TYPE_CHECKING:
    from tidelog.torture.anomalies import Anomaly
    from tidelog.torture.history import Operation
    from tidelog.torture.parts import Parts

# An operation may be a poll of thousands of records; what is kept of it has to fit a page.
EVENTS_TEXT_MAX: Final = 600
PROBE: Final = "probe"
ACKNOWLEDGED: Final = "sends_acknowledged"


def check_run(directory: Path, tell: Callable[[str], None], progress: Callable[[str], None], parts: Parts) -> Verdict:
    """Check all histories of a run, write verdict and report, and give the verdict.

    `tell` gets each step, and `progress` gets how far a step is.
    """
    run = read_run(directory)
    start_ns = int(run["start_ns"])
    faults = read_faults(directory, start_ns)
    found: Counter[str] = Counter()
    anomalies = _findings(run, found)
    results: list[WorkloadResult] = []
    for name in run["workloads"]:
        histories = histories_of(directory, name)
        tell(f"checking {name}: {len(histories)} histories")
        checked = parts.check(name, histories, progress)
        found.update(checked.found)
        anomalies += [_shown(anomaly, name, start_ns) for anomaly in checked.anomalies]
        results.append(
            WorkloadResult(
                name=name,
                acknowledged=checked.counts.get(ACKNOWLEDGED, 0),
                counts=dict(checked.counts),
                kinds=dict(checked.found),
                restarts=int(run.get("restarts", {}).get(name, 0)),
                check_seconds=round(checked.seconds, 2),
            )
        )
    availability = parts.availability(histories_of(directory, PROBE), start_ns) if PROBE in run["workloads"] else None
    verdict = judge(run, found, anomalies, results, faults, availability)
    write_document(directory / VERDICT_FILE, verdict.as_data())
    write_report(verdict, directory)
    return verdict


def histories_of(directory: Path, workload: str) -> list[Path]:
    """The histories of a workload, in the order of their names."""
    return sorted((directory / HISTORIES_DIRECTORY / workload).glob("*.jsonl"))


def _findings(run: Mapping[str, Any], found: Counter[str]) -> list[ShownAnomaly]:
    """What the run itself found, such as a broker that did not come back; no history shows it."""
    findings: Sequence[Mapping[str, str]] = run.get("findings", ())
    found.update(each["kind"] for each in findings)
    return [ShownAnomaly(each["kind"], each["workload"], "", each["detail"]) for each in findings]


def _shown(anomaly: Anomaly, workload: str, start_ns: int) -> ShownAnomaly:
    operations = tuple(_shown_operation(operation, start_ns) for operation in anomaly.operations)
    return ShownAnomaly(anomaly.kind, workload, anomaly.key, anomaly.detail, operations)


def _shown_operation(operation: Operation, start_ns: int) -> ShownOperation:
    events = " ".join(json.dumps(event, ensure_ascii=False) for event in operation.events)
    if len(events) > EVENTS_TEXT_MAX:
        events = f"{events[: EVENTS_TEXT_MAX - 4]} ..."
    return ShownOperation(
        process=operation.process,
        f=operation.f,
        outcome=operation.outcome,
        start_s=round((operation.start_ns - start_ns) / NS_PER_S, 6),
        end_s=round((operation.end_ns - start_ns) / NS_PER_S, 6),
        events=events,
        error=operation.error,
    )
