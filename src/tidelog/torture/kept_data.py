"""What is left of the brokers of a run: their logs in any case, their data where somebody will want to look at it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

# What servers say, and how they were configured. Segments of partitions have names that end in .log, too.
_KEPT_NAMES: Final = ("output.log", "server-*.log", "server.properties")


def keep_data(directory: Path) -> None:
    """Copy data that is on the brokers' own disks, which will be gone, to where the brokers had it."""
    for link in [path for path in directory.rglob("*") if path.is_symlink() and path.is_dir()]:
        target = link.resolve()
        link.unlink()
        shutil.copytree(target, link)


def remove_data(directory: Path) -> None:
    """Remove everything but logs and configurations."""
    for path in sorted(directory.rglob("*"), reverse=True):  # what is in a directory before the directory
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif not any(path.match(name) for name in _KEPT_NAMES):
            path.unlink()
