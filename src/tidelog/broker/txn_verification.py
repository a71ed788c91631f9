"""Asks the coordinator of a transaction whether a partition is part of it, before it begins there (KIP-890).

What always holds: a transaction is asked about once for each partition, however many of its batches arrive meanwhile,
and no more once it has begun there; batches that wait are appended in the order in which they came, and none that came
later gets ahead of them; an answer that comes after the transaction was ended opens nothing (`log/txn_guard`). Plain
batches never come here. Who coordinates a transaction, the verifier knows.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.log.txn_guard import NOT_ASKED, TransactionGuard
from tidelog.protocol import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidelog.broker.partition import Partition

TopicPartition = tuple[str, int]

_ABORTABLE_FROM: Final = 11
_EPOCH_BUMP_FROM: Final = 12

_UNREACHABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class TransactionVerifier(Protocol):
    """Whoever reaches the coordinators of transactions."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Awaitable[Mapping[TopicPartition, ErrorCode]]:
        """Whether each partition is part of the producer's open transaction; `add`: make it so (transaction.version 2).

        The errors are those of AddPartitionsToTxn, NONE for partitions that may be written to.
        """
        ...


@dataclass(slots=True)
class BeginningTransaction:
    """A batch that would begin its producer's transaction in a partition, or that waits behind one that would."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    guard: TransactionGuard | None  # None: it goes on with the transaction, and must not begin it
    error: ErrorCode = ErrorCode.NONE
    before: asyncio.Future[None] | None = None  # done once the batch that came before is appended or refused
    is_through: asyncio.Future[None] | None = None

    async def wait_for_turn(self) -> None:
        if self.before is not None:
            await asyncio.shield(self.before)

    def end_turn(self) -> None:
        """It is appended or refused; whoever waits behind it may go on."""
        if self.is_through is not None and not self.is_through.done():
            self.is_through.set_result(None)

    @property
    def name(self) -> TopicPartition:
        return self.partition.topic, self.partition.partition


class TransactionVerification:
    """What is being asked, and of whom."""

    def __init__(self, *, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        # None: no transaction can begin, as there are no coordinators.
        self.verifier: TransactionVerifier | None = None
        self._asking: dict[TransactionGuard, asyncio.Task[Mapping[TopicPartition, ErrorCode]]] = {}
        # The last batch of each producer that waits for its turn in a partition.
        self._waiting: dict[tuple[TopicPartition, int], asyncio.Future[None]] = {}

    def begin(
        self, partition: Partition, producer_id: int, producer_epoch: int, first_sequence: int
    ) -> BeginningTransaction | None:
        """What has to be confirmed before a batch may be appended; None when it goes on with a transaction.

        `first_sequence`: the lowest with which the transaction may begin here, as far as the batch tells.
        """
        guard: TransactionGuard | None = NOT_ASKED
        if partition.log.has_open_transaction(producer_id, producer_epoch):
            if ((partition.topic, partition.partition), producer_id) not in self._waiting:
                return None
            guard = None
        elif self._is_enabled:
            guard = partition.log.begin_verification(producer_id, producer_epoch, first_sequence)
        return BeginningTransaction(partition, producer_id, producer_epoch, guard)

    def take_turn(self, item: BeginningTransaction) -> None:
        """Let the batch wait behind those of its producer that wait already, and others behind it until `end_turn`."""
        key = item.name, item.producer_id
        item.before = self._waiting.get(key)
        item.is_through = self._waiting[key] = asyncio.get_running_loop().create_future()
        item.is_through.add_done_callback(functools.partial(self._on_through, key))

    def _on_through(self, key: tuple[TopicPartition, int], is_through: asyncio.Future[None]) -> None:
        if self._waiting.get(key) is is_through:
            del self._waiting[key]

    async def confirm(self, transactional_id: str, begun: Sequence[BeginningTransaction], *, add: bool) -> None:
        """Ask about all of them; each has its error then."""
        unasked: dict[tuple[int, int], list[BeginningTransaction]] = {}
        asked = [(item, item.guard) for item in begun if item.guard is not None and item.guard is not NOT_ASKED]
        for item, guard in asked:
            if guard not in self._asking:
                unasked.setdefault((item.producer_id, item.producer_epoch), []).append(item)
        for (producer_id, producer_epoch), items in unasked.items():
            ask = self._ask(transactional_id, producer_id, producer_epoch, [item.name for item in items], add)
            # Other requests may come to wait for it, so it goes on when the connection of this one is gone.
            task = asyncio.get_running_loop().create_task(ask)
            task.add_done_callback(functools.partial(self._on_asked, items))
            for item in items:
                if item.guard is not None:
                    self._asking[item.guard] = task
        for item, task in [(item, self._asking[guard]) for item, guard in asked]:
            answers = await asyncio.shield(task)
            item.error = answers.get(item.name, ErrorCode.INVALID_TXN_STATE)

    def _on_asked(self, items: Sequence[BeginningTransaction], task: asyncio.Task[object]) -> None:
        for item in items:
            if item.guard is not None:
                self._asking.pop(item.guard, None)

    async def _ask(
        self, transactional_id: str, producer_id: int, producer_epoch: int, names: list[TopicPartition], add: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        if self.verifier is None:
            return {}
        try:
            return await self.verifier.verify(transactional_id, producer_id, producer_epoch, names, add)
        except KafkaError as error:
            return dict.fromkeys(names, error.code)


def first_sequence(base_sequence: int, produce_version: int) -> int:
    """With which sequence the transaction of a batch begins: 0 where every transaction has an epoch of its own."""
    return 0 if produce_version >= _EPOCH_BUMP_FROM else base_sequence


def adds_partitions(produce_version: int) -> bool:
    """Whether producers of this version leave it to the broker to add partitions to their transactions."""
    return produce_version >= _EPOCH_BUMP_FROM


def produce_error(error: ErrorCode, produce_version: int) -> KafkaError | None:
    """What to tell a producer whose transaction could not be confirmed: an error that its version knows how to take."""
    if not error:
        return None
    message = f"the transaction could not be confirmed: {error.name}"
    if error is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, message)
    if error in _UNREACHABLE or (error is ErrorCode.CONCURRENT_TRANSACTIONS and produce_version < _EPOCH_BUMP_FROM):
        # Every producer sends again after this one.
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message)
    if error is ErrorCode.TRANSACTION_ABORTABLE and produce_version < _ABORTABLE_FROM:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, message)
    return KafkaError(error, message)
