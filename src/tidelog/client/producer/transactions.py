"""Transactions of a producer: the requests to the coordinators of its transactional id and of consumer groups.

What always holds: a partition's batches go out only after the coordinator has added the partition to the transaction,
or to a broker that adds it itself (KIP-890, `transaction.version` 2). A transaction ends only when all its batches are
stored or given up. A commit whose response was lost is repeated, and carried out once. The state is in
`transaction_state`; the sender sees all this as `TransactionHooks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from tidelog.client.errors import (
    AbortableError,
    BrokerError,
    ClientError,
    FatalError,
    RetriableError,
    TransactionStateError,
)
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.routing import Coordinator, KeyType
from tidelog.client.producer.coordinator_asking import ask_coordinator
from tidelog.client.producer.transaction_requests import (
    Asker,
    InitAsk,
    add_offsets,
    add_partitions,
    commit_offsets,
    end_transaction,
    init_producer_id,
)
from tidelog.client.producer.transaction_state import State, TransactionAbortedError, TransactionState
from tidelog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k22_init_producer_id import InitProducerIdResponse

_IMPLICIT_FEATURE = ("transaction.version", 2)  # producing adds partitions, brokers bump epochs
_PRODUCE_AT_MOST = 11  # for a broker that does not do so; later versions mean that it does

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
# Errors of a partition's leader that concern the producer, not its records.
_REFUSES_PRODUCER = _FENCED | {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
}
# Errors that end the transaction but not the producer.
_ABORTABLE = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    }
)

T = TypeVar("T")


class PreparedTransaction(NamedTuple):
    """The identity of a prepared transaction, as kept by an outside coordinator (KIP-939)."""

    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}"

    @classmethod
    def parse(cls, text: str) -> PreparedTransaction:
        producer_id, _, producer_epoch = text.partition(":")
        return cls(int(producer_id), int(producer_epoch))


class FatalTransactionError(FatalError):
    """The coordinator refused the producer for good; the cause is its error."""


class _Ending(NamedTuple):
    """A commit or abort in progress."""

    task: asyncio.Task[None]
    committed: bool


class TransactionHost(Protocol):
    """What transactions need from the producer they belong to."""

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def needs_epoch_bump(self) -> bool:
        """Whether a broker may have a gap in the sequence, so that the next transaction needs a new epoch."""
        ...

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Continue with this id and epoch, and number records from 0; nothing is in flight."""
        ...

    def set_open(self, is_open: bool) -> None:
        """Whether records may be appended to open batches without asking `check_send`."""
        ...

    def wake(self) -> None:
        """Look again at what may be sent."""
        ...

    async def flush(self) -> None:
        """Wait until every record appended so far has been stored or has failed."""
        ...

    def fail_undrained(self, error: ClientError) -> None:
        """Give up all records that have not been sent yet."""
        ...


class Transactions:
    """The transactional side of one producer; runs on its event loop."""

    def __init__(
        self,
        cluster: Cluster,
        host: TransactionHost,
        transactional_id: str,
        *,
        timeout_ms: int,
        two_phase: bool = False,
        block_s: float = 60.0,
    ) -> None:
        self.state = TransactionState(transactional_id)
        self._cluster = cluster
        self._host = host
        self._timeout_ms = timeout_ms
        self._two_phase = two_phase
        self._block_s = block_s
        self._coordinator = Coordinator(cluster, KeyType.TRANSACTIONAL_ID, transactional_id)
        self._coordinators = {transactional_id: self._coordinator}  # of all ids that this producer has used
        self._group_coordinators: dict[str, Coordinator] = {}
        self._adds_itself = False
        self._adding: asyncio.Task[None] | None = None
        self._ending: _Ending | None = None  # until its caller has learned its outcome
        self._prepared: PreparedTransaction | None = None

    # Called by the sender (TransactionHooks)

    @property
    def transactional_id(self) -> str:
        return self.state.transactional_id

    @property
    def produce_version_at_most(self) -> int | None:
        return None if self._adds_itself else _PRODUCE_AT_MOST

    @property
    def is_completing(self) -> bool:
        return self.state.state in (State.COMMITTING, State.ABORTING)

    def check_send(self) -> None:
        self.state.check_send()

    def on_append(self, topic_partition: TopicPartition) -> None:
        self.state.note_partition(topic_partition)
        if self._adds_itself:  # by the first batch that arrives, which may be any of them
            self.state.has_begun_at_broker = True

    def may_send(self, topic_partition: TopicPartition) -> bool:
        if self._adds_itself or self.state.is_added(topic_partition):
            return True
        if self._adding is None and self.state.error is None:
            self._adding = asyncio.get_running_loop().create_task(self._add_partitions())
        return False

    def on_batch_failed(self, topic_partition: TopicPartition, error: ClientError) -> None:
        # A record that a partition rejects ends the transaction, not the producer.
        if isinstance(error, BrokerError) and error.code in _REFUSES_PRODUCER:
            self._failed(error)
        else:
            self._note(error)

    # Called by the user

    async def init(self, *, keep_prepared: bool = False, timeout_s: float | None = None) -> PreparedTransaction | None:
        """Get the producer id, fence earlier producers of the transactional id, and end what they left open.

        With `keep_prepared` an open transaction stays open, to be committed or aborted, and is returned.
        """
        self.state.check_init()
        nobody = Asker(self.transactional_id, -1, -1)
        ask = InitAsk(self._timeout_ms, self._two_phase, keep_prepared)
        response = await self._init(nobody, ask, timeout_s=timeout_s)
        if response.ongoing_txn_producer_id >= 0:
            self._prepared = PreparedTransaction(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
            self.state.kept_prepared()
            return self._prepared
        self.state.initialized()
        return None

    def begin(self) -> None:
        self.state.begin()
        self._ending = None  # nobody waited for the outcome, which was success
        self._prepared = None
        self._host.set_open(True)

    async def commit(self, *, timeout_s: float | None = None) -> None:
        """Deliver all records and commit; may be called again if the time was up before the response came."""
        if not self._is_ending(committed=True):
            self.state.start_commit()
            self._host.set_open(False)
        await self._end(committed=True, timeout_s=timeout_s)

    async def abort(self, *, timeout_s: float | None = None) -> None:
        """Give up unsent records, and abort."""
        if not self._is_ending(committed=False):
            self.state.start_abort()
            self._host.set_open(False)
        await self._end(committed=False, timeout_s=timeout_s)

    async def prepare(self, *, timeout_s: float | None = None) -> PreparedTransaction:
        """Deliver all records; the transaction then stays open until it is committed or aborted, even by another
        producer of the same transactional id (KIP-939)."""
        self.state.check_prepare()
        if not self._two_phase:
            raise TransactionStateError("prepare_transaction needs transaction_two_phase_commit_enable=True")
        self._host.set_open(False)
        try:
            async with asyncio.timeout(self._block_s if timeout_s is None else timeout_s):
                await self._host.flush()
        except TimeoutError:
            self._host.set_open(True)
            raise TransactionTimeoutError("not all records were delivered in time; prepare_transaction again") from None
        self.state.prepared()
        self._prepared = PreparedTransaction(self._host.producer_id, self._host.producer_epoch)
        return self._prepared

    async def leave_open(self, *, timeout_s: float | None = None) -> tuple[int, int] | None:
        """Deliver all records and let go of the transaction, which anyone who knows its id and epoch may end; None if
        nothing of it has reached a broker. The producer is then like new: `rename` and `init` begin the next.
        """
        self.state.check_send()
        self._host.set_open(False)
        try:
            async with asyncio.timeout(self._block_s if timeout_s is None else timeout_s):
                await self._host.flush()
        except TimeoutError:
            self._host.set_open(True)
            raise TransactionTimeoutError("not all records were delivered in time; hand over again") from None
        self.state.check_send()  # a record may have failed on the way
        left = (self._host.producer_id, self._host.producer_epoch) if self.state.has_begun_at_broker else None
        self.state.ended()
        return left

    async def rename(self, transactional_id: str) -> None:
        """Continue under another id, for which `init` must be called; nothing may be open."""
        self.state = self.state.renamed(transactional_id)
        self._coordinator = self._coordinators.setdefault(
            transactional_id, Coordinator(self._cluster, KeyType.TRANSACTIONAL_ID, transactional_id)
        )

    @property
    def coordinator_id(self) -> int | None:
        """The node that coordinates the transactional id, as last heard of."""
        return self._coordinator.node_id

    async def complete(self, prepared: PreparedTransaction, *, timeout_s: float | None = None) -> bool:
        """Commit the prepared transaction if it is this one, else abort it; returns whether it was committed now."""
        if self.state.state is State.READY:
            return False  # an earlier producer has already ended it
        if self.state.state is not State.PREPARED:
            raise TransactionStateError("complete_transaction comes after prepare_transaction or init_transactions")
        is_this_one = self._prepared == prepared
        await (self.commit(timeout_s=timeout_s) if is_this_one else self.abort(timeout_s=timeout_s))
        return is_this_one

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Add the group's offsets to the transaction: they count once it is committed."""
        self.state.check_send()
        if not offsets:
            return
        try:
            if not self._adds_itself and group.group_id not in self.state.groups:
                await self._ask(
                    lambda connection: add_offsets(connection, self._asker, group.group_id), timeout_s=timeout_s
                )
            self.state.groups.add(group.group_id)
            self.state.has_begun_at_broker = True
            coordinator = self._group_coordinators.setdefault(
                group.group_id, Coordinator(self._cluster, KeyType.GROUP, group.group_id)
            )
            left = dict(offsets)
            await self._ask(
                lambda connection: commit_offsets(connection, self._asker, group, left, adds_itself=self._adds_itself),
                coordinator,
                timeout_s=timeout_s,
            )
        except RetriableError:
            raise  # the time was up; the same call may be made again
        except ClientError as error:
            raise self._failed(error) from error

    async def close(self) -> None:
        """Stop asking; the broker's timeout, or the next producer of this id, ends what is open there."""
        ending = self._ending.task if self._ending is not None else None
        tasks = [task for task in (self._adding, ending) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Ending a transaction

    async def _end(self, *, committed: bool, timeout_s: float | None) -> None:
        if not self._is_ending(committed=committed):
            task = asyncio.get_running_loop().create_task(self._carry_out_end(committed))
            # A caller that ran out of time may never come back for the error; the state keeps it.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._ending = _Ending(task, committed)
        assert self._ending is not None
        ending = self._ending.task
        try:
            async with asyncio.timeout(self._block_s if timeout_s is None else timeout_s):
                await asyncio.shield(ending)
        except TimeoutError:
            what = "commit" if committed else "abort"
            raise TransactionTimeoutError(
                f"the {what} of {self.transactional_id!r} was not confirmed in time; it is still in progress: "
                f"call {what}_transaction again to wait for it"
            ) from None
        finally:
            if ending.done() and self._ending is not None and self._ending.task is ending:
                self._ending = None

    def _is_ending(self, *, committed: bool) -> bool:
        """Whether such an end is in progress whose caller ran out of time before its outcome."""
        return self._ending is not None and self._ending.committed is committed

    async def _carry_out_end(self, committed: bool) -> None:
        if not committed:
            self._host.fail_undrained(TransactionAbortedError("the transaction was aborted before the record was sent"))
        await self._host.flush()
        if self._adding is not None:
            await asyncio.gather(self._adding, return_exceptions=True)
        if committed and self.state.error is not None:
            self.state.raise_error()  # a record failed on the way
        try:
            if self.state.has_begun_at_broker:
                renewed = await self._ask(
                    lambda connection: end_transaction(
                        connection, self._asker, committed=committed, adds_itself=self._adds_itself
                    ),
                    timeout_s=None,
                    forever=True,
                )
                if renewed is not None:
                    self._host.set_producer_id(*renewed)
            if self._host.needs_epoch_bump and not self._adds_itself:
                await self._init(self._asker, InitAsk(self._timeout_ms, self._two_phase), timeout_s=None, forever=True)
        except ClientError as error:
            raise self._failed(error) from error
        self.state.ended()

    # Requests

    @property
    def _asker(self) -> Asker:
        return Asker(self.transactional_id, self._host.producer_id, self._host.producer_epoch)

    async def _init(
        self, asker: Asker, ask: InitAsk, *, timeout_s: float | None, forever: bool = False
    ) -> InitProducerIdResponse:
        async def ask_once(connection: Connection) -> InitProducerIdResponse:
            response = await init_producer_id(connection, asker, ask)
            name, level = _IMPLICIT_FEATURE
            self._adds_itself = connection.features.get(name, 0) >= level
            return response

        try:
            response = await self._ask(ask_once, timeout_s=timeout_s, forever=forever)
        except RetriableError:
            raise  # the time was up; the same call may be made again
        except ClientError as error:
            raise self._failed(error) from error
        self._host.set_producer_id(response.producer_id, response.producer_epoch)
        return response

    async def _add_partitions(self) -> None:
        """Add new partitions at the coordinator until there are none left; then batches may go out."""
        try:
            while partitions := self.state.take_new():
                left = set(partitions)
                await self._ask(
                    lambda connection, left=left: add_partitions(connection, self._asker, left),  # type: ignore[misc]
                    timeout_s=None,
                    forever=True,
                )
                self.state.added(partitions)
                self.state.has_begun_at_broker = True
                self._host.wake()
        except ClientError as error:
            self._host.fail_undrained(self._failed(error))
        finally:
            self._adding = None
            self._host.wake()

    async def _ask(
        self,
        ask: Callable[[Connection], Awaitable[T]],
        coordinator: Coordinator | None = None,
        *,
        timeout_s: float | None,
        forever: bool = False,
    ) -> T:
        """Ask the coordinator until it gives a final answer, or the time is up."""
        block_s = self._block_s if timeout_s is None else timeout_s
        return await ask_coordinator(
            coordinator or self._coordinator,
            self._cluster.settings.retry,
            ask,
            timeout_s=None if forever else block_s,
        )

    # Failures

    def _failed(self, error: ClientError) -> ClientError:
        """Note what the error means for the transaction; returns the error to show the user."""
        shown = error
        if isinstance(error, BrokerError) and error.code not in _FENCED:
            if error.code in _ABORTABLE:
                if not isinstance(error, AbortableError):
                    shown = TransactionAbortedError(f"the transaction can only be aborted: {error}")
            elif not error.retriable and not isinstance(error, FatalError):
                shown = FatalTransactionError(f"{self._asker} is no longer usable, create a new producer: {error}")
            if shown is not error:
                shown.__cause__ = error
        self._note(shown)
        return shown

    def _note(self, error: ClientError) -> None:
        self.state.failed(error)
        if self.state.error is not None:
            self._host.set_open(False)


class TransactionTimeoutError(RetriableError):
    """The end of a transaction was not confirmed in time; it is still in progress."""
