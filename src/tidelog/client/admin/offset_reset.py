"""Where a group's offsets should be reset to: turns the ways people specify it into offsets in the log.

What always holds: a new offset lies between the first and the end offset of its partition, whatever was requested.
Nothing is committed here: the plan shows for each partition the current commit and the new one.
"""

from __future__ import annotations

import csv
import datetime
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tidelog.client.admin.admin import Admin
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.errors import ClientError
from tidelog.client.types import OffsetAndMetadata, TopicPartition
from tidelog.common.light_dataclass import dataclass

Targets = Callable[[Admin, "Bounds"], Mapping[TopicPartition, int]]
"""Gives the offsets that are wished for; those outside of the log are brought back into it afterwards."""

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?$"
)
_SHORT_DURATION = re.compile(r"(?P<count>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h|d)$")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The contents of the partitions, and the group's commits for them."""

    first: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True)
class PlannedOffset:
    """What a reset does to one partition; `was` is None if nothing is committed."""

    topic_partition: TopicPartition
    was: int | None
    will_be: int
    # Whether the request pointed outside the log, so the nearest offset is used instead.
    is_clamped: bool


def bounds_of(
    admin: Admin, partitions: Iterable[TopicPartition], committed: Mapping[TopicPartition, OffsetAndMetadata]
) -> Bounds:
    wanted = list(partitions)
    first = admin.list_offsets(dict.fromkeys(wanted, OffsetSpec.EARLIEST))
    end = admin.list_offsets(dict.fromkeys(wanted, OffsetSpec.LATEST))
    return Bounds(
        {key: row.offset for key, row in first.items()}, {key: row.offset for key, row in end.items()}, committed
    )


def plan_reset(admin: Admin, bounds: Bounds, targets: Targets) -> list[PlannedOffset]:
    planned = []
    for key, wished in sorted(targets(admin, bounds).items()):
        if key not in bounds.end:
            raise ClientError(f"partition {key} is not among those to reset; name its topic")
        within = min(max(wished, bounds.first[key]), bounds.end[key])
        committed = bounds.committed.get(key)
        planned.append(PlannedOffset(key, committed.offset if committed else None, within, within != wished))
    return planned


# Ways to specify an offset


def to_earliest(admin: Admin, bounds: Bounds) -> Mapping[TopicPartition, int]:
    return bounds.first


def to_latest(admin: Admin, bounds: Bounds) -> Mapping[TopicPartition, int]:
    return bounds.end


def to_current(admin: Admin, bounds: Bounds) -> Mapping[TopicPartition, int]:
    """The committed offset, or the end if there is none."""
    return {key: bounds.committed[key].offset if key in bounds.committed else end for key, end in bounds.end.items()}


def to_offset(offset: int) -> Targets:
    return lambda admin, bounds: dict.fromkeys(bounds.end, offset)


def to_time(timestamp_ms: int) -> Targets:
    """The first record at or after that time; the end if there is none."""

    def find(admin: Admin, bounds: Bounds) -> Mapping[TopicPartition, int]:
        found = admin.list_offsets(dict.fromkeys(bounds.end, timestamp_ms))
        return {key: found[key].offset if found[key].offset >= 0 else end for key, end in bounds.end.items()}

    return find


def by_duration(seconds: float) -> Targets:
    """The first record that is at most this old."""
    return to_time(time.time_ns() // 1_000_000 - round(seconds * 1000))


def shift_by(count: int) -> Targets:
    def shift(admin: Admin, bounds: Bounds) -> Mapping[TopicPartition, int]:
        return {key: offset + count for key, offset in to_current(admin, bounds).items()}

    return shift


def exactly(offsets: Mapping[TopicPartition, int]) -> Targets:
    return lambda admin, bounds: offsets


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Lines of topic,partition,offset; raises ClientError that names the line."""
    offsets: dict[TopicPartition, int] = {}
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if not row or row[0].startswith("#"):
                continue
            try:
                topic, partition, offset = row
                offsets[TopicPartition(topic.strip(), int(partition))] = int(offset)
            except ValueError:
                raise ClientError(
                    f"{path}, line {number}: {','.join(row)!r} is not topic,partition,offset, as in orders,0,42"
                ) from None
    if not offsets:
        raise ClientError(f"{path} has no line of topic,partition,offset")
    return offsets


def parse_duration(text: str) -> float:
    """Seconds of '90s', '15m', '2h', '1d' or ISO 8601's 'PT1H30M', 'P1D'; raises ValueError."""
    short = _SHORT_DURATION.match(text)
    if short:
        return float(short["count"]) * _UNITS_S[short["unit"]]
    iso = _DURATION.match(text)
    if iso is None or not any(iso.groupdict().values()):
        raise ValueError(f"{text!r} is not a duration; write 90s, 15m, 2h, 1d, or ISO 8601 as in PT1H30M")
    parts = {name: float(value) for name, value in iso.groupdict().items() if value}
    return datetime.timedelta(**parts).total_seconds()
