"""`tidelog demo`: the whole story on one machine, or with `--quick` a round trip through a broker alone.

What always holds: all that a demo starts and writes is gone when the command ends, however it ends, unless `--keep` or
`--dir` say otherwise. Spark and charts are imported by the processes and chapters that need them, and what is missing
is told before anything is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidelog.cli.errors import CommandError
from tidelog.cli.options import Json
from tidelog.cli.output import print_json

QUICK_SECONDS = 2.0


def add_to(app: typer.Typer) -> None:
    app.command(epilog="Example: tidelog demo --keep")(demo)


def demo(
    events: Annotated[int, typer.Option(metavar="N", min=1000, help="How many orders and clicks the shop sees.")] = (
        1_000_000
    ),
    seed: Annotated[int, typer.Option(metavar="N", help="From which the events are made up.")] = 7,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            file_okay=False,
            help="Where to work: a new or empty directory, which is left there. By default a temporary one.",
        ),
    ] = None,
    chart: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the chart.")] = Path("tidelog-demo.png"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running at the end, to go on by hand.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only a broker: write records, read them back, compare. Needs no Spark.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="With --quick: how long to write records.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --quick: use this broker instead of one of the demo's own."),
    ] = None,
    json: Json = False,
) -> None:
    """Tell the whole story: a shop's events, a pipeline that is killed, its second version, with all results checked.

    A broker is started, a million orders and clicks flow in, and a pipeline on Spark computes revenue per minute. Its
    driver is killed in the middle and started again; its second version is replayed, compared and promoted. Everything
    is gone afterwards, unless --keep or --dir say otherwise.
    """
    if quick:
        if keep or directory is not None:
            raise typer.BadParameter("--keep and --dir do not go with --quick, which leaves nothing behind")
        from tidelog.cli.demo_round_trip import show_round_trip

        show_round_trip(seconds or QUICK_SECONDS, bootstrap, json=json)
        return
    if seconds is not None or bootstrap is not None:
        raise typer.BadParameter("--seconds and --bootstrap go with --quick")
    from tidelog.demo.processes import DemoError
    from tidelog.demo.story import Wishes, tell_story

    try:
        document = tell_story(Wishes(events, seed, directory, chart, keep, quietly=json))
    except DemoError as error:
        raise CommandError(str(error)) from None
    if json:
        print_json(document)
