"""Loads one partition of a coordinator's topic into its shard, while the event loop keeps serving.

What always holds: everything up to the log's end at the start of loading is replayed, in order. The log is accessed on
the event loop; slow work (disk, decompression, replay) runs in a thread. Nobody else uses the shard in the meantime.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tidelog.broker.partition import Partition
from tidelog.coordinator.actions import GroupRecord
from tidelog.coordinator.transaction import NO_PRODUCER_ID
from tidelog.log import FileSlice
from tidelog.records import (
    BatchHeader,
    ControlRecordType,
    Record,
    check_crc,
    decode_records,
    iter_headers,
    parse_control_record,
)

_INLINE_BYTES_MAX: Final = 16 * 1024
"""A log this small is read at once: handing it to a thread would take longer."""
_INLINE_RECORDS_MAX: Final = 200


class ReplayedShard(Protocol):
    """Something that records are replayed into."""

    def replay(self, record: GroupRecord, offset: int, producer_id: int = NO_PRODUCER_ID) -> None: ...

    def replay_transaction_end(self, producer_id: int, *, committed: bool) -> None: ...


async def load_shard(shard: ReplayedShard, partition: Partition, buffer_bytes: int) -> int:
    """Replay the partition's log; returns how many records it holds. Raises KafkaError and others.

    Only the last record of each key is replayed, as if the log had just been compacted: consumers commit the same
    partitions over and over, and replaying a record costs many times as much as reading it.
    """
    log = partition.log
    end_offset = log.log_end_offset
    offset, count = log.log_start_offset, 0
    latest: dict[bytes, Record] = {}
    while offset < end_offset:
        read = log.read(offset, buffer_bytes, limit_offset=end_offset, min_one_batch=True)
        if not read.size_bytes:
            break
        if read.size_bytes <= _INLINE_BYTES_MAX:
            offset, found = _take(shard, read.records, latest)
        else:
            offset, found = await asyncio.to_thread(_take, shard, read.records, latest)
        count += found
    if len(latest) <= _INLINE_RECORDS_MAX:
        _replay_latest(shard, latest)
    else:
        await asyncio.to_thread(_replay_latest, shard, latest)
    return count


def _take(shard: ReplayedShard, records: FileSlice | bytes, latest: dict[bytes, Record]) -> tuple[int, int]:
    """Note the last record of each key in complete batches; returns the next offset and the number of records."""
    data = records if isinstance(records, bytes) else records.read()
    next_offset, count = 0, 0
    for position, header in iter_headers(data, allow_partial=True):
        check_crc(data, header, position)
        next_offset = header.next_offset
        decoded = decode_records(data, position, check_crc=False)
        count += len(decoded)
        if header.is_transactional:
            # Pending records of transactions and other records must keep their relative order.
            _replay_latest(shard, latest)
            _replay_transactional(shard, header, decoded)
            continue
        for record in decoded:
            if record.key is not None:
                latest.pop(record.key, None)
                latest[record.key] = record
    return next_offset, count


def _replay_latest(shard: ReplayedShard, latest: dict[bytes, Record]) -> None:
    for key, record in latest.items():
        shard.replay(GroupRecord(key, record.value), record.offset)
    latest.clear()


def _replay_transactional(shard: ReplayedShard, header: BatchHeader, decoded: list[Record]) -> None:
    for record in decoded:
        if header.is_control:
            marker = parse_control_record(record).type
            if marker is not None:
                shard.replay_transaction_end(header.producer_id, committed=marker is ControlRecordType.COMMIT)
        elif record.key is not None:
            shard.replay(GroupRecord(record.key, record.value), record.offset, header.producer_id)
