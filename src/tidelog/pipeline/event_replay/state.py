"""The state of a replay on disk, from which the same command resumes it.

What always holds: `replay.json` is replaced atomically and synced to disk before a chunk starts and after it is done,
so after any crash it names the one chunk that may or may not have been written. That chunk is written again under the
same number, so the sink recognizes it. What a replay does is fixed when it starts; how fast, when and on which
cluster it runs is not.
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

from tidelog.common.durable_files import make_directory, replace_file, sync_path
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
        """A name that is the same for the same command, and different for any other."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return f"{self.topic}-into-{self.into}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]}"


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows so far: read from the topic, written, and rejected by the user's function."""

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
    code_digest: str | None  # of the files given with --transform and --map
    ranges: Ranges
    begun_ms: int
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    done: dict[int, int] = field(default_factory=dict)
    chunk: Ranges | None = None  # in progress, or left that way by a crash
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
        assert self.chunk is not None  # begin_chunk comes first
        for partition, each in self.chunk.items():
            self.done[partition] = each.end
        self.chunk = None
        self.counts += counts

    def difference_from(self, spec: ReplaySpec, cluster_id: str | None, code_digest: str | None) -> str | None:
        """Why this is not the replay that is requested now, as a message; None if it is."""
        for row in dataclasses.fields(ReplaySpec):
            before, now = getattr(self.spec, row.name), getattr(spec, row.name)
            if before != now:
                name = {"first": "from", "last": "to"}.get(row.name, row.name.replace("_", "-"))
                return f"it was started with {_option(name, before)}, not {_option(name, now)}"
        if self.cluster_id is not None and cluster_id is not None and self.cluster_id != cluster_id:
            return f"it was started on cluster {self.cluster_id}, and this is {cluster_id}"
        if self.code_digest != code_digest:
            return "the file of its function has changed since it was started"
        return None


def _option(name: str, value: object) -> str:
    """An option as the user wrote it; flags have no value of their own."""
    if value is None or value is False:
        return f"no --{name}"
    return f"--{name}" if value is True else f"--{name} {value}"


class ReplayStore:
    """The directory of one replay."""

    def __init__(self, state_dir: str | os.PathLike[str], name: str) -> None:
        self.directory = Path(state_dir) / "replays" / name
        self.path = self.directory / _FILE

    def load(self) -> ReplayState | None:
        """The saved state, or None if there is no such replay."""
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            if document["format"] != FORMAT:
                raise PipelineError(f"{self.path} was written by another version of tidelog; choose another --name")
            return _state(document)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(f"{self.path} can't be read ({error}); remove it, or choose another --name") from None

    def save(self, state: ReplayState) -> None:
        make_directory(self.directory)
        replace_file(self.path, json.dumps(_document(state), indent=1))

    def set_aside(self, state: ReplayState) -> Path:
        """Move the saved state to another file, so that a new replay can use the name."""
        kept = self.path.with_name(f"replay-{state.begun_ms}.json")
        self.path.rename(kept)
        sync_path(self.directory)
        return kept


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
