"""What applications do with a simulated cluster, through the real client, and what they are told.

What always holds: every record says who sent it and where it belongs, so whoever reads it can tell whether it is there
once and in order; a record of a transaction says of which. What was acknowledged is noted at once; what failed may be
there or not. Members of groups are in `cluster_group`, administrators in `cluster_admin`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from cluster_invariants import Invariant, Violations
from tidelog import AsyncConsumer, AsyncProducer, ConsumerRecord
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition

SOURCE, TARGET = "source", "target"
PARTITIONS = 3
COPY_GROUP, COPIER = "copy", "copier"
Rows = Mapping[int, Sequence[tuple[int, bytes]]]
"""The records of a topic by partition, each with its offset."""


class Notes:
    """What the applications of one run know."""

    def __init__(self, violations: Violations) -> None:
        self.violations = violations
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        # What applications were told that went wrong, for whoever looks into a failure.
        self.errors: list[str] = []
        # What anybody has read, by partition and offset.
        self.read: dict[tuple[str, int, int], bytes] = {}
        self.grouped: set[bytes] = set()
        self.copied = 0
        # How many records each transaction holds, and those that their application has given up.
        self.attempts: dict[bytes, int] = {}
        self.aborted: set[bytes] = set()
        self.ends_asked = 0

    def on_read(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        known = self.read.setdefault((topic, partition, offset), value)
        self.violations.unless(
            known == value,
            Invariant.READERS,
            f"{topic}-{partition} offset {offset} was read as {known!r} and as {value!r}",
        )

    def check_source(self, found: Rows) -> None:
        """Everything acknowledged is there, where it was said to be, and nothing twice or out of order."""
        unless = self.violations.unless
        places: dict[bytes, tuple[int, int]] = {}
        for partition, rows in found.items():
            last: dict[bytes, int] = {}
            for offset, value in rows:
                place = partition, offset
                unless(value not in places, Invariant.ORDER, f"{value!r} is at {places.get(value)} and at {place}")
                places[value] = place
                writer, number = value.split(b"-")
                unless(
                    last.get(writer, -1) < int(number),
                    Invariant.ORDER,
                    f"{value!r} is behind a later one in {partition}",
                )
                last[writer] = int(number)
        for value, told in self.acknowledged.items():
            unless(
                places.get(value) == told,
                Invariant.ACKNOWLEDGED,
                f"{value!r} was acknowledged at {told}, and is at {places.get(value)}",
            )
        for (topic, partition, offset), value in self.read.items():
            unless(
                topic != SOURCE or places.get(value) == (partition, offset),
                Invariant.READERS,
                f"{value!r} was read at {partition}, {offset}, and is at {places.get(value)}",
            )
        self.violations.check()

    def check_copied(self, source: Rows, target: Rows, attempts: Mapping[bytes, int]) -> None:
        """Every record of the source is in the target once, in order; each transaction is there as a whole."""
        for partition, rows in source.items():
            copies = [value for _, value in target[partition]]
            self.violations.unless(
                copies == [value for _, value in rows],
                Invariant.COPIES,
                f"partition {partition}: {copies} is no copy of {rows}",
            )
        for attempt, count in attempts.items():
            self.violations.unless(
                count == self.attempts[attempt],
                Invariant.COPIES,
                f"{count} of {self.attempts[attempt]} records of transaction {attempt!r} are there",
            )
        self.violations.check()


def client_settings(bootstrap: str) -> dict[str, object]:
    return {"bootstrap.servers": bootstrap, "request.timeout.ms": 5_000, "metadata.max.age.ms": 10_000}


class Writer:
    """Sends numbered records, some at a time, and waits for each to be acknowledged or to fail."""

    def __init__(self, name: str, bootstrap: str, notes: Notes, rng: random.Random, count: int, pace_s: float) -> None:
        self._name = name
        self._bootstrap = bootstrap
        self._notes = notes
        self._random = rng
        self._count = count
        self._pace_s = pace_s

    async def run(self) -> None:
        settings = client_settings(self._bootstrap) | {"delivery.timeout.ms": 300_000, "linger.ms": 2}
        async with AsyncProducer(settings) as producer:
            waiting = []
            for number in range(self._count):
                value = b"%s-%d" % (self._name.encode(), number)
                partition = self._random.randrange(PARTITIONS)
                delivery = await self._send(producer, value, partition)
                waiting.append(asyncio.ensure_future(self._note(value, delivery)))
                if self._random.random() < 0.7:
                    await asyncio.sleep(self._random.expovariate(1 / self._pace_s))
            await asyncio.gather(*waiting)

    async def _send(self, producer: AsyncProducer, value: bytes, partition: int) -> asyncio.Future[object]:
        while True:
            try:
                return asyncio.ensure_future(
                    await producer.send(SOURCE, value, partition=partition, timestamp=_now_ms())
                )
            except ClientError:
                # Nothing was sent: no metadata within max.block.ms.
                await asyncio.sleep(0.5)

    async def _note(self, value: bytes, delivery: asyncio.Future[object]) -> None:
        try:
            stored = await delivery
        except ClientError as error:
            self._notes.errors.append(f"{value!r}: {error!r}")
            return
        self._notes.acknowledged[value] = stored.partition, stored.offset  # type: ignore[attr-defined]


class Reader:
    """Reads all partitions of a topic from the beginning on, never misses an offset, and never sees the end go back."""

    def __init__(self, topic: str, bootstrap: str, notes: Notes, *, is_committed: bool = False) -> None:
        self.topic = topic
        self.found: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(PARTITIONS)}
        # How many records of each transaction it has seen.
        self.attempts: Counter[bytes] = Counter()
        self._notes = notes
        self._is_committed = is_committed
        self._ends: dict[TopicPartition, int] = {}
        isolation = "read_committed" if is_committed else "read_uncommitted"
        self._settings = client_settings(bootstrap) | {
            "auto.offset.reset": "none",
            "isolation.level": isolation,
            "fetch.max.wait.ms": 200,
        }

    async def run(self, is_done: Callable[[], bool]) -> None:
        async with AsyncConsumer(self._settings) as consumer:
            partitions = await self._begin(consumer)
            while not is_done():
                await self._poll(consumer)
                await self._look_at_ends(consumer, partitions)

    async def read_to_end(self) -> None:
        """Read what is there now, down to the last record that is not part of an open transaction."""
        async with AsyncConsumer(self._settings) as consumer:
            partitions = await self._begin(consumer)
            ends = await consumer.end_offsets(partitions)
            while any([await consumer.position(partition) < end for partition, end in ends.items()]):
                await self._poll(consumer)

    async def _begin(self, consumer: AsyncConsumer) -> list[TopicPartition]:
        partitions = [TopicPartition(self.topic, index) for index in range(PARTITIONS)]
        await consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        return partitions

    async def _poll(self, consumer: AsyncConsumer) -> None:
        for record in await consumer.poll(timeout=0.5):
            self._take(record)

    async def _look_at_ends(self, consumer: AsyncConsumer, partitions: Sequence[TopicPartition]) -> None:
        """What a leader says is the end is never before what it, or another, has said or shown to this reader."""
        before = dict(self._ends)
        for index, rows in self.found.items():
            if rows:
                partition = TopicPartition(self.topic, index)
                before[partition] = max(before.get(partition, 0), rows[-1][0] + 1)
        try:
            ends = await consumer.end_offsets(partitions, timeout=3.0)
        except ClientError:
            return  # nobody leads it now
        self._notes.ends_asked += 1
        for partition, end in ends.items():
            self._notes.violations.unless(
                end >= before.get(partition, 0),
                Invariant.WATERMARK,
                f"{partition} ended at {before.get(partition)}, and ends at {end}"
                f"{' for read_committed' if self._is_committed else ''}",
            )
            self._ends[partition] = end

    def _take(self, record: ConsumerRecord) -> None:
        partition, offset, value = record.partition, record.offset, record.value
        assert value is not None
        found = self.found[partition]
        expected = found[-1][0] + 1 if found else 0
        # Markers of transactions take offsets that nobody is given.
        self._notes.violations.unless(
            offset == expected or (offset > expected and self._is_committed),
            Invariant.READERS,
            f"{self.topic}-{partition}: read {offset} where {expected} comes next",
        )
        found.append((offset, value))
        self._notes.on_read(self.topic, partition, offset, value)
        for _, attempt in record.headers or ():
            assert attempt is not None
            self.attempts[attempt] += 1
            self._notes.violations.unless(
                not self._is_committed or attempt not in self._notes.aborted,
                Invariant.ABORTED,
                f"{value!r} at {self.topic}-{partition} offset {offset} is of {attempt!r}, which was aborted",
            )


class Copier:
    """Copies the source into the target, one transaction for each poll, with the offsets in it."""

    def __init__(self, bootstrap: str, notes: Notes, name: str, rng: random.Random) -> None:
        """`name` is this copier's own; those that replace one another have the same transactional id."""
        self._bootstrap = bootstrap
        self._notes = notes
        self._name = name
        self._random = rng
        self._count = 0

    async def run(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            try:
                await self._life(is_done)
            except ClientError as error:
                # What such an application does: it ends, and is started again.
                self._notes.errors.append(f"copier: {error!r}")
                await asyncio.sleep(0.2)

    async def _life(self, is_done: Callable[[], bool]) -> None:
        settings = client_settings(self._bootstrap)
        writing = settings | {"transactional.id": COPIER, "transaction.timeout.ms": 20_000, "linger.ms": 0}
        reading = settings | {
            "group.id": COPY_GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "max.poll.records": 20,
            "fetch.max.wait.ms": 200,
        }
        async with AsyncProducer(writing) as producer, AsyncConsumer(reading) as consumer:
            await producer.init_transactions()
            # After the transactions of lives before it have ended: it goes on from what they have committed.
            await consumer.assign([TopicPartition(SOURCE, index) for index in range(PARTITIONS)])
            while not is_done():
                records = await consumer.poll(timeout=0.5)
                if not records:
                    continue
                self._count += 1
                attempt = b"%s-%d" % (self._name.encode(), self._count)
                self._notes.attempts[attempt] = len(records)
                await producer.begin_transaction()
                for record in records:
                    await producer.send(
                        TARGET,
                        record.value,
                        headers=[("attempt", attempt)],
                        partition=record.partition,
                        timestamp=_now_ms(),
                    )
                if self._random.random() < 0.15:
                    self._notes.aborted.add(attempt)
                    if self._random.random() < 0.5:
                        # It dies without a word: whoever comes after it has this transaction ended.
                        await producer.flush()
                        return
                    await producer.abort_transaction()
                    consumer.seek_to_committed()
                    continue
                await producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
                await producer.commit_transaction()
                self._notes.copied += len(records)


def _now_ms() -> int:
    """The compiled appender asks the machine for the time of day, not the simulation."""
    return time.time_ns() // 1_000_000
