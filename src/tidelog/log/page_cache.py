"""Tells whether bytes of a file are in memory, so that the event loop can leave reading them to a thread if not.

What always holds: `read_in_memory` and `is_in_memory` never wait for a disk; if they can't tell, because the system or
the filesystem doesn't say, they assume that the bytes are in memory. `bring_in` waits and is for threads: it releases
the interpreter's lock, which touching a mapped page would not.

Measured on Linux 6.18, ext4, for 1 MiB of a file: cachestat 1.0 us, one byte read with RWF_NOWAIT 1.1 us, mincore
27 us, and that needs the file mapped. cachestat counts pages that are still being read as there; RWF_NOWAIT knows
better, but for the pages it reads only. So the whole stretch is counted, and while anything was brought in of late, its
last page is read, too. What threads of other modules read counts for nothing here: at worst the loop waits for that.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_CHUNK_BYTES = 1024 * 1024
# No disk takes longer to complete a read; if one does, a little more waiting no longer matters.
_IN_FLIGHT_S = 30.0
_CACHESTAT = 451  # the number of the system call, the same on all of Linux's architectures

Count = Callable[[int, int, int], int]


def read_in_memory(fd: int, size_bytes: int, position: int) -> bytes:
    """Like `os.pread` of bytes that the file has; raises BlockingIOError if not all of them are in memory."""
    if not _NOWAIT:
        return os.pread(fd, size_bytes, position)
    buffer = bytearray(size_bytes)
    try:
        count = os.preadv(fd, [buffer], position, _NOWAIT)
    except BlockingIOError:
        # The kernel has begun to read them.
        _last_read_s[0] = time.monotonic()
        raise
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        # Such as a file system in memory.
        return os.pread(fd, size_bytes, position)
    if count < size_bytes:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return bytes(buffer)


def is_in_memory(fd: int, position: int, size_bytes: int) -> bool:
    """Whether reading these bytes, which the file has, needs no disk."""
    if size_bytes <= 0:
        return True
    count_pages = _counter()
    if count_pages is not None:
        first, last = position // _PAGE_BYTES, (position + size_bytes - 1) // _PAGE_BYTES
        counted = count_pages(fd, first * _PAGE_BYTES, (last - first + 1) * _PAGE_BYTES)
        if 0 <= counted <= last - first:
            return False
        if time.monotonic() - _last_read_s[0] > _IN_FLIGHT_S:
            return True
    try:
        if count_pages is None:
            read_in_memory(fd, 1, position)
        read_in_memory(fd, 1, position + size_bytes - 1)
    except BlockingIOError:
        return False
    return True


def is_file_in_memory(path: Path) -> bool:
    """Like `is_in_memory`, for a whole file; a missing file needs no waiting."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return is_in_memory(fd, 0, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def bring_in(fd: int, position: int, size_bytes: int) -> None:
    """Read these bytes into memory, or as many as the file has. Blocks."""
    _last_read_s[0] = time.monotonic()
    buffer = bytearray(min(_CHUNK_BYTES, size_bytes))
    end = position + size_bytes
    while position < end:
        count = os.preadv(fd, [memoryview(buffer)[: end - position]], position)
        if not count:
            return
        _check_counter(fd, position)
        position += count


def _check_counter(fd: int, position: int) -> None:
    """Stop counting if a page that was just read is not seen, as in a file system on top of another."""
    if _made_counter and _made_counter[0] is not None:
        count_pages = _make_counter()
        if count_pages is not None and not count_pages(fd, position // _PAGE_BYTES * _PAGE_BYTES, _PAGE_BYTES):
            _made_counter[0] = None


def _make_counter() -> Count | None:
    """cachestat, which Python has no function for: how many pages of a stretch are in memory, below 0 when unknown."""
    # Here because it takes some milliseconds, which a start should not pay for.
    import ctypes

    class Range(ctypes.Structure):
        _fields_ = (("position", ctypes.c_uint64), ("size_bytes", ctypes.c_uint64))

    class Counts(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recent"))

    try:
        syscall = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return None
    stretch, counts = Range(), Counts()
    arguments = (ctypes.byref(stretch), ctypes.byref(counts), 0)

    def count_pages(fd: int, position: int, size_bytes: int) -> int:
        stretch.position = position
        stretch.size_bytes = size_bytes
        return int(counts.cache) if syscall(_CACHESTAT, fd, *arguments) == 0 else -1

    with open(__file__, "rb") as file:
        return count_pages if count_pages(file.fileno(), 0, _PAGE_BYTES) >= 0 else None


_made_counter: list[Count | None] = []
# When something was last to be read from a disk; it may not have arrived yet.
_last_read_s = [-_IN_FLIGHT_S]


def _counter() -> Count | None:
    """Made when first needed. For the event loop's thread only, as the structures are shared between calls."""
    if not _made_counter:
        _made_counter.append(_make_counter())
    return _made_counter[0]
