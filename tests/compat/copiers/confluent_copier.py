"""A copier on confluent-kafka.

librdkafka 2.16 may wait for ever in `close` when a rebalance has begun that the application was not yet told of: the
callback then asks for an answer of the consumer group's thread, which has ended with the group
(confluentinc/librdkafka#4884). So the copier leaves first, until nothing is assigned to it, and closes then.
"""

from __future__ import annotations

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

from copiers.report import BATCH_RECORDS, SESSION_MS, STALLED, TIMEOUT_S, TO_COMMIT, Assignment, Lead, Options, tell


class Copier:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._lead = Lead(options.seed)
        self._producer = Producer(
            {"bootstrap.servers": options.bootstrap, "transactional.id": options.transactional_id, "linger.ms": 0}
        )
        self._producer.init_transactions(TIMEOUT_S)
        tell("ready")
        self._consumer = Consumer(
            {
                "bootstrap.servers": options.bootstrap,
                "group.id": options.group,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 300,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        # With a callback, rebalances happen in calls of `consume` only, never amid a transaction.
        self._consumer.subscribe([options.source], on_assign=lambda *_: None)

    def run(self) -> None:
        assignment = Assignment()
        is_fenced = False
        while not is_fenced and not self._lead.is_over:
            messages = self._consumer.consume(BATCH_RECORDS, timeout=0.1)
            owned = {partition.partition for partition in self._consumer.assignment()}
            assignment.note(owned)
            taken = [message for message in messages if message.error() is None and message.partition() in owned]
            if taken:
                try:
                    self._copy(taken)
                except KafkaException as error:
                    if not error.args[0].fatal():
                        raise
                    is_fenced = True
                    tell("fenced", error=repr(error))
        self._leave()

    def _leave(self) -> None:
        self._consumer.unsubscribe()
        deadline_s = time.monotonic() + TIMEOUT_S
        while self._consumer.consume(1, timeout=0.1) or self._consumer.assignment():
            assert time.monotonic() < deadline_s, f"{self._consumer.assignment()} stay assigned"
        self._consumer.close()

    def _copy(self, messages: list[Message]) -> None:
        intent = self._lead.next_intent()
        self._producer.begin_transaction()
        offsets: dict[int, int] = {}
        for message in messages:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self._producer.produce(self._options.target, message.value(), key=intent, partition=partition)
            offsets[partition] = offset + 1
        if intent != TO_COMMIT:
            # An abort throws away what is not sent yet, and readers would have nothing to leave out.
            self._producer.flush(TIMEOUT_S)
        if intent == STALLED:
            self._lead.stall()
        behind = [TopicPartition(self._options.source, partition, offset) for partition, offset in offsets.items()]
        try:
            self._producer.send_offsets_to_transaction(behind, self._consumer.consumer_group_metadata(), TIMEOUT_S)
            if intent in (TO_COMMIT, STALLED):
                self._producer.commit_transaction(TIMEOUT_S)
                tell("committed")
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            tell("refused", error=repr(error))
        self._producer.abort_transaction(TIMEOUT_S)
        tell("aborted")
        for committed in self._consumer.committed(behind, TIMEOUT_S):
            offset = committed.offset if committed.offset >= 0 else OFFSET_BEGINNING
            self._consumer.seek(TopicPartition(committed.topic, committed.partition, offset))


Copier(Options.from_command_line()).run()
