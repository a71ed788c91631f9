"""A move of a log to another data directory, as its files tell it, and what a start makes of one that a crash cut off.

The log is copied into a directory that ends in `-future`. Before it takes the place of the log, a file in it says under
which name the log is put away (`replica-move`, with a number that grows from move to move). Then the log is renamed to
that name, which ends in `-delete`, and the copy gets the log's own name; nothing is appended between the two. Once both
renames are on disk, the file is removed, and later what was put away.

What always holds: the name of the partition in the new directory counts, and once anything that was written there is
flushed, that name is on disk, and so is all that was flushed in the old directory. So a copy that has not got its name
is never needed: where the log was already put away, it gets its name back. If both have the name, since a power cut
undid the first rename only, the one with the file wins. A copy found at the start is dropped, never continued: only the
memory of the broker knew which truncations it had followed. It moves no bytes and knows no open logs.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.log.checkpoints import fsync_directory, read_small_file, write_atomically

logger = logging.getLogger(__name__)

FUTURE_SUFFIX: Final = "-future"
MOVE_FILE: Final = "replica-move"


class MoveNote(NamedTuple):
    """What `replica-move` says."""

    # Of two directories with the name of a partition, the one with the higher number was written last.
    number: int
    # The partition's directory, and the name under which the moved log was put away.
    name: str
    retired_name: str


def write_note(directory: Path, note: MoveNote) -> None:
    """Write and flush it. Blocks."""
    contents = {"version": 1, "number": note.number, "name": note.name, "retired": note.retired_name}
    write_atomically(directory / MOVE_FILE, json.dumps(contents).encode() + b"\n")


def read_note(directory: Path) -> MoveNote | None:
    """None if there is none, or none that can be read, as after a power cut before it was flushed: nothing was renamed.

    Raises OSError.
    """
    try:
        found = json.loads(read_small_file(directory / MOVE_FILE))
        note = MoveNote(found["number"], found["name"], found["retired"])
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError):
        logger.warning("%s can't be read and is ignored", directory / MOVE_FILE)
        return None
    is_sound = isinstance(note.number, int) and all(
        isinstance(name, str) and name not in ("", ".", "..") and "/" not in name for name in note[1:]
    )
    return note if is_sound else None


def remove_note(directory: Path) -> None:
    """Remove it, once nothing depends on it. Blocks."""
    try:
        os.unlink(directory / MOVE_FILE)
    except FileNotFoundError:
        return
    fsync_directory(directory)


def put_back(future: Path, directory: Path) -> bool:
    """Give the log of a copy its name back, if it was put away in this data directory. Blocks; raises OSError.

    A crash in the middle leaves what the next call finishes.
    """
    note = read_note(future)
    if note is None:
        return False
    retired, path = directory / note.retired_name, directory / note.name
    if not retired.is_dir() or path.exists():
        return False
    os.rename(retired, path)
    fsync_directory(directory)
    logger.warning("%s was about to move to another directory when the broker ended; it stays", path)
    return True


def latest_moved(paths: Sequence[Path]) -> Path | None:
    """Of several directories of one partition, the one that the log was moved to last; None if they don't say."""
    numbers: dict[int, list[Path]] = {}
    for path in paths:
        note = read_note(path)
        numbers.setdefault(0 if note is None else note.number, []).append(path)
    latest = numbers[max(numbers)]
    return latest[0] if max(numbers) > 0 and len(latest) == 1 else None
