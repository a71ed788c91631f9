"""Code that both deduplicators share: their settings, and the claims passed to handlers.

What always holds: a claim is true if the handler should do its work. It is false if the work was done before, or if
another process is doing it and the key is skipped.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from tidelog.client.errors import ConfigError
from tidelog.client.processing.blocking import run_blocking
from tidelog.client.processing.claim_store import ClaimResult, ClaimState, WhenBusy, checked_name, checked_table
from tidelog.client.processing.errors import ClaimLostError
from tidelog.client.processing.record_keys import ConsumedRecord, KeyFunction, stored_key
from tidelog.common.light_dataclass import dataclass

RecordT = TypeVar("RecordT", bound=ConsumedRecord)

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class ClaimSettings:
    """The settings of a deduplicator; the same for both kinds."""

    name: str
    key: KeyFunction
    expiry_s: float
    lease_s: float
    when_busy: WhenBusy
    wait_s: float
    table: str
    timeout_s: float

    @staticmethod
    def checked(
        name: str,
        key: KeyFunction,
        expiry_s: float,
        lease_s: float,
        when_busy: str,
        wait_s: float | None,
        table: str,
        timeout_s: float,
    ) -> ClaimSettings:
        for setting, value in (("expiry_s", expiry_s), ("lease_s", lease_s), ("timeout_s", timeout_s)):
            if not value >= 0.001:
                raise ConfigError(f"{setting} is {value}: it must be at least a millisecond")
        if when_busy not in set(WhenBusy):
            raise ConfigError(f"when_busy is {when_busy!r}: it must be one of {', '.join(WhenBusy)}")
        if wait_s is not None and wait_s < 0:
            raise ConfigError(f"wait_s is {wait_s}: it must not be negative")
        return ClaimSettings(
            checked_name(name),
            key,
            expiry_s,
            lease_s,
            WhenBusy(when_busy),
            # A claim whose owner died becomes free after its lease, and then it takes a moment to get it.
            lease_s + 1 if wait_s is None else wait_s,
            checked_table(table),
            timeout_s,
        )

    @property
    def expiry_ms(self) -> int:
        return round(self.expiry_s * 1000)

    def lease_ms(self, lease_s: float | None = None) -> int:
        return max(1, round((self.lease_s if lease_s is None else lease_s) * 1000))

    def key_of(self, what: ConsumedRecord | str | bytes) -> bytes:
        return stored_key(what if isinstance(what, (str, bytes)) else self.key(what))


def new_owner() -> str:
    """A token that no other claim has."""
    return secrets.token_hex(12)


# Extends the lease of a claim.
Extend = Callable[[float | None], Coroutine[Any, Any, None]]


class ClaimBase:
    """One key and its outcome."""

    def __init__(self, key: bytes, result: ClaimResult, extend: Extend) -> None:
        self.key = key
        # Increases with every claim of the key: a system that has seen a larger one can refuse this owner's work.
        self.fence = result.fence
        self.is_busy = result.state is ClaimState.BUSY
        self._is_first = result.state is ClaimState.FIRST
        self._extend = extend

    def __bool__(self) -> bool:
        return self._is_first

    def __repr__(self) -> str:
        state = "first" if self._is_first else "busy" if self.is_busy else "done before"
        return f"{type(self).__name__}({self.key!r}, {state})"


class Claim(ClaimBase):
    """The result of `Deduplicator.once`: true if the work should be done."""

    def extend(self, lease_s: float | None = None) -> None:
        """Extend the lease to this long from now, for work that takes longer; raises ClaimLostError."""
        run_blocking(self._extend(lease_s))


class AsyncClaim(ClaimBase):
    """The result of `AsyncDeduplicator.once`: true if the work should be done."""

    async def extend(self, lease_s: float | None = None) -> None:
        """Extend the lease to this long from now, for work that takes longer; raises ClaimLostError."""
        await self._extend(lease_s)


class Batch(Generic[RecordT]):
    """Records with their keys; each key appears once, even if several records have it."""

    def __init__(self, records: Iterable[RecordT], settings: ClaimSettings) -> None:
        by_key: dict[bytes, RecordT] = {}
        for record in records:
            by_key.setdefault(settings.key_of(record), record)
        self.keys = list(by_key)
        self.records = list(by_key.values())
        self._settings = settings

    def key_of(self, record: RecordT) -> bytes:
        return self._settings.key_of(record)


class NewRecords(Sequence[RecordT]):
    """The result of `filter_new`: the records to work on, in their order."""

    def __init__(self, batch: Batch[RecordT], results: Sequence[ClaimResult]) -> None:
        found = list(zip(batch.records, results, strict=True))
        self._batch = batch
        self._records = [record for record, result in found if result.state is ClaimState.FIRST]
        self._done: set[bytes] = set()
        # Records that another process is working on; only `when_busy="skip"` leaves any here.
        self.busy = [record for record, result in found if result.state is ClaimState.BUSY]
        self._fences = {key: result.fence for key, result in zip(batch.keys, results, strict=True)}

    def done(self, record: RecordT) -> None:
        """Note that the work on a record is done, so that its mark is kept if the work on a later one fails."""
        self._done.add(self._batch.key_of(record))

    def fence(self, record: RecordT) -> int:
        return self._fences[self._batch.key_of(record)]

    @property
    def done_keys(self) -> frozenset[bytes]:
        return frozenset(self._done)

    @overload
    def __getitem__(self, index: int) -> RecordT: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordT]: ...
    def __getitem__(self, index: int | slice) -> RecordT | list[RecordT]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RecordT]:
        return iter(self._records)


def claimed_keys(keys: Sequence[bytes], results: Sequence[ClaimResult]) -> list[bytes]:
    return [key for key, result in zip(keys, results, strict=True) if result.state is ClaimState.FIRST]


def check_kept(keys: Sequence[bytes], kept: Sequence[bool]) -> None:
    """Raise ClaimLostError unless every claim still existed."""
    lost = [key.decode(errors="replace") for key, is_kept in zip(keys, kept, strict=True) if not is_kept]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise ClaimLostError(
            f"{lost[0]}{more}: the lease ran out and another process took over, so the work may be done twice; "
            "set a longer lease_s, or call extend() while the work lasts"
        )
