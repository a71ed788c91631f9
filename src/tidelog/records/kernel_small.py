"""The loops of compaction over runs of small batches, many batches per call; compiled like `kernel`.

For a batch of a record or two, the work around the records costs more than the records themselves, so the cleaner would
take minutes to go through millions of them one by one in Python. What always holds: a batch is processed here only if
nothing about it is special. It is whole, small, neither compressed nor part of a transaction, with a valid CRC and
valid records, and it is kept or dropped unchanged. The first other batch ends the run, and the caller handles it. So
nothing is rejected here, and what stays is only copied.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

from tidelog.records.kernel import Bytes
from tidelog.records.kernel_offset_map import QUEUE_SIZE, KeyHash, KeyQueue, OffsetMap
from tidelog.records.kernel_walk import RecordWalk

try:
    import cython
except ImportError:  # as in `kernel_compact`
    globals()["cython"] = SimpleNamespace(nogil=nullcontext())

INT64_MAX = 0x7FFFFFFFFFFFFFFF
LOG_OVERHEAD = 12
HEADER_SIZE = 61
MAGIC = 2
DELETE_HORIZON_BIT = 0x40

SPECIAL_BITS = 0x37  # compression, transactional, control
SPANS_MAX = 1024  # limits for what one run may keep
SPAN_COLUMNS = 5

UNLOCKED_SIZE_MIN = 32 * 1024  # as in `kernel_compact`

_CRC_POLYNOMIAL = 0x82F63B78


def crc_table() -> memoryview:
    """CRC-32C of every byte followed by 0 to 7 zero bytes, as uint32: 256 values for each of these lengths."""
    table = memoryview(bytearray(4 * 8 * 256)).cast("I")
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CRC_POLYNOMIAL if crc & 1 else 0)
        table[byte] = crc
    for index in range(256, 8 * 256):
        shorter = table[index - 256]
        table[index] = table[shorter & 0xFF] ^ shorter >> 8
    return table


class KeptBatches:
    """The batches that a run keeps, one after another, with the details that an index needs about each few of them.

    A span is several of these batches: it ends with the one that makes it larger than `span_size`. One object serves
    any number of runs.
    """

    __slots__ = ("count", "end", "out", "span_end", "span_size", "spans")

    out: bytearray
    end: int  # of what was written to `out`
    span_size: int
    spans: memoryview  # int64: rows of SPAN_COLUMNS
    count: int
    span_end: int  # where the last one is full

    def __init__(self, span_size: int) -> None:
        self.out = bytearray()
        self.span_size = span_size
        self.spans = memoryview(bytearray(8 * SPAN_COLUMNS * SPANS_MAX)).cast("q")
        self.begin(0)

    def begin(self, size: int) -> None:
        """Clear it, and make room for this many bytes."""
        if len(self.out) < size:
            self.out = bytearray(size)
        self.end = 0
        self.count = 0
        self.span_end = -1

    def has_room(self) -> bool:
        """Whether another batch can be added."""
        return self.count < SPANS_MAX or self.end <= self.span_end

    def add(self, run: BatchRun) -> None:
        """Keep the batch that the run is looking at; there must be room for it."""
        if self.end > self.span_end:
            row = self.count * SPAN_COLUMNS
            self.count += 1
            self.span_end = self.end + self.span_size
            self.spans[row] = self.end
            self.spans[row + 1] = run.last_offset
            self.spans[row + 2] = run.max_timestamp
            self.spans[row + 3] = run.last_offset
        else:
            row = (self.count - 1) * SPAN_COLUMNS
            if run.max_timestamp > self.spans[row + 2]:
                self.spans[row + 2] = run.max_timestamp
                self.spans[row + 3] = run.last_offset
        self.spans[row + 4] = run.last_offset
        size = run.end - run.position
        self.out[self.end : self.end + size] = run.data[run.position : run.end]
        self.end += size

    def data(self) -> memoryview:
        """The kept batches, valid until the next run begins."""
        return memoryview(self.out)[: self.end]

    def rows(self) -> list[tuple[int, ...]]:
        """For each span: where it begins, and the fields of its BatchSpan except the size."""
        words = self.spans
        return [
            tuple([words[row + column] for column in range(SPAN_COLUMNS)])
            for row in range(0, self.count * SPAN_COLUMNS, SPAN_COLUMNS)
        ]


class BatchRun:
    """Walks from batch to batch through a chunk of a log, as long as small batches follow one another."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_timestamp",
        "data",
        "end",
        "last_is_kept",
        "last_offset",
        "last_position",
        "max_timestamp",
        "next_offset",
        "position",
        "records_kept",
        "records_read",
        "size",
        "size_max",
        "table",
    )

    data: Bytes
    size: int
    size_max: int  # of a batch that is small
    table: memoryview
    position: int  # of the current batch, and at the end after the last one processed
    next_offset: int  # the lowest it may have
    end: int
    base_offset: int
    last_offset: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    # Processed batches.
    records_read: int
    records_kept: int
    last_position: int  # -1 if nothing was
    last_is_kept: bool

    def __init__(self, data: bytes, position: int, next_offset: int, size_max: int) -> None:
        self.data = data
        self.size = len(data)
        self.size_max = size_max
        self.table = CRC_TABLE
        self.position = position
        self.next_offset = next_offset
        self.records_read = 0
        self.records_kept = 0
        self.last_position = -1
        self.last_is_kept = False

    def find_batch(self, walk: RecordWalk) -> bool:
        """Whether a batch that can be processed begins here; if so, the walk has entered it."""
        at = self.position
        if at < 0 or self.size - at < HEADER_SIZE:
            return False
        length = self.read_int(at + 8, 4)
        self.end = at + LOG_OVERHEAD + length
        if length < HEADER_SIZE - LOG_OVERHEAD or self.end - at > self.size_max or self.end > self.size:
            return False
        self.attributes = self.read_int(at + 21, 2)
        if self.data[at + 16] != MAGIC or self.attributes & SPECIAL_BITS != 0:
            return False
        self.base_offset = self.read_int(at, 8)
        last_offset_delta = self.read_int(at + 23, 4)
        count = self.read_int(at + 57, 4)
        if self.base_offset < self.next_offset or last_offset_delta < 0 or count <= 0:
            return False
        if self.base_offset >= INT64_MAX - last_offset_delta:
            return False
        self.last_offset = self.base_offset + last_offset_delta
        crc = (self.read_int(at + 17, 2) & 0xFFFF) << 16 | (self.read_int(at + 19, 2) & 0xFFFF)
        if crc != self.compute_crc(at + 21, self.end):
            return False
        self.base_timestamp = self.read_int(at + 27, 8)
        self.max_timestamp = self.read_int(at + 35, 8)
        walk.set_times(self.base_timestamp, self.max_timestamp, self.attributes & 0x08 != 0)
        return walk.enter(at + HEADER_SIZE, self.end, count, last_offset_delta)

    def take_up(self, walk: RecordWalk, is_kept: bool) -> None:
        """Move on to the next batch."""
        self.records_read += walk.count
        if is_kept:
            self.records_kept += walk.count
        self.last_position = self.position
        self.last_is_kept = is_kept
        self.position = self.end
        self.next_offset = self.last_offset + 1

    def go_back(self, position: int) -> None:
        """End the run before a batch that was already processed."""
        self.position = position
        self.next_offset = self.read_int(position, 8)

    def read_int(self, at: int, size: int) -> int:
        """A signed number, highest byte first."""
        byte = self.data[at]
        value = byte - 256 if byte > 127 else byte
        for index in range(1, size):
            value = value * 256 + self.data[at + index]
        return value

    def compute_crc(self, start: int, end: int) -> int:
        """CRC-32C, eight bytes at a time: byte by byte, each step would have to wait for the one before."""
        mask = 0xFFFFFFFF
        crc = mask
        at = start
        while end - at >= 8:
            low = self.data[at + 3]
            low = low << 8 | self.data[at + 2]
            low = low << 8 | self.data[at + 1]
            low = (low << 8 | self.data[at]) ^ crc
            crc = self.table[0x700 + (low & 0xFF)] ^ self.table[0x600 + (low >> 8 & 0xFF)]
            crc ^= self.table[0x500 + (low >> 16 & 0xFF)] ^ self.table[0x400 + (low >> 24)]
            crc ^= self.table[0x300 + self.data[at + 4]] ^ self.table[0x200 + self.data[at + 5]]
            crc ^= self.table[0x100 + self.data[at + 6]] ^ self.table[self.data[at + 7]]
            at += 8
        while at < end:
            crc = self.table[(crc ^ self.data[at]) & 0xFF] ^ crc >> 8
            at += 1
        return crc ^ mask


CRC_TABLE = crc_table()


def note_run(run: BatchRun, walk: RecordWalk, offset_map: OffsetMap, start_offset: int, end_offset: int) -> None:
    """Note the keys of the run's records with `start_offset` <= offset < `end_offset`; a full map ends the run."""
    hashing = KeyHash(run.data, offset_map.secret_low, offset_map.secret_high)
    queue = offset_map.queue
    if run.size - run.position < UNLOCKED_SIZE_MIN:
        run_note_run(run, walk, offset_map, hashing, queue, start_offset, end_offset)
    else:
        with cython.nogil:
            run_note_run(run, walk, offset_map, hashing, queue, start_offset, end_offset)


def run_note_run(
    run: BatchRun,
    walk: RecordWalk,
    offset_map: OffsetMap,
    hashing: KeyHash,
    queue: KeyQueue,
    start_offset: int,
    end_offset: int,
) -> None:
    queue.count = 0
    has_room = True
    while has_room and run.find_batch(walk):
        for _ in range(walk.count):
            if not walk.next_record():
                break
            offset = run.base_offset + walk.offset_delta
            if walk.key_length < 0 or offset < start_offset or offset >= end_offset:
                continue
            if queue.count == QUEUE_SIZE:
                has_room = note_waiting(run, queue, offset_map)
                if not has_room:
                    break
            hashing.compute(walk.key_at, walk.key_length)
            queue.describe(run.position, 0, 0, False)
            queue.add(hashing.low, hashing.high, offset)
        if not has_room or not walk.has_ended():
            break
        run.take_up(walk, False)
    if has_room and note_waiting(run, queue, offset_map) and run.last_position >= 0:
        offset_map.update_latest_offset(min(run.next_offset, end_offset) - 1)


def note_waiting(run: BatchRun, queue: KeyQueue, offset_map: OffsetMap) -> bool:
    """Note the queued keys; if there is no room for one, the run ends before its batch."""
    count = queue.fetch(offset_map)
    for at in range(count):
        if not offset_map.note(queue.low[at], queue.high[at], queue.offset[at]):
            run.go_back(queue.index[at])
            return False
    return True


def filter_run(
    run: BatchRun, walk: RecordWalk, offset_map: OffsetMap, now_ms: int, needed_offsets: memoryview, kept: KeptBatches
) -> None:
    """Keep or drop the run's batches; one that would be dropped but has a needed last offset ends the run."""
    hashing = KeyHash(run.data, offset_map.secret_low, offset_map.secret_high)
    kept.begin(run.size - run.position)
    if run.size - run.position < UNLOCKED_SIZE_MIN:
        run_filter_run(run, walk, offset_map, hashing, now_ms, needed_offsets, kept)
    else:
        with cython.nogil:
            run_filter_run(run, walk, offset_map, hashing, now_ms, needed_offsets, kept)


def run_filter_run(
    run: BatchRun,
    walk: RecordWalk,
    offset_map: OffsetMap,
    hashing: KeyHash,
    now_ms: int,
    needed_offsets: memoryview,
    kept: KeptBatches,
) -> None:
    while kept.has_room() and run.find_batch(walk):
        has_horizon = run.attributes & DELETE_HORIZON_BIT != 0
        keeps_tombstones = not has_horizon or now_ms < run.base_timestamp
        kept_count = 0
        is_special = False
        for _ in range(walk.count):
            if not walk.next_record():
                break
            offset = run.base_offset + walk.offset_delta
            is_tombstone = walk.value_length < 0
            if offset <= offset_map.latest_offset:
                if walk.key_length < 0:
                    is_special = True  # the caller counts such records
                    break
                if is_tombstone and not keeps_tombstones:
                    continue
                hashing.compute(walk.key_at, walk.key_length)
                if offset < offset_map.offset_at(offset_map.find_slot(hashing.low, hashing.high)):
                    continue
            kept_count += 1
            is_special |= is_tombstone and not has_horizon
        if is_special or not walk.has_ended():
            break
        if kept_count > 0 and kept_count < walk.count:
            break
        if kept_count == 0 and is_among(needed_offsets, run.last_offset):
            break
        if kept_count > 0:
            kept.add(run)
        run.take_up(walk, kept_count > 0)


def is_among(numbers: memoryview, number: int) -> bool:
    """Whether a number is among those, which are sorted."""
    first = 0
    end = len(numbers)
    while first < end:
        middle = (first + end) >> 1
        if numbers[middle] < number:
            first = middle + 1
        else:
            end = middle
    return first < len(numbers) and numbers[first] == number
