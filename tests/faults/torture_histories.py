"""Histories of a torture run, written by hand for the checker: a clock that ticks, and short words for operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidelog.torture.anomalies import Checked
from tidelog.torture.checker import check
from tidelog.torture.history import HistoryWriter, Operation

# Values of these workers; a value that none of them sent.
A, B, C, D, E = (((1 << 32) + number) for number in range(1, 6))
STRANGE = (900 << 32) + 1


class Run:
    """The histories of one workload. Each operation ends before the next one starts, unless it is told when."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now_ns = 0
        self._writers: dict[str, HistoryWriter] = {}

    def add(
        self,
        process: str,
        f: str,
        events: list[list[Any]],
        outcome: str = "ok",
        at: tuple[int, int] | None = None,
        error: str = "",
    ) -> None:
        if at is None:
            self.now_ns += 10
            at = self.now_ns - 10, self.now_ns - 5
        writer = self._writers.get(process)
        if writer is None:
            writer = self._writers[process] = HistoryWriter(self.directory / f"{process}.jsonl")
        writer.write(Operation(process, f, outcome, *at, events, error))

    def send(
        self,
        process: str,
        key: str,
        values: Sequence[int],
        offsets: Sequence[int | None],
        outcome: str = "ok",
        at: tuple[int, int] | None = None,
    ) -> None:
        self.add(process, "send", [["send", key, list(values), list(offsets)]], outcome, at)

    def poll(self, process: str, key: str, records: Mapping[int, int], at: tuple[int, int] | None = None) -> None:
        self.add(process, "poll", [["poll", key, list(records), list(records.values())]], at=at)

    def rebalance(self, process: str, what: str, *keys: str) -> None:
        self.now_ns += 10
        self.add(process, "rebalance", [[what, list(keys)]], at=(self.now_ns, self.now_ns))

    def commit(self, process: str, key: str, offset: int, outcome: str = "ok") -> None:
        self.add(process, "commit", [["commit", key, offset]], outcome)

    def final(self, key: str, records: Mapping[int, int], f: str = "final") -> None:
        self.add(f"run-{f}", f, [["poll", key, list(records), list(records.values())]])

    def check(self, workload: str = "queue") -> Checked:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
        return check(workload, sorted(self.directory.glob("*.jsonl")))


def found(checked: Checked) -> list[tuple[str, str, list[str]]]:
    """Each anomaly that is shown: its kind, its partition, and the processes of the operations that show it."""
    return [(one.kind, one.key, [operation.process for operation in one.operations]) for one in checked.anomalies]
