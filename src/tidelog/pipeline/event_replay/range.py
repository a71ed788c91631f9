"""Which part of a topic to replay: bounds as users write them, and the offsets that they stand for.

What always holds: a bound is resolved once, when a replay starts, so that the replay has a fixed end even if the topic
grows; the end is exclusive. Does no I/O: the caller supplies what brokers know.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tidelog.client.admin.offset_reset import parse_duration
from tidelog.pipeline.errors import DeclarationError

_HINT = "use earliest, latest, an offset, 0:100,1:250 (partition:offset), a time like 2026-01-31T12:00:00Z, or -2h"

_WHOLE_NUMBER = re.compile(r"\d+")
_LISTED = re.compile(r"(\d+):(earliest|latest|\d+)")


class RangeError(DeclarationError):
    """A range is invalid; the message says why."""


class AtTime(NamedTuple):
    """The first record at or after this time."""

    time_ms: int


Place = Literal["earliest", "latest"] | int | AtTime


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a range starts or ends, in all partitions or only in the listed ones."""

    text: str
    everywhere: Place | None = None
    listed: Mapping[int, Place] | None = None

    def place_in(self, partition: int) -> Place | None:
        """The bound in this partition, or None if the partition is left out."""
        return self.everywhere if self.listed is None else self.listed.get(partition)


def parse_bound(text: str, now_ms: int) -> Bound:
    """Parse the value of --from or --to; raises RangeError."""
    text = text.strip()
    if text in ("earliest", "latest"):
        return Bound(text, text)  # type: ignore[arg-type]  # one of the two words, as checked
    if _WHOLE_NUMBER.fullmatch(text):
        return Bound(text, int(text))
    if text.startswith("-"):
        try:
            return Bound(text, AtTime(now_ms - round(parse_duration(text[1:]) * 1000)))
        except ValueError:
            raise RangeError(f"{text!r} is not a time before now; {_HINT}") from None
    if _LISTED.match(text):
        return Bound(text, listed=_parse_listed(text))
    try:
        return Bound(text, AtTime(int(datetime.datetime.fromisoformat(text).timestamp() * 1000)))
    except (ValueError, OverflowError):
        raise RangeError(f"{text!r} is not a position in a topic; {_HINT}") from None


def _parse_listed(text: str) -> dict[int, Place]:
    listed: dict[int, Place] = {}
    for part in text.split(","):
        match = _LISTED.fullmatch(part.strip())
        if match is None:
            raise RangeError(f"{part.strip()!r} is not partition:offset; {_HINT}")
        partition = int(match[1])
        if partition in listed:
            raise RangeError(f"partition {partition} occurs twice in {text!r}")
        listed[partition] = match[2] if match[2] in ("earliest", "latest") else int(match[2])  # type: ignore[assignment]  # one of the two words
    return listed


class OffsetRange(NamedTuple):
    """Offsets from `start` up to, but not including, `end`."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


Ranges = dict[int, OffsetRange]
"""The range of each partition that is replayed."""

FindTimes = Callable[[Mapping[int, int]], Mapping[int, int | None]]
"""Finds the first offset at or after a time in each partition; None if no record is that recent."""


@dataclass(frozen=True, slots=True)
class ResolvedRange:
    ranges: Ranges
    notes: tuple[str, ...]  # messages about where the range differs from the bounds


def resolve(first: Bound, last: Bound, available: Mapping[int, OffsetRange], find_times: FindTimes) -> ResolvedRange:
    """Resolve two bounds to offsets in the partitions of a topic, given what each of them currently holds."""
    _check_order(first, last)
    partitions = _partitions(first, last, available)
    starts = _offsets(first, partitions, available, find_times)
    ends = _offsets(last, partitions, available, find_times)
    ranges: Ranges = {}
    notes: list[str] = []
    for partition in partitions:
        held = available[partition]
        start, end = starts[partition], ends[partition]
        if start < held.start and isinstance(first.place_in(partition), int):
            notes.append(f"partition {partition} starts at offset {held.start}: earlier offsets are gone")
        if end > held.end:
            notes.append(f"partition {partition} currently ends at offset {held.end}, before {end}")
        start = min(max(start, held.start), held.end)
        ranges[partition] = OffsetRange(start, max(start, min(end, held.end)))
    return ResolvedRange(ranges, tuple(notes))


def _check_order(first: Bound, last: Bound) -> None:
    """Reject bounds in the wrong order, as far as that can be seen without a broker."""
    pairs = [(first.everywhere, last.everywhere)]
    if first.listed is not None and last.listed is not None:
        pairs = [(first.listed[each], last.listed[each]) for each in first.listed.keys() & last.listed.keys()]
    for start, end in pairs:
        if start == "latest" or end == "earliest":
            raise RangeError(f"from {first.text} to {last.text} is empty: a range can't extend beyond the current end")
        both_offsets = isinstance(start, int) and isinstance(end, int)
        both_times = isinstance(start, AtTime) and isinstance(end, AtTime)
        if (both_offsets or both_times) and not start < end:  # type: ignore[operator]  # both are of one kind
            raise RangeError(f"from {first.text} to {last.text} is empty: the end is not after the start")


def _partitions(first: Bound, last: Bound, available: Mapping[int, OffsetRange]) -> list[int]:
    listed = [set(bound.listed) for bound in (first, last) if bound.listed is not None]
    if not listed:
        return sorted(available)
    if len(listed) == 2 and listed[0] != listed[1]:
        raise RangeError(f"from {first.text} and to {last.text} list different partitions")
    unknown = sorted(listed[0] - available.keys())
    if unknown:
        raise RangeError(f"the topic has no partition {unknown[0]}; it has partitions 0 to {max(available)}")
    return sorted(listed[0])


def _offsets(
    bound: Bound, partitions: Collection[int], available: Mapping[int, OffsetRange], find_times: FindTimes
) -> dict[int, int]:
    offsets: dict[int, int] = {}
    times: dict[int, int] = {}
    for partition in partitions:
        match bound.place_in(partition):
            case "earliest":
                offsets[partition] = available[partition].start
            case int(offset):
                offsets[partition] = offset
            case AtTime(time_ms):
                times[partition] = time_ms
            case _:  # latest, or a partition that only the other bound lists
                offsets[partition] = available[partition].end
    if times:
        for partition, found in find_times(times).items():
            offsets[partition] = available[partition].end if found is None else found
    return offsets


# Chunks


def total(ranges: Ranges) -> int:
    return sum(each.size for each in ranges.values())


def next_chunk(done: Mapping[int, int], ranges: Ranges, offsets_max: int) -> Ranges:
    """The next part of the ranges to replay, at most `offsets_max` offsets; `done` says how far each partition is.

    Offsets are divided in proportion to what each partition has left, so that all finish together. A partition with
    anything left gets at least one offset, if there are enough. An empty chunk means that nothing is left.
    """
    left = {each: ranges[each].end - done[each] for each in ranges if ranges[each].end > done[each]}
    if not left:
        return {}
    *others, largest = sorted(left, key=lambda each: (left[each], each))
    left_sum = sum(left.values())
    budget = min(offsets_max, left_sum)
    shares: dict[int, int] = {}
    for partition in others:
        shares[partition] = min(budget, max(1, offsets_max * left[partition] // left_sum), left[partition])
        budget -= shares[partition]
    shares[largest] = min(budget, left[largest])  # including what is left over from rounding down
    return {each: OffsetRange(done[each], done[each] + share) for each, share in sorted(shares.items()) if share}
