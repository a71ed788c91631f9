"""Transactions: all or nothing, each record consumed once, and no cycles between what they wrote and read.

Two kinds of transactions are judged differently. Those that append to lists run one after the other, fenced by one
transactional id: their order in one partition has to agree with that in all others, and with what they read. Those that
send records run at the same time, and Kafka orders their records as they are appended; so only reads order them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tidelog.torture.anomalies import Findings
from tidelog.torture.check_columns import Columns, Partition, Records
from tidelog.torture.check_cycles import Graph, knots, shortest_cycle
from tidelog.torture.check_log import Log


@dataclass(slots=True)
class Writers:
    """Which transactions wrote to a partition, in the order of the log; of those in the log only."""

    places: list[int] = field(default_factory=list)  # where a run of records of one transaction begins
    operations: list[int] = field(default_factory=list)

    def up_to(self, place: int) -> int:
        """The number of the last run that begins at or before a place; -1 if none does."""
        return bisect_right(self.places, place) - 1


class TransactionCheck:
    """All checks of the transactions of a workload."""

    def __init__(self, columns: Columns, logs: Mapping[str, Log], findings: Findings) -> None:
        self._columns = columns
        self._operations = columns.operations
        self._logs = logs
        self._findings = findings
        self._writers: dict[str, Writers] = {}
        self._counted: dict[int, tuple[str, int]] = {}  # of unknown outcome, but in the log, with one of their records
        self._steps: dict[int, tuple[str, int]] = {}  # what a node below 0 stands for

    def run(self) -> None:
        if not self._columns.transactions or not self._columns.has_final:
            return
        self._check_wholeness()
        for key, partition in self._columns.partitions.items():
            self._writers[key] = self._writers_of(partition, self._logs[key])
            if partition.commits and partition.readers:
                self._check_consumed_once(partition)
            if partition.lists.operations:
                self._check_lists(partition, self._logs[key])
            self._logs[key].forget_indexes()
        self._check_cycles()

    def _name(self, operation: int) -> str:
        return self._operations.name(operation)

    # All or nothing

    def _check_wholeness(self) -> None:
        """A transaction of unknown outcome is in the log as a whole, or not at all."""
        present: dict[int, tuple[str, int]] = {}
        absent: dict[int, tuple[str, int]] = {}
        for key, partition in self._columns.partitions.items():
            sent = partition.unknown
            if partition.is_copy or not sent.values:
                continue
            offset_of = self._logs[key].offset_of
            self._logs[key].forget_indexes()
            for operation, first, last in sent.chunks():
                if self._operations.is_transaction(operation):
                    for value in sent.values[first:last]:
                        (present if value in offset_of else absent).setdefault(operation, (key, value))
        for operation in present.keys() & absent.keys():
            (there, here), (elsewhere, lacking) = present[operation], absent[operation]
            text = (
                f"a transaction of {self._name(operation)} counts in part: {here} is in the log of {there},"
                f" {lacking} is not in that of {elsewhere}"
            )
            self._findings.add("aborted-read", elsewhere, text, (operation,), (here, lacking))
        self._columns.counts["transactions_unknown_found"] = len(present)
        self._counted = present

    # Consumption

    def _counts(self, operation: int) -> bool:
        """Whether a transaction is known to have been committed."""
        return self._operations.is_ok(operation) or operation in self._counted

    def _check_consumed_once(self, partition: Partition) -> None:
        """No record was read in two transactions that committed its offset for one group."""
        committing = {operation for operation, _ in partition.commits if self._operations.is_transaction(operation)}
        by_group: dict[str, list[tuple[int, int, int]]] = {}
        for records in partition.readers.values():
            for operation, first, last in records.chunks():
                if operation in committing and self._counts(operation):
                    span = min(records.offsets[first:last]), max(records.offsets[first:last]), operation
                    by_group.setdefault(self._columns.group(operation), []).append(span)
        for group, spans in by_group.items():
            spans.sort()
            for (_, highest, earlier), (lowest, _, later) in pairwise(spans):
                if lowest <= highest:
                    text = f"two committed transactions of {group} consumed offset {lowest}"
                    self._findings.add("copy-duplicate", partition.key, text, (earlier, later), (lowest, highest))

    # Lists

    def _check_lists(self, partition: Partition, log: Log) -> None:
        """Each list that was read is a beginning of the final one, and no intermediate state of a transaction."""
        final = list(log.values)
        writer = {value: op for records in partition.sent for op, value in _values(records)}
        lists = partition.lists
        for number, operation in enumerate(lists.operations):
            values, length = lists.values_of(number), lists.lengths[number]
            if values != final[:length]:
                self._judge_list(partition, operation, values, final)
            elif 0 < length < len(final):
                self._check_intermediate(log, writer, operation, length)

    def _judge_list(self, partition: Partition, operation: int, values: list[int], final: list[int]) -> None:
        failed = partition.failed.values
        aborted = next((value for value in values if value in failed), None)
        key, name = partition.key, self._name(operation)
        if aborted is not None:
            shown = (partition.failed.operation_of(aborted), operation)
            text = f"{name} read {aborted}, whose transaction was aborted"
            self._findings.add("G1a", key, text, shown, (aborted,))
            return
        place = next((p for p, (a, b) in enumerate(zip(values, final, strict=False)) if a != b), len(final))
        value = values[place]
        shown = (operation, partition.sender_of(value))
        if value in values[:place]:
            kind, text = "duplicate", f"{name} read {value} twice in one list"
        elif value not in final:
            kind, text = "lost-write", f"{name} read {value}, which is not in the final list"
            if partition.sender_of(value) < 0 and not self._columns.can_be_unnoted(value):
                kind, text = "phantom", f"{name} read {value}, which nobody appended"
        elif set(values).issuperset(final[: final.index(value)]):
            kind, text = "reordered-poll", f"{name} read {value} before {final[place]}, the final list has it after"
        else:
            kind, text = "skipped-poll", f"{name} read {value} without {final[place]}, which is before it"
        self._findings.add(kind, key, text, shown, (value, *final[place : place + 1]))

    def _check_intermediate(self, log: Log, writer: Mapping[int, int], operation: int, length: int) -> None:
        seen, unseen = log.values[length - 1], log.values[length]
        by = writer.get(seen)
        if by is None or by != writer.get(unseen) or log.offsets[length] != log.offsets[length - 1] + 1:
            return
        text = f"{self._name(operation)} read {seen} without {unseen}, which the same transaction appended next"
        self._findings.add("G1b", log.key, text, (by, operation), (seen, unseen))

    # Cycles

    def _writers_of(self, partition: Partition, log: Log) -> Writers:
        runs: list[tuple[int, int]] = []
        for records in (partition.acknowledged, *(() if partition.is_copy else (partition.unknown,))):
            for operation, first, last in records.chunks():
                if not self._operations.is_transaction(operation):
                    continue
                place = log.place(records, first, last)
                if place >= 0:
                    runs.append((place, operation))
                    continue
                offsets = (log.offset_of.get(value, -1) for value in records.values[first:last])
                runs += ((log.first_place_from(offset), operation) for offset in offsets if offset >= 0)
        runs.sort()
        writers = Writers()
        for place, operation in runs:
            if not writers.operations or writers.operations[-1] != operation:
                writers.places.append(place)
                writers.operations.append(operation)
        return writers

    def _reads(self, partition: Partition, log: Log) -> Iterator[tuple[int, int]]:
        """Each transaction that read from the partition and counts, with the furthest place it saw."""
        for process, records in partition.readers.items():
            if not self._columns.reads_uncommitted[process]:
                for operation, first, last in records.chunks():
                    if self._operations.is_transaction(operation) and self._counts(operation):
                        yield operation, log.first_place_from(max(records.offsets[first:last]) + 1) - 1
        lists = partition.lists
        agreed = next((p for p, (a, b) in enumerate(zip(lists.longest, log.values, strict=False)) if a != b), len(log))
        for number, operation in enumerate(lists.operations):
            # A list that isn't a beginning of the log has been named already, and says nothing about places in it.
            if lists.own[number] is None and 0 < lists.lengths[number] <= agreed and self._counts(operation):
                yield operation, lists.lengths[number] - 1

    def _check_cycles(self) -> None:
        """Look for cycles of writes alone, and of writes and reads."""
        appends: dict[int, list[int]] = {}
        sends: dict[int, list[int]] = {}
        reads: dict[int, list[int]] = {}
        for key, writers in self._writers.items():
            writes = appends if self._columns.partitions[key].is_list else sends
            for earlier, later in pairwise(writers.operations):
                writes.setdefault(earlier, []).append(later)
            self._add_reads(reads, key, writers)
        for _ in knots(sends):
            self._columns.counts["write_cycles_allowed"] += 1
        in_writes = set()
        for knot in knots(appends):
            in_writes.update(knot)
            self._add_cycle("G0", appends, knot)
        both = {node: [*appends.get(node, ()), *reads.get(node, ())] for node in appends.keys() | reads.keys()}
        for knot in knots(both):
            if not in_writes.issuperset(node for node in knot if node >= 0):
                self._add_cycle("G1c", both, knot)

    def _add_reads(self, reads: dict[int, list[int]], key: str, writers: Writers) -> None:
        """Who read up to some place read what all transactions up to there had decided.

        A node below 0 stands for "everything up to this run of the log is decided", so that edges stay few.
        """
        if not writers.operations:
            return
        base = -1 - len(self._steps)
        for number, operation in enumerate(writers.operations):
            node = base - number
            self._steps[node] = key, writers.places[number]
            reads.setdefault(operation, []).append(node)
            if number:
                reads.setdefault(node + 1, []).append(node)
        for operation, place in self._reads(self._columns.partitions[key], self._logs[key]):
            number = writers.up_to(place)
            if number >= 0:
                reads.setdefault(base - number, []).append(operation)

    def _add_cycle(self, kind: str, graph: Graph, knot: list[int]) -> None:
        start = min(node for node in knot if node >= 0)
        cycle = shortest_cycle(graph, knot, start)
        steps = []
        transactions = [node for node in cycle if node >= 0]
        key = ""
        for node, following in zip(cycle, [*cycle[1:], start], strict=True):
            if node < 0 <= following:
                key, place = self._steps[node]
                log = self._logs[key]
                steps.append(f"{self._label(following)} read up to offset {log.offsets[place]} of {key} or further")
            elif node >= 0 > following:
                key, place = self._steps[following]
                log = self._logs[key]
                steps.append(f"{self._label(node)} wrote {log.values[place]} at offset {log.offsets[place]} of {key}")
            elif node >= 0:
                key = self._key_of(node, following) or key
                steps.append(f"{self._label(node)} wrote to {key} before {self._label(following)}")
        values = {self._logs[k].values[p] for n in cycle if n < 0 for k, p in (self._steps[n],)}
        self._findings.add(kind, key, "; ".join(steps), transactions, values)

    def _label(self, operation: int) -> str:
        return f"{self._name(operation)} (at {self._operations.start_ns[operation] / 1e9:.3f} s)"

    def _key_of(self, earlier: int, later: int) -> str:
        """A partition in which one transaction wrote right after the other. It searches: for what is shown only."""
        for key, writers in self._writers.items():
            if (earlier, later) in pairwise(writers.operations):
                return key
        return ""


def _values(records: Records) -> Iterator[tuple[int, int]]:
    for operation, first, last in records.chunks():
        for value in records.values[first:last]:
            yield operation, value
