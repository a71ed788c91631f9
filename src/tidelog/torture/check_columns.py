"""The histories of a workload in columns: by partition, in arrays, so that tens of millions of records fit in memory.

An operation is a number here; what it was can be read again from its file when it has to be shown. Offsets that nobody
knows are -1. What always holds: records stand in the order in which their process noted them.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidelog.torture.history import FAIL, OK, UNKNOWN, Operation, read_operation_at, read_rows

# Where a chunk of a reader continues, if not at an offset that a seek named.
CONTINUES: Final = -1
ANYWHERE: Final = -2

# A worker notes its operations one after another; no operation has more records than this.
_UNNOTED_AT_MOST: Final = 10_000
# A value is the number of its worker, and below these bits a counter.
WORKER_BITS: Final = 32

_OUTCOME_CODES: Final = {OK: 0, FAIL: 1, UNKNOWN: 2}
_PROGRESS_EVERY_ROWS: Final = 200_000
_MEMBER: Final = re.compile(r"-\d+(\.\d+)*$")


def group_of(process: str) -> str:
    """What processes of one kind have in common: "handover-classic" for "handover-classic-3.1"."""
    return _MEMBER.sub("", process)


def worker_of(process: str) -> str:
    """The name of a process without the number of its restart: "queue-poll-2" for "queue-poll-2.1"."""
    return process.partition(".")[0]


def topic_of(key: str) -> str:
    """The topic of a partition."""
    return key.rpartition("-")[0]


class Operations:
    """Times, kinds and places of all operations that say something."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.start_ns = array("q")
        self.end_ns = array("q")
        self._file = array("H")
        self._position = array("q")
        self._outcome = array("b")
        self._is_transaction = array("b")

    def __len__(self) -> int:
        return len(self.start_ns)

    def add(self, file: int, position: int, row: list[Any]) -> int:
        self._file.append(file)
        self._position.append(position)
        self._is_transaction.append(row[0] == "txn")
        self._outcome.append(_OUTCOME_CODES[row[1]])
        self.start_ns.append(row[2])
        self.end_ns.append(row[3])
        return len(self.start_ns) - 1

    def process(self, number: int) -> int:
        return self._file[number]

    def name(self, number: int) -> str:
        """The name of the process that did the operation."""
        return self.paths[self._file[number]].stem

    def is_ok(self, number: int) -> bool:
        return self._outcome[number] == _OUTCOME_CODES[OK]

    def has_failed(self, number: int) -> bool:
        return self._outcome[number] == _OUTCOME_CODES[FAIL]

    def is_transaction(self, number: int) -> bool:
        return bool(self._is_transaction[number])

    def load(self, number: int) -> Operation:
        return read_operation_at(self.paths[self._file[number]], self._position[number])


class Records:
    """Chunks of records with values and offsets: bursts that were sent, or answers to polls."""

    __slots__ = ("offsets", "operations", "origins", "starts", "values")

    def __init__(self) -> None:
        self.values = array("q")
        self.offsets = array("q")
        self.starts = array("q")
        self.operations = array("q")
        self.origins = array("q")  # CONTINUES, ANYWHERE, or the offset of a seek

    def add(
        self, operation: int, values: Sequence[int], offsets: Sequence[int | None], origin: int = CONTINUES
    ) -> None:
        self.starts.append(len(self.values))
        self.operations.append(operation)
        self.origins.append(origin)
        self.values.extend(values)
        if None in offsets:
            self.offsets.extend([-1 if offset is None else offset for offset in offsets])
        else:
            self.offsets.extend(offsets)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.values)

    def chunks(self) -> Iterator[tuple[int, int, int]]:
        """Operation, and the places of the first record and after the last one, of each chunk."""
        ends = self.starts[1:]
        ends.append(len(self.values))
        return zip(self.operations, self.starts, ends, strict=False)  # without chunks there is an end too many

    def operation_at(self, place: int) -> int:
        return self.operations[bisect_right(self.starts, place) - 1]

    def operation_of(self, value: int) -> int:
        """The first operation that has a value, or -1. It searches: for what is shown only."""
        try:
            return self.operation_at(self.values.index(value))
        except ValueError:
            return -1


@dataclass(slots=True)
class Lists:
    """The lists that transactions read of one partition.

    Nearly all of them are beginnings of the longest one; of these only the length is kept.
    """

    longest: list[int] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    own: list[list[int] | None] = field(default_factory=list)  # of a list that is no beginning of the longest one

    def add(self, operation: int, values: list[int]) -> None:
        longest = self.longest
        fits = True
        if len(values) > len(longest):
            if values[: len(longest)] == longest:
                self.longest = values
            else:
                fits = False
        elif longest[: len(values)] != values:
            fits = False
        self.operations.append(operation)
        self.lengths.append(len(values))
        self.own.append(None if fits else values)

    def values_of(self, number: int) -> list[int]:
        own = self.own[number]
        return self.longest[: self.lengths[number]] if own is None else own


@dataclass(slots=True)
class Partition:
    """All that was done with one partition, and seen of it."""

    key: str
    acknowledged: Records = field(default_factory=Records)
    unknown: Records = field(default_factory=Records)
    failed: Records = field(default_factory=Records)
    readers: dict[int, Records] = field(default_factory=dict)  # by process
    final: Records = field(default_factory=Records)
    final_uncommitted: Records = field(default_factory=Records)
    is_in_final: bool = False
    is_list: bool = False
    highest_noted: dict[int, int] = field(default_factory=dict)  # the highest value that was sent, by worker
    is_copy: bool = False  # values stand for those of a source, and are sent again after a transaction that failed
    lists: Lists = field(default_factory=Lists)
    final_lists: list[tuple[int, list[int]]] = field(default_factory=list)
    commits: list[tuple[int, int]] = field(default_factory=list)  # operation, offset
    seeks: list[tuple[int, int]] = field(default_factory=list)
    callbacks: list[tuple[int, str]] = field(default_factory=list)  # operation; assigned, revoked or lost
    watermarks: list[tuple[int, int]] = field(default_factory=list)
    lookups: list[tuple[int, int]] = field(default_factory=list)  # of committed offsets; -1 is none
    puts: list[tuple[int, str, int | None, int]] = field(default_factory=list)  # operation, row, value, offset
    scanned: dict[int, list[tuple[int, str, int | None]]] = field(default_factory=dict)  # offset, row, value; by scan

    def note(self, value: int) -> None:
        """A worker noted that it sent a value."""
        worker = value >> WORKER_BITS
        self.highest_noted[worker] = max(value, self.highest_noted.get(worker, 0))

    @property
    def sent(self) -> tuple[Records, Records, Records]:
        return self.acknowledged, self.unknown, self.failed

    def sender_of(self, value: int) -> int:
        """The operation that sent a value, or -1. It searches: for what is shown only."""
        return next((found for records in self.sent if (found := records.operation_of(value)) >= 0), -1)


class Columns:
    """All histories of a workload."""

    def __init__(self) -> None:
        self.operations = Operations()
        self.partitions: dict[str, Partition] = {}
        self.counts: Counter[str] = Counter()
        self.reads_uncommitted: list[bool] = []  # by process
        self.last_end_ns: list[int] = []  # by process
        self.has_final = False
        self.is_final_whole = True
        self.transactions: list[int] = []  # operations "txn" that are ok or unknown
        self.scans: list[int] = []  # each reads all partitions of the table
        self.final_scans: set[int] = set()
        self._highest_noted: dict[int, int] | None = None
        self.silent_histories = 0  # those without sends
        self.out_of_range: list[int] = []  # polls that were refused because of their offset

    def partition(self, key: str) -> Partition:
        found = self.partitions.get(key)
        if found is None:
            found = self.partitions[key] = Partition(key)
        return found

    def group(self, operation: int) -> str:
        return group_of(self.operations.name(operation))

    def can_be_unnoted(self, value: int) -> bool:
        """Whether a worker that was killed can have sent a value without living to note it."""
        if self._highest_noted is None:
            self._highest_noted = {}
            for partition in self.partitions.values():
                for worker, highest in () if partition.is_copy else partition.highest_noted.items():
                    self._highest_noted[worker] = max(highest, self._highest_noted.get(worker, 0))
        worker = value >> WORKER_BITS
        if worker in self._highest_noted:
            return 0 < value - self._highest_noted[worker] <= _UNNOTED_AT_MOST
        numbers = max(self._highest_noted, default=0) + self.silent_histories
        return 0 <= worker <= numbers and value - (worker << WORKER_BITS) <= _UNNOTED_AT_MOST


def read_columns(histories: Sequence[Path], progress: Callable[[str], None] | None = None) -> Columns:
    """Read all histories of a workload."""
    columns = Columns()
    rows = 0
    for path in _without_given_up_finals(histories):
        history = _History(columns, path)
        for position, row in read_rows(path):
            history.add(position, row)
            rows += 1
            if progress is not None and rows % _PROGRESS_EVERY_ROWS == 0:
                progress(f"read {rows:,} operations")
        columns.last_end_ns.append(history.last_end_ns)
        columns.silent_histories += not history.has_sent
    columns.counts["operations"] = rows
    if not columns.is_final_whole:
        columns.has_final = False
    if columns.counts["sends_acknowledged"] and not (columns.has_final or columns.final_scans):
        columns.counts["final_incomplete"] = 1
    return columns


def _without_given_up_finals(histories: Sequence[Path]) -> list[Path]:
    """A final reader that failed is started again, and reads everything: of these, the last one counts."""
    last: dict[str, Path] = {}
    for path in sorted(histories, key=lambda path: (len(path.stem), path.stem)):
        is_final = worker_of(path.stem).endswith(("-final", "-final-uncommitted"))
        last[worker_of(path.stem) if is_final else path.stem] = path
    return sorted(last.values())


class _History:
    """Puts the rows of one process into the columns."""

    def __init__(self, columns: Columns, path: Path) -> None:
        self._columns = columns
        self._operations = columns.operations
        self._process = len(columns.operations.paths)
        self._reads_uncommitted = "uncommitted" in path.stem
        self._moved: dict[str, int] = {}  # where reading goes on, of partitions whose position was moved
        self.last_end_ns = 0
        self.has_sent = False
        columns.operations.paths.append(path)
        columns.reads_uncommitted.append(self._reads_uncommitted)

    def add(self, position: int, row: list[Any]) -> None:
        f, outcome, _, end_ns, events, error = row
        columns = self._columns
        number = self._operations.add(self._process, position, row)
        self.last_end_ns = max(self.last_end_ns, end_ns)
        if f == "poll" and error.startswith("OffsetOutOfRange"):
            columns.out_of_range.append(number)
        if f == "txn":
            columns.counts[f"transactions_{_TRANSACTION_ENDS[outcome]}"] += 1
            if outcome != FAIL:
                columns.transactions.append(number)
        elif f in _FINALS:
            columns.has_final = columns.has_final or f == "final"
            columns.is_final_whole = columns.is_final_whole and outcome == OK
        for event in events:
            name = event[0]
            if name in _SENDS:
                self._send(number, outcome, event)
            elif name == "poll":
                self._poll(number, f, event)
            elif name in _MOVES:
                self._move(number, event)
            else:
                self._other(number, f, outcome, event)
        if f == "txn" and outcome != OK:
            self._forget_positions()
        if f == "table" and outcome == OK:
            columns.counts["table_scans"] += 1
            columns.scans.append(number)
            if "final" in self._operations.paths[self._process].stem:
                columns.final_scans.add(number)

    def _forget_positions(self, kept: Set[str] = frozenset()) -> None:
        """An application that gave up a transaction reads its records again; one that drops partitions is free, too."""
        for key, partition in self._columns.partitions.items():
            if self._process in partition.readers and key not in kept:
                self._moved[key] = ANYWHERE

    def _send(self, number: int, outcome: str, event: list[Any]) -> None:
        if event[0] == "send":
            _, key, values, offsets = event
        else:
            _, key, value, offset = event
            values, offsets = [value], [offset]
            self._columns.partition(key).is_list = True
        if not values:
            return
        self.has_sent = True
        partition = self._columns.partition(key)
        partition.note(max(values))
        if outcome == OK:
            partition.acknowledged.add(number, values, offsets)
        elif outcome == UNKNOWN:
            partition.unknown.add(number, values, offsets)
        else:
            partition.failed.add(number, values, offsets)
        self._columns.counts[_SEND_COUNTS[outcome]] += len(values)

    def _poll(self, number: int, f: str, event: list[Any]) -> None:
        _, key, offsets, values = event
        partition = self._columns.partition(key)
        if f == "final-uncommitted" or (f == "final" and self._reads_uncommitted):
            partition.final_uncommitted.add(number, values, offsets)
            return
        if f == "final":
            partition.is_in_final = True
            partition.final.add(number, values, offsets)
            self._columns.counts["final_records"] += len(values)
            return
        reader = partition.readers.get(self._process)
        if reader is None:
            reader = partition.readers[self._process] = Records()
            origin = self._moved.pop(key, ANYWHERE)
        else:
            origin = self._moved.pop(key, CONTINUES)
        if values:
            reader.add(number, values, offsets, origin)
            self._columns.counts["records_polled"] += len(values)

    def _move(self, number: int, event: list[Any]) -> None:
        name, where = event[0], event[1]
        if name == "seek":
            self._moved[where] = event[2]
            self._columns.partition(where).seeks.append((number, event[2]))
            return
        if name == "assign":
            self._forget_positions(set(where))
            return
        for key in where:
            self._moved[key] = ANYWHERE
            self._columns.partition(key).callbacks.append((number, name))
        self._columns.counts["rebalances"] += 1

    def _other(self, number: int, f: str, outcome: str, event: list[Any]) -> None:
        name, key = event[0], event[1]
        columns = self._columns
        partition = columns.partition(key)
        if name == "commit":
            partition.commits.append((number, event[2]))
            columns.counts["commits"] += outcome == OK
        elif name == "list":
            if f in _FINALS:
                partition.is_in_final = True
                partition.final_lists.append((number, event[2]))
            else:
                partition.lists.add(number, event[2])
                columns.counts["lists"] += 1
        elif name == "put":
            self.has_sent = True
            if event[3] is not None:
                partition.note(event[3])
            partition.puts.append((number, event[2], event[3], -1 if event[4] is None else event[4]))
            columns.counts[_SEND_COUNTS[outcome]] += 1
        elif name == "row":
            partition.scanned.setdefault(number, []).append((event[2], event[3], event[4]))
            columns.counts["table_records"] += 1
        elif outcome == OK and name == "high_watermark":
            partition.watermarks.append((number, event[2]))
            columns.counts["lookups"] += 1
        elif outcome == OK:
            partition.lookups.append((number, -1 if event[2] is None else event[2]))
            columns.counts["lookups"] += 1


_SENDS: Final = frozenset({"send", "append"})
_MOVES: Final = frozenset({"assigned", "revoked", "lost", "assign", "seek"})
_FINALS: Final = frozenset({"final", "final-uncommitted"})
_TRANSACTION_ENDS: Final = {OK: "committed", FAIL: "aborted", UNKNOWN: "unknown"}
_SEND_COUNTS: Final = {OK: "sends_acknowledged", FAIL: "sends_failed", UNKNOWN: "sends_unknown"}
