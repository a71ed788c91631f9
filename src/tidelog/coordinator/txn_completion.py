"""Completes transactions whose end is decided: a marker in every partition, then a record that says so.

What always holds: a decision is never changed. Markers are sent until every partition has one, however often that
fails. After a restart all of them are sent again, so a partition must accept the same marker twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.coordinator.actions import Action, Now, SendMarkers, SetTimer, TopicPartition, TxnMarker
from tidelog.coordinator.transaction import TRANSACTION_VERSION_2, Transaction
from tidelog.coordinator.txn_state import HeldTransaction, TransactionShardState
from tidelog.protocol import ErrorCode

logger = logging.getLogger(__name__)

MARKERS: Final = "markers"
"""The second part of the key of the timer that sends markers again."""

_RETRY_MS_MIN: Final = 50.0
_RETRY_MS_MAX: Final = 1000.0


class TransactionCompletion:
    """The decided transactions of one shard."""

    def __init__(self, state: TransactionShardState) -> None:
        self._state = state
        self._sent: dict[int, HeldTransaction] = {}
        self._next_token = 0

    def decide(
        self,
        held: HeldTransaction,
        prepared: Transaction,
        on_decided: Callable[[Transaction], list[Action]],
        on_refused: Callable[[ErrorCode], list[Action]],
    ) -> list[Action]:
        """Record how a transaction ends, call `on_decided` with it, and carry it out."""

        def proceed(now: Now) -> list[Action]:
            return [*on_decided(prepared), *self.start(held, now)]

        return [self._state.write(held, prepared, proceed, lambda error, now: on_refused(error))]

    def start(self, held: HeldTransaction, now: Now) -> list[Action]:
        """The end of this transaction is decided: send all its markers."""
        held.unmarked = _decided(held).partitions
        held.retry_ms = 0.0
        return self._continue(held, now)

    def on_markers_written(self, token: int, errors: Mapping[TopicPartition, ErrorCode], now: Now) -> list[Action]:
        held = self._sent.pop(token)
        held.is_sending = False
        failed = {partition: error for partition, error in errors.items() if error}
        held.unmarked = held.unmarked - (errors.keys() - failed.keys())
        if not held.unmarked:
            return self._continue(held, now)
        if not held.retry_ms:
            named = ", ".join(f"{topic}-{index}: {error.name}" for (topic, index), error in sorted(failed.items())[:5])
            transactional_id = _decided(held).transactional_id
            logger.info("some markers of transaction %s failed; sending them again: %s", transactional_id, named)
        return self._retry(held, now)

    def on_timer(self, held: HeldTransaction, now: Now) -> list[Action]:
        """It is time to try again."""
        transaction = held.transaction
        if transaction is None or not transaction.state.is_prepared or held.is_sending or held.is_busy:
            return []
        return self._continue(held, now)

    def _continue(self, held: HeldTransaction, now: Now) -> list[Action]:
        transaction = _decided(held)
        if not held.unmarked:
            return [self._state.write(held, transaction.complete(now.wall_ms), _nothing_more, self._refused(held))]
        marker = TxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=self._state.coordinator_epoch,
            committed=transaction.state.is_commit,
            # The markers of a kept transaction have another epoch than it has in every version, and the next
            # transaction may have that one: those who get a marker late must be able to tell.
            transaction_version=TRANSACTION_VERSION_2 if transaction.is_kept else transaction.client_version,
        )
        token = self._next_token
        self._next_token += 1
        self._sent[token] = held
        held.is_sending = True
        return [SendMarkers(marker, tuple(sorted(held.unmarked)), token)]

    def _refused(self, held: HeldTransaction) -> Callable[[ErrorCode, Now], list[Action]]:
        # The markers are written; only the record that says so is missing, and is retried.
        return lambda error, now: self._retry(held, now)

    def _retry(self, held: HeldTransaction, now: Now) -> list[Action]:
        held.retry_ms = min(held.retry_ms * 2 or _RETRY_MS_MIN, _RETRY_MS_MAX)
        return [SetTimer((_decided(held).transactional_id, MARKERS), now.monotonic_ms + held.retry_ms)]


def _nothing_more(now: Now) -> list[Action]:
    return []


def _decided(held: HeldTransaction) -> Transaction:
    transaction = held.transaction
    assert transaction is not None  # only what is written is carried out
    assert transaction.state.is_prepared
    return transaction
