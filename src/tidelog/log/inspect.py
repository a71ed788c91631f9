"""Looking into log files from outside a broker: what a file holds, and whether the files of a partition agree.

What always holds: nothing is changed, and a broken file ends its listing with the reason instead of raising. Results
are plain rows for the command line to print. CRCs are checked always.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tidelog.common.checks import offset_in_file_name, partition_of_directory
from tidelog.common.light_dataclass import dataclass
from tidelog.log.checkpoints import (
    CLEANER_OFFSET_FILE,
    LEADER_EPOCH_FILE,
    LOG_END_FILE,
    RECOVERY_POINT_FILE,
    PartitionKey,
    read_clean_shutdown,
    read_log_ends,
    read_offsets,
)
from tidelog.log.epochs import LeaderEpochs
from tidelog.log.errors import CorruptCheckpointError, CorruptIndexError, CorruptSnapshotError
from tidelog.log.file_slice import LogFile
from tidelog.log.index import OffsetIndex, TimeIndex
from tidelog.log.producer_entry import ProducerEntry
from tidelog.log.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from tidelog.log.scan import WALK_CHUNK_BYTES, CorruptSegmentError, scan_headers
from tidelog.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from tidelog.log.txn_index import TXN_INDEX_SUFFIX, TransactionIndex
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


@dataclass(frozen=True, slots=True)
class AbortedTransactionRow:
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


Row = BatchRow | OffsetIndexRow | TimeIndexRow | AbortedTransactionRow | ProducerRow | EpochRow | Problem


def dump(path: Path) -> Iterator[Row]:
    """What a log, index, snapshot or leader epoch file holds, in order; raises ValueError for any other file."""
    if path.suffix == LOG_SUFFIX:
        return dump_log(path)
    if path.suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX) and offset_in_file_name(path.stem) is None:
        raise ValueError(f"{path.name} is not the index of a log: those are named after an offset of 20 digits")
    if path.suffix == INDEX_SUFFIX:
        entries = OffsetIndex(path, int(path.stem), 0).entries()
        return (OffsetIndexRow(offset, position) for offset, position in entries)
    if path.suffix == TIME_INDEX_SUFFIX:
        times = TimeIndex(path, int(path.stem), 0).entries()
        return (TimeIndexRow(timestamp, offset) for timestamp, offset in times)
    if path.suffix == TXN_INDEX_SUFFIX:
        return _dump_txn_index(path)
    if path.suffix == SNAPSHOT_SUFFIX:
        return _dump_snapshot(path)
    if path.name == LEADER_EPOCH_FILE:
        return _dump_epochs(path)
    raise ValueError(f"{path.name} is not a log, index, snapshot or leader epoch file")


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


def _dump_txn_index(path: Path) -> Iterator[AbortedTransactionRow | Problem]:
    index = TransactionIndex(path.with_suffix(LOG_SUFFIX))
    try:
        index.check(int(path.stem))
        yield from (AbortedTransactionRow(*entry) for entry in index.entries())
    except CorruptIndexError as error:
        yield Problem(path, -1, str(error))


def _dump_snapshot(path: Path) -> Iterator[ProducerRow | Problem]:
    try:
        entries = decode_snapshot(path.read_bytes())
    except CorruptSnapshotError as error:
        yield Problem(path, -1, str(error))
        return
    for entry in map(ProducerEntry.unpack, entries):
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
    """Check every file of a partition: batches by CRC, order and gaps, indexes against their logs, the rest by format.

    Where the data directory around it tells how far the log was flushed, it is seen whether it still reaches there.
    """
    is_compacted = looks_compacted(directory)
    next_offset: int | None = None
    epochs: list[tuple[int, int]] = []
    last_path = directory
    for path in sorted(directory.glob("*" + LOG_SUFFIX)):
        base_offset = offset_in_file_name(path.stem)
        if base_offset is None:
            yield Problem(path, -1, "segments are not named like this, so the file is not used")
            continue
        if not path.is_file():
            yield Problem(path, -1, "there is a directory in place of the log file")
            continue
        if next_offset is not None and base_offset < next_offset:
            yield Problem(path, 0, f"the segment starts at {base_offset}, the one before it ends at {next_offset - 1}")
        elif next_offset is not None and base_offset > next_offset and not is_compacted:
            yield Problem(path, 0, f"offsets {next_offset} to {base_offset - 1} are missing before the segment")
        next_offset, last_path = base_offset, path
        batches: dict[int, BatchHeader] = {}
        for row in dump_log(path):
            if isinstance(row, Problem):
                yield row
                continue
            header = row.header
            if not row.is_valid:
                yield Problem(path, row.position, f"the CRC of the batch at offset {header.base_offset} is wrong")
            if header.base_offset < next_offset:
                yield Problem(path, row.position, f"offset {header.base_offset} follows {next_offset - 1}")
            elif header.base_offset > next_offset and not is_compacted:
                yield Problem(
                    path,
                    row.position,
                    f"offsets {next_offset} to {header.base_offset - 1} are missing before the batch",
                )
            next_offset = header.next_offset
            batches[row.position] = header
            if row.is_valid and header.partition_leader_epoch > (epochs[-1][0] if epochs else -1):
                epochs.append((header.partition_leader_epoch, header.base_offset))
        yield from _verify_indexes(path, base_offset, batches)
    flushed_offset = flushed_offset_of(directory)
    # A compacted log may have been cut where its batches have a gap; then it ends behind the last of them.
    if flushed_offset > (next_offset or 0) and not is_compacted:
        yield Problem(
            last_path, -1, f"offsets {next_offset or 0} to {flushed_offset - 1} had been flushed but are missing"
        )
    for path in sorted(directory.glob("*" + SNAPSHOT_SUFFIX)):
        yield from (row for row in _dump_snapshot(path) if isinstance(row, Problem))
    yield from _verify_epochs(directory, epochs, next_offset or 0, is_compacted=is_compacted)


def looks_compacted(directory: Path) -> bool:
    """Whether the log was ever compacted: the cleaner's checkpoint names it, or a batch lacks some of its records."""
    key = partition_of_directory(directory.name)
    if key is not None and key in _read_offsets(directory.parent / CLEANER_OFFSET_FILE):
        return True
    for path in sorted(directory.glob("*" + LOG_SUFFIX)):
        if path.is_file():
            for row in _headers(path):
                if 0 < row.records_count <= row.last_offset_delta:
                    return True
    return False


def flushed_offset_of(directory: Path) -> int:
    """Up to where the checkpoints of the data directory say that the partition was flushed; 0 when they do not tell."""
    key = partition_of_directory(directory.name)
    if key is None:
        return 0
    flushed_offset = _read_offsets(directory.parent / RECOVERY_POINT_FILE).get(key, 0)
    broker_epoch = read_clean_shutdown(directory.parent)
    if broker_epoch is not None:
        try:
            log_end = read_log_ends(directory.parent / LOG_END_FILE, broker_epoch).get(key)
        except (CorruptCheckpointError, OSError):
            log_end = None
        flushed_offset = max(flushed_offset, log_end.end_offset if log_end else 0)
    return flushed_offset


def _read_offsets(path: Path) -> dict[PartitionKey, int]:
    """A checkpoint; one that can't be read holds nothing of use, and the broker rewrites it."""
    try:
        return read_offsets(path)
    except (CorruptCheckpointError, OSError):
        return {}


def _headers(path: Path) -> Iterator[BatchHeader]:
    """The headers of a log as far as they can be read."""
    file = LogFile(path, read_only=True)
    try:
        for _, header in scan_headers(path, file.fd, 0, os.fstat(file.fd).st_size, WALK_CHUNK_BYTES):
            yield header
    except CorruptSegmentError:
        return


def verify_indexes(log_path: Path) -> Iterator[Problem]:
    """Check the indexes of one log that is sound itself."""
    batches = {row.position: row.header for row in dump_log(log_path) if isinstance(row, BatchRow)}
    return _verify_indexes(log_path, int(log_path.stem), batches)


def _verify_indexes(log_path: Path, base_offset: int, batches: dict[int, BatchHeader]) -> Iterator[Problem]:
    offsets_path, times_path = log_path.with_suffix(INDEX_SUFFIX), log_path.with_suffix(TIME_INDEX_SUFFIX)
    for path in (offsets_path, times_path):
        if path.exists() and not path.is_file():
            yield Problem(path, -1, "there is a directory in place of the index")
            return
    yield from _verify_txn_index(log_path.with_suffix(TXN_INDEX_SUFFIX), batches)
    last = -1
    for slot, (offset, position) in enumerate(OffsetIndex(offsets_path, base_offset, 0).entries()):
        if slot and offset == base_offset and position == 0:
            break  # the unused rest of an index that is still written to
        header = batches.get(position)
        if header is None or offset < header.last_offset or offset <= last:
            yield Problem(offsets_path, slot, f"entry {slot} points to byte {position}, where offset {offset} is not")
        last = offset
    max_timestamp = max((header.max_timestamp for header in batches.values()), default=-1)
    last_timestamp = -1
    for slot, (timestamp, _) in enumerate(TimeIndex(times_path, base_offset, 0).entries()):
        if timestamp == 0 and slot:
            break
        if timestamp <= last_timestamp or timestamp > max_timestamp:
            yield Problem(times_path, slot, f"entry {slot} has timestamp {timestamp}, which does not fit the log")
        last_timestamp = timestamp


def _verify_txn_index(path: Path, batches: dict[int, BatchHeader]) -> Iterator[Problem]:
    """Every entry belongs to a marker of its producer."""
    if not path.is_file():
        return
    markers = {header.last_offset: header.producer_id for header in batches.values() if header.is_control}
    for slot, row in enumerate(_dump_txn_index(path)):
        if isinstance(row, Problem):
            yield row
        elif markers.get(row.last_offset) != row.producer_id:
            message = f"entry {slot} names a marker of producer {row.producer_id} at offset {row.last_offset}, "
            yield Problem(path, slot, message + "where there is none")


def _verify_epochs(
    directory: Path, found: list[tuple[int, int]], end_offset: int, *, is_compacted: bool
) -> Iterator[Problem]:
    path = directory / LEADER_EPOCH_FILE
    try:
        epochs = LeaderEpochs.load(directory)
    except (CorruptCheckpointError, OSError) as error:
        yield Problem(path, -1, str(error))
        return
    if epochs is not None and not epochs_agree(epochs, found, end_offset, is_compacted=is_compacted):
        began = ", ".join(f"{epoch} with offset {start}" for epoch, start in found)
        yield Problem(path, -1, f"it does not match the batches, in which epochs start as follows: {began}")


def epochs_agree(epochs: LeaderEpochs, found: list[tuple[int, int]], end_offset: int, *, is_compacted: bool) -> bool:
    """Whether a leader epoch file says what the batches say. Of a compacted log an epoch's first batch may be gone."""
    earliest = epochs.earliest
    if earliest is None or not found or earliest.start_offset >= end_offset:
        # As of a log whose records were all deleted; those that still lie in its files belong to no epoch.
        return True
    # Where records were deleted, file and batches begin with different offsets, in the same epoch.
    start = max(earliest.start_offset, found[0][1])
    behind = [(epoch, offset) for epoch, offset in found if offset > start]
    if is_compacted:
        return all(epochs.epoch_for(offset) == epoch for epoch, offset in behind)
    at_start = [epoch for epoch, offset in found if offset <= start][-1]
    listed = [(entry.epoch, entry.start_offset) for entry in epochs.entries if start < entry.start_offset < end_offset]
    return epochs.epoch_for(start) == at_start and listed == behind
