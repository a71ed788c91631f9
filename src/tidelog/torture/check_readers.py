"""What each reader got of a partition, beside the log: in order, without a gap, and to its end.

A reader's position is known from one poll to the next, unless something may have moved it in between (`check_columns`
says what). Several readers together should have got everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tidelog.torture.anomalies import Findings
from tidelog.torture.check_columns import (
    ANYWHERE,
    CONTINUES,
    Columns,
    Partition,
    Records,
    group_of,
    topic_of,
    worker_of,
)
from tidelog.torture.check_log import Log


@dataclass(slots=True)
class Family:
    """Readers that share their work: members of groups, or a poller and those that were started in its place."""

    name: str
    seen: bytearray  # for each record of the log, whether one of them got it
    reach: int = 0  # the place in the log after the furthest record that one of them got
    furthest: int = -1  # the poll that got it
    processes: list[int] = field(default_factory=list)


class ReaderCheck:
    """All checks of one partition's readers."""

    def __init__(self, columns: Columns, partition: Partition, log: Log, findings: Findings) -> None:
        self._columns = columns
        self._operations = columns.operations
        self._partition = partition
        self._key = partition.key
        self._log = log
        self._findings = findings

    def run(self) -> None:
        members = {self._operations.process(operation) for operation, _ in self._partition.callbacks}
        families: dict[str, Family] = {}
        for process, records in self._partition.readers.items():
            stem = self._operations.paths[process].stem
            name = f"the group {group_of(stem)}" if process in members else worker_of(stem)
            family = families.get(name)
            if family is None:
                family = families[name] = Family(name, bytearray(len(self._log)))
            family.processes.append(process)
            self._check_reader(records, family)
        if self._columns.has_final:
            for family in families.values():
                if any(len(self._partition.readers[process]) for process in family.processes):
                    self._check_gaps(family)
                    self._check_end(family)
            uncommitted = self._partition.final_uncommitted
            if len(uncommitted) and uncommitted.offsets != self._log.offsets:
                self._check_reader(uncommitted, Family("the final read", bytearray(len(self._log))))

    # One reader

    def _check_reader(self, records: Records, family: Family) -> None:
        """Go through what one reader got, poll by poll."""
        log, offsets, origins = self._log, records.offsets, records.origins
        position = -1  # the offset after the last record; -1 if it isn't known
        for number, (operation, first, last) in enumerate(records.chunks()):
            origin = origins[number]
            if origin != CONTINUES:
                position = -1 if origin == ANYWHERE else origin
            if position >= 0 and offsets[first] != position:
                self._check_step(operation, position, offsets[first])
            # What a transaction that doesn't count has read, somebody must read again.
            counts = not self._operations.has_failed(operation)
            place = log.place(records, first, last)
            if place >= 0:
                end = place + last - first
                if counts:
                    family.seen[place:end] = b"\x01" * (last - first)
            else:
                self._check_singly(records, operation, first, last, family.seen if counts else bytearray(len(log)))
                end = log.first_place_from(offsets[last - 1] + 1)
            position = offsets[last - 1] + 1
            if counts and (end > family.reach or family.furthest < 0):
                family.reach, family.furthest = end, operation

    def _check_singly(self, records: Records, operation: int, first: int, last: int, seen: bytearray) -> None:
        """Go through a poll that isn't just a part of the log."""
        value_at = self._log.value_at
        for place in range(first, last):
            offset = records.offsets[place]
            if place > first and offset != records.offsets[place - 1] + 1:
                self._check_step(operation, records.offsets[place - 1] + 1, offset)
            if value_at.get(offset) == records.values[place]:
                seen[self._log.first_place_from(offset)] = 1

    def _check_step(self, operation: int, position: int, offset: int) -> None:
        """A reader at a position got another offset next."""
        if offset < position:
            text = f"{self._operations.name(operation)} got offset {offset} when its position was {position}"
            self._findings.add("reordered-poll", self._key, text, (operation,), (offset, position - 1))
            return
        log = self._log
        first, last = log.first_place_from(position), log.first_place_from(offset)
        if first < last:
            text = (
                f"{self._operations.name(operation)} got offset {offset} when its position was {position}: it skipped"
                f" {last - first} records, first {log.values[first]} at offset {log.offsets[first]}"
            )
            self._findings.add(
                "skipped-poll",
                self._key,
                text,
                lambda: (operation, self._partition.sender_of(log.values[first])),
                (offset, log.values[first]),
            )

    # All readers of a family

    def _check_gaps(self, family: Family) -> None:
        """Records below the furthest one that nobody of the family ever got."""
        log = self._log
        for first, last in _gaps(family.seen, family.reach):
            if not self._findings.wants("unseen", self._key):
                self._findings.add("unseen", self._key, "")
                continue
            reader = self._reader_of(log.offsets[last], family)
            text = (
                f"{last - first} records from offset {log.offsets[first]} (value {log.values[first]}) were never got by"
                f" {family.name}, which read on"
            )
            self._findings.add(
                "unseen",
                self._key,
                text,
                lambda first=first, reader=reader: (self._partition.sender_of(log.values[first]), reader),  # type: ignore[misc]
                (log.values[first], log.offsets[last]),
            )

    def _reader_of(self, offset: int, family: Family) -> int:
        """The first poll of the family that got an offset. It searches: for what is shown only."""
        found = []
        for process in family.processes:
            records = self._partition.readers[process]
            if offset in records.offsets:
                found.append(records.operation_at(records.offsets.index(offset)))
        return min(found, key=lambda operation: self._operations.start_ns[operation], default=-1)

    def _check_end(self, family: Family) -> None:
        """The run waited for its readers, so they have to have got to the end."""
        log = self._log
        if family.reach >= len(log):
            return
        reached = f"after offset {log.offsets[family.reach - 1]}" if family.reach else "at the beginning"
        text = (
            f"{family.name} stopped {reached}; the log goes on with {len(log) - family.reach} records,"
            f" up to offset {log.offsets[-1]}"
        )
        self._findings.add("stuck-consumer", self._key, text, (family.furthest,))


def _gaps(seen: bytearray, end: int) -> Iterator[tuple[int, int]]:
    """The places from and to which nothing was seen, before the end."""
    first = seen.find(0, 0, end)
    while first >= 0:
        last = seen.find(1, first, end)
        if last < 0:
            return
        yield first, last
        first = seen.find(0, last, end)


def check_unread(columns: Columns, logs: Mapping[str, Log], findings: Findings) -> None:
    """Groups read all partitions of their topics, so each partition with records needs a reader."""
    if not columns.has_final:
        return
    with_groups = {topic_of(key) for key, partition in columns.partitions.items() if partition.callbacks}
    for key, log in logs.items():
        if len(log) and topic_of(key) in with_groups and not columns.partitions[key].readers:
            text = f"no member of a group ever got any of its {len(log)} records"
            findings.add("stuck-consumer", key, text, [operation for operation, _ in columns.partitions[key].callbacks])
