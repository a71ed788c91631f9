"""`tidelog zookeeper`: a real ZooKeeper server, for clusters over several machines."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import EXIT_USAGE, report

_LOOK_AGAIN_S = 0.1


def add_to(app: App) -> None:
    app.command(
        epilog="Example: tidelog zookeeper --listen 10.0.0.1:2181 --data /var/lib/tidelog-zookeeper --id 1 "
        "--servers 10.0.0.1:2888:3888,10.0.0.2:2888:3888,10.0.0.3:2888:3888"
    )(zookeeper)


def zookeeper(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address for brokers.")] = "127.0.0.1:2181",
    data: Annotated[Path, typer.Option(metavar="DIR", help="Data directory; created if it doesn't exist.")] = Path(
        "tidelog-zookeeper"
    ),
    servers: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PEER-PORT:ELECTION-PORT,...",
            help="All servers of the ensemble, in the same order everywhere; default: this one alone.",
        ),
    ] = None,
    server_id: Annotated[
        int, typer.Option("--id", metavar="N", help="Which entry of --servers this one is, counting from 1.")
    ] = 1,
    jars: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory with ZooKeeper's jars; default: those that come with pyspark."),
    ] = None,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="ZooKeeper's log level, on standard error: error, warn, info or debug.")
    ] = "warn",
) -> None:
    """Run an Apache ZooKeeper server until Ctrl-C or SIGTERM.

    Brokers on several machines keep their metadata in it: tidelog serve --metadata zookeeper://HOST:PORT. Three servers
    on three machines survive the loss of one. It prints a line when it is ready, which in an ensemble takes a majority
    of the servers. Needs a Java runtime.
    """
    from tidelog.common.endpoint import PLAINTEXT, parse_endpoint
    from tidelog.server.zookeeper_process import ZooKeeperError, ZooKeeperPlan, ZooKeeperProcess

    try:
        endpoint = parse_endpoint(listen)
        if endpoint.listener_name != PLAINTEXT:
            raise ValueError(f"{listen!r}: a ZooKeeper server has no named listeners; write HOST:PORT")
        plan = ZooKeeperPlan(
            endpoint, data, server_id, tuple((servers or "").split(",")) if servers else (), jars, log_level
        )
        server = ZooKeeperProcess(plan)
        server.start()
    except (ValueError, ZooKeeperError) as error:
        report(str(error))
        raise typer.Exit(EXIT_USAGE) from error
    is_stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal is_stopping
        is_stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    is_ready = False
    while not is_stopping and server.exit_code is None:
        if not is_ready and server.is_serving():
            is_ready = True
            typer.echo(f"zookeeper {server_id} ready on {endpoint.host}:{endpoint.port}")
        time.sleep(_LOOK_AGAIN_S)
    if not is_stopping:
        report(f"ZooKeeper ended by itself with exit code {server.exit_code}; see its log above")
        raise typer.Exit(1)
    server.stop()
