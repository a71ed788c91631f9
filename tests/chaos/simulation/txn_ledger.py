"""What was asked of a broker in transactions, and what a reader may therefore find.

What always holds: every attempt at a transaction is noted before its first record is sent, and its end before it is
asked for; so a record that is read must belong to an attempt that was to commit, whenever it is read. The applications
count: transaction N of an application commits offset N + 1 of its group, and whoever follows goes on from there.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Row(NamedTuple):
    """A record, as its value says it."""

    application: str
    number: int
    tag: str
    partition: int
    order: int

    def encode(self) -> bytes:
        return "|".join(map(str, self)).encode()

    @classmethod
    def decode(cls, value: bytes) -> Row:
        application, number, tag, partition, order = value.decode().split("|")
        return cls(application, int(number), tag, int(partition), int(order))


class End(enum.Enum):
    """How far an attempt came, as its application knows it."""

    OPEN = "open"
    COMMIT_ASKED = "commit asked"
    COMMITTED = "committed"
    ABORT_ASKED = "abort asked"

    @property
    def may_be_seen(self) -> bool:
        return self in (End.COMMIT_ASKED, End.COMMITTED)


@dataclass
class Attempt:
    """One attempt at a transaction, with how many records each partition is to get."""

    application: str
    number: int
    records: Mapping[int, int]
    end: End = End.OPEN


class Ledger:
    """All attempts of one run."""

    def __init__(self) -> None:
        self.attempts: dict[tuple[str, str], Attempt] = {}

    def begin(self, application: str, number: int, tag: str, records: Mapping[int, int]) -> Attempt:
        assert (application, tag) not in self.attempts
        attempt = self.attempts[application, tag] = Attempt(application, number, records)
        return attempt

    def count(self, end: End) -> int:
        return sum(attempt.end is end for attempt in self.attempts.values())

    def check_read(self, row: Row) -> None:
        """A reader of committed records has found this one, now."""
        attempt = self.attempts.get((row.application, row.tag))
        assert attempt is not None, f"read, and never written: {row}"
        assert attempt.end.may_be_seen, f"read, and {attempt.end.value}: {row}"

    def check_committed(self, rows_by_partition: Mapping[int, Sequence[Row]], committed: Mapping[str, int]) -> None:
        """Hold all that is committed at the end against the offsets that the groups have."""
        found: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        for partition, rows in rows_by_partition.items():
            last: dict[str, tuple[int, int]] = {}
            for row in rows:
                self.check_read(row)
                assert row.partition == partition, f"in partition {partition}: {row}"
                place = row.number, row.order
                assert last.get(row.application, (-1, -1)) < place, f"twice or out of order: {row}, {last}"
                last[row.application] = place
                found[row.application, row.tag][partition] += 1
        for key, attempt in self.attempts.items():
            if key in found:
                assert dict(found[key]) == dict(attempt.records), f"torn: {key} {attempt}, found {found[key]}"
            else:
                assert attempt.end is not End.COMMITTED, f"committed, and not found: {key} {attempt}"
        for application, offset in committed.items():
            numbers = sorted(self.attempts[key].number for key in found if key[0] == application)
            assert numbers == list(range(offset)), f"{application} has offset {offset} and transactions {numbers}"

    def check_written(self, rows_by_partition: Mapping[int, Sequence[Row]]) -> None:
        """Whatever became of it, no record may be in the log twice, or behind a later one of its attempt."""
        for partition, rows in rows_by_partition.items():
            last: dict[tuple[str, str], int] = {}
            for row in rows:
                assert last.get((row.application, row.tag), -1) < row.order, f"stored twice in {partition}: {row}"
                last[row.application, row.tag] = row.order
