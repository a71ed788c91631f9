"""InitProducerId for a transactional id: returns its producer id and the next epoch, which fences earlier producers.

What always holds: a producer that sends the id and epoch it has gets a new epoch only if nobody came after it. An open
transaction is aborted first; the epoch raised for the abort is never given to any producer but its owner. Only a
producer that asks for it finds the transaction still open (KIP-939), and learns which one it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from tidelog.coordinator.actions import Action, AllocateProducerId, Answer, Now, SetTimer
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
from tidelog.coordinator.txn_state import (
    MAKE_ROOM,
    HeldTransaction,
    ProducerResult,
    TransactionShardState,
    refuse,
    transaction_bytes,
)
from tidelog.protocol import ErrorCode

logger = logging.getLogger(__name__)

_MAKE_ROOM_EVERY_MS: Final = 10_000.0

Resume = Callable[[Now, int], list[Action]]


class InitProducerId(NamedTuple):
    """What a producer asks for; `expected` is the id and epoch it already has (KIP-360).

    The other fields come from KIP-939: transactions without a timeout, and keeping an open transaction.
    """

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None
    is_two_phase: bool = False
    keeps_prepared: bool = False


class ProducerIdWaits:
    """Requests that continue once they have a new producer id."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[Resume, int]] = {}
        self._next_token = 0

    def start(self, resume: Resume, exchange: int) -> list[Action]:
        """Ask for an id and call `resume` with it; if there is none, answer the exchange with the error."""
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
    """Producers that initialize in one shard."""

    def __init__(self, state: TransactionShardState, completion: TransactionCompletion, ids: ProducerIdWaits) -> None:
        self._state = state
        self._completion = completion
        self._ids = ids

    def init(self, ask: InitProducerId, exchange: int, now: Now, fresh_id: int | None = None) -> list[Action]:
        """Answer with a ProducerResult. With a fresh id, this is the second call, and everything may have changed."""
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
            # A producer that has an identity is running the transaction itself, so there is nothing to keep.
            return ErrorCode.INVALID_REQUEST
        if not ask.is_two_phase and not 0 < ask.timeout_ms <= config.transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def _create(self, ask: InitProducerId, exchange: int, now: Now, fresh_id: int | None) -> list[Action]:
        if not self._state.memory.budget.has_room(transaction_bytes(ask.transactional_id)):
            return self._make_room(exchange, now)
        if fresh_id is None:
            return self._ask_again_with_id(ask, exchange)
        held = HeldTransaction()
        self._state.put(ask.transactional_id, held)
        first = Transaction(
            transactional_id=ask.transactional_id,
            producer_id=fresh_id,
            producer_epoch=0,
            timeout_ms=ask.timeout_ms,
            last_update_ms=now.wall_ms,
        )
        return self._give(held, first, exchange)

    def _make_room(self, exchange: int, now: Now) -> list[Action]:
        """There is no memory for another id: forget ids that were never used, and have the producer retry."""
        actions = refuse(exchange, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if now.monotonic_ms >= self._state.make_room_from_ms:
            self._state.make_room_from_ms = now.monotonic_ms + _MAKE_ROOM_EVERY_MS
            logger.warning(
                "transactional ids take %d bytes, which is the limit: producers with new ids have to retry",
                self._state.memory.budget.used_bytes,
            )
            actions.append(SetTimer(MAKE_ROOM, now.monotonic_ms))
        return actions

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
        """Give the producer an identity, and let it decide how the other producer's transaction ends."""
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
        """Abort the open transaction; the producer retries until that is complete."""
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
    """Whether nobody came after the producer: it has the current epoch, or the response with it was lost."""
    client = transaction.client
    if expected == client:
        return True
    if expected.producer_epoch != transaction.last_producer_epoch or expected.producer_epoch == NO_PRODUCER_EPOCH:
        return False
    if expected.producer_id == client.producer_id:
        return True
    return expected.producer_id == transaction.previous_producer_id and is_epoch_exhausted(expected.producer_epoch)
