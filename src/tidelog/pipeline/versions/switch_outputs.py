"""The outputs of a switch: their contents before and after, and how readers are moved from one to the other.

What always holds: keyed topics change together in one transaction, then the table pointers move, one after another;
both can be repeated without writing anything twice. The old version's output is kept in files until it is in topics of
its own. A topic without keys can't be switched: its consumers hold positions, and what they have read can't be
replaced.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from tidelog import Admin
from tidelog.pipeline.declaration import Pipeline
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.formats import Json
from tidelog.pipeline.outputs import TableOutput, TopicOutput
from tidelog.pipeline.topics import prepare_topics
from tidelog.pipeline.versions.contents import Contents, Counts, Same
from tidelog.pipeline.versions.topic_reader import Tell, TopicReader
from tidelog.pipeline.versions.topic_switch import TopicChange, TopicSwitch, unstable_partitions

# A version ends its own transactions; if it died, its next run or the transaction timeout does.
_SETTLE_S_MAX = 120.0
_LOOK_S = 0.05


def keyed_topics(pipeline: Pipeline) -> list[TopicOutput]:
    return [output for output in pipeline.outputs if isinstance(output, TopicOutput) and output.mode == "upsert"]


def tables(pipeline: Pipeline) -> list[TableOutput]:
    return [output for output in pipeline.outputs if isinstance(output, TableOutput)]


def check_switchable(pipeline: Pipeline) -> None:
    """Raise PipelineError if readers of one of the outputs can't be switched."""
    for output in pipeline.outputs:
        if isinstance(output, TopicOutput) and output.mode != "upsert":
            raise PipelineError(
                f"output {output.name} of {pipeline.name} is an append-only topic: what its readers have already read "
                f"can't be replaced, and records without keys can't be told apart. Give it mode='upsert' with a key, "
                f"or run the new version under another name into another topic and move readers there"
            )


def meaning_of(output: TopicOutput) -> Same | None:
    """How to compare values with different bytes: as JSON if that is their format, otherwise not at all."""
    return _same_json if isinstance(output.format, Json) else None


def _same_json(old: bytes, new: bytes) -> bool:
    try:
        return bool(orjson.loads(old) == orjson.loads(new))
    except orjson.JSONDecodeError:
        return False


class SwitchOutputs:
    """The outputs of one switch, from `old` to `new`; files are kept in `directory`."""

    def __init__(self, bootstrap: str, directory: Path, old: Pipeline, new: Pipeline) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self._old = old
        self._new = new
        self._readers = ExitStack()
        self._live: dict[str, TopicReader] = {}
        self._next: dict[str, TopicReader] = {}
        self._switch = TopicSwitch(bootstrap, f"tidelog-pipeline-{new.name}-switch")
        self._keeper = TopicSwitch(bootstrap, f"tidelog-pipeline-{new.name}-keep")

    def close(self) -> None:
        self._readers.close()
        self._live, self._next = {}, {}

    def read(self, tell: Tell | None = None) -> None:
        """Read the live topics and those of the new version in advance, so that little is left to read later."""
        self._open()
        for reader in [*self._live.values(), *self._next.values()]:
            reader.read_to_end(tell)
            reader.contents.make_durable()

    def write(self, token: str) -> dict[str, Any]:
        """Switch readers to the new version; returns what changed for them, by output."""
        topics = [output.name for output in keyed_topics(self._new)]
        if topics and not self._switch.has_landed(topics, token):
            self._write_topics(token)
        for table in tables(self._new):
            table.switch_to(self._new.version)
        changed: dict[str, Any] = {output.name: _numbers(self._counts(output)) for output in keyed_topics(self._new)}
        changed.update({table.name: {"pointer": self._new.version} for table in tables(self._new)})
        return changed

    def _write_topics(self, token: str) -> None:
        self._open()
        self._settle([reader.topic for reader in [*self._live.values(), *self._next.values()]])
        for reader in [*self._live.values(), *self._next.values()]:
            reader.read_to_end()
        for reader in self._live.values():
            reader.contents.make_durable()  # soon it can no longer be read from the topic
        changes = []
        for output in keyed_topics(self._new):
            live, new = self._live[output.name], self._next[output.name]
            differing = self._counts(output).differing
            found = live.contents.changes(new.contents, meaning_of(output))
            changes.append(TopicChange(live.topic, found, differing, live.partition_count == new.partition_count))
        self._switch.write(changes, token)

    def _counts(self, output: TopicOutput) -> Counts:
        with Contents(self._file(output.name, "live")) as live, Contents(self._file(output.name, "new")) as new:
            return live.counts(new, meaning_of(output))

    def undo(self, token: str) -> None:
        """Restore everything to how it was; raises PipelineError if readers have already seen the new version."""
        topics = [output.name for output in keyed_topics(self._new)]
        if topics and self._switch.has_landed(topics, token):
            raise PipelineError("readers have already seen the new version: finish the switch, then roll it back")
        for table in tables(self._old):
            if table.current_version() == self._new.version:
                table.switch_to(self._old.version)
        self.remove_files()

    def keep(self) -> dict[str, int]:
        """Copy the old version's output to its own topics; returns the number of keys, by output."""
        kept: dict[str, int] = {}
        if keyed_topics(self._old):
            self._prepare(self._old, [output.shadow(self._old.version) for output in keyed_topics(self._old)])
        for output in keyed_topics(self._old):
            own = output.shadow(self._old.version).topic
            with (
                Contents(self._file(output.name, "live")) as live,
                Contents(self._file(output.name, "kept")) as held,
                TopicReader(self._bootstrap, own, held) as reader,
            ):
                reader.read_to_end()
                change = TopicChange(own, held.changes(live), held.counts(live).differing, True)
                if change.count:
                    self._keeper.write([change], f"keep {output.name}")
                kept[output.name] = len(live)
        return kept

    def remove_files(self) -> None:
        self.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _open(self) -> None:
        """Connect to all topics once, and create those that the new version adds."""
        if self._live:
            return
        new_outputs = keyed_topics(self._new)
        if new_outputs:
            self._prepare(self._new, [output.live(self._new.version) for output in new_outputs])
        for output in {output.name: output for output in [*keyed_topics(self._old), *new_outputs]}.values():
            self._live[output.name] = self._reader(output.name, "live", output.name)
        for output in new_outputs:
            self._next[output.name] = self._reader(output.name, "new", output.shadow(self._new.version).topic)

    def _reader(self, name: str, side: str, topic: str) -> TopicReader:
        contents = self._readers.enter_context(Contents(self._file(name, side)))
        return self._readers.enter_context(TopicReader(self._bootstrap, topic, contents))

    def _prepare(self, pipeline: Pipeline, outputs: Sequence[TopicOutput]) -> None:
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            prepare_topics(admin, pipeline, outputs, lambda text: None)

    def _file(self, name: str, side: str) -> Path:
        return self._directory / f"{name}.{side}.db"

    def _settle(self, topics: Sequence[str]) -> None:
        """Wait until no transaction is open in these topics."""
        deadline_s = time.monotonic() + _SETTLE_S_MAX
        while unstable := unstable_partitions(self._bootstrap, topics):
            if time.monotonic() > deadline_s:
                raise PipelineError(
                    f"a transaction in {', '.join(map(str, unstable))} is open and does not end; find its owner with "
                    f"'tidelog transactions find-hanging', then run this command again"
                )
            time.sleep(_LOOK_S)


def _numbers(counts: Counts) -> Mapping[str, int]:
    return {"added": counts.added, "changed": counts.changed, "missing": counts.missing, "equal": counts.equal}
