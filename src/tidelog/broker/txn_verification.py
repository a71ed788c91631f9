"""Asks a transaction's coordinator whether a partition is part of it, before the transaction starts there (KIP-890).

What always holds: there is one question per transaction and partition, however many of its batches arrive in the
meantime, and none once the transaction has started there. Waiting batches are appended in the order of their arrival,
and later ones do not overtake them. An answer that arrives after the transaction has ended opens nothing
(`log/txn_guard`). Non-transactional batches never come here. The verifier knows who coordinates a transaction.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.broker.arrival_order import ArrivalOrder, Place
from tidelog.common.light_dataclass import dataclass
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


Answers = Mapping[TopicPartition, ErrorCode]


class TransactionVerifier(Protocol):
    """Something that can reach transaction coordinators."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Answers | Awaitable[Answers]:
        """Whether each partition is part of the producer's open transaction; `add`: add it (transaction.version 2).

        The errors are those of AddPartitionsToTxn, NONE for partitions that the producer may write to. A coordinator
        on this broker answers at once if it can.
        """
        ...


@dataclass(slots=True)
class BeginningTransaction:
    """A batch that would start its producer's transaction in a partition, or that waits behind one that would."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    guard: TransactionGuard | None  # None: it goes on with the transaction, and must not begin it
    error: ErrorCode = ErrorCode.NONE
    turn: Place | None = None  # among the batches of its producer that wait

    async def wait_for_turn(self) -> None:
        if self.turn is not None:
            await self.turn.wait()

    def end_turn(self) -> None:
        """It has been appended or refused; the next one may continue."""
        if self.turn is not None:
            self.turn.end()

    @property
    def name(self) -> TopicPartition:
        return self.partition.topic, self.partition.partition


class TransactionVerification:
    """The questions that are pending."""

    def __init__(self, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        # None: no transaction can start, because there are no coordinators.
        self.verifier: TransactionVerifier | None = None
        self._asking: dict[TransactionGuard, asyncio.Task[Answers]] = {}
        # Of the batches of each producer that wait in a partition.
        self._turns = ArrivalOrder()

    def begin(
        self, partition: Partition, producer_id: int, producer_epoch: int, first_sequence: int
    ) -> BeginningTransaction | None:
        """What has to be confirmed before a batch may be appended; None if it continues a transaction.

        `first_sequence`: the lowest sequence number with which the transaction may start here, as far as the batch
        shows.
        """
        guard: TransactionGuard | None = NOT_ASKED
        if partition.log.has_open_transaction(producer_id, producer_epoch):
            if ((partition.topic, partition.partition), producer_id) not in self._turns:
                return None
            guard = None
        elif self.is_enabled:
            guard = partition.log.begin_verification(producer_id, producer_epoch, first_sequence)
        return BeginningTransaction(partition, producer_id, producer_epoch, guard)

    def take_turn(self, item: BeginningTransaction) -> None:
        """Queue the batch behind earlier ones of its producer; later ones wait behind it until `end_turn`."""
        item.turn = self._turns.take((item.name, item.producer_id))

    def confirm_at_once(self, transactional_id: str, begun: Sequence[BeginningTransaction], *, add: bool) -> bool:
        """Ask about all of them; if all answers are there at once, set the errors, else `confirm` waits for them."""
        if any(item.guard is None or item.guard in self._asking for item in begun):
            return False
        return self._ask(transactional_id, begun, add=add)

    async def confirm(self, transactional_id: str, begun: Sequence[BeginningTransaction], *, add: bool) -> None:
        """Ask about all of them and set the error of each."""
        self._ask(transactional_id, begun, add=add)
        asked = [(item, self._asking[item.guard]) for item in begun if item.guard in self._asking]
        for item, task in asked:
            answers = await asyncio.shield(task)
            item.error = answers.get(item.name, ErrorCode.INVALID_TXN_STATE)

    def _ask(self, transactional_id: str, begun: Sequence[BeginningTransaction], *, add: bool) -> bool:
        """Ask about those that were not asked about; True if all answers are there."""
        unasked: dict[tuple[int, int], list[BeginningTransaction]] = {}
        for item in begun:
            if item.guard is not None and item.guard is not NOT_ASKED and item.guard not in self._asking:
                unasked.setdefault((item.producer_id, item.producer_epoch), []).append(item)
        is_answered = True
        for (producer_id, producer_epoch), items in unasked.items():
            names = [item.name for item in items]
            answers = self._verify(transactional_id, producer_id, producer_epoch, names, add)
            if isinstance(answers, Mapping):
                for item in items:
                    item.error = answers.get(item.name, ErrorCode.INVALID_TXN_STATE)
                continue
            is_answered = False
            # Other requests may be waiting for it as well, so it continues even if this one's connection is gone.
            task = asyncio.get_running_loop().create_task(_wait_for(answers, names))
            task.add_done_callback(functools.partial(self._on_asked, items))
            for item in items:
                if item.guard is not None:
                    self._asking[item.guard] = task
        return is_answered

    def _on_asked(self, items: Sequence[BeginningTransaction], task: asyncio.Task[object]) -> None:
        for item in items:
            if item.guard is not None:
                self._asking.pop(item.guard, None)

    def _verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, names: list[TopicPartition], add: bool
    ) -> Answers | Awaitable[Answers]:
        if self.verifier is None:
            return {}
        try:
            return self.verifier.verify(transactional_id, producer_id, producer_epoch, names, add)
        except KafkaError as error:
            return dict.fromkeys(names, error.code)


async def _wait_for(answers: Awaitable[Answers], names: list[TopicPartition]) -> Answers:
    try:
        return await answers
    except KafkaError as error:
        return dict.fromkeys(names, error.code)


def first_sequence(base_sequence: int, produce_version: int) -> int:
    """The sequence number with which a batch's transaction starts: 0 if every transaction has its own epoch."""
    return 0 if produce_version >= _EPOCH_BUMP_FROM else base_sequence


def adds_partitions(produce_version: int) -> bool:
    """Whether producers of this version leave it to the broker to add partitions to their transactions."""
    return produce_version >= _EPOCH_BUMP_FROM


def produce_error(error: ErrorCode, produce_version: int) -> KafkaError | None:
    """The error for a producer whose transaction could not be confirmed, one that its version can handle."""
    if not error:
        return None
    message = f"the transaction could not be confirmed: {error.name}"
    if error is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, message)
    if error in _UNREACHABLE or (error is ErrorCode.CONCURRENT_TRANSACTIONS and produce_version < _EPOCH_BUMP_FROM):
        # Every producer retries after this error.
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message)
    if error is ErrorCode.TRANSACTION_ABORTABLE and produce_version < _ABORTABLE_FROM:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, message)
    return KafkaError(error, message)
