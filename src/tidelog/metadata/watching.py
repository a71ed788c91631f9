"""How watches learn of changes: immediately of those in this process, by polling of all others.

What always holds: polling costs nothing while nobody watches; a change that happens between a snapshot and the wait
for the next is never missed, because the wait starts from a count taken before the snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection

from tidelog.common.background import start_background
from tidelog.metadata.store import MetadataStoreError, Rec, Snapshot, matches


class Changes:
    """Wakes the watches that a change concerns."""

    def __init__(self, poll: Callable[[], Awaitable[None]], poll_interval_ms: float) -> None:
        self._poll = poll
        self._poll_interval_s = poll_interval_ms / 1000
        self._watches: dict[asyncio.Event, str] = {}
        self._poller: asyncio.Task[None] | None = None

    def announce(self, keys: Collection[str] | None) -> None:
        """Wake the watches of these keys; None means that any key may have changed."""
        for event, prefix in self._watches.items():
            if keys is None or any(matches(prefix, key) for key in keys):
                event.set()

    async def watch(self, prefix: str, read: Callable[[], Awaitable[Snapshot]]) -> AsyncGenerator[Snapshot, None]:
        changed = asyncio.Event()
        self._watches[changed] = prefix
        if self._poller is None:
            self._poller = start_background(self._poll_forever(), "metadata watch poller")
        seen: dict[str, Rec] | None = None
        try:
            while True:
                changed.clear()
                snapshot = await read()
                if seen is None or snapshot.records != seen:
                    seen = dict(snapshot.records)
                    yield snapshot
                await changed.wait()
        finally:
            del self._watches[changed]
            if not self._watches:
                self._stop_polling()

    def close(self) -> None:
        """Stop polling; watches read once more, and find the store closed."""
        self._stop_polling()
        self.announce(None)

    def _stop_polling(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._poll_interval_s)
            try:
                await self._poll()
            except MetadataStoreError:
                # The watchers get the same error when they read again, and know what to do about it.
                self.announce(None)
