"""Runs a version on Spark, in one role after another: in this process, or in one in the background.

What always holds: each process starts Spark once; a background process gets everything from its arguments and writes to
a log file of its version. It is started as `python -m tidelog.pipeline.versions.process`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.declaration import Pipeline, interval_seconds
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.versions.hosting import Host, HostedRun
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import Role
from tidelog.pipeline.versions.replay_monitor import Limits, ReplayMonitor, ReplayStatus
from tidelog.pipeline.versions.source import from_the_start, load_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.runner import PipelineRun

# A batch costs CPU time however few rows it has: with one batch per second, the slowest of a hundred requests to a
# broker on the same machine took 20 to 48 ms; with one in five seconds, 14 to 17 ms, at about the same rate.
YIELDING_TRIGGER_S = 5
_LOG_FILE = "background.log"
STATUS_FILE = "replay-status.json"
"""The file in which the process of a replay reports its progress."""


@dataclass(frozen=True)
class ProcessSettings:
    """How to run a version."""

    state_dir: Path
    bootstrap: str
    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    until_caught_up: bool = False

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "state_dir": str(self.state_dir.absolute())})

    @classmethod
    def from_json(cls, text: str) -> ProcessSettings:
        values = json.loads(text)
        return cls(**{**values, "state_dir": Path(values["state_dir"]), "limits": Limits(**values["limits"])})


class VersionProcess:
    """Runs a version in this process until it is stopped or another one has taken over."""

    def __init__(
        self,
        settings: ProcessSettings,
        pipeline: Pipeline,
        file: Path,
        *,
        tell: Callable[[str], None] = lambda text: None,
        on_status: Callable[[ReplayStatus], None] = lambda status: None,
        around: Callable[[PipelineRun], AbstractContextManager[None]] | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        self._settings = settings
        self._pipeline = pipeline
        self._file = file
        self._tell = tell
        self._on_status = on_status
        self._around = around or (lambda run: contextlib.nullcontext())
        self._was_shadow = False
        self._spark = spark
        self._is_own_session = spark is None
        self.host = Host(settings.state_dir, self._pipeline, self._make_run, tell=tell, around=self._accompanied)
        self.is_caught_up = False

    def run(self, role: Role, *, handle_signals: bool = False) -> None:
        """Start in this role; raises RegistryError before Spark is started if the version can't have it."""
        name, version = self._pipeline.name, self._pipeline.version
        with Registry(self._settings.state_dir) as registry:
            source = self._file.read_text(encoding="utf-8")
            registry.note_version(name, version, file=str(self._file.resolve()), source=source)
            registry.check_role(name, version, role)
        try:
            self.host.run(role, handle_signals=handle_signals)
        finally:
            if self._spark is not None and self._is_own_session:
                self._spark.stop()

    def _replayed(self) -> Pipeline:
        """The pipeline as it is replayed: from the start, and with fewer batches if it yields to live traffic."""
        pipeline = from_the_start(self._pipeline)
        if self._settings.limits.yields_to_live and interval_seconds(pipeline.trigger, "trigger") < YIELDING_TRIGGER_S:
            pipeline = dataclasses.replace(pipeline, trigger=f"{YIELDING_TRIGGER_S} seconds")
        return pipeline

    @property
    def _home(self) -> Path:
        return version_home(self._settings.state_dir, self._pipeline.name, self._pipeline.version)

    def _make_run(self, role: Role) -> PipelineRun:
        from tidelog.pipeline.runner import PipelineRun

        settings = self._settings
        run = PipelineRun(
            self._replayed() if role == "shadow" else self._pipeline,
            bootstrap=settings.bootstrap,
            master=settings.master,
            state_dir=settings.state_dir,
            role=role,
            limit_file=self._home / "replay-limit" if role == "shadow" else None,
            conf=settings.conf,
            file=self._file,
            spark=self._spark,
            tell=self._tell,
        )
        if self._spark is None:
            self._tell(f"starting Spark; its output is in {run.log_file}")
            self._spark = run.open_session()
            run = self._make_run(role)
        return run

    @contextmanager
    def _accompanied(self, run: HostedRun, role: Role) -> Iterator[None]:
        from tidelog.pipeline.runner import PipelineRun

        assert isinstance(run, PipelineRun)  # as `_make_run` makes them
        if role == "live":
            if self._was_shadow:
                self._tell(f"version {self._pipeline.version} of {self._pipeline.name} is live now")
            with self._around(run):
                yield
            return
        self._was_shadow = True
        topics = [topic for declared in self._pipeline.topic_inputs.values() for topic in declared.topics]
        monitor = ReplayMonitor(
            run,
            self._settings.bootstrap,
            topics,
            self._home / "starting-offsets.json",
            self._home / "replay-limit",
            self._settings.limits,
            trigger_s=interval_seconds(self._replayed().trigger, "trigger"),
            until_caught_up=self._settings.until_caught_up,
            on_status=self._note_status,
        )
        with monitor:
            yield
        self.is_caught_up = monitor.is_caught_up

    def _note_status(self, status: ReplayStatus) -> None:
        _write_status(self._home / STATUS_FILE, status)
        self._on_status(status)


def version_home(state_dir: Path, pipeline: str, version: int) -> Path:
    return state_dir / pipeline / f"v{version}"


class BackgroundProcess:
    """A process of a version that keeps running when this one exits."""

    def __init__(self, settings: ProcessSettings, pipeline: str, version: int, role: Role) -> None:
        self.version = version
        self.log_file = version_home(settings.state_dir, pipeline, version) / "logs" / _LOG_FILE
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        arguments = [pipeline, str(version), role, settings.to_json()]
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that Ctrl-C in the terminal doesn't reach it
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise PipelineError if it has exited."""
        code = self._process.poll()
        if code is not None:
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = f": {lines[-1]}" if lines and code else ""
            raise PipelineError(f"the process of version {self.version} has exited{last}; see {self.log_file}")


class Launcher:
    """Starts background processes, one per version; see `switch_stage.Launch`."""

    def __init__(self, settings: ProcessSettings, registry: Registry, pipeline: str) -> None:
        self._settings = settings
        self._registry = registry
        self._pipeline = pipeline
        self.started: dict[int, BackgroundProcess] = {}

    def __call__(self, version: int) -> None:
        known = self.started.get(version)
        if known is not None:
            known.check()
            return
        role: Role = "live" if self._registry.live_version(self._pipeline) == version else "shadow"
        self.started[version] = BackgroundProcess(self._settings, self._pipeline, version, role)


def main(arguments: list[str]) -> int:
    """Host the version given by the arguments."""
    name, version, role, text = arguments
    settings = ProcessSettings.from_json(text)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with Registry(settings.state_dir) as registry:
        pipeline, file = load_version(registry, name, int(version))
    process = VersionProcess(settings, pipeline, file, tell=_log)
    try:
        process.run("live" if role == "live" else "shadow", handle_signals=True)
    except PipelineError as error:
        _log(str(error))
        return 1
    return 0


def _write_status(file: Path, status: ReplayStatus) -> None:
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(dataclasses.asdict(status)), encoding="utf-8")
    os.replace(temporary, file)


def _log(text: Any) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
