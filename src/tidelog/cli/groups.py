"""`tidelog groups`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import CommandError, error_name, report
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
from tidelog.cli.suggestions import suggestion
from tidelog.cli.text import count_text, duration_text, parse_timestamp, plural, timestamp_text
from tidelog.common.interruption import Interruption

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tidelog.client.admin import Admin, GroupDescription, GroupMember, Rebalance
    from tidelog.client.admin.offset_reset import PlannedOffset, Targets
    from tidelog.client.types import OffsetAndMetadata, TopicPartition

groups = App(help="List, describe, reset and delete consumer groups.")

WATCH_INTERVAL_S = 2.0
CLEAR_SCREEN = "\x1b[H\x1b[2J"

GroupIds = Annotated[list[str], typer.Argument(metavar="GROUP...", help="One or more groups.")]


def add_to(app: App) -> None:
    app.add_typer(groups, name="groups")


@groups.command("list", epilog="Example: tidelog groups list --state Stable --json | jq -r '.[].group'")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only groups in this state (Stable, Empty, ...); repeatable."),
    ] = None,
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only groups of this type (classic, consumer); repeatable."),
    ] = None,
    lag: Annotated[bool, typer.Option(help="Show how many records each group has yet to read.")] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """List consumer groups and their total lag."""
    with administration(bootstrap, timeout) as admin:
        listed = admin.list_groups(states=state or (), types=type_ or ())
        lags = _total_lags(admin, [row.group_id for row in listed]) if lag else {}
    if json:
        print_json(
            [
                {
                    "group": row.group_id,
                    "type": row.type,
                    "state": row.state,
                    "protocol_type": row.protocol_type,
                    "coordinator": row.coordinator_id,
                }
                | ({"lag": lags.get(row.group_id)} if lag else {})
                for row in listed
            ]
        )
        return
    columns = ["group", "type", "state", "protocol"]
    rows = [[row.group_id, row.type.lower() or "-", row.state or "-", row.protocol_type or "-"] for row in listed]
    if lag:
        columns.append("lag")
        for row, cells in zip(listed, rows, strict=True):
            total = lags.get(row.group_id)
            cells.append("-" if total is None else count_text(total))
    print_table(columns, rows, numeric=["lag"])


def _total_lags(admin: Admin, group_ids: Sequence[str]) -> dict[str, int]:
    """The sum of each group's lags; a group without committed offsets, or deleted in the meantime, has none."""
    if not group_ids:
        return {}
    committed = admin.list_consumer_group_offsets(group_ids).succeeded
    ends = _end_offsets(admin, {key for offsets in committed.values() for key in offsets})
    totals: dict[str, int] = {}
    for group_id, offsets in committed.items():
        lags = [max(0, ends[key] - row.offset) for key, row in offsets.items() if key in ends]
        if lags:
            totals[group_id] = sum(lags)
    return totals


@groups.command(epilog="Example: tidelog groups describe billing --lag --history")
def describe(
    group_ids: GroupIds,
    members: Annotated[bool, typer.Option("--members", help="Show the members and their partitions.")] = False,
    lag: Annotated[bool, typer.Option("--lag", help="Show committed offsets and lag.")] = False,
    history: Annotated[
        bool,
        typer.Option("--history", help="Show the last rebalances: why, who caused them, and how long they took."),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every few seconds until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="How often, with --watch.")
    ] = WATCH_INTERVAL_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show the state, members, lag and rebalances of groups.

    Without options: members and lag.
    """
    if not (members or lag or history):
        members = lag = True
    with Interruption().caught() as interruption, administration(bootstrap, timeout, groups=group_ids) as admin:
        while True:
            described = admin.describe_consumer_groups(group_ids, include_history=history).values()
            documents = [_document(admin, group, members=members, lag=lag, history=history) for group in described]
            if watch and sys.stdout.isatty():
                print(CLEAR_SCREEN, end="")
            if json:
                print_json(documents)
            else:
                for document in documents:
                    _print_group(document)
            sys.stdout.flush()
            interruption.check()
            if not watch:
                return
            interruption.wait(interval)


def _document(admin: Admin, group: GroupDescription, *, members: bool, lag: bool, history: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.assignor,
        "coordinator": group.coordinator_id,
        "epoch": group.group_epoch if group.group_epoch >= 0 else None,
        "members_count": len(group.members),
    }
    if members:
        document["members"] = [_member_row(member) for member in group.members]
    if lag:
        committed = admin.list_consumer_group_offsets(group.group_id)[group.group_id]
        document["lag"] = _lag_rows(admin, group, committed)
    if history:
        if group.history is None:
            report(f"group {group.group_id}: its broker keeps no history")
        document["history"] = [_history_row(entry) for entry in group.history or ()]
    return document


def _member_row(member: GroupMember) -> dict[str, object]:
    assignment = None if member.assignment is None else [list(key) for key in member.assignment]
    target = None if member.target_assignment is None else [list(key) for key in member.target_assignment]
    return {
        "member": member.member_id,
        "instance": member.group_instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "topics": list(member.subscribed_topics),
        "assignment": assignment,
        "target_assignment": target,
        "epoch": member.member_epoch if member.member_epoch >= 0 else None,
    }


def _lag_rows(
    admin: Admin, group: GroupDescription, committed: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[dict[str, object]]:
    """A row for every partition with a committed offset or an owner; those of deleted topics have no end offset."""
    owners = {key: member for member in group.members for key in member.assignment or ()}
    wanted = sorted({*committed, *owners})
    ends = _end_offsets(admin, wanted)
    rows: list[dict[str, object]] = []
    for key in wanted:
        offset = committed[key].offset if key in committed else None
        end = ends.get(key)
        owner = owners.get(key)
        rows.append(
            {
                "topic": key.topic,
                "partition": key.partition,
                "committed": offset,
                "end": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "metadata": committed[key].metadata if key in committed else None,
                "member": owner.member_id if owner else None,
                "client": owner.client_id if owner else None,
                "host": owner.client_host if owner else None,
            }
        )
    return rows


def _end_offsets(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    from tidelog.client.admin import OffsetSpec

    there = {
        (topic.name, row.partition) for topic in admin.list_topics(include_internal=True) for row in topic.partitions
    }
    listed = admin.list_offsets({key: OffsetSpec.LATEST for key in partitions if key in there})
    return {key: row.offset for key, row in listed.items()}


def _history_row(entry: Rebalance) -> dict[str, object]:
    return {
        "generation": entry.generation,
        "began_at_ms": entry.began_at_ms,
        "cause": entry.cause,
        "reason": entry.reason or None,
        "member": entry.member_id or None,
        "instance": entry.group_instance_id,
        "client": entry.client_id or None,
        "host": entry.client_host or None,
        "stood_still_ms": entry.stood_still_ms if entry.stood_still_ms >= 0 else None,
        "members_before": entry.members_before,
        "members_after": entry.members_after,
    }


def _print_group(document: dict[str, object]) -> None:
    members_count = document["members_count"]
    assert isinstance(members_count, int)
    print_line(
        f"{document['group']}  {document['type']} group, {document['state']}, "
        f"{plural(members_count, 'member')}, assignor {document['assignor'] or '-'}, "
        f"coordinator {document['coordinator']}"
    )
    for name, show in (("members", _print_members), ("lag", _print_lag), ("history", _print_history)):
        rows = document.get(name)
        if isinstance(rows, list):
            show(rows)


def _print_members(rows: Sequence[dict[str, object]]) -> None:
    if not rows:
        return
    cells = []
    for row in rows:
        assignment = row["assignment"]
        shown = "?" if not isinstance(assignment, list) else _assignment_text(assignment)
        cells.append([_text(row[name]) for name in ("member", "instance", "client", "host")] + [shown])
    print_table(["member", "instance", "client", "host", "partitions"], cells)


def _assignment_text(assignment: Sequence[Sequence[object]]) -> str:
    """[["orders", 0], ["orders", 2]] is 'orders 0,2'."""
    topics: dict[object, list[str]] = {}
    for topic, partition in assignment:
        topics.setdefault(topic, []).append(str(partition))
    return "; ".join(f"{topic} {','.join(numbers)}" for topic, numbers in topics.items()) or "-"


def _print_lag(rows: Sequence[dict[str, object]]) -> None:
    columns = ["topic", "partition", "committed", "end", "lag", "client", "host"]
    cells = [[_text(row[name]) for name in columns] for row in rows]
    total = sum(row["lag"] for row in rows if isinstance(row["lag"], int))
    print_table(columns, cells, numeric=["partition", "committed", "end", "lag"])
    print_line(f"total lag {count_text(total)}")


def _print_history(rows: Sequence[dict[str, object]]) -> None:
    if not rows:
        return
    columns = ["generation", "began", "cause", "by", "stood still", "members", "reason"]
    cells = []
    for row in rows:
        began, still = row["began_at_ms"], row["stood_still_ms"]
        cells.append(
            [
                _text(row["generation"]),
                timestamp_text(began) if isinstance(began, int) else "-",
                _text(row["cause"]),
                _text(row["instance"] or row["client"] or row["member"]),
                _stood_still_text(still, members_left=row["members_after"] != 0),
                f"{row['members_before']} -> {row['members_after']}",
                _text(row["reason"]),
            ]
        )
    print_table(columns, cells, numeric=["generation", "stood still"])


def _stood_still_text(still_ms: object, *, members_left: bool) -> str:
    if isinstance(still_ms, int):
        return duration_text(still_ms / 1000)
    # Nobody waits in a group whose last member has left.
    return "in progress" if members_left else "-"


def _text(value: object) -> str:
    return "-" if value is None else str(value)


@groups.command(
    "reset-offsets",
    epilog="Example: tidelog groups reset-offsets billing --topic orders --to-datetime 2026-01-31T00:00:00Z --execute",
)
def reset_offsets(
    group_id: Annotated[str, typer.Argument(metavar="GROUP", help="The group; its consumers must be stopped.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITIONS]",
            help="A topic, or some of its partitions (orders:0,2); repeatable.",
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics for which the group has committed offsets.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to the end.")] = False,
    to_current: Annotated[
        bool,
        typer.Option(
            "--to-current", help="Keep the committed offset, moved into the range that the topic still holds."
        ),
    ] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", help="Reset to this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="Reset to the first record at or after this time: ISO 8601, or ms."
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration",
            metavar="DURATION",
            help="Reset to the first record that is at most this old: 2h, 1d, PT30M.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Move forward by N records, or back if N is negative.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Reset to the offsets in this file: lines of topic,partition,offset.",
        ),
    ] = None,
    export: Annotated[bool, typer.Option("--export", help="Print the plan as lines that --from-file reads.")] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Reset the offsets; without this they are only shown.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Reset the committed offsets of a group.

    Shows what would change; --execute changes it.
    """
    from tidelog.client.admin import offset_reset

    ways: list[Targets] = []
    if to_earliest:
        ways.append(offset_reset.to_earliest)
    if to_latest:
        ways.append(offset_reset.to_latest)
    if to_current:
        ways.append(offset_reset.to_current)
    if to_offset is not None:
        ways.append(offset_reset.to_offset(to_offset))
    if to_datetime is not None:
        ways.append(offset_reset.to_time(checked(parse_timestamp, to_datetime, "--to-datetime")))
    if by_duration is not None:
        ways.append(offset_reset.by_duration(checked(offset_reset.parse_duration, by_duration, "--by-duration")))
    if shift_by is not None:
        ways.append(offset_reset.shift_by(shift_by))
    in_file = {} if from_file is None else offset_reset.read_offsets(from_file)
    if in_file:
        ways.append(offset_reset.exactly(in_file))
    if len(ways) != 1:
        raise typer.BadParameter(
            "say where to reset to: one of --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, "
            "--by-duration, --shift-by and --from-file"
        )
    if (bool(topic) + all_topics + bool(in_file)) != 1:
        raise typer.BadParameter("say which partitions: one of --topic, --all-topics and --from-file")
    typed = [text.partition(":")[0] for text in topic or ()]
    with administration(bootstrap, timeout, topics=typed) as admin:
        committed = admin.list_consumer_group_offsets(group_id)[group_id]
        partitions = list(in_file) or _partitions(admin, topic, committed)
        if not partitions:
            raise CommandError(f"group {group_id} has no committed offsets; name the topics with --topic")
        plan = offset_reset.plan_reset(admin, offset_reset.bounds_of(admin, partitions, committed), ways[0])
        if execute:
            altered = admin.alter_consumer_group_offsets(group_id, {row.topic_partition: row.will_be for row in plan})
            altered.raise_for_errors()
    _show_plan(group_id, plan, execute=execute, export=export, as_json=json)


def _partitions(
    admin: Admin, topics: list[str] | None, committed: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[TopicPartition]:
    from tidelog.client.types import TopicPartition

    if not topics:
        return sorted(committed)
    chosen: list[TopicPartition] = []
    for text in topics:
        name, separator, numbers = text.partition(":")
        described = admin.describe_topics(name)[name]
        there = [row.partition for row in described.partitions]
        wanted = there if not separator else checked(_numbers, numbers, "--topic")
        for partition in wanted:
            if partition not in there:
                raise CommandError(f"topic {name} has no partition {partition}; it has 0 to {there[-1]}")
            chosen.append(TopicPartition(name, partition))
    return chosen


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is not a list of partitions, as in orders:0,2") from None


def _show_plan(group_id: str, plan: Sequence[PlannedOffset], *, execute: bool, export: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "group": group_id,
                "executed": execute,
                "offsets": [
                    {
                        "topic": row.topic_partition.topic,
                        "partition": row.topic_partition.partition,
                        "was": row.was,
                        "will_be": row.will_be,
                        "clamped": row.is_clamped,
                    }
                    for row in plan
                ],
            }
        )
        return
    if export:
        for row in plan:
            print_line(f"{row.topic_partition.topic},{row.topic_partition.partition},{row.will_be}")
        return
    cells = [
        [
            row.topic_partition.topic,
            str(row.topic_partition.partition),
            _text(row.was),
            str(row.will_be),
            "moved into the range of the partition" if row.is_clamped else "",
        ]
        for row in plan
    ]
    columns = ["topic", "partition", "was", "is now" if execute else "would be", "note"]
    print_table(columns, cells, numeric=columns[1:4])
    if not execute:
        report("nothing was changed; add --execute to reset the offsets")


@groups.command(epilog="Example: tidelog groups delete billing --yes")
def delete(
    group_ids: GroupIds,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Delete groups without members, and their committed offsets."""
    if not yes and not confirm(f"Delete {', '.join(group_ids)} and all committed offsets?"):
        raise CommandError("nothing was deleted")
    with administration(bootstrap, timeout) as admin:
        results = admin.delete_consumer_groups(group_ids)
        existing = [group.group_id for group in admin.list_groups()] if results.errors else []
    errors = results.errors
    if json:
        print_json(
            [
                {
                    "group": group_id,
                    "error": error_name(errors[group_id]) if group_id in errors else None,
                    "message": str(errors[group_id]) if group_id in errors else None,
                }
                for group_id in results
            ]
        )
    else:
        for group_id in results.succeeded:
            print_line(f"deleted {group_id}")
    for group_id, error in errors.items():
        report(f"{error}{suggestion(group_id, existing)}")
    if errors:
        raise typer.Exit(1)
