"""`tidelog consume`: the records of a topic become lines on standard output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Timeout,
    checked,
    connected,
    topic_name,
)
from tidelog.cli.text import parse_timestamp

if TYPE_CHECKING:
    from tidelog.cli.record_format import RecordWriter
    from tidelog.client.consume import Consumer, Start

DEFAULT_FORMAT = "%v"


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
    from tidelog.client.consume import Consumer
    from tidelog.client.types import TopicPartition

    start = _start(from_beginning, offset, timestamp)
    if json and format_ not in (DEFAULT_FORMAT, "json"):
        raise typer.BadParameter("--json and --format TEMPLATE exclude each other")
    write = checked(lambda text: compile_format(text, null_marker), "json" if json else format_, "--format")
    with connected(bootstrap, timeout) as cluster:
        numbers = partition or [row.partition for row in cluster.topic(topic).partitions]
        consumer = Consumer(cluster)
        consumer.assign(
            {TopicPartition(topic, number): start for number in dict.fromkeys(numbers)}, stop_at_end=exit_at_end
        )
        if sys.stderr.isatty() and sys.stdout.isatty() and not from_beginning and offset is None and timestamp is None:
            print(f"waiting for new records in {topic}; --from-beginning shows older ones", file=sys.stderr)
        _print_records(consumer, write, max_messages)


def _print_records(consumer: Consumer, write: RecordWriter, max_messages: int | None) -> None:
    remaining = max_messages if max_messages is not None else sys.maxsize
    # Not sys.stdout.buffer: that is unbuffered, a system call a record, where PYTHONUNBUFFERED is set.
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        for (topic, partition), records in consumer:
            output.writelines(write(topic, partition, record) + b"\n" for record in records[:remaining])
            output.flush()
            remaining -= len(records)
            if remaining <= 0:
                return


def _start(from_beginning: bool, offset: int | None, timestamp: str | None) -> Start:
    from tidelog.client.consume import BEGINNING, END, Start

    if from_beginning + (offset is not None) + (timestamp is not None) > 1:
        raise typer.BadParameter("--from-beginning, --offset and --timestamp exclude each other")
    if from_beginning:
        return BEGINNING
    if offset is not None:
        return Start(offset=offset)
    if timestamp is not None:
        return Start(timestamp=checked(parse_timestamp, timestamp, "--timestamp"))
    return END
