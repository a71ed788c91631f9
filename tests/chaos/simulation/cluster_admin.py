"""An administrator of a simulated cluster: makes topics, grows, changes and deletes them, while all else fails.

What always holds: what was acknowledged is noted, and must be so at the end. A topic about which an answer is missing
is left alone from then on: nobody knows what became of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster_invariants import Invariant
from cluster_workload import Notes, client_settings
from tidelog import AsyncAdmin, AsyncConsumer, AsyncProducer
from tidelog.client.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition

_SETTING = "retention.ms"
_PARTITIONS_MAX = 4
_TIMEOUT_S = 30.0


@dataclass
class KnownTopic:
    """What was acknowledged about a topic."""

    name: str
    partitions: int
    is_deleted: bool = False
    setting: str | None = None
    # Where each partition starts at least, and what was acknowledged at which offset.
    starts: dict[int, int] = field(default_factory=dict)
    records: dict[tuple[int, int], bytes] = field(default_factory=dict)


class Administrator:
    """Does one thing after another to topics of its own."""

    def __init__(self, bootstrap: str, notes: Notes, rng: random.Random, pace_s: float) -> None:
        self.changes = 0
        self._bootstrap = bootstrap
        self._notes = notes
        self._random = rng
        self._pace_s = pace_s
        self._topics: list[KnownTopic] = []
        self._made = 0

    async def run(self, is_done: Callable[[], bool]) -> None:
        async with (
            AsyncAdmin(bootstrap_servers=self._bootstrap, request_timeout_ms=8_000) as admin,
            AsyncProducer(client_settings(self._bootstrap) | {"delivery.timeout.ms": 20_000}) as producer,
        ):
            while not is_done():
                await asyncio.sleep(self._random.expovariate(1 / self._pace_s))
                await self._do_something(admin, producer)

    async def _do_something(self, admin: AsyncAdmin, producer: AsyncProducer) -> None:
        living = [topic for topic in self._topics if not topic.is_deleted]
        if not living or (len(living) < 3 and self._random.random() < 0.3):
            await self._create(admin)
            return
        topic = self._random.choice(living)
        # Left out until it is known how it went.
        self._topics.remove(topic)
        try:
            match self._random.choice(("write", "write", "grow", "set", "cut", "delete")):
                case "write":
                    await self._write(producer, topic)
                case "grow":
                    await self._grow(admin, topic)
                case "set":
                    await self._set(admin, topic)
                case "cut":
                    await self._cut(admin, topic)
                case "delete":
                    (await admin.delete_topics(topic.name))[topic.name]
                    topic.is_deleted = True
        except (ClientError, TimeoutError) as error:
            self._notes.errors.append(f"administrator, {topic.name}: {error!r}")
            return
        self.changes += 1
        self._topics.append(topic)

    async def _create(self, admin: AsyncAdmin) -> None:
        self._made += 1
        topic = KnownTopic(f"extra-{self._made}", self._random.randint(1, 2))
        try:
            new = NewTopic(topic.name, partitions=topic.partitions, replication_factor=3)
            (await admin.create_topics(new))[topic.name]
        except (ClientError, TimeoutError) as error:
            self._notes.errors.append(f"administrator, {topic.name}: {error!r}")
            return
        self.changes += 1
        self._topics.append(topic)

    async def _write(self, producer: AsyncProducer, topic: KnownTopic) -> None:
        for number in range(self._random.randint(1, 5)):
            value = b"%s-%d" % (topic.name.encode(), number)
            partition = self._random.randrange(topic.partitions)
            async with asyncio.timeout(_TIMEOUT_S):
                stored = await producer.send_and_wait(topic.name, value, partition=partition)
            topic.records[partition, stored.offset] = value

    async def _grow(self, admin: AsyncAdmin, topic: KnownTopic) -> None:
        if topic.partitions < _PARTITIONS_MAX:
            (await admin.create_partitions({topic.name: topic.partitions + 1}))[topic.name]
            topic.partitions += 1

    async def _set(self, admin: AsyncAdmin, topic: KnownTopic) -> None:
        setting = self._random.choice((None, "86400000000", "864000000000"))
        resource = ConfigResource(ResourceType.TOPIC, topic.name)
        (await admin.incremental_alter_configs({resource: {_SETTING: setting}}))[resource]
        topic.setting = setting

    async def _cut(self, admin: AsyncAdmin, topic: KnownTopic) -> None:
        if topic.records:
            index, offset = self._random.choice(list(topic.records))
            partition = TopicPartition(topic.name, index)
            deleted = (await admin.delete_records({partition: offset}))[partition]
            topic.starts[index] = max(topic.starts.get(index, 0), deleted.low_watermark)

    # At the end

    async def check(self) -> None:
        """Everything that was acknowledged is as it was said to be."""
        async with AsyncAdmin(bootstrap_servers=self._bootstrap, request_timeout_ms=8_000) as admin:
            names = {topic.name for topic in await admin.list_topics()}
            for topic in self._topics:
                self._unless(
                    topic.is_deleted == (topic.name not in names),
                    topic,
                    "was deleted, and is there" if topic.is_deleted else "is gone",
                )
                if topic.name in names:
                    await self._check(admin, topic)

    async def _check(self, admin: AsyncAdmin, topic: KnownTopic) -> None:
        found = (await admin.describe_topics(topic.name))[topic.name]
        count = len(found.partitions)
        self._unless(count == topic.partitions, topic, f"has {count} partitions instead of {topic.partitions}")
        resource = ConfigResource(ResourceType.TOPIC, topic.name)
        entries = (await admin.describe_configs(resource))[resource]
        value = entries[_SETTING].value
        self._unless(
            topic.setting is None or value == topic.setting, topic, f"has {_SETTING} {value} instead of {topic.setting}"
        )
        partitions = [TopicPartition(topic.name, index) for index in range(topic.partitions)]
        starts = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
        for index, start in topic.starts.items():
            offset = starts[TopicPartition(topic.name, index)].offset
            self._unless(offset >= start, topic, f"partition {index} starts at {offset} and was cut at {start}")
        await self._check_records(topic, partitions)

    async def _check_records(self, topic: KnownTopic, partitions: list[TopicPartition]) -> None:
        kept: dict[tuple[int, int], bytes | None] = {}
        settings = client_settings(self._bootstrap) | {"auto.offset.reset": "none", "fetch.max.wait.ms": 200}
        async with AsyncConsumer(settings) as consumer:
            await consumer.assign(partitions)
            consumer.seek_to_beginning(partitions)
            ends = await consumer.end_offsets(partitions)
            while any([await consumer.position(partition) < end for partition, end in ends.items()]):
                for record in await consumer.poll(timeout=0.5):
                    kept[record.partition, record.offset] = record.value
        for (index, offset), value in topic.records.items():
            is_cut = offset < topic.starts.get(index, 0)
            self._notes.violations.unless(
                is_cut or kept.get((index, offset)) == value,
                Invariant.ACKNOWLEDGED,
                f"{value!r} was acknowledged at {topic.name}-{index} offset {offset}, where now is "
                f"{kept.get((index, offset))!r}",
            )

    def _unless(self, holds: bool, topic: KnownTopic, text: str) -> None:
        self._notes.violations.unless(holds, Invariant.CHANGES, f"topic {topic.name} {text}")
