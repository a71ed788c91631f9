"""`tidelog consume`: print the records of a topic."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import CommandError
from tidelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Timeout,
    TopicArgument,
    TopicOption,
    administration,
    checked,
    client_options,
    one_topic,
)
from tidelog.cli.progress import is_watched, progress
from tidelog.cli.text import parse_timestamp
from tidelog.common.interruption import ended_by_signals

if TYPE_CHECKING:
    from tidelog.cli.record_format import LinesWriter
    from tidelog.client.consumer.consumer import Consumer
    from tidelog.client.types import TopicPartition
    from tidelog.records.kernel_consume import ConsumerRecord

DEFAULT_FORMAT = "%v"
# How many records are printed with one write, if that many are there.
RECORDS_AT_ONCE = 2000
# How often a wait for records is interrupted to see whether the end is reached.
POLL_S = 0.5


class IsolationLevel(enum.StrEnum):
    """Whether the records of a transaction are read before it is committed."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def add_to(app: App) -> None:
    app.command(epilog=r"Example: tidelog consume orders --from-beginning --exit-at-end --format '%o %k\t%v'")(consume)


def consume(
    topic_argument: TopicArgument = None,
    topic_option: TopicOption = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the oldest record; the same as --offset earliest.")
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="OFFSET",
            help="Where to start in each partition: earliest, latest, an offset, or -N for the last N records.",
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Start at the first record at or after this time: ISO 8601, or ms since 1970."
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Read only this partition; repeatable."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-G", metavar="GROUP", help="Join this consumer group, and resume at its committed offsets."
        ),
    ] = None,
    isolation_level: Annotated[
        IsolationLevel,
        typer.Option(help="Skip the records of open and aborted transactions (read_committed), or print them too."),
    ] = IsolationLevel.READ_COMMITTED,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-c", metavar="N", min=1, help="Exit after N records.")
    ] = None,
    exit_at_end: Annotated[
        bool,
        typer.Option("--exit-at-end", "-e", help="Exit at the offset that was the end of the topic at the start."),
    ] = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="TEMPLATE",
            help=r"How to print a record: %k key, %v value, %T topic, %p partition, %o offset, %t timestamp in ms, "
            r"%h headers, %% a percent sign, \t a tab, \n a new line; or json.",
        ),
    ] = DEFAULT_FORMAT,
    null_marker: Annotated[
        str, typer.Option(metavar="TEXT", show_default=False, help="What a template prints for null.")
    ] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Annotated[bool, typer.Option("--json", "-J", help="Print each record as a line of JSON.")] = False,
) -> None:
    """Print the records of a topic, one per line.

    Without a place to start, it prints the records that arrive from now on.
    """
    from tidelog.cli.record_format import compile_lines
    from tidelog.client.consumer.consumer import Consumer

    topic = one_topic(topic_argument, topic_option)
    if from_beginning + (offset is not None) + (timestamp is not None) > 1:
        raise typer.BadParameter("--from-beginning, --offset and --timestamp exclude each other")
    start = None if offset is None else checked(_parse_offset, offset, "--offset")
    if isinstance(start, str):
        from_beginning, start = start == "earliest", None
    if group is not None and (partition or start is not None or timestamp is not None):
        raise typer.BadParameter(
            "a group decides what is read: --group excludes --partition, --timestamp and numbers as --offset"
        )
    time_ms = None if timestamp is None else checked(parse_timestamp, timestamp, "--timestamp")
    if json and format_ not in (DEFAULT_FORMAT, "json"):
        raise typer.BadParameter("--json and --format TEMPLATE exclude each other")
    write = checked(lambda text: compile_lines(text, null_marker), "json" if json else format_, "--format")
    options = client_options(bootstrap, timeout)
    reset = "earliest" if from_beginning else "latest"
    with ended_by_signals() as check_interruption:
        partitions = _partitions(bootstrap, timeout, topic, partition)
        with Consumer(
            {} if group is None else {"group.id": group},
            **options,
            auto_offset_reset=reset,
            isolation_level=isolation_level.value,
            max_poll_records=min(RECORDS_AT_ONCE, max_messages or RECORDS_AT_ONCE),
            allow_auto_create_topics=False,
        ) as consumer:
            ends = consumer.end_offsets(partitions) if exit_at_end else None
            if group is not None:
                consumer.subscribe([topic])
            else:
                consumer.assign(partitions)
                _seek(consumer, partitions, from_beginning, start, time_ms)
            if sys.stderr.isatty() and sys.stdout.isatty() and not (from_beginning or offset or timestamp):
                print(f"waiting for new records in {topic}; --from-beginning shows older ones", file=sys.stderr)
            _print_records(consumer, topic, write, max_messages, ends, check_interruption)


# The names of both ends: Kafka's, and kcat's.
_END_NAMES = {"earliest": "earliest", "beginning": "earliest", "latest": "latest", "end": "latest"}


def _parse_offset(text: str) -> int | str:
    """A number, `earliest` or `latest`; raises ValueError."""
    if text in _END_NAMES:
        return _END_NAMES[text]
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an offset; write earliest, latest, a number, or -N for the last N") from None


def _partitions(bootstrap: str, timeout_s: float, topic: str, numbers: list[int] | None) -> list[TopicPartition]:
    """The partitions to read. Asked before there is a consumer, which would report each failed connection as well."""
    from tidelog.client.types import TopicPartition

    with administration(bootstrap, timeout_s, topics=[topic]) as admin:
        there = [row.partition for row in admin.describe_topics(topic)[topic].partitions]
    for number in numbers or ():
        if number not in there:
            raise CommandError(f"topic {topic!r} has no partition {number}; it has 0 to {len(there) - 1}")
    return [TopicPartition(topic, number) for number in dict.fromkeys(numbers or there)]


def _seek(
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    from_beginning: bool,
    offset: int | None,
    time_ms: int | None,
) -> None:
    if offset is not None:
        first, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        for key in partitions:
            start = offset if offset >= 0 else max(end[key] + offset, first[key])
            if not first[key] <= start <= end[key]:
                raise CommandError(f"partition {key} has no offset {start}; it holds {first[key]} up to {end[key]}")
            consumer.seek(key, start)
    elif time_ms is not None:
        found = consumer.offsets_for_times(dict.fromkeys(partitions, time_ms))
        for key, row in found.items():
            if row is not None:
                consumer.seek(key, row.offset)
        consumer.seek_to_end([key for key, row in found.items() if row is None])
    elif from_beginning:
        consumer.seek_to_beginning()
    else:
        consumer.seek_to_end()


def _print_records(
    consumer: Consumer,
    topic: str,
    write: LinesWriter,
    max_messages: int | None,
    ends: Mapping[TopicPartition, int] | None,
    check_interruption: Callable[[], None],
) -> None:
    printed = 0
    remaining = max_messages if max_messages is not None else sys.maxsize
    # Not sys.stdout.buffer, which PYTHONUNBUFFERED makes unbuffered.
    with (
        progress(f"consuming {topic}", max_messages, shown=is_watched(prints=True)) as advance,
        open(sys.stdout.fileno(), "wb", closefd=False) as output,
    ):
        for records in _polled(consumer, ends, check_interruption):
            try:
                shown = records[:remaining]
                output.write(write(shown))
                output.flush()
            except BaseException:
                # Records that were not printed are not committed, so the group reads them again.
                _go_back(consumer, records)
                raise
            printed += len(shown)
            remaining -= len(shown)
            advance(printed, f"{printed:,} records of {topic}")
            if remaining <= 0:
                _go_back(consumer, records[len(shown) :])
                return


def _polled(
    consumer: Consumer, ends: Mapping[TopicPartition, int] | None, check_interruption: Callable[[], None]
) -> Iterator[list[ConsumerRecord]]:
    """What the polls return, for ever or up to these ends."""
    if ends is None:
        while True:
            check_interruption()
            # A poll commits what the group has read before it.
            if records := consumer.poll(POLL_S):
                yield records
    while not _is_at(consumer, ends):
        check_interruption()
        records = consumer.poll(POLL_S)
        if any(consumer.position(key) > ends.get(key, 0) for key in consumer.assignment()):
            # Some arrived after the ends were looked up; a partition that was added since has none.
            records = [record for record in records if record.offset < ends.get(_key(record), 0)]
        if records:
            yield records


def _is_at(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Whether everything was read up to the ends; in a group, of what this member has been given."""
    assigned = consumer.assignment()
    return bool(assigned) and all(consumer.position(key) >= ends.get(key, 0) for key in assigned)


def _go_back(consumer: Consumer, records: Sequence[ConsumerRecord]) -> None:
    """Let the next poll, or the next member of the group, start with these again."""
    assigned = consumer.assignment()
    for record in reversed(records):
        key = _key(record)
        if key in assigned:
            consumer.seek(key, record.offset)


def _key(record: ConsumerRecord) -> TopicPartition:
    from tidelog.client.types import TopicPartition

    return TopicPartition(record.topic, record.partition)
