"""Open log files and the parts of them that are sent to clients.

What always holds: a file stays open as long as its segment or any slice of it is referenced, so a slice can be read
and sent after its segment was closed, renamed or deleted; the interpreter's own reference count is the count. A slice
is never longer than the file was when it was made. Nothing here parses what it reads.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidelog.log.open_files import open_descriptor


class LogFile:
    """A segment's `.log`, opened for reading and writing unless said otherwise."""

    __slots__ = ("fd",)

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.fd = -1
        self.fd = open_descriptor(path, os.O_RDONLY if read_only else os.O_RDWR)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class FileSlice:
    """Bytes of a log file, for `sendfile`."""

    __slots__ = ("_file", "is_recent", "position", "size_bytes")

    def __init__(self, file: LogFile, position: int, size_bytes: int, *, is_recent: bool = False) -> None:
        self._file: LogFile | None = file
        self.position = position
        self.size_bytes = size_bytes
        # Written a moment ago, so that it is in memory.
        self.is_recent = is_recent

    @property
    def fd(self) -> int:
        if self._file is None:
            raise ValueError("the slice was released")
        return self._file.fd

    def read(self) -> bytes:
        """All its bytes, for those who can't use sendfile."""
        parts = []
        position, remaining = self.position, self.size_bytes
        while remaining:
            part = os.pread(self.fd, remaining, position)
            if not part:
                raise OSError(f"the log file ends {remaining} bytes before the slice does")
            parts.append(part)
            position += len(part)
            remaining -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Let go of the file; it is closed when nobody else holds it."""
        self._file = None

    def __repr__(self) -> str:
        return f"FileSlice(position={self.position}, size_bytes={self.size_bytes})"
