"""A dict-like view of a topic: the latest value of every key, read from the start and kept up to date.

What always holds: the mapping never changes while it is being read (iteration uses a copy), and a record with a null
value removes its key. Temporary trouble, such as a broker restart or a leader change, is waited out. A permanent
failure ends the table, and every later use raises it. If records were deleted before they were read, or the topic was
recreated, a new view is built while the old one keeps serving. All keys and values are in memory. A table writes
nothing and belongs to no group. Records of open and aborted transactions are hidden unless asked for.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable, Hashable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import field
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from tidelog.client.admin.async_admin import AsyncAdmin
from tidelog.client.consumer.async_consumer import AsyncConsumer
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    LogTruncationError,
    NoSuchPartitionError,
    OffsetOutOfRangeError,
    is_retriable,
)
from tidelog.client.network.backoff import Backoff
from tidelog.client.network.loop_thread import LoopThread
from tidelog.client.settings import ClientOptions
from tidelog.client.types import TopicMetadata, TopicPartition
from tidelog.common.closing import Closing
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import ErrorCode
from tidelog.records.kernel_consume import ConsumerRecord

logger = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

IsolationLevel = Literal["read_committed", "read_uncommitted"]

# How often to ask the cluster whether the topic still exists and whether it has more partitions.
LOOK_INTERVAL_S = 1.0
# A broker that has only just started may not know an existing topic yet; after this long it counts as deleted.
DELETED_AFTER_S = 30.0
# How much to fetch ahead of the table.
QUEUED_BYTES_MAX = 16 * 1024 * 1024
# Compaction may have removed the last records, so that no position ever reaches the end. A partition counts as read
# once several fetches in a row over this time have found nothing more.
IDLE_FETCHES = 3
IDLE_S = 1.5

_POLL_S = 0.25
_RECORDS_AT_ONCE = 1000
_PAUSE = Backoff(0.05, 1.0)
_CLOSE_TIMEOUT_S = 5.0


class TableError(ClientError):
    """The table can no longer be kept up to date; the cause says why."""


@dataclass(frozen=True, slots=True)
class Change(Generic[KeyT, ValueT]):
    """A change to one key. `old` or `new` is None where there was no value before or after."""

    key: KeyT
    old: ValueT | None
    new: ValueT | None
    is_removal: bool = False


class TableOptions(TypedDict, total=False):
    on_change: Callable[[Change[Any, Any]], None] | None
    client_id: str
    request_timeout_s: float
    isolation_level: IsolationLevel


@dataclass(slots=True)
class _Reading(Generic[KeyT, ValueT]):
    """One pass over the topic from its start, which continues for as long as no records are missed."""

    consumer: AsyncConsumer
    topic_id: uuid.UUID
    # Where each partition ended when reading began.
    ends: Mapping[TopicPartition, int]
    values: dict[KeyT, ValueT]
    partitions: list[TopicPartition]
    is_caught_up: bool = False
    # When new records last arrived, and how many fetches had been answered by then.
    idle_since_s: float = 0.0
    idle_fetches: int = 0
    positions: dict[TopicPartition, int] = field(default_factory=dict)


class Table(Mapping[KeyT, ValueT], Closing):
    """The latest value of every key in a topic; most useful for compacted topics.

    >>> from tidelog import Table
    >>> with Table("prices") as table:  # doctest: +SKIP
    ...     table.wait_until_caught_up(timeout=10)
    ...     print(table.get(b"tea"))
    b'3.20'
    """

    @overload
    def __init__(
        self: Table[bytes, bytes], topic: str, bootstrap: str = ..., **options: Unpack[TableOptions]
    ) -> None: ...

    @overload
    def __init__(
        self: Table[KeyT, bytes],
        topic: str,
        bootstrap: str = ...,
        *,
        key_deserializer: Callable[[bytes], KeyT],
        **options: Unpack[TableOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Table[bytes, ValueT],
        topic: str,
        bootstrap: str = ...,
        *,
        value_deserializer: Callable[[bytes], ValueT],
        **options: Unpack[TableOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        topic: str,
        bootstrap: str = ...,
        *,
        key_deserializer: Callable[[bytes], KeyT],
        value_deserializer: Callable[[bytes], ValueT],
        **options: Unpack[TableOptions],
    ) -> None: ...

    def __init__(
        self,
        topic: str,
        bootstrap: str = "127.0.0.1:9092",
        *,
        key_deserializer: Callable[[bytes], Any] = bytes,
        value_deserializer: Callable[[bytes], Any] = bytes,
        on_change: Callable[[Change[Any, Any]], None] | None = None,
        client_id: str = "tidelog-table",
        request_timeout_s: float = 30.0,
        isolation_level: IsolationLevel = "read_committed",
    ) -> None:
        """Start reading in a background thread; `wait_until_caught_up` waits for it.

        That thread calls `on_change` for every change, including those of the first pass. Exceptions from it are
        logged, and the table carries on. With `isolation_level="read_uncommitted"`, records of open and aborted
        transactions count too.
        """
        self.topic = topic
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._on_change = on_change
        self._lock = threading.Lock()
        self._values: dict[KeyT, ValueT] = {}
        self._is_caught_up = False
        # Set when the table has caught up, failed or been closed: nothing is worth waiting for after that.
        self._settled = threading.Event()
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._trouble: ClientError | None = None
        self._missing_since_s: float | None = None
        self._failures = 0
        self._has_begun = False
        self._warned_of_keyless = False
        timeout_ms = round(request_timeout_s * 1000)
        self._options: ClientOptions = {
            "bootstrap_servers": bootstrap,
            "client_id": client_id,
            "request_timeout_ms": timeout_ms,
            # The table itself retries temporary errors: patience in the client would only delay reporting them.
            "default_api_timeout_ms": min(timeout_ms, 5_000),
        }
        self._isolation_level = isolation_level
        admin, consumer = AsyncAdmin(**self._options), self._make_consumer()
        self._thread = LoopThread(f"table-{topic}")
        self._task = self._thread.run(self._start(admin, consumer))

    # Contents

    def __getitem__(self, key: KeyT) -> ValueT:
        self._check()
        return self._values[key]

    def __len__(self) -> int:
        self._check()
        return len(self._values)

    def __iter__(self) -> Iterator[KeyT]:
        return iter(self.snapshot())

    def keys(self) -> KeysView[KeyT]:
        return self.snapshot().keys()

    def values(self) -> ValuesView[ValueT]:
        return self.snapshot().values()

    def items(self) -> ItemsView[KeyT, ValueT]:
        return self.snapshot().items()

    def snapshot(self) -> dict[KeyT, ValueT]:
        """A copy of the current contents, owned by the caller."""
        self._check()
        with self._lock:
            return self._values.copy()

    def __repr__(self) -> str:
        state = "failed" if self._failure else "closed" if self._closing.is_set() else "following"
        return f"Table({self.topic!r}, {len(self._values)} keys, {state})"

    # Status

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that existed when the table was created has been read."""
        self._check()
        return self._is_caught_up

    @property
    def trouble(self) -> ClientError | None:
        """The problem that currently keeps the table out of date and is being retried; None if there is none."""
        return self._trouble

    def wait_until_caught_up(self, timeout: float | None = None) -> None:
        """Wait until everything that existed when the table was created has been read; raises TimeoutError."""
        is_settled = self._settled.wait(timeout)
        if self.is_caught_up:
            return
        if is_settled:
            raise TableError(f"the table of topic {self.topic!r} was closed before it was caught up")
        trouble = f"; {self._trouble}" if self._trouble else ""
        raise TimeoutError(f"the table of topic {self.topic!r} is not caught up after {timeout} s{trouble}")

    def close(self) -> None:
        """Stop following the topic; the contents stay readable."""
        if not self._closing.is_set():
            self._closing.set()
            if self._thread.is_current:
                # `on_change` is closing the table: the thread ends once it returns, and can't wait for itself.
                threading.Thread(target=self._stop, daemon=True).start()
            else:
                self._stop()
        self._settled.set()

    def _stop(self) -> None:
        self._thread.run(self._cancel(), _CLOSE_TIMEOUT_S)
        self._thread.close()

    async def _cancel(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def _check(self) -> None:
        failure = self._failure
        if failure is not None:
            raise TableError(f"the table of topic {self.topic!r} can't be kept up to date: {failure}") from failure

    # The thread

    async def _start(self, admin: AsyncAdmin, consumer: AsyncConsumer) -> asyncio.Task[None]:
        return asyncio.create_task(self._run(admin, consumer))

    def _make_consumer(self) -> AsyncConsumer:
        return AsyncConsumer(
            **self._options,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            isolation_level=self._isolation_level,
            max_poll_records=_RECORDS_AT_ONCE,
            queued_max_bytes=QUEUED_BYTES_MAX,
        )

    async def _run(self, admin: AsyncAdmin, consumer: AsyncConsumer) -> None:
        try:
            async with admin:
                while True:
                    async with consumer:
                        await self._read(admin, consumer)
                    consumer = self._make_consumer()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised in the threads that use the table
            self._failure = error
            logger.error("the table of topic %r has stopped: %s", self.topic, error)
            self._settled.set()

    async def _read(self, admin: AsyncAdmin, consumer: AsyncConsumer) -> None:
        """One pass, which ends when the topic has to be read again from the start."""
        reading: _Reading[KeyT, ValueT] | None = None
        look_due_s = 0.0
        while True:
            try:
                if reading is None:
                    reading = await self._begin(admin, consumer)
                    look_due_s = _now_s() + LOOK_INTERVAL_S
                elif _now_s() >= look_due_s:
                    look_due_s = _now_s() + LOOK_INTERVAL_S
                    topic = await self._look(admin)
                    if topic.topic_id != reading.topic_id:
                        logger.warning("topic %r was recreated: rebuilding its table", self.topic)
                        return
                    await self._take_up_new(reading, topic)
                    self._end_trouble()
                self._take_in(reading, await consumer.poll(_POLL_S))
                await self._see_whether_caught_up(reading)
            except (OffsetOutOfRangeError, LogTruncationError) as error:
                logger.warning("rebuilding the table of topic %r: %s", self.topic, error)
                return
            except ClientError as error:
                self._bear(error)
                await asyncio.sleep(_PAUSE.pause_s(self._failures))

    async def _look(self, admin: AsyncAdmin) -> TopicMetadata:
        """The topic as it is now; raises if a partition has no leader."""
        topic = (await admin.describe_topics(self.topic))[self.topic]
        for row in topic.partitions:
            if row.leader_id < 0:
                subject = f"partition {self.topic}-{row.partition}"
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, subject=subject)
        return topic

    async def _begin(self, admin: AsyncAdmin, consumer: AsyncConsumer) -> _Reading[KeyT, ValueT]:
        topic = await self._look(admin)
        partitions = _partitions(topic)
        ends = await consumer.end_offsets(partitions)
        await consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        self._end_trouble()
        # The first pass fills the table that everybody sees; a later one fills a new table alongside it.
        values: dict[KeyT, ValueT] = {} if self._has_begun else self._values
        self._has_begun = True
        return _Reading(consumer, topic.topic_id, ends, values, partitions)

    async def _take_up_new(self, reading: _Reading[KeyT, ValueT], topic: TopicMetadata) -> None:
        partitions = _partitions(topic)
        added = partitions[len(reading.partitions) :]
        if added:
            # Partitions that stay keep their positions.
            await reading.consumer.assign(partitions)
            reading.consumer.seek_to_beginning(added)
            reading.partitions = partitions

    async def _see_whether_caught_up(self, reading: _Reading[KeyT, ValueT]) -> None:
        if reading.is_caught_up:
            return
        consumer = reading.consumer
        positions = {key: await consumer.position(key) for key in reading.ends}
        if all(positions[key] >= end for key, end in reading.ends.items()):
            self._catch_up(reading)
            return
        fetches = consumer.metrics().fetches_total
        if positions != reading.positions or self._trouble is not None:
            reading.positions, reading.idle_since_s, reading.idle_fetches = positions, _now_s(), fetches
        elif _now_s() - reading.idle_since_s > IDLE_S and fetches - reading.idle_fetches >= IDLE_FETCHES:
            self._catch_up(reading)

    def _take_in(self, reading: _Reading[KeyT, ValueT], records: list[ConsumerRecord]) -> None:
        read = [
            self._deserialize(record) for record in records if record.key is not None or self._warn_of_keyless(record)
        ]
        with self._lock:
            changes = [_apply(reading.values, *each) for each in read]
        if reading.values is self._values:
            self._tell([change for change in changes if change is not None])

    def _deserialize(self, record: ConsumerRecord) -> tuple[KeyT, ValueT | None, bool]:
        """The key, the value, and whether the record removes the key."""
        try:
            key: KeyT = self._key_deserializer(record.key or b"")
            hash(key)
            return key, None if record.value is None else self._value_deserializer(record.value), record.value is None
        except Exception as error:  # a user function may raise anything; the error says at which record
            place = f"partition {record.topic}-{record.partition} at offset {record.offset}"
            raise TableError(f"{place} can't be deserialized: {error!r}") from error

    def _catch_up(self, reading: _Reading[KeyT, ValueT]) -> None:
        reading.is_caught_up = True
        if reading.values is not self._values:
            old = self._values
            with self._lock:
                self._values = reading.values
            self._tell(_differences(old, reading.values))
        self._is_caught_up = True
        self._settled.set()

    def _tell(self, changes: list[Change[KeyT, ValueT]]) -> None:
        if self._on_change is None:
            return
        for change in changes:
            try:
                self._on_change(change)
            except Exception:  # the user's function failed; the table itself is fine
                logger.exception("on_change of the table of topic %r failed for %r", self.topic, change.key)

    def _warn_of_keyless(self, record: ConsumerRecord) -> bool:
        """Log once that the record was not added to the table."""
        if not self._warned_of_keyless:
            self._warned_of_keyless = True
            logger.warning(
                "partition %s-%d has records without a key, which no table can hold; the first is at offset %d",
                record.topic,
                record.partition,
                record.offset,
            )
        return False

    # Errors

    def _bear(self, error: ClientError) -> None:
        """Record an error that may be temporary; raises it if it is not."""
        if not isinstance(error, NoSuchPartitionError):
            self._missing_since_s = None
            if not is_retriable(error):
                raise error
        else:
            if self._missing_since_s is None:
                self._missing_since_s = _now_s()
            if not self._has_begun or _now_s() - self._missing_since_s > DELETED_AFTER_S:
                raise error
        self._failures += 1
        if self._trouble is None:
            logger.warning("the table of topic %r is not up to date, retrying: %s", self.topic, error)
        self._trouble = error

    def _end_trouble(self) -> None:
        self._missing_since_s = None
        self._failures = 0
        if self._trouble is not None:
            logger.info("the table of topic %r is being updated again", self.topic)
            self._trouble = None


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _partitions(topic: TopicMetadata) -> list[TopicPartition]:
    return [TopicPartition(topic.name, row.partition) for row in topic.partitions]


def _apply(
    values: dict[KeyT, ValueT], key: KeyT, value: ValueT | None, is_removal: bool
) -> Change[KeyT, ValueT] | None:
    """Apply a record to the values; None if it changes nothing."""
    was_there = key in values
    old = values.get(key)
    if is_removal:
        values.pop(key, None)
        return Change(key, old, None, is_removal=True) if was_there else None
    values[key] = value  # type: ignore[assignment] # a value that is None here came so from the deserializer
    return None if was_there and old == value else Change(key, old, value)


def _differences(old: Mapping[KeyT, ValueT], new: Mapping[KeyT, ValueT]) -> list[Change[KeyT, ValueT]]:
    removed = [Change(key, value, None, is_removal=True) for key, value in old.items() if key not in new]
    changed = [Change(key, old.get(key), value) for key, value in new.items() if key not in old or old[key] != value]
    return removed + changed
