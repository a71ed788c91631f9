"""`tidelog transactions`: list and describe transactions, find those that hang, and abort them.

What always holds: a transaction in a two-phase commit (KIP-939) is shown without a timeout, because its coordinator
has none for it; it is aborted only if the user names it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import CommandError
from tidelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    Yes,
    administration,
    checked,
)
from tidelog.cli.output import confirm, print_json, print_line, print_table
from tidelog.cli.text import duration_text, timestamp_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidelog.client.admin import Admin, OpenTransaction, TransactionDescription
    from tidelog.client.types import TopicMetadata, TopicPartition

DEFAULT_MAX_TRANSACTION_TIMEOUT_MINUTES = 15  # Kafka's transaction.max.timeout.ms
_NO_TIMEOUT_MS = 2**31 - 1  # what coordinators answer for transactions in a two-phase commit
_OPEN = "Ongoing"

transactions = App(help="List and describe transactions; abort hanging ones.")


def add_to(app: App) -> None:
    app.add_typer(transactions, name="transactions")


@transactions.command("list", epilog="Example: tidelog transactions list --state Ongoing --older-than 10m")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only ids in this state (Ongoing, Empty, ...); repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", metavar="N", help="Only the id of this producer; repeatable."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DURATION", help="Only transactions open for longer: 90s, 15m, 2h."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """List transactional ids and the state of their transactions."""
    from tidelog.client.admin.offset_reset import parse_duration

    older_than_ms = None
    if older_than is not None:
        older_than_ms = round(checked(parse_duration, older_than, "--older-than") * 1000)
    with administration(bootstrap, timeout) as admin:
        listed = admin.list_transactions(
            states=state or (), producer_ids=producer_id or (), older_than_ms=older_than_ms
        )
        timeouts_ms = _timeouts_ms(admin, [row.transactional_id for row in listed if row.state == _OPEN])
    if json:
        print_json(
            [
                {
                    "transactional_id": row.transactional_id,
                    "producer_id": row.producer_id,
                    "state": row.state,
                    "is_two_phase": timeouts_ms.get(row.transactional_id) == _NO_TIMEOUT_MS,
                    "coordinator": row.coordinator_id,
                }
                for row in listed
            ]
        )
        return
    rows = [
        [
            row.transactional_id,
            str(row.producer_id),
            row.state,
            _timeout_text(timeouts_ms[row.transactional_id]) if row.transactional_id in timeouts_ms else "-",
            str(row.coordinator_id),
        ]
        for row in listed
    ]
    print_table(["transactional id", "producer id", "state", "timeout", "coordinator"], rows, numeric=["producer id"])


def _timeouts_ms(admin: Admin, transactional_ids: Sequence[str]) -> dict[str, int]:
    """The timeouts of open transactions, without those that have ended in the meantime."""
    from tidelog.client.errors import BrokerError
    from tidelog.protocol import ErrorCode

    described = admin.describe_transactions(transactional_ids)
    for error in described.errors.values():
        if not isinstance(error, BrokerError) or error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise error
    return {name: row.timeout_ms for name, row in described.succeeded.items() if row.state == _OPEN}


def _timeout_text(timeout_ms: int) -> str:
    return "none (two-phase)" if timeout_ms == _NO_TIMEOUT_MS else duration_text(timeout_ms / 1000)


@transactions.command(epilog="Example: tidelog transactions describe copier --json | jq '.[].partitions'")
def describe(
    transactional_ids: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL-ID...", help="One or more ids.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show the producer, state and partitions of transactions."""
    with administration(bootstrap, timeout) as admin:
        described = list(admin.describe_transactions(transactional_ids).values())
    if json:
        print_json([_document(row) for row in described])
        return
    for row in described:
        _print_description(row)


def _document(row: TransactionDescription) -> dict[str, object]:
    return {
        "transactional_id": row.transactional_id,
        "state": row.state,
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "timeout_ms": None if row.timeout_ms == _NO_TIMEOUT_MS else row.timeout_ms,
        "start_time_ms": row.start_time_ms,
        "coordinator": row.coordinator_id,
        "partitions": [list(key) for key in row.partitions],
    }


def _print_description(row: TransactionDescription) -> None:
    began = "" if row.start_time_ms is None else f", last began {timestamp_text(row.start_time_ms)}"
    print_line(
        f"{row.transactional_id}  {row.state}, producer {row.producer_id} at epoch {row.producer_epoch}, "
        f"timeout {_timeout_text(row.timeout_ms)}{began}, coordinator {row.coordinator_id}"
    )
    if row.partitions:
        print_table(
            ["topic", "partition"], [[key.topic, str(key.partition)] for key in row.partitions], numeric=["partition"]
        )


@transactions.command("find-hanging", epilog="Example: tidelog transactions find-hanging --topic orders")
def find_hanging(
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", help="Only partitions that this broker leads.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="N", min=0, help="Only this partition of --topic.")
    ] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout",
            metavar="MINUTES",
            min=0,
            help="Only transactions without a write for this long; use the largest timeout of your producers.",
        ),
    ] = DEFAULT_MAX_TRANSACTION_TIMEOUT_MINUTES,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Find open transactions that no coordinator will ever end."""
    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs --topic")
    now_ms = time.time_ns() // 1_000_000
    with administration(bootstrap, timeout, topics=[topic] if topic else ()) as admin:
        hanging = admin.find_hanging_transactions(
            _partitions(admin, broker, topic, partition),
            written_before_ms=now_ms - max_transaction_timeout * 60_000,
        )
    if json:
        print_json([_open_document(row) for row in hanging])
    else:
        _print_open(hanging, now_ms)


def _partitions(admin: Admin, broker: int | None, topic: str | None, partition: int | None) -> list[TopicPartition]:
    """The partitions to search, including internal topics: offsets are committed in transactions too."""
    from tidelog.client.types import TopicPartition

    topics: list[TopicMetadata]
    topics = admin.list_topics(include_internal=True) if topic is None else [admin.describe_topics(topic)[topic]]
    if broker is not None:
        known = [node.node_id for node in admin.describe_cluster().nodes]
        if broker not in known:
            raise CommandError(f"there is no broker {broker}; brokers: {', '.join(map(str, known))}")
    found = [
        TopicPartition(described.name, row.partition)
        for described in topics
        for row in described.partitions
        if (partition is None or row.partition == partition) and (broker is None or row.leader_id == broker)
    ]
    if partition is not None and not any(row.partition == partition for row in topics[0].partitions):
        raise CommandError(f"topic {topic} has no partition {partition}; it has 0 to {len(topics[0].partitions) - 1}")
    return found


def _open_document(row: OpenTransaction) -> dict[str, object]:
    return {
        "topic": row.topic_partition.topic,
        "partition": row.topic_partition.partition,
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "coordinator_epoch": row.coordinator_epoch,
        "start_offset": row.start_offset,
        "last_timestamp_ms": row.last_timestamp_ms,
    }


def _print_open(rows: Sequence[OpenTransaction], now_ms: int) -> None:
    columns = [
        "topic",
        "partition",
        "producer id",
        "producer epoch",
        "coordinator epoch",
        "start offset",
        "last written",
        "minutes",
    ]
    cells = [
        [
            row.topic_partition.topic,
            str(row.topic_partition.partition),
            str(row.producer_id),
            str(row.producer_epoch),
            str(row.coordinator_epoch),
            str(row.start_offset),
            timestamp_text(row.last_timestamp_ms),
            str((now_ms - row.last_timestamp_ms) // 60_000),
        ]
        for row in rows
    ]
    print_table(columns, cells, numeric=[*columns[1:6], "minutes"])


@transactions.command(epilog="Example: tidelog transactions abort --topic orders --partition 0 --start-offset 4711")
def abort(
    transactional_id: Annotated[
        str | None,
        typer.Option(
            "--transactional-id", metavar="ID", help="Abort the open transaction of this id, and fence its producer."
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic with the hanging transaction.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="The partition with the hanging transaction."),
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option(
            "--start-offset", metavar="OFFSET", min=0, help="Where the transaction starts, as find-hanging shows it."
        ),
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", metavar="N", min=0, help="Its producer id; needs both epochs too.")
    ] = None,
    producer_epoch: Annotated[
        int | None, typer.Option("--producer-epoch", metavar="N", min=0, max=32767, help="The producer's epoch.")
    ] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option("--coordinator-epoch", metavar="N", min=-1, help="The coordinator's epoch.")
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Abort an open transaction, by its id or by its partition.

    read_committed consumers can then read past it.
    """
    by_producer = (producer_id, producer_epoch, coordinator_epoch)
    given = [value is not None for value in by_producer]
    if transactional_id is not None:
        if any(given) or any(value is not None for value in (topic, partition, start_offset)):
            raise typer.BadParameter("--transactional-id excludes --topic, --partition and the options after them")
        with administration(bootstrap, timeout) as admin:
            _abort_id(admin, transactional_id, yes=yes, json=json)
        return
    if topic is None or partition is None:
        raise typer.BadParameter("say which transaction: --transactional-id, or --topic and --partition")
    if (start_offset is not None) == any(given) or any(given) != all(given):
        raise typer.BadParameter(
            "say which transaction: --start-offset, or all of --producer-id, --producer-epoch and --coordinator-epoch"
        )
    with administration(bootstrap, timeout, topics=[topic]) as admin:
        if start_offset is not None:
            found = _open_at(admin, topic, partition, start_offset)
            producer_id, producer_epoch, coordinator_epoch = (
                found.producer_id,
                found.producer_epoch,
                found.coordinator_epoch,
            )
        assert producer_id is not None
        assert producer_epoch is not None
        assert coordinator_epoch is not None
        if not yes and not confirm(f"Abort the open transaction of producer {producer_id} in {topic}-{partition}?"):
            raise CommandError("nothing was aborted")
        _abort_hanging(admin, topic, partition, producer_id, producer_epoch, coordinator_epoch)
    if json:
        print_json(
            {
                "topic": topic,
                "partition": partition,
                "start_offset": start_offset,
                "producer_id": producer_id,
                "producer_epoch": producer_epoch,
            }
        )
    else:
        print_line(f"aborted the transaction of producer {producer_id} in {topic}-{partition}")


def _abort_id(admin: Admin, transactional_id: str, *, yes: bool, json: bool) -> None:
    row = admin.describe_transactions(transactional_id)[transactional_id]
    if row.state != _OPEN:
        raise CommandError(f"transactional id {transactional_id} has no open transaction: it is in state {row.state}")
    question = f"Abort the open transaction of {transactional_id} and fence its producer?"
    if row.timeout_ms == _NO_TIMEOUT_MS:
        question = f"It may be prepared, and its coordinator may have decided to commit it. {question}"
    if not yes and not confirm(question):
        raise CommandError("nothing was aborted")
    # As if a new producer took over the id, so that the coordinator knows.
    admin.fence_producers(transactional_id).raise_for_errors()
    if json:
        print_json(
            {
                "transactional_id": transactional_id,
                "producer_id": row.producer_id,
                "producer_epoch": row.producer_epoch,
                "partitions": [list(key) for key in row.partitions],
            }
        )
    else:
        print_line(f"aborted the transaction of {transactional_id}; its producer is fenced")


def _abort_hanging(
    admin: Admin, topic: str, partition: int, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    from tidelog.client.types import TopicPartition

    admin.abort_transaction(
        TopicPartition(topic, partition),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
    )


def _open_at(admin: Admin, topic: str, partition: int, start_offset: int) -> OpenTransaction:
    from tidelog.client.types import TopicPartition

    for row in admin.list_open_transactions([TopicPartition(topic, partition)]):
        if row.start_offset == start_offset:
            return row
    raise CommandError(f"partition {topic}-{partition} has no open transaction that begins at offset {start_offset}")
