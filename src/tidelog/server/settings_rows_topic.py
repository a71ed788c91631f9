"""The settings of a topic, and the broker's settings that give their defaults.

What always holds: a topic setting and the broker setting behind it share type, check and default, because both rows are
made from one entry here. Where a value does not yet change what the broker does, its help says so.
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
_NOT_ACTED_ON = " It is kept with the topic and not acted on yet."

_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_THROTTLED_REPLICA = re.compile(r"\d+:\d+")


def _gzip_level(value: int) -> str | None:
    return None if value == -1 or 1 <= value <= 9 else "expected -1 or 1 to 9"


def _throttled_replicas(items: list[str]) -> str | None:
    if items == ["*"] or all(_THROTTLED_REPLICA.fullmatch(item) for item in items):
        return None
    return "expected * or a list of PARTITION:BROKER"


def _must_be_false(value: bool) -> str | None:
    return "tiered storage is not available in this broker" if value else None


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
    """A topic's row and the broker's row with its default.

    With synonyms the broker's own row has no default: the first synonym that has a value gives it.
    """
    yield Setting(name, kind, default, help_text, SettingScope.TOPIC, check, broker_name=broker_name, dynamic=True)
    yield Setting(
        broker_name,
        kind,
        None if broker_default_is_synonyms else default,
        f"Default of {name} for topics that do not set it. {help_text}",
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
        "A segment file is closed and a new one begun before it would grow past this many bytes. Kafka 4 asks for 1 "
        "MiB or more; as in earlier Kafka, smaller ones are accepted here.",
        broker_name="log.segment.bytes",
        check=at_least(14),
    )
    yield from _pair(
        "segment.ms",
        SettingType.LONG,
        7 * _DAY_MS,
        "A segment is closed after this time even when it is not full, so that retention and compaction can reach it.",
        broker_name="log.roll.ms",
        check=at_least(1),
        broker_default_is_synonyms=("log.roll.hours",),
    )
    yield from _pair(
        "segment.jitter.ms",
        SettingType.LONG,
        0,
        "Up to this much, drawn anew for each segment, is taken off segment.ms, so that partitions do not all roll at "
        "once.",
        broker_name="log.roll.jitter.ms",
        check=at_least(0),
        broker_default_is_synonyms=("log.roll.jitter.hours",),
    )
    yield from _pair(
        "segment.index.bytes",
        SettingType.INT,
        10 * 1024 * 1024,
        "Largest size of a segment's offset index; a full index closes the segment.",
        broker_name="log.index.size.max.bytes",
        check=at_least(4),
    )
    yield from _pair(
        "index.interval.bytes",
        SettingType.INT,
        4096,
        "An index entry is written about every so many bytes of the log: smaller finds offsets with less reading, "
        "larger keeps indexes small.",
        broker_name="log.index.interval.bytes",
        check=at_least(0),
    )
    yield from _pair(
        "preallocate",
        SettingType.BOOLEAN,
        False,
        "Whether a new segment's file takes its full size on the disk at once.",
        broker_name="log.preallocate",
    )
    yield from _pair(
        "file.delete.delay.ms",
        SettingType.LONG,
        60_000,
        "Time between a file's removal from the log and its removal from the disk.",
        broker_name="log.segment.delete.delay.ms",
        check=at_least(0),
    )


def _flush_rows() -> Iterator[Setting]:
    yield from _pair(
        "flush.messages",
        SettingType.LONG,
        _LONG_MAX,
        "The log is flushed to the disk after so many messages; 1 flushes before every acknowledgement. By default the "
        "operating system decides when, and replicas keep data safe.",
        broker_name="log.flush.interval.messages",
        check=at_least(1),
    )
    yield from _pair(
        "flush.ms",
        SettingType.LONG,
        _LONG_MAX,
        "The log is flushed to the disk when its oldest unflushed message is this old.",
        broker_name="log.flush.interval.ms",
        check=at_least(0),
        broker_default_is_synonyms=("log.flush.scheduler.interval.ms",),
    )


def _message_rows() -> Iterator[Setting]:
    yield from _pair(
        "max.message.bytes",
        SettingType.INT,
        1_048_588,
        "Largest record batch that is accepted, after compression and with its header.",
        broker_name="message.max.bytes",
        check=at_least(0),
    )
    yield from _pair(
        "message.timestamp.type",
        SettingType.STRING,
        "CreateTime",
        "Whether a record keeps its producer's time (CreateTime) or gets the broker's (LogAppendTime).",
        broker_name="log.message.timestamp.type",
        check=one_of("CreateTime", "LogAppendTime"),
    )
    yield from _pair(
        "message.timestamp.before.max.ms",
        SettingType.LONG,
        _LONG_MAX,
        "A record whose CreateTime lies further than this in the past is refused.",
        broker_name="log.message.timestamp.before.max.ms",
        check=at_least(0),
    )
    yield from _pair(
        "message.timestamp.after.max.ms",
        SettingType.LONG,
        3_600_000,
        "A record whose CreateTime lies further than this in the future is refused.",
        broker_name="log.message.timestamp.after.max.ms",
        check=at_least(0),
    )
    yield from _pair(
        "compression.type",
        SettingType.STRING,
        "producer",
        "Codec of the stored batches; 'producer' keeps each batch as it was sent, byte for byte.",
        broker_name="compression.type",
        check=one_of(*_CODECS),
    )
    yield from _pair(
        "compression.gzip.level",
        SettingType.INT,
        -1,
        "Level used when compression.type is gzip; -1 is the codec's own choice.",
        broker_name="compression.gzip.level",
        check=_gzip_level,
    )
    yield from _pair(
        "compression.lz4.level",
        SettingType.INT,
        9,
        "Level used when compression.type is lz4.",
        broker_name="compression.lz4.level",
        check=between(1, 17),
    )
    yield from _pair(
        "compression.zstd.level",
        SettingType.INT,
        3,
        "Level used when compression.type is zstd.",
        broker_name="compression.zstd.level",
        check=between(-131_072, 22),
    )


def _cleaning_rows() -> Iterator[Setting]:
    yield from _pair(
        "cleanup.policy",
        SettingType.LIST,
        ["delete"],
        "What happens to old data: 'delete' drops whole segments by retention.ms and retention.bytes, 'compact' keeps "
        "the last value of every key, both may be given, and an empty list "
        "keeps everything.",
        broker_name="log.cleanup.policy",
        check=some_of("compact", "delete"),
    )
    yield from _pair(
        "retention.ms",
        SettingType.LONG,
        7 * _DAY_MS,
        "Under the policy 'delete', a segment goes when its youngest record is older than this; -1 keeps all for ever.",
        broker_name="log.retention.ms",
        check=at_least(-1),
        broker_default_is_synonyms=("log.retention.minutes", "log.retention.hours"),
        broker_check=unlimited_or_positive,
    )
    yield from _pair(
        "retention.bytes",
        SettingType.LONG,
        -1,
        "Under the policy 'delete', the oldest segments go as long as this many bytes of the partition stay; -1 is no "
        "limit.",
        broker_name="log.retention.bytes",
    )
    yield from _pair(
        "delete.retention.ms",
        SettingType.LONG,
        _DAY_MS,
        "How long a compacted topic keeps the markers of deleted keys.",
        broker_name="log.cleaner.delete.retention.ms",
        check=at_least(0),
    )
    yield from _pair(
        "min.cleanable.dirty.ratio",
        SettingType.DOUBLE,
        0.5,
        "A compacted partition is cleaned when at least this share of it is not compacted yet.",
        broker_name="log.cleaner.min.cleanable.ratio",
        check=between(0, 1),
    )
    yield from _pair(
        "min.compaction.lag.ms",
        SettingType.LONG,
        0,
        "A record is not compacted away before it has this age.",
        broker_name="log.cleaner.min.compaction.lag.ms",
        check=at_least(0),
    )
    yield from _pair(
        "max.compaction.lag.ms",
        SettingType.LONG,
        _LONG_MAX,
        "A record waits at most this long before compaction reaches it.",
        broker_name="log.cleaner.max.compaction.lag.ms",
        check=at_least(1),
    )


def _replication_rows() -> Iterator[Setting]:
    yield from _pair(
        "min.insync.replicas",
        SettingType.INT,
        1,
        "A produce with acks=all is refused while fewer replicas than this are in sync.",
        broker_name="min.insync.replicas",
        check=at_least(1),
    )
    yield from _pair(
        "unclean.leader.election.enable",
        SettingType.BOOLEAN,
        False,
        "Whether a replica that lacks acknowledged data may lead when no other is left, at the price of that data.",
        broker_name="unclean.leader.election.enable",
    )
    for side in ("leader", "follower"):
        yield from _topic_only(
            f"{side}.replication.throttled.replicas",
            SettingType.LIST,
            [],
            f"Replicas whose {side} keeps to the replication rate limit: PARTITION:BROKER,... or *." + _NOT_ACTED_ON,
            _throttled_replicas,
        )


def _tiered_rows() -> Iterator[Setting]:
    for name, what in (
        ("remote.storage.enable", "Whether closed segments are also kept in remote storage."),
        ("remote.log.copy.disable", "Whether copying to remote storage is paused."),
        ("remote.log.delete.on.disable", "Whether turning remote storage off deletes what is there."),
    ):
        help_text = what + " This broker has no tiered storage and accepts only false."
        yield from _topic_only(name, SettingType.BOOLEAN, False, help_text, _must_be_false)
    for name, what in (("local.retention.ms", "retention.ms"), ("local.retention.bytes", "retention.bytes")):
        yield from _topic_only(
            name,
            SettingType.LONG,
            -2,
            f"What a topic with remote storage keeps on the broker's own disk; -2 takes {what}." + _NOT_ACTED_ON,
            at_least(-2),
        )


def topic_rows() -> Iterator[Setting]:
    yield from _segment_rows()
    yield from _flush_rows()
    yield from _message_rows()
    yield from _cleaning_rows()
    yield from _replication_rows()
    yield from _tiered_rows()
