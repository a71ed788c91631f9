"""Runs the transaction coordinators of this broker: a shard for each partition of __transaction_state that it leads.

What always holds: what `coordinator_service` says about all coordinators. A MarkerWriter writes the markers and reports
the outcome to the shard that asked for them; producer ids come from the broker's allocator. Partitions ask this service
whether a transaction may start in them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.coordinator_service import KEY_CHARACTERS_MAX, CoordinatorService, Held
from tidelog.broker.group_loading import load_shard
from tidelog.broker.internal_topics import replication_factor
from tidelog.broker.partition import Partition
from tidelog.broker.txn_markers import MarkerErrors, MarkerWriter
from tidelog.broker.txn_verification import Answers
from tidelog.controller.requests import NewTopic
from tidelog.coordinator.actions import Action, AllocateProducerId, Now, SendMarkers, TopicPartition
from tidelog.coordinator.memory import MemoryBudget
from tidelog.coordinator.transaction import NO_PRODUCER_ID, TRANSACTION_VERSION_2, ProducerIdentity
from tidelog.coordinator.txn_requests import AddPartitions
from tidelog.coordinator.txn_shard import TransactionShard
from tidelog.coordinator.txn_state import TransactionConfig
from tidelog.metadata.store import MetadataStoreError
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import Compression

if TYPE_CHECKING:
    from tidelog.broker.producer_ids import ProducerIdAllocator
    from tidelog.broker.replica_manager import ReplicaManager
    from tidelog.broker.topic_creation import TopicCreation
    from tidelog.common.clock import Clock
    from tidelog.common.settings import Settings
    from tidelog.controller.cluster_view import ClusterView
    from tidelog.controller.image import ClusterImage

logger = logging.getLogger(__name__)

TRANSACTION_TOPIC: Final = "__transaction_state"

_COMMIT_TIMEOUT_MS: Final = 30_000
"""How long a write may be undecided: Kafka takes its request.timeout.ms, of this default."""

_SETTINGS: Final = (
    "tidelog.transaction.coordinator.max.bytes",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    "transaction.max.timeout.ms",
    "transaction.remove.expired.transaction.cleanup.interval.ms",
    "transactional.id.expiration.ms",
)


class AnswerForEach:
    """The answer about all of these partitions, for each of them; nothing goes on when nobody waits for it."""

    __slots__ = ("_added", "_partitions")

    def __init__(self, added: asyncio.Future[ErrorCode], partitions: Sequence[TopicPartition]) -> None:
        self._added = added
        self._partitions = partitions

    def __await__(self) -> Generator[Any, None, Answers]:
        error = yield from self._added.__await__()
        return dict.fromkeys(self._partitions, error)


class TransactionService(CoordinatorService[TransactionShard]):
    """The coordinators of all transactional ids whose partition this broker leads."""

    topic = TRANSACTION_TOPIC
    noun = "transactions"

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        cluster: ClusterView,
        creation: TopicCreation,
        replicas: ReplicaManager,
        producer_ids: ProducerIdAllocator,
        markers: MarkerWriter,
    ) -> None:
        """Create it on the running event loop."""
        super().__init__(
            clock=clock,
            cluster=cluster,
            creation=creation,
            replicas=replicas,
            commit_timeout_ms=_COMMIT_TIMEOUT_MS,
            # As in Kafka: a compressed log would be slower to load, and these records are small.
            compression=Compression.NONE,
        )
        self._settings = settings
        self._config = TransactionConfig(
            transaction_two_phase_commit_enable=settings.get_bool("transaction.two.phase.commit.enable"),
            **{name.replace(".", "_"): settings.get_int(name) for name in _SETTINGS},
        )
        self._memory = MemoryBudget(self._config.tidelog_transaction_coordinator_max_bytes)
        self._load_buffer_bytes = settings.get_int("transaction.state.log.load.buffer.size")
        self._producer_ids = producer_ids
        self._markers = markers
        self._allocating: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._allocating:
            task.cancel()
        await super().close()

    # Requests

    def ask(self, transactional_id: str, ask: Callable[[TransactionShard, Now, int], list[Action]]) -> Any:
        """Send a request to the id's shard; returns its answer or a future. Raises KafkaError as `shard_of` does."""
        return self._submit(transactional_id, ask)

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        client_version: int,
    ) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Add partitions to the producer's transaction, which starts with the first one; raises KafkaError."""
        request = AddPartitions(transactional_id, producer, frozenset(partitions), client_version)
        answer: ErrorCode | asyncio.Future[ErrorCode]
        answer = self._submit(
            transactional_id, lambda shard, now, exchange: shard.add_partitions(request, now, exchange)
        )
        return answer

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Answers | Awaitable[Answers]:
        """Whether each partition is part of the producer's open transaction; `add` adds it. Raises KafkaError."""
        if self.topic not in self._cluster.image.topics:
            # Nobody has looked for a coordinator yet, so no producer has a transaction.
            return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        producer = ProducerIdentity(producer_id, producer_epoch)
        if not add:
            return self.shard_of(transactional_id).verify_partitions(transactional_id, producer, partitions)
        added = self.add_partitions(transactional_id, producer, partitions, TRANSACTION_VERSION_2)
        return dict.fromkeys(partitions, added) if isinstance(added, ErrorCode) else AnswerForEach(added, partitions)

    def _find(self, key: str) -> Held[TransactionShard]:
        if not key or len(key) > KEY_CHARACTERS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty, or too long to be stored")
        return super()._find(key)

    # What shards ask for

    def _perform(self, held: Held[TransactionShard], action: Action, now: Now) -> list[Action]:
        if isinstance(action, AllocateProducerId):
            task = self._loop.create_task(self._allocate(held, action.token))
            self._allocating.add(task)
            task.add_done_callback(self._allocating.discard)
            return []
        if isinstance(action, SendMarkers):
            # After the response to the producer that ended the transaction, which is sent at the end of this turn of
            # the loop; its next request comes in a later turn.
            self._loop.call_soon(self._send_markers, held, action)
            return []
        return super()._perform(held, action, now)

    def _send_markers(self, held: Held[TransactionShard], action: SendMarkers) -> None:
        if not held.is_active:
            return  # their new coordinator sends them
        written = self._markers.write(action.marker, action.partitions)
        if isinstance(written, Awaitable):
            self._start(self._wait_for_markers(held, action.token, written))
        else:
            self._run(held, held.shard.on_markers_written(action.token, written, self._now()))

    async def _allocate(self, held: Held[TransactionShard], token: int) -> None:
        producer_id, code = NO_PRODUCER_ID, ErrorCode.NONE
        try:
            producer_id = await self._producer_ids.allocate()
        except (KafkaError, MetadataStoreError) as error:
            logger.warning("could not allocate a producer id: %s", error)
            # Producers retry with the same coordinator after this error.
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._run(held, held.shard.on_producer_id(token, producer_id, code, self._now()))

    async def _wait_for_markers(
        self, held: Held[TransactionShard], token: int, written: Awaitable[MarkerErrors]
    ) -> None:
        errors = await written
        if held.is_active:
            self._run(held, held.shard.on_markers_written(token, errors, self._now()))

    # Its topic

    def _new_topic(self, image: ClusterImage) -> NewTopic:
        settings = self._settings
        factor = replication_factor("transaction.state.log.replication.factor", settings, image)
        min_isr = settings.get_int("transaction.state.log.min.isr")
        if not settings.is_set("transaction.state.log.min.isr"):
            min_isr = min(min_isr, factor)
        return NewTopic(
            TRANSACTION_TOPIC,
            partitions=settings.get_int("transaction.state.log.num.partitions"),
            replication_factor=factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(min_isr),
                "segment.bytes": str(settings.get_int("transaction.state.log.segment.bytes")),
                "unclean.leader.election.enable": "false",
            },
        )

    def _make_shard(self, partition: Partition) -> TransactionShard:
        return TransactionShard(partition.partition, partition.leader_epoch, self._config, self._memory)

    async def _replay(self, shard: TransactionShard, partition: Partition) -> int:
        return await load_shard(shard, partition, self._load_buffer_bytes)
