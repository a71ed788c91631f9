"""A dict-like view of a topic: the last value of every key, read from the first offset on and kept current.

What always holds: the mapping never changes under a reader's hands (iterating goes over a copy); a record whose value
is null removes its key; whatever ends the reading for good is raised by every later use, while what may pass, such as a
broker that restarts or a leader that moves, is waited out. When records were deleted before they were read, or the
topic was made anew, the view is built again beside the old one, which serves until then. All keys and values are in
memory. It writes nothing, belongs to no group, and shows records of open and aborted transactions, too.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Hashable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack, overload

from tidelog.client.admin_calls import Admin
from tidelog.client.admin_types import LATEST_TIMESTAMP
from tidelog.client.cluster import RETRY_BACKOFF_S, RETRY_BACKOFF_S_MAX, Cluster, TopicPartition, is_passing
from tidelog.client.consume import BEGINNING, Consumer, FetchedRecords, Start
from tidelog.client.errors import BrokerError, ClientError, NoSuchPartitionError
from tidelog.protocol import ErrorCode
from tidelog.records import Record

logger = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

# How often the cluster is asked whether the topic has grown.
PARTITIONS_INTERVAL_S = 30.0
# A topic that was there may be unknown to a broker that has only just started; after this it counts as deleted.
DELETED_AFTER_S = 30.0
# How long close waits for the thread: a fetch under way ends within half a second.
_CLOSE_TIMEOUT_S = 5.0


class TableError(ClientError):
    """The table can't be kept current any more; the cause says why."""


class _ClosedError(Exception):
    """The table is closed: its thread shall end."""


@dataclass(frozen=True, slots=True)
class Change(Generic[KeyT, ValueT]):
    """What became of one key. Without a value before or after, `old` or `new` is None."""

    key: KeyT
    old: ValueT | None
    new: ValueT | None
    is_removal: bool = False


class TableOptions(TypedDict, total=False):
    on_change: Callable[[Change[Any, Any]], None] | None
    client_id: str
    request_timeout_s: float


@dataclass(slots=True)
class _Reading(Generic[KeyT, ValueT]):
    """One pass over the topic from its start, which then goes on for as long as nothing is missed."""

    consumer: Consumer
    topic_id: uuid.UUID
    # Where each partition ended when the reading began.
    ends: dict[TopicPartition, int]
    values: dict[KeyT, ValueT]
    partitions: list[TopicPartition]
    is_caught_up: bool = False

    def positions(self) -> list[int]:
        return [self.consumer.position(key) for key in self.partitions]


class Table(Mapping[KeyT, ValueT]):
    """The last value of every key of a topic, most useful for a compacted one.

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
    ) -> None:
        """Begin to read in a thread of its own; `wait_until_caught_up` waits for it.

        `on_change` is called by that thread for every change, those of the first reading included; what it raises is
        logged, and the table goes on.
        """
        self.topic = topic
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._on_change = on_change
        self._lock = threading.Lock()
        self._values: dict[KeyT, ValueT] = {}
        self._is_caught_up = False
        # Caught up, failed or closed: whatever is waited for will not come later.
        self._settled = threading.Event()
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._trouble: ClientError | None = None
        self._missing_since_s: float | None = None
        self._partitions_due_s = 0.0
        self._has_begun = False
        self._warned_of_keyless = False
        cluster = Cluster(bootstrap, client_id=client_id, request_timeout_s=request_timeout_s, sleep=self._pause)
        self._thread = threading.Thread(target=self._run, args=(cluster,), name=f"table-{topic}", daemon=True)
        self._thread.start()

    # What it holds

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
        """A copy of all there is now, the caller's own."""
        self._check()
        with self._lock:
            return self._values.copy()

    def __repr__(self) -> str:
        state = "failed" if self._failure else "closed" if self._closing.is_set() else "following"
        return f"Table({self.topic!r}, {len(self._values)} keys, {state})"

    # How it stands

    @property
    def is_caught_up(self) -> bool:
        """Whether everything was read that was there when the table was made."""
        self._check()
        return self._is_caught_up

    @property
    def trouble(self) -> ClientError | None:
        """What keeps the table from being current at this moment and is being waited out; None when nothing does."""
        return self._trouble

    def wait_until_caught_up(self, timeout: float | None = None) -> None:
        """Wait until everything was read that was there when the table was made; raises TimeoutError."""
        is_settled = self._settled.wait(timeout)
        if self.is_caught_up:
            return
        if is_settled:
            raise TableError(f"the table of topic {self.topic!r} was closed before it was caught up")
        trouble = f"; {self._trouble}" if self._trouble else ""
        raise TimeoutError(f"the table of topic {self.topic!r} is not caught up after {timeout} s{trouble}")

    def close(self) -> None:
        """Stop following the topic; what was read stays readable."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_TIMEOUT_S)
        self._settled.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        failure = self._failure
        if failure is not None:
            raise TableError(f"the table of topic {self.topic!r} can't be kept current: {failure}") from failure

    # The thread

    def _run(self, cluster: Cluster) -> None:
        try:
            with cluster:
                self._follow(cluster)
        except _ClosedError:
            return
        except BaseException as error:  # noqa: BLE001 - it is raised in the threads that use the table
            self._failure = error
            logger.error("the table of topic %r stops: %s", self.topic, error)
            self._settled.set()

    def _follow(self, cluster: Cluster) -> None:
        reading: _Reading[KeyT, ValueT] | None = None
        pause_s = RETRY_BACKOFF_S
        while not self._closing.is_set():
            try:
                if reading is None:
                    reading = self._begin(cluster)
                if self._step(cluster, reading):
                    if not reading.consumer.is_failing:
                        pause_s = RETRY_BACKOFF_S
                        self._end_trouble()
                else:
                    logger.warning("topic %r was made anew: its table is, too", self.topic)
                    reading = None
            except BrokerError as error:
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    logger.warning("the table of topic %r is built again: %s", self.topic, error)
                    reading = None
                else:
                    pause_s = self._bear(error, pause_s, cluster)
            except ClientError as error:
                pause_s = self._bear(error, pause_s, cluster)

    def _begin(self, cluster: Cluster) -> _Reading[KeyT, ValueT]:
        topic = cluster.topic(self.topic)
        partitions = [TopicPartition(self.topic, row.partition) for row in topic.partitions]
        ends = Admin(cluster).list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
        # The thread waits out by itself what may pass: here patience would only delay that it tells of it.
        consumer = Consumer(cluster, patience_s=0)
        consumer.assign(dict.fromkeys(partitions, BEGINNING))
        # The first reading fills what everybody sees, a later one a table beside it.
        values: dict[KeyT, ValueT] = {} if self._has_begun else self._values
        self._has_begun = True
        self._partitions_due_s = cluster.monotonic() + PARTITIONS_INTERVAL_S
        ended = {key: listed.offset for key, listed in ends.items()}
        return _Reading(consumer, topic.topic_id, ended, values, partitions)

    def _step(self, cluster: Cluster, reading: _Reading[KeyT, ValueT]) -> bool:
        """Read on; False when the topic is no longer the one that was read."""
        if cluster.monotonic() >= self._partitions_due_s:
            cluster.forget(self.topic)
            self._partitions_due_s = cluster.monotonic() + PARTITIONS_INTERVAL_S
        topic = cluster.topic(self.topic)
        if topic.topic_id != reading.topic_id:
            return False
        if len(topic.partitions) > len(reading.partitions):
            self._take_up_new(reading, [TopicPartition(self.topic, row.partition) for row in topic.partitions])
        positions = reading.positions()
        fetched = reading.consumer.poll()
        if fetched is not None:
            self._take_in(reading, fetched)
        if not reading.is_caught_up:
            # Compaction may have taken the last records, so that no position ever gets to the end; then a fetch of all
            # partitions has found nothing more.
            is_idle = positions == reading.positions() and not reading.consumer.is_failing
            if is_idle or all(reading.consumer.position(key) >= end for key, end in reading.ends.items()):
                self._catch_up(reading)
        return True

    def _take_up_new(self, reading: _Reading[KeyT, ValueT], partitions: list[TopicPartition]) -> None:
        consumer = reading.consumer
        starts = {key: Start(offset=consumer.position(key)) for key in reading.partitions}
        consumer.assign({key: starts.get(key, BEGINNING) for key in partitions})
        reading.partitions = partitions

    def _take_in(self, reading: _Reading[KeyT, ValueT], fetched: FetchedRecords) -> None:
        read = [
            self._deserialize(fetched.topic_partition, record)
            for record in fetched.records
            if record.key is not None or self._warn_of_keyless(fetched.topic_partition, record.offset)
        ]
        with self._lock:
            changes = [_apply(reading.values, *each) for each in read]
        if reading.values is self._values:
            self._tell([change for change in changes if change is not None])

    def _deserialize(self, topic_partition: TopicPartition, record: Record) -> tuple[KeyT, ValueT | None, bool]:
        """Key, value, and whether the record removes the key."""
        try:
            key: KeyT = self._key_deserializer(record.key or b"")
            hash(key)
            return key, None if record.value is None else self._value_deserializer(record.value), record.value is None
        except Exception as error:  # whatever the user's function raises, with where it met it
            place = f"partition {topic_partition} at offset {record.offset}"
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
            except Exception:  # the user's function; the table itself is right
                logger.exception("on_change of the table of topic %r failed for %r", self.topic, change.key)

    def _warn_of_keyless(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Say so once, and that the record is not taken in."""
        if not self._warned_of_keyless:
            self._warned_of_keyless = True
            logger.warning(
                "partition %s has records without a key, which no table can hold; the first is at offset %d",
                topic_partition,
                offset,
            )
        return False

    # Trouble

    def _bear(self, error: ClientError, pause_s: float, cluster: Cluster) -> float:
        """Wait a little when the error may pass; the next pause. Raises it when it won't."""
        if not isinstance(error, NoSuchPartitionError):
            self._missing_since_s = None
            if not is_passing(error):
                raise error
        else:
            now_s = cluster.monotonic()
            if self._missing_since_s is None:
                self._missing_since_s = now_s
            if not self._has_begun or now_s - self._missing_since_s > DELETED_AFTER_S:
                raise error
        if self._trouble is None:
            logger.warning("the table of topic %r is not current, and tries again: %s", self.topic, error)
        self._trouble = error
        self._pause(pause_s)
        return min(pause_s * 2, RETRY_BACKOFF_S_MAX)

    def _end_trouble(self) -> None:
        self._missing_since_s = None
        if self._trouble is not None:
            logger.info("the table of topic %r is read on", self.topic)
            self._trouble = None

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise _ClosedError


def _apply(
    values: dict[KeyT, ValueT], key: KeyT, value: ValueT | None, is_removal: bool
) -> Change[KeyT, ValueT] | None:
    """Let a record change the values; None when it changes nothing."""
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
