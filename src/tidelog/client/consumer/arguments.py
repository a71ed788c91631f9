"""Checks and normalizes what callers pass to a consumer: topics, partitions, offsets.

What always holds: calls that take partitions accept one or several; each is a `TopicPartition` or a pair of a topic's
name and a number. Anything else raises TypeError immediately, in the caller's thread, with a message that shows valid
forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeGuard

from tidelog.client.types import OffsetAndMetadata, TopicPartition

Partition = TopicPartition | tuple[str, int]
Partitions = Partition | Iterable[Partition]


def read_topics(
    topics: Iterable[str] | str | re.Pattern[str], pattern: str | re.Pattern[str] | None
) -> tuple[list[str], re.Pattern[str] | None]:
    """The argument of subscribe(): names, or a pattern."""
    if isinstance(topics, re.Pattern):
        if pattern is not None:
            raise ValueError("give one pattern, not two")
        return [], _read_pattern(topics)
    names = _read_names(topics)
    if pattern is None:
        return names, None
    if names:
        raise ValueError("subscribe to names or to a pattern, not to both")
    return [], _read_pattern(pattern)


def _read_names(topics: object) -> list[str]:
    if isinstance(topics, str):
        topics = [topics]
    if isinstance(topics, bytes) or not isinstance(topics, Iterable):
        raise TypeError(f"topics must be strings, not {topics!r}; write subscribe(['orders'])")
    names = list(topics)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a topic must be a string, not {name!r}; write subscribe(['orders'])")
        if not name:
            raise ValueError("a topic's name can't be empty")
    return names


def _read_pattern(pattern: object) -> re.Pattern[str]:
    if isinstance(pattern, str):
        return re.compile(pattern)
    if not isinstance(pattern, re.Pattern) or not isinstance(pattern.pattern, str):
        raise TypeError(f"a pattern is a string or a compiled expression over strings, not {pattern!r}")
    return pattern


def read_partitions(partitions: Partitions) -> list[TopicPartition]:
    """One partition or several."""
    if _is_partition(partitions):
        return [TopicPartition(*partitions)]
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        raise _not_a_partition(partitions)
    return [read_partition(each) for each in partitions]


def read_partition(partition: object) -> TopicPartition:
    if not _is_partition(partition):
        raise _not_a_partition(partition)
    return TopicPartition(*partition)


def _is_partition(given: object) -> TypeGuard[tuple[str, int]]:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], int)


def _not_a_partition(given: object) -> TypeError:
    name = given if isinstance(given, str) else "orders"
    return TypeError(f"a partition is a topic and a number, as TopicPartition({name!r}, 0), not {given!r}")


def read_offsets(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit, in any of the accepted forms; a plain number is an offset without metadata."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets are a mapping, as {{TopicPartition('orders', 0): 7}}, not {offsets!r}")
    return {read_partition(key): read_offset(value) for key, value in offsets.items()}


def read_offset(offset: OffsetAndMetadata | int) -> OffsetAndMetadata:
    if isinstance(offset, int):
        return OffsetAndMetadata(offset)
    if not isinstance(offset, tuple):
        raise TypeError(f"an offset is a number or an OffsetAndMetadata, not {offset!r}")
    return OffsetAndMetadata(*offset)
