"""Compares the output of one version with that of another, by key.

What always holds: both sides are read as a read_committed consumer sees them. The live and the new version may be at
different offsets of their inputs, so these are reported, and the comparison is repeated for a while to find a moment
when they are the same. Keyed topics are compared by the last value of every key, as JSON if that is their format and
otherwise as bytes; tables by their key columns; outputs without a key by whole records and how often each occurs.
Headers are ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from tidelog.client.errors import BrokerError, NoSuchPartitionError
from tidelog.pipeline.declaration import Pipeline
from tidelog.pipeline.outputs import Output, TableOutput, TopicOutput
from tidelog.pipeline.versions.contents import Contents, Counts
from tidelog.pipeline.versions.registry_rows import Offsets
from tidelog.pipeline.versions.switch_outputs import meaning_of
from tidelog.pipeline.versions.switching import Position
from tidelog.pipeline.versions.topic_reader import Tell, TopicReader, record_parts

Kind = Literal["added", "changed", "missing"]
_KINDS: tuple[Kind, ...] = ("added", "changed", "missing")
_ROWS_AT_ONCE = 10_000
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """One difference: the key and its values in the old and the new output, parsed if they are JSON."""

    kind: Kind
    key: Any
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class OutputDiff:
    """The differences in one output; `compared` says how they were found, such as "keys, values as JSON"."""

    name: str
    old: str
    new: str
    compared: str
    counts: Counts
    samples: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences in all outputs, and the positions of both versions in their inputs."""

    pipeline: str
    old_version: int
    new_version: int
    old_at: Offsets
    new_at: Offsets
    is_same_position: bool
    outputs: Sequence[OutputDiff]

    @property
    def is_equal(self) -> bool:
        return all(output.counts.differing == 0 for output in self.outputs)


class Comparison:
    """Compares what two versions have written; keeps temporary files in `directory`."""

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        old: Pipeline,
        new: Pipeline,
        position: Callable[[int], Position],
        tell: Tell | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self._old, self._new = old, new
        self._position = position
        self._tell = tell
        self._stack = ExitStack()
        self._readers: list[TopicReader] = []

    def run(self, *, samples: int, patience_s: float) -> Diff:
        """Compare when both are at the same position, or at any time if that doesn't happen within `patience_s`."""
        with self._stack:
            return self._run(samples, time.monotonic() + patience_s)

    def _run(self, samples: int, deadline_s: float) -> Diff:
        sides = [(output, *self._sides(output)) for output in self._new.outputs]
        while True:
            before = self._position(self._old.version), self._position(self._new.version)
            for reader in self._readers:
                reader.read_to_end(self._tell)
            for output, old, new in sides:
                self._read_table(output, old, new)
            after = self._position(self._old.version), self._position(self._new.version)
            old_at, new_at = after
            is_same = before == after and old_at.is_clean and new_at.is_clean and old_at.done == new_at.done
            if is_same or time.monotonic() > deadline_s:
                break
            time.sleep(_LOOK_S)
        outputs = [self._compare(output, old, new, samples) for output, old, new in sides]
        name = self._new.name
        return Diff(name, self._old.version, self._new.version, old_at.done, new_at.done, is_same, outputs)

    def _sides(self, output: Output) -> tuple[Contents, Contents]:
        number = self._new.outputs.index(output)
        old = self._stack.enter_context(Contents(self._directory / f"{number}.old.db"))
        new = self._stack.enter_context(Contents(self._directory / f"{number}.new.db"))
        if isinstance(output, TopicOutput):
            self._add_reader(output.live(self._new.version).topic, old, output)
            self._add_reader(output.shadow(self._new.version).topic, new, output)
        return old, new

    def _add_reader(self, topic: str, contents: Contents, output: TopicOutput) -> None:
        """A missing topic counts as empty, because the new version may add an output."""
        try:
            reader = TopicReader(self._bootstrap, topic, contents, is_keyed=output.mode == "upsert")
        except (BrokerError, NoSuchPartitionError):
            return
        self._readers.append(self._stack.enter_context(reader))

    def _read_table(self, output: Output, old: Contents, new: Contents) -> None:
        if isinstance(output, TableOutput):
            for pipeline, contents in ((self._old, old), (self._new, new)):
                contents.begin_anew(output.address)
                # The new version may add an output that the old one doesn't have.
                if any(output.name == declared.name for declared in pipeline.outputs):
                    for rows in _table_rows(output.live(pipeline.version)):
                        _put_rows(contents, rows, output.key)

    def _compare(self, output: Output, old: Contents, new: Contents, samples: int) -> OutputDiff:
        is_topic = isinstance(output, TopicOutput)
        is_keyed = bool(output.key) and (output.mode == "upsert" or not is_topic)
        same = meaning_of(output) if isinstance(output, TopicOutput) and is_keyed else None
        if not is_keyed:
            compared = "whole records" if is_topic else "whole rows"
        elif is_topic:
            compared = f"keys, values as {'JSON' if same else 'bytes'}"
        else:
            compared = f"rows by {', '.join(output.key)}"
        counts = old.counts(new, same)
        found = [
            _sample(kind, change.key, change.old, change.new, is_record=is_topic and not is_keyed)
            for kind in _KINDS
            for change in old.changes(new, same, kinds=[kind], limit=samples)
        ]
        placed_old = output.live(self._old.version)
        placed_new = output.shadow(self._new.version)
        return OutputDiff(output.name, _place(placed_old), _place(placed_new), compared, counts, found)


def _place(output: Output) -> str:
    if isinstance(output, TopicOutput):
        return output.address
    return f"{output.address}, version {getattr(output, 'version', '?')}"


def _table_rows(output: TableOutput) -> Iterator[list[dict[str, Any]]]:
    table = output.read_arrow()
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield batch.to_pylist()


def _put_rows(contents: Contents, rows: list[dict[str, Any]], key: Sequence[str]) -> None:
    if key:
        contents.put({_json([row[column] for column in key]): (_json(row), -1) for row in rows})
        return
    copies: dict[bytes, int] = {}
    for row in rows:
        record = _json(row)
        copies[record] = copies.get(record, 0) + 1
    contents.count(copies)


def _json(value: object) -> bytes:
    """Equal rows give equal bytes; values that JSON can't represent are written as text."""
    return orjson.dumps(value, default=_as_text, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def _as_text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _sample(kind: Kind, key: bytes, old: bytes | None, new: bytes | None, *, is_record: bool) -> Sample:
    if is_record:
        record_key, value = record_parts(key)
        shown = _readable(value)
        return Sample(
            kind, _readable(record_key), shown if kind == "missing" else None, shown if kind == "added" else None
        )
    if old == b"" or new == b"":  # a row without a key is its own key
        shown = _readable(key)
        return Sample(kind, None, shown if kind == "missing" else None, shown if kind == "added" else None)
    return Sample(kind, _readable(key), _readable(old), _readable(new))


def _readable(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value.decode("utf-8", errors="backslashreplace")
