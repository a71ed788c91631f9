"""The state of a transactional producer, and which calls it allows. Pure: no requests, no waiting.

    UNINITIALIZED -> READY -> IN_TRANSACTION -> COMMITTING -> READY
                                             -> PREPARED -> COMMITTING or ABORTING -> READY
                                             -> ABORTING -> READY
                                             -> ABORTABLE_ERROR -> ABORTING -> READY
    any -> FATAL_ERROR

What always holds: after a fatal error every call raises it. After an error that only an abort can clear, every call
except the abort raises it. A call in the wrong state raises TransactionStateError, which says what to call first.
"""

from __future__ import annotations

import enum
import threading
from typing import NoReturn

from tidelog.client.errors import AbortableError, ClientError, FatalError, TransactionStateError
from tidelog.client.types import TopicPartition


class State(enum.Enum):
    """The states above."""

    UNINITIALIZED = "not initialized"
    READY = "ready to begin a transaction"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "prepared to commit"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "to be aborted"
    FATAL_ERROR = "failed"


class TransactionAbortedError(AbortableError):
    """Something in the transaction failed, so it can only be aborted; the cause says what."""


class TransactionState:
    """The state of one transactional id's producer, and the contents of the open transaction.

    The threads that send note partitions here; everything else happens on the event loop's thread.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.error: ClientError | None = None
        # Whether the broker may know the transaction: only then must it be ended there.
        self.has_begun_at_broker = False
        self.groups: set[str] = set()
        self._guard = threading.Lock()
        self._new: set[TopicPartition] = set()
        self._adding: set[TopicPartition] = set()
        self._added: set[TopicPartition] = set()

    # Calls

    def check_init(self) -> None:
        self._raise_fatal()
        if self.state is not State.UNINITIALIZED:
            raise TransactionStateError(f"init_transactions was already called; the producer is {self.state.value}")

    def initialized(self) -> None:
        self.state = State.READY

    def kept_prepared(self) -> None:
        """A transaction that an earlier producer prepared is still open."""
        self.state = State.PREPARED
        self.has_begun_at_broker = True

    def begin(self) -> None:
        self._raise_fatal()
        self._require(State.READY, "begin_transaction")
        self.state = State.IN_TRANSACTION

    def check_send(self) -> None:
        if self.state is not State.IN_TRANSACTION:
            self.raise_error()
            self._require(State.IN_TRANSACTION, "send")

    def check_prepare(self) -> None:
        self.raise_error()
        self._require(State.IN_TRANSACTION, "prepare_transaction")

    def prepared(self) -> None:
        self.raise_error()
        self.state = State.PREPARED

    def start_commit(self) -> None:
        self.raise_error()
        if self.state is not State.COMMITTING:  # a commit whose caller ran out of time is resumed
            if self.state is not State.PREPARED:
                self._require(State.IN_TRANSACTION, "commit_transaction")
            self.state = State.COMMITTING

    def start_abort(self) -> None:
        self._raise_fatal()
        if self.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING, State.PREPARED):
            self._wrong("abort_transaction")
        self.state = State.ABORTING

    def ended(self) -> None:
        """The commit or abort is done."""
        if self.state is not State.FATAL_ERROR:
            self.state = State.READY
            self.error = None
        self.has_begun_at_broker = False
        self.groups.clear()
        with self._guard:
            self._new.clear()
            self._adding.clear()
            self._added.clear()

    def renamed(self, transactional_id: str) -> TransactionState:
        """Reset to the state of a new producer with this id; not while a transaction is open."""
        if self.state not in (State.UNINITIALIZED, State.READY):
            self._raise_fatal()
            self._wrong("a change of the transactional id")
        return TransactionState(transactional_id)

    # Failures

    def failed(self, error: ClientError) -> None:
        """A part of the transaction failed: only an abort is left, or nothing after a fatal error."""
        if self.state is State.FATAL_ERROR:
            return
        if isinstance(error, FatalError):
            self.state = State.FATAL_ERROR
            self.error = error
        elif self.state in (State.IN_TRANSACTION, State.COMMITTING, State.PREPARED):
            self.state = State.ABORTABLE_ERROR
            self.error = error

    # Partitions

    def note_partition(self, topic_partition: TopicPartition) -> bool:
        """A batch was opened for it; returns whether the partition must still be added at the broker."""
        with self._guard:
            if topic_partition in self._added:
                return False
            if topic_partition not in self._adding:
                self._new.add(topic_partition)
            return True

    def is_added(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._added

    def take_new(self) -> list[TopicPartition]:
        """The partitions to add at the coordinator now."""
        with self._guard:
            new = sorted(self._new)
            self._adding |= self._new
            self._new.clear()
            return new

    def added(self, partitions: list[TopicPartition]) -> None:
        with self._guard:
            self._added.update(partitions)
            self._adding.difference_update(partitions)

    # Errors

    def _raise_fatal(self) -> None:
        if self.state is State.FATAL_ERROR and self.error is not None:
            raise self.error

    def raise_error(self) -> None:
        """Raise the error that blocks everything except an abort."""
        self._raise_fatal()
        if self.state is State.ABORTABLE_ERROR:
            raise TransactionAbortedError(
                f"the transaction of {self.transactional_id!r} can only be aborted (abort_transaction): {self.error}"
            ) from self.error

    def _require(self, state: State, call: str) -> None:
        if self.state is not state:
            self._wrong(call)

    def _wrong(self, call: str) -> NoReturn:
        first = {
            State.UNINITIALIZED: "call init_transactions first",
            State.READY: "call begin_transaction first",
            State.IN_TRANSACTION: "commit or abort the open one first",
            State.PREPARED: "commit or abort it first",
        }.get(self.state, "wait for its end")
        raise TransactionStateError(
            f"{call} does not fit: the producer of {self.transactional_id!r} is {self.state.value}; {first}"
        )
