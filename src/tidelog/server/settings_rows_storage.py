"""Broker settings for removing old data (retention, the log cleaner) and for open files.

What always holds: every row is read by some part of the broker. Settings that topics can have themselves, and the
broker's defaults for them, are in `settings_rows_topic`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tidelog.common.settings import Setting, SettingType, at_least

_MIB = 1024 * 1024


def _share(value: float) -> str | None:
    return None if 0 < value <= 1 else "expected a number above 0 and up to 1"


def _positive(value: float) -> str | None:
    return None if value > 0 else "expected a number above 0"


def _retention_rows() -> Iterator[Setting]:
    yield Setting(
        "log.retention.check.interval.ms",
        SettingType.LONG,
        300_000,
        "How often to look for segments to delete according to retention.ms and retention.bytes.",
        check=at_least(1),
    )
    yield Setting(
        "log.initial.task.delay.ms",
        SettingType.LONG,
        30_000,
        "How long after startup to first look for segments to delete; a broker that was down for days may have many.",
        check=at_least(0),
    )
    yield Setting(
        "max.open.files",
        SettingType.INT,
        None,
        "Maximum number of log files kept open; beyond that, the least recently used ones are closed and reopened when "
        "needed. By default it is derived from the process's limit (ulimit -n). Kafka keeps all files open and has no "
        "such setting.",
        check=at_least(16),
    )


def _cleaner_rows() -> Iterator[Setting]:
    yield Setting(
        "log.cleaner.enable",
        SettingType.BOOLEAN,
        True,
        "Whether to compact topics whose cleanup.policy includes 'compact'.",
    )
    yield Setting(
        "log.cleaner.threads",
        SettingType.INT,
        1,
        "Number of threads for compaction, each working on one partition at a time; 0 turns compaction off.",
        check=at_least(0),
    )
    yield Setting(
        "log.cleaner.dedupe.buffer.size",
        SettingType.LONG,
        128 * _MIB,
        "Memory for the keys being compacted, shared by all cleaner threads; each key takes 24 bytes. A partition with "
        "more new keys than fit is compacted in several passes.",
        check=at_least(1024),
    )
    yield Setting(
        "log.cleaner.io.buffer.load.factor",
        SettingType.DOUBLE,
        0.9,
        "How full the memory for keys may get. A higher value fits more keys into one pass but makes lookups slower.",
        check=_share,
    )
    yield Setting(
        "log.cleaner.io.buffer.size",
        SettingType.INT,
        524_288,
        "I/O buffer memory shared by all cleaner threads; it grows temporarily for larger batches.",
        check=at_least(0),
    )
    yield Setting(
        "log.cleaner.io.max.bytes.per.second",
        SettingType.DOUBLE,
        sys.float_info.max,
        "Maximum bytes per second that all cleaner threads together read and write.",
        check=_positive,
    )
    yield Setting(
        "log.cleaner.backoff.ms",
        SettingType.LONG,
        15_000,
        "How long a cleaner thread sleeps when nothing needs compaction.",
        check=at_least(0),
    )


def storage_rows() -> Iterator[Setting]:
    yield from _retention_rows()
    yield from _cleaner_rows()
