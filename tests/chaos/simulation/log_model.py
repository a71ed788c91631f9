"""What a partition's log must hold: a list of batches, and what may still be in doubt of it after a crash.

What always holds: the model knows nothing of files. `batches` is everything that was appended and not truncated, down
to the first offset ever, so that what was deleted can be told when it comes back; `ghosts` were truncated or lost and
may come back after a power cut until a flush has settled it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.log import PartitionLog
from tidelog.records import BatchHeader, Record, decode_records, iter_headers, parse_header


@dataclass(frozen=True)
class ModelBatch:
    """A batch as it lies in the log."""

    contents: bytes

    @property
    def header(self) -> BatchHeader:
        return parse_header(self.contents)

    @property
    def first_offset(self) -> int:
        return self.header.base_offset

    @property
    def next_offset(self) -> int:
        return self.header.next_offset

    @property
    def records(self) -> list[Record]:
        return decode_records(self.contents)


@dataclass
class Doubt:
    """What a step may have done when the process ended in the middle of it."""

    ends: set[int] = field(default_factory=set)
    batches: list[ModelBatch] = field(default_factory=list)
    starts: set[int] = field(default_factory=set)
    may_be_gone: bool = False


@dataclass
class ProducerModel:
    """What follows from the batches of one producer."""

    producer_epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    txn_first_offset: int = -1
    recent: list[ModelBatch] = field(default_factory=list)


class LogModel:
    """The log of one partition."""

    def __init__(self, *, is_compacted: bool = False) -> None:
        self.is_compacted = is_compacted
        self.batches: list[ModelBatch] = []
        self.ghosts: set[ModelBatch] = set()
        self.ghost_starts: set[int] = set()
        # Deleted records of a compacted log, which may still lie in its first file.
        self.buried: set[ModelBatch] = set()
        self.start = self.high_watermark = self.end = 0
        # What a flush and a checkpoint vouch for, whatever happens.
        self.durable_end = self.durable_start = 0
        self.may_be_gone = True
        # Whether `batches` is all that ever was appended, and not what a power cut brought back.
        self.is_history_known = True

    @property
    def last_end(self) -> int:
        """Where the last batch ends: after a truncation of a compacted log that may be before its end."""
        return self.batches[-1].next_offset if self.batches else self.start

    def visible(self) -> list[ModelBatch]:
        return [batch for batch in self.batches if batch.next_offset > self.start]

    def append(self, contents: bytes) -> None:
        batch = ModelBatch(contents)
        assert batch.first_offset >= self.end
        self.batches.append(batch)
        self.end = batch.next_offset

    def truncate(self, offset: int) -> None:
        kept = [batch for batch in self.batches if batch.next_offset <= offset]
        self.ghosts.update(self.batches[len(kept) :])
        cut = self.batches[len(kept) :]
        self.batches = kept
        # A batch goes as a whole.
        self.end = min([offset, self.end, *(batch.first_offset for batch in cut)])
        self.high_watermark = min(self.high_watermark, self.end)
        self.durable_end = min(self.durable_end, self.end)

    def start_at(self, offset: int) -> None:
        """All is truncated, and the log begins anew."""
        self.ghosts.update(self.batches)
        self.ghost_starts.add(self.start)
        self.batches = []
        self.start = self.high_watermark = self.end = offset
        self.durable_end = min(self.durable_end, offset)
        self.durable_start = min(self.durable_start, offset)

    def flushed(self) -> None:
        self.durable_end = self.end
        self.ghosts.clear()
        self.ghost_starts.clear()
        if self.end > self.start:
            self.may_be_gone = False

    def checkpointed(self) -> None:
        self.durable_start = self.start

    def adopt(self, found: list[ModelBatch], doubtful: list[ModelBatch], start: int, end: int) -> None:
        """Go on with what was found after a crash; what is gone may come back by a power cut until the next flush."""
        first = found[0].first_offset if found else end
        below = [batch for batch in self.batches if batch.next_offset <= first]
        self.is_history_known = self.is_history_known and not self.ghosts
        self.ghosts |= {*self.batches, *doubtful} - {*found, *below}
        self.batches = found if self.is_compacted else below + found
        self.buried.update(below if self.is_compacted else ())
        self.start, self.end = start, end
        self.durable_end = min(self.durable_end, end)

    def truncation_points(self) -> list[int]:
        return sorted({self.start, *(batch.first_offset for batch in self.visible()), self.end})

    # What follows from the batches

    def producers(self) -> dict[int, ProducerModel]:
        found: dict[int, ProducerModel] = {}
        for batch in self.batches:
            header = batch.header
            if header.producer_id < 0:
                continue
            producer = found.setdefault(header.producer_id, ProducerModel())
            if header.producer_epoch != producer.producer_epoch:
                producer.producer_epoch, producer.last_sequence, producer.last_offset = header.producer_epoch, -1, -1
                producer.recent.clear()
            if header.is_control:
                producer.txn_first_offset = -1
                continue
            producer.last_sequence, producer.last_offset = header.last_sequence, header.last_offset
            producer.recent = [*producer.recent[-4:], batch]
            if header.is_transactional and producer.txn_first_offset < 0:
                producer.txn_first_offset = header.base_offset
        return found

    def last_stable_offsets(self) -> range:
        """Where it may be: after a start the log no longer knows of ends above the high watermark."""
        return range(self._last_stable_offset(forgets=False), self._last_stable_offset(forgets=True) + 1)

    def _last_stable_offset(self, *, forgets: bool) -> int:
        unstable = []
        open_at: dict[int, int] = {}
        for batch in self.batches:
            header = batch.header
            if header.is_control:
                first = open_at.pop(header.producer_id, None)
                if first is not None and header.last_offset >= self.high_watermark and not forgets:
                    unstable.append(first)
            elif header.is_transactional:
                open_at.setdefault(header.producer_id, header.base_offset)
        return max(min([*unstable, *open_at.values(), self.high_watermark]), self.start)

    def has_transactions_below_start(self) -> bool:
        return not self.is_history_known or any(
            batch.header.is_transactional and batch.first_offset < self.start for batch in self.batches
        )

    def records(self) -> list[Record]:
        return [record for batch in self.visible() for record in batch.records if record.offset >= self.start]

    def first_at(self, timestamp: int) -> int | None:
        return next((record.offset for record in self.records() if record.timestamp >= timestamp), None)


def check_whole(
    found: list[ModelBatch], known: set[ModelBatch], required: list[ModelBatch], start: int, end: int
) -> None:
    """All from start to end is there without a gap, each batch as it was written, the required ones among them."""
    next_offset = start
    for batch in found:
        assert batch in known, f"offset {batch.first_offset} holds what was never there or was removed"
        assert batch.first_offset == next_offset or (batch is found[0] and batch.first_offset < start)
        next_offset = batch.next_offset
    assert next_offset == end
    assert {*required} <= {*found}, "what was promised is lost"


def check_compacted(found: list[ModelBatch], known: set[ModelBatch], required: list[ModelBatch], start: int) -> None:
    """Each record is one that was written there, in order, and no key has lost its last value."""
    written = {(record.offset, record.key, record.value) for batch in known for record in batch.records}
    next_offset = -1
    last_found: dict[bytes | None, int] = {}
    for batch in found:
        assert batch.first_offset >= next_offset
        next_offset = batch.next_offset
        for record in batch.records:
            assert (record.offset, record.key, record.value) in written, f"offset {record.offset} was never written so"
            last_found[record.key] = record.offset
    last: dict[bytes | None, Record] = {record.key: record for batch in required for record in batch.records}
    for key, record in last.items():
        if record.value is not None and record.offset >= start:
            assert last_found.get(key, -1) >= record.offset, f"key {key!r} has lost its value at {record.offset}"


def read_batches(log: PartitionLog, max_bytes: int = 4000) -> list[ModelBatch]:
    """All batches from the log's start on, as a consumer reads them."""
    offset = log.log_start_offset
    batches = []
    while offset < log.log_end_offset:
        read = log.read(offset, max_bytes, limit_offset=log.log_end_offset, min_one_batch=True)
        data = b"".join(part.read() for part in read.slices)
        if not data and log.config.is_compacted:
            break
        assert data, f"nothing at offset {offset}"
        for position, header in iter_headers(data, allow_partial=True):
            batches.append(ModelBatch(bytes(data[position : position + header.size_bytes])))
            offset = header.next_offset
    return batches
