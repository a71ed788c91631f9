"""What is kept of a replay on disk, so that the same command goes on where it stopped.

What always holds: `replay.json` is replaced as a whole, and forced to disk, before a chunk begins and after it is done,
so that after any crash it names the one chunk that may or may not have been written. That chunk is written again under
the same number, by which the sink knows what it has already. What a replay does is fixed when it begins; how fast, when
and on which cluster it works is not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.event_replay.range import OffsetRange, Ranges, total

FORMAT = 1
_FILE = "replay.json"
_DIGEST_LETTERS = 8


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """What a replay does, as the user wrote it."""

    topic: str
    into: str
    first: str
    last: str
    filter: str | None = None
    transform: str | None = None
    map: str | None = None
    dead_letters: str | None = None
    by_key: bool = False

    def default_name(self) -> str:
        """The same for the same command, and another for another."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return f"{self.topic}-into-{self.into}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]}"


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows so far: read from the topic, written, refused by the user's function."""

    read: int = 0
    written: int = 0
    refused: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.read + other.read, self.written + other.written, self.refused + other.refused)


@dataclass(slots=True)
class ReplayState:
    """How far a replay is."""

    name: str
    spec: ReplaySpec
    cluster_id: str | None
    code_digest: str | None  # of the files that --transform and --map name
    ranges: Ranges
    begun_ms: int
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    done: dict[int, int] = field(default_factory=dict)
    chunk: Ranges | None = None  # under way, or left so by a crash
    chunk_number: int = 0
    counts: Counts = field(default_factory=Counts)
    finished_ms: int | None = None

    def __post_init__(self) -> None:
        for partition, each in self.ranges.items():
            self.done.setdefault(partition, each.start)

    @property
    def offsets_total(self) -> int:
        return total(self.ranges)

    @property
    def offsets_done(self) -> int:
        return sum(self.done[partition] - each.start for partition, each in self.ranges.items())

    def begin_chunk(self, chunk: Ranges) -> None:
        self.chunk = chunk
        self.chunk_number += 1

    def end_chunk(self, counts: Counts) -> None:
        assert self.chunk is not None  # it was begun
        for partition, each in self.chunk.items():
            self.done[partition] = each.end
        self.chunk = None
        self.counts += counts

    def difference_from(self, spec: ReplaySpec, cluster_id: str | None, code_digest: str | None) -> str | None:
        """Why this can't be the replay that is asked for now, in words; None when it is."""
        for row in dataclasses.fields(ReplaySpec):
            before, now = getattr(self.spec, row.name), getattr(spec, row.name)
            if before != now:
                name = {"first": "from", "last": "to"}.get(row.name, row.name.replace("_", "-"))
                return f"it began with {name} {before or 'left out'}, not {now or 'left out'}"
        if self.cluster_id is not None and cluster_id is not None and self.cluster_id != cluster_id:
            return f"it began on cluster {self.cluster_id}, and this is {cluster_id}"
        if self.code_digest != code_digest:
            return "the file of its function has changed since it began"
        return None


class ReplayStore:
    """The directory of one replay."""

    def __init__(self, state_dir: str | os.PathLike[str], name: str) -> None:
        self.directory = Path(state_dir) / "replays" / name
        self.path = self.directory / _FILE

    def load(self) -> ReplayState | None:
        """None: no such replay has begun."""
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            if document["format"] != FORMAT:
                raise PipelineError(f"{self.path} was written by another version of tidelog; give another --name")
            return _state(document)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(f"{self.path} can't be read ({error}); remove it, or give another --name") from None

    def save(self, state: ReplayState) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(_document(state), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        _force(self.directory)

    def set_aside(self, state: ReplayState) -> Path:
        """Keep what is known of a replay under another name, so that its own is free for a new one."""
        kept = self.path.with_name(f"replay-{state.begun_ms}.json")
        self.path.rename(kept)
        _force(self.directory)
        return kept


def _force(directory: Path) -> None:
    """A file's new name is on disk only when its directory is."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _document(state: ReplayState) -> dict[str, Any]:
    return {"format": FORMAT, **dataclasses.asdict(state)}


def _state(document: Mapping[str, Any]) -> ReplayState:
    return ReplayState(
        name=document["name"],
        spec=ReplaySpec(**document["spec"]),
        cluster_id=document["cluster_id"],
        code_digest=document["code_digest"],
        ranges=_ranges(document["ranges"]),
        begun_ms=document["begun_ms"],
        id=document["id"],
        done={int(partition): offset for partition, offset in document["done"].items()},
        chunk=None if document["chunk"] is None else _ranges(document["chunk"]),
        chunk_number=document["chunk_number"],
        counts=Counts(**document["counts"]),
        finished_ms=document["finished_ms"],
    )


def _ranges(document: Mapping[str, Any]) -> Ranges:
    return {int(partition): OffsetRange(*pair) for partition, pair in document.items()}
