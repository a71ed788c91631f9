"""A copier on aiokafka.

The library can neither name its member in a transaction nor wait for offsets whose transaction has not ended. What
keeps two copiers apart is then the transactional id: each has its partitions, and who takes over the one takes over
the others, behind `start`, which ends what was open.
"""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import ProducerFenced

from copiers.report import BATCH_RECORDS, STALLED, TO_ABORT, Assignment, Lead, Options, tell


class Copier:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._lead = Lead(options.seed)
        self._producer = AIOKafkaProducer(
            bootstrap_servers=options.bootstrap, transactional_id=options.transactional_id
        )
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )

    async def run(self) -> None:
        await self._producer.start()
        tell("ready")
        partitions = self._options.partitions
        assert partitions is not None, "this copier must be told its partitions"
        self._consumer.assign([TopicPartition(self._options.source, partition) for partition in partitions])
        await self._consumer.start()
        Assignment().note(partitions)
        is_fenced = False
        while not is_fenced and not self._lead.is_over:
            batches = await self._consumer.getmany(timeout_ms=100, max_records=BATCH_RECORDS)
            if batches:
                try:
                    await self._copy(batches)
                except ProducerFenced as error:
                    is_fenced = True
                    tell("fenced", error=repr(error))
        await self._consumer.stop()
        await self._producer.stop()

    async def _copy(self, batches: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        intent = self._lead.next_intent()
        await self._producer.begin_transaction()
        sent = [
            await self._producer.send(self._options.target, record.value, key=intent, partition=place.partition)
            for place, records in batches.items()
            for record in records
        ]
        await asyncio.gather(*sent)
        if intent == STALLED:
            await asyncio.to_thread(self._lead.stall)
        offsets = {place: records[-1].offset + 1 for place, records in batches.items()}
        await self._producer.send_offsets_to_transaction(offsets, self._options.group)
        if intent != TO_ABORT:
            await self._producer.commit_transaction()
            tell("committed")
            return
        await self._producer.abort_transaction()
        tell("aborted")
        for place in batches:
            committed = await self._consumer.committed(place)
            if committed is None:
                await self._consumer.seek_to_beginning(place)
            else:
                self._consumer.seek(place, committed)


async def main() -> None:
    # The library's objects belong to the event loop in which they are made.
    await Copier(Options.from_command_line()).run()


asyncio.run(main())
