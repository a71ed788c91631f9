"""The settings of consumer groups, of all and of single ones, and of the offsets they commit.

What always holds: as in `settings_rows_broker`, every row is read by some part of the broker; names and defaults are
Kafka's, except for those that start with `tidelog.`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidelog.common.settings import Check, Setting, SettingScope, SettingType, at_least, between, some_of

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
        "Number of partitions of __consumer_offsets when it is created. A group's id determines its partition.",
    )
    yield _row(
        "offsets.topic.replication.factor",
        SettingType.SHORT,
        3,
        between(1, 2**15 - 1),
        "Replication factor of __consumer_offsets when it is created. A value that you set must be met, as in Kafka; "
        "the default is reduced to the number of live brokers, so groups work on a single broker without "
        "configuration.",
    )
    yield _row(
        "offsets.topic.segment.bytes",
        SettingType.INT,
        104_857_600,
        at_least(1),
        "Segment size of __consumer_offsets. Smaller segments are compacted and loaded sooner.",
    )
    yield _row(
        "offsets.topic.compression.codec",
        SettingType.INT,
        0,
        between(0, 4),
        "Compression of what the broker writes to __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )
    yield _row(
        "offsets.load.buffer.size",
        SettingType.INT,
        5_242_880,
        at_least(1),
        "How many bytes of __consumer_offsets to read at a time when loading groups.",
    )
    yield _row(
        "offsets.commit.timeout.ms",
        SettingType.INT,
        5_000,
        at_least(1),
        "How long an offset commit, or any other change to a group, waits for the replicas of __consumer_offsets.",
    )


def _offsets_rows() -> Iterator[Setting]:
    yield _row(
        "offset.metadata.max.bytes",
        SettingType.INT,
        4_096,
        at_least(0),
        "Maximum length of the metadata that a client can store with a committed offset.",
    )
    yield _row(
        "offsets.retention.minutes",
        SettingType.INT,
        10_080,
        at_least(1),
        "How long to keep offsets that are no longer used: counted from when the group became empty, or from the last "
        "commit if the group no longer subscribes to the topic or never had members.",
    )
    yield _row(
        "offsets.retention.check.interval.ms",
        SettingType.LONG,
        600_000,
        at_least(1),
        "How often to look for expired offsets.",
    )


def _classic_rows() -> Iterator[Setting]:
    yield _row(
        "group.min.session.timeout.ms",
        SettingType.INT,
        6_000,
        at_least(0),
        "Shortest session timeout that a member of a classic group can request.",
    )
    yield _row(
        "group.max.session.timeout.ms",
        SettingType.INT,
        1_800_000,
        at_least(0),
        "Longest session timeout that a member of a classic group can request.",
    )
    yield _row(
        "group.initial.rebalance.delay.ms",
        SettingType.INT,
        3_000,
        at_least(0),
        "How long the first rebalance of an empty classic group waits for more members to join.",
    )
    yield _row(
        "group.max.size", SettingType.INT, _INT_MAX, at_least(1), "Maximum number of members in a classic group."
    )


def _memory_rows() -> Iterator[Setting]:
    yield _row(
        "tidelog.group.max.bytes",
        SettingType.INT,
        8 * 1024 * 1024,
        at_least(1),
        "Maximum memory for the metadata of one group's members. A member that would exceed it gets "
        "GROUP_MAX_SIZE_REACHED.",
    )
    yield _row(
        "tidelog.group.coordinator.max.bytes",
        SettingType.LONG,
        256 * 1024 * 1024,
        at_least(1),
        "Maximum memory for all groups and their members. Beyond that, new members get COORDINATOR_NOT_AVAILABLE and "
        "retry; existing members stay. Offsets are counted by tidelog.group.offsets.max.bytes.",
    )
    yield _row(
        "tidelog.group.offsets.max.bytes",
        SettingType.LONG,
        256 * 1024 * 1024,
        at_least(1),
        "Maximum memory for all committed offsets, about 250 bytes each and their metadata. Beyond that, commits of "
        "new partitions get INVALID_COMMIT_OFFSET_SIZE; offsets that exist can still be moved. A quarter of it is kept "
        "for groups that have members.",
    )


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
        "How often members of the new consumer protocol have to send heartbeats.",
    )
    yield _row(
        "group.consumer.max.size",
        SettingType.INT,
        _INT_MAX,
        at_least(1),
        "Maximum number of members in a group of the new consumer protocol.",
    )
    yield _row(
        "group.consumer.assignors",
        SettingType.LIST,
        ["uniform", "range"],
        _assignors,
        "Assignors available to groups of the new consumer protocol; the first is the default.",
    )
    yield _row(
        "group.consumer.migration.policy",
        SettingType.STRING,
        "bidirectional",
        _policy,
        "Whether a group with members can switch between the classic and the new consumer protocol: bidirectional, "
        "upgrade, downgrade or disabled.",
    )
    yield _row(
        "group.consumer.assignment.interval.ms",
        SettingType.INT,
        1_000,
        at_least(0),
        "Minimum time between two assignment computations for a group.",
    )
    yield _row(
        "group.consumer.regex.refresh.interval.ms",
        SettingType.INT,
        600_000,
        at_least(10_000),
        "How often to re-evaluate which topics a group's regular expressions match.",
    )


_BOUND = "A group's own {name} can't be {than} this. The default of all groups, group.{name}, is not bounded by it."


def _bound_rows() -> Iterator[Setting]:
    for name, low, high in (
        ("session.timeout.ms", 45_000, 60_000),
        ("heartbeat.interval.ms", 5_000, 15_000),
        ("assignment.interval.ms", 0, 15_000),
    ):
        least = 0 if name.startswith("assignment") else 1
        for word, default, than in (("min", low, "less than"), ("max", high, "more than")):
            text = _BOUND.format(name=f"consumer.{name}", than=than)
            yield _row(f"group.consumer.{word}.{name}", SettingType.INT, default, at_least(least), text)


def _own_rows() -> Iterator[Setting]:
    """What a group of the new consumer protocol can have of its own."""
    for name, default, least, text in (
        (
            "session.timeout.ms",
            45_000,
            1,
            "A member of the group that sends no heartbeat for this long is removed. From group.consumer.min.session."
            "timeout.ms to group.consumer.max.session.timeout.ms, and more than consumer.heartbeat.interval.ms.",
        ),
        (
            "heartbeat.interval.ms",
            5_000,
            1,
            "How often the group's members have to send heartbeats; they learn it with the next one. From group."
            "consumer.min.heartbeat.interval.ms to group.consumer.max.heartbeat.interval.ms.",
        ),
        (
            "assignment.interval.ms",
            1_000,
            0,
            "Minimum time between two assignment computations for the group. From group.consumer.min.assignment."
            "interval.ms to group.consumer.max.assignment.interval.ms.",
        ),
    ):
        yield Setting(
            f"consumer.{name}",
            SettingType.INT,
            default,
            text,
            SettingScope.GROUP,
            at_least(least),
            broker_name=f"group.consumer.{name}",
            dynamic=True,
        )


def group_rows() -> Iterator[Setting]:
    yield from _offsets_topic_rows()
    yield from _offsets_rows()
    yield from _classic_rows()
    yield from _memory_rows()
    yield from _consumer_rows()
    yield from _bound_rows()
    yield from _own_rows()
