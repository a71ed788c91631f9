"""Which transactional calls are right when, and what errors leave to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidelog.client.errors import BrokerError, ClientError, DeliveryTimeoutError, TransactionStateError
from tidelog.client.producer.transaction_state import State, TransactionAbortedError, TransactionState
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode

ORDERS = TopicPartition("orders", 0)
FENCED = BrokerError(ErrorCode.PRODUCER_FENCED)
LOST = DeliveryTimeoutError("not delivered in time")


def in_transaction() -> TransactionState:
    state = TransactionState("billing")
    state.initialized()
    state.begin()
    return state


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (TransactionState.begin, "call init_transactions first"),
        (TransactionState.check_send, "call init_transactions first"),
        (TransactionState.start_commit, "call init_transactions first"),
        (TransactionState.start_abort, "call init_transactions first"),
    ],
)
def test_before_init_every_call_says_so(call: Callable[[TransactionState], None], hint: str) -> None:
    with pytest.raises(TransactionStateError, match=hint):
        call(TransactionState("billing"))


@pytest.mark.parametrize(
    "call", [TransactionState.check_send, TransactionState.start_commit, TransactionState.start_abort]
)
def test_outside_of_a_transaction_there_is_nothing_to_send_or_end(call: Callable[[TransactionState], None]) -> None:
    state = TransactionState("billing")
    state.initialized()
    with pytest.raises(TransactionStateError, match="call begin_transaction first"):
        call(state)


def test_a_transaction_is_not_begun_twice_nor_the_producer_initialized_twice() -> None:
    state = in_transaction()
    with pytest.raises(TransactionStateError, match="commit or abort the open one first"):
        state.begin()
    with pytest.raises(TransactionStateError, match="was already called"):
        state.check_init()


def test_a_failed_record_leaves_only_the_abort() -> None:
    state = in_transaction()
    state.failed(LOST)
    for call in (state.check_send, state.start_commit, state.check_prepare):
        with pytest.raises(TransactionAbortedError, match="not delivered in time") as raised:
            call()
        assert raised.value.__cause__ is LOST
    state.start_abort()
    state.ended()
    state.begin()
    state.check_send()


def test_a_record_that_fails_during_the_commit_turns_it_into_an_abort() -> None:
    state = in_transaction()
    state.start_commit()
    state.failed(LOST)
    with pytest.raises(TransactionAbortedError):
        state.start_commit()
    state.start_abort()


def test_a_commit_may_be_asked_for_again_while_it_is_under_way() -> None:
    state = in_transaction()
    state.start_commit()
    state.start_commit()
    assert state.state is State.COMMITTING


def test_a_fatal_error_stays() -> None:
    state = in_transaction()
    state.failed(FENCED)
    state.failed(LOST)
    state.ended()
    for call in (state.begin, state.check_send, state.start_commit, state.start_abort, state.check_init):
        with pytest.raises(BrokerError) as raised:
            call()
        assert raised.value is FENCED


def test_partitions_are_told_once() -> None:
    state = in_transaction()
    assert state.note_partition(ORDERS)
    assert state.take_new() == [ORDERS]
    assert state.note_partition(ORDERS), "the answer is not there yet"
    assert state.take_new() == []
    assert not state.is_added(ORDERS)
    state.added([ORDERS])
    assert state.is_added(ORDERS)
    assert not state.note_partition(ORDERS)
    state.start_commit()
    state.ended()
    assert not state.is_added(ORDERS), "the next transaction begins with none"


class AnyOrder(RuleBasedStateMachine):
    """Random calls: the state is always one from which an honest user can go on, or failed for good."""

    def __init__(self) -> None:
        super().__init__()
        self.state = TransactionState("billing")
        self.state.initialized()
        self.fatal: ClientError | None = None

    @rule()
    def begin(self) -> None:
        before = self.state.state
        try:
            self.state.begin()
        except ClientError:
            assert before is not State.READY
        else:
            assert before is State.READY

    @rule()
    def commit(self) -> None:
        before, error = self.state.state, self.state.error
        try:
            self.state.start_commit()
        except ClientError:
            assert before in (State.READY, State.ABORTABLE_ERROR, State.FATAL_ERROR, State.ABORTING)
        else:
            assert error is None, "nothing that failed is ever committed"

    @rule()
    def abort(self) -> None:
        before = self.state.state
        try:
            self.state.start_abort()
        except ClientError:
            assert before in (State.READY, State.FATAL_ERROR, State.COMMITTING)

    @precondition(lambda self: self.state.state in (State.COMMITTING, State.ABORTING))
    @rule()
    def end(self) -> None:
        self.state.ended()

    @rule()
    def record_fails(self) -> None:
        self.state.failed(LOST)

    @precondition(lambda self: self.fatal is None)
    @rule()
    def is_fenced(self) -> None:
        self.fatal = BrokerError(ErrorCode.PRODUCER_FENCED)
        self.state.failed(self.fatal)

    @invariant()
    def fatal_is_for_good(self) -> None:
        if self.fatal is not None:
            assert self.state.state is State.FATAL_ERROR
            assert self.state.error is self.fatal

    @invariant()
    def an_error_is_known_exactly_where_it_counts(self) -> None:
        if self.state.state in (State.ABORTABLE_ERROR, State.FATAL_ERROR):
            assert self.state.error is not None
        if self.state.state in (State.READY, State.IN_TRANSACTION, State.COMMITTING):
            assert self.state.error is None


AnyOrder.TestCase.settings = settings(max_examples=200, deadline=None)
TestAnyOrder = AnyOrder.TestCase
