"""Reads the position of a version from the files of Spark's checkpoint.

What always holds: reading doesn't disturb a running query; a missing checkpoint has no position and counts as clean. If
there are several queries, or inputs that share a topic, the one furthest behind decides what is done, and the one
furthest ahead what is planned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tidelog.pipeline.versions.switching import Position

_OFFSETS = "offsets"
_COMMITS = "commits"


def checkpoint_dir(state_dir: str | os.PathLike[str], pipeline: str, version: int) -> Path:
    return Path(state_dir) / pipeline / f"v{version}" / "checkpoint"


def position_of(directory: Path) -> Position:
    """The combined position of all queries with checkpoints below a directory."""
    done: dict[str, dict[int, int]] = {}
    planned: dict[str, dict[int, int]] = {}
    is_clean = True
    for query in sorted(path.parent for path in directory.glob(f"**/{_OFFSETS}") if path.is_dir()):
        batches, commits = _numbers(query / _OFFSETS), _numbers(query / _COMMITS)
        if not batches:
            continue
        _merge(planned, _read_offsets(query / _OFFSETS / str(batches[-1])), max)
        is_clean = is_clean and commits[-1:] == batches[-1:]
        finished = [batch for batch in batches if commits and batch <= commits[-1]]
        if finished:
            _merge(done, _read_offsets(query / _OFFSETS / str(finished[-1])), min)
    return Position(done, planned, is_clean)


def _numbers(directory: Path) -> list[int]:
    """The batches that have a file; other files, such as half-written ones, don't have numeric names."""
    return sorted(int(path.name) for path in directory.glob("[0-9]*") if path.name.isdecimal())


def _read_offsets(file: Path) -> Iterator[tuple[str, int, int]]:
    """A file has a version, a line about the batch, and a line for each source: its offsets, or '-' if it has none."""
    for line in file.read_text(encoding="utf-8").splitlines()[2:]:
        document = json.loads(line) if line.startswith("{") else {}
        for topic, partitions in document.items():
            if isinstance(partitions, dict):
                for partition, offset in partitions.items():
                    yield topic, int(partition), int(offset)


def _merge(
    into: dict[str, dict[int, int]], rows: Iterator[tuple[str, int, int]], choose: Callable[[int, int], int]
) -> None:
    for topic, partition, offset in rows:
        partitions = into.setdefault(topic, {})
        partitions[partition] = choose(partitions.get(partition, offset), offset)
