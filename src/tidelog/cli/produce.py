"""`tidelog produce`: the lines of standard input become records."""

from __future__ import annotations

import enum
import os
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.errors import CommandError, report
from tidelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    administration,
    checked,
    client_options,
    topic_name,
)
from tidelog.cli.output import print_json, print_line
from tidelog.cli.progress import Advance, is_watched, progress
from tidelog.cli.text import count_text, duration_text, parse_pair, plural, size_text, unescape

if TYPE_CHECKING:
    from tidelog.client.producer.metrics import ProducerMetrics
    from tidelog.client.types import RecordMetadata

PROGRESS_EVERY_RECORDS = 1000
FAILURES_SHOWN_MAX = 10
BATCH_BYTES = 256 * 1024
LINGER_MS = 5
# How large a record may be is for the broker to say, which names its own limit.
REQUEST_BYTES_MAX = 64 * 1024 * 1024


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
    from tidelog.client.errors import RecordTooLargeError
    from tidelog.client.producer.producer import Producer

    separator = None if key_separator is None else _separator(key_separator)
    headers = [_header(text) for text in header or []]
    null = None if null_marker is None else null_marker.encode()
    _check_topic(bootstrap, timeout, topic, partition)  # told before the first line is typed
    tally = _Tally()
    started_s = time.monotonic()
    with Producer(
        **client_options(bootstrap, timeout),
        acks=acks.value,
        batch_size=BATCH_BYTES,
        compression_type=compression.value,
        enable_idempotence=idempotent and acks is Acks.ALL,
        linger_ms=LINGER_MS,
        delivery_timeout_ms=round(timeout * 1000) + LINGER_MS,
        max_block_ms=round(timeout * 1000),
        max_request_size=REQUEST_BYTES_MAX,
    ) as producer:
        try:
            for number, line in enumerate(_lines(topic), start=1):
                key, value = (None if part == null else part for part in _split(line, separator, number))
                try:
                    producer.send(topic, value, key, headers or None, partition, None, tally.add)
                except RecordTooLargeError as error:
                    tally.add(None, error)
        finally:
            # Also after Ctrl-C or a bad line: what was read before it is delivered.
            producer.flush()
        metrics = producer.metrics()
    _summarise(topic, tally, metrics, time.monotonic() - started_s, json)
    if tally.failed_records:
        raise CommandError(f"{plural(tally.failed_records, 'record')} could not be delivered to {topic}")


def _check_topic(bootstrap: str, timeout_s: float, topic: str, partition: int | None) -> None:
    with administration(bootstrap, timeout_s) as admin:
        partitions = admin.describe_topics(topic)[topic].partitions
    if partition is not None and partition >= len(partitions):
        raise CommandError(f"topic {topic!r} has no partition {partition}; it has 0 to {len(partitions) - 1}")


@dataclass(slots=True)
class _Tally:
    """What became of the records; tells why some failed, without a line for each of very many."""

    delivered_records: int = 0
    delivered_bytes: int = 0  # of keys and values
    failed_records: int = 0
    reasons: int = 0
    last_reason: str = ""

    def add(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        if metadata is not None:
            self.delivered_records += 1
            # The size of null is -1.
            self.delivered_bytes += max(metadata.serialized_key_size, 0) + max(metadata.serialized_value_size, 0)
            return
        self.failed_records += 1
        reason = str(error)
        # The records of a batch fail together, for one reason.
        if reason != self.last_reason:
            self.last_reason = reason
            self.reasons += 1
            if self.reasons <= FAILURES_SHOWN_MAX:
                report(f"not delivered: {reason}")


def _lines(topic: str) -> Iterator[bytes]:
    """The lines, with a progress bar when a person watches and the input is no keyboard."""
    from tidelog.cli.input_lines import read_lines

    status = os.fstat(sys.stdin.fileno())
    total_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None
    shown = is_watched() and not sys.stdin.isatty()
    read_records = read_bytes = 0

    def show(advance: Advance) -> None:
        advance(read_bytes, f"{read_records:,} records to {topic}")

    with progress(f"producing to {topic}", total_bytes, shown=shown, in_bytes=True) as advance:
        for line in read_lines(sys.stdin.fileno()):
            if line is None:
                show(advance)
                continue
            yield line
            read_records += 1
            read_bytes += len(line) + 1
            if read_records % PROGRESS_EVERY_RECORDS == 0:
                show(advance)


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


def _summarise(topic: str, tally: _Tally, metrics: ProducerMetrics, seconds: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "delivered_records": tally.delivered_records,
                "delivered_bytes": tally.delivered_bytes,
                "failed_records": tally.failed_records,
                "requests": metrics.requests_sent,
                "retries": metrics.records_retried,
                "seconds": round(seconds, 3),
            }
        )
        return
    rate = tally.delivered_records / seconds if seconds > 0 else 0
    failed = f", {count_text(tally.failed_records)} failed" if tally.failed_records else ""
    print_line(
        f"produced {plural(tally.delivered_records, 'record')} ({size_text(tally.delivered_bytes)}) to {topic} "
        f"in {duration_text(seconds)}: {count_text(round(rate))} records/s{failed}"
    )
