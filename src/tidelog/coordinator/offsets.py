"""The offsets that one group has committed, and those that are pending in a transaction.

What always holds: nobody reads a pending offset until its transaction is committed; if a partition has several commits,
the one written last counts; all that is kept here is in the group's footprint.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Iterable, Iterator
from sys import getsizeof
from typing import NamedTuple

from tidelog.common.ids import ZERO_UUID
from tidelog.common.steps import Steps
from tidelog.coordinator.actions import GroupRecord
from tidelog.coordinator.group_records import OffsetCommitValue
from tidelog.coordinator.memory import (
    OFFSET_BYTES,
    OFFSETS_BYTES,
    OFFSETS_TOPIC_BYTES,
    PENDING_OFFSET_BYTES,
    Footprint,
    text_bytes,
)
from tidelog.protocol.wire import write_uvarint

NO_EXPIRATION = -1
_BEHIND_ALL = 2**63 - 1
_REMEMBERED_CHARACTERS_MAX = 128

# OffsetCommitKey, and OffsetCommitValue in the two versions that are written.
_OFFSET_COMMIT = 1
_VERSION = 4
_EXPIRING_VERSION = 1
_KEY_START = struct.Struct(">hh")
_VALUE_START = struct.Struct(">hqi")
_USUAL_VALUE = struct.Struct(">hqiBq3s16s")  # without metadata, with a topic id
_EXPIRING_START = struct.Struct(">hqh")
_EXPIRING_END = struct.Struct(">qq")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_NO_TAGS = b"\x00"
_TOPIC_ID_TAG = b"\x01\x00\x10"  # one tagged field, number 0, of 16 bytes


class CommittedOffset(NamedTuple):
    """Where a group resumes reading one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = 0
    # Clients before Kafka 2.1 could choose how long to keep it.
    expire_timestamp_ms: int = NO_EXPIRATION
    topic_id: uuid.UUID = ZERO_UUID
    # The position of its record in the log, if it was loaded from there or written in a transaction; any other offset
    # was committed later, so its record comes after all that were loaded.
    record_offset: int = _BEHIND_ALL

    def record(self, group_id: str, topic: str, partition: int) -> GroupRecord:
        """The record that commits it.

        Its bytes are assembled here, in the declared format, because every commit of every consumer comes through here:
        this takes a quarter of the time that messages and their codec would.
        """
        offset, leader_epoch, text, commit_timestamp_ms, expire_timestamp_ms, topic_id, _ = self
        key = _record_key(group_id, topic, partition)
        if expire_timestamp_ms != NO_EXPIRATION:
            return GroupRecord(key, self._expiring_value(text.encode()))
        if text or not topic_id.int:
            metadata = text.encode()
            value = b"".join(
                (
                    _VALUE_START.pack(_VERSION, offset, leader_epoch),
                    write_uvarint(len(metadata) + 1),
                    metadata,
                    _INT64.pack(commit_timestamp_ms),
                    _TOPIC_ID_TAG + topic_id.bytes if topic_id.int else _NO_TAGS,
                )
            )
        else:
            value = _USUAL_VALUE.pack(
                _VERSION, offset, leader_epoch, 1, commit_timestamp_ms, _TOPIC_ID_TAG, topic_id.bytes
            )
        return GroupRecord(key, value)

    def _expiring_value(self, metadata: bytes) -> bytes:
        """The only version with an expiry time has neither a leader epoch nor a topic id."""
        return b"".join(
            (
                _EXPIRING_START.pack(_EXPIRING_VERSION, self.offset, len(metadata)),
                metadata,
                _EXPIRING_END.pack(self.commit_timestamp_ms, self.expire_timestamp_ms),
            )
        )

    @classmethod
    def from_value(cls, value: OffsetCommitValue, record_offset: int = _BEHIND_ALL) -> CommittedOffset:
        return cls(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            record_offset,
        )


def _record_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of an offset's record; cached where the group id has a normal length, as commits come again and again."""
    if len(group_id) <= _REMEMBERED_CHARACTERS_MAX:
        return _remembered_record_key(group_id, topic, partition)
    return _make_record_key(group_id, topic, partition)


def _make_record_key(group_id: str, topic: str, partition: int) -> bytes:
    group, name = group_id.encode(), topic.encode()
    return b"".join(
        (_KEY_START.pack(_OFFSET_COMMIT, len(group)), group, _INT16.pack(len(name)), name, _INT32.pack(partition))
    )


_remembered_record_key = functools.lru_cache(maxsize=4096)(_make_record_key)


def offset_tombstone(group_id: str, topic: str, partition: int) -> GroupRecord:
    """The record that deletes a committed offset."""
    return GroupRecord(_record_key(group_id, topic, partition), None)


class PendingOffset:
    """An offset in an open transaction; it takes effect when the transaction is committed.

    Made before its record is written, so that thousands of them need little time once it is.
    """

    __slots__ = ("before", "offset", "record_offset", "size_bytes")

    def __init__(self, topic: str, offset: CommittedOffset, record_offset: int) -> None:
        self.offset = offset
        # The position of its record in the log; until it is known, in its batch.
        self.record_offset = record_offset
        self.size_bytes = pending_bytes(topic, offset.metadata)
        # What was committed when it was written.
        self.before: CommittedOffset | None = None

    def written(self) -> CommittedOffset:
        """The offset to commit."""
        return CommittedOffset(*self.offset[:-1], self.record_offset)


def topic_bytes(topic: str) -> int:
    """What the first offset of a topic takes besides its own bytes."""
    return OFFSETS_TOPIC_BYTES + getsizeof(topic)


def offset_bytes(metadata: str) -> int:
    return OFFSET_BYTES + getsizeof(metadata) if metadata else OFFSET_BYTES


def pending_bytes(topic: str, metadata: str) -> int:
    """More than the offset takes once it is committed, so the end of a transaction always has room."""
    return PENDING_OFFSET_BYTES + topic_bytes(topic) + (getsizeof(metadata) if metadata else 0)


class GroupOffsets:
    """All offsets of one group, by topic and partition."""

    __slots__ = ("_committed", "_pending", "footprint")

    def __init__(self, group_id: str = "") -> None:
        self._committed: dict[str, dict[int, CommittedOffset]] = {}
        # By the producer id of the open transaction.
        self._pending: dict[int, dict[tuple[str, int], PendingOffset]] = {}
        self.footprint = Footprint(OFFSETS_BYTES + text_bytes((group_id,)))

    def __bool__(self) -> bool:
        """Whether there is any reason to keep the group."""
        return bool(self._committed or self._pending)

    @property
    def count_max(self) -> int:
        """About how many offsets there are, and never fewer; known without looking at them."""
        return self.footprint.size_bytes // OFFSET_BYTES

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        """Topic, partition and offset of all committed offsets."""
        for topic, partitions in self._committed.items():
            for partition, offset in partitions.items():
                yield topic, partition, offset

    def partitions(self) -> Iterator[tuple[str, int]]:
        """Topic and partition of all committed offsets; they may change meanwhile."""
        for topic in self.topics:
            for partition in tuple(self.of_topic(topic)):
                yield topic, partition

    def pending(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        """Topic, partition and offset of all that open transactions may commit; they may change meanwhile."""
        for held in tuple(self._pending.values()):
            for (topic, partition), pending in tuple(held.items()):
                yield topic, partition, pending.offset

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._committed)

    def of_topic(self, topic: str) -> dict[int, CommittedOffset]:
        """The committed offsets of one topic by partition; read-only."""
        return self._committed.get(topic, {})

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        partitions = self._committed.get(topic)
        return None if partitions is None else partitions.get(partition)

    def put_all(self, rows: Iterable[tuple[str, int, CommittedOffset]]) -> None:
        for topic, partition, offset in rows:
            self.put(topic, partition, offset)

    def put(self, topic: str, partition: int, offset: CommittedOffset) -> None:
        partitions = self._committed.get(topic)
        if partitions is None:
            partitions = self._committed[topic] = {}
            self.footprint.add(topic_bytes(topic))
        before = partitions.get(partition)
        partitions[partition] = offset
        if before is None:
            self.footprint.add(offset_bytes(offset.metadata))
        elif before.metadata or offset.metadata:
            self.footprint.add(offset_bytes(offset.metadata) - offset_bytes(before.metadata))

    def remove(self, topic: str, partition: int) -> None:
        """Forget an offset, including one pending in a transaction."""
        partitions = self._committed.get(topic)
        if partitions is not None:
            before = partitions.pop(partition, None)
            if before is not None:
                self.footprint.add(-offset_bytes(before.metadata))
            if not partitions:
                del self._committed[topic]
                self.footprint.add(-topic_bytes(topic))
        if self._pending:
            self._remove_pending((topic, partition))

    def _remove_pending(self, name: tuple[str, int]) -> None:
        for producer_id, pending in tuple(self._pending.items()):
            removed = pending.pop(name, None)
            if removed is not None:
                self.footprint.add(-removed.size_bytes)
            if not pending:
                del self._pending[producer_id]

    # Transactions

    def pending_partitions(self) -> list[tuple[str, int]]:
        """Topic and partition of all offsets that open transactions may commit."""
        return [name for pending in self._pending.values() for name in pending]

    def holds(self, topic: str, partition: int, offset: CommittedOffset) -> bool:
        """Whether this very offset is still the committed one, or may become it."""
        return self.get(topic, partition) is offset or any(
            held.offset is offset
            for pending in self._pending.values()
            if (held := pending.get((topic, partition))) is not None
        )

    def put_pending(self, producer_id: int, topic: str, partition: int, offset: CommittedOffset) -> None:
        """Hold an offset whose record offset is known."""
        pending = PendingOffset(topic, offset, 0)
        self.put_all_pending(producer_id, {(topic, partition): pending}, offset.record_offset, pending.size_bytes)

    def put_all_pending(
        self, producer_id: int, new: dict[tuple[str, int], PendingOffset], first_offset: int, size_bytes: int
    ) -> None:
        """Hold offsets whose batch was written at this offset, and which take so many bytes together."""
        held = self._pending.setdefault(producer_id, {})
        if held:
            size_bytes -= sum(held[name].size_bytes for name in held.keys() & new.keys())
        committed = self._committed
        for (topic, partition), pending in new.items():
            pending.record_offset += first_offset
            partitions = committed.get(topic)
            if partitions is not None:
                pending.before = partitions.get(partition)
        held.update(new)
        self.footprint.add(size_bytes)

    def is_pending(self, topic: str, partition: int) -> bool:
        """Whether an open transaction may change this offset, so that its reader should wait (KIP-447)."""
        return any((topic, partition) in pending for pending in self._pending.values())

    def pending_count(self, producer_id: int) -> int:
        """How many offsets the open transaction of this producer may commit."""
        return len(self._pending.get(producer_id, ()))

    def end_transaction(self, producer_id: int, *, committed: bool) -> Steps[None]:
        """Apply a transaction's offsets, except where a later one was committed, or drop them."""
        ended = self._pending.pop(producer_id, {})
        while ended:
            (topic, partition), pending = ended.popitem()
            self.footprint.add(-pending.size_bytes)
            if committed:
                other = self.get(topic, partition)
                if other is pending.before or other is None or other.record_offset < pending.record_offset:
                    self.put(topic, partition, pending.written())
            yield 0
