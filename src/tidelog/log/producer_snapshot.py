"""Producer state on disk: `%020d.snapshot`, named by the offset up to which the log is taken in. Kafka's format,
version 1.

What always holds: a file that reads without error is exactly what was written, by its CRC-32C; so it is written under
its own name and not flushed: after a crash a torn one is refused and an older one with a longer replay takes its place.
Of each producer only the last batch is kept, as the format has room for one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from crc32c import crc32c

from tidelog.common.checks import offset_in_file_name
from tidelog.log.checkpoints import read_small_file
from tidelog.log.errors import CorruptSnapshotError
from tidelog.log.open_files import open_descriptor
from tidelog.log.producer_state import NO_SEQUENCE, BatchMetadata, ProducerEntry

SNAPSHOT_SUFFIX = ".snapshot"
_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset of
# transaction
_ENTRY = struct.Struct(">qhiqiqiq")


def snapshot_path(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"


def snapshot_offsets(directory: Path) -> list[int]:
    """The offsets of the snapshots in a directory, lowest first."""
    names = [name for name in os.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX)]
    stems = (name.removesuffix(SNAPSHOT_SUFFIX) for name in names)
    return sorted(offset for offset in map(offset_in_file_name, stems) if offset is not None)


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    packed = []
    for entry in entries:
        last = entry.batches[-1] if entry.batches else None
        packed.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_offset,
                0 if last is None else last.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        )
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(contents: bytes) -> list[ProducerEntry]:
    """The producers in a snapshot; raises CorruptSnapshotError."""
    if len(contents) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshotError(f"{len(contents)} bytes are too few for a snapshot")
    version, crc = _HEAD.unpack_from(contents)
    if version != _VERSION:
        raise CorruptSnapshotError(f"version {version} is not known")
    body = memoryview(contents)[_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptSnapshotError("the CRC does not match")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise CorruptSnapshotError(f"{count} producers do not fill {len(body)} bytes")
    return [_decode_entry(*fields) for fields in _ENTRY.iter_unpack(body[_COUNT.size :])]


def _decode_entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> ProducerEntry:
    batches = []
    if last_sequence != NO_SEQUENCE:
        batches.append(BatchMetadata(last_sequence, last_offset, offset_delta, timestamp))
    entry = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, txn_first_offset, batches)
    entry.history_is_partial = True
    return entry


def write_snapshot(directory: Path, offset: int, entries: Iterable[ProducerEntry]) -> None:
    remaining = memoryview(encode_snapshot(entries))
    fd = open_descriptor(snapshot_path(directory, offset), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        while remaining:
            remaining = remaining[os.write(fd, remaining) :]
    finally:
        os.close(fd)


def read_snapshot(directory: Path, offset: int) -> list[ProducerEntry]:
    return decode_snapshot(read_small_file(snapshot_path(directory, offset)))


def remove_snapshots(directory: Path) -> int:
    """Remove all of a directory; how many there were."""
    offsets = snapshot_offsets(directory)
    for offset in offsets:
        snapshot_path(directory, offset).unlink(missing_ok=True)
    return len(offsets)
