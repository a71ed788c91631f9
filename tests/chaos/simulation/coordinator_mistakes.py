"""Mistakes in transactions and groups, to be made on purpose: see `cluster_mistakes`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from cluster_workload import TARGET
from planted import Planting, patched, planted
from tidelog.broker import group_loading, group_service, txn_service
from tidelog.broker.coordinator_service import CoordinatorService, Held
from tidelog.broker.partition import Partition
from tidelog.broker.txn_markers import ClusterMarkerWriter, LocalMarkerWriter, MarkerErrors
from tidelog.coordinator import txn_completion
from tidelog.coordinator.actions import Action, Now, TopicPartition, TxnMarker
from tidelog.coordinator.classic_group import ClassicGroup
from tidelog.coordinator.consumer_group import ConsumerGroup
from tidelog.coordinator.offset_requests import OffsetRequests
from tidelog.coordinator.transaction import Transaction, TransactionState
from tidelog.coordinator.txn_completion import TransactionCompletion
from tidelog.coordinator.txn_requests import TransactionRequests
from tidelog.coordinator.txn_state import HeldTransaction
from tidelog.log import PartitionLog
from tidelog.log.producer_state import ProducerState
from tidelog.protocol import ErrorCode

_LATE_S = 0.5
_PARTITIONS = 3


# Transactions


@planted
def show_open_transactions() -> Planting:
    """read_committed readers are shown what is not decided: the last stable offset is the high watermark."""
    return mock.patch.object(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark))


@planted
def list_no_aborted_transactions() -> Planting:
    """Readers are not told which transactions were aborted."""
    return mock.patch.object(PartitionLog, "aborted_in", return_value=[])


@planted
def forget_a_marker() -> Planting:
    """One partition of a transaction gets no marker."""
    real = TransactionCompletion.start

    def start(self: TransactionCompletion, held: HeldTransaction, now: Now) -> list[Action]:
        assert held.transaction is not None
        partitions = held.transaction.partitions
        if len(partitions) < 2:
            return real(self, held, now)
        held.unmarked = frozenset(sorted(partitions)[1:])
        held.retry_ms = 0.0
        return self._continue(held, now)

    return mock.patch.object(TransactionCompletion, "start", start)


@planted
def mark_another_partition() -> Planting:
    """Markers for a partition are written to its neighbour."""
    real = LocalMarkerWriter._write

    def write(self: LocalMarkerWriter, marker: TxnMarker, name: TopicPartition, pending: list[Any]) -> ErrorCode:
        other = (name[0], (name[1] + 1) % _PARTITIONS) if name[0] == TARGET else name
        known = len(pending)
        error = real(self, marker, other, pending)
        for append in pending[known:]:
            append.response = name
        return error

    return mock.patch.object(LocalMarkerWriter, "_write", write)


@planted
def repeat_markers_later() -> Planting:
    """Each marker comes a second time, late, and is taken for one of the transaction that is open then."""
    real = ClusterMarkerWriter.write

    def write(
        self: ClusterMarkerWriter, marker: TxnMarker, partitions: Sequence[TopicPartition]
    ) -> MarkerErrors | Awaitable[MarkerErrors]:
        async def again() -> None:
            await asyncio.sleep(_LATE_S)
            answer = real(self, marker, partitions)
            if isinstance(answer, Awaitable):
                await answer

        task = asyncio.get_running_loop().create_task(again())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return real(self, marker, partitions)

    return patched((ClusterMarkerWriter, "write", write), (ProducerState, "check_marker", lambda *args, **kw: None))


@planted
def commit_what_was_aborted() -> Planting:
    """Every transaction ends in a commit."""
    real = TxnMarker

    def marker(*args: Any, **fields: Any) -> TxnMarker:
        return real(*args, **(fields | {"committed": True}))

    return mock.patch.object(txn_completion, "TxnMarker", marker)


@planted
def decide_before_writing() -> Planting:
    """A producer is told that its transaction is committed before the decision is in the log."""
    real = TransactionCompletion.decide

    def decide(
        self: TransactionCompletion, held: HeldTransaction, prepared: Transaction, on_decided: Any, on_refused: Any
    ) -> list[Action]:
        actions = real(self, held, prepared, lambda decided: [], lambda error: [])
        return [*on_decided(prepared), *actions]

    return mock.patch.object(TransactionCompletion, "decide", decide)


@planted
def count_offsets_of_aborted_transactions() -> Planting:
    """Offsets that were committed in a transaction count though it was aborted."""
    real = OffsetRequests.end_transaction

    def end(self: OffsetRequests, producer_id: int, *, committed: bool) -> list[Action]:
        return real(self, producer_id, committed=True)

    return mock.patch.object(OffsetRequests, "end_transaction", end)


@planted
def let_zombies_write() -> Planting:
    """Epochs of producers are not compared: an application that was replaced goes on with its transaction."""
    real_initialize = Transaction.initialize

    def initialize(self: Transaction, timeout_ms: int, now_ms: int, **options: bool) -> Transaction:
        renewed = copy.copy(real_initialize(self, timeout_ms, now_ms, **options))
        object.__setattr__(renewed, "producer_epoch", self.producer_epoch)
        return renewed

    def fence(self: Transaction, now_ms: int, *, last_producer_epoch: int = -1) -> Transaction:
        fenced = copy.copy(real_fence(self, now_ms, last_producer_epoch=last_producer_epoch))
        object.__setattr__(fenced, "producer_epoch", self.producer_epoch)
        return fenced

    real_fence = Transaction.fence
    return patched((Transaction, "initialize", initialize), (Transaction, "fence", fence))


@planted
def add_no_partitions() -> Planting:
    """A coordinator says that it has noted which partitions a transaction writes to, and has only noted the first."""
    real = Transaction.add

    def add(self: Transaction, partitions: Iterable[TopicPartition], *args: int) -> Transaction:
        is_ongoing = self.state is TransactionState.ONGOING
        return real(self, () if is_ongoing else sorted(partitions)[:1], *args)

    def verify(
        self: TransactionRequests, transactional_id: str, producer: Any, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(partitions, ErrorCode.NONE)

    return patched((Transaction, "add", add), (TransactionRequests, "verify_partitions", verify))


# Coordinators that move


@planted
def serve_before_loading() -> Planting:
    """A coordinator answers before it has read its log."""
    real = CoordinatorService._load

    def load(self: CoordinatorService[Any], partition: Partition) -> None:
        real(self, partition)
        self._held[partition.partition].is_loaded = True

    return mock.patch.object(CoordinatorService, "_load", load)


@planted
def serve_after_losing_the_log() -> Planting:
    """A coordinator goes on answering once another broker leads its log."""
    real = CoordinatorService._on_leadership

    def on_leadership(self: CoordinatorService[Any], partition: Partition) -> None:
        if partition.is_leader or partition.unavailable:
            real(self, partition)

    return mock.patch.object(CoordinatorService, "_on_leadership", on_leadership)


@planted
def load_only_what_was_committed() -> Planting:
    """A new coordinator reads its log up to the high watermark it knows, which lags behind what others committed."""
    real = group_loading.load_shard

    async def load(shard: Any, partition: Partition, buffer_bytes: int) -> int:
        log = partition.log
        end_offset = max(log.high_watermark, log.log_start_offset)
        seen = SimpleNamespace(log_start_offset=log.log_start_offset, log_end_offset=end_offset, read=log.read)
        return await real(shard, cast(Partition, SimpleNamespace(log=seen)), buffer_bytes)

    return patched((group_service, "load_shard", load), (txn_service, "load_shard", load))


# Groups


@planted
def ignore_generations() -> Planting:
    """Whoever was a member once may commit offsets."""
    return patched(
        (ClassicGroup, "check_offset_commit", lambda *args: ErrorCode.NONE),
        (ConsumerGroup, "check_offset_commit", lambda *args: ErrorCode.NONE),
    )


@planted
def give_away_what_is_owned() -> Planting:
    """A partition is assigned before its owner has given it up."""
    return mock.patch.object(ConsumerGroup, "is_free", return_value=True)


@planted
def answer_commits_without_writing() -> Planting:
    """A commit is acknowledged before it is in the log."""
    real = CoordinatorService._write

    def write(self: CoordinatorService[Any], held: Held[Any], draft: Any, decided: Any, now: Now, *rest: Any) -> Any:
        if self.topic != "__consumer_offsets":
            return real(self, held, draft, decided, now, *rest)
        answered = decided(ErrorCode.NONE, 0, now)
        return [*answered, *real(self, held, draft, lambda *args: [], now, *rest)]

    return mock.patch.object(CoordinatorService, "_write", write)
