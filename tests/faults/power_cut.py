"""What a power cut leaves of a directory, in the worst case that a file system allows.

What always holds: content survives as it was when its file was last forced to disk, and is empty before; a name
survives only if its directory was forced after the name was given. Nothing else is kept, however likely a real disk
would have kept it. So code that is right here forces everything it relies on, and in the right order.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from unittest import mock


@dataclass(frozen=True)
class _Entry:
    inode: int
    mode: int
    target: str = ""  # of a symbolic link


class PowerCut:
    """Watches what is forced to disk while it is entered; `leave` then makes the directory that is left."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, _Entry]] = {}
        self._fsync = os.fsync
        self._patch: Any = mock.patch("os.fsync", self._note)

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def _note(self, descriptor: int) -> None:
        self._fsync(descriptor)
        found = os.fstat(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = {entry.name: _entry(entry.path) for entry in os.scandir(path)}
        else:
            self._contents[found.st_ino] = Path(path).read_bytes()

    def leave(self, into: Path, lucky: str | None = None) -> Path:
        """The directory after the cut; the root itself was there before anything began.

        A disk may also write what nobody forced: all of the directory with the name `lucky` survives.
        """
        into.mkdir(parents=True)
        self._restore(os.stat(self._root).st_ino, into)
        if lucky is not None:
            for found in self._root.rglob(lucky):
                shutil.copytree(found, into / found.relative_to(self._root), dirs_exist_ok=True)
        return into

    def _restore(self, inode: int, into: Path) -> None:
        made: dict[int, Path] = {}
        for name, entry in self._names.get(inode, {}).items():
            path = into / name
            if stat.S_ISDIR(entry.mode):
                path.mkdir()
                self._restore(entry.inode, path)
            elif stat.S_ISLNK(entry.mode):
                path.symlink_to(entry.target)
            elif entry.inode in made:
                path.hardlink_to(made[entry.inode])
            else:
                path.write_bytes(self._contents.get(entry.inode, b""))
                made[entry.inode] = path


def _entry(path: str) -> _Entry:
    found = os.lstat(path)
    return _Entry(found.st_ino, found.st_mode, os.readlink(path) if stat.S_ISLNK(found.st_mode) else "")
