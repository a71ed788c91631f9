"""`tidelog pipeline`: run pipelines on Spark, list them, show their progress, stop them.

What always holds: only `run` imports Spark; the other commands read the registry in the state directory, whether or
not a pipeline is running.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import EXIT_USAGE, CommandError, report
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog.cli.output import print_json, print_line, print_table
from tidelog.cli.text import count_text, duration_text, size_text, timestamp_text

if TYPE_CHECKING:
    from tidelog.pipeline.declaration import Pipeline
    from tidelog.pipeline.versions.registry import Registry
    from tidelog.pipeline.versions.registry_rows import Run

DEFAULT_STATE = Path("tidelog-pipelines")

pipeline = App(help="Run pipelines, which are Python files, on Spark.")

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The Python file that declares the pipeline.", show_default=False)
]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Which pipeline, if the file declares several.")
]
State = Annotated[
    Path,
    typer.Option(
        "--state",
        metavar="DIR",
        envvar="TIDELOG_PIPELINES",
        help="Directory for checkpoints, logs and the registry of runs.",
    ),
]
Master = Annotated[
    str,
    typer.Option("--master", metavar="URL", help="Spark master: local[N], or a cluster such as spark://host:7077."),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="Set a Spark setting, overriding the file; repeatable."),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME|FILE]...", help="Pipelines, or files that declare them; default: all."),
]
Target = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="The pipeline, or the file that declares it.", show_default=False)
]


def add_to(app: App) -> None:
    # They add their commands to this group.
    import tidelog.cli.pipeline_history
    import tidelog.cli.pipeline_kappa  # noqa: F401

    app.add_typer(pipeline, name="pipeline")


@contextmanager
def pipeline_errors() -> Iterator[None]:
    """Errors in a pipeline are for the user to fix: one line instead of a traceback."""
    from tidelog.pipeline.errors import DeclarationError, PipelineError
    from tidelog.pipeline.versions.registry import RegistryError

    try:
        yield
    except DeclarationError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    except (PipelineError, RegistryError) as error:
        raise CommandError(str(error)) from error


def require_spark() -> None:
    """Say what is missing before anything is created, instead of failing halfway."""
    from tidelog.demo.requirements import SPARK_PACKAGES, missing_pieces

    if needs := missing_pieces(SPARK_PACKAGES, "spark"):
        raise CommandError(f"this command needs {', and '.join(needs)}")


def load_pipeline(file: Path, name: str | None) -> Pipeline:
    """The declared pipeline; a mistake in it is a usage error."""
    from tidelog.pipeline.loading import load

    with pipeline_errors():
        return load(file, name)


def parse_conf(texts: list[str] | None) -> dict[str, str]:
    values = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="'--conf'")
        values[name.strip()] = value.strip()
    return values


def open_registry(state: Path) -> Registry:
    from tidelog.pipeline.versions.registry import FILE_NAME, Registry

    if not (state / FILE_NAME).exists():
        raise CommandError(f"no pipeline has run with state directory {state}; use --state, or set TIDELOG_PIPELINES")
    with pipeline_errors():
        return Registry(state)


def pipeline_name(registry: Registry, target: str) -> str:
    """The name of a pipeline that has run, from its name or its file."""
    known = registry.pipelines()
    if target in known:
        return target
    if target.endswith(".py") or Path(target).is_file():
        wanted = Path(target).resolve()
        matching = [
            name for name in known if any(Path(version.file).resolve() == wanted for version in registry.versions(name))
        ]
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise CommandError(f"{target} declares several pipelines ({', '.join(matching)}); give one of the names")
    known_text = f"there are: {', '.join(known)}" if known else "none has run yet"
    raise CommandError(f"there is no pipeline {target!r} in this state directory; {known_text}")


@pipeline.command(epilog="Example: tidelog pipeline run revenue.py --once")
def run(
    file: File,
    name: Name = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = "local[*]",
    state: State = DEFAULT_STATE,
    once: Annotated[
        bool, typer.Option("--once", help="Process what is there now, then exit; the next run resumes there.")
    ] = False,
    conf: Conf = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document per micro-batch.")] = False,
) -> None:
    """Run a pipeline until Ctrl-C, SIGTERM or pipeline stop.

    It stops between two micro-batches. The next run resumes exactly where this one stopped, even after a crash.
    """
    from tidelog.cli.pipeline_display import display

    require_spark()
    declared = load_pipeline(file, name)
    with pipeline_errors():
        if once:
            from tidelog.pipeline.runner import PipelineRun

            running = PipelineRun(
                declared,
                bootstrap=bootstrap,
                master=master,
                state_dir=state,
                once=once,
                conf=parse_conf(conf),
                file=file,
            )
            with display(running, as_json=json):
                running.run(handle_signals=True)
            return
        from tidelog.pipeline.versions.process import ProcessSettings, VersionProcess

        settings = ProcessSettings(state.absolute(), bootstrap, master, parse_conf(conf))
        process = VersionProcess(settings, declared, file, tell=report, around=lambda run: display(run, as_json=json))
        process.run("live", handle_signals=True)


@pipeline.command("list", epilog="Example: tidelog pipeline list --json | jq '.[].name'")
def list_(state: State = DEFAULT_STATE, json: Json = False) -> None:
    """List pipelines, their versions and their state."""
    with open_registry(state) as registry:
        documents = [
            _version_document(registry, name, version.version, version.is_live)
            for name in registry.pipelines()
            for version in registry.versions(name)
        ]
    if json:
        print_json(documents)
        return
    rows = [
        [
            str(row["name"]),
            str(row["version"]),
            "live" if row["is_live"] else "-",
            str(row["state"]),
            count_text(int(str(row["lag"]))),
            count_text(int(str(row["dead_letters"]))),
            str(row["file"]),
        ]
        for row in documents
    ]
    columns = ["pipeline", "version", "role", "state", "lag", "dead letters", "file"]
    print_table(columns, rows, numeric=["version", "lag", "dead letters"])


def _version_document(registry: Registry, name: str, version: int, is_live: bool) -> dict[str, object]:
    runs = registry.runs(name, version)
    latest = runs[-1] if runs else None
    running = registry.running(name, version)
    stored = registry.version(name, version)
    return {
        "name": name,
        "version": version,
        "is_live": is_live,
        "state": _state_text(latest, running),
        "lag": latest.progress.lag_rows if latest else 0,
        "dead_letters": latest.progress.dead_letters if latest else 0,
        "file": stored.file if stored else "",
    }


def _state_text(latest: Run | None, running: Run | None) -> str:
    if running is not None:
        return "stopping" if running.stop_requested_ms is not None else "running"
    if latest is None:
        return "never run"
    return latest.outcome or "killed"


@pipeline.command(epilog="Example: tidelog pipeline status revenue --json | jq '.[].lag'")
def status(names: Names = None, state: State = DEFAULT_STATE, json: Json = False) -> None:
    """Show the rate, lag, batch time and state of pipelines."""
    with open_registry(state) as registry:
        wanted = [pipeline_name(registry, name) for name in names or registry.pipelines()]
        found = [
            (registry.runs(name, version.version)[-1], registry.running(name, version.version))
            for name in wanted
            for version in registry.versions(name)
            if registry.runs(name, version.version)
        ]
    documents = [run_document(latest, running) for latest, running in found]
    if json:
        print_json(documents)
        return
    for index, document in enumerate(documents):
        if index:
            print_line("")
        _print_status(document)


def run_document(latest: Run, running: Run | None) -> dict[str, object]:
    """A run as `--json` shows it."""
    progress = latest.progress
    return {
        "name": latest.pipeline,
        "version": latest.version,
        "role": latest.role,
        "state": _state_text(latest, running),
        "run_id": latest.run_id,
        "pid": latest.pid,
        "host": latest.host,
        "started_ms": latest.started_ms,
        "heartbeat_ms": latest.heartbeat_ms,
        "ended_ms": latest.ended_ms,
        "error": latest.error,
        "spark_url": latest.spark_url if running is not None else None,
        "batch_id": progress.batch_id,
        "rows": progress.rows,
        "rows_per_s": round(progress.rows_per_s, 1),
        "batch_ms": progress.batch_ms,
        "state_rows": progress.state_rows,
        "state_bytes": progress.state_bytes,
        "dead_letters": progress.dead_letters,
        "lag": progress.lag_rows,
        "lag_by_partition": progress.lag,
        "processed": progress.processed,
        "details": dict(progress.details),
    }


def _print_status(document: dict[str, object]) -> None:
    title = f"{document['name']} version {document['version']} ({document['role']}): {document['state']}"
    print_line(title)
    started = timestamp_text(int(str(document["started_ms"])))
    print_line(f"  process {document['pid']} on {document['host']} since {started}")
    if document["error"]:
        print_line(f"  error: {document['error']}")
    if document["spark_url"]:
        print_line(f"  Spark's page: {document['spark_url']}")
    print_line(
        f"  batch {document['batch_id']}: {count_text(round(float(str(document['rows_per_s']))))} rows/s, "
        f"{duration_text(int(str(document['batch_ms'])) / 1000)} a batch, "
        f"{count_text(int(str(document['rows'])))} rows in this run"
    )
    print_line(
        f"  state {count_text(int(str(document['state_rows'])))} rows, {size_text(int(str(document['state_bytes'])))}; "
        f"dead letters {count_text(int(str(document['dead_letters'])))}; lag {count_text(int(str(document['lag'])))}"
    )
    lag = document["lag_by_partition"]
    processed = document["processed"]
    assert isinstance(lag, dict)
    assert isinstance(processed, dict)
    rows = [
        [topic, str(partition), str(processed.get(topic, {}).get(partition, 0)), str(waiting)]
        for topic, partitions in lag.items()
        for partition, waiting in sorted(partitions.items())
    ]
    if rows:
        print_table(["topic", "partition", "processed", "lag"], rows, numeric=["partition", "processed", "lag"])


@pipeline.command(epilog="Example: tidelog pipeline stop revenue")
def stop(
    target: Target,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", min=1, help="Which version; default: all that are running.")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.1, help="How long to wait for its micro-batch before sending SIGTERM."
        ),
    ] = 60.0,
    state: State = DEFAULT_STATE,
    json: Json = False,
) -> None:
    """Stop a running pipeline after its current micro-batch."""
    from tidelog.pipeline.stopping import stop_run

    with open_registry(state) as registry:
        name = pipeline_name(registry, target)
        running = [
            found
            for each in registry.versions(name)
            if version in (None, each.version) and (found := registry.running(name, each.version)) is not None
        ]
        if not running:
            raise CommandError(f"pipeline {name} is not running")
        with pipeline_errors():
            documents = [
                {"name": name, "version": found.version, "outcome": stop_run(registry, found, timeout)}
                for found in running
            ]
    if json:
        print_json(documents)
        return
    for document in documents:
        print_line(f"{document['name']} version {document['version']}: {document['outcome']}")


@pipeline.command(epilog="Example: tidelog pipeline settings --master spark://host:7077")
def settings(master: Master = "local[*]", json: Json = False) -> None:
    """Show the default Spark settings of pipelines, and why.

    Settings in the pipeline's file override them, and --conf overrides both.
    """
    from tidelog.pipeline.session import SETTINGS

    found = [(row.name, row.value(master), row.reason) for row in SETTINGS]
    shown = [(name, value, reason) for name, value, reason in found if value is not None]
    if json:
        print_json([{"name": name, "value": value, "reason": reason} for name, value, reason in shown])
        return
    print_table(["setting", "value", "reason"], [list(row) for row in shown])
