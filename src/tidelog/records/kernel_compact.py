"""The loops of compaction: noting keys, choosing the records that stay, copying them; compiled like `kernel`.

What always holds: no Python object is created per record. Every length and varint is checked against the remaining
bytes before it is used. Loops over much data run without the interpreter's lock, so that the cleaner's thread does not
hold up the event loop. Batch headers, CRC and compression are not handled here: the input is the records part of a
batch, already decompressed, which `compaction` provides.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

from tidelog.records.kernel_offset_map import QUEUE_SIZE, KeyHash, KeyQueue, OffsetMap
from tidelog.records.kernel_walk import RecordWalk, explain

try:
    import cython
except ImportError:  # the compiled module does not look for it, and the interpreted one does without
    globals()["cython"] = SimpleNamespace(nogil=nullcontext())

INT64_MAX = 0x7FFFFFFFFFFFFFFF
INT64_MIN = -INT64_MAX - 1

# Releasing the interpreter's lock and taking it again can wait for milliseconds, longer than such a loop takes.
UNLOCKED_SIZE_MIN = 32 * 1024

# Return values of the loops.
CORRUPT = 0
DONE = 1
FULL = 2


def note_keys(walk: RecordWalk, offset_map: OffsetMap, base_offset: int, start_offset: int, end_offset: int) -> bool:
    """Note every keyed record from `start_offset` up to, not including, `end_offset`.

    False if the map got full; `latest_offset` is then right before the first record that had no room. After a
    CorruptBatchError the map may hold a part of the batch.
    """
    hashing = KeyHash(walk.data, offset_map.secret_low, offset_map.secret_high)
    queue = offset_map.queue
    if walk.size < UNLOCKED_SIZE_MIN:
        answer = run_note_keys(walk, offset_map, hashing, queue, base_offset, start_offset, end_offset)
    else:
        with cython.nogil:
            answer = run_note_keys(walk, offset_map, hashing, queue, base_offset, start_offset, end_offset)
    if answer == CORRUPT:
        raise explain(walk, base_offset)
    return answer == DONE


def run_note_keys(
    walk: RecordWalk,
    offset_map: OffsetMap,
    hashing: KeyHash,
    queue: KeyQueue,
    base_offset: int,
    start_offset: int,
    end_offset: int,
) -> int:
    queue.count = 0
    for _ in range(walk.count):
        if not walk.next_record():
            return CORRUPT
        offset = base_offset + walk.offset_delta
        if walk.key_length < 0 or offset < start_offset or offset >= end_offset:
            continue
        if queue.count == QUEUE_SIZE and not note_queued(queue, offset_map):
            return FULL
        hashing.compute(walk.key_at, walk.key_length)
        queue.add(hashing.low, hashing.high, offset)
    if not walk.has_ended():
        return CORRUPT
    if not note_queued(queue, offset_map):
        return FULL
    offset_map.update_latest_offset(min(base_offset + walk.last_offset_delta, end_offset - 1))
    return DONE


def note_queued(queue: KeyQueue, offset_map: OffsetMap) -> bool:
    """Note the queued keys; False if there is no room for one of them."""
    count = queue.fetch(offset_map)
    for at in range(count):
        if not offset_map.note(queue.low[at], queue.high[at], queue.offset[at]):
            offset_map.update_latest_offset(queue.offset[at] - 1)
            return False
    return True


class Choice:
    """Which records of a batch stay, one bit each, with totals."""

    __slots__ = ("bits", "kept_bytes", "kept_count", "keyless_count", "max_timestamp", "tombstones_count")

    bits: bytearray
    kept_count: int
    kept_bytes: int
    keyless_count: int  # those removed because they have no key
    tombstones_count: int  # those that stay
    max_timestamp: int  # of those that stay

    def __init__(self, walk: RecordWalk) -> None:
        self.bits = bytearray((walk.count + 7) >> 3)
        self.kept_count = 0
        self.kept_bytes = 0
        self.keyless_count = 0
        self.tombstones_count = 0
        self.max_timestamp = -1

    def keep(self, index: int, size: int, timestamp: int, is_tombstone: bool) -> None:
        self.bits[index >> 3] |= 1 << (index & 7)
        self.kept_count += 1
        self.kept_bytes += size
        if is_tombstone:
            self.tombstones_count += 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp

    def has(self, index: int) -> bool:
        return bool(self.bits[index >> 3] >> (index & 7) & 1)


def choose_all(walk: RecordWalk, base_offset: int) -> Choice:
    """Choose every record of the batch, which should be a small one."""
    choice = Choice(walk)
    for index in range(walk.count):
        if not walk.next_record():
            raise explain(walk, base_offset)
        choice.keep(index, walk.end - walk.start, walk.timestamp, walk.value_length < 0)
    if not walk.has_ended():
        raise explain(walk, base_offset)
    return choice


def choose_records(walk: RecordWalk, offset_map: OffsetMap, base_offset: int, keeps_tombstones: bool) -> Choice:
    """Decide on every record of the batch."""
    choice = Choice(walk)
    hashing = KeyHash(walk.data, offset_map.secret_low, offset_map.secret_high)
    queue = offset_map.queue
    if walk.size < UNLOCKED_SIZE_MIN:
        answer = run_choose_records(walk, offset_map, hashing, queue, choice, base_offset, keeps_tombstones)
    else:
        with cython.nogil:
            answer = run_choose_records(walk, offset_map, hashing, queue, choice, base_offset, keeps_tombstones)
    if answer == CORRUPT:
        raise explain(walk, base_offset)
    return choice


def run_choose_records(
    walk: RecordWalk,
    offset_map: OffsetMap,
    hashing: KeyHash,
    queue: KeyQueue,
    choice: Choice,
    base_offset: int,
    keeps_tombstones: bool,
) -> int:
    queue.count = 0
    for index in range(walk.count):
        if not walk.next_record():
            return CORRUPT
        offset = base_offset + walk.offset_delta
        size = walk.end - walk.start
        is_tombstone = walk.value_length < 0
        # After the map's last known offset, a record may be the last of its key, or not be up for cleaning yet.
        if offset > offset_map.latest_offset:
            choice.keep(index, size, walk.timestamp, is_tombstone)
        elif walk.key_length < 0:
            choice.keyless_count += 1
        elif keeps_tombstones or not is_tombstone:
            if queue.count == QUEUE_SIZE:
                choose_queued(queue, offset_map, choice)
            queue.describe(index, size, walk.timestamp, is_tombstone)
            hashing.compute(walk.key_at, walk.key_length)
            queue.add(hashing.low, hashing.high, offset)
    choose_queued(queue, offset_map, choice)
    return DONE if walk.has_ended() else CORRUPT


def choose_queued(queue: KeyQueue, offset_map: OffsetMap, choice: Choice) -> None:
    """Decide on the records whose keys are queued: those without a later one of the same key stay."""
    count = queue.fetch(offset_map)
    for at in range(count):
        word = offset_map.find_slot(queue.low[at], queue.high[at])
        if queue.offset[at] >= offset_map.offset_at(word):
            choice.keep(queue.index[at], queue.size[at], queue.timestamp[at], queue.is_tombstone[at] != 0)


class RecordCopy:
    """Writes the records that stay, one after another, into `out`, which has room for all of them."""

    __slots__ = ("out", "position")

    out: bytearray
    position: int

    def __init__(self, out: bytearray, position: int) -> None:
        self.out = out
        self.position = position

    def write_varint(self, value: int) -> None:
        raw = value if value >= 0 else -(value + 1)
        raw <<= 1
        if value < 0:
            raw |= 1
        while raw >= 0x80:
            self.out[self.position] = (raw & 0x7F) | 0x80
            self.position += 1
            raw >>= 7
        self.out[self.position] = raw
        self.position += 1

    def write_range(self, walk: RecordWalk, start: int, end: int) -> None:
        self.out[self.position : self.position + end - start] = walk.data[start:end]
        self.position += end - start


def copy_records(walk: RecordWalk, choice: Choice, copy: RecordCopy) -> None:
    """Write the chosen records of a walked batch unchanged, adjacent ones together."""
    walk.rewind()
    if walk.size < UNLOCKED_SIZE_MIN:
        run_copy_records(walk, choice, copy)
    else:
        with cython.nogil:
            run_copy_records(walk, choice, copy)


def run_copy_records(walk: RecordWalk, choice: Choice, copy: RecordCopy) -> None:
    start = 0
    for index in range(walk.count):
        walk.next_range()
        if not choice.has(index):
            if walk.start > start:
                copy.write_range(walk, start, walk.start)
            start = walk.end
    if walk.end > start:
        copy.write_range(walk, start, walk.end)


def size_with_horizon(walk: RecordWalk, choice: Choice, horizon_ms: int) -> int:
    """Size of the chosen records with timestamps relative to the horizon; -1 if one of them exceeds 64 bits."""
    walk.rewind()
    if walk.size < UNLOCKED_SIZE_MIN:
        return run_size_with_horizon(walk, choice, horizon_ms)
    with cython.nogil:
        size = run_size_with_horizon(walk, choice, horizon_ms)
    return size


def run_size_with_horizon(walk: RecordWalk, choice: Choice, horizon_ms: int) -> int:
    size = 0
    for index in range(walk.count):
        walk.next_range()
        if choice.has(index):
            if walk.timestamp < INT64_MIN + horizon_ms:
                return -1
            length = 1 + size_of_varint(walk.timestamp - horizon_ms) + walk.end - walk.rest_at
            size += size_of_varint(length) + length
    return size


def copy_with_horizon(walk: RecordWalk, choice: Choice, copy: RecordCopy, horizon_ms: int) -> None:
    """Write the chosen records of a walked batch with timestamps relative to the horizon."""
    walk.rewind()
    if walk.size < UNLOCKED_SIZE_MIN:
        run_copy_with_horizon(walk, choice, copy, horizon_ms)
    else:
        with cython.nogil:
            run_copy_with_horizon(walk, choice, copy, horizon_ms)


def run_copy_with_horizon(walk: RecordWalk, choice: Choice, copy: RecordCopy, horizon_ms: int) -> None:
    for index in range(walk.count):
        walk.next_range()
        if choice.has(index):
            delta = walk.timestamp - horizon_ms
            copy.write_varint(1 + size_of_varint(delta) + walk.end - walk.rest_at)
            copy.out[copy.position] = 0  # a record's attributes, all of which are unused
            copy.position += 1
            copy.write_varint(delta)
            copy.write_range(walk, walk.rest_at, walk.end)


def size_of_varint(value: int) -> int:
    raw = value if value >= 0 else -(value + 1)
    raw >>= 6  # the first byte has six bits besides the sign
    size = 1
    while raw > 0:
        raw >>= 7
        size += 1
    return size
