"""Looking into log files from outside a broker: what a file holds, and whether the files of a partition agree.

What always holds: nothing is changed, and a broken file ends its listing with the reason instead of raising. Results
are plain rows for the command line to print. CRCs are checked always.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidelog.common.checks import offset_in_file_name
from tidelog.log.checkpoints import LEADER_EPOCH_FILE
from tidelog.log.epochs import LeaderEpochs
from tidelog.log.errors import CorruptCheckpointError, CorruptSnapshotError
from tidelog.log.file_slice import LogFile
from tidelog.log.index import OffsetIndex, TimeIndex
from tidelog.log.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from tidelog.log.scan import CorruptSegmentError, scan_headers
from tidelog.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from tidelog.records import BatchHeader, CorruptBatchError, check_crc


@dataclass(frozen=True, slots=True)
class BatchRow:
    position: int
    header: BatchHeader
    is_valid: bool


@dataclass(frozen=True, slots=True)
class OffsetIndexRow:
    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class TimeIndexRow:
    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class ProducerRow:
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


@dataclass(frozen=True, slots=True)
class EpochRow:
    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a file that should not be; `position` is -1 where no place can be named."""

    path: Path
    position: int
    message: str


Row = BatchRow | OffsetIndexRow | TimeIndexRow | ProducerRow | EpochRow | Problem


def dump(path: Path) -> Iterator[Row]:
    """What a log, index, snapshot or leader epoch file holds, in order; raises ValueError for any other file."""
    if path.suffix == LOG_SUFFIX:
        return dump_log(path)
    if path.suffix == INDEX_SUFFIX:
        entries = OffsetIndex(path, int(path.stem), 0).entries()
        return (OffsetIndexRow(offset, position) for offset, position in entries)
    if path.suffix == TIME_INDEX_SUFFIX:
        times = TimeIndex(path, int(path.stem), 0).entries()
        return (TimeIndexRow(timestamp, offset) for timestamp, offset in times)
    if path.suffix == SNAPSHOT_SUFFIX:
        return _dump_snapshot(path)
    if path.name == LEADER_EPOCH_FILE:
        return _dump_epochs(path)
    raise ValueError(f"{path.name} is no log, index, snapshot or leader epoch file")


def dump_log(path: Path) -> Iterator[BatchRow | Problem]:
    """Every batch of a segment, with its CRC checked."""
    file = LogFile(path, read_only=True)
    size_bytes = os.fstat(file.fd).st_size
    try:
        for position, header in scan_headers(path, file.fd, 0, size_bytes):
            is_valid = True
            try:
                check_crc(os.pread(file.fd, header.size_bytes, position), header)
            except CorruptBatchError:
                is_valid = False
            yield BatchRow(position, header, is_valid)
    except CorruptSegmentError as error:
        yield Problem(path, error.position, error.reason)


def _dump_snapshot(path: Path) -> Iterator[ProducerRow | Problem]:
    try:
        entries = decode_snapshot(path.read_bytes())
    except CorruptSnapshotError as error:
        yield Problem(path, -1, str(error))
        return
    for entry in entries:
        yield ProducerRow(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )


def _dump_epochs(path: Path) -> Iterator[EpochRow | Problem]:
    try:
        epochs = LeaderEpochs.load(path.parent)
    except CorruptCheckpointError as error:
        yield Problem(path, -1, str(error))
        return
    if epochs is not None:
        yield from (EpochRow(entry.epoch, entry.start_offset) for entry in epochs.entries)


def verify(directory: Path) -> Iterator[Problem]:
    """Check every file of a partition: batches by CRC and order, indexes against their logs, the rest by format."""
    next_offset = 0
    for path in sorted(directory.glob("*" + LOG_SUFFIX)):
        base_offset = offset_in_file_name(path.stem)
        if base_offset is None:
            yield Problem(path, -1, "no segment has such a name, so the file is not used")
            continue
        if base_offset < next_offset:
            yield Problem(
                path, 0, f"the segment starts at {base_offset}, the one before it goes up to {next_offset - 1}"
            )
        next_offset = base_offset
        batches: dict[int, BatchHeader] = {}
        for row in dump_log(path):
            if isinstance(row, Problem):
                yield row
                continue
            if not row.is_valid:
                yield Problem(path, row.position, f"the CRC of the batch at offset {row.header.base_offset} is wrong")
            if row.header.base_offset < next_offset:
                yield Problem(path, row.position, f"offset {row.header.base_offset} follows {next_offset - 1}")
            next_offset = row.header.next_offset
            batches[row.position] = row.header
        yield from _verify_indexes(path, base_offset, batches)
    for path in sorted(directory.glob("*" + SNAPSHOT_SUFFIX)):
        yield from (row for row in _dump_snapshot(path) if isinstance(row, Problem))
    yield from (row for row in _dump_epochs(directory / LEADER_EPOCH_FILE) if isinstance(row, Problem))


def _verify_indexes(log_path: Path, base_offset: int, batches: dict[int, BatchHeader]) -> Iterator[Problem]:
    offsets_path = log_path.with_suffix(INDEX_SUFFIX)
    last = -1
    for slot, (offset, position) in enumerate(OffsetIndex(offsets_path, base_offset, 0).entries()):
        if slot and offset == base_offset and position == 0:
            break  # the unused rest of an index that is still written to
        header = batches.get(position)
        if header is None or offset < header.last_offset or offset <= last:
            yield Problem(offsets_path, slot, f"entry {slot} points to byte {position}, where offset {offset} is not")
        last = offset
    times_path = log_path.with_suffix(TIME_INDEX_SUFFIX)
    max_timestamp = max((header.max_timestamp for header in batches.values()), default=-1)
    last_timestamp = -1
    for slot, (timestamp, _) in enumerate(TimeIndex(times_path, base_offset, 0).entries()):
        if timestamp == 0 and slot:
            break
        if timestamp <= last_timestamp or timestamp > max_timestamp:
            yield Problem(times_path, slot, f"entry {slot} has timestamp {timestamp}, which does not fit the log")
        last_timestamp = timestamp
