"""Histories: what one client asked of a cluster and what it was told, one row an operation.

A history is a file of JSON lines, `PROCESS.jsonl`; a row is `[f, outcome, start_ns, end_ns, events, error]`. Times are
CLOCK_MONOTONIC, so the rows of all processes of a machine can be compared. `EVENTS` lists what an operation can
consist of.

What always holds: a row is in the file, as far as a kill -9 is concerned, once `write` has returned. A file belongs to
one process, which never reopens it, so that only its last line can be cut off. The reader ignores such a line, and
refuses any other line that it doesn't understand.

An operation that must be known even if its process is killed in it is written twice: as unknown with the error
`UNDER_WAY` before its last step (a commit, say), and with its outcome afterwards. Both rows have the same name and
start; the reader leaves out the first.

Names of processes tell the checker something, too: those of one group differ only in their last number
("handover-classic-2"); one that was started again has a further number ("handover-classic-2.1"); readers that don't
read committed records only have "uncommitted" in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson

OK: Final = "ok"
FAIL: Final = "fail"
UNKNOWN: Final = "unknown"
UNDER_WAY: Final = "under way"
OUTCOMES: Final = frozenset({OK, FAIL, UNKNOWN})

# What a worker does, in the words of its rows.
OPERATIONS: Final = frozenset(
    {
        "send",
        "poll",
        "txn",
        "commit",
        "rebalance",
        "assign",
        "seek",
        "put",
        "table",
        "probe",
        "final",
        "final-uncommitted",
        "lookup",
    }
)

# The parts of each event after its name. A key is "topic-partition"; "?" stands for a part that may be null.
EVENTS: Final[dict[str, tuple[str, ...]]] = {
    "send": ("key", "values", "offsets?"),  # a burst to one partition; all records had the outcome of the operation
    "poll": ("key", "offsets", "values"),  # what one poll returned of one partition, in that order
    "commit": ("key", "offset"),  # an offset of the consumer group
    "assigned": ("keys",),  # what a group gave a member, took from it, and declared lost
    "revoked": ("keys",),
    "lost": ("keys",),
    "assign": ("keys",),  # the partitions a reader without a group chose itself
    "seek": ("key", "offset"),
    "put": ("key", "row", "value?", "offset?"),  # a row of a compacted table; null deletes it
    "row": ("key", "offset", "row", "value?"),  # a record that a scan of the table found
    "append": ("key", "value", "offset?"),  # list-append transactions
    "list": ("key", "values"),
    "high_watermark": ("key", "offset"),  # what a lookup was told
    "committed": ("key", "offset?"),
}
_LENGTHS: Final = {name: 1 + len(parts) for name, parts in EVENTS.items()}
_PAIRED: Final = frozenset({"send", "poll"})


class HistoryError(Exception):
    """A history can't be used; the text names file and line."""


@dataclass(slots=True)
class Operation:
    """One operation of a process: what it asked for, how that ended, and what it consisted of.

    `outcome` "fail" means that it certainly had no effect; "unknown" means that nobody can tell.
    """

    process: str
    f: str
    outcome: str
    start_ns: int
    end_ns: int
    events: list[list[Any]]
    error: str = ""


class HistoryWriter:
    """Writes the history of one process.

    Each row is one `write` to the kernel, from any thread: a worker is killed at any moment, and what it was told
    before should count.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise HistoryError(
                f"{path} exists: a history belongs to one process; give a restarted worker a name of its own"
            ) from None
        self._path = path

    def write(self, operation: Operation) -> None:
        """Add an operation at its end. The process is named by the file."""
        line = orjson.dumps(
            [
                operation.f,
                operation.outcome,
                operation.start_ns,
                operation.end_ns,
                operation.events,
                operation.error,
            ],
            option=orjson.OPT_APPEND_NEWLINE,
        )
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"{self._path}: wrote {written} of {len(line)} bytes; is its disk full?")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_history(path: Path) -> Iterator[Operation]:
    """All operations of a process, in the order in which they ended."""
    process = path.stem
    for _, row in read_rows(path):
        yield Operation(process, *row)


def read_rows(path: Path) -> Iterator[tuple[int, list[Any]]]:
    """All rows of a file, each with its position in bytes, for `read_operation_at`."""
    previous: tuple[int, list[Any]] | None = None
    for position, row in _read_all_rows(path):
        if previous is not None and not _announces(previous[1], row):
            yield previous
        previous = position, row
    if previous is not None:
        yield previous


def _announces(row: list[Any], later: list[Any]) -> bool:
    return bool(row[5] == UNDER_WAY and row[1] == UNKNOWN and row[2] == later[2] and row[0] == later[0])


def _read_all_rows(path: Path) -> Iterator[tuple[int, list[Any]]]:
    position = 0
    with open(path, "rb", buffering=1 << 20) as file:
        for number, line in enumerate(file, 1):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                if not line.endswith(b"\n"):
                    return  # the process was killed while it wrote
                raise HistoryError(f"{path}, line {number}: not JSON ({error}): {_shown(line)}") from None
            problem = _problem(row)
            if problem:
                raise HistoryError(f"{path}, line {number}: {problem}: {_shown(line)}")
            yield position, row
            position += len(line)


def read_operation_at(path: Path, position: int) -> Operation:
    """The operation whose row starts at a position that `read_rows` gave."""
    with open(path, "rb") as file:
        file.seek(position)
        return Operation(path.stem, *orjson.loads(file.readline()))


def _problem(row: Any) -> str:
    """What is wrong with a row, or nothing."""
    if type(row) is not list or len(row) != 6:
        return "not a list of operation, outcome, start, end, events and error"
    f, outcome, start_ns, end_ns, events, error = row
    if f not in OPERATIONS:
        return f"no operation is called {f!r}"
    if outcome not in OUTCOMES:
        return f"no outcome is called {outcome!r}"
    if type(start_ns) is not int or type(end_ns) is not int or start_ns > end_ns:
        return "it doesn't end after its start"
    if type(error) is not str or type(events) is not list:
        return "events are a list, and the error is a text"
    for event in events:
        if type(event) is not list or not event or _LENGTHS.get(event[0]) != len(event):
            return f"not an event: {str(event)[:80]}"
        if event[0] in _PAIRED and len(event[2]) != len(event[3]):
            return f"as many offsets as values are expected: {str(event)[:80]}"
    return ""


def _shown(line: bytes) -> str:
    text = line[:120].decode("utf-8", "replace").rstrip("\n")
    return text + "..." if len(line) > 120 else text
