"""A member on aiokafka."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import IllegalStateError, KafkaError

from group_members.report import HEARTBEAT_INTERVAL_MS, CommitTimer, Options, Positions, assigned, refused, revoked

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc] # the package has no types
    """The library calls it from a task of its own, while the reading one may hold records that it did not tell of."""

    def __init__(self, consumer: AIOKafkaConsumer, positions: Positions) -> None:
        self._consumer = consumer
        self._positions = positions
        self.owned: set[int] = set()

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        numbers = {partition.partition for partition in partitions}
        self.owned -= numbers
        if numbers:
            await commit(self._consumer, self._positions, partitions)
            self._positions.forget(numbers)
            revoked(numbers)

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        numbers = {partition.partition for partition in partitions}
        assigned(numbers)
        self.owned |= numbers


async def main() -> None:
    options = Options.from_command_line()
    timer, positions, stop = CommitTimer(), Positions(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance,
        partition_assignment_strategy=[ASSIGNORS[options.assignor]],
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        metadata_max_age_ms=500,
    )
    listener = Listener(consumer, positions)
    consumer.subscribe([options.topic], listener=listener)
    await consumer.start()
    try:
        while not stop.is_set():
            batches = await consumer.getmany(timeout_ms=100)
            records = [(record.partition, record.offset) for batch in batches.values() for record in batch]
            positions.read([record for record in records if record[0] in listener.owned])
            if timer.is_due():
                await commit(consumer, positions, consumer.assignment())
        # The listener is not called when the consumer stops.
        owned = consumer.assignment()
        await commit(consumer, positions, owned)
        revoked(partition.partition for partition in owned)
    finally:
        await consumer.stop()


async def commit(consumer: AIOKafkaConsumer, positions: Positions, partitions: Iterable[TopicPartition]) -> None:
    by_number = {partition.partition: partition for partition in partitions}
    offsets = {by_number[number]: offset for number, offset in positions.of(by_number).items()}
    if not offsets:
        return
    try:
        await consumer.commit(offsets)
    except (KafkaError, IllegalStateError) as error:
        refused(error)


asyncio.run(main())
