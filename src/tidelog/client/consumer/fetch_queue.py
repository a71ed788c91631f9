"""Fetched data that was not handed out yet: as received, in order of arrival, bounded by bytes.

What always holds: received responses still in memory, plus those that brokers may still send, stay within the bound,
except that a single batch may be larger. A partition's data comes out in offset order. Data of a partition that was
moved since (`PartitionState.version`) is dropped; data of a paused partition is set aside. The loop puts and the
polling thread takes, possibly at the same time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.client.consumer.subscription import OffsetReset, PartitionState
from tidelog.client.errors import ClientError
from tidelog.records.kernel_consume import BatchCursor

if TYPE_CHECKING:
    import pyarrow as pa

AbortedTransactions = list[tuple[int, int]]  # first offset and producer id
_NO_TRANSACTIONS: AbortedTransactions = []


class ArrowRows(NamedTuple):
    """Decoded rows that were not handed out: those from `position` on, up to the end of their batch."""

    position: int
    rows: pa.RecordBatch
    end_position: int


class _Frame:
    """A received response; each remaining chunk of it keeps its memory."""

    __slots__ = ("left", "size")

    def __init__(self, size: int, left: int) -> None:
        self.size = size
        self.left = left


class FetchedChunk:
    """One response's data for one partition: batches, or an error in their place."""

    __slots__ = (
        "aborted",
        "cursor",
        "error",
        "error_stays",
        "frame",
        "reset",
        "rows",
        "size",
        "start_offset",
        "state",
        "version",
        "view",
    )

    def __init__(
        self,
        state: PartitionState,
        version: int,
        start_offset: int,
        view: memoryview,
        aborted: AbortedTransactions = _NO_TRANSACTIONS,
    ) -> None:
        self.state = state
        self.version = version
        self.start_offset = start_offset  # the requested offset; the first batch may begin earlier
        self.view = view
        self.size = len(view)
        self.aborted = aborted
        self.cursor: BatchCursor | None = None  # set once reading has started
        self.rows: ArrowRows | None = None  # the rest of a batch that was decoded into Arrow
        # In place of data, or after the data before it has been read:
        self.error: ClientError | None = None
        self.error_stays = False  # reported at every poll until the partition is moved, or only once
        self.reset: OffsetReset | None = None  # the position has to be looked up again
        self.frame = _Frame(self.size, 1)

    @property
    def is_stale(self) -> bool:
        return self.state.version != self.version


def _nothing() -> None:
    """Does nothing; replaced when there is a listener."""


def _ignore(state: PartitionState, version: int) -> None:
    """Does nothing; replaced when there is a listener."""


class FetchQueue:
    """The fetched data of one consumer."""

    def __init__(
        self,
        bytes_max: int,
        *,
        on_ready: Callable[[], None] = _nothing,
        on_room: Callable[[], None] = _nothing,
        on_give_up: Callable[[PartitionState, int], None] = _ignore,
    ) -> None:
        """`on_ready` is called on the loop when data was added. `on_room` is called in the polling thread when data was
        taken while `wants_room` is set. `on_give_up` is called for a partition whose data was dropped to make room
        and must be fetched again from its position.
        """
        self.bytes_max = bytes_max
        self._on_ready = on_ready
        self._on_room = on_room
        self._on_give_up = on_give_up
        self.wants_room = False
        self._lock = threading.Lock()
        self._chunks: deque[FetchedChunk] = deque()
        self._parked: deque[FetchedChunk] = deque()  # chunks of paused partitions
        self._bytes = 0
        self._reserved = 0
        self._by_version: dict[int, int] = {}

    # Used on the loop

    @property
    def bytes(self) -> int:
        """The bytes of responses still in memory."""
        return self._bytes

    @property
    def room(self) -> int:
        """How many more bytes may be requested."""
        return self.bytes_max - self._bytes - self._reserved

    def reserve(self, size: int) -> None:
        """A broker may now send this many bytes."""
        with self._lock:
            self._reserved += size

    def release(self, size: int) -> None:
        """It has answered, or never will."""
        with self._lock:
            self._reserved -= size

    def bytes_of(self, state: PartitionState) -> int:
        """The waiting chunks of one partition that are still wanted."""
        return self._by_version.get(state.version, 0)

    def put(self, chunks: Iterable[FetchedChunk], frame_size: int) -> None:
        """Add the chunks of one response of that size."""
        chunks = [chunk for chunk in chunks if not chunk.is_stale]
        if not chunks:
            return
        frame = _Frame(frame_size, len(chunks))
        with self._lock:
            self._bytes += frame_size
            for chunk in chunks:
                chunk.frame = frame
                self._by_version[chunk.version] = self._by_version.get(chunk.version, 0) + chunk.size
                self._chunks.append(chunk)
        self._on_ready()

    # Used in the polling thread

    @property
    def has_ready(self) -> bool:
        return self.current() is not None

    def current(self) -> FetchedChunk | None:
        """The chunk to read now: the oldest that is neither stale nor of a paused partition."""
        if self._parked:
            self._unpark()
        while self._chunks:
            chunk = self._chunks[0]
            if chunk.is_stale:
                self.done(chunk)
            elif chunk.state.is_paused:
                self._park(chunk)
            else:
                return chunk
        if self._parked and self.wants_room:
            self._give_up_parked()
        return None

    def ready(self) -> list[FetchedChunk]:
        """All chunks that may be read now, oldest first."""
        if self.current() is None:
            return []
        with self._lock:
            return [chunk for chunk in self._chunks if not chunk.is_stale and not chunk.state.is_paused]

    def done(self, chunk: FetchedChunk) -> None:
        """The chunk has been read, or is not wanted."""
        with self._lock:
            if self._chunks[0] is chunk:
                self._chunks.popleft()
            else:
                self._chunks.remove(chunk)
            self._forget(chunk)
        if self.wants_room:
            self._on_room()

    def _forget(self, chunk: FetchedChunk) -> None:
        left = self._by_version.get(chunk.version, 0) - chunk.size
        if left > 0:
            self._by_version[chunk.version] = left
        else:
            self._by_version.pop(chunk.version, None)
        self._leave_frame(chunk)
        chunk.view = memoryview(b"")
        chunk.cursor = None
        chunk.rows = None

    def _leave_frame(self, chunk: FetchedChunk) -> None:
        chunk.frame.left -= 1
        if chunk.frame.left == 0:
            self._bytes -= chunk.frame.size

    def _park(self, chunk: FetchedChunk) -> None:
        with self._lock:
            self._chunks.popleft()
            # A copy, so that a long pause keeps only this partition's bytes and not the whole response.
            chunk.view = memoryview(bytes(chunk.view))
            if chunk.cursor is not None:
                chunk.start_offset = chunk.cursor.next_offset
                chunk.cursor = None
            chunk.rows = None
            self._leave_frame(chunk)
            chunk.frame = _Frame(chunk.size, 1)
            self._bytes += chunk.size
            self._parked.append(chunk)
        if self.wants_room:
            self._on_room()

    def _unpark(self) -> None:
        back = [chunk for chunk in self._parked if not chunk.state.is_paused or chunk.is_stale]
        if back:
            with self._lock:
                for chunk in reversed(back):
                    self._parked.remove(chunk)
                    self._chunks.appendleft(chunk)

    def _give_up_parked(self) -> None:
        """Paused partitions hold room that others need: drop their data, to be fetched again later."""
        with self._lock:
            given_up = list(self._parked)
            self._parked.clear()
            for chunk in given_up:
                self._forget(chunk)
        for chunk in given_up:
            self._on_give_up(chunk.state, chunk.version)
        self._on_room()

    def clear(self) -> None:
        with self._lock:
            self._chunks.clear()
            self._parked.clear()
            self._by_version.clear()
            self._bytes = 0
