"""`tidelog consume`: the records of a topic become lines on standard output."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.errors import CommandError
from tidelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Timeout,
    checked,
    client_options,
    topic_name,
)
from tidelog.cli.progress import is_watched, progress
from tidelog.cli.text import parse_timestamp

if TYPE_CHECKING:
    from tidelog.cli.record_format import RecordWriter
    from tidelog.client.consumer.consumer import Consumer
    from tidelog.client.types import TopicPartition
    from tidelog.records.kernel_consume import ConsumerRecord

DEFAULT_FORMAT = "%v"
# One write of standard output for so many records, when so many are there.
RECORDS_AT_ONCE = 2000
# How often a wait for records is interrupted to see whether the end is reached.
POLL_S = 0.5


class IsolationLevel(enum.StrEnum):
    """Whether records of transactions are read before these have been committed."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def add_to(app: typer.Typer) -> None:
    app.command(epilog=r"Example: tidelog consume orders --from-beginning --exit-at-end --format '%o %k\t%v'")(consume)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", callback=topic_name, help="The topic to read.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest record instead of waiting for new ones.")
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option(metavar="N", help="Start at this offset of each partition; below 0: so many before the end."),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start with the first record of this time: ms since 1970, or ISO 8601."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=0, help="Read only this partition; may be given several times."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP", help="Share the partitions with the group's other members, go on where it has committed."
        ),
    ] = None,
    isolation_level: Annotated[
        IsolationLevel, typer.Option(help="Leave out records of open and aborted transactions, or don't.")
    ] = IsolationLevel.READ_COMMITTED,
    max_messages: Annotated[int | None, typer.Option(metavar="N", min=1, help="Exit after so many records.")] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", help="Exit at the end as it was at the start instead of waiting for more.")
    ] = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="TEMPLATE",
            help=r"What to print for a record, as a line: %k key, %v value, %T topic, %p partition, %o offset, "
            r"%t timestamp in ms, %h headers, %% a percent sign, \t a tab, \n a new line; or json.",
        ),
    ] = DEFAULT_FORMAT,
    null_marker: Annotated[
        str, typer.Option(metavar="TEXT", show_default=False, help="What a template prints for null.")
    ] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Annotated[bool, typer.Option("--json", help="Print a line of JSON a record, as --format json.")] = False,
) -> None:
    """Print a topic's records, one a line; without a place to start, those that arrive from now on."""
    from tidelog.cli.record_format import compile_format
    from tidelog.client.consumer.consumer import Consumer

    if from_beginning + (offset is not None) + (timestamp is not None) > 1:
        raise typer.BadParameter("--from-beginning, --offset and --timestamp exclude each other")
    if group is not None and (partition or offset is not None or timestamp is not None):
        raise typer.BadParameter("a group decides what is read: --group excludes --partition, --offset and --timestamp")
    time_ms = None if timestamp is None else checked(parse_timestamp, timestamp, "--timestamp")
    if json and format_ not in (DEFAULT_FORMAT, "json"):
        raise typer.BadParameter("--json and --format TEMPLATE exclude each other")
    write = checked(lambda text: compile_format(text, null_marker), "json" if json else format_, "--format")
    options = client_options(bootstrap, timeout)
    reset = "earliest" if from_beginning else "latest"
    with Consumer(
        {} if group is None else {"group.id": group},
        **options,
        auto_offset_reset=reset,
        isolation_level=isolation_level.value,
        max_poll_records=min(RECORDS_AT_ONCE, max_messages or RECORDS_AT_ONCE),
        allow_auto_create_topics=False,
    ) as consumer:
        partitions = _partitions(consumer, topic, partition)
        ends = consumer.end_offsets(partitions) if exit_at_end else None
        if group is not None:
            consumer.subscribe([topic])
        else:
            consumer.assign(partitions)
            _seek(consumer, partitions, from_beginning, offset, time_ms)
        if sys.stderr.isatty() and sys.stdout.isatty() and not from_beginning and offset is None and timestamp is None:
            print(f"waiting for new records in {topic}; --from-beginning shows older ones", file=sys.stderr)
        _print_records(consumer, topic, write, max_messages, ends)


def _partitions(consumer: Consumer, topic: str, numbers: list[int] | None) -> list[TopicPartition]:
    from tidelog.client.types import TopicPartition

    there = [row.partition for row in consumer.partitions_for(topic)]
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
    write: RecordWriter,
    max_messages: int | None,
    ends: Mapping[TopicPartition, int] | None,
) -> None:
    printed = 0
    remaining = max_messages if max_messages is not None else sys.maxsize
    # Not sys.stdout.buffer: that is unbuffered, a system call a record, where PYTHONUNBUFFERED is set.
    with (
        progress(f"consuming {topic}", max_messages, shown=is_watched(prints=True)) as advance,
        open(sys.stdout.fileno(), "wb", closefd=False) as output,
    ):
        for records in _polled(consumer, ends):
            try:
                shown = records[:remaining]
                output.writelines(write(record.topic, record.partition, record) + b"\n" for record in shown)
                output.flush()
            except BaseException:
                # What was not printed is not committed, so that the group reads it again.
                _go_back(consumer, records)
                raise
            printed += len(shown)
            remaining -= len(shown)
            advance(printed, f"{printed:,} records of {topic}")
            if remaining <= 0:
                _go_back(consumer, records[len(shown) :])
                return


def _polled(consumer: Consumer, ends: Mapping[TopicPartition, int] | None) -> Iterator[list[ConsumerRecord]]:
    """What polls give, for ever or up to these ends."""
    if ends is None:
        while True:
            # Not without an end: what a group has read is committed when a poll begins.
            if records := consumer.poll(POLL_S):
                yield records
    while not _is_at(consumer, ends):
        records = consumer.poll(POLL_S)
        if any(consumer.position(key) > ends.get(key, 0) for key in consumer.assignment()):
            # Some came since the ends were looked up; a partition that came since has none.
            records = [record for record in records if record.offset < ends.get(_key(record), 0)]
        if records:
            yield records


def _is_at(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Whether everything was read up to the ends; in a group, of what this member has been given."""
    assigned = consumer.assignment()
    return bool(assigned) and all(consumer.position(key) >= ends.get(key, 0) for key in assigned)


def _go_back(consumer: Consumer, records: Sequence[ConsumerRecord]) -> None:
    """Let the next poll, or whoever goes on for the group, begin with these again."""
    assigned = consumer.assignment()
    for record in reversed(records):
        key = _key(record)
        if key in assigned:
            consumer.seek(key, record.offset)


def _key(record: ConsumerRecord) -> TopicPartition:
    from tidelog.client.types import TopicPartition

    return TopicPartition(record.topic, record.partition)
