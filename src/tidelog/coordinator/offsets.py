"""The offsets that one group has committed, and those that are pending in a transaction.

What always holds: nobody reads a pending offset until its transaction is committed; if a partition has several commits,
the one written last counts; all that is kept here is in the group's footprint.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from sys import getsizeof
from typing import NamedTuple

from tidelog.common.ids import ZERO_UUID
from tidelog.coordinator.actions import GroupRecord
from tidelog.coordinator.group_records import OffsetCommitKey, OffsetCommitValue, encode_record
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

# OffsetCommitKey, and OffsetCommitValue in the two versions that are written.
_OFFSET_COMMIT = 1
_VERSION = 4
_EXPIRING_VERSION = 1
_KEY_START = struct.Struct(">hh")
_VALUE_START = struct.Struct(">hqi")
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
        group, name, metadata = group_id.encode(), topic.encode(), self.metadata.encode()
        key = b"".join(
            (_KEY_START.pack(_OFFSET_COMMIT, len(group)), group, _INT16.pack(len(name)), name, _INT32.pack(partition))
        )
        if self.expire_timestamp_ms != NO_EXPIRATION:
            return GroupRecord(key, self._expiring_value(metadata))
        value = b"".join(
            (
                _VALUE_START.pack(_VERSION, self.offset, self.leader_epoch),
                write_uvarint(len(metadata) + 1),
                metadata,
                _INT64.pack(self.commit_timestamp_ms),
                _TOPIC_ID_TAG + self.topic_id.bytes if self.topic_id.int else _NO_TAGS,
            )
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


def offset_tombstone(group_id: str, topic: str, partition: int) -> GroupRecord:
    """The record that deletes a committed offset."""
    return encode_record(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)


class _Pending(NamedTuple):
    """An offset in an open transaction, and the committed offset when it was written."""

    offset: CommittedOffset
    before: CommittedOffset | None


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
        self._pending: dict[int, dict[tuple[str, int], _Pending]] = {}
        self.footprint = Footprint(OFFSETS_BYTES + text_bytes((group_id,)))

    def __bool__(self) -> bool:
        """Whether there is any reason to keep the group."""
        return bool(self._committed or self._pending)

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        """Topic, partition and offset of all committed offsets."""
        for topic, partitions in self._committed.items():
            for partition, offset in partitions.items():
                yield topic, partition, offset

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._committed)

    def of_topic(self, topic: str) -> dict[int, CommittedOffset]:
        """The committed offsets of one topic by partition; read-only."""
        return self._committed.get(topic, {})

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        partitions = self._committed.get(topic)
        return None if partitions is None else partitions.get(partition)

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
        for producer_id, pending in tuple(self._pending.items()):
            self._release(topic, pending.pop((topic, partition), None))
            if not pending:
                del self._pending[producer_id]

    # Transactions

    def pending_partitions(self) -> set[tuple[str, int]]:
        """Topic and partition of all offsets that open transactions may commit."""
        return {name for pending in self._pending.values() for name in pending}

    def put_pending(self, producer_id: int, topic: str, partition: int, offset: CommittedOffset) -> None:
        of_producer = self._pending.setdefault(producer_id, {})
        self._release(topic, of_producer.get((topic, partition)))
        of_producer[topic, partition] = _Pending(offset, self.get(topic, partition))
        self.footprint.add(pending_bytes(topic, offset.metadata))

    def _release(self, topic: str, pending: _Pending | None) -> None:
        if pending is not None:
            self.footprint.add(-pending_bytes(topic, pending.offset.metadata))

    def is_pending(self, topic: str, partition: int) -> bool:
        """Whether an open transaction may change this offset, so that its reader should wait (KIP-447)."""
        return any((topic, partition) in pending for pending in self._pending.values())

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction's offsets, except where a later one was committed, or drop them."""
        for (topic, partition), pending in self._pending.pop(producer_id, {}).items():
            self._release(topic, pending)
            if not committed:
                continue
            offset, before = pending
            other = self.get(topic, partition)
            if other is before or other is None or other.record_offset < offset.record_offset:
                self.put(topic, partition, offset)
