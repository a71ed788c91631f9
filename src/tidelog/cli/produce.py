"""`tidelog produce`: the lines of standard input become records."""

from __future__ import annotations

import enum
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.errors import CommandError, report
from tidelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    checked,
    connected,
    topic_name,
)
from tidelog.cli.output import print_json, print_line
from tidelog.cli.text import count_text, duration_text, parse_pair, plural, size_text, unescape

if TYPE_CHECKING:
    from tidelog.client.batches import Batch
    from tidelog.client.errors import ClientError
    from tidelog.client.produce import Delivery, Producer

PROGRESS_EVERY_RECORDS = 1000
FAILURES_SHOWN_MAX = 10


class Acks(enum.StrEnum):
    """How many replicas must have a record before it counts as delivered."""

    ALL = "all"
    LEADER = "1"
    NONE = "0"


class CompressionName(enum.StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def add_to(app: typer.Typer) -> None:
    app.command(epilog="Example: printf 'k1:hello\\nk2:world\\n' | tidelog produce greetings --key-separator :")(
        produce
    )


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", callback=topic_name, help="The topic to write to.")],
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help=r"What stands before it in a line is the key; \t is a tab."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Write to this partition instead of choosing by key."),
    ] = None,
    acks: Annotated[Acks, typer.Option(help="Wait for all replicas in sync, for the leader, or for none.")] = Acks.ALL,
    compression: Annotated[CompressionName, typer.Option(help="How to compress batches.")] = CompressionName.NONE,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A header of every record; may be given several times."),
    ] = None,
    null_marker: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A key or value that equals this is sent as null: a tombstone."),
    ] = None,
    idempotent: Annotated[
        bool,
        typer.Option(help="Let the broker drop what a retry sends twice; only with --acks all."),
    ] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Write the lines of standard input to a topic, one record a line, in order."""
    from tidelog.client.produce import Producer
    from tidelog.records import Compression

    separator = None if key_separator is None else _separator(key_separator)
    headers = [_header(text) for text in header or []]
    null = None if null_marker is None else null_marker.encode()
    failures = _Failures()
    started_s = time.monotonic()
    with connected(bootstrap, timeout) as cluster:
        cluster.topic(topic)  # a wrong name is told before the first line is typed
        producer = Producer(
            cluster,
            acks={Acks.ALL: -1, Acks.LEADER: 1, Acks.NONE: 0}[acks],
            compression=Compression.from_label(compression.value),
            idempotent=idempotent and acks is Acks.ALL,
            delivery_timeout_s=timeout,
            on_failure=failures.add,
        )
        with _progress(topic) as advanced:
            try:
                for number, line in enumerate(_lines(producer, advanced), start=1):
                    key, value = _split(line, separator, number)
                    producer.send(
                        topic,
                        None if value == null else value,
                        key=None if key is None or key == null else key,
                        headers=headers,
                        partition=partition,
                    )
            finally:
                # Also after Ctrl-C or a bad line: what was read before it is delivered.
                producer.flush()
    _summarise(topic, producer.delivery, time.monotonic() - started_s, json)
    if producer.delivery.failed_records:
        raise CommandError(f"{plural(producer.delivery.failed_records, 'record')} could not be delivered to {topic}")


class _Failures:
    """Tells why records failed, without a line for each of very many."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, batch: Batch, error: ClientError) -> None:
        self._count += 1
        if self._count <= FAILURES_SHOWN_MAX:
            report(f"{plural(len(batch.records), 'record')} not delivered: {error}")


def _lines(producer: Producer, advanced: Callable[[int, int], None]) -> Iterator[bytes]:
    from tidelog.cli.input_lines import read_lines

    read_records = read_bytes = 0
    for line in read_lines(sys.stdin.fileno()):
        if line is None:
            producer.flush()
            advanced(read_records, read_bytes)
            continue
        yield line
        read_records += 1
        read_bytes += len(line) + 1
        if read_records % PROGRESS_EVERY_RECORDS == 0:
            advanced(read_records, read_bytes)


def _split(line: bytes, separator: bytes | None, number: int) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise CommandError(f"line {number} has no key separator {separator.decode()!r}; the lines before it were sent")
    return key, value


def _separator(text: str) -> bytes:
    separator = checked(unescape, text, "--key-separator")
    if not separator:
        raise typer.BadParameter("it may not be empty", param_hint="'--key-separator'")
    return separator.encode()


def _header(text: str) -> tuple[str, bytes]:
    key, value = checked(lambda text: parse_pair(text, "trace=42"), text, "--header")
    return key, value.encode()


def _summarise(topic: str, delivery: Delivery, seconds: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "delivered_records": delivery.delivered_records,
                "delivered_bytes": delivery.delivered_bytes,
                "failed_records": delivery.failed_records,
                "requests": delivery.requests,
                "retries": delivery.retries,
                "seconds": round(seconds, 3),
            }
        )
        return
    rate = delivery.delivered_records / seconds if seconds > 0 else 0
    failed = f", {count_text(delivery.failed_records)} failed" if delivery.failed_records else ""
    print_line(
        f"produced {plural(delivery.delivered_records, 'record')} ({size_text(delivery.delivered_bytes)}) to {topic} "
        f"in {duration_text(seconds)}: {count_text(round(rate))} records/s{failed}"
    )


@contextmanager
def _progress(topic: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar when a person watches and the input is no keyboard; else nothing."""
    if not sys.stderr.isatty() or sys.stdin.isatty():
        yield lambda records, read_bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    status = os.fstat(sys.stdin.fileno())
    total_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"producing to {topic}", total=total_bytes)

        def advanced(records: int, read_bytes: int) -> None:
            progress.update(task, completed=read_bytes, description=f"{records:,} records to {topic}")

        yield advanced
