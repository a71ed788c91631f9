"""Exactly-once copies: each record of the source once in each copy, in the order of its partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.torture.anomalies import Findings
from tidelog.torture.check_columns import Columns, Partition, topic_of
from tidelog.torture.check_log import Log


def mark_copies(columns: Columns) -> None:
    """Tell copies from their source: it is what plain sends went to; other topics of the final read are copies."""
    sources = {topic_of(key) for key, partition in columns.partitions.items() if _has_plain_sends(columns, partition)}
    for key, partition in columns.partitions.items():
        partition.is_copy = topic_of(key) not in sources


def _has_plain_sends(columns: Columns, partition: Partition) -> bool:
    sent = (operation for records in partition.sent for operation in records.operations)
    return any(not columns.operations.is_transaction(operation) for operation in sent)


def check_copies(columns: Columns, logs: Mapping[str, Log], findings: Findings) -> None:
    """Check every copy of the source, after `mark_copies`."""
    if not columns.has_final:
        return
    source: list[Log] = []
    copies: dict[str, list[Log]] = {}
    for key, partition in columns.partitions.items():
        (copies.setdefault(topic_of(key), []) if partition.is_copy else source).append(logs[key])
    columns.counts["copies"] = len(copies)
    for topic, copy in sorted(copies.items()):
        CopyCheck(columns, topic, source, copy, findings).run()
        columns.counts["records_copied"] += sum(map(len, copy))


class CopyCheck:
    """The check of one copy, over all partitions: a copier may have chosen partitions of its own."""

    def __init__(
        self, columns: Columns, topic: str, source: Sequence[Log], copy: Sequence[Log], findings: Findings
    ) -> None:
        self._columns = columns
        self._topic = topic
        self._source = source
        self._copy = copy
        self._findings = findings

    def run(self) -> None:
        if self._is_plainly_right():
            return
        # Where each value is in the source: partition and place.
        places = {value: (log, place) for log in self._source for place, value in enumerate(log.values)}
        copied: dict[int, tuple[Log, int]] = {}
        for log in self._copy:
            furthest: dict[str, int] = {}
            for place, value in enumerate(log.values):
                if value not in places:
                    self._add_phantom(log, place)
                    continue
                if value in copied:
                    self._add_double(copied[value], log, place)
                    continue
                copied[value] = log, place
                origin, at = places[value]
                if at < furthest.get(origin.key, -1):
                    self._add_reordered(origin, furthest[origin.key], at, log, place)
                furthest[origin.key] = max(at, furthest.get(origin.key, -1))
        for value, (log, place) in places.items():
            if value not in copied:
                self._add_lost(log, place)

    def _is_plainly_right(self) -> bool:
        """Whether the copy's partitions are just the source's: the usual case, compared in bulk."""
        source = {log.key[len(topic_of(log.key)) :]: log.values for log in self._source if len(log)}
        copy = {log.key[len(topic_of(log.key)) :]: log.values for log in self._copy if len(log)}
        return source == copy and all(len(set(values)) == len(values) for values in source.values())

    def _final(self, log: Log, value: int) -> int:
        return self._columns.partitions[log.key].final.operation_of(value)

    def _witnesses(self, log: Log, value: int) -> tuple[int, int]:
        return self._columns.partitions[log.key].sender_of(value), self._final(log, value)

    def _add_phantom(self, log: Log, place: int) -> None:
        value = log.values[place]
        text = f"{value} at offset {log.offsets[place]} is not in the source"
        self._findings.add("phantom", log.key, text, lambda: (self._final(log, value),), (value,))

    def _add_double(self, first: tuple[Log, int], log: Log, place: int) -> None:
        value = log.values[place]
        there = f"offset {first[0].offsets[first[1]]} of {first[0].key}"
        text = f"{value} was copied to {there} and to offset {log.offsets[place]} of {log.key}"
        self._findings.add("copy-duplicate", log.key, text, lambda: self._witnesses(log, value), (value,))

    def _add_reordered(self, origin: Log, furthest: int, at: int, log: Log, place: int) -> None:
        value, before = log.values[place], origin.values[furthest]
        text = (
            f"{value} was copied to offset {log.offsets[place]} after {before}, and is before it in {origin.key}"
            f" (offsets {origin.offsets[at]} and {origin.offsets[furthest]})"
        )
        self._findings.add("copy-reordered", log.key, text, lambda: (self._final(log, value),), (value, before))

    def _add_lost(self, log: Log, place: int) -> None:
        value = log.values[place]
        text = f"{value}, at offset {log.offsets[place]} of {log.key}, is not in {self._topic}"
        self._findings.add("copy-lost", self._topic, text, lambda: self._witnesses(log, value), (value,))
