"""A disk that can be cut off: code under test runs on real files, and this notes what would survive.

What always holds: every call by which Python code changes files below the root passes through here, so that a process
can be ended before any of them, in the middle of a write, or be given an error; after its end no call changes
anything. A power cut leaves of each file what was last fsynced, mixed at will with what was written since, and of each
directory the names as they were at its last fsync or at any moment since, in order; a file is cut shorter only after
the changes of names before that. That is as much as a journaling file system promises, and no more: names of different
directories are not ordered against one another, and what is written to files is not ordered at all.

It is for one thread at a time that changes files; maps of files may be written to at any time.
"""

from __future__ import annotations

import builtins
import errno
import io
import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

_real = {
    name: getattr(os, name)
    for name in (
        "open", "pwrite", "write", "fsync", "fdatasync", "ftruncate", "truncate", "rename", "replace", "unlink",
        "remove", "mkdir", "rmdir", "link", "scandir", "posix_fallocate",
    )
}  # fmt: skip
_real_io_open = io.open
_RealMmap = mmap.mmap
# Never a place to crash at: the lock does not outlive its process whatever the file holds.
_LOCK_NAME = ".lock"
SECTOR_BYTES = 512


class CrashError(BaseException):
    """The process ends here. No code but the simulation may catch it."""


@dataclass(eq=False)
class _File:
    kept_path: Path  # a second name, so that the contents stay readable and the inode is not given to another file
    durable: bytes = b""
    # How often the names around it had changed when it was last cut shorter.
    cut_at_change: int = 0

    def contents(self) -> bytes:
        fd = _real["open"](self.kept_path, os.O_RDONLY)
        try:
            return os.pread(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)


@dataclass(eq=False)
class _Directory:
    # The names at the last fsync, then after each change since.
    states: list[dict[str, _File | _Directory]] = field(default_factory=lambda: [{}])
    # How many changes lie before the first of these.
    changes_before: int = 0

    @property
    def changes(self) -> int:
        return self.changes_before + len(self.states) - 1

    def settle(self) -> None:
        """Everything until now is on disk."""
        self.changes_before = self.changes
        del self.states[:-1]


class SimulatedDisk:
    """Files below `root`; `shelf` is a directory of its own on the same file system."""

    def __init__(self, root: Path, shelf: Path) -> None:
        self._root = str(root)
        self._shelf = shelf
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Directory] = {}
        self._lock = threading.RLock()
        self._countdown = -1
        self._on_zero: Callable[[], None] = self._crash
        self._torn_share = 0.0
        self.is_dead = False
        self.calls = 0
        self._adopt(root)

    def crash_after(self, calls: int, torn_share: float = 0.0) -> None:
        """End the process at the call after so many; a write is done to this share of its bytes first."""
        self._countdown, self._torn_share, self._on_zero = calls, torn_share, self._crash

    def fail_after(self, calls: int, number: int, torn_share: float = 0.0) -> None:
        """Let the call after so many fail once with this errno."""

        def fail() -> None:
            raise OSError(number, os.strerror(number))

        self._countdown, self._torn_share, self._on_zero = calls, torn_share, fail

    def go_on(self) -> bool:
        """Let all calls pass again; whether one was kept from it."""
        had_hit = self._countdown < 0
        self._countdown = -1
        self.is_dead = False
        return had_hit

    @contextmanager
    def installed(self) -> Iterator[None]:
        disk = self

        class Mapped(_RealMmap):
            """A map that tells of its flushes."""

            def __new__(cls, fd: int, *args: Any, **kwargs: Any) -> Mapped:
                made = super().__new__(cls, fd, *args, **kwargs)
                made.inode = os.fstat(fd).st_ino if fd >= 0 else -1
                return made

            inode: int

            def flush(self, *args: int) -> None:
                if self.inode in disk._files:
                    with disk._lock:
                        disk._tick()
                        disk._files[self.inode].durable = disk._files[self.inode].contents()

        patches: list[Any] = [
            mock.patch.object(os, name, self._wrap(name))
            for name in _real
            if name not in ("scandir", "posix_fallocate")
        ]
        patches += [mock.patch.object(module, "open", self._open_stream) for module in (io, builtins)]
        patches.append(mock.patch.object(mmap, "mmap", Mapped))
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()

    def power_cut(self, target: Path, rng: random.Random, source: Path | None = None) -> None:
        """Write to a new directory what the disk, or a directory of it, may hold after a power cut now."""
        style = rng.choice(("all", "flushed", "mixed", "mixed", "mixed"))
        source = source or Path(self._root)
        self._observe(source)
        self._write_tree(self._directories[os.stat(source).st_ino], target, style, rng)

    def adopt(self, path: Path) -> None:
        """What was put there by others has been there for long."""
        self._observe(path.parent)
        self._adopt(path)

    def _write_tree(self, directory: _Directory, target: Path, style: str, rng: random.Random) -> None:
        target.mkdir()
        states = directory.states
        choice = {"all": len(states) - 1, "flushed": 0}.get(style, rng.randrange(len(states)))
        changes = directory.changes_before + choice
        for name, node in sorted(states[choice].items()):
            if isinstance(node, _Directory):
                self._write_tree(node, target / name, style, rng)
            else:
                (target / name).write_bytes(_survivor(name, node, style, rng, may_shrink=node.cut_at_change <= changes))

    # What is noticed

    def _adopt(self, path: Path) -> None:
        """What is there at the beginning has been there for long."""
        directory = self._directories.setdefault(os.stat(path).st_ino, _Directory())
        self._observe(path)
        directory.settle()
        for name, node in directory.states[0].items():
            if isinstance(node, _File):
                node.durable = node.contents()
            else:
                self._adopt(path / name)

    def _observe(self, path: Path) -> None:
        """Note the names in a directory if they changed."""
        directory = self._directories[os.stat(path).st_ino]
        state: dict[str, _File | _Directory] = {}
        with _real["scandir"](path) as entries:
            for entry in entries:
                if entry.name == _LOCK_NAME:
                    continue
                inode = entry.inode()
                node: _File | _Directory | None
                if entry.is_dir(follow_symlinks=False):
                    node = self._directories.get(inode)
                    if node is None:
                        node = self._directories[inode] = _Directory()
                else:
                    node = self._files.get(inode)
                    if node is None:
                        kept = self._shelf / str(len(self._files))
                        _real["link"](entry.path, kept)
                        node = self._files[inode] = _File(kept)
                state[entry.name] = node
        if state != directory.states[-1]:
            directory.states.append(state)

    def _concerns(self, path: str) -> bool:
        return path.startswith(self._root) and not path.endswith(_LOCK_NAME)

    # What is let pass

    def _tick(self) -> int:
        """Count a call that changes something; says how it goes on for those that can be done in part: -1, whole."""
        if self.is_dead:
            raise CrashError
        self.calls += 1
        if self._countdown < 0:
            return -1
        self._countdown -= 1
        return 0 if self._countdown < 0 else -1

    def _crash(self) -> None:
        self.is_dead = True
        raise CrashError

    def _before(self) -> None:
        if self._tick() == 0:
            self._on_zero()

    def _wrap(self, name: str) -> Callable[..., Any]:
        real = _real[name]
        kind = _KINDS[name]

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                result: Any = kind(self, real, *args, **kwargs)
                return result

        return wrapped

    def _do_open(self, real: Callable[..., Any], path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        name = _full_path(path, kwargs.get("dir_fd"))
        if not flags & os.O_CREAT or not self._concerns(name):
            return real(path, flags, *args, **kwargs)
        if flags & os.O_TRUNC or not os.path.exists(name):
            self._before()
        fd = real(path, flags, *args, **kwargs)
        self._observe(Path(name).parent)
        return fd

    def _open_stream(self, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            if isinstance(path, int) or not set(mode) & set("wax+") or not self._concerns(os.fspath(path)):
                return _real_io_open(path, mode, *args, **kwargs)
            self._before()
            stream = _real_io_open(path, mode, *args, **kwargs)
            self._observe(Path(path).parent)
            return stream

    def _do_write(self, real: Callable[..., Any], fd: int, data: Any, *args: Any) -> Any:
        if os.fstat(fd).st_ino not in self._files:
            return real(fd, data, *args)
        if self._tick() == 0:
            # Only logs are written in large pieces; what fits a page is copied whole or not at all.
            is_log = os.readlink(f"/proc/self/fd/{fd}").endswith(".log")
            torn = memoryview(data)[: int(self._torn_share * len(data)) if is_log else 0]
            if torn:
                real(fd, torn, *args)
            self._on_zero()
        return real(fd, data, *args)

    def _do_sync(self, real: Callable[..., Any], fd: int) -> None:
        inode = os.fstat(fd).st_ino
        if inode in self._files:
            self._before()
            self._files[inode].durable = self._files[inode].contents()
        elif inode in self._directories:
            self._before()
            self._directories[inode].settle()
        # Not done in earnest: the tests' own machine is not switched off.

    def _do_resize(self, real: Callable[..., Any], target: Any, length: int) -> None:
        if isinstance(target, int):
            is_concerned = os.fstat(target).st_ino in self._files
        else:
            is_concerned = self._concerns(os.fspath(target))
        if is_concerned:
            self._before()
            self._note_cut(target, length)
        real(target, length)

    def _note_cut(self, target: Any, length: int) -> None:
        name = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)
        file = self._files.get(os.stat(target).st_ino)
        directory = self._directories.get(os.stat(os.path.dirname(name)).st_ino)
        if file is not None and directory is not None and length < os.stat(target).st_size:
            file.cut_at_change = directory.changes

    def _do_move(self, real: Callable[..., Any], source: Any, target: Any, **kwargs: Any) -> None:
        names = [os.fspath(source), os.fspath(target)]
        if any(map(self._concerns, names)):
            self._before()
        real(source, target, **kwargs)
        for parent in {Path(name).parent for name in names if self._concerns(name)}:
            self._observe(parent)

    def _do_remove(self, real: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> None:
        name = _full_path(path, kwargs.get("dir_fd"))
        if not self._concerns(name):
            real(path, *args, **kwargs)
            return
        self._before()
        inode = os.lstat(name).st_ino
        real(path, *args, **kwargs)
        self._directories.pop(inode, None)
        self._observe(Path(name).parent)

    def _do_mkdir(self, real: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> None:
        if not self._concerns(os.fspath(path)):
            real(path, *args, **kwargs)
            return
        self._before()
        real(path, *args, **kwargs)
        self._observe(Path(path).parent)


_KINDS: dict[str, Callable[..., Any]] = {
    "open": SimulatedDisk._do_open,
    "pwrite": SimulatedDisk._do_write,
    "write": SimulatedDisk._do_write,
    "fsync": SimulatedDisk._do_sync,
    "fdatasync": SimulatedDisk._do_sync,
    "ftruncate": SimulatedDisk._do_resize,
    "truncate": SimulatedDisk._do_resize,
    "rename": SimulatedDisk._do_move,
    "replace": SimulatedDisk._do_move,
    "link": SimulatedDisk._do_move,
    "unlink": SimulatedDisk._do_remove,
    "remove": SimulatedDisk._do_remove,
    "rmdir": SimulatedDisk._do_remove,
    "mkdir": SimulatedDisk._do_mkdir,
}

FAILURES = (errno.EIO, errno.ENOSPC)


def _full_path(path: Any, dir_fd: int | None) -> str:
    name = os.fspath(path)
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    return name if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)


def _survivor(name: str, file: _File, style: str, rng: random.Random, *, may_shrink: bool) -> bytes:
    """What is left of a file."""
    old, new = file.durable, file.contents()
    if style == "all":
        return new
    if style == "flushed" or old == new:
        return old
    if len(new) < len(old):
        # It was cut; what was written behind that goes with it.
        return rng.choice((old, new)) if may_shrink else old
    sizes = [len(old), len(new)]
    block_bytes = SECTOR_BYTES
    if name.endswith(".log"):
        # Small files are written at once and rely on a sector being written whole; logs rely on neither.
        sizes.append(rng.randint(min(sizes), max(sizes)))
        block_bytes = rng.choice((37, 128, SECTOR_BYTES))
    size = rng.choice(sizes)
    chance = rng.random()
    blocks = []
    for start in range(0, size, block_bytes):
        length = min(block_bytes, size - start)
        block = (new if rng.random() < chance else old)[start : start + length]
        blocks.append(block.ljust(length, b"\0"))
    return b"".join(blocks)
