"""Judging the bytes of a log file: is this a sound batch, does another follow behind a bad place, was anything written.

What always holds: a batch counts as sound only with a right CRC and offsets that may follow those before it. Nothing
is changed, and no record is opened.
"""

from __future__ import annotations

import mmap
import re

from tidelog.records import BATCH_HEADER_SIZE, BatchHeader, CorruptBatchError, check_crc, parse_header

_ZEROS = bytes(1024 * 1024)


def checked_header(view: memoryview, position: int, offset_min: int, offset_max: int) -> BatchHeader:
    """The header of a sound batch whose offsets lie within bounds; raises CorruptBatchError."""
    header = parse_header(view, position)
    if header.base_offset < offset_min or header.last_offset > offset_max:
        raise CorruptBatchError(f"offset {header.base_offset} follows {offset_min - 1}")
    check_crc(view, header, position)
    return header


def next_good_batch(mapped: mmap.mmap, view: memoryview, position: int, offset_min: int, offset_max: int) -> int | None:
    """Where behind a bad place sound batches lie, or None.

    A torn batch may carry bytes that look like a batch, as a mirror of another log would; so those found must reach
    the end of the file or be two in a row.
    """
    if is_unwritten(view, position):
        return None
    # A batch of the same log shares the upper half of its offset; magic 2 stands twelve bytes behind the lower half.
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
    """Whether only zeros follow, as in a preallocated file; quick, as they may be many."""
    return all(
        view[start : start + len(_ZEROS)] == _ZEROS[: len(view) - start]
        for start in range(position, len(view), len(_ZEROS))
    )
