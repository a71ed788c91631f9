"""A lookup that would have to wait for the disk, and how a thread prepares it: by reading the same data first.

What always holds: preparing changes nothing and needs no lock, since it opens the files itself and only reads; at
worst, a change in the meantime makes the lookup find something out of memory again. It uses no mapped file: a thread
that waits for a page of one holds the interpreter's lock, so everyone would wait.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from tidelog.log.errors import LogStorageError
from tidelog.log.index import find_position
from tidelog.log.page_cache import bring_in
from tidelog.log.scan import CorruptSegmentError, scan_headers

logger = logging.getLogger(__name__)


class NotInMemoryError(Exception):
    """An offset can't be looked up without waiting for the disk; call `bring_in` in a thread first."""

    def bring_in(self) -> None:
        """Read what the look-up will read. Blocks; raises OSError, which the look-up itself would meet as well."""
        raise NotImplementedError


class LogNotOpenError(NotInMemoryError):
    """The log is at rest."""

    def __init__(self, name: str, open_log: Callable[[], object]) -> None:
        super().__init__(f"{name} has to be opened first")
        self._open_log = open_log

    def bring_in(self) -> None:
        """Open the log. Blocks."""
        try:
            self._open_log()
        except LogStorageError as error:
            # The lookup meets the same error and reports it.
            logger.debug("%s", error.message)


class ColdSegmentError(NotInMemoryError):
    """A part of a segment, or of its index, is on disk only."""

    def __init__(self, log_path: Path, index_path: Path, relative_offset: int, size_bytes: int) -> None:
        super().__init__(f"looking into {log_path} has to wait for the disk")
        self._log_path = log_path
        self._index_path = index_path
        self._relative_offset = relative_offset
        self._size_bytes = size_bytes

    def bring_in(self) -> None:
        """Read what the look-up will read. Blocks; raises OSError, which the look-up itself would meet as well."""
        base_offset = int(self._log_path.name.partition(".")[0])
        try:
            position = self._bring_in_index()
            fd = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # Deleted in the meantime; the lookup knows what that means.
            return
        try:
            headers = scan_headers(self._log_path, fd, position, self._size_bytes)
            for _, header in headers:
                if header.last_offset >= base_offset + self._relative_offset:
                    return
        except CorruptSegmentError:
            # A wrong index, or damage: the lookup notices, and repairs or reports it.
            return
        finally:
            os.close(fd)

    def _bring_in_index(self) -> int:
        fd = os.open(self._index_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(fd).st_size
            bring_in(fd, 0, size_bytes)
            position = find_position(os.pread(fd, size_bytes, 0), self._relative_offset)
        finally:
            os.close(fd)
        return position if position < self._size_bytes else 0
