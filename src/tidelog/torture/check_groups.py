"""Consumer groups and what clients look up: owners of partitions, committed offsets and high watermarks.

What members believe is known from their callbacks, what the coordinator accepted from commits that succeeded. A member
that was killed or cut off keeps a belief that is out of date, which does no harm; so beliefs alone prove nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidelog.torture.anomalies import Findings
from tidelog.torture.check_columns import ANYWHERE, Columns, Operations, Partition
from tidelog.torture.check_log import Log
from tidelog.torture.check_time import below_what_was_known

_NEVER: Final = 2**63 - 1


@dataclass(slots=True)
class Tenure:
    """A time in which a member held a partition, as far as it knew."""

    process: int
    assigned: int  # the operation of the callback
    ended: int  # of the callback that ended it; -1 if none did
    start_ns: int
    end_ns: int


class GroupCheck:
    """All checks of one partition's owners, committed offsets and watermarks."""

    def __init__(self, columns: Columns, partition: Partition, log: Log, findings: Findings) -> None:
        self._columns = columns
        self._operations = columns.operations
        self._partition = partition
        self._key = partition.key
        self._log = log
        self._findings = findings
        self._tenures = list(_tenures(columns.operations, partition.callbacks))

    def run(self) -> None:
        self._check_watermarks()
        committed: dict[str, list[tuple[int, int]]] = {}
        for operation, offset in self._partition.commits:
            if self._operations.is_ok(operation):
                committed.setdefault(self._columns.group(operation), []).append((operation, offset))
        tenures: dict[str, list[Tenure]] = {}
        for tenure in self._tenures:
            tenures.setdefault(self._columns.group(tenure.assigned), []).append(tenure)
        for group, commits in committed.items():
            self._check_commits(commits)
            self._check_owners(tenures.get(group, []), commits)
        # Of several groups nobody says which one a lookup was about.
        self._check_lookups(next(iter(committed.values())) if len(committed) == 1 else [])
        for group, held in tenures.items():
            self._check_starts(held, committed.get(group, []))

    # Watermarks

    def _check_watermarks(self) -> None:
        if not self._partition.watermarks:
            return
        seen = (self._partition.acknowledged, *self._partition.readers.values())
        known = [
            (operation, max(records.offsets[first:last]) + 1)
            for records in seen
            for operation, first, last in records.chunks()
            if first < last
        ]
        known += self._partition.watermarks
        watermarks = self._partition.watermarks
        for witness, known_end, lookup, found in below_what_was_known(self._operations, known, watermarks):
            text = (
                f"{self._operations.name(lookup)} looked up a high watermark of {found}; before,"
                f" {self._operations.name(witness)} had been told of {known_end}"
            )
            self._findings.add("watermark-went-back", self._key, text, (witness, lookup), (known_end - 1, found))

    # Commits

    def _check_commits(self, commits: list[tuple[int, int]]) -> None:
        for witness, earlier, operation, later in below_what_was_known(self._operations, commits, commits):
            text = (
                f"{self._operations.name(operation)} committed {later} after {self._operations.name(witness)} had"
                f" committed {earlier}"
            )
            self._findings.add("commit-went-back", self._key, text, (witness, operation), (earlier, later))

    def _check_lookups(self, commits: list[tuple[int, int]]) -> None:
        lookups: dict[str, list[tuple[int, int]]] = {}
        for operation, offset in self._partition.lookups:
            lookups.setdefault(self._columns.group(operation), []).append((operation, offset))
        for found in lookups.values():
            for witness, known, lookup, shown in below_what_was_known(self._operations, [*commits, *found], found):
                text = (
                    f"{self._operations.name(lookup)} was told that {shown if shown >= 0 else 'no offset'} is"
                    f" committed; before, {self._operations.name(witness)} had been told of {known}"
                )
                self._findings.add("commit-went-back", self._key, text, (witness, lookup), (known, shown))

    def _check_starts(self, tenures: list[Tenure], commits: list[tuple[int, int]]) -> None:
        """A new owner goes on where the group is: neither below nor beyond what was committed."""
        firsts = [(tenure, *found) for tenure in tenures if (found := self._first_poll(tenure))]
        by_callback = {tenure.assigned: (operation, offset) for tenure, operation, offset in firsts}
        starts = [(tenure.assigned, offset) for tenure, _, offset in firsts]
        for witness, committed, callback, _ in below_what_was_known(self._operations, commits, starts):
            operation, offset = by_callback[callback]
            text = (
                f"{self._operations.name(operation)} was assigned the partition and began at {offset}; before,"
                f" {self._operations.name(witness)} had committed {committed}"
            )
            self._findings.add("commit-went-back", self._key, text, (witness, callback, operation), (committed, offset))
        if len(self._log) and self._partition.commits:
            for tenure, operation, offset in firsts:
                self._check_start_not_beyond(tenure, operation, offset)

    def _first_poll(self, tenure: Tenure) -> tuple[int, int] | None:
        """The operation and the offset with which a new owner began, if nothing but the group chose it."""
        records = self._partition.readers.get(tenure.process)
        if records is None:
            return None
        number = bisect_right(records.operations, tenure.assigned)
        if number == len(records.operations) or records.origins[number] != ANYWHERE:
            return None
        operation = records.operations[number]
        if 0 <= tenure.ended < operation:
            return None
        return operation, records.offsets[records.starts[number]]

    def _check_start_not_beyond(self, tenure: Tenure, operation: int, offset: int) -> None:
        poll_end_ns = self._operations.end_ns[operation]
        start_ns = self._operations.start_ns
        possible = [
            (committed, by)
            for by, committed in self._partition.commits
            if start_ns[by] < poll_end_ns and not self._operations.has_failed(by) and by != operation
        ]
        if not possible:
            return
        bound, witness = max(possible)
        for other in self._tenures:
            # It may have committed all that it had read, and not lived to note it.
            if other.ended < 0 and self._columns.last_end_ns[other.process] < poll_end_ns:
                records = self._partition.readers.get(other.process)
                if records is not None and len(records):
                    bound = max(bound, max(records.offsets) + 1)
        first, last = self._log.first_place_from(bound), self._log.first_place_from(offset)
        if first < last:
            text = (
                f"{self._operations.name(operation)} was assigned the partition and began at {offset}, though at most"
                f" {bound} can have been committed: it skipped {last - first} records"
            )
            self._findings.add("skipped-poll", self._key, text, (witness, tenure.assigned, operation), (bound, offset))

    # Owners

    def _check_owners(self, tenures: list[Tenure], commits: list[tuple[int, int]]) -> None:
        """Nobody else's commit may succeed between the moment a member got a partition and a commit of its own."""
        start_ns, end_ns = self._operations.start_ns, self._operations.end_ns
        by_start = sorted(operation for operation, _ in commits)
        by_start.sort(key=start_ns.__getitem__)
        starts = [start_ns[operation] for operation in by_start]
        held_during: dict[int, Tenure] = {}
        for tenure in tenures:
            first = bisect_left(starts, tenure.start_ns)
            for operation in by_start[first : bisect_right(starts, tenure.end_ns)]:
                if self._operations.process(operation) == tenure.process and end_ns[operation] <= tenure.end_ns:
                    held_during[operation] = tenure
        last_commit: dict[int, int] = {}
        for operation in by_start:
            if operation in held_during:
                last_commit[held_during[operation].assigned] = operation
        for tenure in tenures:
            last = last_commit.get(tenure.assigned)
            if last is None:
                continue
            first = bisect_right(starts, tenure.start_ns)
            for operation in by_start[first : bisect_left(starts, start_ns[last])]:
                other = held_during.get(operation)
                if other is None or other.process == tenure.process or end_ns[operation] >= start_ns[last]:
                    continue
                text = (
                    f"{self._operations.name(last)} held the partition from before until after"
                    f" {self._operations.name(operation)} held it, too, and the commits of both succeeded"
                )
                shown = (tenure.assigned, other.assigned, operation, last)
                self._findings.add("two-owners", self._key, text, shown)


def _tenures(operations: Operations, callbacks: list[tuple[int, str]]) -> Iterator[Tenure]:
    """All times in which members held a partition, by their callbacks."""
    open_tenures: dict[int, Tenure] = {}
    for operation, name in callbacks:
        process, at_ns = operations.process(operation), operations.start_ns[operation]
        tenure = open_tenures.pop(process, None)
        if tenure is not None:
            tenure.ended, tenure.end_ns = operation, at_ns
            yield tenure
        if name == "assigned":
            open_tenures[process] = Tenure(process, operation, -1, at_ns, _NEVER)
    yield from open_tenures.values()


def check_out_of_range(columns: Columns, findings: Findings) -> None:
    """Nothing is deleted in a run, so an offset that was read stays in range."""
    for operation in columns.out_of_range:
        text = f"{columns.operations.name(operation)} was refused an offset that it had come to by reading"
        findings.add("watermark-went-back", "(unknown)", text, (operation,))
