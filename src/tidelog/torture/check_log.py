"""The log of each partition beside what was sent to it: lost, doubled, moved, invented and misplaced records.

The log is what the final read shows. Nearly all records are compared in bulk, a burst or a poll at a time; only those
that don't stand in the log just as a client saw them are looked at one by one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, pairwise
from operator import lt

from tidelog.torture.anomalies import Findings
from tidelog.torture.check_columns import Columns, Partition, Records
from tidelog.torture.check_time import below_what_was_known


class Log:
    """The committed records of a partition, in the order of their offsets."""

    def __init__(self, key: str, offsets: array[int], values: array[int]) -> None:
        self.key = key
        self.offsets = offsets
        self.values = values
        self._offset_of: dict[int, int] | None = None
        self._value_at: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.offsets[-1] + 1 if self.offsets else 0

    @property
    def offset_of(self) -> dict[int, int]:
        """The offset of each value; of a value that is there twice, the last one."""
        if self._offset_of is None:
            self._offset_of = dict(zip(self.values, self.offsets, strict=True))
        return self._offset_of

    @property
    def value_at(self) -> dict[int, int]:
        if self._value_at is None:
            self._value_at = dict(zip(self.offsets, self.values, strict=True))
        return self._value_at

    def forget_indexes(self) -> None:
        """Give the memory of the two dictionaries back; they are made anew when they are needed."""
        self._offset_of = self._value_at = None

    def place(self, records: Records, first: int, last: int) -> int:
        """Where these records stand in the log one after another, just so; -1 if they don't."""
        place = bisect_left(self.offsets, records.offsets[first])
        end = place + last - first
        if (
            self.offsets[place:end] == records.offsets[first:last]
            and self.values[place:end] == records.values[first:last]
        ):
            return place
        return -1

    def first_place_from(self, offset: int) -> int:
        return bisect_left(self.offsets, offset)


def final_log(partition: Partition, findings: Findings) -> Log:
    """The log as the final read shows it; complains if that read contradicts itself."""
    offsets, values = partition.final.offsets, partition.final.values
    if not offsets and partition.final_lists:
        return _log_of_lists(partition)
    if _ascend(offsets):
        return Log(partition.key, offsets, values)
    kept: dict[int, int] = {}
    previous = -1
    for place, (offset, value) in enumerate(zip(offsets, values, strict=True)):
        known = kept.setdefault(offset, value)
        at = partition.final.operation_at(place)
        if known != value:
            text = f"the final read shows {known} and {value} at offset {offset}"
            findings.add("inconsistent-offset", partition.key, text, (at,), (offset, known, value))
        elif offset <= previous:
            text = f"the final read shows offset {offset} after {previous}"
            findings.add("reordered-poll", partition.key, text, (at,), (offset, previous))
        previous = offset
    ordered = sorted(kept.items())
    return Log(partition.key, array("q", [o for o, _ in ordered]), array("q", [v for _, v in ordered]))


def _ascend(offsets: array[int]) -> bool:
    return all(map(lt, offsets, islice(offsets, 1, None)))


def _log_of_lists(partition: Partition) -> Log:
    """Final reads of lists tell no offsets: those that appends were told are taken, and guessed in between."""
    values = max((values for _, values in partition.final_lists), key=len)
    known = {v: o for records in partition.sent for v, o in zip(records.values, records.offsets, strict=True) if o >= 0}
    offsets = array("q")
    previous = -1
    for value in values:
        offset = known.get(value, previous + 1)
        previous = max(offset, previous + 1)
        offsets.append(previous)
    return Log(partition.key, offsets, array("q", values))


class LogCheck:
    """All checks of one partition's log against what was sent."""

    def __init__(self, columns: Columns, partition: Partition, log: Log, findings: Findings) -> None:
        self._columns = columns
        self._operations = columns.operations
        self._partition = partition
        self._key = partition.key
        self._log = log
        self._findings = findings
        # What was seen at offsets that the log lacks: value and operation.
        self._elsewhere: dict[int, tuple[int, int]] = {}
        self._failed = frozenset(() if partition.is_copy else partition.failed.values)
        self._never_sent = frozenset(self._failed_outside_transactions())
        # What the final read_uncommitted shows that the log lacks, by offset; and the values beyond the log's end.
        self._not_committed: dict[int, int] = {}
        self._held_back: frozenset[int] = frozenset()

    def run(self) -> None:
        if self._columns.has_final:
            self._check_doubles()
            self._check_uncommitted()
            self._check_acknowledged()
            self._check_failed()
            if not self._partition.is_copy:
                self._check_unknown()
                self._check_known()
        self._check_polled()
        self._check_order_in_bursts()
        self._check_order_in_time()

    def _failed_outside_transactions(self) -> Iterator[int]:
        failed = self._partition.failed
        for operation, first, last in failed.chunks():
            if not (self._partition.is_copy or self._operations.is_transaction(operation)):
                yield from failed.values[first:last]

    def _sender(self, value: int) -> int:
        return self._partition.sender_of(value)

    def _reader(self, value: int) -> int:
        """The final read that has a value. It searches: for what is shown only."""
        return self._partition.final.operation_of(value)

    # What is in the log

    def _check_doubles(self) -> None:
        values = self._log.values
        if len(set(values)) == len(values):
            return
        first: dict[int, int] = {}
        for offset, value in zip(self._log.offsets, values, strict=True):
            earlier = first.setdefault(value, offset)
            if earlier != offset:
                self._findings.add(
                    "duplicate",
                    self._key,
                    f"the log has {value} at offsets {earlier} and {offset}",
                    lambda v=value: (self._sender(v), self._reader(v)),  # type: ignore[misc]
                    (value,),
                )

    def _check_uncommitted(self) -> None:
        """The final read_uncommitted shows the same records, and undecided and aborted ones between them."""
        seen = self._partition.final_uncommitted
        if seen.offsets == self._log.offsets and seen.values == self._log.values:
            return
        for operation, first, last in seen.chunks():
            if self._log.place(seen, first, last) < 0:
                places = self._compare(seen, operation, first, last)
                self._not_committed.update((seen.offsets[place], seen.values[place]) for place in places)
        end = self._log.end
        self._held_back = frozenset(value for offset, value in self._not_committed.items() if offset >= end)

    def _compare(self, records: Records, operation: int, first: int, last: int) -> list[int]:
        """Hold records that were seen at offsets against the log and each other; return places the log lacks."""
        value_at = self._log.value_at
        lacking = []
        for place in range(first, last):
            offset, value = records.offsets[place], records.values[place]
            if offset < 0:
                continue
            there = value_at.get(offset)
            if there == value:
                continue
            if there is not None:
                self._add_conflict(offset, value, there, operation, -1)
                continue
            lacking.append(place)
            other, seen_by = self._elsewhere.setdefault(offset, (value, operation))
            if other != value:
                self._add_conflict(offset, value, other, operation, seen_by)
        return lacking

    def _add_conflict(self, offset: int, value: int, other: int, operation: int, seen_by: int) -> None:
        """Two values at one offset; `seen_by` is who saw the other one, or -1 for the final read."""
        text = f"offset {offset} has been seen with {value} and with {other}"
        final = self._partition.final
        self._findings.add(
            "inconsistent-offset",
            self._key,
            text,
            lambda: (operation, final.operation_of(other) if seen_by < 0 else seen_by),
            (offset, value, other),
        )

    def _check_acknowledged(self) -> None:
        sent, log = self._partition.acknowledged, self._log
        for operation, first, last in sent.chunks():
            if first == last or log.place(sent, first, last) >= 0:
                continue
            self._compare(sent, operation, first, last)
            for place in range(first, last):
                value, offset = sent.values[place], sent.offsets[place]
                found = log.offset_of.get(value)
                if found is None:
                    self._add_lost(operation, value, offset)
                elif offset not in (-1, found) and log.value_at.get(offset) is None:
                    text = f"{value} was acknowledged at offset {offset} and is in the log at {found}"
                    self._findings.add("duplicate", self._key, text, (operation,), (value,))

    def _add_lost(self, operation: int, value: int, offset: int) -> None:
        at = f" at offset {offset}" if offset >= 0 else ""
        if value in self._held_back:
            text = (
                f"{value} was acknowledged{at} and is in the log, but the final read_committed ends at {self._log.end}:"
                " an undecided transaction holds it back"
            )
            self._findings.add("unseen", self._key, text, (operation,), (value,))
            return
        rest = "" if len(self._log) else ", which shows nothing of this partition"
        text = f"{value} was acknowledged{at} and is not in the final read{rest}"
        self._findings.add("lost-write", self._key, text, lambda: (operation, *self._pollers_of(value)), (value,))

    def _pollers_of(self, value: int) -> list[int]:
        found = (records.operation_of(value) for records in self._partition.readers.values())
        return [operation for operation in found if operation >= 0]

    def _check_unknown(self) -> None:
        """What may be in the log must be in it at the offset that was told, if one was."""
        sent = self._partition.unknown
        if not sent.values:
            return
        found = 0
        offset_of = self._log.offset_of
        for operation, first, last in sent.chunks():
            for place in range(first, last):
                value, told = sent.values[place], sent.offsets[place]
                offset = offset_of.get(value)
                if offset is None:
                    continue
                found += 1
                if told not in (-1, offset) and self._log.value_at.get(told) is None:
                    text = f"{value} was stored at offset {told} and is in the log at {offset}"
                    self._findings.add("duplicate", self._key, text, (operation,), (value,))
        self._columns.counts["sends_unknown_found"] += found

    def _check_failed(self) -> None:
        if not self._failed or self._failed.isdisjoint(self._log.values):
            return
        for offset, value in zip(self._log.offsets, self._log.values, strict=True):
            if value in self._failed:
                self._add_aborted(value, offset)

    def _add_aborted(self, value: int, offset: int, reader: int = -1) -> None:
        """A value that doesn't count was read, by the final read unless somebody is named."""
        if not self._findings.wants("aborted-read", self._key):
            self._findings.add("aborted-read", self._key, "")
            return
        reader = self._reader(value) if reader < 0 else reader
        sender = self._partition.failed.operation_of(value)
        what = "belongs to an aborted transaction" if self._operations.is_transaction(sender) else "was never sent"
        text = f"{value} {what}, and {self._name(reader)} read it at offset {offset}"
        self._findings.add("aborted-read", self._key, text, (sender, reader), (value,))

    def _name(self, operation: int) -> str:
        return self._operations.name(operation) if operation >= 0 else "the final read"

    def _check_known(self) -> None:
        """Whatever is in the log was sent by somebody."""
        strange = set(self._log.values)
        for records in self._partition.sent:
            strange.difference_update(records.values)
        if strange and self._has_senders():
            for value in sorted(strange):
                if self._columns.can_be_unnoted(value):
                    self._columns.counts["sends_unnoted"] += 1
                else:
                    text = f"{value} is in the log at offset {self._log.offset_of[value]}, and nobody sent it"
                    self._findings.add("phantom", self._key, text, lambda v=value: (self._reader(v),), (value,))  # type: ignore[misc]

    def _has_senders(self) -> bool:
        """What workers that note nothing have written has no senders."""
        return any(records.values for records in self._partition.sent)

    # What pollers saw

    def _check_polled(self) -> None:
        for process, records in self._partition.readers.items():
            is_committed = not self._columns.reads_uncommitted[process]
            for operation, first, last in records.chunks():
                if self._log.place(records, first, last) >= 0:
                    continue
                for place in self._compare(records, operation, first, last):
                    self._judge_lacking(operation, records.values[place], records.offsets[place], is_committed)

    def _judge_lacking(self, operation: int, value: int, offset: int, is_committed: bool) -> None:
        """A record that was polled, of which the log has no trace at its offset."""
        if value in (self._failed if is_committed else self._never_sent):
            self._add_aborted(value, offset, operation)
            return
        if not self._columns.has_final or self._not_committed.get(offset) == value:
            return
        found = self._log.offset_of.get(value)
        if found is not None:
            text = f"{value} was read at offset {offset} and is in the log at {found}"
            self._findings.add("duplicate", self._key, text, lambda: (operation, self._sender(value)), (value,))
        elif not is_committed:
            if self._partition.final_uncommitted:
                text = f"{value} was read at offset {offset}, uncommitted, and is not in the final read_uncommitted"
                self._findings.add("lost-write", self._key, text, lambda: (operation, self._sender(value)), (value,))
        elif not self._findings.wants("lost-write", self._key):
            self._findings.add("lost-write", self._key, "")
        else:
            sender = self._sender(value)
            if sender < 0 and self._has_senders() and not self._columns.can_be_unnoted(value):
                text = f"{value} was read at offset {offset}, and nobody sent it"
                self._findings.add("phantom", self._key, text, (operation,), (value,))
            elif sender < 0 or not self._operations.is_ok(sender):  # or it counts as lost already
                text = f"{value} was read at offset {offset} and is not in the final read"
                self._findings.add("lost-write", self._key, text, (operation, sender), (value,))

    # Order

    def _check_order_in_bursts(self) -> None:
        """Within a burst, and from one burst of a process to its next, offsets ascend."""
        sent = self._partition.acknowledged
        previous: dict[int, tuple[int, int, int]] = {}  # by process: start, highest offset, operation
        for operation, first, last in sent.chunks():
            offsets = sent.offsets[first:last]
            if -1 in offsets:
                offsets = array("q", [offset for offset in offsets if offset >= 0])
            if not offsets:
                continue
            if not _ascend(offsets):
                low, high = next((a, b) for a, b in pairwise(offsets) if a >= b)
                text = f"a burst got offset {high} after offset {low}"
                self._findings.add("nonmonotonic-send", self._key, text, (operation,), (low, high))
            process, start_ns = self._operations.process(operation), self._operations.start_ns[operation]
            before = previous.get(process)
            if before is not None and before[0] < start_ns and offsets[0] <= before[1]:
                text = f"{self._name(operation)} was told offset {offsets[0]} for a send after one at {before[1]}"
                self._findings.add(
                    "nonmonotonic-send", self._key, text, (before[2], operation), (offsets[0], before[1])
                )
            if before is None or before[0] <= start_ns:
                previous[process] = start_ns, offsets[-1], operation

    def _check_order_in_time(self) -> None:
        """No record may stand before one that was known to somebody before it was sent."""
        # A send gets an offset above all that are known, so one that is known must be below it.
        known = ((operation, offset + 1) for operation, offset in self._highest_offsets())
        for witness, end, operation, offset in below_what_was_known(self._operations, known, self._lowest_offsets()):
            both = self._operations.is_transaction(operation) and self._operations.is_transaction(witness)
            text = (
                f"a send of {self._name(operation)} got offset {offset}; before it started, {self._name(witness)}"
                f" had been told of offset {end - 1}"
            )
            kind = "G0" if both else "nonmonotonic-send"
            self._findings.add(kind, self._key, text, (witness, operation), (end - 1, offset))

    def _lowest_offsets(self) -> list[tuple[int, int]]:
        """The lowest offset of each burst, as far as they are known."""
        found = []
        unknown = () if self._partition.is_copy else (self._partition.unknown,)
        for records in (self._partition.acknowledged, *unknown):
            is_known = records is self._partition.acknowledged
            for operation, first, last in records.chunks():
                offsets = records.offsets[first:last]
                if not is_known or -1 in offsets:
                    told = zip(offsets, records.values[first:last], strict=True)
                    places = [self._log.offset_of.get(value, -1) if offset < 0 else offset for offset, value in told]
                    offsets = array("q", [offset for offset in places if offset >= 0])
                if offsets:
                    found.append((operation, min(offsets)))
        return found

    def _highest_offsets(self) -> list[tuple[int, int]]:
        """The highest offset that each operation was told of: acknowledged, or read."""
        seen = (self._partition.acknowledged, *self._partition.readers.values())
        return [
            (op, max(records.offsets[first:last]))
            for records in seen
            for op, first, last in records.chunks()
            if first < last
        ]
