"""Keeps bytes that are removed from a partition's log in a directory next to the partition's, for a person to examine.

What always holds: a log loses nothing before its copy is on disk, directory entries included; whole files are
hard-linked, which takes no space, and only the end of a file that stays is copied. A broker never deletes or reads
anything here. A copy that does not fit raises OSError and leaves nothing behind.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from tidelog.log.checkpoints import fsync_directory

CUT_SUFFIX = "-cut"
_COPY_BYTES = 1024 * 1024
_FILE_NAME_BYTES_MAX = 255


class SetAside:
    """What is removed from one partition; the directory is created for the first item."""

    def __init__(self, partition_directory: Path) -> None:
        suffix = f".{uuid.uuid4().hex}{CUT_SUFFIX}"
        name = partition_directory.name[: _FILE_NAME_BYTES_MAX - len(suffix)] + suffix
        self.path = partition_directory.with_name(name)
        self.size_bytes = 0
        self._is_made = False

    @property
    def is_empty(self) -> bool:
        return not self._is_made

    def keep_file(self, path: Path) -> None:
        """Give a whole file a second name here. The caller removes the first one, after `flush`."""
        self._make_directory()
        try:
            os.link(path, self.path / path.name)
        except OSError:
            # Some filesystems have no hard links.
            self.keep_part(path, 0, path.stat().st_size, path.name)
            return
        self.size_bytes += path.stat().st_size

    def move_directory(self, path: Path) -> None:
        """Move a directory, which can't be hard-linked."""
        self._make_directory()
        os.rename(path, self.path / path.name)

    def keep_part(self, path: Path, start: int, end: int, name: str | None = None) -> None:
        """Copy a range of a file's bytes; the name says where they started."""
        self._make_directory()
        target = self.path / (name or f"{path.name}.from-{start}")
        source_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            target_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                for position in range(start, end, _COPY_BYTES):
                    _write_all(target_fd, os.pread(source_fd, min(_COPY_BYTES, end - position), position))
                os.fsync(target_fd)
            except OSError:
                os.unlink(target)
                raise
            finally:
                os.close(target_fd)
        finally:
            os.close(source_fd)
        self.size_bytes += end - start

    def flush(self) -> None:
        """Make the names survive a power cut."""
        if not self.is_empty:
            fsync_directory(self.path)
            fsync_directory(self.path.parent)

    def discard(self) -> None:
        """Undo it all, as long as nothing was taken out of the log."""
        if self.path.exists():
            for path in self.path.iterdir():
                path.unlink()
            self.path.rmdir()
        self.size_bytes = 0
        self._is_made = False

    def _make_directory(self) -> None:
        self.path.mkdir(exist_ok=True)
        self._is_made = True


def _write_all(fd: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]
