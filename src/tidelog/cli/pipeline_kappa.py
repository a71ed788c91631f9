"""`tidelog pipeline replay|diff|promote|rollback`: run a new version beside the live one, and switch to it.

What always holds: only `replay` imports Spark, and not if it leaves the work to a background process; running the
same command again completes a switch that was interrupted.
"""

from __future__ import annotations

import json as json_module
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.errors import report
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog.cli.output import print_json, print_line, print_table
from tidelog.cli.pipeline import (
    DEFAULT_STATE,
    Conf,
    File,
    Master,
    Name,
    State,
    Target,
    load_pipeline,
    open_registry,
    parse_conf,
    pipeline,
    pipeline_errors,
    pipeline_name,
    require_spark,
)
from tidelog.cli.pipeline_history import changed_text, offsets_text, switch_document
from tidelog.cli.progress import is_watched, progress, steps
from tidelog.cli.text import count_text, duration_text

if TYPE_CHECKING:
    from tidelog.pipeline.versions.diff import Diff, OutputDiff
    from tidelog.pipeline.versions.kappa import Kappa
    from tidelog.pipeline.versions.process import Launcher, ProcessSettings
    from tidelog.pipeline.versions.registry import Registry
    from tidelog.pipeline.versions.registry_rows import Switch
    from tidelog.pipeline.versions.replay_monitor import ReplayStatus

_EXIT_DIFFERENT = 1  # as diff's
_LOOK_S = 0.5

Abandon = Annotated[
    bool, typer.Option("--abandon", help="Abandon a switch in progress, if readers have not seen it yet.")
]
WhichVersion = Annotated[
    int | None,
    typer.Option("--version", metavar="N", min=1, help="Which version; default: the last one replayed."),
]


@pipeline.command(epilog="Example: tidelog pipeline replay revenue.py --yield-to-live")
def replay(
    file: File,
    name: Name = None,
    max_rate: Annotated[
        float | None,
        typer.Option("--max-rate", metavar="ROWS/S", min=1, help="Read at most this many rows per second."),
    ] = None,
    yield_to_live: Annotated[
        bool,
        typer.Option("--yield-to-live", help="Slow down whenever the broker's other clients would notice."),
    ] = False,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="Exit when it has caught up, instead of following live traffic.")
    ] = False,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Run in the background; the command exits when it has caught up."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
    state: State = DEFAULT_STATE,
    conf: Conf = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document per second.")] = False,
) -> None:
    """Run a new version from the first offset, beside the live one.

    It writes to its own output. When it has caught up, it follows live traffic until it is stopped, or until it is
    promoted, which makes this process the live one. After a stop, the same command resumes it.
    """
    from tidelog.pipeline.versions.process import ProcessSettings
    from tidelog.pipeline.versions.replay_monitor import Limits

    require_spark()
    declared = load_pipeline(file, name)
    limits = Limits(max_rate, yield_to_live)
    settings = ProcessSettings(state.absolute(), bootstrap, master, parse_conf(conf), limits, until_caught_up)
    with open_registry(state) as registry, pipeline_errors():
        registry.note_version(
            declared.name, declared.version, file=str(file.resolve()), source=file.read_text(encoding="utf-8")
        )
        registry.check_role(declared.name, declared.version, "shadow")
        if detach:
            _replay_in_background(registry, settings, declared.name, declared.version, as_json=json)
            return
    with pipeline_errors(), _replay_display(declared.name, declared.version, as_json=json) as on_status:
        from tidelog.pipeline.versions.process import VersionProcess

        process = VersionProcess(settings, declared, file, tell=report, on_status=on_status)
        process.run("shadow", handle_signals=True)


def _replay_in_background(
    registry: Registry, settings: ProcessSettings, name: str, version: int, *, as_json: bool
) -> None:
    from tidelog.pipeline.versions.process import STATUS_FILE, BackgroundProcess, version_home
    from tidelog.pipeline.versions.run_lock import RunLock

    started: BackgroundProcess | None = None
    if not RunLock(registry.state_dir, name, version, "host").is_held():
        started = BackgroundProcess(settings, name, version, "shadow")
        report(f"version {version} of {name} runs in the background: process {started.pid}, log {started.log_file}")
    status_file = version_home(settings.state_dir, name, version) / STATUS_FILE
    with _replay_display(name, version, as_json=as_json) as on_status:
        _follow_status(status_file, started, on_status)
    report(f"version {version} of {name} has caught up; see 'tidelog pipeline diff {name}'")


def _follow_status(file: Path, process: Any, on_status: Callable[[ReplayStatus], None]) -> None:
    """Show the status of the background process until it has caught up."""
    from tidelog.pipeline.versions.replay_monitor import ReplayStatus

    began_ns = time.time_ns()
    while True:
        if file.exists() and file.stat().st_mtime_ns > began_ns:
            status = ReplayStatus(**json_module.loads(file.read_text(encoding="utf-8")))
            on_status(status)
            if status.is_caught_up:
                return
        if process is not None:
            process.check()
        time.sleep(_LOOK_S)


@contextmanager
def _replay_display(name: str, version: int, *, as_json: bool) -> Iterator[Callable[[ReplayStatus], None]]:
    """Shows a replay: a bar on a terminal, else a line when it has something new to say."""
    if as_json:
        yield lambda status: print(json_module.dumps(_status_document(name, version, status)), flush=True)
        return
    if not is_watched():
        printed = _Sparing()
        yield lambda status: printed.print(f"{name} v{version}: {_status_text(status)}", status.is_caught_up)
        return
    with progress(f"{name} version {version}", None, shown=True) as advance:
        yield lambda status: advance(status.rows_done, f"{name} version {version}: {_status_text(status)}")


class _Sparing:
    """Prints a line a second at first, then fewer and fewer while nothing but numbers change."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._pause_s = 1.0
        self._last: bool | None = None

    def print(self, line: str, mark: bool) -> None:
        now_s = time.monotonic()
        if mark is self._last and now_s < self._next_s:
            return
        self._pause_s = 1.0 if mark is not self._last else min(self._pause_s * 1.5, 60.0)
        self._last, self._next_s = mark, now_s + self._pause_s
        print(line, file=sys.stderr, flush=True)


def _status_text(status: ReplayStatus) -> str:
    text = f"{count_text(status.rows_done)} of {count_text(status.rows_total)} rows"
    if status.is_caught_up:
        text += ", caught up"
    else:
        text += f", {count_text(round(status.rows_per_s))} rows/s"
        left = "time left unknown" if status.seconds_left is None else f"{duration_text(status.seconds_left)} left"
        text += f", {left}"
    if status.limit_rows_per_s is not None:
        text += f", at most {count_text(round(status.limit_rows_per_s))} rows/s"
    if status.latency_ms is not None:
        text += f", broker {status.latency_ms:.1f} ms"
    return text


def _status_document(name: str, version: int, status: ReplayStatus) -> dict[str, object]:
    return {
        "name": name,
        "version": version,
        "rows_done": status.rows_done,
        "rows_total": status.rows_total,
        "rows_per_s": round(status.rows_per_s, 1),
        "seconds_left": None if status.seconds_left is None else round(status.seconds_left, 1),
        "is_caught_up": status.is_caught_up,
        "limit_rows_per_s": status.limit_rows_per_s,
        "latency_ms": status.latency_ms,
    }


@pipeline.command(epilog="Example: tidelog pipeline diff revenue --samples 3")
def diff(
    target: Target,
    version: WhichVersion = None,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=0, help="Show at most N differences of each kind.")
    ] = 5,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="How long to wait for both versions to reach the same offsets."
        ),
    ] = 10.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    state: State = DEFAULT_STATE,
    json: Json = False,
) -> None:
    """Compare the output of a new version with the live one, by key.

    The exit code is 0 if they are equal and 1 if they differ.
    """
    with _kappa(state, target, bootstrap) as (kappa, _, _), pipeline_errors():
        chosen = kappa.candidate(version)
        with progress("reading", None, shown=is_watched()) as advance:
            found = kappa.diff(
                chosen,
                samples=samples,
                patience_s=wait,
                tell=lambda done, total: advance(done, f"reading, {count_text(done)} of {count_text(total)}"),
            )
    if json:
        print_json(_diff_document(found))
    else:
        _print_diff(found)
    if not found.is_equal:
        raise typer.Exit(_EXIT_DIFFERENT)


def _diff_document(found: Diff) -> dict[str, object]:
    return {
        "name": found.pipeline,
        "live_version": found.old_version,
        "version": found.new_version,
        "live_offsets": found.old_at,
        "offsets": found.new_at,
        "is_same_position": found.is_same_position,
        "is_equal": found.is_equal,
        "outputs": [
            {
                "name": output.name,
                "live": output.old,
                "new": output.new,
                "compared": output.compared,
                "added": output.counts.added,
                "changed": output.counts.changed,
                "missing": output.counts.missing,
                "equal": output.counts.equal,
                "samples": [
                    {"kind": sample.kind, "key": sample.key, "live": sample.old, "new": sample.new}
                    for sample in output.samples
                ],
            }
            for output in found.outputs
        ],
    }


def _print_diff(found: Diff) -> None:
    print_line(f"{found.pipeline}: version {found.new_version} beside live version {found.old_version}")
    if found.is_same_position:
        print_line(f"  both at {offsets_text(found.new_at)}")
    else:
        print_line(
            f"  live at {offsets_text(found.old_at)}, version {found.new_version} at {offsets_text(found.new_at)}"
        )
        print_line("  at different offsets, so part of the differences is what one of them has not read yet")
    columns = ["output", "added", "changed", "missing", "equal", "compared"]
    rows = [[output.name, *_counts(output), output.compared] for output in found.outputs]
    print_table(columns, rows, numeric=["added", "changed", "missing", "equal"])
    for output in found.outputs:
        for sample in output.samples:
            key = "" if sample.key is None else f" {_value_text(sample.key)}"
            if sample.kind == "changed":
                print_line(f"  {output.name}: changed{key}: {_value_text(sample.old)} -> {_value_text(sample.new)}")
            else:
                value = sample.new if sample.kind == "added" else sample.old
                print_line(f"  {output.name}: {sample.kind}{key}: {_value_text(value)}")


def _counts(output: OutputDiff) -> list[str]:
    counts = output.counts
    return [count_text(number) for number in (counts.added, counts.changed, counts.missing, counts.equal)]


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else json_module.dumps(value, ensure_ascii=False)


@pipeline.command(epilog="Example: tidelog pipeline promote revenue")
def promote(
    target: Target,
    version: WhichVersion = None,
    abandon: Abandon = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
    state: State = DEFAULT_STATE,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Switch readers to a new version.

    Topics get the changed keys in one transaction, tables get a new pointer. The version must have caught up. If the
    command is killed at any point, running it again completes the switch.
    """
    with _kappa(state, target, bootstrap) as (kappa, registry, name), pipeline_errors():
        launch = _launcher(registry, name, bootstrap, master, conf)
        if abandon:
            _print_abandoned(kappa.abandon("promote", launch), as_json=json)
            return
        with steps(lambda text: None if json else report(text)) as step:
            switch = kappa.promote(version, launch, lambda text: step(_step_text(text)))
    _print_switch(switch, launch, as_json=json)


@pipeline.command(epilog="Example: tidelog pipeline rollback revenue")
def rollback(
    target: Target,
    abandon: Abandon = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
    state: State = DEFAULT_STATE,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Undo the last promotion.

    The previous version resumes where it stopped, catches up, and takes over; it runs in the background. If the
    command is killed at any point, running it again completes the rollback.
    """
    with _kappa(state, target, bootstrap) as (kappa, registry, name), pipeline_errors():
        launch = _launcher(registry, name, bootstrap, master, conf)
        if abandon:
            _print_abandoned(kappa.abandon("rollback", launch), as_json=json)
            return
        with steps(lambda text: None if json else report(text)) as step:

            def wait_until_near(version: int) -> None:
                while not _is_near(registry, kappa, name, version):
                    started = launch.started.get(version)
                    if started is not None:
                        started.check()
                    time.sleep(_LOOK_S)
                step(f"version {version} has caught up")

            switch = kappa.rollback(launch, lambda text: step(_step_text(text)), wait_until_near)
    _print_switch(switch, launch, as_json=json)


def _is_near(registry: Registry, kappa: Kappa, name: str, version: int) -> bool:
    run = registry.running(name, version)
    return run is not None and run.is_at_work and kappa.behind(version).is_caught_up


_STEP_TEXTS = {
    "prepare": "reading what both versions have written",
    "stop-old": "stopping the old version after its batch",
    "catch-up": "letting the new version get as far",
    "write": "switching readers",
    "start-new": "starting the new version where readers look",
    "keep": "keeping what the old version had written",
}


def _step_text(text: str) -> str:
    return _STEP_TEXTS.get(str(text), str(text))


def _print_abandoned(switch: Switch, *, as_json: bool) -> None:
    if as_json:
        print_json(switch_document(switch))
    else:
        print_line(
            f"gave up the {switch.kind} to version {switch.to_version}; version {switch.from_version} stays live"
        )


def _print_switch(switch: Switch, launch: Launcher, *, as_json: bool) -> None:
    if as_json:
        print_json(switch_document(switch))
        return
    print_line(f"version {switch.to_version} of {switch.pipeline} is live, instead of version {switch.from_version}")
    for name, changed in switch.data["outputs"].items():
        print_line(f"  {name}: {changed_text(changed)}")
    for version, process in launch.started.items():
        print_line(f"  version {version} runs in the background: process {process.pid}, log {process.log_file}")
    if switch.kind == "promote":
        print_line(f"  undo with: tidelog pipeline rollback {switch.pipeline}")


@contextmanager
def _kappa(state: Path, target: str, bootstrap: str) -> Iterator[tuple[Kappa, Registry, str]]:
    from tidelog.pipeline.versions.kappa import Kappa

    with open_registry(state) as registry:
        name = pipeline_name(registry, target)
        yield Kappa(registry, name, bootstrap), registry, name


def _launcher(registry: Registry, name: str, bootstrap: str, master: str, conf: list[str] | None) -> Launcher:
    from tidelog.pipeline.versions.process import Launcher, ProcessSettings

    settings = ProcessSettings(registry.state_dir.absolute(), bootstrap, master, parse_conf(conf))
    return Launcher(settings, registry, name)
