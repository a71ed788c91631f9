"""Sets the throttle of moving partitions (KIP-73), and removes it: rates of brokers, lists of replicas of topics.

What always holds: only copies to replicas that are being added are throttled. The settings are those that Kafka's tool
uses, so that either tool can end what the other has begun. Lists that say `*` were written by people and stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tidelog.client.admin import Admin
    from tidelog.client.admin.placement import Move
    from tidelog.protocol.config_values import ConfigResource

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
_RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
_LISTS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
_ALL: Final = "*"


@dataclass(frozen=True)
class Throttle:
    """A throttle that is set: its rate, and the brokers that have it as a setting of their own."""

    rate: int
    brokers: Sequence[ConfigResource]


def throttled_replicas(moves: Iterable[Move]) -> dict[str, dict[str, list[str]]]:
    """For each topic the lists of its settings: leaders may be all replicas there are, followers are those to come."""
    lists: dict[str, dict[str, list[str]]] = {}
    for move in moves:
        if not move.adding:
            continue
        topic, index = move.partition
        of_topic = lists.setdefault(topic, {LEADER_REPLICAS: [], FOLLOWER_REPLICAS: []})
        of_topic[LEADER_REPLICAS] += [f"{index}:{node_id}" for node_id in move.before]
        of_topic[FOLLOWER_REPLICAS] += [f"{index}:{node_id}" for node_id in move.adding]
    return lists


def set_throttle(admin: Admin, rate: int, moves: Sequence[Move]) -> None:
    """Throttle what these moves copy, on all brokers that take part in it."""
    from tidelog.protocol.config_values import ConfigResource, ResourceType

    lists = throttled_replicas(moves)
    if not lists:
        return
    alive = {node.node_id for node in admin.describe_cluster().nodes}
    involved = {node_id for move in moves if move.adding for node_id in (*move.before, *move.after)} & alive
    topics = [ConfigResource(ResourceType.TOPIC, name) for name in lists]
    current = admin.describe_configs(topics, _LISTS)
    changes: dict[ConfigResource, Mapping[str, str | None]] = {}
    for topic in topics:
        wanted: dict[str, str | None] = {}
        for name, items in lists[topic.name].items():
            before = [item for item in (current[topic][name].value or "").split(",") if item]
            if before != [_ALL]:
                wanted[name] = ",".join(dict.fromkeys(before + items))
        if wanted:
            changes[topic] = wanted
    for node_id in sorted(involved):
        changes[ConfigResource(ResourceType.BROKER, str(node_id))] = dict.fromkeys(_RATES, str(rate))
    admin.incremental_alter_configs(changes).raise_for_errors()


def shown_throttle(admin: Admin) -> Throttle | None:
    """The throttle that is set on brokers now."""
    from tidelog.protocol.config_values import ConfigResource, ConfigSource, ResourceType

    resources = [ConfigResource(ResourceType.BROKER, str(node.node_id)) for node in admin.describe_cluster().nodes]
    described = admin.describe_configs(resources, _RATES)
    # A broker that went away since can't be asked, and has no throttle that could be removed now.
    _ = described.errors
    rates = {
        resource: [
            int(entry.value or 0)
            for entry in entries.values()
            if entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG and entry.value
        ]
        for resource, entries in described.succeeded.items()
    }
    brokers = [resource for resource, found in rates.items() if found]
    return Throttle(min(min(rates[resource]) for resource in brokers), brokers) if brokers else None


def remove_throttle(admin: Admin) -> Throttle | None:
    """Remove the throttle from all topics and brokers; returns what there was."""
    from tidelog.protocol.config_values import ConfigResource, ConfigSource, ResourceType

    throttle = shown_throttle(admin)
    if throttle is None:
        return None
    topics = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in admin.list_topics(include_internal=True)]
    described = admin.describe_configs(topics, _LISTS)
    # A topic that was deleted since it was listed no longer has settings.
    _ = described.errors
    changes: dict[ConfigResource, Mapping[str, str | None]] = {}
    for resource, entries in described.succeeded.items():
        listed = [
            entry.name
            for entry in entries.values()
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG and entry.value != _ALL
        ]
        if listed:
            changes[resource] = dict.fromkeys(listed)
    if changes:
        admin.incremental_alter_configs(changes).raise_for_errors()
    # Last: if this is interrupted before, the next run finds the rates, and removes the rest.
    admin.incremental_alter_configs(dict.fromkeys(throttle.brokers, dict.fromkeys(_RATES))).raise_for_errors()
    return throttle
