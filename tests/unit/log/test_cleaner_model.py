"""Random writes, rolls, cleans, truncations and crashes against a model that is a dictionary; batches of any size."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.log import LogConfig, PartitionLog
from tidelog.log.cleaner_io import Pace, SourceSegment, Throttle, read_batches
from tidelog.log.cleaning import LogCleaning
from tidelog.log.inspect import verify
from tidelog.log.scan import CorruptSegmentError
from tidelog.records import Compression, Record, encode_batch

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

ReadLog = Callable[..., list[Record]]
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    segment_bytes=20_000,
    delete_retention_ms=10_000,
    file_delete_delay_ms=0,
    index_interval_bytes=500,
)


@pytest.mark.parametrize("seed", range(6))
def test_a_log_is_what_the_model_says(
    store: Store, make_batch: MakeBatch, read_log: ReadLog, clock: VirtualClock, seed: int
) -> None:
    source = random.Random(seed)
    log = store.create(CONFIG)
    cleaner = store.manager.cleaner
    cleaner.config = dataclasses.replace(cleaner.config, dedupe_buffer_size=24 * source.choice([40, 5_000]))
    written: dict[int, tuple[bytes, bytes | None]] = {}
    sequence = 0
    for _ in range(120):
        action = source.random()
        if action < 0.6:
            count = source.randrange(1, 30)
            keys = [b"key-%d" % source.randrange(60) for _ in range(count)]
            values = [None if source.random() < 0.1 else source.randbytes(source.randrange(60)) for _ in keys]
            first = log.append_as_leader(
                make_batch(
                    values,
                    keys=keys,
                    compression=source.choice(list(Compression)),
                    producer_id=5,
                    producer_epoch=0,
                    base_sequence=sequence,
                ),
                leader_epoch=0,
            ).first_offset
            sequence += count
            written.update(enumerate(zip(keys, values, strict=True), start=first))
        elif action < 0.75:
            log.roll()
            log.flush()
            log.advance_high_watermark(log.log_end_offset)
        elif action < 0.9:
            clock.advance(seconds=source.randrange(8))
            asyncio.run(cleaner.run())
            check(log, read_log, written)
        elif action < 0.95:
            store.manager.checkpoint()
            log = store.reopen(clean=source.random() < 0.5)
            log.advance_high_watermark(log.log_end_offset)
            cleaner = store.manager.cleaner
            check(log, read_log, written)
    assert cleaner.totals.cleans_count or log.first_dirty_offset
    assert list(verify(log.directory)) == []


def check(log: PartitionLog, read_log: ReadLog, written: dict[int, tuple[bytes, bytes | None]]) -> None:
    rows = {record.offset: (record.key, record.value) for record in read_log(log)}
    assert rows.items() <= written.items()
    last = {key: (offset, value) for offset, (key, value) in sorted(written.items())}
    for key, (offset, value) in last.items():
        # A tombstone may have gone, and then nothing that it deleted is there either.
        assert offset in rows or (value is None and all(row[0] != key for row in rows.values()))
    clean_offset = log.first_dirty_offset or 0
    in_clean_part = [row[0] for offset, row in rows.items() if offset < clean_offset]
    assert len(in_clean_part) == len(set(in_clean_part))
    assert log.log_end_offset == max(written, default=-1) + 1


# Reading in chunks


@pytest.fixture
def pace() -> Pace:
    return Pace(Throttle(float("inf")), LogCleaning())


def write_segment(path: Path, sizes: list[int]) -> SourceSegment:
    data = bytearray()
    for offset, size in enumerate(sizes):
        data += encode_batch([(b"k", bytes(size), (), 1)], base_offset=offset)
    path.write_bytes(data)
    return SourceSegment(path, 0, len(sizes), len(data), 0, 0)


def read(source: SourceSegment, chunk: int, limit: int, pace: Pace) -> Iterator[tuple[int, int]]:
    for batch in read_batches(source, chunk, limit, pace):
        assert bytes(batch.data) == source.path.read_bytes()[batch.position :][: batch.header.size_bytes]
        yield batch.header.base_offset, batch.position


@pytest.mark.parametrize("chunk", [61, 62, 100, 150, 1_000, 4_096, 10**6])
def test_batches_are_read_whole_whatever_the_chunk(tmp_path: Path, pace: Pace, chunk: int) -> None:
    sizes = [0, 1, 30, 500, 2_000, 5, 10_000, 0, 0, 61]
    source = write_segment(tmp_path / "0.log", sizes)
    for limit in (0, 3_000, 10**6):
        assert [offset for offset, _ in read(source, chunk, limit, pace)] == list(range(len(sizes)))


def test_a_false_length_is_not_believed(tmp_path: Path, pace: Pace) -> None:
    """It is within the file, so only what should follow shows that it is false, before all of it is read."""
    source = write_segment(tmp_path / "0.log", [100] * 50)
    data = bytearray(source.path.read_bytes())
    (_, second), *_ = list(read(source, 1_000, 10**6, pace))[1:]
    data[second + 8 : second + 12] = (5_000).to_bytes(4, "big")
    source.path.write_bytes(data)
    batches = read_batches(source, 1_000, 2_000, pace)
    assert next(batches).header.base_offset == 0
    with pytest.raises(CorruptSegmentError) as refused:
        next(batches)
    assert refused.value.position == second + 5_012


def test_a_file_that_ends_with_part_of_a_header_is_damaged(tmp_path: Path, pace: Pace) -> None:
    source = write_segment(tmp_path / "0.log", [10, 10, 10])
    source.path.write_bytes(source.path.read_bytes() + bytes(30))
    with pytest.raises(CorruptSegmentError, match="30 bytes are not a batch"):
        list(read_batches(source._replace(size_bytes=source.size_bytes + 30), 1_000, 1_000, pace))


@pytest.mark.parametrize("cut", [1, 30, 80])
def test_a_file_that_ends_too_early_is_damaged(tmp_path: Path, pace: Pace, cut: int) -> None:
    source = write_segment(tmp_path / "0.log", [10, 10, 10])
    source.path.write_bytes(source.path.read_bytes()[:-cut])
    with pytest.raises(CorruptSegmentError):
        list(read_batches(source, 1_000, 1_000, pace))
