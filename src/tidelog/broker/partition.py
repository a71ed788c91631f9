"""One partition on this broker: replicas and leader as decided by the controller, its log, its high watermark.

What always holds: only the leader appends, and its log records an epoch and its start offset before the epoch's first
batch (KIP-101). The high watermark is the smallest log end offset in the ISR and never goes back within one leadership;
the leader's own offset counts only as far as its flush settings allow acknowledgement. The same code serves one replica
and many. All I/O goes through its log; it starts no threads and wakes nobody: the replica manager does.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.controller.image import INTERNAL_TOPICS
from tidelog.log import AppendOrigin, LogStorageError
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import Compression, iter_headers

if TYPE_CHECKING:
    from tidelog.controller.image import PartitionState
    from tidelog.log import AppendResult, FileSlice, PartitionLog, TimestampOffset
    from tidelog.log.txn_guard import TransactionGuard
    from tidelog.log.validation import ValidatedBatch

logger = logging.getLogger(__name__)

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
ACKS_NONE: Final = 0

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1

CONSUMER_REPLICA_ID: Final = -1


@dataclass(slots=True)
class PartitionRead:
    """The result of reading a partition; if there is an error, only the error counts."""

    records: FileSlice | memoryview | bytes = b""
    size_bytes: int = 0
    # The records come from an older segment than the active one: waiting would not add any.
    ends_segment: bool = False
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    # (producer id, first offset), for read_committed only.
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    # The follower's or consumer's log diverged from this one where this epoch (first) ended (second).
    diverging_epoch: tuple[int, int] | None = None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An answer of ListOffsets."""

    offset: int = NO_OFFSET
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH


class Partition:
    """A partition that has a replica on this broker."""

    __slots__ = (
        "_acknowledgeable_end_offset",
        "_is_sole_replica",
        "flush_is_running",
        "is_internal",
        "is_leader",
        "isr",
        "leader",
        "leader_epoch",
        "leader_epoch_start_offset",
        "log",
        "node_id",
        "partition",
        "partition_epoch",
        "remote_log_end_offsets",
        "replicas",
        "topic",
        "topic_id",
        "unavailable",
    )

    def __init__(self, topic: str, partition: int, topic_id: uuid.UUID, log: PartitionLog, node_id: int) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.node_id = node_id
        # Only the broker itself writes to it.
        self.is_internal = topic in INTERNAL_TOPICS
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.leader = -1
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.is_leader = False
        self.leader_epoch_start_offset = 0
        # Where the followers' logs end, according to their fetches in this leadership.
        self.remote_log_end_offsets: dict[int, int] = {}
        # Why the replica can't be used at all: its topic was deleted, its disk failed.
        self.unavailable = ErrorCode.NONE
        self.flush_is_running = False
        self._acknowledgeable_end_offset = 0
        self._is_sole_replica = False

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.partition}, leader={self.leader}, leader_epoch={self.leader_epoch})"

    # What the controller decided

    def apply(self, state: PartitionState) -> bool:
        """Apply a newer state; True if the leadership changed, so that waiting requests must check again."""
        if state.partition_epoch <= self.partition_epoch:
            return False
        was_leader, old_epoch = self.is_leader, self.leader_epoch
        if state.leader == self.node_id:
            self._make_leader(state)
        self.replicas = state.replicas
        self.isr = state.isr
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.is_leader = state.leader == self.node_id and not self.unavailable
        self._is_sole_replica = state.replicas == (self.node_id,)
        if self.is_leader:
            self.advance_high_watermark()
        return self.is_leader != was_leader or self.leader_epoch != old_epoch

    def _make_leader(self, state: PartitionState) -> None:
        if state.leader_epoch == self.leader_epoch and self.is_leader:
            return
        self.leader_epoch_start_offset = self.log.log_end_offset
        if state.replicas != (self.node_id,):
            # Followers compare their history with this one from now on. A sole replica has none, and records the epoch
            # with its first append: a starting broker leads thousands of partitions, most of them idle.
            try:
                self.log.assign_epoch(state.leader_epoch, self.leader_epoch_start_offset)
            except LogStorageError as error:
                # The first append tries again, and is refused if that also fails.
                logger.warning("leader epoch %d could not be saved yet: %s", state.leader_epoch, error.message)
        # What followers fetched from the previous leader says nothing about what they hold now.
        self._acknowledgeable_end_offset = self.log.high_watermark
        self.remote_log_end_offsets.clear()

    def stop(self, reason: ErrorCode) -> None:
        """Stop serving: the topic was deleted or the disk failed."""
        self.unavailable = reason
        self.is_leader = False

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise KafkaError unless this broker is the leader, in the epoch that the client expects (KIP-320)."""
        if self.unavailable:
            raise KafkaError(self.unavailable)
        if current_leader_epoch != NO_EPOCH:
            if current_leader_epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            if current_leader_epoch > self.leader_epoch:
                raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # Writing

    def append(
        self,
        records: memoryview | ValidatedBatch | None,
        required_acks: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: TransactionGuard | None = None,
    ) -> AppendResult:
        """Append one batch as leader; raises KafkaError and changes nothing if the batch is rejected.

        `guard` lets it start a transaction, once the transaction's coordinator has confirmed it. Raises LongCheckError
        for a batch that must be validated in a thread first, see `record_checks`.
        """
        if origin is AppendOrigin.CLIENT:
            self.check_writable()
        elif not self.is_leader:
            self.check_leader()
        if required_acks == ACKS_ALL and len(self.isr) < self.log.config.min_insync_replicas:
            raise self._not_enough_replicas()
        if records is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a produce request must contain one record batch per partition")
        result = self.log.append_as_leader(
            records, leader_epoch=self.leader_epoch, origin=origin, guard=guard, on_loop=origin is AppendOrigin.CLIENT
        )
        self.advance_high_watermark()
        return result

    def check_writable(self) -> None:
        """Raise KafkaError unless clients may write to this partition here."""
        if not self.is_leader:
            self.check_leader()
        if self.is_internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients may not write to the topic {self.topic}")

    def write_txn_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, commit: bool, epoch_is_bumped: bool
    ) -> AppendResult:
        """End a producer's transaction, as its coordinator decided; raises KafkaError."""
        self.check_leader()
        if len(self.isr) < self.log.config.min_insync_replicas:
            raise self._not_enough_replicas()
        result = self.log.append_marker(
            producer_id,
            producer_epoch,
            coordinator_epoch,
            commit=commit,
            leader_epoch=self.leader_epoch,
            epoch_is_bumped=epoch_is_bumped,
        )
        self.advance_high_watermark()
        return result

    def _not_enough_replicas(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the ISR has {len(self.isr)} members, min.insync.replicas is {self.log.config.min_insync_replicas}",
        )

    @property
    def acknowledgeable_end_offset(self) -> int:
        """The end of the records that this replica may count towards the high watermark.

        With flush.messages=N at most N-1 messages are acknowledged before they are on disk: once N are unflushed,
        nothing more counts until a flush completes. It is always a batch boundary, as both ends of a flush are.
        """
        log = self.log
        if log.flush_is_due:
            self._acknowledgeable_end_offset = max(self._acknowledgeable_end_offset, log.flushed_offset)
        else:
            self._acknowledgeable_end_offset = log.log_end_offset
        return self._acknowledgeable_end_offset

    def acknowledgement(self, end_offset: int, leader_epoch: int, required_acks: int) -> ErrorCode | None:
        """The result for the producer of records that end before `end_offset`; None while that is undecided."""
        if self.unavailable:
            return self.unavailable
        if not self.is_leader or self.leader_epoch != leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if required_acks != ACKS_ALL:
            return ErrorCode.NONE if self.acknowledgeable_end_offset >= end_offset else None
        if self.log.high_watermark < end_offset:
            return None
        if len(self.isr) < self.log.config.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    # The high watermark

    def update_follower(self, replica_id: int, log_end_offset: int, current_leader_epoch: int) -> bool:
        """A follower fetched from the end of its log; True if the high watermark moved."""
        if replica_id == self.node_id or replica_id not in self.replicas:
            # The follower may know of an assignment that has not arrived here yet; then it has to retry.
            if current_leader_epoch != NO_EPOCH:
                raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.remote_log_end_offsets[replica_id] = log_end_offset
        return self.advance_high_watermark()

    def advance_high_watermark(self) -> bool:
        """Move the high watermark to the smallest log end offset of the ISR; True if it moved."""
        log = self.log
        end_offset = self.acknowledgeable_end_offset
        if not self._is_sole_replica:
            if len(self.isr) < min(log.config.min_insync_replicas, len(self.replicas)):
                return False
            for replica_id in self.isr:
                if replica_id != self.node_id:
                    end_offset = min(end_offset, self.remote_log_end_offsets.get(replica_id, NO_OFFSET))
        if end_offset <= log.high_watermark:
            return False
        log.advance_high_watermark(end_offset)
        return True

    # Reading

    def visible_end_offset(self, replica_id: int, read_committed: bool) -> int:
        """The end of what a reader may see: everything for followers, what is committed for consumers."""
        if replica_id >= 0:
            return self.log.log_end_offset
        return self.log.last_stable_offset if read_committed else self.log.high_watermark

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and the offset at which it ended; (-1, -1) if that is unknown.

        For leaders. The leader's own epoch counts from its start, although the log only learns it with the first
        append.
        """
        latest_epoch = self.log.latest_epoch
        if latest_epoch < epoch <= self.leader_epoch and latest_epoch < self.leader_epoch:
            if epoch == self.leader_epoch or latest_epoch == NO_EPOCH:
                return epoch, self.log.log_end_offset
            return latest_epoch, self.log.log_end_offset
        return self.log.end_offset_for_epoch(epoch)

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch in which the offset was written, or will be. For leaders."""
        return self.leader_epoch if offset >= self.leader_epoch_start_offset else self.log.epoch_for_offset(offset)

    def find_divergence(self, fetch_offset: int, last_fetched_epoch: int) -> tuple[int, int] | None:
        """Where this log diverged from that of a reader whose last record has this epoch (KIP-595), or None."""
        epoch, end_offset = self.end_offset_for_epoch(last_fetched_epoch)
        if epoch == NO_EPOCH or end_offset == NO_OFFSET:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    def read(
        self,
        fetch_offset: int,
        max_bytes: int,
        *,
        replica_id: int,
        read_committed: bool,
        min_one_batch: bool,
        in_memory: bool = False,
    ) -> PartitionRead:
        """Read what the reader may see, starting at an offset; raises KafkaError if the offset is outside the log.

        `in_memory`: raise NotInMemoryError rather than wait for the disk.
        """
        log = self.log
        high_watermark = log.high_watermark
        result = PartitionRead(
            high_watermark=high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=() if read_committed else None,
        )
        end_offset = self.visible_end_offset(replica_id, read_committed)
        if fetch_offset >= end_offset or (max_bytes <= 0 and not min_one_batch):
            # The common case of a consumer that is up to date; an offset between the end it may see and the end of
            # the log is not an error: those records will become visible.
            if not log.log_start_offset <= fetch_offset <= log.log_end_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            return result
        read = log.read(
            fetch_offset, max_bytes, limit_offset=end_offset, min_one_batch=min_one_batch, in_memory=in_memory
        )
        result.records = read.records
        result.size_bytes = read.size_bytes
        result.ends_segment = read.ends_segment
        if read_committed:
            aborted = log.aborted_in(read, fetch_offset, end_offset)
            result.aborted_transactions = [(entry.producer_id, entry.first_offset) for entry in aborted]
        return result

    # Offsets

    def latest_offset(self, replica_id: int, read_committed: bool) -> ListedOffset:
        if replica_id != CONSUMER_REPLICA_ID:
            return ListedOffset(self.log.log_end_offset, leader_epoch=self.leader_epoch)
        self._check_high_watermark_is_current()
        return ListedOffset(self.visible_end_offset(replica_id, read_committed), leader_epoch=self.leader_epoch)

    def earliest_offset(self) -> ListedOffset:
        log = self.log
        return ListedOffset(log.log_start_offset, leader_epoch=self.epoch_for_offset(log.log_start_offset))

    def offset_by_timestamp(self, timestamp: int, replica_id: int, read_committed: bool) -> ListedOffset:
        """The first visible record at or after this time; finding none is not an error."""
        return self._visible(self.log.offset_for_timestamp(timestamp), replica_id, read_committed)

    def offset_of_max_timestamp(self, replica_id: int, read_committed: bool) -> ListedOffset:
        return self._visible(self.log.offset_of_max_timestamp(), replica_id, read_committed)

    def _visible(self, found: TimestampOffset | None, replica_id: int, read_committed: bool) -> ListedOffset:
        if found is None:
            return ListedOffset()
        if replica_id == CONSUMER_REPLICA_ID and found.offset >= self.visible_end_offset(replica_id, read_committed):
            self._check_high_watermark_is_current()
            return ListedOffset()
        return ListedOffset(found.offset, found.timestamp, found.leader_epoch)

    def _check_high_watermark_is_current(self) -> None:
        """Raise while a new leader's high watermark lags behind what its predecessor may have reported (KIP-207)."""
        if self.log.high_watermark < self.leader_epoch_start_offset:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)

    def delete_records_before(self, offset: int) -> int:
        """Move the log start up to an offset (-1: the high watermark); returns the low watermark."""
        log = self.log
        if "delete" not in log.config.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "records of a topic that is only compacted can't be deleted")
        target = log.high_watermark if offset == -1 else offset
        if not 0 <= target <= log.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if target > log.log_start_offset:
            log.set_log_start_offset(target)
        return log.log_start_offset


def cut_before_zstd(read: PartitionRead) -> None:
    """Hide zstd from a client too old to read it: return what comes before, or an error if nothing does (KIP-110)."""
    records = read.records if isinstance(read.records, (bytes, memoryview)) else read.records.read()
    for position, header in iter_headers(records, allow_partial=True):
        if header.compression is Compression.ZSTD:
            read.records = memoryview(records)[:position]
            read.size_bytes = position
            if position == 0:
                read.records = b""
                read.error = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            return
    read.records = records
