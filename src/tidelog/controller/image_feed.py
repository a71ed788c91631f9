"""What the controller tells other brokers about the image: changes since the revision they have, or all of it in pages.

What always holds: a broker that applies what it gets, in order, has the controller's image of the revision that comes
with it. Changes are handed out whole, as they were committed. The history is bounded: a broker that is further behind
gets a snapshot. A snapshot is of one revision, however many pages it takes; a broker that asks for a page other than
the next starts over. Nothing is remembered before the first broker asks, so a cluster of one broker pays nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final, NamedTuple, TypeAlias

from tidelog.common.light_dataclass import dataclass
from tidelog.common.observable import Observable
from tidelog.controller import layout
from tidelog.controller.image import ClusterImage
from tidelog.controller.image_builder import records_of
from tidelog.controller.layout import Record
from tidelog.controller.ledger import Written

HISTORY_BYTES_MAX: Final = 8 << 20
"""Changes that are remembered: hours of ordinary life, or the creation of some 50,000 partitions."""

PAGE_BYTES_MAX: Final = 256 * 1024
"""The size of a snapshot's page: it is encoded in some milliseconds, during which nothing else runs."""

KeyValue: TypeAlias = tuple[str, bytes | None]


class Page(NamedTuple):
    """What a broker is told at once. Its image has this revision once it has applied a page that `is_complete`."""

    revision: int
    is_snapshot: bool
    is_complete: bool
    changes: Sequence[KeyValue]


SNAPSHOTS_MAX: Final = 100
"""How many brokers may be in the middle of a snapshot, each of which keeps its image in memory; others start over."""


SNAPSHOT_IS_GONE: Final = Page(-1, True, False, ())
"""For a broker in the middle of a snapshot that is no longer kept. No image has this revision: it has to start over."""


@dataclass(slots=True)
class _Snapshot:
    """A snapshot that a broker is being given."""

    revision: int
    records: Iterator[tuple[str, Record]]
    # How many records it was given so far.
    position: int = 0
    # The record that did not fit into the last page.
    held_over: list[KeyValue] = field(default_factory=list)


class ImageFeed:
    """Feeds the brokers that follow one controller; every election starts a new one."""

    def __init__(self, history_bytes_max: int = HISTORY_BYTES_MAX) -> None:
        self._history_bytes_max = history_bytes_max
        # The newest image, None while this is not the controller.
        self._image: Observable[ClusterImage | None] = Observable(None)
        self._deleted_topics: dict[uuid.UUID, str] = {}
        self._history: deque[tuple[int, Sequence[KeyValue], int]] = deque()
        self._history_bytes = 0
        # Whoever has this revision, or a newer one, needs the history only.
        self._history_start = 0
        self._has_followers = False
        self._snapshots: dict[int, _Snapshot] = {}

    def start(self, image: ClusterImage, deleted_topics: Mapping[uuid.UUID, str]) -> None:
        """A controller was elected, and loaded this image."""
        self._forget()
        self._deleted_topics = dict(deleted_topics)
        self._history_start = image.revision
        self._image.set(image)

    def stop(self) -> None:
        """The controller has resigned: those who wait for news are told."""
        self._forget()
        self._image.set(None)

    def add(self, image: ClusterImage, written: Written) -> None:
        """The controller has committed this."""
        for key, value in written.values:
            # Most values are not of deleted topics, and there may be thousands.
            if key.startswith(layout.TOPICS) and value is not None and layout.TOMBSTONE_MARK in value:
                deleted_topic_id = layout.parse_tombstone(layout.decode(value))
                if deleted_topic_id is not None:
                    self._deleted_topics[deleted_topic_id] = key.removeprefix(layout.TOPICS)
        if self._has_followers:
            size_bytes = sum(len(key) + len(value or b"") for key, value in written.values)
            self._history.append((written.revision, written.values, size_bytes))
            self._history_bytes += size_bytes
            while self._history_bytes > self._history_bytes_max:
                revision, _, dropped_bytes = self._history.popleft()
                self._history_start = revision
                self._history_bytes -= dropped_bytes
        else:
            self._history_start = written.revision
        self._image.set(image)

    async def read(
        self, node_id: int, revision: int, position: int, *, is_same_epoch: bool, max_bytes: int, max_wait_s: float
    ) -> Page | None:
        """What a broker that has this revision needs next, after waiting for news; None without a controller.

        With a position, it has so many records of the snapshot of that revision. `is_same_epoch` says whether it got
        what it has from this very election.
        """
        image = self._image.value
        if image is None:
            return None
        self._has_followers = True
        if is_same_epoch and position > 0:
            snapshot = self._snapshots.get(node_id)
            if snapshot is not None and (snapshot.revision, snapshot.position) == (revision, position):
                return self._next_page(node_id, snapshot, max_bytes)
            return SNAPSHOT_IS_GONE
        if is_same_epoch and revision >= self._history_start:
            try:
                async with asyncio.timeout(max_wait_s):
                    news = await self._image.wait_for(lambda image: image is None or image.revision > revision)
            except TimeoutError:
                return Page(revision, False, True, ())
            image = self._image.value
            if news is None or image is None:
                return None
            if revision >= self._history_start:
                return self._changes_since(revision, max_bytes)
            # So much came at once that part of it is forgotten already.
        snapshot = _Snapshot(image.revision, records_of(image, self._deleted_topics))
        return self._next_page(node_id, snapshot, max_bytes)

    def _changes_since(self, revision: int, max_bytes: int) -> Page:
        changes: list[KeyValue] = []
        size_bytes = 0
        for committed, values, change_bytes in self._history:
            if committed <= revision:
                continue
            if changes and size_bytes + change_bytes > max_bytes:
                break
            changes += values
            size_bytes += change_bytes
            revision = committed
        return Page(revision, False, True, changes)

    def _next_page(self, node_id: int, snapshot: _Snapshot, max_bytes: int) -> Page:
        changes = snapshot.held_over
        size_bytes = sum(len(key) + len(value or b"") for key, value in changes)
        snapshot.held_over = []
        for key, record in snapshot.records:
            value = layout.encode(record)
            size_bytes += len(key) + len(value)
            if changes and size_bytes > min(max_bytes, PAGE_BYTES_MAX):
                snapshot.held_over = [(key, value)]
                break
            changes.append((key, value))
        snapshot.position += len(changes)
        is_complete = not snapshot.held_over
        self._snapshots.pop(node_id, None)
        if not is_complete:
            self._snapshots[node_id] = snapshot  # as the newest
            if len(self._snapshots) > SNAPSHOTS_MAX:
                del self._snapshots[next(iter(self._snapshots))]
        return Page(snapshot.revision, True, is_complete, changes)

    def _forget(self) -> None:
        self._deleted_topics.clear()
        self._history.clear()
        self._history_bytes = 0
        self._snapshots.clear()
