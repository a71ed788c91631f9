"""Whether a transaction may begin in a partition: only after its coordinator has said that the partition is part of it
(KIP-890).

What always holds: a guard is given out before the coordinator is asked and taken back by whatever ends or begins a
transaction of the producer, so that an answer that comes late (the transaction was aborted meanwhile, perhaps another
one begun) opens nothing. Guards are kept in memory only: after a restart the coordinator is asked again. Nothing here
asks it.
"""

from __future__ import annotations

from typing import Final

from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import BatchHeader


class TransactionGuard:
    """One verification of one transaction; it counts as long as it is the one that the partition has."""

    __slots__ = ("asked_ms", "lowest_sequence", "producer_epoch")

    def __init__(self, producer_epoch: int, lowest_sequence: int, asked_ms: int) -> None:
        self.producer_epoch = producer_epoch
        # The first batch of the transaction here has this sequence; one behind it must not begin the transaction.
        self.lowest_sequence = lowest_sequence
        self.asked_ms = asked_ms


NOT_ASKED: Final = TransactionGuard(-1, -1, -1)
"""In the place of a guard where nobody is to be asked (transaction.partition.verification.enable=false)."""


class TransactionGuards:
    """The guards of one partition, by producer."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, TransactionGuard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def begin(self, producer_id: int, producer_epoch: int, first_sequence: int, now_ms: int) -> TransactionGuard:
        """The guard under which the coordinator is asked about a producer's transaction.

        `first_sequence`: the lowest with which it may begin, as far as the batch at hand tells.
        """
        guard = self._guards.get(producer_id)
        if guard is None or guard.producer_epoch < producer_epoch:
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
        """Raise KafkaError unless the batch may begin a transaction."""
        if guard is NOT_ASKED:
            return
        if guard is None or self._guards.get(header.producer_id) is not guard:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the batch is not part of an open transaction")
        if check_sequence and header.base_sequence > guard.lowest_sequence:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins its transaction with sequence {header.base_sequence}, "
                f"not {guard.lowest_sequence}",
            )

    def end(self, producer_id: int) -> None:
        """The producer's transaction began in the log, or was ended: what was asked before counts no more."""
        if self._guards:
            self._guards.pop(producer_id, None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget transactions that the coordinator did not confirm and nobody has tried again since."""
        for producer_id, guard in tuple(self._guards.items()):
            if now_ms - guard.asked_ms >= expiration_ms:
                del self._guards[producer_id]
