"""Requests that the odd values do not bring about: combinations, special names, and every setting of a broker."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import Any

from raw_answers.odd_requests import BROKER, TEMPLATES, TOPIC, Case, Template
from tidelog.common.settings import SettingScope, SettingsTable

_BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 8, 16, 32


def chosen_cases(table: SettingsTable, common_settings: Collection[str]) -> Iterator[Case]:
    """All of them; `common_settings` are the names of broker settings that both know."""
    yield from _metadata_cases()
    yield from _topic_cases()
    yield from _config_cases()
    yield from _broker_setting_cases(table, common_settings)
    yield from _fetch_cases()


def _metadata_cases() -> Iterator[Case]:
    for about, topics in (
        ("an id and its name", [{"name": "$read_topic", "topic_id": "$read_topic_id"}]),
        ("an id and another name", [{"name": "other", "topic_id": "$read_topic_id"}]),
        ("an id alone", [{"name": None, "topic_id": "$read_topic_id"}]),
        ("an unknown id alone", [{"name": None, "topic_id": "$unknown_id"}]),
        ("a name twice", [{"name": "$read_topic"}, {"name": "$read_topic"}]),
        ("an id twice", [{"name": None, "topic_id": "$read_topic_id"}] * 2),
        ("a name beside an id", [{"name": "$written_topic"}, {"name": None, "topic_id": "$read_topic_id"}]),
        ("an internal topic", [{"name": "__consumer_offsets"}]),
    ):
        yield Case("Metadata", 13, about, {"topics": topics, "allow_auto_topic_creation": False})
    yield Case("Metadata", 10, "operations", {**TEMPLATES["Metadata"], "include_topic_authorized_operations": True})
    yield Case("Metadata", 10, "cluster operations", {"topics": [], "include_cluster_authorized_operations": True})
    yield Case("DescribeCluster", 2, "operations", {"include_cluster_authorized_operations": True, "endpoint_type": 1})


def _topic_cases() -> Iterator[Case]:
    for name in ("__cluster_metadata", "__consumer_offsets", "__share_group_state", ".", "..", "read", "a" * 249):
        yield _topic(f"named {name[:20]}", name=name)
    yield _topic("a name that looks like another", name="co.mpacted")
    yield _topic("a name with a dot and one with an underscore", name="a.b_c")
    yield _topic("the same with them exchanged", name="a_b.c")
    yield _topic("a null setting", configs=[{"name": "retention.ms", "value": None}])
    yield _topic("an unknown setting", configs=[{"name": "no.such.setting", "value": "1"}])
    yield _topic("a wrong value", configs=[{"name": "retention.ms", "value": "soon"}])
    yield _topic("a value out of range", configs=[{"name": "min.insync.replicas", "value": "0"}])
    yield _topic("two values", configs=[{"name": "retention.ms", "value": value} for value in ("1000", "2000")])
    yield _topic("validated only", validate_only=True)
    yield _topic("two replicas", replication_factor=2)
    for about, assignments in (
        ("good", [{"partition_index": 0, "broker_ids": [1]}]),
        ("of an unknown broker", [{"partition_index": 0, "broker_ids": [9]}]),
        ("without brokers", [{"partition_index": 0, "broker_ids": []}]),
        ("of a broker twice", [{"partition_index": 0, "broker_ids": [1, 1]}]),
        ("with a gap", [{"partition_index": 1, "broker_ids": [1]}]),
        ("of a partition twice", [{"partition_index": 0, "broker_ids": [1]}] * 2),
    ):
        yield _topic(f"an assignment {about}", assignments=assignments, num_partitions=-1, replication_factor=-1)
    good = [{"partition_index": 0, "broker_ids": [1]}]
    yield _topic("an assignment beside a number", assignments=good)
    for about, topic in (
        ("fewer", {"name": "$read_topic", "count": 1}),
        ("an assignment", {"name": "$read_topic", "count": 4, "assignments": [{"broker_ids": [1]}]}),
        ("an assignment too many", {"name": "$read_topic", "count": 4, "assignments": [{"broker_ids": [1]}] * 2}),
        ("an unknown broker", {"name": "$read_topic", "count": 4, "assignments": [{"broker_ids": [9]}]}),
    ):
        yield Case("CreatePartitions", 3, about, {"topics": [topic], "timeout_ms": 10_000, "validate_only": True})
    for about, topics in (
        ("by id", [{"name": None, "topic_id": "$fresh_topic_id"}]),
        ("by an unknown id", [{"name": None, "topic_id": "$unknown_id"}]),
        ("by name and id", [{"name": "$fresh_topic", "topic_id": "$fresh_topic_id"}]),
        ("an internal topic", [{"name": "__no_such_internal"}]),
    ):
        yield Case("DeleteTopics", 6, about, {"topics": topics, "timeout_ms": 10_000})
    yield Case("ElectLeaders", 2, "unclean", {**TEMPLATES["ElectLeaders"], "election_type": 1})
    yield Case("AlterPartitionReassignments", 0, "cancel", _reassignment(None))
    yield Case("AlterPartitionReassignments", 0, "to an unknown broker", _reassignment([9]))
    yield Case("AlterPartitionReassignments", 0, "to two brokers", _reassignment([1, 9]))


def _config_cases() -> Iterator[Case]:
    for kind, name in (
        (TOPIC, "$read_topic"),
        (TOPIC, "$compacted_topic"),
        (TOPIC, "__consumer_offsets"),
        (TOPIC, "__transaction_state"),
        (TOPIC, ""),
        (BROKER, "1"),
        (BROKER, ""),
        (BROKER, "7"),
        (BROKER, "one"),
        (_CLIENT_METRICS, "none"),
        (0, "none"),
    ):
        for synonyms in (False, True):
            resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            about = f"of {kind} {name}{' with synonyms' if synonyms else ''}"
            yield Case("DescribeConfigs", 4, about, {"resources": [resource], "include_synonyms": synonyms})
    for keys in (["retention.ms"], ["no.such.setting"], ["retention.ms", "retention.ms"]):
        resource = {"resource_type": TOPIC, "resource_name": "$read_topic", "configuration_keys": keys}
        yield Case("DescribeConfigs", 4, f"of {keys}", {"resources": [resource], "include_synonyms": False})
    two = [{"name": "retention.ms", "config_operation": 0, "value": value} for value in ("1000", "2000")]
    yield _alteration("a setting twice", TOPIC, "$configured_topic", two)
    yield Case("AlterConfigs", 2, "a setting twice", {"resources": [_resource(TOPIC, "$configured_topic", two)]})
    for operation, about in ((1, "delete"), (2, "append"), (3, "subtract")):
        for name, value in (("cleanup.policy", "compact"), ("retention.ms", "1000"), ("cleanup.policy", "no-such")):
            configs = [{"name": name, "config_operation": operation, "value": value}]
            yield _alteration(f"{about} {name} {value}", TOPIC, "$configured_topic", configs)
    for name, value in (
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,compact"),
        ("compression.type", "no-such"),
        ("min.cleanable.dirty.ratio", "2"),
        ("segment.bytes", "-1"),
        ("retention.ms", "-2"),
        ("retention.bytes", "-2"),
        ("max.message.bytes", "-1"),
        ("message.timestamp.type", "no-such"),
        ("preallocate", "maybe"),
        ("unclean.leader.election.enable", "true"),
    ):
        configs = [{"name": name, "config_operation": 0, "value": value}]
        yield _alteration(f"{name} {value}", TOPIC, "$configured_topic", configs, validate_only=True)
    retention = [{"name": "log.retention.ms", "config_operation": 0, "value": "1000"}]
    for kind, name in ((BROKER, "7"), (BROKER, "one"), (_BROKER_LOGGER, "1"), (_CLIENT_METRICS, "m"), (0, "x")):
        yield _alteration(f"of {kind} {name}", kind, name, retention, validate_only=True)
    for types in ([TOPIC], [BROKER], [_BROKER_LOGGER], [_CLIENT_METRICS], [_GROUP], [99]):
        if types != [TOPIC]:
            yield Case("ListConfigResources", 1, f"of {types}", {"resource_types": types})


def _broker_setting_cases(table: SettingsTable, common_settings: Collection[str]) -> Iterator[Case]:
    """Whether each setting of a broker can be changed while it runs, on one broker and on all."""
    for row in table.rows(SettingScope.BROKER):
        value = row.format(row.default)
        if value is None or row.name not in common_settings:
            continue
        configs = [{"name": row.name, "config_operation": 0, "value": value}]
        for name in ("1", ""):
            about = f"set {row.name} of {'broker 1' if name else 'all brokers'}"
            yield _alteration(about, BROKER, name, configs, validate_only=True)


def _fetch_cases() -> Iterator[Case]:
    for about, changes in (
        ("an offset past the end", {"fetch_offset": 11}),
        ("the end", {"fetch_offset": 10}),
        ("one byte", {"partition_max_bytes": 1}),
        ("no bytes", {"partition_max_bytes": 0}),
        ("a newer leader epoch", {"current_leader_epoch": 9}),
        ("a newer fetched epoch", {"last_fetched_epoch": 9}),
    ):
        template = copy.deepcopy(TEMPLATES["Fetch"])
        template["topics"][0]["partitions"][0].update(changes)
        for version in (4, 18):
            yield Case("Fetch", version, about, template)
    for about, values in (
        ("no bytes in all", {"max_bytes": 0}),
        ("one byte in all", {"max_bytes": 1}),
        ("read committed", {"isolation_level": 1}),
        ("a new session", {"session_epoch": 0}),
        ("an unknown session", {"session_epoch": 1, "session_id": 123_456}),
    ):
        for version in (4, 18):
            yield Case("Fetch", version, about, {**TEMPLATES["Fetch"], **values})


def _topic(about: str, *, validate_only: bool = False, **changes: Any) -> Case:
    template = copy.deepcopy(TEMPLATES["CreateTopics"])
    template["topics"][0].update(changes)
    template["validate_only"] = validate_only
    return Case("CreateTopics", 7, about, template)


def _reassignment(replicas: list[int] | None) -> Template:
    partition = {"partition_index": 0, "replicas": replicas}
    return {"topics": [{"name": "$read_topic", "partitions": [partition]}], "timeout_ms": 5_000}


def _resource(kind: int, name: str, configs: list[dict[str, Any]]) -> Template:
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def _alteration(
    about: str, kind: int, name: str, configs: list[dict[str, Any]], *, validate_only: bool = False
) -> Case:
    resources = [_resource(kind, name, configs)]
    return Case("IncrementalAlterConfigs", 1, about, {"resources": resources, "validate_only": validate_only})
