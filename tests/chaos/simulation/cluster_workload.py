"""What applications do with a simulated cluster, through the real client, and what they are told.

What always holds: every record says who sent it and where it belongs, so whoever reads it can tell whether it is there
once and in order. What was acknowledged is noted at once; what failed may be there or not.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence

from tidelog import AsyncConsumer, AsyncProducer
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition

SOURCE, TARGET = "source", "target"
PARTITIONS = 3
COPY_GROUP = "copy"
Rows = Mapping[int, Sequence[tuple[int, bytes]]]
"""The records of a topic by partition, each with its offset."""


class Notes:
    """What the applications of one run know."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        # What applications were told that went wrong, for whoever looks into a failure.
        self.errors: list[str] = []
        # What anybody has read, by partition and offset.
        self.read: dict[tuple[str, int, int], bytes] = {}
        self.grouped: set[bytes] = set()
        self.copied = 0
        self.violations: list[str] = []

    def check(self) -> None:
        assert not self.violations, self.violations[:3]

    def on_read(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        known = self.read.setdefault((topic, partition, offset), value)
        if known != value:
            self.violations.append(f"{topic}-{partition} offset {offset} was read as {known!r} and as {value!r}")

    def check_source(self, found: Rows) -> None:
        """Everything acknowledged is there, where it was said to be, and nothing twice or out of order."""
        places: dict[bytes, tuple[int, int]] = {}
        for partition, rows in found.items():
            last: dict[bytes, int] = {}
            for offset, value in rows:
                assert value not in places, f"{value!r} is at {places[value]} and at {(partition, offset)}"
                places[value] = partition, offset
                writer, number = value.split(b"-")
                assert last.get(writer, -1) < int(number), f"{value!r} is behind a later one in {partition}"
                last[writer] = int(number)
        for value, place in self.acknowledged.items():
            assert places.get(value) == place, f"{value!r} was acknowledged at {place}, and is at {places.get(value)}"
        for (topic, partition, offset), value in self.read.items():
            if topic == SOURCE:
                assert places.get(value) == (partition, offset), f"{value!r} was read at {partition}, {offset}"

    def check_copied(self, source: Rows, target: Rows) -> None:
        """Every record of the source is in the target once, in order."""
        for partition, rows in source.items():
            copies = [value for _, value in target[partition]]
            assert copies == [value for _, value in rows], f"{partition}: {copies} is no copy of {rows}"


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
    """Reads all partitions of a topic from the beginning on, and never misses an offset."""

    def __init__(self, topic: str, bootstrap: str, notes: Notes, *, is_committed: bool = False) -> None:
        self.topic = topic
        self.found: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(PARTITIONS)}
        self._notes = notes
        self._is_committed = is_committed
        isolation = "read_committed" if is_committed else "read_uncommitted"
        self._settings = client_settings(bootstrap) | {
            "auto.offset.reset": "none",
            "isolation.level": isolation,
            "fetch.max.wait.ms": 200,
        }

    async def run(self, is_done: Callable[[], bool]) -> None:
        async with AsyncConsumer(self._settings) as consumer:
            await self._begin(consumer)
            while not is_done():
                await self._poll(consumer)

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
            assert record.value is not None
            self._take(record.partition, record.offset, record.value)

    def _take(self, partition: int, offset: int, value: bytes) -> None:
        found = self.found[partition]
        expected = found[-1][0] + 1 if found else 0
        # Markers of transactions take offsets that nobody is given.
        if offset < expected or (offset > expected and not self._is_committed):
            self._notes.violations.append(f"{self.topic}-{partition}: read {offset} where {expected} comes next")
        found.append((offset, value))
        self._notes.on_read(self.topic, partition, offset, value)


class Member:
    """One consumer of a group that processes, then commits."""

    def __init__(self, bootstrap: str, notes: Notes, group: str, *, protocol: str) -> None:
        self._notes = notes
        self._settings = client_settings(bootstrap) | {
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.max.wait.ms": 200,
        }
        if protocol == "classic":
            self._settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}

    async def run(self, is_done: Callable[[], bool]) -> None:
        async with AsyncConsumer(self._settings) as consumer:
            consumer.subscribe([SOURCE])
            while not is_done():
                try:
                    records = await consumer.poll(timeout=0.5)
                    for record in records:
                        assert record.value is not None
                        self._notes.on_read(SOURCE, record.partition, record.offset, record.value)
                        self._notes.grouped.add(record.value)
                    if records:
                        await consumer.commit()
                except ClientError:
                    # A commit of somebody who is no longer a member, or a coordinator that moves: read on.
                    await asyncio.sleep(0.1)


class Copier:
    """Copies the source into the target, one transaction for each poll, with the offsets in it."""

    def __init__(self, bootstrap: str, notes: Notes, name: str, rng: random.Random) -> None:
        self._bootstrap = bootstrap
        self._notes = notes
        self._name = name
        self._random = rng

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
        writing = settings | {"transactional.id": self._name, "transaction.timeout.ms": 20_000, "linger.ms": 0}
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
                await producer.begin_transaction()
                for record in records:
                    await producer.send(TARGET, record.value, partition=record.partition, timestamp=_now_ms())
                if self._random.random() < 0.1:
                    await producer.abort_transaction()
                    consumer.seek_to_committed()
                    continue
                await producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
                await producer.commit_transaction()
                self._notes.copied += len(records)


def _now_ms() -> int:
    """The compiled appender asks the machine for the time of day, not the simulation."""
    return time.time_ns() // 1_000_000
