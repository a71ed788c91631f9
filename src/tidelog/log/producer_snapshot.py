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

from tidelog.common.checks import offset_in_file_name
from tidelog.common.checksum import crc32c
from tidelog.log.checkpoints import read_small_file
from tidelog.log.errors import CorruptSnapshotError
from tidelog.log.open_files import open_descriptor
from tidelog.log.producer_entry import SNAPSHOT_ENTRY, packed_from_snapshot

SNAPSHOT_SUFFIX = ".snapshot"
_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")


def snapshot_path(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"


def snapshot_offsets(directory: Path) -> list[int]:
    """The offsets of the snapshots in a directory, lowest first."""
    names = [name for name in os.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX)]
    stems = (name.removesuffix(SNAPSHOT_SUFFIX) for name in names)
    return sorted(offset for offset in map(offset_in_file_name, stems) if offset is not None)


def encode_snapshot(packed: Iterable[bytes]) -> bytes:
    """The snapshot of packed producers."""
    entries = [each[: SNAPSHOT_ENTRY.size] for each in packed]
    body = _COUNT.pack(len(entries)) + b"".join(entries)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(contents: bytes) -> list[bytes]:
    """The producers in a snapshot, packed; raises CorruptSnapshotError."""
    if len(contents) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshotError(f"{len(contents)} bytes are too few for a snapshot")
    version, crc = _HEAD.unpack_from(contents)
    if version != _VERSION:
        raise CorruptSnapshotError(f"version {version} is unknown")
    body = memoryview(contents)[_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptSnapshotError("the CRC does not match")
    (count,) = _COUNT.unpack_from(body)
    size = SNAPSHOT_ENTRY.size
    if len(body) != _COUNT.size + count * size:
        raise CorruptSnapshotError(f"{count} producers do not fill {len(body)} bytes")
    start = _HEAD.size + _COUNT.size
    return [packed_from_snapshot(contents[at : at + size]) for at in range(start, len(contents), size)]


def write_snapshot(directory: Path, offset: int, packed: Iterable[bytes]) -> None:
    remaining = memoryview(encode_snapshot(packed))
    fd = open_descriptor(snapshot_path(directory, offset), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        while remaining:
            remaining = remaining[os.write(fd, remaining) :]
    finally:
        os.close(fd)


def read_snapshot(directory: Path, offset: int) -> list[bytes]:
    return decode_snapshot(read_small_file(snapshot_path(directory, offset)))


def remove_snapshots(directory: Path) -> int:
    """Remove all of a directory; how many there were."""
    offsets = snapshot_offsets(directory)
    for offset in offsets:
        snapshot_path(directory, offset).unlink(missing_ok=True)
    return len(offsets)
