"""The part of a partition's log that answers questions: reads, look-ups by time, transactions, producers.

What always holds: nothing here changes a record or an offset; a read outside the log is refused. Finding things in
segments is `reading`, what is appended and deleted `partition_log`.
"""

from __future__ import annotations

from tidelog.log.errors import CorruptIndexError, LogStorageError
from tidelog.log.log_state import OpenLog
from tidelog.log.producer_state import ProducerEntry
from tidelog.log.reading import (
    LogRead,
    RecordTime,
    TimestampOffset,
    find_aborted,
    find_by_timestamp,
    find_max_timestamp,
    offset_behind,
    read_segments,
)
from tidelog.log.txn_guard import TransactionGuard
from tidelog.log.txn_index import AbortedTransaction
from tidelog.protocol import ErrorCode, KafkaError


class ReadableLog(OpenLog):
    """What readers and those who verify transactions ask."""

    __slots__ = ()

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, min_one_batch: bool, in_memory: bool = False
    ) -> LogRead:
        """Batches from the one that holds the offset up to the limit; raises OFFSET_OUT_OF_RANGE outside the log.

        `in_memory`: raise NotInMemoryError rather than wait for the disk.
        """
        if not self._log_start_offset <= offset <= self._log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} holds offsets {self._log_start_offset} to {self._log_end_offset}, not {offset}",
            )
        limit_offset = min(limit_offset, self._log_end_offset)
        if offset >= limit_offset:
            return LogRead()
        first = self._segments.index_of(offset)
        with self.reading():
            return read_segments(
                self._segments, first, offset, max_bytes, limit_offset, min_one_batch, in_memory=in_memory
            )

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp is not below this one."""
        with self.reading():
            return self._timestamp_offset(find_by_timestamp(self._segments, timestamp, self._log_start_offset))

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record that has the largest timestamp of all."""
        with self.reading():
            return self._timestamp_offset(find_max_timestamp(self._segments))

    def _timestamp_offset(self, record: RecordTime | None) -> TimestampOffset | None:
        if record is None or record.offset < self._log_start_offset:
            return None
        return TimestampOffset(record.timestamp, record.offset, self._epochs.epoch_for(record.offset))

    # Producers and their transactions

    def active_producers(self) -> list[ProducerEntry]:
        return self._producers.entries()

    def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> int:
        return self._producers.remove_expired(now_ms, expiration_ms)

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        return self._producers.has_open_transaction(producer_id, producer_epoch)

    def begin_verification(self, producer_id: int, producer_epoch: int, first_sequence: int) -> TransactionGuard:
        """What lets a batch begin a transaction here, once the coordinator says that it may (KIP-890)."""
        return self._producers.guards.begin(producer_id, producer_epoch, first_sequence, self._clock.now_ms())

    def aborted_transactions(self, offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """Those that touch the offsets from one up to another, by their first offsets."""
        if offset > self._last_aborted_offset:
            return []
        with self.reading():
            try:
                found = list(find_aborted(self._segments, self._segments.index_of(offset), offset, upper_bound))
            except CorruptIndexError as error:
                raise LogStorageError(f"{self.name}: {error}") from error
        return sorted(found, key=lambda entry: entry.first_offset)

    def aborted_in(self, read: LogRead, offset: int, limit_offset: int) -> list[AbortedTransaction]:
        """Those that touch what was read from an offset on."""
        if offset > self._last_aborted_offset:
            return []
        return self.aborted_transactions(offset, offset_behind(read, limit_offset))
