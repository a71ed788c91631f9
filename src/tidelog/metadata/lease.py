"""A session kept alive by heartbeats, the same for every store that has sessions of its own.

What always holds: the owner's deadline counts from before the last good heartbeat was sent, so the owner gives up no
later than the store does; once lost, a session never comes back; the background task ends with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from tidelog.metadata.store import MetadataStoreError

logger = logging.getLogger(__name__)

HEARTBEATS_PER_TTL: Final = 3
"""Two heartbeats may be late or lost before the session ends."""


class SessionKeeper(Protocol):
    """The store's side of a session."""

    async def renew_session(self, session_id: str) -> bool:
        """Extend it by its ttl; False when it has ended."""
        ...

    async def end_session(self, session_id: str) -> None: ...


class Lease:
    """A `Session` over a keeper."""

    def __init__(
        self, session_id: str, ttl_ms: float, keeper: SessionKeeper, monotonic_ms: Callable[[], float], sent_ms: float
    ) -> None:
        self.id = session_id
        self.lost = asyncio.Event()
        self.deadline_ms = sent_ms + ttl_ms
        self._ttl_ms = ttl_ms
        self._keeper = keeper
        self._monotonic_ms = monotonic_ms
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"session {session_id}")

    async def heartbeat(self) -> bool:
        """Renew now; False and lost when that is no longer possible."""
        sent_ms = self._monotonic_ms()
        if self.lost.is_set() or sent_ms >= self.deadline_ms:
            self.lost.set()
            return False
        if not await self._in_time(self._keeper.renew_session(self.id)):
            self.lost.set()
            return False
        self.deadline_ms = sent_ms + self._ttl_ms
        return True

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self.lost.set()
        # Even when lost: the store may not have noticed yet, and what the session owns stands in others' way.
        await self._keeper.end_session(self.id)

    async def _in_time(self, renewal: Awaitable[bool]) -> bool:
        """What the store says, or False when the deadline comes before its answer."""
        try:
            async with asyncio.timeout(max(0.0, self.deadline_ms - self._monotonic_ms()) / 1000):
                return await renewal
        except TimeoutError:
            return False

    async def _keep(self) -> None:
        while not self.lost.is_set():
            await asyncio.sleep(self._ttl_ms / HEARTBEATS_PER_TTL / 1000)
            try:
                await self.heartbeat()
            except MetadataStoreError as error:
                # The deadline was not moved, so that a store that stays away ends the session in time.
                logger.warning("heartbeat of session %s failed: %s", self.id, error)
