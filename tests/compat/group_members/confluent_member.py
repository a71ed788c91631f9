"""A member on confluent-kafka."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

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


def main() -> None:
    options = Options.from_command_line()
    stop, timer = Stop(), CommitTimer()
    config: dict[str, str | int | bool] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "group.protocol": options.protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 500,
    }
    if options.protocol == "classic":
        config["partition.assignment.strategy"] = options.assignor
        config["session.timeout.ms"] = options.session_ms
        config["heartbeat.interval.ms"] = HEARTBEAT_INTERVAL_MS
    if options.instance is not None:
        config["group.instance.id"] = options.instance
    consumer = Consumer(config)
    positions = Positions()

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        assigned(partition.partition for partition in partitions)

    def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [partition.partition for partition in partitions]
        commit(consumer, options.topic, positions.of(numbers))
        positions.forget(numbers)
        revoked(numbers)

    def on_lost(_: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [partition.partition for partition in partitions]
        positions.forget(numbers)
        revoked(numbers)

    consumer.subscribe([options.topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
    while not stop.is_set:
        messages = consumer.consume(500, timeout=0.1)
        positions.read([_place(message) for message in messages if message.error() is None])
        if timer.is_due():
            commit(consumer, options.topic, positions.of(owned.partition for owned in consumer.assignment()))
    consumer.close()


def _place(message: Message) -> tuple[int, int]:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def commit(consumer: Consumer, topic: str, offsets: dict[int, int]) -> None:
    if not offsets:
        return
    try:
        consumer.commit(
            offsets=[TopicPartition(topic, partition, offset) for partition, offset in offsets.items()],
            asynchronous=False,
        )
    except KafkaException as error:
        refused(error)


main()
