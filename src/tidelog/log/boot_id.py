"""Tells whether the machine went down since a data directory was last used, or only the process.

What always holds: the kernel's boot id is written to a data directory once its logs are open, so it identifies the boot
during which everything since then was written. The same id at the next start means that the page cache survived, and
with it all writes, in order; a different one means that any unflushed part may be missing. Without an id to compare, as
on systems that have none, the machine is assumed to have stayed up: then nothing is cut off that might be real damage.
"""

from __future__ import annotations

from pathlib import Path

from tidelog.log.checkpoints import write_atomically

BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
BOOT_ID_FILE = ".boot_id"


def was_machine_down(directory: Path) -> bool:
    """Whether the directory was last used under another boot of the machine."""
    last, current = _read(directory / BOOT_ID_FILE), _read(BOOT_ID_PATH)
    return bool(last and current) and last != current


def write_boot_id(directory: Path) -> None:
    """Record the current boot id if it isn't recorded yet. Blocks."""
    current = _read(BOOT_ID_PATH)
    if current and current != _read(directory / BOOT_ID_FILE):
        write_atomically(directory / BOOT_ID_FILE, current.encode() + b"\n")


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""
