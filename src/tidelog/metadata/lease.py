"""A session kept alive by heartbeats, the same for every store that has sessions of its own.

What always holds: the owner's deadline counts from before the last good heartbeat was sent, so the owner gives up no
later than the store does; once lost, a session never comes back; heartbeats end with it. Where they are sent from is up
to the store: SQLite's come from the thread that runs its SQL, so that a busy event loop does not lose the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from tidelog.common.background import start_background
from tidelog.metadata.store import MetadataStoreError

logger = logging.getLogger(__name__)

HEARTBEATS_PER_TTL: Final = 3
"""Two heartbeats may be late or lost before the session ends."""

_DEADLINE_CHECK_S_MIN: Final = 0.001
"""The shortest sleep between two looks at the deadline, for clocks that stand still."""


class SessionKeeper(Protocol):
    """The store's side of a session."""

    def renew_session(self, session_id: str) -> bool:
        """Extend it by its ttl; False when it has ended. Called where `repeat` and `run` call."""
        ...

    async def end_session(self, session_id: str) -> None: ...

    def repeat(self, call: Callable[[], object], interval_s: float) -> Callable[[], None]:
        """Call again and again until the returned function is called."""
        ...

    def run(self, call: Callable[[], bool]) -> Awaitable[bool]:
        """Call once, where `repeat` calls."""
        ...


class Lease:
    """A `Session` over a keeper."""

    def __init__(
        self, session_id: str, ttl_ms: float, keeper: SessionKeeper, monotonic_ms: Callable[[], float], sent_ms: float
    ) -> None:
        self.id = session_id
        self.lost = asyncio.Event()
        # Moved by heartbeats, which may run in another thread, and read everywhere.
        self.deadline_ms = sent_ms + ttl_ms
        self._is_lost = False
        self._ttl_ms = ttl_ms
        self._keeper = keeper
        self._monotonic_ms = monotonic_ms
        self._loop = asyncio.get_running_loop()
        self._stop_heartbeats = keeper.repeat(self._beat, ttl_ms / HEARTBEATS_PER_TTL / 1000)
        self._watchdog = start_background(self._watch_deadline(), f"session {session_id}")

    @property
    def is_over(self) -> bool:
        return self._is_lost or self._monotonic_ms() >= self.deadline_ms

    async def heartbeat(self) -> bool:
        """Renew now; False and lost when that is no longer possible."""
        is_alive = await self._keeper.run(self._beat)
        if not is_alive:
            self.lost.set()
        return is_alive

    async def close(self) -> None:
        self._stop_heartbeats()
        self._watchdog.cancel()
        await asyncio.wait([self._watchdog])
        self._is_lost = True
        self.lost.set()
        # Even when lost: the store may not have noticed yet, and what the session owns blocks others.
        await self._keeper.end_session(self.id)

    def _beat(self) -> bool:
        """Send one heartbeat; whether the session is alive after it. Runs where the keeper calls."""
        sent_ms = self._monotonic_ms()
        if self._is_lost or sent_ms >= self.deadline_ms:
            return self._lose()
        try:
            is_renewed = self._keeper.renew_session(self.id)
        except MetadataStoreError as error:
            # The deadline was not moved, so a store that stays away ends the session in time.
            logger.warning("heartbeat of session %s failed: %s", self.id, error)
            return True
        if not is_renewed:
            return self._lose()
        self.deadline_ms = sent_ms + self._ttl_ms
        return True

    def _lose(self) -> bool:
        self._is_lost = True
        self._stop_heartbeats()
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits any more
            self._loop.call_soon_threadsafe(self.lost.set)
        return False

    async def _watch_deadline(self) -> None:
        """Give the session up at its deadline, even while the store hangs and no heartbeat comes to an end."""
        while not self._is_lost:
            left_ms = self.deadline_ms - self._monotonic_ms()
            if left_ms <= 0:
                self._lose()
                return
            await asyncio.sleep(max(_DEADLINE_CHECK_S_MIN, left_ms / 1000))
