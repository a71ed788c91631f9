"""A member on Tidelog's own client."""

from __future__ import annotations

from collections.abc import Sequence

from group_members.report import (
    HEARTBEAT_INTERVAL_MS,
    CommitTimer,
    Options,
    Positions,
    Stop,
    assigned,
    refused,
    revoked,
)
from tidelog import Consumer, RebalanceListener, TopicPartition
from tidelog.client.errors import CommitFailedError


class Listener(RebalanceListener):
    """Tells what it is told, and commits before partitions go."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.positions = Positions()
        self._consumer = consumer
        self._topic = topic

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        assigned(partition.partition for partition in partitions)

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        numbers = [partition.partition for partition in partitions]
        self.commit(self.positions.of(numbers))
        self.positions.forget(numbers)
        revoked(numbers)

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        numbers = [partition.partition for partition in partitions]
        self.positions.forget(numbers)
        revoked(numbers)

    def commit(self, offsets: dict[int, int]) -> None:
        try:
            self._consumer.commit_sync({TopicPartition(self._topic, number): at for number, at in offsets.items()})
        except CommitFailedError as error:
            refused(error)


def main() -> None:
    options = Options.from_command_line()
    stop, timer = Stop(), CommitTimer()
    settings: dict[str, object] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "group.protocol": options.protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "metadata.max.age.ms": 500,
    }
    if options.protocol == "classic":
        settings["partition.assignment.strategy"] = options.assignor
        settings["session.timeout.ms"] = options.session_ms
        settings["heartbeat.interval.ms"] = HEARTBEAT_INTERVAL_MS
    if options.instance is not None:
        settings["group.instance.id"] = options.instance
    with Consumer(settings) as consumer:
        listener = Listener(consumer, options.topic)
        consumer.subscribe([options.topic], listener=listener)
        while not stop.is_set:
            listener.positions.read([(record.partition, record.offset) for record in consumer.poll(0.1)])
            if timer.is_due():
                listener.commit(listener.positions.of(each.partition for each in consumer.assignment()))


main()
