"""`tidelog produce`: write the lines of standard input to a topic."""

from __future__ import annotations

import enum
import os
import stat
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import CommandError, report
from tidelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    TopicArgument,
    TopicOption,
    administration,
    checked,
    client_options,
    one_topic,
)
from tidelog.cli.output import print_json, print_line
from tidelog.cli.progress import is_watched, progress
from tidelog.cli.text import count_text, duration_text, parse_pair, plural, size_text, unescape

if TYPE_CHECKING:
    from tidelog.client.producer.batch import ProducerBatch
    from tidelog.client.producer.metrics import ProducerMetrics
    from tidelog.client.producer.producer import Producer

FAILURES_SHOWN_MAX = 10
BATCH_BYTES = 256 * 1024
LINGER_MS = 5
# The broker decides how large a record may be, and its error names the limit.
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


def add_to(app: App) -> None:
    app.command(epilog="Example: printf 'k1:hello\\nk2:world\\n' | tidelog produce greetings --key-separator :")(
        produce
    )


def produce(
    topic_argument: TopicArgument = None,
    topic_option: TopicOption = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help=r"Split each line into key and value here; \t is a tab."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Write to this partition, whatever the key."),
    ] = None,
    acks: Annotated[
        Acks, typer.Option(help="Wait for all in-sync replicas, for the leader only, or for nobody.")
    ] = Acks.ALL,
    compression: Annotated[
        CompressionName, typer.Option("--compression", "-z", help="Compress batches with this codec.")
    ] = CompressionName.NONE,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="KEY=VALUE", help="Add this header to every record; repeatable."),
    ] = None,
    null_marker: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Send a key or value equal to this as null (a null value is a tombstone)."),
    ] = None,
    idempotent: Annotated[
        bool,
        typer.Option(help="Let the broker drop duplicates that retries cause; needs --acks all."),
    ] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Write the lines of standard input to a topic as records."""
    from tidelog.client.producer.producer import Producer

    topic = one_topic(topic_argument, topic_option)
    separator = None if key_separator is None else _separator(key_separator)
    null = None if null_marker is None else null_marker.encode()
    headers = [_header(text) for text in header or []]
    _check_topic(bootstrap, timeout, topic, partition)  # so that it fails before the first line is typed
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
        producer.partitions_for(topic)  # so that the first records don't have to wait for news of it
        sending = Sending(producer, topic, headers or None, partition)
        try:
            for lines in _lines(topic):
                sending.send(lines if separator is None and null is None else _split_lines(lines, separator, null))
        except _NoSeparatorError as problem:
            number = sending.records + 1
            raise CommandError(
                f"line {number} has no key separator {problem.separator!r}; the lines before it were sent"
            ) from None
        finally:
            # Also after Ctrl-C and after a bad line: what was read before it is delivered.
            producer.flush()
        sending.settle()
        metrics = producer.metrics()
    _summarise(topic, sending, metrics, time.monotonic() - started_s, json)
    if sending.failed_records:
        raise CommandError(f"{plural(sending.failed_records, 'record')} could not be delivered to {topic}")


def _check_topic(bootstrap: str, timeout_s: float, topic: str, partition: int | None) -> None:
    with administration(bootstrap, timeout_s, topics=[topic]) as admin:
        partitions = admin.describe_topics(topic)[topic].partitions
    if partition is not None and partition >= len(partitions):
        raise CommandError(f"topic {topic!r} has no partition {partition}; it has 0 to {len(partitions) - 1}")


KeyAndValue = tuple[bytes | None, bytes | None]


class _NoSeparatorError(Exception):
    def __init__(self, separator: str) -> None:
        super().__init__(separator)
        self.separator = separator


def _split_lines(lines: Sequence[bytes], separator: bytes | None, null: bytes | None) -> Iterator[KeyAndValue]:
    """Key and value of every line."""
    for line in lines:
        key: bytes | None = None
        value: bytes | None = line
        if separator is not None:
            key, found, value = line.partition(separator)
            if not found:
                raise _NoSeparatorError(separator.decode())
        if null is not None:
            key = None if key == null else key
            value = None if value == null else value
        yield key, value


class Sending:
    """Sends lines and counts what became of them, batch by batch: a callback for every record would cost more than
    sending it."""

    def __init__(
        self, producer: Producer, topic: str, headers: list[tuple[str, bytes]] | None, partition: int | None
    ) -> None:
        self._send = producer.send
        self._topic = topic
        self._headers = headers
        self._partition = partition
        # The sizes of the records in each batch that has not ended, in their order.
        self._pending: dict[object, list[int]] = defaultdict(list)
        self._reasons = 0
        self._last_reason = ""
        self.records = 0
        self.delivered_records = 0
        self.delivered_bytes = 0  # of keys and values
        self.failed_records = 0

    def send(self, lines: Iterable[bytes | KeyAndValue]) -> None:
        """Send these lines, or pairs of key and value."""
        from tidelog.client.errors import RecordTooLargeError

        remaining = iter(lines)
        while True:
            try:
                if isinstance(lines, list):
                    self._send_values(remaining)  # type: ignore[arg-type]  # a list holds lines
                else:
                    self._send_pairs(remaining)  # type: ignore[arg-type]  # anything else gives pairs
                break
            except RecordTooLargeError as error:
                self.records += 1
                self._note_failure(1, str(error))
        self.settle()

    def _send_values(self, values: Iterator[bytes]) -> None:
        send, topic, headers, partition, pending = (
            self._send,
            self._topic,
            self._headers,
            self._partition,
            self._pending,
        )
        records = 0
        try:
            for value in values:
                pending[send(topic, value, None, headers, partition).batch].append(len(value))
                records += 1
        finally:
            self.records += records

    def _send_pairs(self, pairs: Iterator[KeyAndValue]) -> None:
        for key, value in pairs:
            batch = self._send(self._topic, value, key, self._headers, self._partition).batch
            self._pending[batch].append(len(key or b"") + len(value or b""))
            self.records += 1

    def settle(self) -> None:
        """Count the records of the batches that have ended."""
        from tidelog.client.producer.batch import ProducerBatch
        from tidelog.client.producer.unplaced import UnplacedRecord

        for batch in list(self._pending):
            assert isinstance(batch, ProducerBatch)  # what a producer's futures belong to
            if isinstance(batch, UnplacedRecord):
                if batch.future.done():
                    self._note(batch.future.exception(), self._pending.pop(batch))
            elif batch.is_done:
                self._settle_batch(batch, self._pending.pop(batch))

    def _settle_batch(self, batch: ProducerBatch, sizes: list[int]) -> None:
        # Records that were sent before the topic was known are in front of these, and counted by themselves.
        first = len(sizes) - sum(part.count for part in batch.all_parts())
        for part in batch.all_parts():
            error: Exception | str | None = part.error
            if error is not None and part.record_errors:
                error = f"{error}: {next(iter(part.record_errors.values()))}"
            self._note(error, sizes[max(first, 0) : max(first + part.count, 0)])
            first += part.count

    def _note(self, error: Exception | str | None, sizes: list[int]) -> None:
        if error is None:
            self.delivered_records += len(sizes)
            self.delivered_bytes += sum(sizes)
        elif sizes:
            self._note_failure(len(sizes), str(error))

    def _note_failure(self, records: int, reason: str) -> None:
        """Say why, but not once for every batch."""
        self.failed_records += records
        if reason != self._last_reason:
            self._last_reason = reason
            self._reasons += 1
            if self._reasons <= FAILURES_SHOWN_MAX:
                report(f"not delivered: {reason}")


def _lines(topic: str) -> Iterator[list[bytes]]:
    """The lines, with a progress bar if a person watches and the input is not the keyboard."""
    from tidelog.cli.input_lines import read_lines

    status = os.fstat(sys.stdin.fileno())
    total_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None
    shown = is_watched() and not sys.stdin.isatty()
    read_records = read_bytes = 0
    with progress(f"producing to {topic}", total_bytes, shown=shown, in_bytes=True) as advance:
        for lines in read_lines(sys.stdin.fileno()):
            if lines:
                yield lines
                read_records += len(lines)
                if shown:
                    read_bytes += sum(map(len, lines)) + len(lines)
            advance(read_bytes, f"{read_records:,} records to {topic}")


def _separator(text: str) -> bytes:
    separator = checked(unescape, text, "--key-separator")
    if not separator:
        raise typer.BadParameter("it must not be empty", param_hint="'--key-separator'")
    return separator.encode()


def _header(text: str) -> tuple[str, bytes]:
    key, value = checked(lambda text: parse_pair(text, "trace=42"), text, "--header")
    return key, value.encode()


def _summarise(topic: str, sending: Sending, metrics: ProducerMetrics, seconds: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "delivered_records": sending.delivered_records,
                "delivered_bytes": sending.delivered_bytes,
                "failed_records": sending.failed_records,
                "requests": metrics.requests_sent,
                "retries": metrics.records_retried,
                "seconds": round(seconds, 3),
            }
        )
        return
    rate = sending.delivered_records / seconds if seconds > 0 else 0
    failed = f", {count_text(sending.failed_records)} failed" if sending.failed_records else ""
    print_line(
        f"produced {plural(sending.delivered_records, 'record')} ({size_text(sending.delivered_bytes)}) to {topic} "
        f"in {duration_text(seconds)}: {count_text(round(rate))} records/s{failed}"
    )
