"""One partition on this broker: replicas and leader as decided by the controller, its log, its high watermark.

What always holds: only the leader appends, and its log records an epoch and its start offset before the epoch's first
batch (KIP-101). The high watermark is the smallest log end offset in the maximal ISR, which is the ISR with those who
are about to join it, and never goes back within one leadership; below min.insync.replicas, or while there are eligible
leader replicas (KIP-966), it stays. The leader's own offset counts only as far as its flush settings allow
acknowledgement. One change of the ISR is under way at a time, and until an image shows what the controller has decided,
both outcomes count as possible (KIP-497). The same code serves one replica and many.
All I/O goes through its log; it starts no threads and wakes nobody: the replica manager does.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.broker.follower_state import FollowerState, ReplicationTerms
from tidelog.common.light_dataclass import dataclass
from tidelog.controller.image import INTERNAL_TOPICS
from tidelog.controller.requests import IsrMember
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import BatchDraft, Compression, iter_headers

if TYPE_CHECKING:
    from tidelog.controller.image import PartitionState
    from tidelog.log import AppendResult, FileSlice, PartitionLog, TimestampOffset
    from tidelog.log.txn_guard import TransactionGuard
    from tidelog.log.validation import ValidatedBatch

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
ACKS_NONE: Final = 0

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1

CONSUMER_REPLICA_ID: Final = -1

DEBUGGING_REPLICA_ID: Final = -2
"""Kafka's ReplicaVerificationTool: it reads each replica, leader or not, and everything that is there."""


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
    # The follower that the consumer should read from (KIP-392); -1: this replica.
    preferred_read_replica: int = -1
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An answer of ListOffsets."""

    offset: int = NO_OFFSET
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class PendingIsr:
    """A change of the ISR that the controller was asked for and has not decided, as far as is known here."""

    members: tuple[IsrMember, ...]
    leader_epoch: int
    partition_epoch: int


class IsrOutcome(enum.Enum):
    """What the controller's answer means for the change that was asked for."""

    # It was carried out; the image that shows it makes it count.
    DECIDED = "decided"
    # It was not carried out, and may be asked for again when something has changed.
    REFUSED = "refused"
    # The next image tells; until then it stays pending.
    OUTDATED = "outdated"
    # Whether it was carried out is unknown: ask again, and stay pending.
    UNKNOWN = "unknown"


_REFUSED: Final = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""With these the controller says that it knew the current state and changed nothing, so no other may have either."""

_OUTDATED: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


def outcome_of(error: ErrorCode) -> IsrOutcome:
    """What the controller's answer means by itself."""
    if error is ErrorCode.NONE:
        return IsrOutcome.DECIDED
    if error in _REFUSED:
        return IsrOutcome.REFUSED
    return IsrOutcome.OUTDATED if error in _OUTDATED else IsrOutcome.UNKNOWN


class Partition:
    """A partition that has a replica on this broker."""

    __slots__ = (
        "_acknowledgeable_end_offset",
        "_fenced_epoch",
        "_is_sole_replica",
        "_maximal_isr",
        "_terms",
        "elr",
        "flush_is_running",
        "followers",
        "has_room",
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
        "pending_isr",
        "replicas",
        "topic",
        "topic_id",
        "unavailable",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: uuid.UUID,
        log: PartitionLog,
        node_id: int,
        terms: ReplicationTerms,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.node_id = node_id
        # Only the broker itself writes to it.
        self.is_internal = topic in INTERNAL_TOPICS
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.elr: tuple[int, ...] = ()
        self.leader = -1
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.is_leader = False
        self.leader_epoch_start_offset = 0
        # The other replicas, according to their fetches in this leadership; empty where this broker does not lead.
        self.followers: dict[int, FollowerState] = {}
        self.pending_isr: PendingIsr | None = None
        self._maximal_isr: tuple[int, ...] = ()
        self._terms = terms
        self._fenced_epoch = NO_EPOCH
        # Why the replica can't be used at all: its topic was deleted, its disk failed.
        self.unavailable = ErrorCode.NONE
        # False while its disk is full: it is read as always, and written only where nobody else could be.
        self.has_room = True
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
        is_leader = state.leader == self.node_id and not self.unavailable and state.leader_epoch > self._fenced_epoch
        if is_leader and not (was_leader and state.leader_epoch == old_epoch):
            self.leader_epoch_start_offset = self.log.log_end_offset
            # What followers fetched from the previous leader says nothing about what they hold now.
            self._acknowledgeable_end_offset = self.log.high_watermark
            self.followers = {}
        asked = self.pending_isr
        left = [member for member in self.isr if member not in state.isr]
        self.replicas = state.replicas
        self._take_isr(state.isr)
        self.elr = state.elr
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.is_leader = is_leader
        self._is_sole_replica = state.replicas == (self.node_id,)
        if is_leader:
            self._follow_replicas()
            self._forget_withdrawn(left, asked)
            self.advance_high_watermark()
        else:
            self.followers = {}
        return is_leader != was_leader or state.leader_epoch != old_epoch

    def _take_isr(self, isr: tuple[int, ...]) -> None:
        self.isr = self._maximal_isr = isr
        self.pending_isr = None

    def _forget_withdrawn(self, left: Collection[int], asked: PendingIsr | None) -> None:
        """Forget what followers held that left the ISR though this leader had not asked for it.

        They can't be written, or are gone. They would join again at once for what they held before.
        """
        for replica_id in left:
            follower = self.followers.get(replica_id)
            if follower is not None and (asked is None or any(replica_id == each.node_id for each in asked.members)):
                follower.forget()

    def _follow_replicas(self) -> None:
        """Know the followers of the current assignment, and no others."""
        if self._is_sole_replica:
            self.followers = {}
            return
        now_ms = self._terms.clock.monotonic_ms()
        self.followers = {
            replica_id: self.followers.get(replica_id) or FollowerState(now_ms, is_in_sync=replica_id in self.isr)
            for replica_id in self.replicas
            if replica_id != self.node_id
        }

    def fence(self, *, keep_sole: bool = False) -> None:
        """Stop leading until the controller confirms it in a new epoch: another broker may lead by now.

        `keep_sole`: a sole replica keeps its leader; nobody else has its records, so nobody else can be elected.
        """
        if self.is_leader and not (keep_sole and self._is_sole_replica):
            self._fenced_epoch = self.leader_epoch
            self.is_leader = False
            self.followers = {}
            self.pending_isr = None

    @property
    def is_follower(self) -> bool:
        """Whether this replica has a leader to copy from."""
        return self.leader >= 0 and self.leader != self.node_id and not self.unavailable

    def stop(self, reason: ErrorCode) -> None:
        """Stop serving: the topic was deleted or the disk failed."""
        self.unavailable = reason
        self.is_leader = False
        self.followers = {}
        self.pending_isr = None

    def check_available(self) -> None:
        """Raise KafkaError if the replica can't be read, whoever leads the partition."""
        if self.unavailable:
            raise KafkaError(self.unavailable)

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise KafkaError unless this broker is the leader, in the epoch that the client expects (KIP-320)."""
        self._check_epoch(current_leader_epoch)
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_readable(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise KafkaError unless consumers may read here: from the leader, or from a follower of it (KIP-392)."""
        self._check_epoch(current_leader_epoch)
        if not self.is_leader and (not self.is_follower or self.log.is_truncating):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _check_epoch(self, current_leader_epoch: int) -> None:
        self.check_available()
        if current_leader_epoch != NO_EPOCH:
            if current_leader_epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            if current_leader_epoch > self.leader_epoch:
                raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # Writing

    def append(
        self,
        records: memoryview | ValidatedBatch | BatchDraft | None,
        required_acks: int,
        guard: TransactionGuard | None = None,
    ) -> AppendResult:
        """Append one batch as leader; raises KafkaError and changes nothing if the batch is rejected.

        A draft comes from this broker itself, anything else from a client. `guard` lets it start a transaction, once
        the transaction's coordinator has confirmed it. Raises LongCheckError for a batch that must be validated in a
        thread first, see `record_checks`.
        """
        if not isinstance(records, BatchDraft):
            self.check_writable()
        elif not self.is_leader:
            self.check_leader()
        if required_acks == ACKS_ALL and len(self.isr) < self.log.config.min_insync_replicas:
            raise self._not_enough_replicas()
        if records is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a produce request must contain one record batch per partition")
        result = self.log.append_as_leader(records, leader_epoch=self.leader_epoch, guard=guard, on_loop=True)
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

    # Followers

    def check_replica(self, replica_id: int) -> None:
        """Raise KafkaError unless the broker is a follower of this partition, as far as is known here."""
        if replica_id not in self.followers:
            # The follower may know of an assignment that has not arrived here yet; then it has to retry.
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def update_follower(self, replica_id: int, fetch_offset: int, log_start_offset: int, broker_epoch: int) -> bool:
        """A follower, which `check_replica` knows, has fetched; True if the high watermark moved."""
        now_ms = self._terms.clock.monotonic_ms()
        self.followers[replica_id].on_fetch(
            fetch_offset, log_start_offset, broker_epoch, self.log.log_end_offset, now_ms
        )
        return self.advance_high_watermark()

    @property
    def low_watermark(self) -> int:
        """The largest offset that is the start of the log, or below it, in all replicas of the ISR."""
        offset = self.log.log_start_offset
        for replica_id in self._maximal_isr:
            follower = self.followers.get(replica_id)
            if follower is not None:
                offset = min(offset, follower.log_start_offset)
        return offset

    # The ISR

    def propose_expansion(self) -> bool:
        """Ask for the followers that have caught up to join the ISR; True if there is a change to send now.

        One has caught up when its log reaches the high watermark, and what this leader found when it was elected: below
        that, records may be committed that it lacks (KIP-497).
        """
        if not self.is_leader or self.pending_isr is not None:
            return False
        needed_offset = max(self.log.high_watermark, self.leader_epoch_start_offset)
        joining = tuple(
            replica_id
            for replica_id, follower in self.followers.items()
            if replica_id not in self.isr
            and follower.log_end_offset >= needed_offset
            and self._terms.is_eligible(replica_id, follower.broker_epoch)
        )
        if not joining:
            return False
        self._propose(self.isr + joining)
        # From now on they hold back the high watermark: should the controller agree, they are part of the ISR.
        self._maximal_isr = self.isr + joining
        return True

    def propose_shrink(self) -> bool:
        """Ask for the followers to leave the ISR that did not keep up; True if there is a change to send now."""
        if not self.is_leader or self.pending_isr is not None:
            return False
        now_ms, lag_max_ms = self._terms.clock.monotonic_ms(), self._terms.lag_max_ms
        end_offset = self.log.log_end_offset
        kept = tuple(
            replica_id
            for replica_id in self.isr
            if replica_id not in self.followers
            or self.followers[replica_id].is_caught_up(
                end_offset, now_ms, lag_max_ms, seen_ms=self._terms.seen_ms(replica_id)
            )
        )
        if kept == self.isr:
            return False
        # Until the controller has agreed, those who leave count: another leader may be elected among them.
        self._propose(kept)
        return True

    def propose_withdrawal(self) -> bool:
        """Ask to leave the ISR, once this replica can't be written; True if there is a change to send now.

        Whoever leads the partition resigns by it. Only where others are in sync: nobody else has all that is committed.
        """
        is_writable = self.has_room and self.unavailable is not ErrorCode.KAFKA_STORAGE_ERROR
        others = tuple(member for member in self.isr if member != self.node_id)
        if is_writable or self.pending_isr is not None or self.leader < 0 or not 0 < len(others) < len(self.isr):
            return False
        members = tuple(IsrMember(member, self._terms.epoch_of(member)) for member in others)
        self.pending_isr = PendingIsr(members, self.leader_epoch, self.partition_epoch)
        return True

    def _propose(self, isr: Collection[int]) -> None:
        members = []
        for replica_id in isr:
            follower = self.followers.get(replica_id)
            epoch = self._terms.broker_epoch if follower is None else follower.broker_epoch
            members.append(IsrMember(replica_id, epoch))
        self.pending_isr = PendingIsr(tuple(members), self.leader_epoch, self.partition_epoch)

    def decide_isr(
        self, pending: PendingIsr, error: ErrorCode, *, leader_epoch: int = NO_EPOCH, partition_epoch: int = -1
    ) -> IsrOutcome:
        """The controller has answered a change that was asked for: with an error, or with the epochs that hold now.

        Its ISR counts only once an image shows it, together with the ELR and the min.insync.replicas that go with it:
        a leader that knew an older minimum could commit records which an eligible replica outside of the ISR lacks.
        """
        if self.pending_isr is not pending:
            # An image has decided it meanwhile.
            return IsrOutcome.OUTDATED
        outcome = outcome_of(error)
        if outcome is IsrOutcome.DECIDED:
            is_next = leader_epoch == self.leader_epoch and partition_epoch > self.partition_epoch
            return IsrOutcome.DECIDED if is_next else IsrOutcome.OUTDATED
        if outcome is IsrOutcome.REFUSED:
            self._take_isr(self.isr)
            if self.is_leader:
                self.advance_high_watermark()
        return outcome

    # The high watermark

    def advance_high_watermark(self) -> bool:
        """Move the high watermark to the smallest log end offset of the maximal ISR; True if it moved."""
        log = self.log
        end_offset = self.acknowledgeable_end_offset
        if not self._is_sole_replica:
            # The controller counts on the ELR to have all that is committed, whatever minimum it went by (KIP-966).
            if self.elr or len(self.isr) < min(log.config.min_insync_replicas, len(self.replicas)):
                return False
            for replica_id, follower in self.followers.items():
                if follower.log_end_offset < end_offset and (
                    replica_id in self._maximal_isr or self._is_about_to_join(replica_id, follower)
                ):
                    end_offset = follower.log_end_offset
        if end_offset <= log.high_watermark:
            return False
        log.advance_high_watermark(end_offset)
        return True

    def _is_about_to_join(self, replica_id: int, follower: FollowerState) -> bool:
        """Whether a follower outside of the ISR keeps up, so that the high watermark waits for it.

        Otherwise it could never reach the high watermark under constant load, and never join.
        """
        terms = self._terms
        return terms.is_eligible(replica_id, follower.broker_epoch) and follower.is_caught_up(
            self.log.log_end_offset,
            terms.clock.monotonic_ms(),
            terms.lag_max_ms,
            seen_ms=terms.seen_ms(replica_id),
        )

    def waits_for(self, replica_id: int) -> bool:
        """Whether the high watermark waits for this follower, which therefore must not be throttled."""
        follower = self.followers.get(replica_id)
        return replica_id in self._maximal_isr or (
            follower is not None and self._is_about_to_join(replica_id, follower)
        )

    # Reading

    def visible_end_offset(self, replica_id: int, read_committed: bool) -> int:
        """The end of what a reader may see: what is committed for consumers, everything for others."""
        if replica_id != CONSUMER_REPLICA_ID:
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

    def describe(self, diverging_epoch: tuple[int, int] | None = None) -> PartitionRead:
        """What a fetch gets besides records."""
        log = self.log
        return PartitionRead(
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            diverging_epoch=diverging_epoch,
        )

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
        result = self.describe()
        if read_committed:
            result.aborted_transactions = ()
        end_offset = self.visible_end_offset(replica_id, read_committed)
        if fetch_offset >= end_offset or (max_bytes <= 0 and not min_one_batch):
            # The common case of a consumer that is up to date; an offset between the end it may see and the end of
            # the log is not an error: those records will become visible.
            if fetch_offset > log.log_end_offset and not self.is_leader and replica_id == CONSUMER_REPLICA_ID:
                # The leader may have this offset; only the leader knows that nobody has it (KIP-392).
                raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
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
