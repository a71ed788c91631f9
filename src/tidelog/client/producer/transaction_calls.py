"""The transactional calls of both producers: what `Producer` and `AsyncProducer` offer besides sending.

What always holds: without a `transactional.id`, the calls raise TransactionStateError. Those of the synchronous
producer wait for at most `max.block.ms`, or the time they are given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from tidelog.client.errors import ClientError, FatalError, TransactionStateError
from tidelog.client.network.loop_thread import LoopThread
from tidelog.client.producer.core import ProducerCore
from tidelog.client.producer.hooks import TransactionHooks
from tidelog.client.producer.settings import ProducerSettings
from tidelog.client.producer.transaction_state import State
from tidelog.client.producer.transactions import PreparedTransaction, Transactions
from tidelog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]


class _CoreAsHost:
    """The producer's core as seen by transactions."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core

    @property
    def producer_id(self) -> int:
        return self._core.idempotence.producer_id if self._core.idempotence is not None else -1

    @property
    def producer_epoch(self) -> int:
        return self._core.idempotence.producer_epoch if self._core.idempotence is not None else -1

    @property
    def needs_epoch_bump(self) -> bool:
        idempotence = self._core.idempotence
        if idempotence is None:
            return False
        return bool(idempotence.resolve()) or idempotence.needs_epoch_bump

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        if self._core.idempotence is not None:
            self._core.idempotence.set_producer_id(producer_id, producer_epoch)
            self._core.idempotence.reset_sequences()

    def set_open(self, is_open: bool) -> None:
        self._core.set_fast(is_open)

    def wake(self) -> None:
        self._core.wake()

    async def flush(self) -> None:
        await self._core.flush()

    def fail_undrained(self, error: ClientError) -> None:
        self._core.sender.fail_undrained(error)


def make_core(settings: ProducerSettings, owner: str, *, may_send_from_callers: bool = False) -> ProducerCore:
    """A producer's core, with transactions if the settings name a transactional id."""
    if settings.transactional_id is None:
        return ProducerCore(settings, owner=owner, may_send_from_callers=may_send_from_callers)
    core = ProducerCore(settings, owner=owner, make_hooks=_make_transactions)
    core.set_fast(False)  # until a transaction has begun
    return core


def _make_transactions(core: ProducerCore) -> TransactionHooks:
    settings = core.settings
    return Transactions(
        core.cluster,
        _CoreAsHost(core),
        settings.transactional_id or "",
        timeout_ms=settings.transaction_timeout_ms,
        two_phase=settings.two_phase_commit,
        block_s=settings.max_block_s,
    )


def transactions_of(core: ProducerCore) -> Transactions:
    """Its transactions; raises if the producer has none, is closed or was forked."""
    core.check_open()
    if not isinstance(core.hooks, Transactions):
        raise TransactionStateError("this producer has no transactional_id; give it one to use transactions")
    return core.hooks


def _offsets(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(*topic_partition): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        for topic_partition, offset in offsets.items()
    }


def _group(group: ConsumerGroupMetadata | str) -> ConsumerGroupMetadata:
    return ConsumerGroupMetadata(group) if isinstance(group, str) else group


class TransactionCalls:
    """The synchronous calls."""

    _core: ProducerCore
    _thread: LoopThread

    def init_transactions(
        self, keep_prepared: bool = False, timeout: float | None = None
    ) -> PreparedTransaction | None:
        """Call this first: it fences earlier producers of the transactional id and aborts their open transaction.

        With `keep_prepared`, a transaction that an earlier producer prepared stays open and is returned (KIP-939).
        """
        transactions = transactions_of(self._core)
        return self._thread.run(transactions.init(keep_prepared=keep_prepared, timeout_s=timeout))

    def begin_transaction(self) -> None:
        """Begin a transaction: everything sent until the commit takes effect together or not at all."""
        transactions_of(self._core).begin()

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver all records and commit. After an AbortableError the transaction can only be aborted."""
        self._thread.run(transactions_of(self._core).commit(timeout_s=timeout))

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction: readers with `read_committed` never see it."""
        self._thread.run(transactions_of(self._core).abort(timeout_s=timeout))

    def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction:
        """Deliver all records and keep the transaction open, for an external coordinator (KIP-939)."""
        return self._thread.run(transactions_of(self._core).prepare(timeout_s=timeout))

    def complete_transaction(self, prepared: PreparedTransaction, timeout: float | None = None) -> bool:
        """Commit if `prepared` is this transaction, else abort it; returns whether it was committed."""
        return self._thread.run(transactions_of(self._core).complete(prepared, timeout_s=timeout))

    def send_offsets_to_transaction(
        self, offsets: Offsets, group: ConsumerGroupMetadata | str, timeout: float | None = None
    ) -> None:
        """Commit a consumer's offsets as part of the transaction; `group` is its `group_metadata()`."""
        transactions = transactions_of(self._core)
        self._thread.run(transactions.send_offsets(_offsets(offsets), _group(group), timeout_s=timeout))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """`with producer.transaction():` begins one, commits it at the end, and aborts it on an exception.

        The first one also calls `init_transactions`.
        """
        transactions = transactions_of(self._core)
        if transactions.state.state is State.UNINITIALIZED:
            self.init_transactions()
        self.begin_transaction()
        try:
            yield
            self.commit_transaction()
        except BaseException as error:
            if _can_abort(transactions, error):
                self.abort_transaction()
            raise


class AsyncTransactionCalls:
    """The asynchronous calls."""

    _core: ProducerCore

    async def init_transactions(
        self, keep_prepared: bool = False, timeout: float | None = None
    ) -> PreparedTransaction | None:
        """Call this first: it fences earlier producers of the transactional id and aborts their open transaction.

        With `keep_prepared`, a transaction that an earlier producer prepared stays open and is returned (KIP-939).
        """
        self._core.start()
        return await transactions_of(self._core).init(keep_prepared=keep_prepared, timeout_s=timeout)

    async def begin_transaction(self) -> None:
        """Begin a transaction: everything sent until the commit takes effect together or not at all."""
        transactions_of(self._core).begin()

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver all records and commit. After an AbortableError the transaction can only be aborted."""
        await transactions_of(self._core).commit(timeout_s=timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction: readers with `read_committed` never see it."""
        await transactions_of(self._core).abort(timeout_s=timeout)

    async def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction:
        """Deliver all records and keep the transaction open, for an external coordinator (KIP-939)."""
        return await transactions_of(self._core).prepare(timeout_s=timeout)

    async def complete_transaction(self, prepared: PreparedTransaction, timeout: float | None = None) -> bool:
        """Commit if `prepared` is this transaction, else abort it; returns whether it was committed."""
        return await transactions_of(self._core).complete(prepared, timeout_s=timeout)

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group: ConsumerGroupMetadata | str, timeout: float | None = None
    ) -> None:
        """Commit a consumer's offsets as part of the transaction; `group` is its `group_metadata()`."""
        await transactions_of(self._core).send_offsets(_offsets(offsets), _group(group), timeout_s=timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """`async with producer.transaction():` begins one, commits it at the end, and aborts it on an exception.

        The first one also calls `init_transactions`.
        """
        transactions = transactions_of(self._core)
        if transactions.state.state is State.UNINITIALIZED:
            await self.init_transactions()
        await self.begin_transaction()
        try:
            yield
            await self.commit_transaction()
        except BaseException as error:
            if _can_abort(transactions, error):
                await self.abort_transaction()
            raise


def _can_abort(transactions: Transactions, error: BaseException) -> bool:
    """Whether an abort can help: not after a fatal error, nor while a commit may still be carried out."""
    return not isinstance(error, FatalError) and transactions.state.state in (
        State.IN_TRANSACTION,
        State.ABORTABLE_ERROR,
        State.PREPARED,
    )
