"""`tidelog cluster`: the state of brokers and replicas, elections of leaders, and moves of partitions."""

from __future__ import annotations

import json as json_module
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidelog.cli.app import App
from tidelog.cli.errors import CommandError, error_name, report
from tidelog.cli.groups import CLEAR_SCREEN, WATCH_INTERVAL_S
from tidelog.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Json,
    Timeout,
    Yes,
    administration,
    checked,
    optional_topic_name,
)
from tidelog.cli.output import confirm, print_json, print_line, print_table
from tidelog.cli.progress import is_watched, progress
from tidelog.cli.reassignment_throttle import Throttle, remove_throttle, set_throttle, shown_throttle
from tidelog.cli.text import count_text, parse_size, plural, rate_text, size_text
from tidelog.common.interruption import Interruption

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tidelog.client.admin import Admin, ClusterDescription, LogDir, PartitionReassignment
    from tidelog.client.admin.placement import Move
    from tidelog.client.types import TopicMetadata, TopicPartition

cluster = App(help="Show brokers, elect leaders, move partitions.")

LISTED_MAX: Final = 10
_LOOK_AGAIN_S: Final = 0.5

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all partitions have moved.")]


def add_to(app: App) -> None:
    app.add_typer(cluster, name="cluster")


# The state


@cluster.command(epilog="Example: tidelog cluster status --watch")
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every few seconds until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="How often, with --watch.")
    ] = WATCH_INTERVAL_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show brokers and partitions that lack replicas.

    A partition is under-replicated while a replica is not in sync, under its minimum while fewer replicas are in sync
    than min.insync.replicas (writes with acks=all are refused then), and offline while it has no leader.
    """
    with Interruption().caught() as interruption, administration(bootstrap, timeout) as admin:
        while True:
            document = _status(admin)
            if watch and sys.stdout.isatty():
                print(CLEAR_SCREEN, end="")
            if json:
                print_json(document)
            else:
                _print_status(document)
            sys.stdout.flush()
            interruption.check()
            if not watch:
                return
            interruption.wait(interval)


def _status(admin: Admin) -> dict[str, Any]:
    described = admin.describe_cluster()
    topics = admin.list_topics(include_internal=True)
    minimum = _minimum_in_sync(admin, topics)
    led, held, preferred = Counter[int](), Counter[int](), Counter[int]()
    lacking: dict[str, list[str]] = {"under_replicated": [], "under_min_isr": [], "offline": []}
    for topic in topics:
        for partition in topic.partitions:
            name = f"{topic.name}-{partition.partition}"
            held.update(partition.replicas)
            led[partition.leader_id] += 1
            preferred[partition.replicas[0]] += 1
            if len(partition.isr) < len(partition.replicas):
                lacking["under_replicated"].append(name)
            if len(partition.isr) < min(minimum.get(topic.name, 1), len(partition.replicas)):
                lacking["under_min_isr"].append(name)
            if partition.leader_id < 0:
                lacking["offline"].append(name)
    alive = {node.node_id for node in described.nodes}
    rows = [
        {
            "broker": node.node_id,
            "address": str(node.address),
            "rack": node.rack,
            "controller": node.node_id == described.controller_id,
            "leads": led[node.node_id],
            "preferred": preferred[node.node_id],
            "replicas": held[node.node_id],
        }
        for node in described.nodes
    ]
    return {
        "cluster_id": described.cluster_id,
        "controller": described.controller_id if described.controller_id >= 0 else None,
        "brokers": rows,
        # They hold replicas but do not answer.
        "missing_brokers": sorted(set(held) - alive),
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics),
        **lacking,
        "reassigning": [f"{key.topic}-{key.partition}" for key in admin.list_partition_reassignments()],
    }


def _minimum_in_sync(admin: Admin, topics: Iterable[TopicMetadata]) -> dict[str, int]:
    """min.insync.replicas of the topics for which it matters: those with a replica that is not in sync."""
    from tidelog.client.admin import ConfigResource, ResourceType

    lacking = [topic.name for topic in topics if any(len(each.isr) < len(each.replicas) for each in topic.partitions)]
    if not lacking:
        return {}
    described = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in lacking])
    for resource, error in described.errors.items():
        # A topic may have been deleted since it was listed.
        report(f"the settings of topic {resource.name} are not known: {error}")
    return {
        resource.name: int(entries["min.insync.replicas"].value or 1)
        for resource, entries in described.succeeded.items()
    }


def _print_status(document: Mapping[str, Any]) -> None:
    controller = document["controller"]
    print_line(f"cluster {document['cluster_id']}, controller {'none' if controller is None else controller}")
    print_table(
        ["broker", "address", "rack", "leads", "preferred", "replicas"],
        [
            [
                f"{row['broker']}{' *' if row['controller'] else ''}",
                row["address"],
                row["rack"] or "-",
                count_text(row["leads"]),
                count_text(row["preferred"]),
                count_text(row["replicas"]),
            ]
            for row in document["brokers"]
        ],
        numeric=["leads", "preferred", "replicas"],
    )
    if document["missing_brokers"]:
        print_line(f"brokers that do not answer: {', '.join(map(str, document['missing_brokers']))}")
    counts = f"{plural(document['topics'], 'topic')}, {plural(document['partitions'], 'partition')}"
    problems = [
        (document["offline"], "offline"),
        (document["under_min_isr"], "below min.insync.replicas"),
        (document["under_replicated"], "under-replicated"),
        (document["reassigning"], "being moved"),
    ]
    if not any(names for names, _ in problems):
        print_line(f"{counts}, all replicas in sync")
        return
    print_line(counts)
    for names, what in problems:
        if names:
            more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
            print_line(f"{plural(len(names), 'partition')} {what}: {', '.join(names[:LISTED_MAX])}{more}")


# Leaders


@cluster.command("elect-leaders", epilog="Example: tidelog cluster elect-leaders --topic orders")
def elect_leaders(
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", callback=optional_topic_name, help="Only this topic; default: all."),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", metavar="N", help="Only this partition of the topic; repeatable.")
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Elect any live replica of partitions without a leader, even if that loses records."
        ),
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Give partitions back to their preferred leaders.

    A partition's preferred leader is the first of its replicas. Brokers do this by themselves every few minutes
    (auto.leader.rebalance.enable).
    """
    from tidelog.client.admin import ElectionType
    from tidelog.client.types import TopicPartition
    from tidelog.protocol import ErrorCode

    if partition and topic is None:
        raise typer.BadParameter("needs --topic", param_hint="'--partition'")
    if unclean and not yes and not confirm("Records that only missing replicas hold are lost. Elect leaders anyway?"):
        raise CommandError("nothing was changed")
    with administration(bootstrap, timeout, topics=[topic] if topic else ()) as admin:
        wanted = None
        if topic is not None:
            indexes = partition or range(len(admin.describe_topics(topic)[topic].partitions))
            wanted = [TopicPartition(topic, index) for index in indexes]
        results = admin.elect_leaders(ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED, wanted)
    elected = [f"{key.topic}-{key.partition}" for key in results.succeeded]
    failed = {
        f"{key.topic}-{key.partition}": error
        for key, error in results.errors.items()
        if getattr(error, "code", None) is not ErrorCode.ELECTION_NOT_NEEDED
    }
    if json:
        print_json({"elected": elected, "failed": {name: error_name(error) for name, error in failed.items()}})
    else:
        print_line(f"elected leaders of {plural(len(elected), 'partition')}" if elected else "no election was needed")
        for name, error in failed.items():
            report(f"{name}: {error}")
    if failed:
        raise typer.Exit(1)


# Moves


@cluster.command(epilog="Example: tidelog cluster reassign --drain 3")
def reassign(
    drain: Annotated[
        list[int] | None, typer.Option("--drain", metavar="BROKER", help="Move everything off this broker; repeatable.")
    ] = None,
    balance: Annotated[bool, typer.Option("--balance", help="Spread replicas and leaders over all brokers.")] = False,
    plan_file: Annotated[
        Path | None,
        typer.Option(
            "--plan", metavar="FILE", help="Move partitions according to this file, in the format of Kafka's tool."
        ),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; repeatable; default: all.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the plan to a file and change nothing.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel all moves in progress.")] = False,
    show: Annotated[
        bool,
        typer.Option(
            "--status",
            "--verify",
            help="Show the moves in progress; once all have ended, remove the throttle.",
        ),
    ] = False,
    throttle: Annotated[
        str | None,
        typer.Option(
            "--throttle",
            metavar="SIZE",
            help="Copy at most this much per second to and from each broker, as in 50MB. Alone, it changes the "
            "throttle of the moves in progress.",
        ),
    ] = None,
    wait: Wait = True,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Move partitions between brokers.

    To empty a broker, to fill a new one, or by your own plan. It shows what would move and how much data that is,
    asks, starts, and waits until everything has moved. New replicas are copied before the old ones are removed, so
    nothing is lost whatever happens; the moves continue if this command is stopped. --throttle slows down only these
    copies, and ends with them; after --no-wait or Ctrl-C, use --status to remove the throttle.
    """
    chosen = sum((bool(drain), balance, plan_file is not None, cancel, show))
    if chosen > 1 or (chosen == 0 and throttle is None):
        raise typer.BadParameter("choose one of --drain, --balance, --plan, --cancel and --status")
    if throttle is not None and (show or cancel or save is not None):
        raise typer.BadParameter("belongs to --drain, --balance or --plan", param_hint="'--throttle'")
    rate = None if throttle is None else checked(_rate, throttle, "--throttle")
    with Interruption().caught() as interruption, administration(bootstrap, timeout, topics=topic or ()) as admin:
        if show or cancel:
            _show_or_cancel(admin, cancel=cancel, as_json=json)
            return
        if chosen == 0:
            _change_throttle(admin, rate or 0, as_json=json)
            return
        moves = _plan(admin, drain or [], plan_file, topic)
        sizes = _sizes(admin, moves)
        copied = sum(sizes.get(move.partition, 0) * len(move.adding) for move in moves)
        if save is not None:
            save.write_text(json_module.dumps(_document(moves), indent=1) + "\n", encoding="utf-8")
            print_line(f"{plural(len(moves), 'move')} written to {save}; carry them out with --plan {save}")
            return
        if not json:
            _print_moves(moves, sizes)
        if not moves:
            if json:
                print_json({"moves": [], "bytes": 0})
            return
        if not yes and not confirm(f"Move {plural(len(moves), 'partition')}, copying {size_text(copied)}?"):
            raise CommandError("nothing was changed")
        if rate is not None:
            # First, so that nothing is copied without it.
            set_throttle(admin, rate, moves)
        results = admin.alter_partition_reassignments({move.partition: move.after for move in moves})
        results.raise_for_errors()
        if wait:
            _wait(admin, moves, sizes, interruption)
        removed = remove_throttle(admin) if wait and rate is not None else None
        if json:
            document = {**_document(moves), "bytes": copied, "done": wait}
            print_json(document if rate is None else {**document, "throttle": rate, "throttle_removed": bool(removed)})
            return
        print_line(f"{'moved' if wait else 'moving'} {plural(len(moves), 'partition')}")
        if removed is not None:
            _print_removed(removed)
        elif rate is not None:
            print_line("the throttle stays until: tidelog cluster reassign --status")


def _rate(text: str) -> int:
    rate = parse_size(text)
    if rate < 1:
        raise ValueError("a throttle of less than a byte per second would stop the moves")
    return rate


def _change_throttle(admin: Admin, rate: int, *, as_json: bool) -> None:
    from tidelog.client.admin.placement import Move

    under_way = admin.list_partition_reassignments()
    moves = []
    for key, moving in under_way.items():
        before = tuple(node_id for node_id in moving.replicas if node_id not in moving.adding)
        after = tuple(node_id for node_id in moving.replicas if node_id not in moving.removing)
        moves.append(Move(key, before, after))
    if moves:
        set_throttle(admin, rate, moves)
    if as_json:
        print_json({"throttle": rate, "moves": len(moves)})
    else:
        print_line(
            f"throttled {plural(len(moves), 'move')} to {rate_text(rate)}" if moves else "nothing is being moved"
        )


def _print_removed(throttle: Throttle | None) -> None:
    if throttle is not None:
        print_line(f"removed the throttle of {rate_text(throttle.rate)}")


def _show_or_cancel(admin: Admin, *, cancel: bool, as_json: bool) -> None:
    under_way = admin.list_partition_reassignments()
    if cancel and under_way:
        admin.alter_partition_reassignments(dict.fromkeys(under_way)).raise_for_errors()
    is_over = cancel or not under_way
    removed = remove_throttle(admin) if is_over else None
    current = None if is_over else shown_throttle(admin)
    if as_json:
        throttle: dict[str, object] = {} if removed is None else {"throttle_removed": True}
        if current is not None:
            throttle = {"throttle": current.rate}
        print_json(
            {
                **throttle,
                "cancelled" if cancel else "moving": [
                    {
                        "topic": key.topic,
                        "partition": key.partition,
                        "replicas": moving.replicas,
                        "adding": moving.adding,
                        "removing": moving.removing,
                    }
                    for key, moving in under_way.items()
                ],
            }
        )
    elif not under_way:
        print_line("nothing is being moved")
    elif cancel:
        print_line(f"cancelled {plural(len(under_way), 'move')}")
    else:
        _print_under_way(under_way)
    if as_json:
        return
    if current is not None:
        print_line(f"copying at most {rate_text(current.rate)} to and from each broker")
    _print_removed(removed)


def _print_under_way(under_way: Mapping[TopicPartition, PartitionReassignment]) -> None:
    rows = [
        [f"{key.topic}-{key.partition}", _ids(moving.replicas), _ids(moving.adding), _ids(moving.removing)]
        for key, moving in under_way.items()
    ]
    print_table(["partition", "replicas", "adding", "removing"], rows)


def _plan(admin: Admin, drained: Sequence[int], plan_file: Path | None, topic: Sequence[str] | None) -> list[Move]:
    from tidelog.client.admin import placement

    described = admin.describe_cluster()
    topics = list(admin.describe_topics(topic).values()) if topic else admin.list_topics(include_internal=True)
    if plan_file is not None:
        return _read_plan(plan_file, topics)
    _check_brokers(drained, described)
    try:
        if drained:
            return placement.drain(topics, described.nodes, drained)
        return placement.balance(topics, described.nodes)
    except placement.PlacementError as error:
        raise CommandError(f"{error}; add a broker, or lower the replication factor of the topic") from error


def _check_brokers(drained: Iterable[int], described: ClusterDescription) -> None:
    known = {node.node_id for node in described.nodes}
    for node_id in drained:
        if node_id not in known:
            listed = ", ".join(map(str, sorted(known)))
            report(f"broker {node_id} does not answer (brokers: {listed}); its replicas are copied from the others")


def _read_plan(path: Path, topics: Iterable[TopicMetadata]) -> list[Move]:
    from tidelog.client.admin.placement import Move
    from tidelog.client.types import TopicPartition

    try:
        document = json_module.loads(path.read_text(encoding="utf-8"))
        wanted = {
            TopicPartition(str(row["topic"]), int(row["partition"])): tuple(map(int, row["replicas"]))
            for row in document["partitions"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        example = '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [2, 3]}]}'
        raise CommandError(f"{path} is not a plan such as {example}: {error}") from error
    current = {
        TopicPartition(topic.name, each.partition): each.replicas for topic in topics for each in topic.partitions
    }
    unknown = [key for key in wanted if key not in current]
    if unknown:
        raise CommandError(f"{path} names partition {unknown[0]}, which does not exist")
    return [Move(key, current[key], after) for key, after in wanted.items() if current[key] != after]


def _document(moves: Iterable[Move]) -> dict[str, object]:
    """A plan in the format of Kafka's own tool."""
    return {
        "version": 1,
        "partitions": [
            {"topic": move.partition.topic, "partition": move.partition.partition, "replicas": list(move.after)}
            for move in moves
        ],
    }


def _sizes(admin: Admin, moves: Sequence[Move]) -> dict[TopicPartition, int]:
    """How large each partition is, by its largest replica."""
    copied = [move.partition for move in moves if move.adding]
    if not copied:
        return {}
    described = admin.describe_log_dirs(partitions=copied)
    sizes: dict[TopicPartition, int] = {}
    directories: Iterable[Sequence[LogDir]] = described.succeeded.values()
    for replica in (replica for of_broker in directories for directory in of_broker for replica in directory.replicas):
        sizes[replica.topic_partition] = max(sizes.get(replica.topic_partition, 0), replica.size_bytes)
    for node_id, error in described.errors.items():
        report(f"broker {node_id} did not tell the size of its replicas: {error}")
    return sizes


def _print_moves(moves: Sequence[Move], sizes: Mapping[TopicPartition, int]) -> None:
    if not moves:
        print_line("nothing has to move")
        return
    rows = [
        [
            f"{move.partition.topic}-{move.partition.partition}",
            _ids(move.before),
            _ids(move.after),
            size_text(sizes.get(move.partition, 0) * len(move.adding)) if move.adding else "only the order",
        ]
        for move in moves
    ]
    print_table(["partition", "replicas", "becomes", "to copy"], rows, numeric=["to copy"])


def _ids(node_ids: Iterable[int]) -> str:
    return ",".join(map(str, node_ids)) or "-"


def _wait(admin: Admin, moves: Sequence[Move], sizes: Mapping[TopicPartition, int], interruption: Interruption) -> None:
    """Show how much has been copied, until all partitions have moved. Interrupting this does not stop the moves."""
    wanted = [move.partition for move in moves]
    total = sum(sizes.get(move.partition, 0) * len(move.adding) for move in moves)
    is_shown = is_watched()
    with progress("moving partitions", total or None, shown=is_shown, in_bytes=True) as advance:
        while under_way := admin.list_partition_reassignments(wanted):
            if is_shown:
                done = len(wanted) - len(under_way)
                copied = copied_bytes(moves, sizes, under_way, _held(admin, under_way))
                advance(copied, f"moved {done} of {plural(len(wanted), 'partition')}")
            interruption.wait(_LOOK_AGAIN_S)
            interruption.check()


def copied_bytes(
    moves: Iterable[Move],
    sizes: Mapping[TopicPartition, int],
    under_way: Iterable[TopicPartition],
    held: Mapping[tuple[int, TopicPartition], int],
) -> int:
    """How much of the moves has been copied: all of those that have ended, and what the new replicas hold of others."""
    unfinished = set(under_way)
    copied = 0
    for move in moves:
        size = sizes.get(move.partition, 0)
        for node_id in move.adding:
            is_over = move.partition not in unfinished
            copied += size if is_over else min(size, held.get((node_id, move.partition), 0))
    return copied


def _held(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[tuple[int, TopicPartition], int]:
    """The size of each replica of these partitions, by broker; of brokers that don't answer now, none."""
    described = admin.describe_log_dirs(partitions=list(partitions))
    # A bar that stands still for a moment is no reason to complain.
    _ = described.errors
    return {
        (node_id, replica.topic_partition): replica.size_bytes
        for node_id, directories in described.succeeded.items()
        for directory in directories
        for replica in directory.replicas
    }


# Log directories


@cluster.command("move-replica", epilog="Example: tidelog cluster move-replica orders:0 --broker 1 --to /disk2/logs")
def move_replica(
    replica: Annotated[str, typer.Argument(metavar="TOPIC:PARTITION", help="Which partition's replica to move.")],
    broker: Annotated[int, typer.Option("--broker", metavar="BROKER", help="The broker that has the replica.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The log directory to move it to.")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the replica has moved.")] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Move a replica to another log directory of its broker.

    Writes and reads continue meanwhile, and so does the move if this command is stopped. Naming the replica's current
    directory cancels a move. replica.alter.log.dirs.io.max.bytes.per.second limits how fast a broker copies.
    """
    from tidelog.client.types import TopicPartition

    topic, _, index = replica.rpartition(":")
    if not topic or not index.isdecimal():
        raise typer.BadParameter("is written TOPIC:PARTITION, as in orders:0", param_hint="'TOPIC:PARTITION'")
    if not os.path.isabs(to):
        raise typer.BadParameter("is a path on the broker's machine that begins with /", param_hint="'--to'")
    key = TopicPartition(topic, int(index))
    with Interruption().caught() as interruption, administration(bootstrap, timeout, topics=[topic]) as admin:
        admin.alter_replica_log_dirs(broker, {key: to}).raise_for_errors()
        path = _wait_for_replica(admin, key, broker, interruption) if wait else None
    name = f"{key.topic}-{key.partition}"
    if wait and path != os.path.normpath(to):
        raise CommandError(f"{name} was not moved to {to}: the log of broker {broker} says why")
    if json:
        print_json({"partition": name, "broker": broker, "to": to, "done": wait})
    else:
        print_line(f"{name} is in {path} on broker {broker}" if wait else f"{name} is moving to {to}")


def _wait_for_replica(admin: Admin, key: TopicPartition, broker: int, interruption: Interruption) -> str | None:
    """Show how much has been copied until the move has ended; returns the directory of the replica."""
    is_shown = is_watched()
    with progress("moving the replica", None, shown=is_shown, in_bytes=True) as advance:
        while True:
            found = {
                replica.is_future: (directory.path, replica)
                for directory in admin.describe_log_dirs([broker], partitions=[key])[broker]
                for replica in directory.replicas
            }
            if True not in found:
                return found[False][0] if False in found else None
            copied = found[True][1]
            if is_shown:
                advance(copied.size_bytes, f"{count_text(copied.offset_lag)} records behind")
            interruption.wait(_LOOK_AGAIN_S)
            interruption.check()


# Brokers that are gone


@cluster.command(epilog="Example: tidelog cluster unregister 3")
def unregister(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="Node id of a broker that is no longer running.")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Forget a broker that is gone for good.

    Empty it first with: tidelog cluster reassign --drain BROKER
    """
    with administration(bootstrap, timeout) as admin:
        topics = admin.list_topics(include_internal=True)
        held = sum(broker in each.replicas for topic in topics for each in topic.partitions)
        if held:
            raise CommandError(
                f"broker {broker} still holds {plural(held, 'replica')}; move them first: "
                f"tidelog cluster reassign --drain {broker}"
            )
        if not yes and not confirm(f"Forget broker {broker}?"):
            raise CommandError("nothing was changed")
        admin.unregister_broker(broker)
    if json:
        print_json({"unregistered": broker})
    else:
        print_line(f"broker {broker} is unregistered")
