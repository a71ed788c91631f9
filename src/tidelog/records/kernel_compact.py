"""The loops of compaction: noting keys, choosing the records that stay, copying them; compiled like `kernel`.

What always holds: no Python object is made per record; every length and varint is checked against the bytes that remain
before it is used. A loop over much data runs without the interpreter's lock, so that the cleaner's thread does not hold
up the event loop. Batch headers, CRC and compression are not here: the input is the records part of a batch, already
decompressed. `compaction` makes the one into the other.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

from tidelog.records.errors import CorruptBatchError
from tidelog.records.kernel import Bytes, RecordReader
from tidelog.records.kernel_offset_map import KeyHash, OffsetMap

try:
    import cython
except ImportError:  # the compiled twin does not look for it, and the interpreted one does without
    globals()["cython"] = SimpleNamespace(nogil=nullcontext())

INT64_MAX = 0x7FFFFFFFFFFFFFFF
INT64_MIN = -INT64_MAX - 1
RECORD_SIZE_MIN = 7  # as in `kernel`

# Giving up the interpreter's lock and taking it again can cost a wait of milliseconds, more than such a loop takes.
UNLOCKED_SIZE_MIN = 32 * 1024

# What the loops answer.
CORRUPT = 0
DONE = 1
FULL = 2


class RecordWalk:
    """A cursor over the records of a stored batch, for loops without the interpreter's lock.

    It refuses what `kernel.RecordReader` refuses, and offsets that do not rise, but makes no exception: `next_record`
    says no, and `explain` finds out why. A stored batch may have gaps between its offsets, where records were removed.
    """

    __slots__ = (
        "count",
        "data",
        "end",
        "index",
        "is_sound",
        "is_stamped",
        "key_at",
        "key_length",
        "last_offset_delta",
        "limit",
        "offset_delta",
        "position",
        "rest_at",
        "size",
        "start",
        "timestamp",
        "timestamp_base",
        "value_length",
    )

    data: Bytes
    size: int
    count: int
    last_offset_delta: int
    timestamp_base: int
    is_stamped: bool  # whether all records have the log append time, whatever their deltas say
    is_sound: bool
    position: int
    limit: int  # what is being read must end here
    index: int
    start: int  # where the record begins, with its length
    rest_at: int  # where it goes on behind its timestamp delta
    end: int
    offset_delta: int
    timestamp: int
    key_at: int
    key_length: int
    value_length: int

    def __init__(
        self,
        data: Bytes,
        count: int,
        last_offset_delta: int,
        base_timestamp: int,
        log_append_time: int,
        is_stamped: bool,
    ) -> None:
        self.data = data
        self.size = len(data)
        self.count = count
        self.last_offset_delta = last_offset_delta
        self.timestamp_base = base_timestamp
        self.timestamp = log_append_time
        self.is_stamped = is_stamped
        if count > self.size // RECORD_SIZE_MIN:
            raise CorruptBatchError(f"{self.size} bytes can't hold the {count} records announced")
        self.rewind()

    def rewind(self) -> None:
        self.is_sound = True
        self.position = 0
        self.limit = self.size
        self.index = 0
        self.end = 0
        self.offset_delta = -1

    def next_record(self) -> bool:
        """Move to the next record and read all of it; False when it is not sound."""
        self.start = self.position
        self.limit = self.size
        length = self.read_varint()
        if length < RECORD_SIZE_MIN - 1 or length > self.limit - self.position:
            self.is_sound = False
            return False
        # From here on nothing of this record may reach into the next one.
        self.limit = self.position + length
        self.end = self.limit
        self.position += 1  # the attributes of a record, of which none is in use
        timestamp_delta = self.read_varlong()
        if not self.is_stamped:
            self.timestamp = self.add_to_base(timestamp_delta)
        self.rest_at = self.position
        offset_delta = self.read_varint()
        if offset_delta <= self.offset_delta or offset_delta > self.last_offset_delta:
            self.is_sound = False
        self.offset_delta = offset_delta
        self.key_length = self.read_length()
        self.key_at = self.position
        self.skip(self.key_length)
        self.value_length = self.read_length()
        self.skip(self.value_length)
        self.skip_headers()
        if self.position != self.limit:
            self.is_sound = False
        self.index += 1
        return self.is_sound

    def has_ended(self) -> bool:
        """Whether the last record ended where the data does."""
        return self.is_sound and self.position == self.size

    def next_range(self) -> None:
        """Move to the next record of a batch that was walked before, and only find `start`, `rest_at` and `end`."""
        self.start = self.position
        self.limit = self.size
        length = self.read_varint()
        self.limit = self.position + length
        self.end = self.limit
        self.position += 1
        timestamp_delta = self.read_varlong()
        if not self.is_stamped:
            self.timestamp = self.add_to_base(timestamp_delta)
        self.rest_at = self.position
        self.position = self.limit
        self.index += 1

    def skip(self, length: int) -> None:
        if length > 0:
            self.position += length

    def skip_headers(self) -> None:
        headers_count = self.read_varint()
        # A header has at least two bytes, the lengths of its key and value.
        if headers_count < 0 or headers_count > (self.limit - self.position) // 2:
            self.is_sound = False
            headers_count = 0
        for _ in range(headers_count):
            key_length = self.read_length()
            if key_length < 0:
                self.is_sound = False
                break
            self.skip(key_length)
            self.skip(self.read_length())

    def read_length(self) -> int:
        """A length that may be -1 for null and otherwise fits the rest of the record."""
        length = self.read_varint()
        if length < -1 or length > self.limit - self.position:
            self.is_sound = False
            return -1
        return length

    def read_varint(self) -> int:
        if self.position < self.limit:
            byte = self.data[self.position]
            if byte < 0x80:
                self.position += 1
                return (byte >> 1) ^ -(byte & 1)
        raw = self.read_raw(5, 0x0F)
        return (raw >> 1) ^ -(raw & 1)

    def read_varlong(self) -> int:
        raw = self.read_raw(10, 0x01)
        return (raw >> 1) ^ -(raw & 1)

    def read_raw(self, bytes_max: int, last_byte_max: int) -> int:
        """The unsigned value of a varint; its last byte may only hold the bits that fit."""
        raw = 0
        for index in range(bytes_max):
            if self.position >= self.limit:
                break
            byte = self.data[self.position]
            self.position += 1
            if index == bytes_max - 1 and byte > last_byte_max:
                break
            raw |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return raw
        self.is_sound = False
        return 0

    def add_to_base(self, delta: int) -> int:
        base = self.timestamp_base
        if (delta > 0 and base > INT64_MAX - delta) or (delta < 0 and base < INT64_MIN - delta):
            self.is_sound = False
            return 0
        return base + delta


def explain(walk: RecordWalk, base_offset: int) -> CorruptBatchError:
    """Why the walk came to no good end, in the words of the reader that makes exceptions."""
    reader = RecordReader(walk.data, walk.count, base_offset, walk.timestamp_base, 0, walk.is_stamped)
    last_offset = base_offset - 1
    for _ in range(walk.count):
        reader.next_record()
        if reader.offset <= last_offset or reader.offset > base_offset + walk.last_offset_delta:
            return reader.problem(f"has offset {reader.offset} behind {last_offset}")
        last_offset = reader.offset
        reader.skip_headers()
        reader.end_record()
    reader.end_records()
    return CorruptBatchError("the records of the batch are not sound")


def note_keys(walk: RecordWalk, offset_map: OffsetMap, base_offset: int, start_offset: int, end_offset: int) -> bool:
    """Note every keyed record from `start_offset` to before `end_offset`.

    False when the map got full; `latest_offset` then is right before the first record that had no room. After a
    CorruptBatchError the map may hold a part of the batch.
    """
    hashing = KeyHash(walk.data, offset_map.secret_low, offset_map.secret_high)
    if walk.size < UNLOCKED_SIZE_MIN:
        answer = run_note_keys(walk, offset_map, hashing, base_offset, start_offset, end_offset)
    else:
        with cython.nogil:
            answer = run_note_keys(walk, offset_map, hashing, base_offset, start_offset, end_offset)
    if answer == CORRUPT:
        raise explain(walk, base_offset)
    return answer == DONE


def run_note_keys(
    walk: RecordWalk, offset_map: OffsetMap, hashing: KeyHash, base_offset: int, start_offset: int, end_offset: int
) -> int:
    for _ in range(walk.count):
        if not walk.next_record():
            return CORRUPT
        offset = base_offset + walk.offset_delta
        if walk.key_length < 0 or offset < start_offset or offset >= end_offset:
            continue
        hashing.compute(walk.key_at, walk.key_length)
        if not offset_map.note(hashing.low, hashing.high, offset):
            offset_map.update_latest_offset(offset - 1)
            return FULL
    if not walk.has_ended():
        return CORRUPT
    offset_map.update_latest_offset(min(base_offset + walk.last_offset_delta, end_offset - 1))
    return DONE


class Choice:
    """Which records of a batch stay, a bit for each, and what is known of them together."""

    __slots__ = ("bits", "kept_bytes", "kept_count", "keyless_count", "max_timestamp", "tombstones_count")

    bits: bytearray
    kept_count: int
    kept_bytes: int
    keyless_count: int  # those removed for want of a key
    tombstones_count: int  # those that stay
    max_timestamp: int  # of those that stay

    def __init__(self, walk: RecordWalk) -> None:
        self.bits = bytearray((walk.count + 7) >> 3)
        self.kept_count = 0
        self.kept_bytes = 0
        self.keyless_count = 0
        self.tombstones_count = 0
        self.max_timestamp = -1

    def keep(self, walk: RecordWalk, index: int) -> None:
        """Choose the record that the walk is at."""
        self.bits[index >> 3] |= 1 << (index & 7)
        self.kept_count += 1
        self.kept_bytes += walk.end - walk.start
        if walk.value_length < 0:
            self.tombstones_count += 1
        if walk.timestamp > self.max_timestamp:
            self.max_timestamp = walk.timestamp

    def has(self, index: int) -> bool:
        return bool(self.bits[index >> 3] >> (index & 7) & 1)


def choose_all(walk: RecordWalk, base_offset: int) -> Choice:
    """Choose every record of the batch, which should be a small one."""
    choice = Choice(walk)
    for index in range(walk.count):
        if not walk.next_record():
            raise explain(walk, base_offset)
        choice.keep(walk, index)
    if not walk.has_ended():
        raise explain(walk, base_offset)
    return choice


def choose_records(walk: RecordWalk, offset_map: OffsetMap, base_offset: int, keeps_tombstones: bool) -> Choice:
    """Decide over every record of the batch."""
    choice = Choice(walk)
    hashing = KeyHash(walk.data, offset_map.secret_low, offset_map.secret_high)
    if walk.size < UNLOCKED_SIZE_MIN:
        answer = run_choose_records(walk, offset_map, hashing, choice, base_offset, keeps_tombstones)
    else:
        with cython.nogil:
            answer = run_choose_records(walk, offset_map, hashing, choice, base_offset, keeps_tombstones)
    if answer == CORRUPT:
        raise explain(walk, base_offset)
    return choice


def run_choose_records(
    walk: RecordWalk,
    offset_map: OffsetMap,
    hashing: KeyHash,
    choice: Choice,
    base_offset: int,
    keeps_tombstones: bool,
) -> int:
    for index in range(walk.count):
        if not walk.next_record():
            return CORRUPT
        offset = base_offset + walk.offset_delta
        # Behind what the map knows, a record may be the last of its key, or belong to no clean yet.
        if offset <= offset_map.latest_offset:
            if walk.key_length < 0:
                choice.keyless_count += 1
                continue
            if walk.value_length < 0 and not keeps_tombstones:
                continue
            hashing.compute(walk.key_at, walk.key_length)
            if offset < offset_map.offset_at(offset_map.find_slot(hashing.low, hashing.high)):
                continue
        choice.keep(walk, index)
    return DONE if walk.has_ended() else CORRUPT


class RecordCopy:
    """Writes the records that stay behind one another into `out`, which has room for all of them."""

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
    """Write the chosen records of a walked batch as they are, those that lie together at once."""
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
    """Bytes of the chosen records with timestamps counted from the horizon; -1 when one of them leaves 64 bits."""
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
    """Write the chosen records of a walked batch with timestamps counted from the horizon."""
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
            copy.out[copy.position] = 0  # the attributes of a record, of which none is in use
            copy.position += 1
            copy.write_varint(delta)
            copy.write_range(walk, walk.rest_at, walk.end)


def size_of_varint(value: int) -> int:
    raw = value if value >= 0 else -(value + 1)
    raw >>= 6  # the first byte has room for six bits beside the sign
    size = 1
    while raw > 0:
        raw >>= 7
        size += 1
    return size
