"""Compacted tables: what scans show of each row, beside the puts that were acknowledged before they started."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from tidelog.torture.anomalies import Findings
from tidelog.torture.check_columns import Columns, Partition


@dataclass(slots=True)
class Put:
    """One record of a row: where it is, if anybody knows, and who wrote it."""

    operation: int
    value: int | None
    offset: int


@dataclass(slots=True)
class Row:
    """All records of one row that may be there, and what is known of it as time goes by."""

    puts: list[Put] = field(default_factory=list)
    newest: Put | None = None  # of those that somebody was told of
    # The offsets of puts, ascending; for each, when the first of those from there on started. Unknown ones are last.
    offsets: list[int] = field(default_factory=list)
    first_start_ns: list[int] = field(default_factory=list)


class TableCheck:
    """All checks of one partition of a compacted table."""

    def __init__(self, columns: Columns, partition: Partition, findings: Findings) -> None:
        self._columns = columns
        self._operations = columns.operations
        self._partition = partition
        self._key = partition.key
        self._findings = findings
        self._rows: dict[str, Row] = {}
        self._put_at: dict[int, Put] = {}

    def run(self) -> None:
        if not self._partition.puts and not self._partition.scanned:
            return
        seen_at = self._check_records()
        self._collect_rows(seen_at)
        self._check_states()

    # Records

    def _check_records(self) -> dict[tuple[str, int | None], int]:
        """Each record of a scan is one that was put, where it was put; returns where each was seen."""
        put = {(row, value): op for op, row, value, _ in self._partition.puts}
        told = {offset: (row, value, op) for op, row, value, offset in self._partition.puts if offset >= 0}
        seen_at: dict[tuple[str, int | None], int] = {}
        strange: set[int] = set()
        for scan, records in self._partition.scanned.items():
            previous = -1
            for offset, row, value in records:
                if offset <= previous:
                    text = f"{self._name(scan)} got offset {offset} after {previous}"
                    self._findings.add("reordered-poll", self._key, text, (scan,), (offset, previous))
                previous = offset
                known = told.get(offset)
                if known is None:
                    told[offset] = row, value, scan
                    if (row, value) not in put:
                        strange.add(offset)
                elif known[:2] != (row, value):
                    text = f"offset {offset} has been seen with {known[0]}={known[1]} and with {row}={value}"
                    self._findings.add("inconsistent-offset", self._key, text, (known[2], scan), (offset,))
                    continue
                if value is not None:
                    self._check_value(scan, put.get((row, value), -1), offset, row, value, seen_at)
        for offset in sorted(strange):
            row, value, scan = told[offset]
            if value is None or self._columns.can_be_unnoted(value):
                self._columns.counts["sends_unnoted"] += 1
            else:
                text = f"{row}={value} is in the table at offset {offset}, and nobody put it there"
                self._findings.add("phantom", self._key, text, (scan,), (offset,))
        return seen_at

    def _check_value(
        self, scan: int, put: int, offset: int, row: str, value: int, seen_at: dict[tuple[str, int | None], int]
    ) -> None:
        if put >= 0 and self._operations.has_failed(put):
            text = f"{self._name(scan)} read {row}={value} at offset {offset}, though it certainly wasn't put"
            self._findings.add("aborted-read", self._key, text, (put, scan), (offset, value))
        elsewhere = seen_at.setdefault((row, value), offset)
        if elsewhere != offset:
            text = f"{row}={value} has been seen at offsets {elsewhere} and {offset}"
            self._findings.add("duplicate", self._key, text, (put, scan), (elsewhere, offset, value))

    def _name(self, operation: int) -> str:
        return self._operations.name(operation)

    # Rows

    def _collect_rows(self, seen_at: dict[tuple[str, int | None], int]) -> None:
        for operation, row, value, told in self._partition.puts:
            if self._operations.has_failed(operation):
                continue
            offset = told if told >= 0 or value is None else seen_at.get((row, value), -1)
            put = Put(operation, value, offset)
            self._rows.setdefault(row, Row()).puts.append(put)
            if offset >= 0:
                self._put_at[offset] = put
        never = 2**63 - 1
        for state in self._rows.values():
            # A put whose offset nobody knows may be anywhere.
            ordered = sorted(state.puts, key=lambda put: put.offset if put.offset >= 0 else never)
            start = never
            for put in reversed(ordered):
                start = min(start, self._operations.start_ns[put.operation])
                state.offsets.append(put.offset if put.offset >= 0 else never)
                state.first_start_ns.append(start)
            state.offsets.reverse()
            state.first_start_ns.reverse()

    def _check_states(self) -> None:
        """Go through puts and scans in the order of time; a scan is held against what was known when it started."""
        start_ns, end_ns = self._operations.start_ns, self._operations.end_ns
        moments: list[tuple[int, int, int, str, int]] = []  # time, rank, operation, row, offset
        for operation, row, _, offset in self._partition.puts:
            if offset >= 0 and self._operations.is_ok(operation):
                moments.append((end_ns[operation], 1, operation, row, offset))
        for scan in self._columns.scans:
            moments.append((start_ns[scan], 0, scan, "", 0))
            moments.append((end_ns[scan], 2, scan, "", 0))
        moments.sort()
        for _, rank, operation, row, offset in moments:
            if rank == 1:
                self._raise(row, self._put_at[offset])
            elif rank == 0:
                self._judge(operation)
            else:
                for offset, row, _ in self._partition.scanned.get(operation, ()):
                    put = self._put_at.get(offset)
                    if put is not None and row in self._rows:
                        self._raise(row, put)

    def _raise(self, row: str, put: Put) -> None:
        state = self._rows[row]
        if state.newest is None or state.newest.offset < put.offset:
            state.newest = put

    def _judge(self, scan: int) -> None:
        """Hold the state of each row in a scan against the newest put that was known before."""
        shown: dict[str, int] = {}
        for offset, row, _ in self._partition.scanned.get(scan, ()):
            shown[row] = max(offset, shown.get(row, -1))
        is_final = scan in self._columns.final_scans
        for row, state in self._rows.items():
            newest = state.newest
            found = shown.get(row, -1)
            if newest is None or found >= newest.offset or (found < 0 and newest.value is None):
                continue
            if self._may_be_deleted(state, newest, found) if is_final else self._may_be_replaced(state, newest, scan):
                continue
            kind = "lost-update-of-table" if is_final or found < 0 else "stale-table"
            instead = f"has it as of offset {found}" if found >= 0 else "has no record of it"
            text = f"{row} was set to {newest.value} at offset {newest.offset}; {self._name(scan)} {instead}"
            witness = self._put_at[found].operation if found in self._put_at else -1
            self._findings.add(kind, self._key, text, (newest.operation, scan, witness), (newest.offset, found))

    def _may_be_replaced(self, state: Row, newest: Put, scan: int) -> bool:
        """Whether a later put had started before the scan ended: compaction may then hide the newest known one."""
        later = bisect_right(state.offsets, newest.offset)
        return later < len(state.offsets) and state.first_start_ns[later] < self._operations.end_ns[scan]

    def _may_be_deleted(self, state: Row, newest: Put, found: int) -> bool:
        """Whether a tombstone explains, once nobody writes any more, that a row isn't there.

        Any other later put would be there itself, and an older record goes before a tombstone does.
        """
        return found < 0 and any(
            put.value is None and (put.offset < 0 or put.offset > newest.offset) for put in state.puts
        )
