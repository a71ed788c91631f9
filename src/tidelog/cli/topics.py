"""`tidelog topics`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

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
    topic_name,
    topic_names,
)
from tidelog.cli.output import confirm, print_json, print_line, print_table
from tidelog.cli.suggestions import suggestion
from tidelog.cli.text import count_text, parse_pair, plural, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tidelog.client.admin import Admin, CreatedTopic, ListedOffset, LogDir, Results
    from tidelog.client.errors import ClientError
    from tidelog.client.types import TopicMetadata, TopicPartition
    from tidelog.protocol import ErrorCode

ResultT = TypeVar("ResultT")

topics = App(help="Create, list, describe, alter and delete topics.")

Names = Annotated[list[str], typer.Argument(metavar="TOPIC...", callback=topic_names, help="One or more topics.")]
ConfigPairs = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="Set this topic setting; repeatable."),
]
ValidateOnly = Annotated[bool, typer.Option("--validate-only", help="Check the request without carrying it out.")]


def add_to(app: App) -> None:
    app.add_typer(topics, name="topics")


@topics.command(epilog="Example: tidelog topics create orders --partitions 6 --config retention.ms=86400000")
def create(
    names: Names,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            metavar="N",
            min=1,
            show_default="the broker's num.partitions",
            help="Number of partitions.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, show_default="the broker's default", help="Number of replicas of each partition."
        ),
    ] = None,
    config: ConfigPairs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Don't fail if the topic exists already.")
    ] = False,
    validate_only: ValidateOnly = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Create topics."""
    from tidelog.client.admin import NewTopic
    from tidelog.protocol import ErrorCode

    configs = dict(_pair(text) for text in config or [])
    with administration(bootstrap, timeout) as admin:
        new = [NewTopic(name, partitions or -1, replication_factor or -1, configs) for name in dict.fromkeys(names)]
        results = admin.create_topics(new, validate_only=validate_only)
        if not validate_only and results.succeeded:
            admin.wait_for_topics(results.succeeded)
    tolerated = ErrorCode.TOPIC_ALREADY_EXISTS if if_not_exists else None
    verb = "would create" if validate_only else "created"

    def describe(topic: CreatedTopic) -> str:
        if topic.partitions < 0:  # brokers before 2.4 don't say
            return f"{verb} {topic.name}"
        factor = topic.replication_factor
        return f"{verb} {topic.name} with {plural(topic.partitions, 'partition')}, replication factor {factor}"

    created = results.succeeded
    _show_results(
        results,
        {name: describe(topic) for name, topic in created.items()},
        {name: (topic.partitions, topic.replication_factor) for name, topic in created.items()},
        tolerated=tolerated,
        skipped="exists already",
        as_json=json,
    )


@topics.command("list", epilog="Example: tidelog topics list --json | jq -r '.[].topic'")
def list_(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """List topics."""
    with administration(bootstrap, timeout) as admin:
        listed = admin.list_topics(include_internal=internal)
    if json:
        print_json(
            [
                {
                    "topic": topic.name,
                    "topic_id": _id_text(topic),
                    "partitions": len(topic.partitions),
                    "replication_factor": _replication_factor(topic),
                    "internal": topic.is_internal,
                }
                for topic in listed
            ]
        )
        return
    rows = [[topic.name, count_text(len(topic.partitions)), str(_replication_factor(topic))] for topic in listed]
    print_table(["topic", "partitions", "replicas"], rows, numeric=["partitions", "replicas"])


@topics.command(epilog="Example: tidelog topics describe orders --sizes")
def describe(
    names: Names,
    sizes: Annotated[bool, typer.Option("--sizes", help="Show the size of every replica on disk instead.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show partitions, offsets, sizes and changed settings of topics."""
    documents = []
    with administration(bootstrap, timeout, topics=names) as admin:
        for topic in admin.describe_topics(names).values():
            documents.append(_describe_sizes(admin, topic) if sizes else _describe_topic(admin, topic))
    if json:
        print_json(documents)
        return
    for document in documents:
        if sizes:
            _print_sizes(document)
        else:
            _print_topic(document)


@topics.command(epilog="Example: tidelog topics alter orders --partitions 12 --config retention.ms=3600000")
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC", callback=topic_name, help="The topic.")],
    partitions: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Grow to this number of partitions; it can't shrink.")
    ] = None,
    config: ConfigPairs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="KEY", help="Reset this setting to its default; repeatable."),
    ] = None,
    validate_only: ValidateOnly = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Add partitions to a topic, or change its settings."""
    from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource

    changes = [ConfigChange(key, AlterOperation.SET, value) for key, value in map(_pair, config or [])]
    changes += [ConfigChange(key, AlterOperation.DELETE) for key in delete_config or []]
    if partitions is None and not changes:
        raise typer.BadParameter("nothing to do; give --partitions, --config or --delete-config")
    done = []
    with administration(bootstrap, timeout, topics=[name]) as admin:
        # Settings first: they can be undone if the partitions are refused; partitions can't.
        if changes:
            results = admin.incremental_alter_configs(
                {ConfigResource.topic(name): changes}, validate_only=validate_only
            )
            results.raise_for_errors()
            done.append(plural(len(changes), "setting"))
        if partitions is not None:
            admin.create_partitions({name: partitions}, validate_only=validate_only).raise_for_errors()
            done.append(plural(partitions, "partition"))
    if json:
        print_json({"topic": name, "partitions": partitions, "settings": len(changes), "validate_only": validate_only})
    else:
        print_line(f"{'would alter' if validate_only else 'altered'} {name}: {', '.join(done)}")


@topics.command(epilog="Example: tidelog topics delete orders --yes")
def delete(
    names: Names,
    yes: Yes = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Don't fail if the topic doesn't exist.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Delete topics and all their records."""
    from tidelog.protocol import ErrorCode

    names = list(dict.fromkeys(names))
    if not yes and not confirm(f"Delete {', '.join(names)} and all records?"):
        raise CommandError("nothing was deleted")
    with administration(bootstrap, timeout) as admin:
        results = admin.delete_topics(names)
        existing = [topic.name for topic in admin.list_topics()] if results.errors and not if_exists else []
    tolerated = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if if_exists else None
    lines = {name: f"deleted {name}" for name in results.succeeded}
    _show_results(results, lines, {}, tolerated=tolerated, skipped="does not exist", existing=existing, as_json=json)


def _show_results(
    results: Results[str, ResultT],
    lines: Mapping[str, str],
    counts: Mapping[str, tuple[int, int]],
    *,
    tolerated: ErrorCode | None,
    skipped: str,
    existing: Sequence[str] = (),
    as_json: bool,
) -> None:
    """Report topic by topic, with lines and counts of those that succeeded; the exit code is 1 if one was refused."""
    errors = results.errors
    if as_json:
        print_json([_outcome_document(name, errors.get(name), counts.get(name)) for name in results])
    else:
        for name in results:
            if name in lines:
                print_line(lines[name])
            elif _is_tolerated(errors[name], tolerated):
                print_line(f"{name} {skipped}")
    refused = {name: error for name, error in errors.items() if not _is_tolerated(error, tolerated)}
    for name, error in refused.items():
        report(f"{error}{suggestion(name, existing)}")
    if refused:
        raise typer.Exit(1)


def _is_tolerated(error: ClientError, tolerated: ErrorCode | None) -> bool:
    return tolerated is not None and getattr(error, "code", None) is tolerated


def _outcome_document(name: str, error: ClientError | None, counts: tuple[int, int] | None) -> dict[str, object]:
    partitions, replication_factor = counts or (-1, -1)
    return {
        "topic": name,
        "error": None if error is None else error_name(error),
        "message": None if error is None else str(error),
        "partitions": partitions if partitions >= 0 else None,
        "replication_factor": replication_factor if replication_factor >= 0 else None,
    }


def _bounds(
    admin: Admin, topic: TopicMetadata
) -> tuple[Mapping[TopicPartition, ListedOffset], Mapping[TopicPartition, ListedOffset]]:
    """First and end offsets of the partitions that have a leader."""
    from tidelog.client.admin import OffsetSpec
    from tidelog.client.types import TopicPartition

    led = [TopicPartition(topic.name, row.partition) for row in topic.partitions if row.leader_id >= 0]
    first = admin.list_offsets(dict.fromkeys(led, OffsetSpec.EARLIEST))
    return first, admin.list_offsets(dict.fromkeys(led, OffsetSpec.LATEST))


def _log_dirs(admin: Admin, topic: TopicMetadata) -> Iterator[LogDir]:
    """The log directories of all brokers, with what they hold of the topic."""
    from tidelog.client.types import TopicPartition

    partitions = [TopicPartition(topic.name, row.partition) for row in topic.partitions]
    for directories in admin.describe_log_dirs(partitions=partitions).values():
        yield from directories


def _describe_topic(admin: Admin, topic: TopicMetadata) -> dict[str, object]:
    from tidelog.client.types import TopicPartition
    from tidelog.protocol.config_values import ConfigResource, ConfigSource

    first, last = _bounds(admin, topic)
    sizes: dict[TopicPartition, int] = {}
    for directory in _log_dirs(admin, topic):
        for replica in directory.replicas:
            sizes[replica.topic_partition] = max(replica.size_bytes, sizes.get(replica.topic_partition, 0))
    resource = ConfigResource.topic(topic.name)
    configs = admin.describe_configs(resource)[resource]
    partitions = []
    for row in topic.partitions:
        key = TopicPartition(topic.name, row.partition)
        partitions.append(
            {
                "partition": row.partition,
                "leader": row.leader_id if row.leader_id >= 0 else None,
                "leader_epoch": row.leader_epoch,
                "replicas": list(row.replicas),
                "isr": list(row.isr),
                "first_offset": first[key].offset if key in first else None,
                "end_offset": last[key].offset if key in last else None,
                "size_bytes": sizes.get(key),
            }
        )
    return {
        "topic": topic.name,
        "topic_id": _id_text(topic),
        "internal": topic.is_internal,
        "replication_factor": _replication_factor(topic),
        "configs": {
            name: entry.value for name, entry in configs.items() if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        },
        "partitions": partitions,
    }


def _print_topic(document: dict[str, object]) -> None:
    partitions = document["partitions"]
    configs = document["configs"]
    assert isinstance(partitions, list)
    assert isinstance(configs, dict)
    sizes = sum(row["size_bytes"] or 0 for row in partitions)
    records = sum((row["end_offset"] or 0) - (row["first_offset"] or 0) for row in partitions)
    print_line(
        f"{document['topic']}  id {document['topic_id']}, {plural(len(partitions), 'partition')}, "
        f"replication factor {document['replication_factor']}, {plural(records, 'record')}, {size_text(sizes)}"
    )
    for key, value in configs.items():
        print_line(f"  {key}={value}")
    columns = ["partition", "leader", "replicas", "in sync", "first offset", "end offset", "size"]
    rows = [
        [
            str(row["partition"]),
            "none" if row["leader"] is None else str(row["leader"]),
            ",".join(map(str, row["replicas"])),
            ",".join(map(str, row["isr"])),
            "-" if row["first_offset"] is None else str(row["first_offset"]),
            "-" if row["end_offset"] is None else str(row["end_offset"]),
            "-" if row["size_bytes"] is None else size_text(row["size_bytes"]),
        ]
        for row in partitions
    ]
    print_table(columns, rows, numeric=["partition", "leader", "first offset", "end offset", "size"])


def _describe_sizes(admin: Admin, topic: TopicMetadata) -> dict[str, object]:
    first, last = _bounds(admin, topic)
    replicas: list[dict[str, object]] = []
    total_bytes = 0
    for directory in _log_dirs(admin, topic):
        for replica in sorted(directory.replicas, key=lambda replica: replica.topic_partition):
            total_bytes += replica.size_bytes
            key = replica.topic_partition
            # Offsets, not records: compaction leaves gaps, and transactions have markers of their own.
            offsets = last[key].offset - first[key].offset if key in first and key in last else None
            replicas.append(
                {
                    "partition": key.partition,
                    "broker": directory.node_id,
                    "size_bytes": replica.size_bytes,
                    "offsets": offsets,
                    "bytes_per_offset": round(replica.size_bytes / offsets, 1) if offsets else None,
                    "directory": directory.path,
                }
            )
    return {"topic": topic.name, "size_bytes": total_bytes, "replicas": replicas}


def _print_sizes(document: dict[str, object]) -> None:
    replicas = document["replicas"]
    total_bytes = document["size_bytes"]
    assert isinstance(replicas, list)
    assert isinstance(total_bytes, int)
    print_line(f"{document['topic']}  {plural(len(replicas), 'replica')}, {size_text(total_bytes)}")
    columns = ["partition", "broker", "size", "offsets", "bytes/offset", "directory"]
    rows = [
        [
            str(row["partition"]),
            str(row["broker"]),
            size_text(row["size_bytes"]),
            "-" if row["offsets"] is None else count_text(row["offsets"]),
            "-" if row["bytes_per_offset"] is None else f"{row['bytes_per_offset']:.1f}",
            row["directory"],
        ]
        for row in replicas
    ]
    print_table(columns, rows, numeric=["partition", "broker", "size", "offsets", "bytes/offset"])


def _pair(text: str) -> tuple[str, str]:
    return checked(lambda text: parse_pair(text, "retention.ms=86400000"), text, "--config")


def _id_text(topic: TopicMetadata) -> str | None:
    from tidelog.common.ids import ZERO_UUID, uuid_to_text

    return None if topic.topic_id == ZERO_UUID else uuid_to_text(topic.topic_id)


def _replication_factor(topic: TopicMetadata) -> int:
    return len(topic.partitions[0].replicas) if topic.partitions else 0
