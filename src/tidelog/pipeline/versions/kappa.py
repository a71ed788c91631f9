"""Manages the versions of a pipeline: which one can take over, comparing, promoting and rolling back.

What always holds: a version takes over only once it has nearly caught up with the live one; a previous version can come
back only while everything it needs still exists; an unfinished switch is finished by running the same command again, or
abandoned.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidelog import Admin, TopicPartition
from tidelog.client.admin.types import OffsetSpec
from tidelog.common.file_lock import locked
from tidelog.pipeline.declaration import Pipeline
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.topics import end_offsets
from tidelog.pipeline.versions.diff import Comparison, Diff
from tidelog.pipeline.versions.position import checkpoint_dir, position_of
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import Offsets, Switch, SwitchKind
from tidelog.pipeline.versions.source import load_version
from tidelog.pipeline.versions.switch_outputs import SwitchOutputs, check_switchable, keyed_topics
from tidelog.pipeline.versions.switch_stage import KEPT, Launch, SwitchStage
from tidelog.pipeline.versions.switching import Position, Step, abandon, drive
from tidelog.pipeline.versions.topic_reader import Tell

# How long a version may need to catch up during a switch; in that time, readers see no updates.
BEHIND_S_MAX = 10.0
# Assumed for a version that has not reported a rate; this is slow for Spark.
_ROWS_PER_S_MIN = 1_000.0


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a version is behind another."""

    rows: int
    rows_per_s: float

    @property
    def seconds(self) -> float:
        return self.rows / max(self.rows_per_s, _ROWS_PER_S_MIN)

    @property
    def is_caught_up(self) -> bool:
        return self.seconds <= BEHIND_S_MAX


class Kappa:
    """The versions of one pipeline."""

    def __init__(self, registry: Registry, pipeline: str, bootstrap: str) -> None:
        self._registry = registry
        self._pipeline = pipeline
        self._bootstrap = bootstrap

    def live_version(self) -> int:
        live = self._registry.live_version(self._pipeline)
        if live is None:
            raise PipelineError(f"no version of {self._pipeline} is live; start one with 'tidelog pipeline run'")
        return live

    def candidate(self, version: int | None) -> int:
        """The given version, or else the one that was last replayed beside the live one."""
        live = self.live_version()
        if version is not None:
            if version == live:
                raise PipelineError(f"version {version} of {self._pipeline} is already live")
            load_version(self._registry, self._pipeline, version)
            return version
        replayed = [
            run.version
            for run in self._registry.runs(self._pipeline)
            if run.role == "shadow" and run.version != live and run.version > live
        ]
        if not replayed:
            raise PipelineError(
                f"no version of {self._pipeline} was replayed beside version {live}; "
                f"start with 'tidelog pipeline replay FILE', or choose one with --version"
            )
        return replayed[-1]

    def position(self, version: int) -> Position:
        return position_of(checkpoint_dir(self._registry.state_dir, self._pipeline, version))

    def behind(self, version: int) -> Behind:
        """How far a version is behind the live one, or behind its inputs if the live one isn't running."""
        live = self.live_version()
        wanted = self.position(live).planned
        if self._registry.running(self._pipeline, live) is None and not wanted:
            wanted = self._ends(version)
        done = self.position(version).done
        rows = sum(
            max(offset - done.get(topic, {}).get(partition, 0), 0)
            for topic, partitions in wanted.items()
            for partition, offset in partitions.items()
        )
        rates = [run.progress.rows_per_s for run in self._registry.runs(self._pipeline, version)[-3:]]
        return Behind(rows, max(rates, default=0.0))

    def _ends(self, version: int) -> Offsets:
        pipeline, _ = load_version(self._registry, self._pipeline, version)
        topics = [topic for declared in pipeline.topic_inputs.values() for topic in declared.topics]
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            return end_offsets(admin, topics)

    # Comparing

    def diff(self, version: int, *, samples: int, patience_s: float, tell: Tell | None = None) -> Diff:
        """How the output of a version differs from the live one's."""
        if not self.position(version).done:
            raise PipelineError(f"version {version} of {self._pipeline} has not finished a batch yet")
        old, _ = load_version(self._registry, self._pipeline, self.live_version())
        new, _ = load_version(self._registry, self._pipeline, version)
        with tempfile.TemporaryDirectory(prefix="diff-", dir=self._registry.state_dir) as directory:
            comparison = Comparison(self._bootstrap, Path(directory), old, new, self.position, tell)
            return comparison.run(samples=samples, patience_s=patience_s)

    # Switching

    def promote(self, version: int | None, launch: Launch, tell: Callable[[Step | str], None]) -> Switch:
        """Switch readers to a version; resumes an unfinished promotion."""
        with self._one_at_a_time():
            switch = self._open("promote")
            if switch is None:
                chosen = self.candidate(version)
                check_switchable(load_version(self._registry, self._pipeline, chosen)[0])
                self._check_caught_up(chosen)
                switch = self._registry.begin_switch(self._pipeline, "promote", chosen, Step.PREPARE)
            return self._drive(switch, launch, tell)

    def _check_caught_up(self, version: int) -> None:
        behind = self.behind(version)
        if behind.is_caught_up:
            return
        stored = self._registry.version(self._pipeline, version)
        is_running = self._registry.running(self._pipeline, version) is not None
        if is_running:
            advice = f"it is catching up: see 'tidelog pipeline status {self._pipeline}'"
        else:
            advice = f"let it catch up with 'tidelog pipeline replay {stored.file if stored else 'FILE'}'"
        raise PipelineError(
            f"version {version} of {self._pipeline} is {behind.rows:,} rows behind version {self.live_version()}, "
            f"about {behind.seconds:.0f} s; {advice}"
        )

    def rollback_target(self) -> int:
        """The version that was live before the current one; PipelineError if it can't come back."""
        live = self.live_version()
        done = [switch for switch in self._registry.switches(self._pipeline) if switch.outcome == "done"]
        if not done or done[-1].to_version != live:
            raise PipelineError(
                f"version {live} of {self._pipeline} has been live from the start: there is nothing to roll back to"
            )
        last = done[-1]
        if last.kind == "rollback":
            raise PipelineError(
                f"version {live} of {self._pipeline} came back by a rollback from version {last.from_version}; for "
                f"that one again: 'tidelog pipeline replay' its file, then 'tidelog pipeline promote {self._pipeline}'"
            )
        pipeline, _ = load_version(self._registry, self._pipeline, last.from_version)
        self._check_can_come_back(pipeline, last)
        return last.from_version

    def _check_can_come_back(self, pipeline: Pipeline, switch: Switch) -> None:
        version = pipeline.version
        kept = switch.data.get(KEPT, {})
        missing = [output.name for output in keyed_topics(pipeline) if output.name not in kept]
        if missing:
            raise PipelineError(f"the output of version {version} in {missing[0]} was not kept")
        at = self.position(version)
        if not at.done:
            raise PipelineError(f"the checkpoint of version {version} of {pipeline.name} no longer exists")
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            topics = {topic.name for topic in admin.list_topics()}
            gone = [own for output in keyed_topics(pipeline) if (own := output.shadow(version).topic) not in topics]
            if gone:
                raise PipelineError(f"topic {gone[0]}, which kept the output of version {version}, was deleted")
            partitions = [TopicPartition(topic, partition) for topic, rows in at.done.items() for partition in rows]
            first = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST)).succeeded
        for each in partitions:
            position = at.done[each.topic][each.partition]
            if each not in first or first[each].offset > position:
                raise PipelineError(
                    f"version {version} of {pipeline.name} had read {each} up to offset {position}, but retention has "
                    f"deleted records after that: replay it from the start with 'tidelog pipeline replay'"
                )

    def rollback(
        self, launch: Launch, tell: Callable[[Step | str], None], wait_until_near: Callable[[int], None]
    ) -> Switch:
        """Switch readers back to the previous version; resumes an unfinished rollback.

        `wait_until_near` waits until the launched version has caught up.
        """
        with self._one_at_a_time():
            switch = self._open("rollback")
            if switch is None:
                target = self.rollback_target()
                if self._registry.running(self._pipeline, target) is None:
                    tell(f"starting version {target} beside version {self.live_version()}")
                    launch(target)
                wait_until_near(target)
                switch = self._registry.begin_switch(self._pipeline, "rollback", target, Step.PREPARE)
            return self._drive(switch, launch, tell)

    def abandon(self, kind: SwitchKind, launch: Launch) -> Switch:
        """Abandon an unfinished switch."""
        with self._one_at_a_time():
            switch = self._open(kind)
            if switch is None:
                raise PipelineError(f"there is no {kind} of {self._pipeline} to abandon")
            with self._stage(switch, launch, lambda text: None) as stage:
                return abandon(self._registry, switch, stage)

    def _open(self, kind: SwitchKind) -> Switch | None:
        """The unfinished switch of this kind; PipelineError if there is one of the other kind."""
        switch = self._registry.open_switch(self._pipeline)
        if switch is not None and switch.kind != kind:
            raise PipelineError(
                f"a {switch.kind} of {self._pipeline} to version {switch.to_version} is unfinished: finish it with "
                f"'tidelog pipeline {switch.kind} {self._pipeline}', or abandon it with --abandon"
            )
        return switch

    def _drive(self, switch: Switch, launch: Launch, tell: Callable[[Step | str], None]) -> Switch:
        with self._stage(switch, launch, tell) as stage:
            return drive(self._registry, switch, stage, tell)

    @contextmanager
    def _stage(self, switch: Switch, launch: Launch, tell: Callable[[str], None]) -> Iterator[SwitchStage]:
        old, _ = load_version(self._registry, self._pipeline, switch.from_version)
        new, _ = load_version(self._registry, self._pipeline, switch.to_version)
        directory = self._registry.state_dir / self._pipeline / "switches" / str(switch.switch_id)
        outputs = SwitchOutputs(self._bootstrap, directory, old, new)
        try:
            yield SwitchStage(self._registry, outputs, launch, tell=tell)
        finally:
            outputs.close()

    def _one_at_a_time(self) -> AbstractContextManager[None]:
        busy = PipelineError(f"another process is currently switching {self._pipeline}")
        return locked(self._registry.state_dir / self._pipeline / "switch.lock", busy)
