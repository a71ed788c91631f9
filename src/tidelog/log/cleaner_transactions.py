"""What a compaction needs to know about transactions: whose records were aborted, and which markers are obsolete.

What always holds: batches arrive in log order; records of an aborted transaction are never kept; a marker may be
removed only if no batch of its transaction came before it. The delete horizon decides when it really is removed. The
aborted transactions are passed in; it looks nothing up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tidelog.log.txn_index import AbortedTransaction
from tidelog.records import BatchHeader, ControlRecordType, decode_records, parse_control_record
from tidelog.records.batch import Buffer


class KeptAborts:
    """The index of a cleaned segment: the aborted transactions whose markers are kept.

    One that outlived its marker would hide what the producer wrote later.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._by_marker = {entry.last_offset: entry for entry in aborted}
        self._kept: list[AbortedTransaction] = []

    def on_marker_kept(self, offset: int) -> None:
        entry = self._by_marker.get(offset)
        if entry is not None:
            self._kept.append(entry)

    def take(self, base_offset: int, end_offset: int) -> list[AbortedTransaction] | None:
        """The index entries for a segment with these offsets; None if it needs no index because it had none before."""
        kept, self._kept = self._kept, []
        if any(base_offset <= offset < end_offset for offset in self._by_marker):
            return kept
        return None


class CleanedTransactions:
    """The transactions that are open at the position that a compaction has reached."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted: dict[int, bool] = {}  # producer: whether a batch of the transaction was met
        self._committed: set[int] = set()

    def on_batch(self, header: BatchHeader) -> bool:
        """Whether the records of this batch were aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted[header.producer_id] = True
            return True
        self._committed.add(header.producer_id)
        return False

    def on_control_batch(self, buffer: Buffer, header: BatchHeader, position: int) -> bool:
        """Whether this marker may be removed, because nothing of its transaction is left. Checks its CRC."""
        self._begin_up_to(header.last_offset)
        if not header.records_count:
            # An earlier compaction emptied it, so it marks nothing.
            return True
        marker = parse_control_record(decode_records(buffer, position)[0])
        if marker.type is ControlRecordType.ABORT:
            return not self._aborted.pop(header.producer_id, False)
        if marker.type is ControlRecordType.COMMIT:
            had_records = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not had_records
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0].first_offset <= offset:
            self._aborted.setdefault(self._waiting.popleft().producer_id, False)
