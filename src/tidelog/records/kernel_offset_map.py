"""The map of keys to their last offsets, for compaction; compiled like `kernel`.

What always holds: the map uses the memory it was given and never more, and keeps only hashes of keys. Two keys with the
same 128-bit hash would be mistaken for one; since clients don't know the secret, this is not to be expected.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress

from tidelog.records.kernel import Bytes

SECRET_SIZE = 16
SLOT_WORDS = 3  # two of hash, then the offset plus one, so that an empty slot is all zeros
SLOT_SIZE = 8 * SLOT_WORDS
SLOTS_MAX = 0xFFFFFFFF  # 32 bits of the hash choose the slot

# How many keys are looked up together; more would not be fetched at the same time, fewer leave the processor waiting.
QUEUE_SIZE = 64


class OffsetMap:
    """The last offset of every key, by a keyed hash of the key, in one block of memory.

    A slot has 24 bytes: the offset, and the key's 128-bit SipHash-2-4 with a random secret, so that nobody can choose
    keys that collide. Collisions are resolved by linear probing. The system supplies the memory page by page as slots
    are filled, and `clear` returns it. One thread at a time may use a map.
    """

    __slots__ = (
        "capacity",
        "latest_offset",
        "load_factor",
        "memory",
        "memory_bytes",
        "queue",
        "secret_high",
        "secret_low",
        "size",
        "slots",
        "words",
    )

    memory_bytes: int
    load_factor: float
    slots: int
    capacity: int  # keys it can hold before it is full
    size: int  # keys in it
    latest_offset: int  # the map covers the log up to here; -1 at first
    secret_low: int
    secret_high: int
    memory: mmap.mmap | None
    words: memoryview  # the slots as uint64
    queue: KeyQueue

    def __init__(self, memory_bytes: int, load_factor: float = 0.9, secret: bytes | None = None) -> None:
        if not 0 < load_factor <= 1:
            raise ValueError(f"a load factor is above 0 and at most 1, not {load_factor}")
        if secret is None:
            secret = os.urandom(SECRET_SIZE)
        if len(secret) != SECRET_SIZE:
            raise ValueError(f"a secret has {SECRET_SIZE} bytes, not {len(secret)}")
        self.memory_bytes = memory_bytes
        self.load_factor = load_factor
        self.secret_low = int.from_bytes(secret[:8], "little")
        self.secret_high = int.from_bytes(secret[8:], "little")
        self.memory = None
        self.queue = KeyQueue()
        self.clear()

    @property
    def is_full(self) -> bool:
        return self.size >= self.capacity

    def clear(self, keys_max: int | None = None) -> None:
        """Forget everything and return the memory to the system.

        With `keys_max` the map uses only the memory that this many keys need: fewer slots are faster to search.
        """
        slots = min(self.memory_bytes // SLOT_SIZE, SLOTS_MAX)
        if keys_max is not None:
            slots = min(slots, 2 * max(keys_max, 1) + 1)
        # One slot always stays empty, because that is where a search ends.
        capacity = min(int(slots * self.load_factor), slots - 1)
        if capacity < 1:
            raise ValueError(f"{self.memory_bytes} bytes are too few for a map of keys to offsets")
        # Nobody may access memory that is being returned, so its view goes first.
        self.words = memoryview(bytearray(SLOT_SIZE)).cast("Q")
        if self.memory is not None:
            self.memory.close()
        self.memory = mmap.mmap(-1, slots * SLOT_SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        advise_large_pages(self.memory)
        self.words = memoryview(self.memory).cast("Q")
        self.slots = slots
        self.capacity = capacity
        self.size = 0
        self.latest_offset = -1

    def get(self, key: bytes) -> int:
        """The offset of the key, -1 if it is not in the map."""
        hashing = KeyHash(key, self.secret_low, self.secret_high)
        hashing.compute(0, len(key))
        return self.offset_at(self.find_slot(hashing.low, hashing.high))

    def put(self, key: bytes, offset: int) -> bool:
        """Note the offset of a key, unless a later one is known; False if the key is new and the map is full."""
        if offset < 0:
            raise ValueError(f"an offset is not negative, so not {offset}")
        hashing = KeyHash(key, self.secret_low, self.secret_high)
        hashing.compute(0, len(key))
        if not self.note(hashing.low, hashing.high, offset):
            return False
        self.update_latest_offset(offset)
        return True

    def update_latest_offset(self, offset: int) -> None:
        """Declare that the map covers the log up to this offset, whatever keys are there."""
        if offset > self.latest_offset:
            self.latest_offset = offset

    def peek(self, low: int) -> int:
        """Touch the slot where the search for a hash begins, only to bring it into the cache."""
        slots = self.slots
        word = ((low >> 32) * slots >> 32) * SLOT_WORDS
        return self.words[word] ^ self.words[word + 2]

    def find_slot(self, low: int, high: int) -> int:
        """Where in `words` the slot of that hash begins, or the empty slot it would get."""
        slots = self.slots
        slot = (low >> 32) * slots >> 32
        word = slot * SLOT_WORDS
        while self.words[word + 2] != 0 and (self.words[word] != low or self.words[word + 1] != high):
            slot += 1
            word += SLOT_WORDS
            if slot == slots:
                slot = 0
                word = 0
        return word

    def offset_at(self, word: int) -> int:
        return self.words[word + 2] - 1

    def note(self, low: int, high: int, offset: int) -> bool:
        word = self.find_slot(low, high)
        if self.words[word + 2] == 0:
            if self.size >= self.capacity:
                return False
            self.size += 1
            self.words[word] = low
            self.words[word + 1] = high
            self.words[word + 2] = offset + 1
        elif self.words[word + 2] <= offset:
            self.words[word + 2] = offset + 1
        return True


def advise_large_pages(memory: mmap.mmap) -> None:
    """Ask for pages of 2 MiB: nearly every lookup goes somewhere else, and finding small pages costs as much again."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):  # a kernel may lack them, and the map can do without
            memory.madvise(advice)


class KeyQueue:
    """Keys to be looked up together, so that their slots are fetched from memory in parallel.

    With each key it holds the record data that is needed when the result is there.
    """

    __slots__ = ("count", "high", "index", "is_tombstone", "low", "offset", "seen", "size", "timestamp")

    count: int
    low: memoryview  # uint64
    high: memoryview  # uint64
    offset: memoryview  # int64, like all that follow
    index: memoryview
    size: memoryview
    timestamp: memoryview
    is_tombstone: memoryview
    seen: int  # kept so that no compiler removes the reads as useless

    def __init__(self) -> None:
        self.count = 0
        self.seen = 0
        self.low = memoryview(bytearray(8 * QUEUE_SIZE)).cast("Q")
        self.high = memoryview(bytearray(8 * QUEUE_SIZE)).cast("Q")
        self.offset = memoryview(bytearray(8 * QUEUE_SIZE)).cast("q")
        self.index = memoryview(bytearray(8 * QUEUE_SIZE)).cast("q")
        self.size = memoryview(bytearray(8 * QUEUE_SIZE)).cast("q")
        self.timestamp = memoryview(bytearray(8 * QUEUE_SIZE)).cast("q")
        self.is_tombstone = memoryview(bytearray(8 * QUEUE_SIZE)).cast("q")

    def describe(self, index: int, size: int, timestamp: int, is_tombstone: bool) -> None:
        """The record of the key that is added next."""
        self.index[self.count] = index
        self.size[self.count] = size
        self.timestamp[self.count] = timestamp
        self.is_tombstone[self.count] = is_tombstone

    def add(self, low: int, high: int, offset: int) -> None:
        self.low[self.count] = low
        self.high[self.count] = high
        self.offset[self.count] = offset
        self.count += 1

    def fetch(self, offset_map: OffsetMap) -> int:
        """Empty the queue; returns how many keys to look up, whose first slots are now in the cache."""
        count = self.count
        seen = self.seen
        for at in range(count):
            seen ^= offset_map.peek(self.low[at])
        self.seen = seen
        self.count = 0
        return count


class KeyHash:
    """SipHash-2-4 with 128 bits of result, over parts of `data`."""

    __slots__ = ("data", "high", "low", "secret_high", "secret_low")

    data: Bytes
    secret_low: int
    secret_high: int
    low: int
    high: int

    def __init__(self, data: Bytes, secret_low: int, secret_high: int) -> None:
        self.data = data
        self.secret_low = secret_low
        self.secret_high = secret_high
        self.low = 0
        self.high = 0

    def compute(self, start: int, length: int) -> None:
        """Set `low` and `high` to the hash of `length` bytes from `start`, which must lie within the data."""
        mask = 0xFFFFFFFFFFFFFFFF
        v0 = 0x736F6D6570736575
        v0 ^= self.secret_low
        v1 = 0x646F72616E646F6D
        v1 ^= self.secret_high ^ 0xEE  # the 128-bit variant starts like this
        v2 = 0x6C7967656E657261
        v2 ^= self.secret_low
        v3 = 0x7465646279746573
        v3 ^= self.secret_high
        # Whole words, then the word of what is left with the length in its top byte, then a closing step for each half
        # of the result. One loop for all of them, because the round below is long.
        words = length >> 3
        for step in range(words + 3):
            word = 0
            rounds = 2
            if step <= words:
                word = self.load_word(start + (step << 3), 8 if step < words else length & 7)
                if step == words:
                    word |= (length & 0xFF) << 56
                v3 ^= word
            elif step == words + 1:
                v2 ^= 0xEE
                rounds = 4
            else:
                self.low = v0 ^ v1 ^ v2 ^ v3
                v1 ^= 0xDD
                rounds = 4
            for _ in range(rounds):
                v0 = (v0 + v1) & mask
                v1 = ((v1 << 13) & mask | v1 >> 51) ^ v0
                v0 = (v0 << 32) & mask | v0 >> 32
                v2 = (v2 + v3) & mask
                v3 = ((v3 << 16) & mask | v3 >> 48) ^ v2
                v0 = (v0 + v3) & mask
                v3 = ((v3 << 21) & mask | v3 >> 43) ^ v0
                v2 = (v2 + v1) & mask
                v1 = ((v1 << 17) & mask | v1 >> 47) ^ v2
                v2 = (v2 << 32) & mask | v2 >> 32
            v0 ^= word
        self.high = v0 ^ v1 ^ v2 ^ v3

    def load_word(self, at: int, length: int) -> int:
        """Up to eight bytes as a number, the first byte lowest."""
        word = 0
        for index in range(length):
            byte = self.data[at + index]
            word |= byte << (index << 3)
        return word
