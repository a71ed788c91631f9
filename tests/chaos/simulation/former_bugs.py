"""Bugs that clusters in the simulation have shown, made again on purpose: each must still be seen.

What always holds: each is what the code did before it was mended, as far as the difference can be planted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from planted import Planting, patched, planted
from tidelog.broker import controller_channel, dispatch, partition_files
from tidelog.broker.handlers import k22_init_producer_id, k62_broker_registration
from tidelog.broker.registration import Registration
from tidelog.broker.request_context import RequestContext
from tidelog.client.errors import NoSuchPartitionError
from tidelog.client.network.cluster import Cluster
from tidelog.client.types import TopicPartition
from tidelog.controller import partition_changes
from tidelog.controller.image import PartitionState
from tidelog.log import LogManager, LogStorageError
from tidelog.log import directory as directory_module
from tidelog.log.txn_guard import TransactionGuards
from tidelog.metadata import MetadataStoreError
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k22_init_producer_id import InitProducerIdResponse
from tidelog.server import server as server_module


@planted
def distrust_a_process_that_registers_again() -> Planting:
    """A broker that had not heard of its last registration counted as crashed."""
    return mock.patch.object(k62_broker_registration, "is_same_process", return_value=False)


@planted
def stop_under_an_old_registration() -> Planting:
    """A broker that was stopped cleanly counted as crashed when its last registration had not been answered."""

    async def learn(self: Registration) -> None:
        return

    return mock.patch.object(Registration, "learn_last_epoch", learn)


@planted
def keep_recovery_points() -> Planting:
    """The recovery point on disk stayed above the end of a log that was truncated."""
    return mock.patch.object(LogManager, "_lower_recovery_point")


@planted
def leave_lost_replicas_offline() -> Planting:
    """A replica whose files were gone at a start stayed offline though another broker led."""
    return mock.patch.object(LogManager, "release")


@planted
def lose_new_directories() -> Planting:
    """The name of a new data directory was not flushed."""

    def make(directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    return patched((directory_module, "make_directory", make), (server_module, "make_directory", make))


@planted
def never_open_again() -> Planting:
    """A log that a full disk had kept closed stayed closed when there was room."""
    real = LogManager._open_log

    def open_log(self: LogManager, *args: Any) -> Any:
        try:
            return real(self, *args)
        except LogStorageError as error:
            raise LogStorageError(str(error)) from error

    return mock.patch.object(LogManager, "_open_log", open_log)


@planted
def fail_without_the_store() -> Planting:
    """Requests that need an absent metadata store were answered with an error that nobody retries after."""

    def as_kafka_error(error: KafkaError | MetadataStoreError) -> KafkaError:
        return error if isinstance(error, KafkaError) else KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))

    class NeverRaisedError(Exception):
        """In place of the error of a store."""

    return patched(
        (controller_channel, "as_kafka_error", as_kafka_error),
        (dispatch, "MetadataStoreError", NeverRaisedError),
    )


@planted
def let_anyone_lead_last() -> Planting:
    """When all replicas had crashed, the last to come back led, whoever had led before."""
    real = partition_changes._without_unsure_member

    def without(state: PartitionState, node_id: int, *, same_disks: bool) -> PartitionState:
        if set(state.isr) | set(state.elr) <= {node_id}:
            return state
        return real(state, node_id, same_disks=same_disks)

    return mock.patch.object(partition_changes, "_without_unsure_member", without)


@planted
def refuse_what_a_marker_revoked() -> Planting:
    """A batch whose confirmation was revoked by a late marker was refused for good."""
    real = TransactionGuards.check

    def check(self: TransactionGuards, *args: Any, **options: Any) -> None:
        try:
            real(self, *args, **options)
        except KafkaError as error:
            if error.code is ErrorCode.NOT_ENOUGH_REPLICAS:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, error.message) from error
            raise

    return mock.patch.object(TransactionGuards, "check", check)


@planted
def hide_partitions_that_move() -> Planting:
    """A broker that a partition moved to hid it, and all behind it, from clients while it made the files."""
    return mock.patch.object(partition_files, "is_new", return_value=True)


@planted
def look_partitions_up_again() -> Planting:
    """A client looked a partition up again that somebody else had had forgotten."""
    real = Cluster.leader

    async def leader(self: Cluster, topic: str, partition: int) -> int:
        wanted = TopicPartition(topic, partition)
        if self.metadata.partition(wanted) is None:
            await self.topic(topic)
            if self.metadata.partition(wanted) is None:
                raise NoSuchPartitionError(f"topic {topic!r} has no partition {partition}")
        return await real(self, topic, partition)

    return mock.patch.object(Cluster, "leader", leader)


@planted
def pass_on_why_there_are_no_ids() -> Planting:
    """Producers were told why the controller gave out no ids, such as STALE_BROKER_EPOCH, which ends them."""

    async def allocate(context: RequestContext) -> InitProducerIdResponse:
        return InitProducerIdResponse(producer_id=await context.services.producer_ids.allocate(), producer_epoch=0)

    return mock.patch.object(k22_init_producer_id, "_allocate", allocate)
