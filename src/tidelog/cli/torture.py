"""`tidelog torture`: workloads on a cluster while things break, a check of everything that clients saw, a report.

What always holds: the verdict goes to standard output, how it goes to standard error. A first Ctrl-C ends the faults
early, and what was done is healed, checked and reported; a second one stops at once. Either way nothing keeps running.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.app import App, RunnableGroup
from tidelog.cli.errors import EXIT_FAILED, EXIT_USAGE, CommandError, report
from tidelog.cli.options import Json, checked, parse_bootstrap
from tidelog.cli.output import print_json, print_line, print_table
from tidelog.cli.progress import is_watched
from tidelog.cli.text import count_text, duration_text
from tidelog.common.interruption import Interruption

if TYPE_CHECKING:
    from rich.status import Status as Spinner

    from tidelog.torture.run import Status
    from tidelog.torture.settings import TortureSettings
    from tidelog.torture.verdict import Verdict

STATUS_EVERY_S: Final = 10.0
_LABEL_WIDTH: Final = 14
MAIN_COUNTS: Final = (
    "sends_acknowledged",
    "sends_unknown",
    "sends_failed",
    "transactions_committed",
    "transactions_aborted",
    "transactions_unknown",
    "records_polled",
    "rebalances",
    "commits",
    "table_scans",
)

torture = App(cls=RunnableGroup, no_args_is_help=False, invoke_without_command=True)

DirectoryArgument = Annotated[
    Path,
    typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The directory of a run.", show_default=False),
]


def add_to(app: App) -> None:
    app.add_typer(torture, name="torture")


@torture.callback(epilog="Example: tidelog torture --cluster tidelog-zookeeper --time 10m --seed 7")
def run(
    context: typer.Context,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            metavar="HOST:PORT",
            help="Test this running cluster, Tidelog or Apache Kafka; only what clients can do to it is done.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Start a cluster on this machine: tidelog-sqlite (the default), tidelog-zookeeper or kafka.",
        ),
    ] = None,
    brokers: Annotated[
        int | None, typer.Option(metavar="N", help="Brokers of that cluster; default: 3.", show_default=False)
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only this workload; --list shows all. Repeatable.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only faults of this kind, or none; --list shows all. Repeatable."),
    ] = None,
    length: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="DURATION", help="How long to break things, as in 90s or 2h; default: 5m, or the counts."
        ),
    ] = None,
    faults: Annotated[
        int, typer.Option(metavar="N", min=0, help="End after so many faults, once --sends is reached, too.")
    ] = 0,
    sends: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="End after so many acknowledged sends, once --faults is reached, too."),
    ] = 0,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Seed of all decisions; default: a random one, which is shown."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Records a second that each workload sends, 0 for as fast as it can; default: what suits two cores.",
        ),
    ] = None,
    pause: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Time between two faults, on average.")
    ] = 5.0,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Where everything is kept, new or empty; default: torture- and the time, in this directory.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the brokers' data even if nothing was found. Logs are always kept.")
    ] = False,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Also break more at once than a cluster promises to survive.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="Show all workloads and kinds of faults, and end.")] = False,
    json: Json = False,
) -> None:
    """Test a cluster while things break.

    Clients send, read, commit and copy, while brokers are killed and paused, networks cut, disks filled. Then all is
    healed and read back, and everything that any client saw is checked: lost or doubled records, wrong order, broken
    transactions, two owners of a partition and more. The verdict goes to standard output, a report and all histories
    to --directory. Exit code: 0 if nothing was found, 1 if something was, 2 if it could not be run.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from tidelog.torture.parts import Parts
    from tidelog.torture.settings import TortureSettings

    parts = Parts()
    with _could_not_run():
        settings = TortureSettings.checked(
            directory=directory or Path(f"torture-{datetime.datetime.now():%Y%m%d-%H%M%S}"),
            known_workloads=parts.workload_names,
            known_faults=parts.fault_kinds,
            cluster=cluster,
            bootstrap=checked(parse_bootstrap, bootstrap, "--bootstrap") if bootstrap else "",
            brokers=brokers,
            workloads=workload or (),
            faults=fault or (),
            seconds=_seconds(length),
            fault_count=faults,
            send_count=sends,
            seed=seed,
            rate=rate,
            pause_s=pause,
            keep=keep,
            unsafe=unsafe,
        )
        if listing:
            _show_list(settings, json=json)
            return
        verdict = _run(settings)
    _show(verdict, settings.directory, json=json)


@torture.command(epilog="Example: tidelog torture check torture-20260131-120000")
def check(directory: DirectoryArgument, json: Json = False) -> None:
    """Check the histories of a run again.

    Nothing is run. Verdict and report are written anew into the run's directory.
    """
    from tidelog.torture.checking import check_run
    from tidelog.torture.parts import Parts

    with _could_not_run(), _display() as display:
        verdict = check_run(directory, display.event, display.progress, Parts())
    _show(verdict, directory, json=json)


@torture.command("report", epilog="Example: tidelog torture report torture-20260131-120000")
def make_report(directory: DirectoryArgument, json: Json = False) -> None:
    """Write the report of a run anew.

    It is made of the verdict of the last check, and is one HTML file without anything from elsewhere.
    """
    from tidelog.torture.report import write_report
    from tidelog.torture.verdict import read_verdict

    with _could_not_run():
        path = write_report(read_verdict(directory), directory)
    if json:
        print_json({"report": str(path)})
    else:
        print_line(str(path))


def _refuse_options(context: typer.Context) -> None:
    """Options of a run before `check` or `report` would be ignored."""
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name and getattr(context.get_parameter_source(parameter.name), "name", "DEFAULT") != "DEFAULT"
    ]
    if given:
        raise typer.BadParameter(f"{given[0]} is an option of a run; '{context.invoked_subcommand}' does not take it")


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    from tidelog.client.admin.offset_reset import parse_duration

    return checked(parse_duration, text, "--time")


@contextmanager
def _could_not_run() -> Iterator[None]:
    """Whatever keeps a run from being made is one line and exit code 2: 1 is for anomalies."""
    from tidelog.bench.errors import MeasurementError
    from tidelog.client.errors import ClientError
    from tidelog.torture.errors import TortureError

    try:
        yield
    except (TortureError, MeasurementError, ClientError) as error:
        raise CommandError(str(error), EXIT_USAGE) from error


def _run(settings: TortureSettings) -> Verdict:
    from tidelog.torture.parts import Parts
    from tidelog.torture.run import run_torture
    from tidelog.torture.verdict import RUN_FILE

    report(f"seed {settings.seed}; everything is kept in {settings.directory}")
    try:
        with Interruption().caught() as interruption, _display(settings, interruption) as display:
            return run_torture(settings, display, interruption, Parts())
    except KeyboardInterrupt:
        if (settings.directory / RUN_FILE).exists():
            report(f"stopped before the check; for what there is: tidelog torture check {settings.directory}")
        raise


# What is shown while it runs


class Display:
    """Tells how a run goes, on standard error: a line that changes on a terminal, else a line every few seconds."""

    def __init__(
        self, settings: TortureSettings | None, interruption: Interruption | None, spinner: Spinner | None
    ) -> None:
        self._settings = settings
        self._interruption = interruption
        self._spinner = spinner
        self._began_s = time.monotonic()
        self._told_s = self._began_s
        self._phase = ""
        self._is_ending = False

    def phase(self, text: str) -> None:
        self._phase = text
        self.event(text)
        self._update(text)

    def event(self, text: str) -> None:
        report(f"[{time.monotonic() - self._began_s:.0f} s] {text}")

    def status(self, status: Status) -> None:
        if self._interruption is not None and self._interruption.has_come and not self._is_ending:
            self._is_ending = True
            self.event("ending early: what is broken is healed, then everything is checked; Ctrl-C again stops at once")
        text = status_text(status, self._settings.seconds if self._settings else None)
        self._update(f"{self._phase}: {text}")
        self._tell_now_and_then(text)

    def progress(self, text: str) -> None:
        self._update(f"{self._phase}: {text}" if self._phase else text)
        self._tell_now_and_then(text)

    def _tell_now_and_then(self, text: str) -> None:
        if self._spinner is None and time.monotonic() - self._told_s >= STATUS_EVERY_S:
            self._told_s = time.monotonic()
            self.event(text)

    def _update(self, text: str) -> None:
        if self._spinner is not None:
            from rich.markup import escape

            self._spinner.update(escape(text))


def status_text(status: Status, seconds: float | None) -> str:
    """'1 min 5 s of 5 min 0 s, 12,345 acknowledged (1,234/s), 9 read, 7 faults, broken now: kill broker 2'."""
    # Afterwards the time of faults is over, and what is left takes as long as it takes.
    of = f" of {duration_text(seconds)}" if seconds is not None and status.elapsed_s <= seconds else ""
    faults = "1 fault" if status.faults == 1 else f"{status.faults:,} faults"
    broken = f"broken now: {', '.join(status.broken)}" if status.broken else "nothing broken now"
    return (
        f"{duration_text(status.elapsed_s)}{of}, {count_text(status.acknowledged)} acknowledged "
        f"({status.rate:,.0f}/s), {count_text(status.read)} read, {faults}, {broken}"
    )


@contextmanager
def _display(settings: TortureSettings | None = None, interruption: Interruption | None = None) -> Iterator[Display]:
    if not is_watched():
        yield Display(settings, interruption, None)
        return
    from rich.console import Console

    with Console(stderr=True).status("preparing") as spinner:
        yield Display(settings, interruption, spinner)


# What is shown at the end


def _show(verdict: Verdict, directory: Path, *, json: bool) -> None:
    from tidelog.torture.verdict import ANOMALIES, CLEAN, REPORT_FILE

    if json:
        print_json(verdict.as_data() | {"report": str(directory / REPORT_FILE)})
    else:
        for line in verdict_lines(verdict, directory / REPORT_FILE):
            print_line(line)
    if verdict.outcome != CLEAN:
        raise typer.Exit(EXIT_FAILED if verdict.outcome == ANOMALIES else EXIT_USAGE)


def verdict_lines(verdict: Verdict, report_path: Path) -> Iterator[str]:
    """The verdict as a person reads it on a terminal."""
    from tidelog.torture.report import headline, left_out_by_reason, milliseconds

    run = verdict.run
    yield headline(verdict)
    yield _row("cluster", f"{run['cluster']}, {run.get('version')}")
    ended = f", {run['ended_by']}" if run.get("ended_by") else ""
    yield _row("run", f"seed {run['seed']}, {duration_text(run.get('fault_seconds') or 0)} with faults{ended}")
    yield _row("faults", _counts(verdict.fault_counts) or "none")
    for workload in verdict.workloads:
        yield _row("workload", f"{workload.name}: {_counts(_main_counts(workload.counts))}")
    availability = verdict.availability
    if availability is not None:
        yield _row(
            "availability",
            f"{availability.share:.2%} of all partitions' seconds had an acknowledged write, "
            f"longest gap {availability.longest_gap_s:.1f} s, p99 {milliseconds(availability.p99_ms)}",
        )
    for why, those in left_out_by_reason(run.get("left_out", ())).items():
        yield _row("left out", f"{', '.join(those)}: {why}")
    for kind, count in verdict.kinds.items():
        example = next((anomaly for anomaly in verdict.anomalies if anomaly.kind == kind), None)
        where = "" if example is None else f"; {example.workload} {example.key}".rstrip() + f": {example.detail}"
        yield _row("ANOMALY", f"{kind} {count:,}{where}")
    yield _row("report", str(report_path))


def _row(label: str, text: str) -> str:
    return f"  {label.ljust(_LABEL_WIDTH)}{' '.join(text.split())}"


def _main_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """What says most about a workload; the report has all counts."""
    return {name: counts[name] for name in MAIN_COUNTS if counts.get(name)}


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())


def _show_list(settings: TortureSettings, *, json: bool) -> None:
    """All workloads and kinds of faults, and which of them are not possible here."""
    from tidelog.torture.parts import Parts

    parts = Parts()
    rows = parts.descriptions(settings)
    if json:
        print_json(
            [{"what": what, "name": name, "description": text, "impossible": why} for what, name, text, why in rows]
        )
        return
    for heading in ("workload", "fault"):
        cells = [(name, text, why or "") for what, name, text, why in rows if what == heading]
        if heading == "fault":
            print_line("")
        print_table((heading, "what it does", "not possible here"), cells)
