"""What the checker looks for, kind by kind, with the exact rule.

How the checker decides
-----------------------
Only what the histories prove counts. Each operation is ok, fail (it certainly had no effect) or unknown (it may or may
not have had its effect, at any time after its start). What follows from times relies on one clock for all processes of
a machine: operation A is before B if A's end is before B's start. A worker killed with -9 may leave a last operation
that nobody noted. So a value in the log that no history mentions is taken for one of these if it follows the highest
value that its worker (`value >> 32`) noted, or if that worker may be one that noted nothing (`sends_unnoted`).
Transactions are noted before they are committed, and polls before their offsets are; so that nothing else is missing.

The log of a partition is what the final read shows: after everything was healed and all workers had ended, from the
beginning to the end, read_committed. Processes called `*-uncommitted*` read uncommitted; all others read committed.
Offsets may have gaps: transaction markers, aborted records and compaction take offsets away.

Sends and the log
    lost-write           A send was acknowledged, or a record was read, and the final read lacks the value (of what was
                         read uncommitted: the final read_uncommitted does). If the final read stops before it and the
                         final read_uncommitted shows it, it is "unseen".
    duplicate            One value stands at two offsets: twice in the log; or acknowledged at, or read from, another
                         offset than the log has it at.
    inconsistent-offset  Two values were seen at one offset, by any of: acknowledgements, polls, final reads.
    nonmonotonic-send    Records of one burst have descending offsets; or one process was told a lower offset for a
                         later send; or a send that started after another record had been acknowledged or read got an
                         offset below that record's. For two transactions the last is called G0.
    phantom              A value was read that nobody sent.
    unseen               A record is in the log, pollers read its partition beyond it, and none of them ever got it. For
                         a consumer group (workers whose names differ only in their last number): no member got it,
                         or only in transactions that failed.

Readers. A reader's position is known from one poll to the next, as long as nothing in between may have moved it:
assign, a rebalance callback that names the partition, or a transaction that didn't commit. A seek sets it.
    reordered-poll       A poll returned an offset below the position.
    skipped-poll         A poll continued beyond the position, and the log has a record in between. A list read within a
                         transaction lacks a record before its last one. A new owner in a group started beyond
                         everything that the group can have committed, and the log has a record in between.
    aborted-read         A value whose operation failed was read: by anyone if it was not sent in a transaction, by a
                         committed reader otherwise. Or a transaction of unknown outcome is in the log in part.
    stuck-consumer       The last record that any poller got is not the last one of the log, although the workload
                         waited at its end until nothing moved any more.

Transactions. Kafka orders records when they are appended, not when their transaction commits, and doesn't isolate
writers from each other. So two transactions that send at the same time may interleave differently in two partitions,
which is a cycle of writes. Such cycles are counted (`write_cycles_allowed`) and are no anomalies. The transactions of
list-append take turns (they share one transactional id, so that a new one fences the last): among them, every cycle of
writes is one. What Kafka promises to all: a committed reader gets to an offset only once all transactions with records
up to that offset are decided, so all of these count as read by it.
    G0                   Write cycle: list-append transactions that contradict each other about the order in which they
                         appended to two or more lists. Or, for any transactions: one that started after another had
                         committed stands before it in a partition.
    G1a                  Aborted read: a list has a value whose transaction failed.
    G1b                  Intermediate read: a list ends between two records of one transaction with nothing between
                         them. (Were there anything between, it might be undecided at that time and hold readers back.)
    G1c                  Circular information flow: a cycle of committed transactions in which each read something that
                         takes the commit of the one before it, or, for list-append, wrote to a list after it. A
                         transaction that read beyond a record of its own before it committed is the shortest cycle.

Compacted tables. A scan reads all partitions; the state of a row in it is the row's record with the highest offset. A
scan is judged by the newest put of the row that had been acknowledged, or shown by another scan, before it started.
Nothing is said where a later put of the row (not failed) had started before the scan ended: compaction may take away
records that a scan has not reached yet. In the final scan only a later tombstone explains that a row is absent, and
nothing an older record.
    stale-table          The scan shows an older record of the row.
    lost-update-of-table The scan has no record of the row, though the newest one is no tombstone; or the final scan
                         shows an older record or none.

Groups. Callbacks and successful commits count, polls don't: a member that doesn't know yet that it was expelled may
poll, but its commits are refused.
    two-owners           While a member held a partition by its own callbacks (assigned, and neither revoked nor lost),
                         another one that held it as well committed successfully, and afterwards the first one did so
                         again. Being killed or paused is no offence, nor is a late callback.
    commit-went-back     A commit succeeded with a lower offset than an earlier one of the same group. Or a lookup of
                         the committed offset shows less than was committed before it (where only one group commits).
                         Or a member began to read below what had been committed before it got the partition.
    watermark-went-back  A lookup shows a lower high watermark than an earlier one, or than the offset of a record that
                         had been acknowledged or read before the lookup started requires. Or a poll was refused as out
                         of range, though nothing is deleted in a run.

Copies. The source is what workers sent; each other topic is a copy of it, made by its own copier.
    copy-lost            A record of the source's log is not in the copy.
    copy-duplicate       A record is in the copy more than once; or two committed transactions of a group consumed one
                         record.
    copy-reordered       Two records of one source partition stand in one partition of the copy in the other order.
    phantom              The copy has a record that the source's log lacks.

What is counted
---------------
Checked.found has all anomalies by kind, Checked.anomalies a few of each kind and partition. Checked.counts has, as far
as there are any:
    operations, partitions, sends_acknowledged, sends_failed, sends_unknown
    sends_unknown_found  those of unknown outcome that are in the log, sends_unnoted those that no history mentions
    records_polled, final_records, commits, rebalances, lookups
    transactions_committed, transactions_aborted, transactions_unknown, and transactions_unknown_found in the log
    lists, table_scans, table_records, copies, records_copied
    write_cycles_allowed see above
    final_incomplete     1 if there is no whole final read; then nothing that needs one was judged
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.torture.history import Operation

KINDS: Final = (
    "lost-write",
    "duplicate",
    "inconsistent-offset",
    "nonmonotonic-send",
    "phantom",
    "unseen",
    "reordered-poll",
    "skipped-poll",
    "aborted-read",
    "stuck-consumer",
    "G0",
    "G1a",
    "G1b",
    "G1c",
    "stale-table",
    "lost-update-of-table",
    "two-owners",
    "commit-went-back",
    "watermark-went-back",
    "copy-lost",
    "copy-duplicate",
    "copy-reordered",
)

# A cluster that loses one record often loses thousands; so many of each kind are shown for a key, the others counted.
EXAMPLES_PER_KEY: Final = 5
EXAMPLES_PER_KIND: Final = 50
# Of a burst or a poll of thousands of records, what stands around the one in question.
_SHOWN_AROUND: Final = 3
_SHOWN_OPERATIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that no interleaving of the operations explains, with the operations that show it."""

    kind: str
    key: str
    detail: str
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a check: examples of anomalies, how many of each kind there are, and what was looked at."""

    workload: str
    anomalies: tuple[Anomaly, ...]
    found: dict[str, int]
    counts: dict[str, int]
    seconds: float

    @property
    def is_sound(self) -> bool:
        return not self.found


@dataclass(slots=True)
class Findings:
    """Collects anomalies: counts all, keeps a few of each kind for each key."""

    load: Callable[[int], Operation]
    anomalies: list[Anomaly] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    _kept: Counter[tuple[str, str]] = field(default_factory=Counter)

    def wants(self, kind: str, key: str) -> bool:
        """Whether another example of this would be kept; to save the work to describe it."""
        return self._kept[kind, key] < EXAMPLES_PER_KEY and self._kept[kind, ""] < EXAMPLES_PER_KIND

    def add(
        self,
        kind: str,
        key: str,
        detail: str | Callable[[], str],
        operations: Iterable[int] | Callable[[], Iterable[int]] = (),
        values: Iterable[int] = (),
    ) -> None:
        """Add an anomaly. `operations` are numbers of `Columns`; of their events, those around `values` are shown."""
        if kind not in KINDS:
            raise ValueError(f"no anomaly is called {kind!r}")
        is_wanted = self.wants(kind, key)
        self.found[kind] += 1
        if not is_wanted:
            return
        self._kept[kind, key] += 1
        self._kept[kind, ""] += 1
        numbers = list(dict.fromkeys(operations() if callable(operations) else operations))[:_SHOWN_OPERATIONS]
        wanted = frozenset(values)
        shown = tuple(shorten(self.load(number), wanted) for number in numbers if number >= 0)
        self.anomalies.append(Anomaly(kind, key, detail() if callable(detail) else detail, shown))


def shorten(operation: Operation, values: frozenset[int]) -> Operation:
    """The operation with long lists of records cut down to what stands around these values or offsets."""
    return Operation(
        operation.process,
        operation.f,
        operation.outcome,
        operation.start_ns,
        operation.end_ns,
        [_shorten_event(event, values) for event in _events_about(operation.events, values)],
        operation.error,
    )


def _events_about(events: list[list[Any]], values: frozenset[int]) -> list[list[Any]]:
    if len(events) <= 2 * _SHOWN_AROUND:
        return events
    about = [event for event in events if any(_names(part, values) for part in event[2:])]
    return about[: 4 * _SHOWN_AROUND] or events[: 2 * _SHOWN_AROUND]


def _names(part: Any, values: frozenset[int]) -> bool:
    return not values.isdisjoint(part) if isinstance(part, list) else part in values


def _shorten_event(event: list[Any], values: frozenset[int]) -> list[Any]:
    lists = [part for part in event[1:] if isinstance(part, list)]
    if not lists or len(lists[0]) <= 4 * _SHOWN_AROUND:
        return event
    places = [place for part in lists for place, value in enumerate(part) if value in values]
    first = max(0, min(places, default=0) - _SHOWN_AROUND)
    last = min(max(places, default=0) + _SHOWN_AROUND + 1, first + 8 * _SHOWN_AROUND)
    return [part[first:last] if isinstance(part, list) else part for part in event]
