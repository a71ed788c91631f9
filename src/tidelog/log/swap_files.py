"""How a cleaned segment takes the place of others, file by file, so that a crash at any point leaves one or the other.

A cleaned segment is written and flushed under names that end in `.cleaned`. Then its files are renamed to `.swap`, the
log last: from the moment `<base offset>.log.swap` is there, the swap is decided. The old files are renamed away, and
the `.swap` files get their final names, the log last again. So after a crash `.cleaned` files, and indexes in `.swap`
without their log, are dropped; a `.log.swap` is put in place, and whatever segments begin within its offsets go first.

A transaction index is written for the cleaned segment wherever one of the others has one, even an empty one, so that
the old one of that name never stays.

What always holds: the last batch of what is replaced is also the last batch of the cleaned segment, emptied if need be,
so its offsets tell which segments it replaces. Callers flush the directory between the steps.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from tidelog.common.checks import offset_in_file_name
from tidelog.log.checkpoints import fsync_directory
from tidelog.log.file_slice import LogFile
from tidelog.log.producer_snapshot import SNAPSHOT_SUFFIX
from tidelog.log.scan import WALK_CHUNK_BYTES, scan_headers
from tidelog.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from tidelog.log.txn_index import TXN_INDEX_SUFFIX

logger = logging.getLogger(__name__)

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"


def cleaned_path(path: Path) -> Path:
    """Where the file that will replace this one is written."""
    return path.with_name(path.name + CLEANED_SUFFIX)


def swap_path(path: Path) -> Path:
    return path.with_name(path.name + SWAP_SUFFIX)


def segment_paths(directory: Path, base_offset: int) -> list[Path]:
    """The files of a segment in the order in which they are renamed and removed: the log decides, so it is last."""
    stem = f"{base_offset:020d}"
    return [directory / (stem + suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, LOG_SUFFIX)]


# One swap, step by step


def decide_swap(directory: Path, base_offset: int) -> None:
    """From here on the cleaned segment counts; the old files may still be there."""
    for path in segment_paths(directory, base_offset):
        _rename(cleaned_path(path), swap_path(path))


def put_in_place(directory: Path, base_offset: int) -> None:
    """Give the files of a decided swap their final names; the old ones are gone by now."""
    for path in segment_paths(directory, base_offset):
        _rename(swap_path(path), path)


def _rename(path: Path, target: Path) -> None:
    try:
        os.rename(path, target)
    except FileNotFoundError:
        # Most segments have no transaction index.
        if TXN_INDEX_SUFFIX not in path.suffixes:
            raise


def discard(directory: Path, base_offset: int) -> None:
    """Remove what was written for a swap that was given up; the old files are untouched."""
    for path in segment_paths(directory, base_offset):
        for written in (cleaned_path(path), swap_path(path)):
            written.unlink(missing_ok=True)


# After a crash


def finish_swaps(directory: Path) -> None:
    """Put decided swaps in place and remove what belongs to undecided ones; a damaged one raises CorruptSegmentError.

    A crash in the middle of this, too, leaves something that the next call finishes.
    """
    names = [name for name in os.listdir(directory) if _base_offset(name) >= 0]
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    swapped = [name for name in names if name.endswith(SWAP_SUFFIX)]
    if not cleaned and not swapped:
        return
    # Other brokers rename the log first. Files that are still to be renamed say that the swap was not decided.
    undecided = min((_base_offset(name) for name in cleaned), default=None)
    for name in swapped:
        base_offset = _base_offset(name)
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX) and (undecided is None or base_offset < undecided):
            _finish(directory, base_offset)
    # An index in `.swap` without its log may belong to what was never decided. It is cheaper to rebuild it than to
    # find out.
    for name in (*cleaned, *swapped):
        (directory / name).unlink(missing_ok=True)
    fsync_directory(directory)


def _finish(directory: Path, base_offset: int) -> None:
    paths = segment_paths(directory, base_offset)
    end_offset = _end_offset(swap_path(paths[-1]), base_offset)
    replaced = sorted(name for name in os.listdir(directory) if base_offset <= _replaceable_offset(name) < end_offset)
    txn_index = f"{base_offset:020d}{TXN_INDEX_SUFFIX}"
    if txn_index in replaced and not swap_path(directory / txn_index).exists():
        # It is in place already: the indexes come before the log.
        replaced.remove(txn_index)
    for name in replaced:
        # What producers had written before the first of the replaced segments is as true as it was.
        if not name.endswith(SNAPSHOT_SUFFIX) or _base_offset(name) > base_offset:
            os.unlink(directory / name)
    # Old and new must never be there together without the mark that says which of them counts.
    fsync_directory(directory)
    for path in paths:
        if swap_path(path).exists():
            os.rename(swap_path(path), path)
    logger.info("%s: offsets %d to %d were compacted before a crash, now in place", directory, base_offset, end_offset)


def _end_offset(path: Path, base_offset: int) -> int:
    file = LogFile(path, read_only=True)
    end_offset = base_offset + 1  # an empty one, as other brokers may leave it, replaces its namesake at least
    for _, header in scan_headers(path, file.fd, 0, os.fstat(file.fd).st_size, WALK_CHUNK_BYTES):
        end_offset = header.next_offset
    return end_offset


def _replaceable_offset(name: str) -> int:
    """The offset in the name of a file that goes with its segment, -1 for all others."""
    if name.endswith((LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)):
        return _base_offset(name)
    return -1


def _base_offset(name: str) -> int:
    offset = offset_in_file_name(name.partition(".")[0])
    return -1 if offset is None else offset
