"""The small text files next to the segments: offset checkpoints, leader epochs, ids, the clean-shutdown marker.

What always holds: a file is written under a temporary name, flushed, renamed over the old one, and the directory is
flushed, so a reader finds the old contents or the new, never a mixture; files in a partition's directory are flushed
together with its log, and before that a power cut may leave them empty. The formats are Kafka's. A file that breaks its
format raises CorruptCheckpointError with its path. It keeps nothing in memory.
"""

from __future__ import annotations

import errno
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from tidelog.common.ids import uuid_from_text, uuid_to_text
from tidelog.common.light_dataclass import dataclass
from tidelog.log.errors import CorruptCheckpointError
from tidelog.log.open_files import open_descriptor

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
# Tidelog's own: what each log looked like when it was closed cleanly, so that loading it need not read it.
LOG_END_FILE = "log-end-checkpoint"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
META_PROPERTIES_FILE = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"

SECTOR_BYTES = 512
_READ_BYTES = 64 * 1024

_VERSION = "0"
_LOG_END_NUMBERS = 8
# The first row of that file, followed by the broker epoch that stopped.
_STOP = "stop"
_COUNT = re.compile(r"[0-9]{1,10}")
Row = TypeVar("Row")
PartitionKey = tuple[str, int]


def fsync_directory(directory: Path) -> None:
    """Make renames, creations and removals in the directory survive a power cut."""
    fd = open_descriptor(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_small_file(path: Path) -> bytes:
    """A file's contents. Startup reads several for each of thousands of logs, and this costs half as much as `open`."""
    fd = open_descriptor(path, os.O_RDONLY)
    try:
        contents = part = os.read(fd, _READ_BYTES)
        while len(part) == _READ_BYTES:
            part = os.read(fd, _READ_BYTES)
            contents += part
        return contents
    except OSError as error:
        # Reading by descriptor, the error for a directory in its place would not name the path.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(fd)


def write_atomically(path: Path, contents: bytes, *, sync: bool = True) -> None:
    """Replace a file's contents. Without `sync` a power cut may still undo it."""
    temporary = path.with_name(path.name + ".tmp")
    fd = open_descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        remaining = memoryview(contents)
        while remaining:
            remaining = remaining[os.write(fd, remaining) :]
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    if sync:
        fsync_directory(path.parent)


def write_unflushed(path: Path, contents: bytes) -> None:
    """Replace a small file's contents without waiting for the disk; `sync_files` is called later.

    As long as old and new contents fit one sector, which a disk writes whole or not at all, and the file does not get
    shorter, it is written over: a file that another is renamed over makes ext4 write out the new one at once, which
    takes a millisecond or more instead of 15 us, and the event loop waits for it.
    """
    fd = open_descriptor(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(fd).st_size <= len(contents) <= SECTOR_BYTES:
            if os.pwrite(fd, contents, 0) != len(contents):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return
    finally:
        os.close(fd)
    write_atomically(path, contents, sync=False)


def sync_files(directory: Path) -> None:
    """Flush a partition's unflushed small files, and the directory entries of all its files."""
    for name in (LEADER_EPOCH_FILE, PARTITION_METADATA_FILE):
        try:
            fd = open_descriptor(directory / name, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    fsync_directory(directory)
    fsync_directory(directory.parent)


def encode_rows(rows: Iterable[str]) -> bytes:
    """A checkpoint: a version, the number of rows, the rows."""
    lines = list(rows)
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def read_rows(path: Path, parse: Callable[[str], Row]) -> list[Row] | None:
    """The rows of a checkpoint, or None when there is no such file."""
    try:
        text = read_small_file(path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(f"{path} is not a text file: {error}") from error
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != _VERSION or not _COUNT.fullmatch(lines[1]):
        raise CorruptCheckpointError(f"{path} does not start with version {_VERSION} and a count of rows")
    rows = lines[2:]
    if len(rows) != int(lines[1]):
        raise CorruptCheckpointError(f"{path} announces {lines[1]} rows but has {len(rows)}")
    try:
        return [parse(row) for row in rows]
    except ValueError as error:
        raise CorruptCheckpointError(f"{path} has a row that can't be read: {error}") from error


def write_offsets(path: Path, offsets: Mapping[PartitionKey, int]) -> None:
    rows = (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))
    write_atomically(path, encode_rows(rows))


def read_offsets(path: Path) -> dict[PartitionKey, int]:
    return dict(read_rows(path, _parse_offset_row) or ())


def _parse_offset_row(row: str) -> tuple[PartitionKey, int]:
    topic, partition, offset = row.split()
    return (topic, int(partition)), int(offset)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How a log ended at a clean shutdown: enough to verify with `stat` alone that nothing has changed since.

    The rest answers what clients and background tasks ask about a log, so that it need not be opened for them.
    """

    end_offset: int
    segments_count: int
    active_size_bytes: int
    size_bytes: int
    # None: there is no open transaction.
    first_unstable_offset: int | None = None
    # The largest timestamp of the first segment; -1 if unknown.
    oldest_timestamp: int = -1
    # The leader epochs of the first record and of the last.
    start_epoch: int = -1
    latest_epoch: int = -1


def write_log_ends(path: Path, ends: Mapping[PartitionKey, LogEnd], broker_epoch: int) -> None:
    """The broker epoch names the stop, as it does in the clean-shutdown marker."""
    rows = [f"{_STOP} {broker_epoch}"]
    rows += (
        f"{topic} {partition} {end.end_offset} {end.segments_count} {end.active_size_bytes} {end.size_bytes} "
        f"{-1 if end.first_unstable_offset is None else end.first_unstable_offset} {end.oldest_timestamp} "
        f"{end.start_epoch} {end.latest_epoch}"
        for (topic, partition), end in sorted(ends.items())
    )
    write_atomically(path, encode_rows(rows))


def read_log_ends(path: Path, broker_epoch: int) -> dict[PartitionKey, LogEnd]:
    """How the logs ended at that stop; nothing if the file is from another one, since which they may have changed."""
    rows = read_rows(path, str)
    if not rows or rows[0] != f"{_STOP} {broker_epoch}":
        return {}
    try:
        return dict(map(_parse_log_end_row, rows[1:]))
    except ValueError as error:
        raise CorruptCheckpointError(f"{path} has a row that can't be read: {error}") from error


def _parse_log_end_row(row: str) -> tuple[PartitionKey, LogEnd]:
    topic, partition, *numbers = row.split()
    if len(numbers) != _LOG_END_NUMBERS:
        raise ValueError(f"{len(numbers)} numbers in {row!r}, expected {_LOG_END_NUMBERS}")
    end_offset, segments_count, active_size_bytes, size_bytes, unstable, *others = map(int, numbers)
    first_unstable_offset = None if unstable < 0 else unstable
    end = LogEnd(end_offset, segments_count, active_size_bytes, size_bytes, first_unstable_offset, *others)
    return (topic, int(partition)), end


def write_partition_metadata(directory: Path, topic_id: uuid.UUID) -> None:
    """Record the topic. The log flushes it before it counts any record as flushed."""
    text = f"version: {_VERSION}\ntopic_id: {uuid_to_text(topic_id)}\n"
    write_unflushed(directory / PARTITION_METADATA_FILE, text.encode())


def read_partition_metadata(directory: Path) -> uuid.UUID | None:
    """The topic's id, or None if the directory does not say.

    A power cut soon after the partition was created may leave the file empty or full of zeros; in that case nothing in
    the directory was flushed.
    """
    path = directory / PARTITION_METADATA_FILE
    try:
        text = read_small_file(path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(f"{path} is not a text file: {error}") from error
    if not text.strip("\0"):
        return None
    values = _parse_pairs(text, ":")
    if values.get("version") != _VERSION:
        raise CorruptCheckpointError(f"{path} has version {values.get('version')}, expected {_VERSION}")
    try:
        return uuid_from_text(values.get("topic_id", ""))
    except ValueError as error:
        raise CorruptCheckpointError(f"{path}: {error}") from error


def write_properties(path: Path, values: Mapping[str, str]) -> None:
    write_atomically(path, "".join(f"{name}={value}\n" for name, value in sorted(values.items())).encode())


def read_properties(path: Path) -> dict[str, str]:
    """The pairs of a properties file; empty when there is none."""
    try:
        return _parse_pairs(path.read_text(), "=")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(f"{path} is not a text file: {error}") from error


def _parse_pairs(text: str, separator: str) -> dict[str, str]:
    pairs = {}
    for line in text.splitlines():
        name, found, value = line.partition(separator)
        if found and not line.startswith("#"):
            pairs[name.strip()] = value.strip()
    return pairs


def write_clean_shutdown(directory: Path, broker_epoch: int) -> None:
    contents = json.dumps({"version": _VERSION, "broker_epoch": str(broker_epoch)})
    write_atomically(directory / CLEAN_SHUTDOWN_FILE, contents.encode())


def read_clean_shutdown(directory: Path) -> int | None:
    """The broker epoch that stopped cleanly, -1 if the marker does not say, None without a marker."""
    try:
        contents = (directory / CLEAN_SHUTDOWN_FILE).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return int(json.loads(contents)["broker_epoch"])
    except (ValueError, KeyError, TypeError):
        return -1


def remove_clean_shutdown(directory: Path) -> None:
    (directory / CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
    fsync_directory(directory)
