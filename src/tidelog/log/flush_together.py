"""Flushes many logs together: one syncfs(2) per data directory, instead of several fsyncs for each of thousands.

What always holds: a log counts as flushed only if syncfs returned without an error, on a kernel and filesystem where it
reports failed write-backs, and only up to where the log ended before the call. In every other case nothing has changed,
and each log has to be flushed separately, which shows the one that failed. If the machine has too much dirty memory,
syncfs is not used, because it also writes the filesystem's other files.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.log.errors import LogStorageError

if TYPE_CHECKING:
    from tidelog.log.directory import LogDirectory
    from tidelog.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

MANY_LOGS: Final = 64
"""From here on one syncfs costs less than flushing each log, some 2 ms of fsyncs, in turn."""

# Since Linux 5.8 syncfs reports errors of all files since the descriptor was opened; before, it returned 0 regardless.
_KERNEL_MIN = (5, 8)
# File systems that record each failed write-back where syncfs looks. On others (overlays, FUSE, network) it may not
# hear of one.
_FILE_SYSTEMS = frozenset({0xEF53, 0x58465342, 0x9123683E})  # ext4, XFS, Btrfs
# Other programs' writes have to reach the disk as well: at a few hundred MB per second this takes a few seconds.
_DIRTY_BYTES_MAX = 1 << 30


def flush_together(directory: LogDirectory, logs: Sequence[PartitionLog], *, closing: bool = False) -> bool:
    """Flush logs of one directory; if `closing`, with all that a clean start needs. False: none was flushed. Blocks."""
    fd = directory.descriptor
    if len(logs) < MANY_LOGS or fd < 0 or not _can_sync(fd):
        return False
    if closing:
        logs = [log for log in logs if _try(log.settle)]
    marks = [(log, log.flush_mark()) for log in logs]
    # In this order: one that was marked after it had moved to another directory is left out here.
    marks = [(log, mark) for log, mark in marks if log.parent == directory.path]
    try:
        sync_file_system(fd)
    except OSError as error:
        # It may have been another file on that disk; flushing each log separately shows whose it was.
        logger.warning("can't flush the whole filesystem of %s: %s", directory.path, error)
        return False
    for log, mark in marks:
        log.note_flushed(mark)
    return True


def sync_file_system(fd: int) -> None:
    """Flush the whole filesystem of the descriptor; raises OSError."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _can_sync(fd: int) -> bool:
    return (
        _kernel_version() >= _KERNEL_MIN and file_system_type(fd) in _FILE_SYSTEMS and dirty_bytes() <= _DIRTY_BYTES_MAX
    )


def _kernel_version() -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release) if os.uname().sysname == "Linux" else None
    return (int(found[1]), int(found[2])) if found else (0,)


def file_system_type(fd: int) -> int:
    """The magic number of the descriptor's filesystem; 0 if unknown."""
    import ctypes

    # The first field of struct statfs is the type, in a machine word; the rest is not looked at.
    buffer = (ctypes.c_long * 64)()
    if ctypes.CDLL(None, use_errno=True).fstatfs(fd, buffer) != 0:
        return 0
    return buffer[0] & 0xFFFFFFFF


def dirty_bytes(path: Path = Path("/proc/meminfo")) -> int:
    """How much the machine has written that is not on its disks yet."""
    counts = re.findall(r"^(?:Dirty|Writeback):\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    return sum(int(count) for count in counts) * 1024


def _try(step: Callable[[], None]) -> bool:
    try:
        step()
    except LogStorageError as error:
        logger.error("%s", error.message)
        return False
    return True
