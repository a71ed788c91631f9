"""What a clean needs to know of transactions: whose records were aborted, and which markers have nothing left to mark.

What always holds: batches are shown to it in the order of the log; records of an aborted transaction are never kept;
a marker may go only when no batch of its transaction was met on the way to it. When a marker that may go really goes is
up to the delete horizon. It is told the aborted transactions and looks nothing up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tidelog.log.txn_index import AbortedTransaction
from tidelog.records import BatchHeader, ControlRecordType, decode_records, parse_control_record
from tidelog.records.batch import Buffer


class KeptAborts:
    """The index of a cleaned segment: the aborted transactions whose markers stay.

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
        """What the index of a segment with these offsets holds; None when it needs none, as none was there before."""
        kept, self._kept = self._kept, []
        if any(base_offset <= offset < end_offset for offset in self._by_marker):
            return kept
        return None


class CleanedTransactions:
    """The transactions that are open at the place in the log which a clean has come to."""

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
        """Whether this marker may go, because nothing of its transaction is left. Its CRC is checked here."""
        self._begin_up_to(header.last_offset)
        if not header.records_count:
            # It was emptied by an earlier clean, so it marks nothing.
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
