"""InitProducerId for a transactional id: gives its producer id and the next epoch, which shuts out who had it before.

What always holds: a producer that says which id and epoch it has gets another one only if nobody came after it. An
open transaction is aborted first; the epoch that is raised for that is given to nobody but the producer it belonged to.
Only a producer that asks for it finds the transaction open still (KIP-939), and is told which one that is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tidelog.coordinator.actions import Action, AllocateProducerId, Answer, Now
from tidelog.coordinator.transaction import (
    EPOCH_MAX,
    NO_IDENTITY,
    NO_PRODUCER_EPOCH,
    NO_TIMEOUT_MS,
    ProducerIdentity,
    Transaction,
    TransactionState,
    is_epoch_exhausted,
)
from tidelog.coordinator.txn_completion import TransactionCompletion
from tidelog.coordinator.txn_state import HeldTransaction, ProducerResult, TransactionShardState, refuse
from tidelog.protocol import ErrorCode

Resume = Callable[[Now, int], list[Action]]


class InitProducerId(NamedTuple):
    """What a producer asks for; `expected` is the id and epoch that it has already (KIP-360).

    The others are of KIP-939: transactions without a time-out, and that what is open is not aborted.
    """

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None
    is_two_phase: bool = False
    keeps_prepared: bool = False


class ProducerIdWaits:
    """Requests that go on when a new producer id is there."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[Resume, int]] = {}
        self._next_token = 0

    def start(self, resume: Resume, exchange: int) -> list[Action]:
        """Ask for an id and call `resume` with it; without one the exchange is answered the error."""
        token = self._next_token
        self._next_token += 1
        self._waits[token] = resume, exchange
        return [AllocateProducerId(token)]

    def finish(self, token: int, producer_id: int, error: ErrorCode, now: Now) -> list[Action]:
        wait = self._waits.pop(token, None)
        if wait is None:
            return []
        resume, exchange = wait
        return refuse(exchange, error) if error else resume(now, producer_id)

    def cancel_all(self, error: ErrorCode) -> list[Action]:
        waits, self._waits = self._waits, {}
        return [action for _, exchange in waits.values() for action in refuse(exchange, error)]


class TransactionInit:
    """Producers that come to one shard."""

    def __init__(self, state: TransactionShardState, completion: TransactionCompletion, ids: ProducerIdWaits) -> None:
        self._state = state
        self._completion = completion
        self._ids = ids

    def init(self, ask: InitProducerId, exchange: int, now: Now, fresh_id: int | None = None) -> list[Action]:
        """Answer with a ProducerResult. With a fresh id this is asked the second time, and all may be otherwise."""
        error = self._check(ask)
        if error:
            return refuse(exchange, error)
        if ask.is_two_phase:
            ask = ask._replace(timeout_ms=NO_TIMEOUT_MS)
        held = self._state.held.get(ask.transactional_id)
        if held is None:
            return self._create(ask, exchange, now, fresh_id)
        transaction = held.transaction
        if held.is_busy or transaction is None:
            return refuse(exchange, ErrorCode.CONCURRENT_TRANSACTIONS)
        if ask.expected is not None and not _may_ask(ask.expected, transaction):
            return refuse(exchange, ErrorCode.PRODUCER_FENCED)
        if transaction.state.is_prepared:
            return refuse(exchange, ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction.state is not TransactionState.ONGOING:
            return self._renew(held, transaction, ask, exchange, now, fresh_id)
        if ask.keeps_prepared:
            return self._keep(held, transaction, ask, exchange, now, fresh_id)
        return self._abort(held, transaction, ask.expected, exchange, now)

    def _check(self, ask: InitProducerId) -> ErrorCode:
        config = self._state.config
        if ask.is_two_phase and not config.transaction_two_phase_commit_enable:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if ask.keeps_prepared and ask.expected is not None:
            # Who has an identity runs the transaction itself, and has nothing to come back to.
            return ErrorCode.INVALID_REQUEST
        if not ask.is_two_phase and not 0 < ask.timeout_ms <= config.transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _create(self, ask: InitProducerId, exchange: int, now: Now, fresh_id: int | None) -> list[Action]:
        if fresh_id is None:
            return self._ask_again_with_id(ask, exchange)
        held = self._state.held[ask.transactional_id] = HeldTransaction()
        first = Transaction(
            transactional_id=ask.transactional_id,
            producer_id=fresh_id,
            producer_epoch=0,
            timeout_ms=ask.timeout_ms,
            last_update_ms=now.wall_ms,
        )
        return self._give(held, first, exchange)

    def _renew(
        self,
        held: HeldTransaction,
        transaction: Transaction,
        ask: InitProducerId,
        exchange: int,
        now: Now,
        fresh_id: int | None,
    ) -> list[Action]:
        expected = ask.expected
        is_repeat = expected is not None and expected.producer_epoch != transaction.producer_epoch
        if transaction.producer_epoch == EPOCH_MAX or (transaction.is_exhausted and not is_repeat):
            if fresh_id is None:
                return self._ask_again_with_id(ask, exchange)
            last_epoch = NO_PRODUCER_EPOCH if expected is None else expected.producer_epoch
            renewed = transaction.rotate(fresh_id, ask.timeout_ms, now.wall_ms, last_producer_epoch=last_epoch)
        elif is_repeat:
            renewed = transaction.repeat_initialize(ask.timeout_ms, now.wall_ms)
        else:
            renewed = transaction.initialize(ask.timeout_ms, now.wall_ms, is_same_producer=expected is not None)
        return self._give(held, renewed, exchange)

    def _keep(
        self,
        held: HeldTransaction,
        transaction: Transaction,
        ask: InitProducerId,
        exchange: int,
        now: Now,
        fresh_id: int | None,
    ) -> list[Action]:
        """Give the producer an identity, and leave to it how the transaction ends that another one wrote."""
        if transaction.is_exhausted:
            if fresh_id is None:
                return self._ask_again_with_id(ask, exchange)
            client = ProducerIdentity(fresh_id, 0)
        else:
            producer_id, producer_epoch = transaction.client
            client = ProducerIdentity(producer_id, producer_epoch + 1)
        return self._give(held, transaction.keep(client, ask.timeout_ms, now.wall_ms), exchange)

    def _give(self, held: HeldTransaction, renewed: Transaction, exchange: int) -> list[Action]:
        ongoing = renewed.identity if renewed.is_kept else NO_IDENTITY
        answer = Answer(exchange, ProducerResult(ErrorCode.NONE, *renewed.client, ongoing=ongoing))
        return [
            self._state.write(held, renewed, lambda now: [answer], lambda error, now: refuse(exchange, error)),
        ]

    def _abort(
        self,
        held: HeldTransaction,
        transaction: Transaction,
        expected: ProducerIdentity | None,
        exchange: int,
        now: Now,
    ) -> list[Action]:
        """End what is open; the producer asks again, and finds the transaction complete."""
        if expected is not None and expected != transaction.client:
            return refuse(exchange, ErrorCode.PRODUCER_FENCED)
        last_epoch = NO_PRODUCER_EPOCH if expected is None else expected.producer_epoch
        return self._completion.decide(
            held,
            transaction.fence(now.wall_ms, last_producer_epoch=last_epoch),
            on_decided=lambda decided: refuse(exchange, ErrorCode.CONCURRENT_TRANSACTIONS),
            on_refused=lambda error: refuse(exchange, error),
        )

    def _ask_again_with_id(self, ask: InitProducerId, exchange: int) -> list[Action]:
        return self._ids.start(partial(self.init, ask, exchange), exchange)


def _may_ask(expected: ProducerIdentity, transaction: Transaction) -> bool:
    """Whether nobody came after the producer: it has the current epoch, or never got the answer that gave it that."""
    client = transaction.client
    if expected == client:
        return True
    if expected.producer_epoch != transaction.last_producer_epoch or expected.producer_epoch == NO_PRODUCER_EPOCH:
        return False
    if expected.producer_id == client.producer_id:
        return True
    return expected.producer_id == transaction.previous_producer_id and is_epoch_exhausted(expected.producer_epoch)
