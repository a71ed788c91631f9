"""Logs in a temporary directory, and the batches to put into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogManager, PartitionLog
from tidelog.records import Compression, Record, decode_records, encode_batch, iter_headers

NOW_MS = 1_700_000_000_000
MakeBatch = Callable[..., memoryview]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(NOW_MS)


@pytest.fixture
def make_batch(clock: VirtualClock) -> MakeBatch:
    """Batches by their values; everything else has a default."""

    def make(
        values: Sequence[bytes] = (b"value",),
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int] | None = None,
        compression: Compression = Compression.NONE,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        is_control: bool = False,
    ) -> memoryview:
        keys = keys or [None] * len(values)
        timestamps = timestamps or [clock.now_ms()] * len(values)
        records = [(key, value, (), time) for key, value, time in zip(keys, values, timestamps, strict=True)]
        batch = encode_batch(
            records,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
            is_control=is_control,
        )
        return memoryview(batch)

    return make


class Store:
    """A data directory whose manager can be closed and opened again, cleanly or as after a crash."""

    def __init__(self, path: Path, clock: VirtualClock) -> None:
        self.path = path
        self.clock = clock
        self.config = LogConfig()
        self.manager = self._open()

    def _open(self) -> LogManager:
        manager = LogManager([self.path], {}, self.clock)
        manager.open("cluster", 1)
        manager.load({"topic": self.config})
        return manager

    def create(self, config: LogConfig | None = None) -> PartitionLog:
        self.config = config or self.config
        return self.manager.create("topic", 0, random_uuid(), self.config)

    @property
    def log(self) -> PartitionLog:
        log = self.manager.get("topic", 0)
        assert log is not None
        return log

    @property
    def directory(self) -> Path:
        return self.path / "topic-0"

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.directory.glob("*" + suffix))

    def stop(self, *, clean: bool) -> None:
        self.manager.close(clean=clean)

    def start(self) -> LogManager:
        self.manager = self._open()
        return self.manager

    def reopen(self, *, clean: bool) -> PartitionLog:
        self.stop(clean=clean)
        self.start()
        return self.log


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    store = Store(tmp_path / "data", clock)
    yield store
    store.manager.close(clean=False)


def read_all(log: PartitionLog, offset: int | None = None, max_bytes: int = 1_000_000) -> list[Record]:
    """All records from an offset on, read as a consumer would: batch by batch, ignoring what lies before it."""
    offset = log.log_start_offset if offset is None else offset
    records: list[Record] = []
    while offset < log.log_end_offset:
        found = log.read(offset, max_bytes, limit_offset=log.log_end_offset, min_one_batch=True)
        data = b"".join(part.read() for part in found.slices)
        assert data, f"nothing at offset {offset}"
        for position, header in iter_headers(data, allow_partial=True):
            records += (record for record in decode_records(data, position) if record.offset >= offset)
            offset = header.next_offset
    return records


@pytest.fixture
def read_log() -> Callable[..., list[Record]]:
    return read_all
