"""What a deduplicator needs from a database: claims on keys that expire by themselves, and marks for finished work.

A key is absent, claimed (by an owner, until its lease ends) or done (until the mark expires). What always holds: of all
callers that claim a key at once, exactly one gets it. Every claim of a key has a larger fence than those before it.
Only the database's clock counts. Every call may be repeated with the same owner, so a lost connection does no harm.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tidelog.client.errors import ConfigError
from tidelog.client.processing.errors import ClaimBusyError

# Adding marks also removes expired ones: once this many were added, up to twice as many are removed together.
PURGE_AFTER = 64

_WAIT_S_MIN = 0.005
_WAIT_S_MAX = 0.2
# Table names go into SQL verbatim, so only names that every database accepts without quotes are allowed.
_TABLE_NAME = re.compile(r"([a-z_][a-z0-9_]{0,47}\.)?[a-z_][a-z0-9_]{0,47}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


class ClaimState(enum.IntEnum):
    FIRST = 0
    DONE = 1
    BUSY = 2


class ClaimResult(NamedTuple):
    """The outcome for one key: its fence if claimed; how long the other owner's lease lasts if busy."""

    state: ClaimState
    fence: int = 0
    busy_ms: int = 0


class ClaimStore(Protocol):
    """Keys of one name in one database, for use by many threads, or by many tasks of one event loop.

    A store for blocking callers never suspends; see `blocking`.
    """

    async def claim(self, keys: Sequence[bytes], owner: str, lease_ms: int, *, partly: bool) -> list[ClaimResult]:
        """Claim all keys; unless `partly`, claim none if any of them is busy."""

    async def complete(self, keys: Sequence[bytes], owner: str, expiry_ms: int) -> list[bool]:
        """Mark keys as done; False for keys that another owner has taken meanwhile."""

    async def extend(self, keys: Sequence[bytes], owner: str, lease_ms: int) -> list[bool]:
        """Extend the leases to this long from now; False for a claim that no longer exists."""

    async def release(self, keys: Sequence[bytes], owner: str) -> None:
        """Release claims; marks and the claims of others stay."""

    async def purge(self, limit: int, connection: Any = None) -> int:
        """Remove up to this many expired rows, in the caller's transaction if it would block; returns how many."""

    async def close(self) -> None: ...

    async def begin_marks(
        self, connection: Any, keys: Sequence[bytes], owner: str, expiry_ms: int, *, partly: bool, wait_ms: int
    ) -> list[ClaimResult]:
        """Mark keys as done in the caller's transaction, after a savepoint that is kept only if this succeeds."""

    async def end_marks(self, connection: Any, *, undo: bool) -> None:
        """Release the savepoint, or roll back to it."""


class WhenBusy(enum.StrEnum):
    """What to do about a key that another process is working on."""

    WAIT = "wait"
    SKIP = "skip"
    RAISE = "raise"


class Waiting:
    """How long to pause before trying busy keys again, until it has taken too long."""

    def __init__(self, when_busy: WhenBusy, wait_s: float, now_s: float) -> None:
        self._deadline_s = now_s + (wait_s if when_busy is WhenBusy.WAIT else 0)
        self._pause_s = _WAIT_S_MIN
        self.may_skip = when_busy is WhenBusy.SKIP

    def left_ms(self, now_s: float) -> int:
        return max(0, round((self._deadline_s - now_s) * 1000))

    def pause_s(self, keys: Sequence[bytes], results: Sequence[ClaimResult], now_s: float) -> float | None:
        """None if there is nothing to wait for; raises ClaimBusyError if waiting is not worthwhile."""
        busy = [index for index, result in enumerate(results) if result.state is ClaimState.BUSY]
        if not busy or self.may_skip:
            return None
        if now_s >= self._deadline_s:
            first = busy[0]
            more = f" and {len(busy) - 1} more" if len(busy) > 1 else ""
            lease = f", and its lease lasts {results[first].busy_ms} ms yet" if results[first].busy_ms else ""
            raise ClaimBusyError(
                f"{keys[first].decode(errors='replace')}{more}: another process works on it{lease}; try again"
            )
        lease_s = max(results[index].busy_ms for index in busy) / 1000
        pause_s = max(_WAIT_S_MIN, min(self._pause_s, lease_s, self._deadline_s - now_s))
        self._pause_s = min(self._pause_s * 2, _WAIT_S_MAX)
        return pause_s


def checked_table(table: str) -> str:
    """A table name that is safe to put into SQL; it may have a schema in front."""
    if not _TABLE_NAME.fullmatch(table):
        raise ConfigError(
            f"{table!r} can't be the name of a table: take lower-case letters, digits and _, at most 48 of them, "
            "with a schema and a dot before it if need be"
        )
    return table


def checked_name(name: str) -> str:
    """The name of the handler, safe to use as part of a key."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} can't be the name of a deduplicator: take letters, digits, '.', '_' and '-'")
    return name
