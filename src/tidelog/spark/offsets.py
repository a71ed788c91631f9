"""Offsets in options and checkpoints: JSON by topic and partition, and the start and end bounds that options define.

What always holds: the JSON is the same as that of Spark's own `kafka` source, so each can read the other's checkpoints;
a bound is what the user asked for, not yet resolved to offsets. Does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.client.types import TopicPartition
from tidelog.spark.options import OptionError, Options, Use

EARLIEST = -2
LATEST = -1
GROUP_PREFIX = "group:"
_INT64_MAX = 2**63 - 1

Offsets = dict[TopicPartition, int]


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The form used in checkpoints, in a fixed order."""
    rows: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        rows.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return rows


def offsets_from_json(rows: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, by_partition in rows.items()
        for partition, offset in by_partition.items()
    }


def parse_numbers(option: str, text: str) -> Offsets:
    """Numbers by topic and partition, such as `{"topicA":{"0":23}}`."""
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    rows = _object(option, text, example)
    found: Offsets = {}
    for topic, by_partition in rows.items():
        if not isinstance(by_partition, dict):
            raise _bad_json(option, text, example)
        for partition, number in by_partition.items():
            if not partition.isdecimal() or type(number) is not int or not -_INT64_MAX <= number <= _INT64_MAX:
                raise _bad_json(option, text, example)
            found[TopicPartition(topic, int(partition))] = number
    return found


def parse_partitions(option: str, text: str) -> frozenset[TopicPartition]:
    """Partitions by topic, such as `{"topicA":[0,1]}`."""
    example = '{"topicA":[0,1],"topicB":[0,1]}'
    rows = _object(option, text, example)
    found: set[TopicPartition] = set()
    for topic, partitions in rows.items():
        if not isinstance(partitions, list) or not all(type(each) is int and each >= 0 for each in partitions):
            raise _bad_json(option, text, example)
        found |= {TopicPartition(topic, partition) for partition in partitions}
    if not found:
        raise OptionError(f"option {option}={text!r} lists no partitions; expected JSON like {example}")
    return frozenset(found)


def _object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise _bad_json(option, text, example) from error
    if not isinstance(rows, dict):
        raise _bad_json(option, text, example)
    return rows


def _bad_json(option: str, text: str, example: str) -> OptionError:
    return OptionError(f"option {option}={text!r}: expected JSON like {example}")


@dataclass(frozen=True)
class Bound:
    """Where to start or stop reading; exactly one of the fields is set."""

    option: str  # what the user set, for messages
    everywhere: int | None = None  # EARLIEST or LATEST
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] = field(default_factory=dict)
    group_id: str | None = None
    is_latest_if_none: bool = False  # for timestamps: use the latest offset if no record is that recent


def read_start(options: Options) -> Bound:
    """Where to start reading; timestamps take precedence over offsets."""
    none_is_latest = options.get("startingOffsetsByTimestampStrategy") == "latest"
    is_stream = options.use is Use.STREAM_READ
    bound = _by_time(options, "startingTimestamp", "startingOffsetsByTimestamp", is_latest_if_none=none_is_latest)
    if bound is None:
        bound = _by_offset(options, "startingOffsets", LATEST if is_stream else EARLIEST)
    if not is_stream:
        _refuse_end(bound, LATEST, "latest", "the batch would be empty; use earliest or an offset")
    return bound


def read_end(options: Options) -> Bound:
    """Where a batch stops reading."""
    bound = _by_time(options, "endingTimestamp", "endingOffsetsByTimestamp", is_latest_if_none=True)
    if bound is None:
        bound = _by_offset(options, "endingOffsets", LATEST)
    if bound.group_id is not None:
        raise OptionError("option endingOffsets: expected latest or JSON; group:ID is for startingOffsets")
    _refuse_end(bound, EARLIEST, "earliest", "the batch would be empty; use latest or an offset")
    return bound


def _by_time(options: Options, everywhere: str, by_partition: str, *, is_latest_if_none: bool) -> Bound | None:
    timestamp = options.get(everywhere)
    if timestamp is not None:
        return Bound(everywhere, timestamp=timestamp, is_latest_if_none=is_latest_if_none)
    text = options.get(by_partition)
    if text is not None:
        return Bound(by_partition, timestamps=parse_numbers(by_partition, text), is_latest_if_none=is_latest_if_none)
    return None


def _by_offset(options: Options, option: str, default: int) -> Bound:
    text: str | None = options.get(option)
    if text is None:
        return Bound(option, everywhere=default)
    lower = text.lower()
    if lower == "earliest":
        return Bound(option, everywhere=EARLIEST)
    if lower == "latest":
        return Bound(option, everywhere=LATEST)
    if lower.startswith(GROUP_PREFIX):
        group_id = text[len(GROUP_PREFIX) :].strip()
        if not group_id:
            raise OptionError(f"option {option}={text!r} has no group id; expected something like group:billing")
        return Bound(option, group_id=group_id)
    offsets = parse_numbers(option, text)
    wrong = [each for each in offsets.values() if each < EARLIEST]
    if wrong:
        raise OptionError(f"option {option}: {wrong[0]} is not an offset; use -2 for the earliest, -1 for the latest")
    return Bound(option, offsets=offsets)


def _refuse_end(bound: Bound, end: int, name: str, reason: str) -> None:
    if bound.everywhere == end:
        raise OptionError(f"option {bound.option} can't be {name}: {reason}")
    for topic_partition, offset in bound.offsets.items():
        if offset == end:
            raise OptionError(f"option {bound.option} can't be {offset} ({name}) for {topic_partition}: {reason}")


def check_named(bound: Bound, assigned: Iterable[TopicPartition]) -> None:
    """Raise OptionError unless a bound by partition lists exactly the partitions that are read."""
    named = set(bound.offsets or bound.timestamps)
    if not named:
        return
    wanted = set(assigned)
    if named == wanted:
        return
    missing, extra = wanted - named, named - wanted
    problems = []
    if missing:
        problems.append(f"lacks {_listed(missing)}")
    if extra:
        problems.append(f"includes {_listed(extra)}, which is not read or does not exist")
    hint = "use -2 for the earliest and -1 for the latest" if bound.offsets else "it must include every partition"
    raise OptionError(f"option {bound.option} {' and '.join(problems)}; {hint}")


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(each) for each in sorted(partitions))
