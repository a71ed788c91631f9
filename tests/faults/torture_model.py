"""A cluster that keeps its promises, in a few lines, and clients that note what they see of it, from a seed.

Clients take turns at random, in the middle of their operations, too; they are killed and started again, expelled from
their groups, and told nothing of what became of their sends. Whatever they note is sound.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog.torture.history import UNDER_WAY, HistoryWriter, Operation

Client = Generator[None, None, None]
QUEUE = ("q-0", "q-1")
LISTS = ("l-0", "l-1")
TABLE = "t-0"
GROUPS = ("run-worker", "run-member")


@dataclass(slots=True)
class Transaction:
    """What decides whether records count."""

    state: str = "open"


@dataclass
class Model:
    """The cluster's state, the clients, and the rows that they noted."""

    seed: int
    rows: list[Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now_ns = 0
        self.quiet = False
        self.logs: dict[str, list[tuple[int | None, Transaction]]] = {key: [] for key in (*QUEUE, *LISTS)}
        self.table: dict[int, tuple[str, int | None]] = {}
        self.table_end = 0
        self.committed: dict[tuple[str, str], int] = {}
        self.owners: dict[tuple[str, str], object] = {}
        self.turn: Transaction | None = None  # of the list-append transaction that is open
        self.numbers = 0
        self.counters: dict[int, int] = {}
        self.clients: dict[str, tuple[Client, Callable[[str], Client]]] = {}

    def run(self, steps: int) -> None:
        for number in range(2):
            self.start(f"run-send-{number}", self.sender)
            self.start(f"run-worker-{number}", self.transactor)
            self.start(f"run-member-{number}", self.member)
            self.start(f"run-append-{number}", self.appender)
        self.start("run-assign-0", lambda name: self.poller(name, committed=True))
        self.start("run-assign-uncommitted-0", lambda name: self.poller(name, committed=False))
        self.start("run-write-0", self.table_writer)
        self.start("run-scan-0", self.table_scanner)
        for _ in range(steps):
            self.step()
            if self.random.random() < 0.004:
                self.kill()
            if self.random.random() < 0.02:
                self.owners[self.random.choice(GROUPS), self.random.choice(QUEUE)] = None  # whoever holds it: expelled
            if self.random.random() < 0.05:
                self.compact()
        self.quiet = True
        while self.clients:
            self.step()
        self.read_finally()

    def write(self, directory: Path) -> None:
        writers: dict[str, HistoryWriter] = {}
        for row in self.rows:
            if row.process not in writers:
                writers[row.process] = HistoryWriter(directory / f"{row.process}.jsonl")
            writers[row.process].write(row)
        for writer in writers.values():
            writer.close()

    # Clients

    def start(self, name: str, kind: Callable[[str], Client]) -> None:
        self.clients[name] = kind(name), kind

    def step(self) -> None:
        self.now_ns += self.random.randint(1, 5)
        name = self.random.choice(sorted(self.clients))
        if next(self.clients[name][0], self) is self:
            self.clients.pop(name, None)

    def kill(self) -> None:
        """A client stops anywhere; another one takes its place."""
        name = self.random.choice(sorted(self.clients))
        client, kind = self.clients.pop(name)
        client.close()
        base, _, restarts = name.partition(".")
        self.start(f"{base}.{int(restarts or 0) + 1}", kind)

    def note(self, name: str, f: str, outcome: str, start_ns: int, events: list[list[Any]], error: str = "") -> None:
        self.rows.append(Operation(name, f, outcome, start_ns, self.now_ns, events, error))

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def values(self, number: int, count: int) -> list[int]:
        first = self.counters.get(number, 0) + 1
        self.counters[number] = first + count - 1
        return [(number << 32) + counter for counter in range(first, first + count)]

    def append(self, key: str, values: list[int], transaction: Transaction) -> list[int]:
        first = len(self.logs[key])
        self.logs[key] += ((value, transaction) for value in values)
        return list(range(first, first + len(values)))

    def end(self, transaction: Transaction, state: str, keys: set[str]) -> None:
        transaction.state = state
        for key in keys:
            self.logs[key].append((None, transaction))

    def visible(self, key: str, start: int, count: int, committed: bool) -> tuple[list[tuple[int, int]], int]:
        """Records from an offset on, and the position after them."""
        found: list[tuple[int, int]] = []
        for offset in range(start, len(self.logs[key])):
            value, transaction = self.logs[key][offset]
            if len(found) == count or (committed and transaction.state == "open"):
                return found, offset
            if value is not None and not (committed and transaction.state == "aborted"):
                found.append((offset, value))
        return found, len(self.logs[key])

    def poll_event(self, key: str, records: list[tuple[int, int]]) -> list[Any]:
        return ["poll", key, [offset for offset, _ in records], [value for _, value in records]]

    def sender(self, name: str) -> Client:
        number = self.number()
        while not self.quiet:
            start_ns, key = self.now_ns, self.random.choice(QUEUE)
            values = self.values(number, self.random.randint(1, 6))
            outcome = self.random.choices(["ok", "stored", "unknown", "fail"], [17, 1, 1, 1])[0]
            yield
            offsets: list[int | None] = [None] * len(values)
            if outcome in ("ok", "stored"):
                cut = self.random.randint(0, len(values))
                stored = self.append(key, values[:cut], Transaction("committed"))
                yield
                stored += self.append(key, values[cut:], Transaction("committed"))
                offsets = [*stored] if outcome == "ok" else offsets
                yield
            self.note(
                name, "send", "unknown" if outcome == "stored" else outcome, start_ns, [["send", key, values, offsets]]
            )

    def poller(self, name: str, committed: bool) -> Client:
        positions = dict.fromkeys(QUEUE, 0)
        self.note(name, "assign", "ok", self.now_ns, [["assign", [*QUEUE]], *(["seek", key, 0] for key in QUEUE)])
        while not (self.quiet and all(positions[key] == len(self.logs[key]) for key in QUEUE)):
            start_ns, key = self.now_ns, self.random.choice(QUEUE)
            if not self.quiet and self.random.random() < 0.1:
                positions[key] = self.random.randint(0, positions[key])
                self.note(name, "seek", "ok", start_ns, [["seek", key, positions[key]]])
            if not committed and self.random.random() < 0.1:
                self.note(name, "lookup", "ok", start_ns, [["high_watermark", key, len(self.logs[key])]])
            records, position = self.visible(key, positions[key], self.random.randint(1, 9), committed)
            yield
            if records:
                self.note(name, "poll", "ok", start_ns, [self.poll_event(key, records)])
            positions[key] = position
            yield

    def holding(self, name: str, group: str, held: dict[str, tuple[object, int]]) -> None:
        """Take free partitions; go on where the group is."""
        for key in QUEUE:
            if self.owners.get((group, key)) is None and key not in held and self.random.random() < 0.5:
                tenure = object()
                self.owners[group, key] = tenure
                held[key] = tenure, self.committed.get((group, key), 0)
                self.note(name, "rebalance", "ok", self.now_ns, [["assigned", [key]]])

    def may_commit(self, group: str, key: str, held: dict[str, tuple[object, int]]) -> bool:
        return self.owners.get((group, key)) is held[key][0]

    def drop(self, name: str, key: str, held: dict[str, tuple[object, int]]) -> None:
        del held[key]
        self.note(name, "rebalance", "ok", self.now_ns, [["lost", [key]]])

    def is_drained(self, group: str) -> bool:
        return self.quiet and all(self.committed.get((group, key), 0) == len(self.logs[key]) for key in QUEUE)

    def member(self, name: str) -> Client:
        group, held = "run-member", dict[str, tuple[object, int]]()
        try:
            while not self.is_drained(group):
                self.holding(name, group, held)
                for key in list(held):
                    start_ns, (tenure, position) = self.now_ns, held[key]
                    records, position = self.visible(key, position, self.random.randint(1, 9), committed=True)
                    held[key] = tenure, position
                    yield
                    if records:
                        self.note(name, "poll", "ok", start_ns, [self.poll_event(key, records)])
                    start_ns = self.now_ns
                    yield
                    accepted = self.may_commit(group, key, held)
                    if accepted:
                        self.committed[group, key] = position
                    yield
                    outcome = self.random.choice(["ok", "ok", "unknown"]) if accepted else "fail"
                    self.note(name, "commit", outcome, start_ns, [["commit", key, position]])
                    if not accepted:
                        self.drop(name, key, held)
                    elif self.random.random() < 0.1 and self.may_commit(group, key, held):
                        self.note(name, "rebalance", "ok", self.now_ns, [["revoked", [key]]])
                        del held[key]
                        self.owners[group, key] = None
                yield
        finally:
            self.leave(group, held)

    def leave(self, group: str, held: dict[str, tuple[object, int]]) -> None:
        for key, (tenure, _) in held.items():
            if self.owners.get((group, key)) is tenure:
                self.owners[group, key] = None

    def transactor(self, name: str) -> Client:
        number, group, held = self.number(), "run-worker", dict[str, tuple[object, int]]()
        transaction, sent = Transaction("aborted"), set[str]()
        try:
            while not self.is_drained(group):
                self.holding(name, group, held)
                start_ns, key = self.now_ns, self.random.choice(QUEUE)
                events: list[list[Any]] = []
                read: dict[str, int] = {}
                if key in held:
                    records, position = self.visible(key, held[key][1], self.random.randint(1, 9), committed=True)
                    read = {key: position} if position > held[key][1] else {}
                    events += [self.poll_event(key, records)] if records else []
                yield
                transaction, sent = Transaction(), set()
                for target in () if self.quiet else self.random.sample(QUEUE, self.random.randint(1, 2)):
                    values = self.values(number, self.random.randint(1, 4))
                    sent.add(target)
                    events.append(["send", target, values, self.append(target, values, transaction)])
                    yield
                if not (sent or read):
                    continue
                events += (["commit", key, position] for key, position in read.items())
                wanted = self.random.random() < 0.8 and all(self.may_commit(group, key, held) for key in read)
                if wanted:
                    self.note(name, "txn", "unknown", start_ns, events, UNDER_WAY)
                    self.end(transaction, "committed", sent)
                    self.committed.update({(group, key): position for key, position in read.items()})
                else:
                    self.end(transaction, "aborted", sent)
                yield
                outcome = self.random.choice(["ok", "ok", "ok", "unknown"]) if wanted else "fail"
                self.note(name, "txn", outcome, start_ns, events)
                for key in read:
                    if not self.may_commit(group, key, held):
                        self.drop(name, key, held)
                    else:
                        known = self.committed.get((group, key), 0)
                        held[key] = held[key][0], known
                        if outcome != "ok":
                            self.note(name, "seek", "ok", self.now_ns, [["seek", key, known]])
                yield
        finally:
            if transaction.state == "open":
                self.end(transaction, "aborted", sent)
            self.leave(group, held)

    def appender(self, name: str) -> Client:
        number = self.number()
        transaction, sent = Transaction("aborted"), set[str]()
        try:
            while not self.quiet:
                if self.turn is not None:
                    yield
                    continue
                start_ns, events = self.now_ns, list[list[Any]]()
                self.turn = transaction = Transaction()
                sent = set()
                for key in self.random.sample(LISTS, self.random.randint(0, 2)):
                    records, _ = self.visible(key, 0, 10**9, committed=True)
                    events.append(["list", key, [value for _, value in records]])
                    yield
                for _ in range(self.random.randint(1, 3)):
                    key, values = self.random.choice(LISTS), self.values(number, 1)
                    sent.add(key)
                    events.append(["append", key, values[0], self.append(key, values, transaction)[0]])
                    yield
                counts = self.random.random() < 0.8
                self.end(transaction, "committed" if counts else "aborted", sent)
                yield
                self.turn = None
                self.note(name, "txn", "ok" if counts else self.random.choice(["fail", "unknown"]), start_ns, events)
                yield
        finally:
            if transaction.state == "open":
                self.end(transaction, "aborted", sent)
            if self.turn is transaction:
                self.turn = None

    def table_writer(self, name: str) -> Client:
        number = self.number()
        while not self.quiet:
            start_ns, row = self.now_ns, f"r{self.random.randint(0, 4)}"
            value = None if self.random.random() < 0.2 else self.values(number, 1)[0]
            self.note(name, "put", "unknown", start_ns, [["put", TABLE, row, value, None]], UNDER_WAY)
            yield
            outcome = self.random.choices(["ok", "unknown", "fail"], [8, 1, 1])[0]
            offset = None
            if outcome != "fail":
                self.table[self.table_end] = row, value
                offset, self.table_end = self.table_end if outcome == "ok" else None, self.table_end + 1
            yield
            self.note(name, "put", outcome, start_ns, [["put", TABLE, row, value, offset]])

    def table_scanner(self, name: str) -> Client:
        while not self.quiet:
            start_ns, end, events = self.now_ns, self.table_end, list[list[Any]]()
            for offset in range(end):
                if offset in self.table:
                    events.append(["row", TABLE, offset, *self.table[offset]])
                if self.random.random() < 0.1:
                    yield
            yield
            self.note(name, "table", "ok", start_ns, events)

    def compact(self) -> None:
        """Take away replaced records; tombstones stay, as they do for a while."""
        newest = {row: offset for offset, (row, _) in sorted(self.table.items())}
        for offset, (row, _) in list(self.table.items()):
            if newest[row] != offset and self.random.random() < 0.7:
                del self.table[offset]

    def read_finally(self) -> None:
        self.now_ns += 10
        start_ns = self.now_ns
        for f, committed in (("final", True), ("final-uncommitted", False)):
            for key in self.logs:
                records, _ = self.visible(key, 0, 10**9, committed)
                self.note(f"run-{f}", f, "ok", start_ns, [self.poll_event(key, records)])
        rows = [["row", TABLE, offset, *record] for offset, record in sorted(self.table.items())]
        self.note("run-table-final", "table", "ok", start_ns, rows)
