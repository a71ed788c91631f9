"""`tidelog demo`: the whole story on one machine, or with `--quick` a round trip through a broker.

What always holds: everything that a demo starts and writes is gone when the command ends, however it ends, unless
`--keep` or `--dir` is given. Missing packages are reported before anything is started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import CommandError
from tidelog.cli.options import Json
from tidelog.cli.output import print_json

QUICK_SECONDS = 2.0


def add_to(app: App) -> None:
    app.command(epilog="Example: tidelog demo --keep")(demo)


def demo(
    events: Annotated[
        int, typer.Option(metavar="N", min=1000, help="How many orders and clicks to generate.")
    ] = 300_000,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the generated events.")] = 7,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            file_okay=False,
            help="Working directory, new or empty, which is kept; default: a temporary one.",
        ),
    ] = None,
    chart: Annotated[Path, typer.Option(metavar="FILE", help="Where to save the chart.")] = Path("tidelog-demo.png"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running at the end, to explore by hand.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only a broker: write records, read them back, compare. Doesn't need Spark.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="With --quick: how long to write records.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="With --quick: use this broker instead of starting one."),
    ] = None,
    json: Json = False,
) -> None:
    """Show a pipeline from its first event to its second version.

    Starts a broker, sends the orders and clicks of a shop, and computes revenue per minute with a pipeline on Spark.
    The driver is killed in the middle and restarted; a second version is replayed, compared and promoted. Every
    result is checked. Everything is removed at the end, unless --keep or --dir is given.
    """
    if quick:
        if keep or directory is not None:
            raise typer.BadParameter("--quick excludes --keep and --dir")
        from tidelog.cli.demo_round_trip import show_round_trip

        show_round_trip(seconds or QUICK_SECONDS, bootstrap, json=json)
        return
    if seconds is not None or bootstrap is not None:
        raise typer.BadParameter("--seconds and --bootstrap need --quick")
    from tidelog.demo.processes import DemoError
    from tidelog.demo.story import Wishes, tell_story

    try:
        document = tell_story(Wishes(events, seed, directory, chart, keep, quietly=json))
    except DemoError as error:
        raise CommandError(str(error)) from None
    if json:
        print_json(document)
