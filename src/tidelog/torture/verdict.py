"""What a run found: the verdict with everything that the report and `--json` show, and the files it is kept in.

What always holds: a verdict is "clean" only if every workload got something acknowledged, all histories were checked
and nothing was found. A run that proved nothing is "inconclusive", never clean. What is shown of an anomaly is bounded,
so that a report of thousands of them can be opened; their number is exact.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tidelog.torture.errors import TortureError

CLEAN: Final = "clean"
ANOMALIES: Final = "anomalies"
INCONCLUSIVE: Final = "inconclusive"

RUN_FILE: Final = "run.json"
FAULTS_FILE: Final = "faults.jsonl"
VERDICT_FILE: Final = "verdict.json"
REPORT_FILE: Final = "report.html"
HISTORIES_DIRECTORY: Final = "histories"

# A count of the checker: the final read of a workload failed somewhere.
FINAL_INCOMPLETE: Final = "final_incomplete"
# Per kind, in verdict.json and in the report.
ANOMALIES_SHOWN_MAX: Final = 20
NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True)
class ShownOperation:
    """An operation that shows an anomaly; times in seconds since the run began."""

    process: str
    f: str
    outcome: str
    start_s: float
    end_s: float
    events: str
    error: str = ""


@dataclass(frozen=True)
class ShownAnomaly:
    """One thing that should never have happened."""

    kind: str
    workload: str
    key: str
    detail: str
    operations: tuple[ShownOperation, ...] = ()


@dataclass(frozen=True)
class WorkloadResult:
    """What one workload did, and what the check of its histories found."""

    name: str
    acknowledged: int
    counts: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    check_seconds: float = 0.0


@dataclass(frozen=True)
class Second:
    """A second of the probes' writes: to how many partitions somebody tried to write, and how many took a write."""

    at_s: int
    tried: int
    written: int
    acknowledged: int
    failed: int
    p50_ms: float | None = None
    max_ms: float | None = None


@dataclass(frozen=True)
class Availability:
    """How often and how fast a write with acks=all was acknowledged while things broke."""

    seconds: int
    seconds_all_partitions: int
    seconds_without_writes: int
    share: float  # of the seconds of all partitions, those in which the partition took a write
    longest_gap_s: float  # of any partition
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    series: tuple[Second, ...] = ()


@dataclass(frozen=True)
class Fault:
    """One thing that was broken; times in seconds since the run began, `end_s` None if it was never undone."""

    kind: str
    target: str
    detail: str
    start_s: float
    end_s: float | None


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run: `run` is what run.json holds, the rest is what was found."""

    run: Mapping[str, Any]
    outcome: str
    kinds: Mapping[str, int]
    anomalies: Sequence[ShownAnomaly]
    workloads: Sequence[WorkloadResult]
    faults: Sequence[Fault]
    availability: Availability | None
    reasons: Sequence[str] = ()
    """Why a run is inconclusive."""

    @property
    def acknowledged(self) -> int:
        return sum(workload.acknowledged for workload in self.workloads)

    @property
    def anomaly_count(self) -> int:
        return sum(self.kinds.values())

    @property
    def fault_counts(self) -> dict[str, int]:
        """How many of each kind, the most frequent first."""
        return dict(Counter(fault.kind for fault in self.faults).most_common())

    def as_data(self) -> dict[str, Any]:
        """The document of verdict.json and of `--json`. Single faults are in faults.jsonl."""
        return {
            "outcome": self.outcome,
            "reasons": [*self.reasons],
            "acknowledged": self.acknowledged,
            "anomaly_count": self.anomaly_count,
            "kinds": dict(self.kinds),
            "anomalies": [asdict(anomaly) for anomaly in self.anomalies],
            "workloads": [asdict(workload) for workload in self.workloads],
            "fault_count": len(self.faults),
            "fault_kinds": self.fault_counts,
            "availability": None if self.availability is None else asdict(self.availability),
            "run": dict(self.run),
        }


def judge(
    run: Mapping[str, Any],
    found: Mapping[str, int],
    anomalies: Iterable[ShownAnomaly],
    workloads: Sequence[WorkloadResult],
    faults: Sequence[Fault],
    availability: Availability | None,
) -> Verdict:
    """The verdict on what was found; `found` counts all anomalies by kind, `anomalies` are those to show."""
    kinds = {kind: count for kind, count in sorted(found.items()) if count}
    reasons = [] if run.get("ended") else ["the run did not come to its end, so not everything was read back"]
    reasons += [
        f"{workload.name}: nothing was acknowledged, so nothing could be checked"
        for workload in workloads
        if not workload.acknowledged
    ]
    reasons += [
        f"{workload.name}: the read at the end was not complete, so lost records would not be noticed"
        for workload in workloads
        if workload.counts.get(FINAL_INCOMPLETE)
    ]
    if not workloads:
        reasons.append("no workload ran")
    outcome = ANOMALIES if kinds else INCONCLUSIVE if reasons else CLEAN
    shown: Counter[str] = Counter()
    kept = []
    for anomaly in anomalies:
        if shown[anomaly.kind] < ANOMALIES_SHOWN_MAX:
            shown[anomaly.kind] += 1
            kept.append(anomaly)
    return Verdict(run, outcome, kinds, tuple(kept), tuple(workloads), tuple(faults), availability, tuple(reasons))


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write it whole or not at all: a run may be ended at any moment."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_run(directory: Path) -> dict[str, Any]:
    """run.json of a kept run; raises TortureError when this is not the directory of one."""
    path = directory / RUN_FILE
    if not path.is_file():
        raise TortureError(f"{directory} is not the directory of a torture run: it has no {RUN_FILE}")
    document = _read_object(path)
    missing = {"seed", "cluster", "start_ns", "workloads"} - set(document)
    if missing:
        raise TortureError(f"{path} lacks {', '.join(sorted(missing))}; was it written by another program?")
    return document


def read_faults(directory: Path, start_ns: int) -> list[Fault]:
    """All faults of a kept run, in the order in which they began. The log keeps a row for the begin and for the end."""
    path = directory / FAULTS_FILE
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows: dict[tuple[Any, ...], Fault] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            fault = Fault(
                str(row["kind"]),
                str(row["target"]),
                str(row.get("detail") or ""),
                (row["t0"] - start_ns) / NS_PER_S,
                None if row["t1"] is None else (row["t1"] - start_ns) / NS_PER_S,
            )
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break  # cut off while it was written
            raise TortureError(f"{path}, line {number}: not a fault ({type(error).__name__}: {error})") from None
        rows[row["kind"], row["target"], row["t0"]] = fault
    return sorted(rows.values(), key=lambda fault: fault.start_s)


def read_verdict(directory: Path) -> Verdict:
    """The kept verdict of a run."""
    run = read_run(directory)
    path = directory / VERDICT_FILE
    if not path.is_file():
        raise TortureError(f"{directory} has no {VERDICT_FILE} yet; 'tidelog torture check {directory}' makes it")
    document = _read_object(path)
    try:
        return Verdict(
            run=run,
            outcome=document["outcome"],
            kinds=document["kinds"],
            anomalies=[_anomaly(each) for each in document["anomalies"]],
            workloads=[WorkloadResult(**each) for each in document["workloads"]],
            faults=read_faults(directory, run["start_ns"]),
            availability=_availability(document["availability"]),
            reasons=document["reasons"],
        )
    except (KeyError, TypeError) as error:
        raise TortureError(
            f"{path} can't be read ({type(error).__name__}: {error}); 'tidelog torture check {directory}' makes it anew"
        ) from None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TortureError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise TortureError(f"{path} is not a JSON object; was it written by another program?")
    return document


def _anomaly(document: Mapping[str, Any]) -> ShownAnomaly:
    operations = tuple(ShownOperation(**each) for each in document["operations"])
    return ShownAnomaly(**{**document, "operations": operations})


def _availability(document: Mapping[str, Any] | None) -> Availability | None:
    if document is None:
        return None
    return Availability(**{**document, "series": tuple(Second(**each) for each in document["series"])})
