"""What may differ between the answers of Kafka and of Tidelog: each with its row in docs/kafka-differences.md.

What always holds: a row named here is the first cell of a row on that page, and every entry still differs somewhere; a
test fails for one that no longer does, so the page can't claim a difference that is gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from raw_answers.asking import NO_ANSWER

Differences = Mapping[str, tuple[object, object]]

KAFKA_FAILS = "a request that Kafka itself fails on"


@dataclass(frozen=True, slots=True)
class Known:
    """Fields (a regular expression of their paths) of some cases (one of their names) that may differ."""

    row: str
    cases: str
    fields: str = ".*"

    def covers(self, case: str, path: str) -> bool:
        return re.fullmatch(self.cases, case) is not None and re.fullmatch(self.fields, path) is not None


_CONFIGS = r"results\[.*?\]\.configs"
_NEW_GROUPS = "ConsumerGroup(Heartbeat|Describe) .*"

KNOWN = (
    Known("an element that a request names twice", ".*=twice"),
    Known(
        "a topic without partitions in a request",
        r"(Produce|ListOffsets|OffsetCommit|DeleteRecords|TxnOffsetCommit|OffsetDelete|WriteTxnMarkers) .*=\[\]",
    ),
    Known("an empty topic name in versions without topic ids", "(Fetch 4 topics.0.topic|OffsetFetch 1 topics.0.name)="),
    Known("a negative leader epoch other than -1 in Fetch", "Fetch 18 .*current_leader_epoch=-2147483648"),
    # What is not offered
    Known("TLS, SASL, delegation tokens, quotas", "ApiVersions .*", r"api_keys\[(17|36|38|39|40|41|49|51)\].*"),
    Known(
        "tiered storage, share groups, client telemetry",
        "ApiVersions .*",
        r"api_keys\[(71|72|7[6-9]|8[0-7]|90|91|92)\].*",
    ),
    Known("streams groups (KIP-1071)", "ApiVersions .*", r"api_keys\[(88|89)\].*"),
    Known("KRaft's own APIs", "ApiVersions .*", r"api_keys\[(5[2-5]|57|59|80|81|82)\].*"),
    Known("KRaft's own APIs", "ApiVersions .*", "api_keys#"),
    Known(
        "features",
        "ApiVersions .*",
        r"(supported_features|finalized_features)(#|\[(kraft|metadata|share|streams|eligible\.leader\.replicas)\.version\].*)",
    ),
    Known("settings of client metrics", r".* of (16 none|16 none with synonyms)"),
    # Settings
    Known("settings that only Tidelog has", "(CreateTopics|DescribeConfigs) .*", r".*configs(#|\[tidelog\..*\].*)"),
    Known(
        "`min.insync.replicas` in DescribeConfigs", "CreateTopics 7 .*", r".*\[min\.insync\.replicas\]\.config_source"
    ),
    Known(
        "`min.insync.replicas` in DescribeConfigs",
        "DescribeConfigs .*",
        rf"{_CONFIGS}(#|\[min\.insync\.replicas\].*)",
    ),
    Known("`min.insync.replicas` in DescribeConfigs", "IncrementalAlterConfigs 1 set min.insync.replicas of broker 1"),
    Known(
        "`retention.ms`, `segment.ms`, `segment.jitter.ms` and `flush.ms` in DescribeConfigs",
        "DescribeConfigs .*",
        rf"{_CONFIGS}\[(log\.)?(retention|segment|segment\.jitter|flush|flush\.interval|roll|roll\.jitter)\.ms\].*",
    ),
    Known(
        "tiered storage, share groups, client telemetry",
        "DescribeConfigs .*",
        rf"{_CONFIGS}\[local\.retention\.(ms|bytes)\]\.synonyms.*",
    ),
    Known(
        "`log.cleaner.*` that are not defaults of topics",
        "DescribeConfigs 4 of 4 1.*",
        rf"{_CONFIGS}\[log\.cleaner\..*\]\.read_only",
    ),
    Known("`log.cleaner.*` that are not defaults of topics", r"IncrementalAlterConfigs 1 set log\.cleaner\..*"),
    Known(
        "`group.consumer.assignment.interval.ms`",
        r"DescribeConfigs 4 of 4 1.*",
        rf"{_CONFIGS}\[group\.consumer\.assignment\.interval\.ms\]\.read_only",
    ),
    Known(
        "`group.consumer.assignment.interval.ms`",
        r"IncrementalAlterConfigs 1 set group\.consumer\.assignment\.interval\.ms .*",
    ),
    Known(
        "`num.replica.fetchers`, `listener.security.protocol.map`",
        "DescribeConfigs 4 of 4 1.*",
        rf"{_CONFIGS}\[(num\.replica\.fetchers|listener\.security\.protocol\.map)\]\.read_only",
    ),
    Known(
        "`num.replica.fetchers`, `listener.security.protocol.map`",
        r"IncrementalAlterConfigs 1 set num\.replica\.fetchers of .*",
    ),
    Known(
        "TLS, SASL, delegation tokens, quotas",
        "DescribeConfigs 4 of 4 1 with synonyms",
        rf"{_CONFIGS}\[listener\.security\.protocol\.map\]\.synonyms.*",
    ),
    Known("default listener", "DescribeConfigs 4 of 4 1.*", rf"{_CONFIGS}\[(advertised\.)?listeners\].*"),
    Known(
        "`socket.send.buffer.bytes`, `socket.receive.buffer.bytes`",
        "DescribeConfigs 4 of 4 1 with synonyms",
        rf"{_CONFIGS}\[socket\.(send|receive)\.buffer\.bytes\]\.synonyms.*",
    ),
    Known(
        "`socket.listen.backlog.size`",
        "DescribeConfigs 4 of 4 1.*",
        rf"{_CONFIGS}\[socket\.listen\.backlog\.size\].*value",
    ),
    Known(
        "`queued.max.request.bytes`",
        "DescribeConfigs 4 of 4 1.*",
        rf"{_CONFIGS}\[queued\.max\.request\.bytes\].*value",
    ),
    Known("`node.id`", "DescribeConfigs 4 of 4 1 with synonyms", rf"{_CONFIGS}\[node\.id\].*"),
    # Groups
    Known("a group without members and offsets", "(ListGroups|OffsetDelete) .*"),
    Known("the first epoch of a group of the new protocol", _NEW_GROUPS, r"(.*\.)?(member|group|assignment)_epoch"),
    Known("the host of a member", _NEW_GROUPS, r".*\.client_host"),
    Known("the protocol name of a refused join", "JoinGroup 9 .*", "protocol_name"),
)


def explain(case: str, differences: Differences) -> tuple[set[Known | str], list[str]]:
    """Which entries the differences of a case are, and those that are none."""
    if any(kafka in ("UNKNOWN_SERVER_ERROR", NO_ANSWER) for kafka, _ in differences.values()):
        return {KAFKA_FAILS}, []
    used: set[Known | str] = set()
    unknown = []
    for path, (kafka, tidelog) in differences.items():
        covering = [known for known in KNOWN if known.covers(case, path)]
        used.update(covering)
        if not covering:
            unknown.append(f"{case}: {path} is {kafka!r} in Kafka and {tidelog!r} here")
    return used, unknown
