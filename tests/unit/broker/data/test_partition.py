"""A partition's leadership, acknowledgements and high watermark, over a log that only counts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from tidelog.broker.follower_state import ReplicationTerms
from tidelog.broker.partition import ACKS_ALL, ACKS_LEADER, Partition
from tidelog.common.clock import VirtualClock
from tidelog.controller.image import PartitionState
from tidelog.log import AppendResult, LogConfig, LogStorageError, PartitionLog
from tidelog.log.recovery import create_log
from tidelog.log.txn_guard import TransactionGuard
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import encode_batch

NODE = 1
BATCH = memoryview(bytearray(61))


@dataclass
class CountingLog:
    """As much of a log as a partition's decisions look at; an append adds one record."""

    config: LogConfig = field(default_factory=LogConfig)
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    flushed_offset: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    cannot_write: bool = False

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    @property
    def flush_is_due(self) -> bool:
        return self.log_end_offset - self.flushed_offset >= self.config.flush_messages

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        guard: TransactionGuard | None,
        on_loop: bool,
    ) -> AppendResult:
        self.assign_epoch(leader_epoch, self.log_end_offset)
        self.log_end_offset += 1
        offset = self.log_end_offset - 1
        return AppendResult(offset, offset, -1, self.log_start_offset, False)

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        if self.cannot_write:
            raise LogStorageError("the disk is full")
        if leader_epoch > self.latest_epoch:
            self.epochs.append((leader_epoch, start_offset))

    def advance_high_watermark(self, offset: int) -> None:
        assert self.high_watermark < offset <= self.log_end_offset
        self.high_watermark = offset

    def set_log_start_offset(self, offset: int) -> None:
        self.log_start_offset = offset

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        known = [entry for entry in self.epochs if entry[0] <= epoch]
        if not known or epoch > self.epochs[-1][0]:
            return -1, -1
        later = [start for number, start in self.epochs if number > epoch]
        return known[-1][0], later[0] if later else self.log_end_offset


def make(*replicas: int, isr: tuple[int, ...] | None = None, log: CountingLog | None = None) -> Partition:
    counting = CountingLog() if log is None else log
    partition = Partition("t", 0, uuid.uuid4(), cast(PartitionLog, counting), NODE, ReplicationTerms(VirtualClock()))
    partition.apply(PartitionState(replicas, replicas if isr is None else isr, NODE, leader_epoch=3, partition_epoch=5))
    return partition


def counting_log(partition: Partition) -> CountingLog:
    return cast(CountingLog, partition.log)


def state(partition: Partition) -> PartitionState:
    return PartitionState(
        partition.replicas, partition.isr, partition.leader, partition.leader_epoch, partition.partition_epoch
    )


def fails(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


def test_a_new_leadership_commits_what_its_log_holds() -> None:
    partition = make(NODE, log=CountingLog(log_end_offset=7, flushed_offset=7))
    assert partition.log.high_watermark == 7
    # The same leadership with another ISR is no new one.
    partition.append(BATCH, ACKS_LEADER)
    assert not partition.apply(replace(state(partition), partition_epoch=6))
    assert partition.leader_epoch_start_offset == 7
    assert partition.apply(replace(state(partition), leader_epoch=4, partition_epoch=7))
    assert partition.leader_epoch_start_offset == 8


@pytest.mark.parametrize("replicas", [(NODE,), (NODE, 2)])
def test_an_epoch_is_written_down_with_the_first_append(replicas: tuple[int, ...]) -> None:
    """A broker that takes over thousands of partitions does not write thousands of files at once."""
    partition = make(*replicas, log=CountingLog(log_end_offset=7))
    assert counting_log(partition).epochs == []
    assert partition.end_offset_for_epoch(3) == (3, 7)
    counting_log(partition).cannot_write = True
    with fails(ErrorCode.KAFKA_STORAGE_ERROR):
        partition.append(BATCH, ACKS_LEADER)
    counting_log(partition).cannot_write = False
    partition.append(BATCH, ACKS_LEADER)
    assert counting_log(partition).epochs == [(3, 7)]


@pytest.mark.parametrize("written_in", [(), (0, 0, 2)])
def test_an_epoch_is_told_before_its_first_append(tmp_path: Path, written_in: tuple[int, ...]) -> None:
    """36: nobody can tell whether the log has written down the epoch of its leader yet."""

    def lead(name: str) -> Partition:
        log = create_log(name, 0, tmp_path / name, uuid.uuid4(), LogConfig(), VirtualClock())
        for epoch in written_in:
            log.append_as_leader(memoryview(encode_batch([(b"k", b"v", (), 0)], now_ms=0)), leader_epoch=epoch)
        partition = Partition(name, 0, uuid.uuid4(), log, NODE, ReplicationTerms(VirtualClock()))
        partition.apply(PartitionState((NODE,), (NODE,), NODE, leader_epoch=4, partition_epoch=4))
        return partition

    def told(partition: Partition) -> list[object]:
        ends = [partition.end_offset_for_epoch(epoch) for epoch in range(-1, 6)]
        epochs = [partition.epoch_for_offset(offset) for offset in range(4)]
        return [ends, epochs, partition.earliest_offset(), partition.latest_offset(-1, False)]

    lazy, eager = lead("lazy"), lead("eager")
    eager.log.assign_epoch(4, len(written_in))
    checkpoint = tmp_path / "lazy" / "leader-epoch-checkpoint"
    assert "\n4 " not in checkpoint.read_text()
    assert told(lazy) == told(eager)
    for partition in (lazy, eager):
        partition.append(memoryview(encode_batch([(b"k", b"v", (), 0)], now_ms=0)), ACKS_LEADER)
    assert f"\n4 {len(written_in)}\n" in checkpoint.read_text()
    assert told(lazy) == told(eager)


def test_an_older_state_changes_nothing() -> None:
    partition = make(NODE)
    assert not partition.apply(replace(state(partition), leader=2, leader_epoch=9, partition_epoch=5))
    assert partition.is_leader


def test_a_single_replica_commits_at_once() -> None:
    partition = make(NODE)
    result = partition.append(BATCH, ACKS_ALL)
    assert partition.log.high_watermark == 1
    assert partition.acknowledgement(result.last_offset + 1, 3, ACKS_ALL) is ErrorCode.NONE


def test_the_high_watermark_is_the_smallest_end_in_the_isr() -> None:
    partition = make(NODE, 2, 3, isr=(NODE, 2))
    partition.append(BATCH, ACKS_ALL)
    partition.append(BATCH, ACKS_ALL)
    assert partition.log.high_watermark == 0
    # Replica 3 is not in the ISR: nobody waits for it.
    assert not partition.update_follower(3, 0, 0, 1)
    assert partition.acknowledgement(1, 3, ACKS_LEADER) is ErrorCode.NONE
    assert partition.acknowledgement(1, 3, ACKS_ALL) is None
    assert partition.update_follower(2, 1, 0, 1)
    assert partition.log.high_watermark == 1
    assert partition.acknowledgement(1, 3, ACKS_ALL) is ErrorCode.NONE
    assert partition.acknowledgement(2, 3, ACKS_ALL) is None
    assert not partition.update_follower(2, 0, 0, 1)
    assert partition.log.high_watermark == 1


def test_an_isr_that_shrank_no_longer_holds_back() -> None:
    partition = make(NODE, 2)
    partition.append(BATCH, ACKS_LEADER)
    assert partition.log.high_watermark == 0
    partition.apply(replace(state(partition), isr=(NODE,), partition_epoch=6))
    assert partition.log.high_watermark == 1


def test_below_min_insync_replicas_nothing_is_committed() -> None:
    partition = make(NODE, 2, 3, isr=(NODE, 2), log=CountingLog(LogConfig(min_insync_replicas=2)))
    partition.append(BATCH, ACKS_ALL)
    partition.apply(replace(state(partition), isr=(NODE,), partition_epoch=6))
    assert partition.log.high_watermark == 0
    with fails(ErrorCode.NOT_ENOUGH_REPLICAS):
        partition.append(BATCH, ACKS_ALL)
    assert partition.log.log_end_offset == 1
    partition.append(BATCH, ACKS_LEADER)
    assert partition.log.high_watermark == 0


def test_min_insync_replicas_above_the_replication_factor_still_serves_acks_1() -> None:
    partition = make(NODE, log=CountingLog(LogConfig(min_insync_replicas=2)))
    with fails(ErrorCode.NOT_ENOUGH_REPLICAS):
        partition.append(BATCH, ACKS_ALL)
    partition.append(BATCH, ACKS_LEADER)
    assert partition.log.high_watermark == 1


def test_an_isr_that_shrank_after_the_append_is_told() -> None:
    partition = make(NODE, 2, 3, isr=(NODE, 2), log=CountingLog(LogConfig(min_insync_replicas=2)))
    partition.append(BATCH, ACKS_ALL)
    partition.update_follower(2, 1, 0, 1)
    partition.apply(replace(state(partition), isr=(NODE,), partition_epoch=6))
    assert partition.acknowledgement(1, 3, ACKS_ALL) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_a_new_leadership_forgets_what_followers_had() -> None:
    partition = make(NODE, 2)
    partition.append(BATCH, ACKS_LEADER)
    partition.update_follower(2, 1, 0, 1)
    partition.apply(replace(state(partition), leader_epoch=4, partition_epoch=6))
    partition.append(BATCH, ACKS_LEADER)
    assert partition.followers[2].log_end_offset == -1
    assert partition.log.high_watermark == 1
    assert partition.acknowledgement(1, 3, ACKS_ALL) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_strangers_are_no_followers() -> None:
    partition = make(NODE, 2)
    partition.check_replica(2)
    for replica_id in (NODE, 7):
        with fails(ErrorCode.UNKNOWN_LEADER_EPOCH):
            partition.check_replica(replica_id)


def test_who_does_not_lead_refuses() -> None:
    partition = make(NODE, 2)
    assert partition.apply(replace(state(partition), leader=2, leader_epoch=4, partition_epoch=6))
    with fails(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        partition.append(BATCH, ACKS_ALL)
    with fails(ErrorCode.FENCED_LEADER_EPOCH):
        partition.check_leader(3)
    with fails(ErrorCode.UNKNOWN_LEADER_EPOCH):
        partition.check_leader(5)
    with fails(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        partition.check_leader(4)


@pytest.mark.parametrize("reason", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_stopped_partition_says_why(reason: ErrorCode) -> None:
    partition = make(NODE)
    partition.stop(reason)
    with fails(reason):
        partition.append(BATCH, ACKS_ALL)
    with fails(reason):
        partition.check_leader(3)
    assert partition.acknowledgement(1, 3, ACKS_LEADER) is reason
    # Whatever the controller decides meanwhile, it stays stopped.
    partition.apply(replace(state(partition), leader_epoch=4, partition_epoch=6))
    with fails(reason):
        partition.append(BATCH, ACKS_ALL)


def test_flush_messages_1_acknowledges_what_is_on_disk_only() -> None:
    partition = make(NODE, log=CountingLog(LogConfig(flush_messages=1)))
    partition.append(BATCH, ACKS_ALL)
    assert partition.log.flush_is_due
    assert partition.log.high_watermark == 0
    assert partition.acknowledgement(1, 3, ACKS_LEADER) is None
    assert partition.acknowledgement(1, 3, ACKS_ALL) is None
    counting_log(partition).flushed_offset = 1
    partition.append(BATCH, ACKS_ALL)
    assert partition.log.high_watermark == 1
    assert partition.acknowledgement(1, 3, ACKS_ALL) is ErrorCode.NONE
    assert partition.acknowledgement(2, 3, ACKS_LEADER) is None


def test_flush_messages_n_leaves_at_most_n_minus_1_acknowledged_messages_unflushed() -> None:
    partition = make(NODE, log=CountingLog(LogConfig(flush_messages=3)))
    for _ in range(2):
        partition.append(BATCH, ACKS_ALL)
    assert not partition.log.flush_is_due
    assert partition.log.high_watermark == 2
    for _ in range(3):
        partition.append(BATCH, ACKS_ALL)
        assert partition.log.flush_is_due
        assert partition.log.high_watermark == 2
    counting_log(partition).flushed_offset = 4
    assert partition.advance_high_watermark()
    assert partition.log.high_watermark == 5


def test_an_append_needs_a_batch() -> None:
    with fails(ErrorCode.INVALID_RECORD):
        make(NODE).append(None, ACKS_ALL)


def test_divergence_is_found_by_epoch_and_end() -> None:
    log = CountingLog(log_end_offset=10, flushed_offset=10, epochs=[(1, 0), (2, 6)])
    partition = make(NODE, log=log)
    assert partition.find_divergence(10, 3) is None
    assert partition.find_divergence(6, 1) is None
    assert partition.find_divergence(7, 1) == (1, 6)
    assert partition.find_divergence(11, 3) == (3, 10)
    with fails(ErrorCode.OFFSET_OUT_OF_RANGE):
        partition.find_divergence(0, 9)
    with fails(ErrorCode.OFFSET_OUT_OF_RANGE):
        partition.find_divergence(0, 0)


def test_latest_waits_for_the_high_watermark_of_a_new_leader() -> None:
    log = CountingLog(log_end_offset=10, flushed_offset=10, high_watermark=4)
    partition = make(NODE, 2, log=log)
    with fails(ErrorCode.OFFSET_NOT_AVAILABLE):
        partition.latest_offset(-1, False)
    assert partition.latest_offset(2, False).offset == 10
    partition.update_follower(2, 10, 0, 1)
    assert partition.latest_offset(-1, False).offset == 10
    assert partition.latest_offset(-1, False).leader_epoch == 3


def test_records_are_deleted_up_to_the_high_watermark_only() -> None:
    partition = make(NODE, 2, log=CountingLog(log_end_offset=10, flushed_offset=10, high_watermark=4))
    assert partition.delete_records_before(3) == 3
    assert partition.delete_records_before(1) == 3
    with fails(ErrorCode.OFFSET_OUT_OF_RANGE):
        partition.delete_records_before(5)
    with fails(ErrorCode.OFFSET_OUT_OF_RANGE):
        partition.delete_records_before(-2)
    assert partition.delete_records_before(-1) == 4
    counting_log(partition).config = LogConfig(cleanup_policy=frozenset({"compact"}))
    with fails(ErrorCode.POLICY_VIOLATION):
        partition.delete_records_before(-1)
