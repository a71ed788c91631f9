"""Inspects the bytes of a log file: is this a sound batch, do sound ones follow damage, was anything written at all.

What always holds: a batch counts as sound only if its CRC is correct and its offsets can follow the previous ones.
Nothing is changed, and no record is opened.
"""

from __future__ import annotations

import mmap
import re

from tidelog.records import BATCH_HEADER_SIZE, BatchHeader, CorruptBatchError, check_crc, parse_header

_ZEROS = bytes(1024 * 1024)


def checked_header(view: memoryview, position: int, offset_min: int, offset_max: int) -> BatchHeader:
    """The header of a sound batch whose offsets are within bounds; raises CorruptBatchError."""
    header = parse_header(view, position)
    if header.base_offset < offset_min or header.last_offset > offset_max:
        raise CorruptBatchError(f"offset {header.base_offset} follows {offset_min - 1}")
    check_crc(view, header, position)
    return header


def next_good_batch(mapped: mmap.mmap, view: memoryview, position: int, offset_min: int, offset_max: int) -> int | None:
    """Where sound batches follow after damage, or None.

    A torn batch may contain bytes that look like a batch, for example if it mirrors another log; so what is found must
    reach the end of the file or be two batches in a row.
    """
    if is_unwritten(view, position):
        return None
    # A batch of the same log has the same upper half of its offset; magic 2 is twelve bytes after the lower half.
    upper = re.escape((offset_min >> 32).to_bytes(4, "big"))
    pattern = re.compile(rb"(?=" + upper + rb".{12}\x02)", re.DOTALL)
    size_bytes = len(view)
    for match in pattern.finditer(mapped, position + 1):
        at, found = match.start(), 0
        next_offset = offset_min
        while at + BATCH_HEADER_SIZE <= size_bytes and found < 2:
            try:
                header = checked_header(view, at, next_offset, offset_max)
            except CorruptBatchError:
                break
            found += 1
            next_offset = header.next_offset
            at += header.size_bytes
        if found == 2 or (found and at == size_bytes):
            return match.start()
    return None


def is_unwritten(view: memoryview, position: int) -> bool:
    """Whether only zeros follow, as in a preallocated file; fast, because there may be many."""
    return all(
        view[start : start + len(_ZEROS)] == _ZEROS[: len(view) - start]
        for start in range(position, len(view), len(_ZEROS))
    )
