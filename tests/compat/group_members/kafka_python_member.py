"""A member on kafka-python.

It has the library commit: listeners run where they may not wait. What is committed is what `poll` gave before, by the
next `poll` and before a rebalance.
"""

from __future__ import annotations

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from group_members.report import COMMIT_INTERVAL_MS, HEARTBEAT_INTERVAL_MS, Options, Stop, assigned, read, revoked

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class Listener(ConsumerRebalanceListener):  # type: ignore[misc] # the package has no types
    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        if partitions:
            revoked(partition.partition for partition in partitions)

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        revoked(partition.partition for partition in partitions)

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        assigned(partition.partition for partition in partitions)


def main() -> None:
    options = Options.from_command_line()
    stop = Stop()
    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        group_instance_id=options.instance,
        partition_assignment_strategy=[ASSIGNORS[options.assignor]],
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        enable_auto_commit=True,
        auto_commit_interval_ms=COMMIT_INTERVAL_MS,
        auto_offset_reset="earliest",
        metadata_max_age_ms=500,
    )
    consumer.subscribe([options.topic], listener=Listener())
    while not stop.is_set:
        batches = consumer.poll(timeout_ms=100)
        records = [(record.partition, record.offset) for batch in batches.values() for record in batch]
        if records:
            read(records)
    consumer.close()


main()
