"""`tidelog bench`: measurements side by side with the systems people use today."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.errors import CommandError, report
from tidelog.cli.options import Json
from tidelog.cli.output import print_json, print_table
from tidelog.cli.progress import steps

if TYPE_CHECKING:
    from tidelog.bench.report import Row

Runs = Annotated[
    int, typer.Option(metavar="N", min=2, help="Runs of each broker, even, taking turns; medians are reported.")
]
Directory = Annotated[
    Path | None,
    typer.Option(metavar="DIR", exists=True, file_okay=False, help="Where both brokers keep their data meanwhile."),
]
Markdown = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the table as Markdown into this file.")]

bench = typer.Typer(no_args_is_help=True, help="Measure Tidelog side by side with its peers, on this machine.")


def add_to(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")


@bench.callback()
def group() -> None:
    """Measure Tidelog side by side with its peers, on this machine."""


@bench.command(epilog="Example: tidelog bench broker --runs 2 --megabytes 100")
def broker(
    runs: Runs = 4,
    megabytes: Annotated[int, typer.Option(metavar="MB", min=1, help="Payload of each throughput load.")] = 300,
    round_trips: Annotated[int, typer.Option(metavar="N", min=100, help="One-record requests a latency run.")] = 3000,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: throughput, latency, CPU, cold start and memory.

    Both brokers run on loopback with their default settings; kcat (librdkafka) is the client of both. Apache Kafka
    comes from Maven the first time, which needs Maven and a Java 17 runtime. Takes about ten minutes.
    """
    from tidelog.bench import broker_bench

    with _measuring() as tell:
        rows = broker_bench.compare(
            broker_bench.Plan(runs=runs, megabytes=megabytes, round_trips=round_trips), tell, directory
        )
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench compaction --megabytes 500")
def compaction(
    runs: Runs = 2,
    megabytes: Annotated[
        int, typer.Option(metavar="MB", min=1, help="Records of each load, before compression.")
    ] = 1000,
    keys: Annotated[int, typer.Option(metavar="N", min=1, help="Keys that they have, each equally often.")] = 1_000_000,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: how fast the log cleaner compacts a topic, at what cost, and whether it is right.

    Both brokers get the same batches and run one cleaner thread with the same buffers. What is left is read and
    compared record by record with what must be left. Needs Maven and a Java 17 runtime. Takes about ten minutes.
    """
    from tidelog.bench import compaction_bench

    with _measuring() as tell:
        rows = compaction_bench.compare(
            compaction_bench.Plan(megabytes=megabytes, keys=keys, runs=runs), tell, directory
        )
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench partitions --count 1000")
def partitions(
    count: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Partitions, all of one topic.")] = 5000,
    runs: Runs = 2,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: thousands of partitions created, written to, stopped, started, killed and started.

    Both brokers get the same ready-made requests; a step ends when every partition answers. Needs Maven and a Java 17
    runtime. Takes about two minutes a run.
    """
    from tidelog.bench import partitions_bench

    with _measuring() as tell:
        rows = partitions_bench.compare(partitions_bench.Plan(partitions=count, runs=runs), tell, directory)
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench groups --groups 100 --members 400")
def groups(
    runs: Runs = 2,
    count: Annotated[int, typer.Option("--groups", metavar="N", min=1, help="Groups at once.")] = 500,
    members: Annotated[int, typer.Option(metavar="N", min=1, help="Members of all of them, a connection each.")] = 2000,
    seconds: Annotated[float, typer.Option(metavar="S", min=1, help="How long heartbeats are timed.")] = 20.0,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: heartbeats of many consumer groups, a rebalance of a large one, commits of offsets.

    Both brokers get the same requests from the same members. Needs Maven, a Java 17 runtime, and as many open files as
    there are members and two thousand more. Takes about three minutes a run.
    """
    from tidelog.bench import groups_bench

    with _measuring() as tell:
        rows = groups_bench.compare(
            groups_bench.Plan(runs=runs, groups=count, members=members, seconds=seconds), tell, directory
        )
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench transactions --runs 2 --megabytes 50")
def transactions(
    runs: Runs = 4,
    megabytes: Annotated[int, typer.Option(metavar="MB", min=1, help="Batches of a run, kept in memory.")] = 300,
    interval: Annotated[int, typer.Option(metavar="MS", min=1, help="Milliseconds between commits.")] = 100,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: transactional produce with regular commits, and small transactions.

    Both brokers get the same ready-made requests, over one connection, to four partitions. Needs Maven and a Java 17
    runtime. Takes about two minutes.
    """
    from tidelog.bench import transactions_bench

    with _measuring() as tell:
        rows = transactions_bench.compare(
            transactions_bench.Plan(runs=runs, megabytes=megabytes, commit_interval_ms=interval), tell, directory
        )
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench client --runs 2 --records 500000")
def client(
    runs: Annotated[int, typer.Option(metavar="N", min=2, help="Runs of each client; medians are reported.")] = 4,
    records: Annotated[int, typer.Option(metavar="N", min=100_000, help="Records of 100 B in a load.")] = 2_000_000,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare the Python client with confluent-kafka, aiokafka and kafka-python: send, poll, Arrow, latency, memory.

    All of them talk to one Tidelog broker, each load in a process of its own. Needs the other clients: pip install
    'tidelog[bench]'. Takes about ten minutes.
    """
    from tidelog.bench import client_bench

    with _measuring() as tell:
        rows = client_bench.compare(client_bench.Plan(runs=runs, records=records), tell, directory)
    if markdown is not None:
        markdown.write_text(client_bench.markdown(rows))
    if json:
        print_json({"rows": [row.as_data() for row in rows]})
        return
    cells = [row.cells() for row in rows]
    print_table(client_bench.HEADINGS, cells, title="Python clients", numeric=client_bench.HEADINGS[2:8])


@bench.command(epilog="Example: tidelog bench spark --runs 2 --records 2000000")
def spark(
    runs: Annotated[int, typer.Option(metavar="N", min=2, help="Runs of each format; medians are reported.")] = 3,
    records: Annotated[
        int, typer.Option(metavar="N", min=100_000, help="Records of 100 B that are read; a fifth of it is written.")
    ] = 10_000_000,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare the Spark source and sink with Spark's own kafka format: reads, counts, Parquet, writes, small batches.

    Both formats run in one Spark session and talk to one Tidelog broker. Needs pip install 'tidelog[spark]', a Java 17
    runtime, and Maven for Spark's own format the first time. Takes about ten minutes.
    """
    from tidelog.bench import spark_bench, spark_peer

    with _measuring() as tell:
        rows = spark_bench.compare(spark_bench.Plan(runs=runs, records=records), tell, directory)
    _show(rows, markdown, json, spark_peer.PEER)


@contextmanager
def _measuring() -> Iterator[Callable[[str], None]]:
    """Gives what tells each step; a plan that makes no sense, or a measurement that failed, ends as one line."""
    from tidelog.bench.errors import MeasurementError

    try:
        with steps(report) as tell:
            yield tell
    except MeasurementError as error:
        raise CommandError(str(error)) from None


def _show(rows: Sequence[Row], markdown: Path | None, json: bool, peer: str | None = None) -> None:
    from tidelog.bench import report as rows_as
    from tidelog.bench.brokers import KAFKA_VERSION

    peer = peer or f"Apache Kafka {KAFKA_VERSION}"
    if markdown is not None:
        markdown.write_text(rows_as.markdown(rows, peer))
    if json:
        print_json({"peer": peer, "rows": [row.as_data() for row in rows]})
        return
    headings = [peer if heading == "peer" else heading for heading in rows_as.HEADINGS]
    numeric = ("Tidelog", peer, "ratio", "goal")
    print_table(headings, [rows_as.cells(row) for row in rows], title="Tidelog beside its peer", numeric=numeric)
