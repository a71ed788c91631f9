"""`tidelog bench`: measure Tidelog side by side with its peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import CommandError, report
from tidelog.cli.options import Json
from tidelog.cli.output import print_json, print_table
from tidelog.cli.progress import Durations, steps
from tidelog.common.interruption import ended_by_signals

if TYPE_CHECKING:
    from tidelog.bench.report import Row

Runs = Annotated[
    int, typer.Option(metavar="N", min=2, help="Runs of each broker, in turn; an even number. Medians are reported.")
]
Directory = Annotated[
    Path | None,
    typer.Option(metavar="DIR", exists=True, file_okay=False, help="Data directory of both brokers during the run."),
]
Markdown = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the table to this file, as Markdown.")]

bench = App(help="Measure Tidelog side by side with its peers.")


def add_to(app: App) -> None:
    app.add_typer(bench, name="bench")


@bench.callback()
def group() -> None:
    """Measure Tidelog side by side with its peers."""


@bench.command(epilog="Example: tidelog bench broker --row latency --row ready-made --runs 2")
def broker(
    row: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Measure only these rows: start, latency, ready-made, kcat. Repeatable."),
    ] = None,
    runs: Runs = 4,
    megabytes: Annotated[int, typer.Option(metavar="MB", min=1, help="Payload of each throughput load.")] = 300,
    round_trips: Annotated[
        int, typer.Option(metavar="N", min=100, help="One-record requests in each latency run.")
    ] = 3000,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: throughput, latency, CPU, memory.

    Also cold start. Both brokers run on loopback with default settings, and kcat (librdkafka) is the client of both.
    The first run downloads Apache Kafka with Maven; needs a Java 17 runtime. Takes about six minutes.
    """
    from tidelog.bench import broker_bench

    with _measuring() as tell:
        plan = broker_bench.Plan(runs=runs, megabytes=megabytes, round_trips=round_trips, rows=row or ())
        rows = broker_bench.compare(plan, tell, directory)
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench compaction --megabytes 400")
def compaction(
    runs: Runs = 2,
    megabytes: Annotated[
        int, typer.Option(metavar="MB", min=1, help="Records of each load, before compression.")
    ] = 500,
    keys: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of distinct keys, evenly distributed.")
    ] = 1_000_000,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: the speed and cost of compaction.

    Both brokers get the same batches and run one cleaner thread with the same buffers. The remaining records are read
    and compared one by one with those that must remain. Needs Maven and a Java 17 runtime. Takes about six minutes.
    """
    from tidelog.bench import compaction_bench

    with _measuring() as tell:
        rows = compaction_bench.compare(
            compaction_bench.Plan(megabytes=megabytes, keys=keys, runs=runs), tell, directory
        )
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench partitions --row produce --count 1000")
def partitions(
    row: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Measure only these rows: create, produce, idle, restart, crash. Repeatable."
        ),
    ] = None,
    count: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Partitions, all of one topic.")] = 5000,
    runs: Runs = 2,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: thousands of partitions.

    They are created and written to; then the brokers are stopped, started, killed and started again. Both get the same
    ready-made requests; a step ends when every partition answers. Needs Maven and a Java 17 runtime. Takes about two
    minutes per run.
    """
    from tidelog.bench import partitions_bench

    with _measuring() as tell:
        plan = partitions_bench.Plan(partitions=count, runs=runs, rows=row or ())
        rows = partitions_bench.compare(plan, tell, directory)
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench cluster --row latency --row failover --failovers 5")
def cluster(
    row: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Measure only these rows: memory, latency, produce, catch-up, failover, partitions. Repeatable.",
        ),
    ] = None,
    runs: Runs = 2,
    megabytes: Annotated[
        int, typer.Option(metavar="MB", min=1, help="Payload of each throughput load, and of what a follower copies.")
    ] = 300,
    round_trips: Annotated[
        int, typer.Option(metavar="N", min=100, help="One-record requests in each latency run.")
    ] = 3000,
    failovers: Annotated[int, typer.Option(metavar="N", min=1, help="How often a leader is killed in each run.")] = 3,
    partitions: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Partitions of the row of that name.")
    ] = 2000,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: three brokers, three replicas.

    Three brokers of each kind on this machine, acks=all with min.insync.replicas=2: latency, throughput, CPU time,
    catching up, failover, many partitions. Needs Maven, a Java 17 runtime and 4 GB of memory. Takes about five minutes
    per run.
    """
    from tidelog.bench import cluster_bench

    with _measuring() as tell:
        plan = cluster_bench.Plan(
            runs=runs,
            megabytes=megabytes,
            round_trips=round_trips,
            failovers=failovers,
            partitions=partitions,
            rows=row or (),
        )
        rows = cluster_bench.compare(plan, tell, directory)
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench groups --row commits")
def groups(
    row: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Measure only these rows: heartbeats, rebalances, commits. Repeatable."),
    ] = None,
    runs: Runs = 2,
    count: Annotated[int, typer.Option("--groups", metavar="N", min=1, help="Number of concurrent groups.")] = 500,
    members: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of members in all groups; each has its own connection.")
    ] = 2000,
    seconds: Annotated[float, typer.Option(metavar="S", min=1, help="How long to time heartbeats.")] = 20.0,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: heartbeats, rebalances, commits.

    Both brokers get the same requests from the same members of many groups and one large group. Needs Maven, a Java 17
    runtime, and a limit of open files two thousand above the number of members. Takes about three minutes per run.
    """
    from tidelog.bench import groups_bench

    with _measuring() as tell:
        plan = groups_bench.Plan(runs=runs, groups=count, members=members, seconds=seconds, rows=row or ())
        rows = groups_bench.compare(plan, tell, directory)
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench transactions --runs 2 --megabytes 50")
def transactions(
    runs: Runs = 4,
    megabytes: Annotated[
        int, typer.Option(metavar="MB", min=1, help="Size of the batches of a run, which are kept in memory.")
    ] = 300,
    interval: Annotated[int, typer.Option(metavar="MS", min=1, help="Milliseconds between commits.")] = 100,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare with Apache Kafka: transactions.

    Transactional produce with regular commits, and small transactions. Both brokers get the same ready-made requests
    over one connection, for four partitions. Needs Maven and a Java 17 runtime. Takes about two minutes.
    """
    from tidelog.bench import transactions_bench

    with _measuring() as tell:
        rows = transactions_bench.compare(
            transactions_bench.Plan(runs=runs, megabytes=megabytes, commit_interval_ms=interval), tell, directory
        )
    _show(rows, markdown, json)


@bench.command(epilog="Example: tidelog bench client --runs 2 --records 500000")
def client(
    runs: Annotated[int, typer.Option(metavar="N", min=2, help="Runs of each client, even; medians are reported.")] = 4,
    records: Annotated[
        int, typer.Option(metavar="N", min=100_000, help="Number of 100-byte records in each load.")
    ] = 2_000_000,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare the Python client with the other Python clients.

    With confluent-kafka, aiokafka and kafka-python: send, poll, Arrow, latency and memory. All talk to one Tidelog
    broker, and each load runs in its own process. The other clients come with the extra bench. Takes five minutes.
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
    runs: Annotated[int, typer.Option(metavar="N", min=2, help="Runs of each format, even; medians are reported.")] = 2,
    records: Annotated[
        int,
        typer.Option(metavar="N", min=100_000, help="Number of 100-byte records to read; a fifth as many are written."),
    ] = 5_000_000,
    directory: Directory = None,
    markdown: Markdown = None,
    json: Json = False,
) -> None:
    """Compare the Spark source and sink with Spark's kafka format.

    Reads, counts, Parquet, writes and small batches. Both formats run in one Spark session and talk to one Tidelog
    broker. Needs the extra spark, a Java 17 runtime and, for the first run, Maven. Takes about eight minutes.
    """
    from tidelog.bench import spark_bench, spark_peer
    from tidelog.cli.pipeline import require_spark

    require_spark()

    with _measuring() as tell:
        rows = spark_bench.compare(spark_bench.Plan(runs=runs, records=records), tell, directory)
    _show(rows, markdown, json, spark_peer.PEER)


@contextmanager
def _measuring() -> Iterator[Callable[[str], None]]:
    """Gives a function that reports each step; an invalid plan or a failed measurement becomes one line."""
    from tidelog.bench.errors import MeasurementError

    durations = Durations()
    try:
        with ended_by_signals(), steps(report) as tell:

            def begin(step: str) -> None:
                tell(f"[{durations.begin(step):.0f} s] {step.strip()}")

            yield begin
    except MeasurementError as error:
        raise CommandError(str(error)) from None
    report(durations.summary())


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
    print_table(headings, [rows_as.cells(row) for row in rows], title="Tidelog and its peer", numeric=numeric)
