"""`tidelog serve` for typer: help, mistakes, completion.

The options are declared in `tidelog.cli.serve_options`, which parses ordinary command lines without typer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidelog.cli.app import App
from tidelog.cli.serve_options import SERVE_OPTIONS, LogLevel, ServeArguments, start


def _option(name: str, **more: Any) -> Any:  # typer.Option's own type
    option = SERVE_OPTIONS[name]
    return typer.Option(option.flag, metavar=option.metavar, help=option.help, **more)


def add_to(app: App) -> None:
    app.command(epilog="Example: tidelog serve --listen 127.0.0.1:9092 --data ./tidelog-data --set num.partitions=3")(
        serve
    )


def serve(
    listen: Annotated[str | None, _option("listen", show_default="127.0.0.1:9092")] = None,
    data: Annotated[Path, _option("data")] = Path("tidelog-data"),
    brokers: Annotated[str | None, _option("brokers")] = None,
    node_id: Annotated[int | None, _option("node_id", show_default="1")] = None,
    metadata: Annotated[str | None, _option("metadata", show_default="sqlite")] = None,
    config: Annotated[Path | None, _option("config")] = None,
    overrides: Annotated[list[str] | None, _option("overrides")] = None,
    log_level: Annotated[LogLevel, _option("log_level")] = LogLevel.INFO,
    log_json: Annotated[bool, _option("log_json")] = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    It prints a line when it is ready for clients. With --brokers it runs a cluster of several.
    """
    arguments = ServeArguments(
        listen,
        data,
        config,
        overrides or [],
        log_level.value,
        log_json,
        node_id=node_id,
        metadata=metadata,
        brokers=brokers,
    )
    raise typer.Exit(start(arguments))
