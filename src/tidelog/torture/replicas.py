"""A comparison of the files of a partition's replicas, for brokers that have stopped.

What always holds: batches are compared byte by byte, from the first offset that all replicas still have to the offset
up to which all must agree; they may start at other offsets and roll their segments elsewhere. Of a compacted partition
each broker removes records in its own time, so there only the records that several of them have are compared. Apache
Kafka's files are the same as Tidelog's.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from tidelog.records import Record, decode_records, iter_headers

# A broken replica differs in many places; the first ones tell enough.
_DIFFERENCES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it is on the disk."""

    base_offset: int
    last_offset: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Compared:
    """How the replicas of a partition differ, and the offset after the last record that was compared."""

    differences: Sequence[str]
    end_offset: int


def batches_of(directory: Path) -> Iterator[Batch]:
    """The batches of a replica, in order."""
    for path in sorted(directory.glob("*.log")):
        size_bytes = path.stat().st_size
        if size_bytes == 0:
            continue
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as content,
        ):
            for position, header in iter_headers(content):
                batch = bytes(content[position : position + header.size_bytes])
                yield Batch(header.base_offset, header.last_offset, batch)


def compare_logs(
    name: str, replicas: Mapping[int, Path], up_to: int | None = None, *, compacted: bool = False
) -> Compared:
    """Compare the directories of one partition, by node id, up to an offset (exclusive) or else to the end."""
    if compacted:
        return _compare_records(name, replicas, up_to)
    start = max(_first_offset(directory) for directory in replicas.values())
    streams = [_between(directory, start, up_to) for directory in replicas.values()]
    differences: list[str] = []
    end_offset = start
    for batches in zip_longest(*streams):
        here = dict(zip(replicas, batches, strict=True))
        found = _differ(name, here)
        if found:
            differences.append(found)
            break
        end_offset = max(each.last_offset for each in batches if each is not None) + 1
    if up_to is not None and not differences and start <= end_offset < up_to:
        differences.append(f"{name} ends at offset {end_offset} on all of {[*replicas]}, before {up_to}")
    return Compared(differences, end_offset)


def _first_offset(directory: Path) -> int:
    first = next(batches_of(directory), None)
    if first is not None:
        return first.base_offset
    # Where nothing is left, the name of the last segment says where it goes on.
    return max((int(path.stem) for path in directory.glob("*.log")), default=0)


def _between(directory: Path, start: int, up_to: int | None) -> Iterator[Batch]:
    for batch in batches_of(directory):
        if up_to is not None and batch.base_offset >= up_to:
            return
        if batch.base_offset >= start:
            yield batch


def _differ(name: str, batches: Mapping[int, Batch | None]) -> str:
    """How these batches, which should be the same, differ."""
    contents = {None if batch is None else batch.content for batch in batches.values()}
    if len(contents) == 1:
        return ""
    offset = min(batch.base_offset for batch in batches.values() if batch is not None)
    described = [f"broker {node_id} has {_describe(batch)}" for node_id, batch in batches.items()]
    return f"{name} differs at offset {offset}: {'; '.join(described)}"


def _describe(batch: Batch | None) -> str:
    if batch is None:
        return "nothing more"
    ((_, header),) = iter_headers(batch.content)
    return f"offsets {batch.base_offset} to {batch.last_offset} of leader epoch {header.partition_leader_epoch}"


def _compare_records(name: str, replicas: Mapping[int, Path], up_to: int | None) -> Compared:
    kept: dict[int, tuple[int, Record]] = {}
    differences: list[str] = []
    for node_id, directory in replicas.items():
        for batch in _between(directory, 0, up_to):
            for record in decode_records(batch.content):
                other, seen = kept.setdefault(record.offset, (node_id, record))
                if (record.key, record.value) != (seen.key, seen.value) and len(differences) < _DIFFERENCES_MAX:
                    differences.append(
                        f"{name} differs at offset {record.offset}: broker {other} has {seen.key!r}: {seen.value!r}, "
                        f"broker {node_id} has {record.key!r}: {record.value!r}"
                    )
    return Compared(differences, max(kept, default=-1) + 1)
