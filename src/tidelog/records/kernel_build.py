"""The loops of a producer: records written one by one, straight into the bytes of the batch that will be sent.

What always holds: a builder's output is byte for byte what `encode_batch` writes for the same records, after room for
the header. A record is written whole or not at all, and never beyond the buffer. Every size is known before the first
byte is written. Compiled, a call is atomic towards other threads from the moment it checks whether the batch is open,
because nothing after that releases the interpreter's lock: it creates no object that the garbage collector tracks, as a
collection could run anything. Interpreted it is not atomic, and threads that share an appender need a lock around it.
The header, compression and all waiting are handled elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import time
from typing import Any

from tidelog.records.kernel_arrow import BinarySource

INT64_MAX = 0x7FFFFFFFFFFFFFFF
HEADER_ROOM = 61
MILLISECONDS_PER_SECOND = 1000.0
VARINT32_SIZE_MAX = 5

# The parameters of murmur2 as Kafka's clients have them.
MURMUR2_SEED = 0x9747B28C
MURMUR2_MULTIPLIER = 0x5BD1E995
MASK_32 = 0xFFFFFFFF
MASK_31 = 0x7FFFFFFF

IS_COMPILED = not __file__.endswith(".py")

NEEDS_SLOW_PATH = 0
APPENDED = 1


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java client, as an unsigned number."""
    length = len(data)
    source = data
    value = (MURMUR2_SEED ^ length) & MASK_32
    whole = length & ~3
    for at in range(0, whole, 4):
        word = source[at] | source[at + 1] << 8 | source[at + 2] << 16 | source[at + 3] << 24
        word = (word * MURMUR2_MULTIPLIER) & MASK_32
        word = ((word ^ word >> 24) * MURMUR2_MULTIPLIER) & MASK_32
        value = ((value * MURMUR2_MULTIPLIER) & MASK_32) ^ word
    rest = length - whole
    if rest > 0:
        if rest == 3:
            value ^= source[whole + 2] << 16
        if rest >= 2:
            value ^= source[whole + 1] << 8
        value ^= source[whole]
        value = (value * MURMUR2_MULTIPLIER) & MASK_32
    value = ((value ^ value >> 13) * MURMUR2_MULTIPLIER) & MASK_32
    return value ^ value >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition that every Kafka client with murmur2 picks for the key."""
    if partitions < 1:
        raise ValueError("a topic has at least one partition")
    # Java clears the sign bit instead of taking the absolute value, which doesn't exist for the smallest int.
    return (murmur2(key) & MASK_31) % partitions


def varint_length(value: int) -> int:
    """Bytes of a zigzag varint of up to 64 bits."""
    raw = value if value >= 0 else -(value + 1)
    raw >>= 6  # the first byte has six bits besides the sign
    size = 1
    while raw > 0:
        raw >>= 7
        size += 1
    return size


def part_length(length: int) -> int:
    """Bytes of a key or value with its length before it; -1 stands for null."""
    return varint_length(length) + (length if length > 0 else 0)


def put_varint(target: bytearray, at: int, value: int) -> int:
    """Write it and return where the next byte goes. The caller has made sure that there is room."""
    raw = value if value >= 0 else -(value + 1)
    raw <<= 1
    if value < 0:
        raw |= 1
    while raw >= 0x80:
        target[at] = (raw & 0x7F) | 0x80
        at += 1
        raw >>= 7
    target[at] = raw
    return at + 1


def put_bytes(buffer: bytearray, at: int, part: bytes, length: int) -> int:
    """Write a part's bytes; the caller has made sure that there is room. The compiler turns the loop into a memcpy."""
    if IS_COMPILED:
        target = buffer
        source = part
        for index in range(length):
            target[at + index] = source[index]
    else:
        buffer[at : at + length] = part
    return at + length


def encode_header_list(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """The headers of a record with their count before them."""
    pairs = list(headers)
    size = varint_length(len(pairs))
    names = []
    for name, content in pairs:
        encoded = name.encode("utf-8")
        if content is not None and type(content) is not bytes:
            raise TypeError(f"the value of header {name!r} must be bytes or None, not {type(content).__name__}")
        names.append(encoded)
        size += part_length(len(encoded)) + part_length(-1 if content is None else len(content))
    out = bytearray(size)
    at = put_varint(out, 0, len(pairs))
    for index in range(len(pairs)):
        encoded = names[index]
        at = put_varint(out, at, len(encoded))
        at = put_bytes(out, at, encoded, len(encoded))
        content = pairs[index][1]
        if content is None:
            at = put_varint(out, at, -1)
        else:
            at = put_varint(out, at, len(content))
            at = put_bytes(out, at, content, len(content))
    return bytes(out)


def record_size_max(key: bytes | None, value: bytes | None, headers: bytes | None) -> int:
    """The maximum size of the record in bytes, whatever its place and time in a batch."""
    size = 1 + 10 + VARINT32_SIZE_MAX
    size += part_length(-1 if key is None else len(key)) + part_length(-1 if value is None else len(value))
    size += 1 if headers is None else len(headers)
    return varint_length(size) + size


class BatchBuilder:
    """A batch being filled: a buffer with room for the header, followed by the records so far."""

    __slots__ = ("base_timestamp", "buffer", "callbacks", "capacity", "count", "is_open", "max_timestamp", "size")

    buffer: bytearray | None
    callbacks: list[RecordReceipt] | None  # of records whose senders want to be told
    capacity: int
    size: int  # includes the room for the header
    count: int
    base_timestamp: int
    max_timestamp: int
    is_open: bool

    def __init__(self, buffer: bytearray, capacity: int) -> None:
        if capacity < HEADER_ROOM or capacity > len(buffer):
            raise ValueError(f"a batch of {capacity} bytes does not fit a buffer of {len(buffer)}")
        self.buffer = buffer
        self.callbacks = None
        self.capacity = capacity
        self.size = HEADER_ROOM
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.is_open = True

    def append(self, key: bytes | None, value: bytes | None, headers: bytes | None, timestamp: int) -> int:
        """Write a record and return its index, or -1 if it does not fit or the batch is closed."""
        if not self.is_open:
            return -1
        if timestamp < -1:
            raise ValueError(f"a timestamp is -1 or a count of milliseconds, not {timestamp}")
        base = self.base_timestamp if self.count > 0 else timestamp
        if base < 0 and timestamp > INT64_MAX + base:
            raise ValueError(f"timestamp {timestamp} is too far from the batch's first, {base}")
        delta = timestamp - base
        key_length = -1 if key is None else len(key)
        value_length = -1 if value is None else len(value)
        headers_length = 1 if headers is None else len(headers)
        size = 1 + varint_length(delta) + varint_length(self.count) + headers_length
        size += part_length(key_length) + part_length(value_length)
        if size + varint_length(size) > self.capacity - self.size:
            return -1
        buffer = self.buffer
        if buffer is None:
            return -1
        target = buffer
        at = put_varint(target, self.size, size)
        target[at] = 0  # a record's attributes, all of which are unused
        at = put_varint(target, at + 1, delta)
        at = put_varint(target, at, self.count)
        at = put_varint(target, at, key_length)
        if key is not None and key_length > 0:
            at = put_bytes(buffer, at, key, key_length)
        at = put_varint(target, at, value_length)
        if value is not None and value_length > 0:
            at = put_bytes(buffer, at, value, value_length)
        if headers is None:
            target[at] = 0
            at += 1
        else:
            at = put_bytes(buffer, at, headers, headers_length)
        self.size = at
        self.base_timestamp = base
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        return self.count - 1

    def move_to(self, buffer: bytearray, capacity: int) -> bytearray:
        """Continue in a larger buffer; returns the old one."""
        old = self.buffer
        if old is None:
            raise ValueError("the batch has no buffer any more")
        if capacity < self.size or capacity > len(buffer):
            raise ValueError(f"{self.size} bytes do not fit a buffer of {len(buffer)}")
        if IS_COMPILED:
            # Slices are objects that the garbage collector tracks: another thread could append between two of them.
            target = buffer
            source = old
            for index in range(self.size):
                target[index] = source[index]
        else:
            buffer[: self.size] = old[: self.size]
        self.buffer = buffer
        self.capacity = capacity
        return old

    def fill(self, size: int, count: int, base_timestamp: int, max_timestamp: int) -> None:
        """Set the counters for a buffer that others have written records into."""
        if self.count > 0 or not HEADER_ROOM <= size <= self.capacity:
            raise ValueError(f"{size} bytes do not fit an empty batch of {self.capacity}")
        self.size = size
        self.count = count
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp

    def close(self) -> None:
        """Nothing more may be appended."""
        self.is_open = False

    def add_callback(self, receipt: RecordReceipt) -> None:
        """Have this record's sender told when the batch is done."""
        make_callbacks(self)
        add_to_callbacks(self, receipt)

    def take_callbacks(self) -> list[RecordReceipt]:
        callbacks = self.callbacks
        self.callbacks = None
        return [] if callbacks is None else callbacks

    def take_buffer(self) -> bytearray | None:
        """The buffer, which now belongs to the caller."""
        buffer = self.buffer
        self.is_open = False
        self.buffer = None
        return buffer


class RecordReceipt:
    """Where a record went: its batch and its place in it, and whom to tell once it is stored."""

    __slots__ = ("batch", "index", "key_size", "on_delivery", "timestamp", "value_size")

    batch: BatchBuilder
    index: int
    timestamp: int
    key_size: int
    value_size: int
    on_delivery: object

    def fill_in(
        self, batch: BatchBuilder, index: int, timestamp: int, key_size: int, value_size: int, on_delivery: object
    ) -> None:
        if on_delivery is not None:
            make_callbacks(batch)
        fill_receipt(self, batch, index, timestamp, key_size, value_size, on_delivery)


# Functions and not methods: looking up a method that a Python class inherits may create an object that the garbage
# collector tracks.


def make_callbacks(batch: BatchBuilder) -> None:
    """Create the list that `fill_receipt` adds to."""
    if batch.callbacks is None:
        batch.callbacks = []


def add_to_callbacks(batch: BatchBuilder, receipt: RecordReceipt) -> None:
    callbacks = batch.callbacks
    if callbacks is not None:
        callbacks.append(receipt)


def fill_receipt(
    receipt: RecordReceipt,
    batch: BatchBuilder,
    index: int,
    timestamp: int,
    key_size: int,
    value_size: int,
    on_delivery: object,
) -> None:
    receipt.batch = batch
    receipt.index = index
    receipt.timestamp = timestamp
    receipt.key_size = key_size
    receipt.value_size = value_size
    receipt.on_delivery = on_delivery
    if on_delivery is not None:
        add_to_callbacks(batch, receipt)


class TopicSlots:
    """A topic as the appender sees it: each partition's open batch, and where keyless records go."""

    __slots__ = (
        "chooses_by_key",
        "chooses_sticky",
        "open_batches",
        "sticky_bytes",
        "sticky_bytes_max",
        "sticky_partition",
    )

    open_batches: list[BatchBuilder | None]
    sticky_partition: int
    sticky_bytes: int  # bytes that went there since it was chosen
    sticky_bytes_max: int  # when another has to be chosen, at the latest
    chooses_by_key: bool
    chooses_sticky: bool

    def __init__(self, partitions: int, chooses_by_key: bool, chooses_sticky: bool) -> None:
        self.open_batches = [None] * partitions
        self.sticky_partition = 0
        self.sticky_bytes = 0
        self.sticky_bytes_max = INT64_MAX
        self.chooses_by_key = chooses_by_key
        self.chooses_sticky = chooses_sticky

    def set_open(self, partition: int, batch: BatchBuilder | None) -> None:
        self.open_batches[partition] = batch

    def get_open(self, partition: int) -> BatchBuilder | None:
        return self.open_batches[partition]

    def note_sticky(self, size: int) -> None:
        self.sticky_bytes += size

    def stick_to(self, partition: int, bytes_max: int) -> None:
        self.sticky_partition = partition
        self.sticky_bytes = 0
        self.sticky_bytes_max = bytes_max

    def grow(self, partitions: int) -> None:
        """The topic has more partitions now."""
        while len(self.open_batches) < partitions:
            self.open_batches.append(None)

    def shrink(self, partitions: int) -> None:
        """The topic was recreated with fewer partitions."""
        del self.open_batches[partitions:]


class RecordAppender:
    """Appends to open batches; anything that needs a decision is refused and left to the caller."""

    __slots__ = ("is_enabled", "receipt_class", "topics")

    topics: dict[str, TopicSlots]
    is_enabled: bool
    receipt_class: type[RecordReceipt]

    def __init__(self, receipt_class: type[RecordReceipt]) -> None:
        self.topics = {}
        self.is_enabled = True
        self.receipt_class = receipt_class

    def set_enabled(self, is_enabled: bool) -> None:
        self.is_enabled = is_enabled

    def add_topic(self, name: str, slots: TopicSlots) -> None:
        self.topics[name] = slots

    def find_topic(self, name: str) -> TopicSlots | None:
        return self.topics.get(name)

    def forget_topic(self, name: str) -> None:
        self.topics.pop(name, None)

    def append(
        self, topic: object, value: object, key: object, headers: bytes | None, partition: object, timestamp: object
    ) -> int:
        """Append if nothing is in the way; returns APPENDED or NEEDS_SLOW_PATH."""
        if not self.is_enabled or type(topic) is not str:
            return NEEDS_SLOW_PATH
        if (value is not None and type(value) is not bytes) or (key is not None and type(key) is not bytes):
            return NEEDS_SLOW_PATH
        slots = self.topics.get(topic)
        if slots is None:
            return NEEDS_SLOW_PATH
        batch = choose_batch(slots, key, partition)
        if batch is None:
            return NEEDS_SLOW_PATH
        if timestamp is None:
            seconds = time()
            stamp = int(seconds * MILLISECONDS_PER_SECOND)
        elif type(timestamp) is int:
            stamp = timestamp
        else:
            return NEEDS_SLOW_PATH
        size = batch.size
        if batch.append(key, value, headers, stamp) < 0:
            return NEEDS_SLOW_PATH
        if key is None and partition is None:
            slots.sticky_bytes += batch.size - size
        return APPENDED

    def append_with_receipt(
        self,
        topic: object,
        value: object,
        key: object,
        headers: bytes | None,
        partition: object,
        timestamp: object,
        on_delivery: object,
    ) -> RecordReceipt | None:
        """The same with a receipt, or None if the slow path is needed."""
        if not self.is_enabled or type(topic) is not str:
            return None
        if (value is not None and type(value) is not bytes) or (key is not None and type(key) is not bytes):
            return None
        slots = self.topics.get(topic)
        if slots is None:
            return None
        batch = choose_batch(slots, key, partition)
        if batch is None:
            return None
        if timestamp is None:
            seconds = time()
            stamp = int(seconds * MILLISECONDS_PER_SECOND)
        elif type(timestamp) is int:
            stamp = timestamp
        else:
            return None
        # Created before the record is written: creating an object may start the garbage collector, which may run
        # anything.
        receipt_class = self.receipt_class
        receipt = receipt_class.__new__(receipt_class)
        if on_delivery is not None:
            make_callbacks(batch)
        size = batch.size
        index = batch.append(key, value, headers, stamp)
        if index < 0:
            return None
        if key is None and partition is None:
            slots.sticky_bytes += batch.size - size
        key_size = -1 if key is None else len(key)
        value_size = -1 if value is None else len(value)
        fill_receipt(receipt, batch, index, stamp, key_size, value_size, on_delivery)
        return receipt


class RecordSender:
    """`send` and `send_nowait` of a producer, which is a subclass and has `_send` for whatever can't be appended here.

    They are here in order to be compiled: called a million times a second, a Python method would take longer than the
    append.
    """

    __slots__ = ("appender",)

    appender: RecordAppender | None

    def _set_appender(self, appender: RecordAppender) -> None:
        self.appender = appender

    def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Any = None,
    ) -> None:
        """Send a record without creating a future; only `on_delivery`, if given, reports the outcome."""
        appender = self.appender
        if (
            headers is None
            and on_delivery is None
            and appender is not None
            and appender.append(topic, value, key, None, partition, timestamp)
        ):
            return
        self._send(topic, value, key, headers, partition, timestamp, on_delivery)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Any = None,
    ) -> RecordReceipt:
        """Send a record; the future says where it was stored, or why it failed.

        Without a `partition` the key decides; without a key the record joins the batch being filled.
        `on_delivery(metadata, error)` is called on the producer's thread; one of the two is None.
        """
        appender = self.appender
        if headers is None and appender is not None:
            receipt = appender.append_with_receipt(topic, value, key, None, partition, timestamp, on_delivery)
            if receipt is not None:
                return receipt
        return self._send(topic, value, key, headers, partition, timestamp, on_delivery)

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp: int | None,
        on_delivery: Any,
    ) -> RecordReceipt:
        raise NotImplementedError


def choose_batch(slots: TopicSlots, key: bytes | None, partition: object) -> BatchBuilder | None:
    """The open batch of the partition that the record goes to, or None if that can't be decided here."""
    partitions = len(slots.open_batches)
    if partition is not None:
        if type(partition) is not int:
            return None
        number = partition
        if number < 0 or number >= partitions:
            return None
    elif key is not None and slots.chooses_by_key:
        number = (murmur2(key) & MASK_31) % partitions
    elif slots.chooses_sticky:
        if slots.sticky_bytes >= slots.sticky_bytes_max:
            return None
        number = slots.sticky_partition
    else:
        return None
    return slots.open_batches[number]


def murmur2_of_row(source: BinarySource, start: int, length: int) -> int:
    """`murmur2` of bytes in a column; the caller has made sure that they lie within it."""
    data = source.data
    value = (MURMUR2_SEED ^ length) & MASK_32
    end = start + (length & ~3)
    for at in range(start, end, 4):
        word = data[at] | data[at + 1] << 8 | data[at + 2] << 16 | data[at + 3] << 24
        word = (word * MURMUR2_MULTIPLIER) & MASK_32
        word = ((word ^ word >> 24) * MURMUR2_MULTIPLIER) & MASK_32
        value = ((value * MURMUR2_MULTIPLIER) & MASK_32) ^ word
    rest = length & 3
    if rest > 0:
        if rest == 3:
            value ^= data[end + 2] << 16
        if rest >= 2:
            value ^= data[end + 1] << 8
        value ^= data[end]
        value = (value * MURMUR2_MULTIPLIER) & MASK_32
    value = ((value ^ value >> 13) * MURMUR2_MULTIPLIER) & MASK_32
    return value ^ value >> 15


def partitions_of_keys(keys: BinarySource, rows: int, partitions: int, out: memoryview) -> None:
    """The partition of each key of a column as int32, -1 for null."""
    if partitions < 1:
        raise ValueError("a topic has at least one partition")
    for row in range(rows):
        length = keys.length(row)
        if length < 0:
            out[row] = -1
        else:
            out[row] = (murmur2_of_row(keys, keys.start(row), length) & MASK_31) % partitions
