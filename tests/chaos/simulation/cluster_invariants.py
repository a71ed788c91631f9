"""What must hold in a simulated cluster whatever happens: each rule has a name, which failures and docs use.

What always holds: a rule is broken at a moment and by something that its violation names; violations are collected
while brokers and clients run, and raised by whoever looks next. The first one counts: what follows may be its effect.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Invariant(StrEnum):
    """The rules; docs/simulation.md says what each means."""

    COMMITTED = "committed-records-never-change"
    LEADER = "one-leader-per-epoch"
    MEMBERS = "in-sync-replicas-have-all-committed"
    WATERMARK = "readers-never-see-the-end-go-back"
    ACKNOWLEDGED = "acknowledged-records-are-kept"
    ORDER = "records-are-there-once-and-in-order"
    READERS = "readers-agree-and-skip-nothing"
    ABORTED = "aborted-records-stay-hidden"
    COPIES = "transactions-copy-exactly-once"
    OWNERS = "one-owner-of-a-partition-in-a-group"
    FORMER = "former-owners-commit-nothing"
    OFFSETS = "committed-offsets-are-kept"
    CONTROLLER = "only-the-elected-controller-writes"
    METADATA = "metadata-never-goes-back"
    PRODUCER_IDS = "producer-ids-are-given-once"
    CHANGES = "acknowledged-changes-are-kept"
    REPLICAS = "replicas-end-up-alike"
    PROGRESS = "progress-once-troubles-are-over"
    INTERNAL = "nothing-fails-unexpectedly"


class InvariantError(AssertionError):
    """A rule was broken."""

    def __init__(self, invariant: Invariant, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Violations:
    """Notes what breaks a rule, with the simulation's time."""

    def __init__(self, time_s: Callable[[], float]) -> None:
        self._time_s = time_s
        self._noted: list[tuple[Invariant, str]] = []

    def note(self, invariant: Invariant, text: str) -> None:
        self._noted.append((invariant, f"at {self._time_s():.3f} s: {text}"))

    def unless(self, holds: object, invariant: Invariant, text: str) -> None:
        if not holds:
            self.note(invariant, text)

    def check(self) -> None:
        """Raise the first."""
        if self._noted:
            raise InvariantError(*self._noted[0])
