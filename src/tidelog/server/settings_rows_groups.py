"""The settings of consumer groups and of the offsets they commit.

What always holds: as in `settings_rows_broker`, every row is read by some part of the broker; names and defaults are
Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog.common.settings import Check, Setting, SettingType, at_least, between, some_of

_INT_MAX = 2**31 - 1


def _row(name: str, kind: SettingType, default: Any, check: Check | None, help_text: str) -> Setting:
    return Setting(name, kind, default, help_text, check=check)


def _policy(value: str) -> str | None:
    accepted = ("bidirectional", "upgrade", "downgrade", "disabled")
    return None if value.lower() in accepted else f"expected one of {', '.join(accepted)}"


def _assignors(items: list[str]) -> str | None:
    return some_of("uniform", "range")(items) if items else "expected uniform, range or both"


def _offsets_topic_rows() -> Iterator[Setting]:
    yield _row(
        "offsets.topic.num.partitions",
        SettingType.INT,
        50,
        at_least(1),
        "Partitions of __consumer_offsets when it is made; a group belongs to one of them by its id.",
    )
    yield _row(
        "offsets.topic.replication.factor",
        SettingType.SHORT,
        3,
        between(1, 2**15 - 1),
        "Replicas of __consumer_offsets when it is made. A value that was set must be met, as in Kafka; the default is "
        "lowered to the number of live brokers, so that a single broker has groups without any setting.",
    )
    yield _row(
        "offsets.topic.segment.bytes",
        SettingType.INT,
        104_857_600,
        at_least(1),
        "Size at which a segment of __consumer_offsets is ended: smaller ones are compacted and loaded sooner.",
    )
    yield _row(
        "offsets.topic.compression.codec",
        SettingType.INT,
        0,
        between(0, 4),
        "Codec of what the broker writes to __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )
    yield _row(
        "offsets.load.buffer.size",
        SettingType.INT,
        5_242_880,
        at_least(1),
        "Bytes of __consumer_offsets that are read at once when a partition's groups are loaded.",
    )
    yield _row(
        "offsets.commit.timeout.ms",
        SettingType.INT,
        5_000,
        at_least(1),
        "How long a commit of offsets, or any change of a group, waits for the replicas of __consumer_offsets.",
    )


def _offsets_rows() -> Iterator[Setting]:
    yield _row(
        "offset.metadata.max.bytes",
        SettingType.INT,
        4_096,
        at_least(0),
        "Longest text that a client may store with a committed offset; a longer one is refused.",
    )
    yield _row(
        "offsets.retention.minutes",
        SettingType.INT,
        10_080,
        at_least(1),
        "How long offsets are kept once nobody uses them: since the group became empty, or since the last commit where "
        "the group does not subscribe to the topic or never had members.",
    )
    yield _row(
        "offsets.retention.check.interval.ms",
        SettingType.LONG,
        600_000,
        at_least(1),
        "How often offsets to delete are looked for.",
    )


def _classic_rows() -> Iterator[Setting]:
    yield _row(
        "group.min.session.timeout.ms",
        SettingType.INT,
        6_000,
        at_least(0),
        "Shortest session time-out that a member of a classic group may ask for.",
    )
    yield _row(
        "group.max.session.timeout.ms",
        SettingType.INT,
        1_800_000,
        at_least(0),
        "Longest session time-out that a member of a classic group may ask for.",
    )
    yield _row(
        "group.initial.rebalance.delay.ms",
        SettingType.INT,
        3_000,
        at_least(0),
        "How long the first rebalance of an empty classic group waits for more members to join.",
    )
    yield _row("group.max.size", SettingType.INT, _INT_MAX, at_least(1), "Most members that a classic group may have.")


def _consumer_rows() -> Iterator[Setting]:
    yield _row(
        "group.consumer.session.timeout.ms",
        SettingType.INT,
        45_000,
        at_least(1),
        "A member of the new consumer protocol that sends no heartbeat for this long is removed from its group.",
    )
    yield _row(
        "group.consumer.heartbeat.interval.ms",
        SettingType.INT,
        5_000,
        at_least(1),
        "How often members of the new consumer protocol are told to send heartbeats.",
    )
    yield _row(
        "group.consumer.max.size",
        SettingType.INT,
        _INT_MAX,
        at_least(1),
        "Most members that a group of the new consumer protocol may have.",
    )
    yield _row(
        "group.consumer.assignors",
        SettingType.LIST,
        ["uniform", "range"],
        _assignors,
        "How partitions may be shared out in groups of the new consumer protocol; the first is taken where a member "
        "asks for none.",
    )
    yield _row(
        "group.consumer.migration.policy",
        SettingType.STRING,
        "bidirectional",
        _policy,
        "Which groups may change between the classic and the new consumer protocol while they have members: "
        "bidirectional, upgrade, downgrade, or disabled.",
    )
    yield _row(
        "group.consumer.assignment.interval.ms",
        SettingType.INT,
        1_000,
        at_least(0),
        "Shortest time between two computations of a group's assignment.",
    )
    yield _row(
        "group.consumer.regex.refresh.interval.ms",
        SettingType.INT,
        600_000,
        at_least(10_000),
        "How often the topics that a group's regular expressions match are looked up anew.",
    )


def group_rows() -> Iterator[Setting]:
    yield from _offsets_topic_rows()
    yield from _offsets_rows()
    yield from _classic_rows()
    yield from _consumer_rows()
