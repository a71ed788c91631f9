"""The settings of a broker that say when old data goes: retention, the log cleaner, and how many files stay open.

What always holds: a row stands here only if some part of the broker reads it. What a topic may decide for itself, with
the broker's defaults for it, is in `settings_rows_topic`.
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
        "How often segments are looked for that retention.ms and retention.bytes let go.",
        check=at_least(1),
    )
    yield Setting(
        "log.initial.task.delay.ms",
        SettingType.LONG,
        30_000,
        "How long after the start the first such look is; a broker that was down for days has much to let go.",
        check=at_least(0),
    )
    yield Setting(
        "max.open.files",
        SettingType.INT,
        None,
        "How many files of the logs the broker keeps open at once; beyond it, those that were not used for longest are "
        "closed and opened again when they are needed. Without a value it follows from what the process may open "
        "(ulimit -n). Kafka keeps all files open and has no such setting.",
        check=at_least(16),
    )


def _cleaner_rows() -> Iterator[Setting]:
    yield Setting(
        "log.cleaner.enable",
        SettingType.BOOLEAN,
        True,
        "Whether topics with the policy 'compact' are compacted at all.",
    )
    yield Setting(
        "log.cleaner.threads",
        SettingType.INT,
        1,
        "Threads that compact, each one partition at a time; 0 compacts nothing.",
        check=at_least(0),
    )
    yield Setting(
        "log.cleaner.dedupe.buffer.size",
        SettingType.LONG,
        128 * _MIB,
        "Memory of all cleaner threads together for the keys of what they compact, 24 bytes a key. A partition with "
        "more new keys than fit is compacted in several passes.",
        check=at_least(1024),
    )
    yield Setting(
        "log.cleaner.io.buffer.load.factor",
        SettingType.DOUBLE,
        0.9,
        "How full the memory for keys may get: fuller holds more keys in one pass and finds each more slowly.",
        check=_share,
    )
    yield Setting(
        "log.cleaner.io.buffer.size",
        SettingType.INT,
        524_288,
        "Memory of all cleaner threads together for reading and writing; it grows while a larger batch is compacted.",
        check=at_least(0),
    )
    yield Setting(
        "log.cleaner.io.max.bytes.per.second",
        SettingType.DOUBLE,
        sys.float_info.max,
        "Bytes that all cleaner threads together read and write in a second at most.",
        check=_positive,
    )
    yield Setting(
        "log.cleaner.backoff.ms",
        SettingType.LONG,
        15_000,
        "How long a cleaner thread waits when no partition needs to be compacted.",
        check=at_least(0),
    )


def storage_rows() -> Iterator[Setting]:
    yield from _retention_rows()
    yield from _cleaner_rows()
