"""The requests that both brokers are asked: one good request an API, and what becomes of it when single fields are odd.

A template is the request as a dict; texts that begin with `$` stand for what only the broker knows (`Place.values` in
`asking`). Fields that a version lacks are left out, so one template serves all versions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Message
from tidelog.protocol.schema import Field, fields_of

Template = dict[str, Any]
Path = tuple[str | int, ...]

UNKNOWN_UUID = "$unknown_id"
TOPIC, BROKER = 2, 4

TEMPLATES: dict[str, Template] = {
    "Produce": {
        "acks": -1,
        "timeout_ms": 5_000,
        "topic_data": [
            {"name": "$topic", "topic_id": "$topic_id", "partition_data": [{"index": 0, "records": "$records"}]}
        ],
    },
    "Fetch": {
        "replica_id": -1,
        "max_wait_ms": 20,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [
            {
                "topic": "$read_topic",
                "topic_id": "$read_topic_id",
                "partitions": [
                    {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
                ],
            }
        ],
    },
    "ListOffsets": {
        "replica_id": -1,
        "timeout_ms": 5_000,
        "topics": [{"name": "$read_topic", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
    },
    "Metadata": {"topics": [{"name": "$read_topic"}], "allow_auto_topic_creation": False},
    "OffsetCommit": {
        "group_id": "$fresh",
        "topics": [
            {
                "name": "$read_topic",
                "topic_id": "$read_topic_id",
                "partitions": [{"partition_index": 0, "committed_offset": 2, "committed_metadata": "note"}],
            }
        ],
    },
    "OffsetFetch": {
        "group_id": "$committed_group",
        "topics": [{"name": "$read_topic", "partition_indexes": [0, 2]}],
        "groups": [
            {
                "group_id": "$committed_group",
                "topics": [{"name": "$read_topic", "topic_id": "$read_topic_id", "partition_indexes": [0, 2]}],
            }
        ],
    },
    "FindCoordinator": {"key": "$committed_group", "key_type": 0, "coordinator_keys": ["$committed_group"]},
    "JoinGroup": {
        "group_id": "$fresh",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": "$subscription"}],
    },
    "Heartbeat": {"group_id": "$group", "generation_id": 1, "member_id": "$member"},
    "LeaveGroup": {"group_id": "$group", "member_id": "$member", "members": [{"member_id": "$member"}]},
    "SyncGroup": {
        "group_id": "$group",
        "generation_id": 1,
        "member_id": "$member",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": "$member", "assignment": b"\x00\x00\x00\x00\x00\x00"}],
    },
    "DescribeGroups": {"groups": ["$committed_group"], "include_authorized_operations": False},
    "ListGroups": {"states_filter": ["Dead"], "types_filter": []},
    "ApiVersions": {"client_software_name": "raw", "client_software_version": "1.0"},
    "CreateTopics": {
        "topics": [
            {
                "name": "$fresh",
                "num_partitions": 2,
                "replication_factor": 1,
                "assignments": [],
                "configs": [{"name": "retention.ms", "value": "3600000"}],
            }
        ],
        "timeout_ms": 10_000,
        "validate_only": False,
    },
    "DeleteTopics": {"topics": [{"name": "$fresh_topic"}], "topic_names": ["$fresh_topic"], "timeout_ms": 10_000},
    "DeleteRecords": {
        "topics": [{"name": "$topic", "partitions": [{"partition_index": 0, "offset": 1}]}],
        "timeout_ms": 10_000,
    },
    "InitProducerId": {"transactional_id": "$fresh", "transaction_timeout_ms": 10_000},
    "OffsetForLeaderEpoch": {
        "replica_id": -2,
        "topics": [{"topic": "$read_topic", "partitions": [{"partition": 0, "leader_epoch": 0}]}],
    },
    "AddPartitionsToTxn": {
        "transactions": [
            {
                "transactional_id": "$transaction",
                "producer_id": "$producer_id",
                "producer_epoch": "$producer_epoch",
                "topics": [{"name": "$topic", "partitions": [1]}],
            }
        ],
        "v3_and_below_transactional_id": "$transaction",
        "v3_and_below_producer_id": "$producer_id",
        "v3_and_below_producer_epoch": "$producer_epoch",
        "v3_and_below_topics": [{"name": "$topic", "partitions": [1]}],
    },
    "AddOffsetsToTxn": {
        "transactional_id": "$transaction",
        "producer_id": "$producer_id",
        "producer_epoch": "$producer_epoch",
        "group_id": "$fresh",
    },
    "EndTxn": {
        "transactional_id": "$transaction",
        "producer_id": "$producer_id",
        "producer_epoch": "$producer_epoch",
        "committed": True,
    },
    "WriteTxnMarkers": {
        "markers": [
            {
                "producer_id": 4_000_000,
                "producer_epoch": 0,
                "topics": [{"name": "$topic", "partition_indexes": [2]}],
                "coordinator_epoch": 0,
            }
        ]
    },
    "TxnOffsetCommit": {
        "transactional_id": "$transaction",
        "group_id": "$fresh",
        "producer_id": "$producer_id",
        "producer_epoch": "$producer_epoch",
        "topics": [{"name": "$read_topic", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    },
    "DescribeAcls": {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
    "CreateAcls": {
        "creations": [
            {
                "resource_type": TOPIC,
                "resource_name": "$read_topic",
                "resource_pattern_type": 3,
                "principal": "User:somebody",
                "host": "*",
                "operation": 3,
                "permission_type": 3,
            }
        ]
    },
    "DeleteAcls": {
        "filters": [{"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}]
    },
    "DescribeConfigs": {
        "resources": [{"resource_type": TOPIC, "resource_name": "$read_topic", "configuration_keys": None}],
        "include_synonyms": True,
    },
    "AlterConfigs": {
        "resources": [
            {
                "resource_type": TOPIC,
                "resource_name": "$configured_topic",
                "configs": [{"name": "retention.ms", "value": "7200000"}],
            }
        ]
    },
    "DescribeLogDirs": {"topics": [{"topic": "$read_topic", "partitions": [0]}]},
    "CreatePartitions": {
        "topics": [{"name": "$read_topic", "count": 4, "assignments": None}],
        "timeout_ms": 10_000,
        "validate_only": True,
    },
    "DeleteGroups": {"groups_names": ["$fresh"]},
    "ElectLeaders": {
        "election_type": 0,
        "topic_partitions": [{"topic": "$read_topic", "partitions": [0]}],
        "timeout_ms": 5_000,
    },
    "IncrementalAlterConfigs": {
        "resources": [
            {
                "resource_type": TOPIC,
                "resource_name": "$configured_topic",
                "configs": [{"name": "retention.ms", "config_operation": 0, "value": "7200000"}],
            }
        ]
    },
    "AlterPartitionReassignments": {
        "topics": [{"name": "$read_topic", "partitions": [{"partition_index": 0, "replicas": [1]}]}],
        "timeout_ms": 5_000,
    },
    "ListPartitionReassignments": {
        "topics": [{"name": "$read_topic", "partition_indexes": [0]}],
        "timeout_ms": 5_000,
    },
    "OffsetDelete": {
        "group_id": "$committed_group",
        "topics": [{"name": "$read_topic", "partitions": [{"partition_index": 2}]}],
    },
    "DescribeClientQuotas": {"components": [{"entity_type": "client-id", "match_type": 0, "match": "raw"}]},
    "DescribeUserScramCredentials": {"users": [{"name": "somebody"}]},
    "DescribeCluster": {"include_cluster_authorized_operations": False, "endpoint_type": 1},
    "DescribeProducers": {"topics": [{"name": "$read_topic", "partition_indexes": [0]}]},
    "DescribeTransactions": {"transactional_ids": ["$transaction"]},
    "ListTransactions": {"state_filters": ["PrepareCommit"], "producer_id_filters": []},
    "ConsumerGroupHeartbeat": {
        "group_id": "$fresh",
        "member_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": ["$read_topic"],
        "topic_partitions": [],
    },
    "ConsumerGroupDescribe": {"group_ids": ["$committed_group"]},
    "ListConfigResources": {"resource_types": [TOPIC]},
    "DescribeTopicPartitions": {"topics": [{"name": "$read_topic"}], "response_partition_limit": 2_000},
}

_INTEGERS: dict[str, tuple[int, ...]] = {
    "int8": (-1, 5, 127),
    "int16": (-1, 77, 2**15 - 1),
    "int32": (-1, -(2**31), 0, 1, 2**31 - 1),
    "int64": (-1, -2, -3, 0, 2**63 - 1),
}
_TEXTS = ("", "no-such", "bad name!", "x" * 300)


@dataclass(frozen=True, slots=True)
class Case:
    """One request in one version; `oddity` says what is odd about it, or what it is about."""

    api: str
    version: int
    oddity: str
    template: Template

    @property
    def name(self) -> str:
        return f"{self.api} {self.version} {self.oddity}"


def odd_cases(api: str, request: type[Message], version: int) -> Iterator[Case]:
    """The good request, and for each of its fields the same with an odd value there."""
    template = TEMPLATES[api]
    yield Case(api, version, "good", template)
    for path, value in _oddities(request, template, version):
        if api == "Metadata" and version < 4 and value == "no-such":
            # These versions create the topic, and how soon it is there is chance.
            continue
        changed = copy.deepcopy(template)
        _set(changed, path, value)
        yield Case(api, version, f"{'.'.join(map(str, path))}={_shown(value)}", changed)


def _oddities(struct: type, template: Template, version: int) -> Iterator[tuple[Path, Any]]:
    for field in fields_of(struct):
        if not field.versions.holds(version):
            continue
        given = template.get(field.name, field.default())
        if field.is_nullable(version) and given is not None:
            yield (field.name,), None
        if field.is_array:
            yield from _array_oddities(field, given, version)
        elif field.struct is not None:
            if isinstance(given, dict):
                yield from (((field.name, *path), value) for path, value in _oddities(field.struct, given, version))
        else:
            yield from (((field.name,), value) for value in _leaf_oddities(field, given))


def _array_oddities(field: Field, given: list[Any] | None, version: int) -> Iterator[tuple[Path, Any]]:
    if not given:
        if field.wire is not None:
            yield from (((field.name,), [value]) for value in _leaf_oddities(field, None))
        return
    yield (field.name,), []
    yield (field.name,), [*given, *given]
    if field.struct is not None:
        yield from (((field.name, 0, *path), value) for path, value in _oddities(field.struct, given[0], version))
    else:
        yield from (((field.name, 0), value) for value in _leaf_oddities(field, given[0]))


def _leaf_oddities(field: Field, given: object) -> Iterator[Any]:
    assert field.wire is not None
    kind = field.wire.name
    if kind == "bool":
        yield not given
    elif kind == "string":
        yield from (text for text in _TEXTS if text != given)
    elif kind == "uuid":
        yield from (value for value in (ZERO_UUID, UNKNOWN_UUID) if value != given)
    elif kind in ("bytes", "records"):
        yield from (b"", b"\x00" * 80)
    else:
        values = _INTEGERS.get(kind, ())
        if field.name == "timeout_ms":
            # With one millisecond, who is done in time is chance.
            values = tuple(value for value in values if value != 1)
        yield from (value for value in values if value != given)


def _set(template: Any, path: Path, value: Any) -> None:
    for step in path[:-1]:
        template = template[step]
    template[path[-1]] = value


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "twice" if value else "[]"
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else f"{text[:20]}...({len(text)})"
