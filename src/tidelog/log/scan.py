"""Reading batch headers out of a log file without reading the records between them.

What always holds: a header that is given out lies with its whole batch inside of the bounds, and its offsets are
above those before it; whatever breaks this raises CorruptBatchError with the position. CRCs are not checked here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tidelog.log.page_cache import read_in_memory
from tidelog.records import BATCH_HEADER_SIZE, BatchHeader, CorruptBatchError, parse_header

# One read covers what lies between two index entries at the default interval, and costs about as little as one header.
LOOKUP_CHUNK_BYTES = 8 * 1024
# For walking over a whole file: with small batches this saves most system calls, with large ones it reads little in
# vain.
WALK_CHUNK_BYTES = 64 * 1024


class CorruptSegmentError(CorruptBatchError):
    """What a log file holds at a position is no sound batch."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.position = position


def scan_headers(
    path: Path, fd: int, position: int, end: int, chunk_bytes: int = LOOKUP_CHUNK_BYTES, *, in_memory: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch from a batch's position on.

    `in_memory`: raise BlockingIOError rather than wait for the disk.
    """
    read = read_in_memory if in_memory else os.pread
    chunk = b""
    chunk_start = position
    next_offset = -1
    while position < end:
        at = position - chunk_start
        if at + BATCH_HEADER_SIZE > len(chunk):
            chunk = read(fd, min(chunk_bytes, end - position), position)
            chunk_start, at = position, 0
        try:
            header = parse_header(chunk, at, whole_batch=False)
        except CorruptBatchError as error:
            raise CorruptSegmentError(path, position, error.reason) from error
        if position + header.size_bytes > end:
            raise CorruptSegmentError(
                path, position, f"the batch has {header.size_bytes} bytes, {end - position} are there"
            )
        if header.base_offset < next_offset:
            raise CorruptSegmentError(path, position, f"offset {header.base_offset} follows {next_offset - 1}")
        yield position, header
        next_offset = header.next_offset
        position += header.size_bytes
