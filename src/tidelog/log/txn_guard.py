"""Lets a transaction start in a partition only after its coordinator has confirmed that the partition is part of it
(KIP-890).

What always holds: a guard is issued before the coordinator is asked, and revoked by whatever ends or starts a
transaction of the producer, so a late answer (the transaction may have been aborted, and another one started) opens
nothing. Guards are kept in memory only: after a restart the coordinator is asked again. This module does not ask it.
"""

from __future__ import annotations

from typing import Final

from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import BatchHeader


class TransactionGuard:
    """One verification of one transaction; valid as long as it is the partition's current one."""

    __slots__ = ("asked_ms", "lowest_sequence", "producer_epoch")

    def __init__(self, producer_epoch: int, lowest_sequence: int, asked_ms: int) -> None:
        self.producer_epoch = producer_epoch
        # The first batch of the transaction here has this sequence; one behind it must not begin the transaction.
        self.lowest_sequence = lowest_sequence
        self.asked_ms = asked_ms


NOT_ASKED: Final = TransactionGuard(-1, -1, -1)
"""Stands for a guard if nobody has to be asked (transaction.partition.verification.enable=false)."""


class TransactionGuards:
    """The guards of one partition, by producer."""

    __slots__ = ("_guards", "_guards_max")

    def __init__(self, guards_max: int) -> None:
        self._guards_max = guards_max
        self._guards: dict[int, TransactionGuard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def begin(self, producer_id: int, producer_epoch: int, first_sequence: int, now_ms: int) -> TransactionGuard:
        """The guard under which the coordinator is asked about a producer's transaction.

        `first_sequence`: the lowest with which it may begin, as far as the batch at hand tells.
        """
        guard = self._guards.get(producer_id)
        if guard is None or guard.producer_epoch < producer_epoch:
            if len(self._guards) >= self._guards_max:
                # Whoever still waits for the answer about it has to ask again.
                del self._guards[next(iter(self._guards))]
            guard = self._guards[producer_id] = TransactionGuard(producer_epoch, first_sequence, now_ms)
        elif guard.producer_epoch > producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {producer_epoch} of producer {producer_id} is older than its last seen",
            )
        else:
            guard.lowest_sequence = min(guard.lowest_sequence, first_sequence)
            guard.asked_ms = now_ms
        return guard

    def check(self, header: BatchHeader, guard: TransactionGuard | None, *, check_sequence: bool) -> None:
        """Raise KafkaError unless the batch may start a transaction."""
        if guard is NOT_ASKED:
            return
        if guard is None:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the batch is not part of an open transaction")
        if self._guards.get(header.producer_id) is not guard:
            # The answer may have been about a transaction that has ended since, or about one that began after the
            # marker came which revoked the guard. Every producer sends the batch again, and the coordinator is asked.
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, "a transaction of the producer ended while its coordinator was asked"
            )
        if check_sequence and header.base_sequence > guard.lowest_sequence:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins its transaction with sequence {header.base_sequence}, "
                f"not {guard.lowest_sequence}",
            )

    def end(self, producer_id: int) -> None:
        """The producer's transaction started in the log, or was ended: earlier questions no longer count."""
        if self._guards:
            self._guards.pop(producer_id, None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget transactions that the coordinator did not confirm and nobody has retried since."""
        for producer_id, guard in tuple(self._guards.items()):
            if now_ms - guard.asked_ms >= expiration_ms:
                del self._guards[producer_id]
