"""Files and directories that survive a power cut: what must be forced to disk, and in which order.

What always holds: when a function here returns, what it wrote is on disk under the name it was given. The content is
forced before the name, so a name never leads to a file that is empty or half written. The broker's log has rules of
its own for its files.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Force a file's content, or a directory's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make a directory and its parents; those that are new are on disk."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_path(made.parent)


def replace_file(path: Path, text: str) -> None:
    """Write a file as a whole, in one step: readers find the old content or the new."""
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def replace_link(link: Path, target: str) -> None:
    """Make a symbolic link with this target in one step, whatever the name led to before."""
    temporary = link.with_name(f".{link.name}.{os.urandom(6).hex()}")
    os.symlink(target, temporary)
    os.replace(temporary, link)
    sync_path(link.parent)
