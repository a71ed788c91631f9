"""A copier on kafka-python."""

from __future__ import annotations

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from copiers.report import BATCH_RECORDS, SESSION_MS, STALLED, TO_ABORT, Assignment, Lead, Options, tell


class Copier:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._lead = Lead(options.seed)
        self._producer = KafkaProducer(
            bootstrap_servers=options.bootstrap, transactional_id=options.transactional_id, linger_ms=0
        )
        self._producer.init_transactions()
        tell("ready")
        self._consumer = KafkaConsumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            # It also makes the consumer wait for offsets whose transaction has not ended.
            isolation_level="read_committed",
        )
        # The library may lead its group before it knows the topic; it then assigns nothing, and stays with that.
        self._consumer.partitions_for_topic(options.source)
        self._consumer.subscribe([options.source])

    def run(self) -> None:
        assignment = Assignment()
        is_fenced = False
        while not is_fenced and not self._lead.is_over:
            batches = self._consumer.poll(timeout_ms=100, max_records=BATCH_RECORDS)
            assignment.note(partition.partition for partition in self._consumer.assignment())
            if batches:
                try:
                    self._copy(batches)
                except ProducerFencedError as error:
                    is_fenced = True
                    tell("fenced", error=repr(error))
        self._consumer.close()
        self._producer.close()

    def _copy(self, batches: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        intent = self._lead.next_intent()
        self._producer.begin_transaction()
        for place, records in batches.items():
            for record in records:
                self._producer.send(self._options.target, record.value, key=intent, partition=place.partition)
        if intent == STALLED:
            self._producer.flush()
            self._lead.stall()
        offsets = {place: OffsetAndMetadata(records[-1].offset + 1, "", -1) for place, records in batches.items()}
        try:
            self._producer.send_offsets_to_transaction(offsets, self._consumer.group_metadata())
            if intent != TO_ABORT:
                self._producer.commit_transaction()
                tell("committed")
                return
        except ProducerFencedError:
            raise
        except KafkaError as error:
            tell("refused", error=repr(error))
        self._producer.abort_transaction()
        tell("aborted")
        for place in batches:
            committed = self._consumer.committed(place)
            if committed is None:
                self._consumer.seek_to_beginning(place)
            else:
                self._consumer.seek(place, committed)


Copier(Options.from_command_line()).run()
