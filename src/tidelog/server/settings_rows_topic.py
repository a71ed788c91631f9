"""Topic settings, and the broker settings that provide their defaults.

What always holds: a topic setting and its broker setting have the same type, check and default, because both rows come
from one entry here. If a setting has no effect yet, its help says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tidelog.common.settings import (
    Check,
    Setting,
    SettingScope,
    SettingType,
    at_least,
    between,
    one_of,
    some_of,
)

_LONG_MAX = 2**63 - 1
_DAY_MS = 24 * 60 * 60 * 1000
_NOT_ACTED_ON = " The value is stored with the topic but has no effect yet."

_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_THROTTLED_REPLICA = re.compile(r"\d+:\d+")


def _gzip_level(value: int) -> str | None:
    return None if value == -1 or 1 <= value <= 9 else "expected -1 or 1 to 9"


def _throttled_replicas(items: list[str]) -> str | None:
    if items == ["*"] or all(_THROTTLED_REPLICA.fullmatch(item) for item in items):
        return None
    return "expected * or a list of PARTITION:BROKER"


def _must_be_false(value: bool) -> str | None:
    return "tiered storage is not supported" if value else None


def unlimited_or_positive(value: int) -> str | None:
    return None if value == -1 or value > 0 else "expected -1 (unlimited) or 1 or more"


def _pair(
    name: str,
    kind: SettingType,
    default: Any,
    help_text: str,
    *,
    broker_name: str,
    check: Check | None = None,
    broker_default_is_synonyms: tuple[str, ...] = (),
    broker_check: Check | None = None,
) -> Iterator[Setting]:
    """Yield the row of a topic setting and the row of the broker setting for its default.

    With synonyms, the broker's own row has no default; it comes from the first synonym that has a value.
    """
    yield Setting(name, kind, default, help_text, SettingScope.TOPIC, check, broker_name=broker_name, dynamic=True)
    yield Setting(
        broker_name,
        kind,
        None if broker_default_is_synonyms else default,
        f"Default of {name} for topics that don't set it. {help_text}",
        SettingScope.BROKER,
        broker_check or check,
        dynamic=True,
        synonyms=broker_default_is_synonyms,
    )


def _topic_only(name: str, kind: SettingType, default: Any, help_text: str, check: Check) -> Iterator[Setting]:
    yield Setting(name, kind, default, help_text, SettingScope.TOPIC, check, dynamic=True)


def _segment_rows() -> Iterator[Setting]:
    yield from _pair(
        "segment.bytes",
        SettingType.INT,
        2**30,
        "Largest size of a segment file; the log rolls to a new segment before it would be exceeded. Kafka 4 requires "
        "at least 1 MiB; Tidelog accepts less, as earlier versions of Kafka did.",
        broker_name="log.segment.bytes",
        check=at_least(14),
    )
    yield from _pair(
        "segment.ms",
        SettingType.LONG,
        7 * _DAY_MS,
        "The log rolls to a new segment after this time even if the current one is not full, so that retention and "
        "compaction can process the old one.",
        broker_name="log.roll.ms",
        check=at_least(1),
        broker_default_is_synonyms=("log.roll.hours",),
    )
    yield from _pair(
        "segment.jitter.ms",
        SettingType.LONG,
        0,
        "Maximum random time subtracted from segment.ms for each segment, so that partitions don't all roll at once.",
        broker_name="log.roll.jitter.ms",
        check=at_least(0),
        broker_default_is_synonyms=("log.roll.jitter.hours",),
    )
    yield from _pair(
        "segment.index.bytes",
        SettingType.INT,
        10 * 1024 * 1024,
        "Largest size of a segment's offset index. When the index is full, the log rolls to a new segment.",
        broker_name="log.index.size.max.bytes",
        check=at_least(4),
    )
    yield from _pair(
        "index.interval.bytes",
        SettingType.INT,
        4096,
        "An index entry is added about every this many bytes. Smaller values find offsets with less reading; larger "
        "values keep the indexes small.",
        broker_name="log.index.interval.bytes",
        check=at_least(0),
    )
    yield from _pair(
        "preallocate",
        SettingType.BOOLEAN,
        False,
        "Whether to allocate the full size of a new segment file on disk right away.",
        broker_name="log.preallocate",
    )
    yield from _pair(
        "file.delete.delay.ms",
        SettingType.LONG,
        60_000,
        "How long to wait before deleting a file from disk after its segment was removed from the log.",
        broker_name="log.segment.delete.delay.ms",
        check=at_least(0),
    )


def _flush_rows() -> Iterator[Setting]:
    yield from _pair(
        "flush.messages",
        SettingType.LONG,
        _LONG_MAX,
        "Flush the log to disk after this many messages; 1 flushes before every acknowledgement. By default the "
        "operating system decides when to flush, and replicas keep the data safe.",
        broker_name="log.flush.interval.messages",
        check=at_least(1),
    )
    yield from _pair(
        "flush.ms",
        SettingType.LONG,
        _LONG_MAX,
        "Flush the log to disk once its oldest unflushed message is this old.",
        broker_name="log.flush.interval.ms",
        check=at_least(0),
        broker_default_is_synonyms=("log.flush.scheduler.interval.ms",),
    )


def _message_rows() -> Iterator[Setting]:
    yield from _pair(
        "max.message.bytes",
        SettingType.INT,
        1_048_588,
        "Largest record batch accepted, after compression and including its header.",
        broker_name="message.max.bytes",
        check=at_least(0),
    )
    yield from _pair(
        "message.timestamp.type",
        SettingType.STRING,
        "CreateTime",
        "Whether a record keeps the producer's timestamp (CreateTime) or gets the broker's (LogAppendTime).",
        broker_name="log.message.timestamp.type",
        check=one_of("CreateTime", "LogAppendTime"),
    )
    yield from _pair(
        "message.timestamp.before.max.ms",
        SettingType.LONG,
        _LONG_MAX,
        "Records whose CreateTime is further in the past than this are rejected.",
        broker_name="log.message.timestamp.before.max.ms",
        check=at_least(0),
    )
    yield from _pair(
        "message.timestamp.after.max.ms",
        SettingType.LONG,
        3_600_000,
        "Records whose CreateTime is further in the future than this are rejected.",
        broker_name="log.message.timestamp.after.max.ms",
        check=at_least(0),
    )
    yield from _pair(
        "compression.type",
        SettingType.STRING,
        "producer",
        "Compression of stored batches; 'producer' keeps each batch exactly as the producer sent it.",
        broker_name="compression.type",
        check=one_of(*_CODECS),
    )
    yield from _pair(
        "tidelog.records.check",
        SettingType.STRING,
        "full",
        "Whether to check the records in produced batches, as Kafka does: 'full' rejects a batch that some consumer "
        "could not read; 'none' checks only the header and the checksum, for trusted producers. Compacted topics, and "
        "topics that recompress batches, are always checked. Kafka has no such setting.",
        broker_name="tidelog.records.check",
        check=one_of("full", "none"),
    )
    yield from _pair(
        "compression.gzip.level",
        SettingType.INT,
        -1,
        "Compression level if compression.type is gzip; -1 uses the codec's default.",
        broker_name="compression.gzip.level",
        check=_gzip_level,
    )
    yield from _pair(
        "compression.lz4.level",
        SettingType.INT,
        9,
        "Compression level if compression.type is lz4.",
        broker_name="compression.lz4.level",
        check=between(1, 17),
    )
    yield from _pair(
        "compression.zstd.level",
        SettingType.INT,
        3,
        "Compression level if compression.type is zstd.",
        broker_name="compression.zstd.level",
        check=between(-131_072, 22),
    )


def _cleaning_rows() -> Iterator[Setting]:
    yield from _pair(
        "cleanup.policy",
        SettingType.LIST,
        ["delete"],
        "What to do with old data: 'delete' removes whole segments according to retention.ms and retention.bytes, "
        "'compact' keeps the latest value of each key. Both may be given; an empty list keeps everything.",
        broker_name="log.cleanup.policy",
        check=some_of("compact", "delete"),
    )
    yield from _pair(
        "retention.ms",
        SettingType.LONG,
        7 * _DAY_MS,
        "With cleanup.policy 'delete', remove a segment once its newest record is older than this; -1 means no limit.",
        broker_name="log.retention.ms",
        check=at_least(-1),
        broker_default_is_synonyms=("log.retention.minutes", "log.retention.hours"),
        broker_check=unlimited_or_positive,
    )
    yield from _pair(
        "retention.bytes",
        SettingType.LONG,
        -1,
        "With cleanup.policy 'delete', remove the oldest segments while the partition keeps at least this many bytes; "
        "-1 means no limit.",
        broker_name="log.retention.bytes",
    )
    yield from _pair(
        "delete.retention.ms",
        SettingType.LONG,
        _DAY_MS,
        "How long a compacted topic keeps tombstones, the markers of deleted keys.",
        broker_name="log.cleaner.delete.retention.ms",
        check=at_least(0),
    )
    yield from _pair(
        "min.cleanable.dirty.ratio",
        SettingType.DOUBLE,
        0.5,
        "Compact a partition once at least this fraction of its log has not been compacted yet.",
        broker_name="log.cleaner.min.cleanable.ratio",
        check=between(0, 1),
    )
    yield from _pair(
        "min.compaction.lag.ms",
        SettingType.LONG,
        0,
        "Minimum age of a record before compaction may remove it.",
        broker_name="log.cleaner.min.compaction.lag.ms",
        check=at_least(0),
    )
    yield from _pair(
        "max.compaction.lag.ms",
        SettingType.LONG,
        _LONG_MAX,
        "Maximum time a record can stay uncompacted.",
        broker_name="log.cleaner.max.compaction.lag.ms",
        check=at_least(1),
    )


def _replication_rows() -> Iterator[Setting]:
    yield from _pair(
        "min.insync.replicas",
        SettingType.INT,
        1,
        "Reject a produce request with acks=all while fewer replicas than this are in sync.",
        broker_name="min.insync.replicas",
        check=at_least(1),
    )
    yield from _pair(
        "unclean.leader.election.enable",
        SettingType.BOOLEAN,
        False,
        "Whether a replica that is out of sync may become leader as a last resort, losing acknowledged records.",
        broker_name="unclean.leader.election.enable",
    )
    for side in ("leader", "follower"):
        yield from _topic_only(
            f"{side}.replication.throttled.replicas",
            SettingType.LIST,
            [],
            f"Replicas of the topic that {side}.replication.throttled.rate applies to: PARTITION:BROKER,... or * for "
            "all. Replicas in sync are never slowed down.",
            _throttled_replicas,
        )


def _tiered_rows() -> Iterator[Setting]:
    for name, what in (
        ("remote.storage.enable", "Whether to also keep closed segments in remote storage."),
        ("remote.log.copy.disable", "Whether to pause copying to remote storage."),
        ("remote.log.delete.on.disable", "Whether to delete remote data when remote storage is disabled."),
    ):
        help_text = what + " Tidelog has no tiered storage, so only false is accepted."
        yield from _topic_only(name, SettingType.BOOLEAN, False, help_text, _must_be_false)
    for name, what in (("local.retention.ms", "retention.ms"), ("local.retention.bytes", "retention.bytes")):
        yield from _topic_only(
            name,
            SettingType.LONG,
            -2,
            f"What a topic with remote storage keeps on the local disk; -2 means the same as {what}." + _NOT_ACTED_ON,
            at_least(-2),
        )


def topic_rows() -> Iterator[Setting]:
    yield from _segment_rows()
    yield from _flush_rows()
    yield from _message_rows()
    yield from _cleaning_rows()
    yield from _replication_rows()
    yield from _tiered_rows()
