"""An application that reads, writes and commits in transactions, as one process of the simulation.

What always holds: it does what clients of its version of the protocol do, in the same order of requests, and notes in
the ledger what it is about to do before it does it. Version 2 names no partitions beforehand, and takes a new epoch
with every end (KIP-890); before that, partitions and groups are added first and the epoch stays.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from simulated_client import Question, SimulatedClient
from simulated_clock import SimulatedClock
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.protocol.messages.k24_add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.protocol.messages.k25_add_offsets_to_txn import (
    ADD_OFFSETS_TO_TXN,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from tidelog.protocol.messages.k26_end_txn import END_TXN, EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.records import encode_batch
from txn_ledger import End, Ledger, Row
from txn_reader import READ_COMMITTED, visible_records

SOURCE, TARGET = "source", "target"
PARTITIONS = 3
GROUP, TRANSACTION = 0, 1


@dataclass(frozen=True)
class Habits:
    """What an application is like."""

    name: str
    index: int
    is_version_2: bool
    # Each life has another transactional id than the one before; what keeps them apart is that offsets of open
    # transactions are not given out (KIP-447). A life that goes on beside its successor would need more.
    changes_id: bool
    transactions: int
    timeout_ms: int
    abort_share: float
    # Of its transactions it ends this share by starting over, as after errors (KIP-360).
    restart_share: float
    pause_s: float


class Application:
    """One life of an application; another may follow it, before it is over."""

    def __init__(
        self,
        habits: Habits,
        life: int,
        client: SimulatedClient,
        clock: SimulatedClock,
        rng: random.Random,
        ledger: Ledger,
    ) -> None:
        self.habits = habits
        self._life = life
        self._transactional_id = f"{habits.name}-{life % 2}" if habits.changes_id else habits.name
        self._client = client
        self._clock = clock
        self._random = rng
        self._ledger = ledger
        self._attempts = 0
        self._producer_id, self._epoch = -1, -1
        self._sequences = dict.fromkeys(range(PARTITIONS), 0)

    async def run(self) -> None:
        """Go on until all of its transactions are committed; raises RefusedError."""
        for key_type, key in ((GROUP, self.habits.name), (TRANSACTION, self._transactional_id)):
            request = FindCoordinatorRequest(key=key, key_type=key_type)
            await self._client.ask(Question(FIND_COORDINATOR, request, FindCoordinatorResponse, 2, _error))
        await self._init()
        number = await committed_offset(self._client, self.habits)
        while number < self.habits.transactions:
            await self._transact(number)
            number = await committed_offset(self._client, self.habits)
        self._client.disconnect()

    async def _transact(self, number: int) -> None:
        await self._check_source(number)
        self._attempts += 1
        tag = f"{self._life}.{self._attempts}"
        partitions = self._random.sample(range(PARTITIONS), self._random.randint(1, PARTITIONS))
        batches = {partition: self._batch_sizes() for partition in partitions}
        attempt = self._ledger.begin(
            self.habits.name, number, tag, {partition: sum(sizes) for partition, sizes in batches.items()}
        )
        if not self.habits.is_version_2:
            await self._add_partitions(partitions)
        await self._client.ask_all(self._produces(number, tag, batches))
        await asyncio.sleep(self._random.choice((0.0, 0.0, self._random.expovariate(1 / self.habits.pause_s))))
        if not self.habits.is_version_2:
            request = AddOffsetsToTxnRequest(
                transactional_id=self._transactional_id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=self.habits.name,
            )
            await self._client.ask(Question(ADD_OFFSETS_TO_TXN, request, AddOffsetsToTxnResponse, 3, _error))
        await self._commit_offset(number + 1)
        fate = self._random.random()
        if fate < self.habits.restart_share:
            attempt.end = End.ABORT_ASKED
            await self._init(goes_on=True)
            return
        commits = fate >= self.habits.restart_share + self.habits.abort_share
        attempt.end = End.COMMIT_ASKED if commits else End.ABORT_ASKED
        await self._end(commits=commits)
        if commits:
            attempt.end = End.COMMITTED

    def _batch_sizes(self) -> list[int]:
        return [self._random.randint(1, 3) for _ in range(self._random.randint(1, 3))]

    # Its requests

    async def _init(self, *, goes_on: bool = False) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self.habits.timeout_ms,
            producer_id=self._producer_id if goes_on else -1,
            producer_epoch=self._epoch if goes_on else -1,
        )
        version = 5 if self.habits.is_version_2 else 4
        answer = await self._client.ask(Question(INIT_PRODUCER_ID, request, InitProducerIdResponse, version, _error))
        self._go_on_with(answer.producer_id, answer.producer_epoch)

    def _go_on_with(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._producer_id, self._epoch = producer_id, epoch
            self._sequences = dict.fromkeys(range(PARTITIONS), 0)

    async def _add_partitions(self, partitions: list[int]) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TARGET, partitions=partitions)],
        )
        await self._client.ask(
            Question(ADD_PARTITIONS_TO_TXN, request, AddPartitionsToTxnResponse, 3, _add_partitions_error)
        )

    def _produces(self, number: int, tag: str, batches: dict[int, list[int]]) -> list[Question]:
        """All batches of a transaction, each partition's in order, and not one partition after the other."""
        written = dict.fromkeys(batches, 0)
        order = [partition for partition, sizes in batches.items() for _ in sizes]
        self._random.shuffle(order)
        sizes_left = {partition: list(sizes) for partition, sizes in batches.items()}
        questions = []
        for partition in order:
            count = sizes_left[partition].pop(0)
            first = written[partition]
            rows = [Row(self.habits.name, number, tag, partition, first + index) for index in range(count)]
            questions.append(self._produce(partition, rows))
            written[partition] += count
        return questions

    def _produce(self, partition: int, rows: list[Row]) -> Question:
        batch = encode_batch(
            [(None, row.encode(), (), None) for row in rows],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequences[partition],
            is_transactional=True,
            now_ms=self._clock.now_ms(),
        )
        self._sequences[partition] += len(rows)
        data = TopicProduceData(name=TARGET, partition_data=[PartitionProduceData(index=partition, records=batch)])
        request = ProduceRequest(transactional_id=self._transactional_id, acks=-1, timeout_ms=5_000, topic_data=[data])
        return Question(PRODUCE, request, ProduceResponse, 12 if self.habits.is_version_2 else 11, _produce_error)

    async def _commit_offset(self, offset: int) -> None:
        stored = TxnOffsetCommitRequestPartition(partition_index=self.habits.index, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=self.habits.name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[TxnOffsetCommitRequestTopic(name=SOURCE, partitions=[stored])],
        )
        version = 5 if self.habits.is_version_2 else 4
        await self._client.ask(Question(TXN_OFFSET_COMMIT, request, TxnOffsetCommitResponse, version, _offset_error))

    async def _end(self, *, commits: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=commits,
        )
        version = 5 if self.habits.is_version_2 else 4
        answer = await self._client.ask(Question(END_TXN, request, EndTxnResponse, version, _error))
        if self.habits.is_version_2:
            self._go_on_with(answer.producer_id, answer.producer_epoch)

    async def _check_source(self, number: int) -> None:
        """Read the record that this transaction is about."""
        asked = FetchPartition(partition=self.habits.index, fetch_offset=number, partition_max_bytes=1)
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1_000,
            isolation_level=READ_COMMITTED,
            topics=[FetchTopic(topic=SOURCE, partitions=[asked])],
        )
        answer = await self._client.ask(Question(FETCH, request, FetchResponse, 11, _fetch_error))
        (data,) = answer.responses[0].partitions
        (record,) = (one for one in visible_records(data, READ_COMMITTED) if one.offset == number)
        assert record.value == source_value(number)


def source_value(number: int) -> bytes:
    return b"%d" % number


async def write_source(client: SimulatedClient, partition: int, count: int, now_ms: int) -> None:
    """What an application is to read."""
    batch = encode_batch([(None, source_value(number), (), None) for number in range(count)], now_ms=now_ms)
    data = TopicProduceData(name=SOURCE, partition_data=[PartitionProduceData(index=partition, records=batch)])
    request = ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[data])
    await client.ask(Question(PRODUCE, request, ProduceResponse, 11, _produce_error))


async def committed_offset(client: SimulatedClient, habits: Habits) -> int:
    """Where the application's group is, once no transaction can change it any more."""
    request = OffsetFetchRequest(
        group_id=habits.name,
        topics=[OffsetFetchRequestTopic(name=SOURCE, partition_indexes=[habits.index])],
        require_stable=True,
    )
    answer = await client.ask(Question(OFFSET_FETCH, request, OffsetFetchResponse, 7, _offset_fetch_error))
    offset: int = answer.topics[0].partitions[0].committed_offset
    return max(0, offset)


def _error(answer: FindCoordinatorResponse | InitProducerIdResponse | AddOffsetsToTxnResponse | EndTxnResponse) -> int:
    return answer.error_code


def _add_partitions_error(answer: AddPartitionsToTxnResponse) -> int:
    codes = [
        result.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    ]
    return next((code for code in codes if code), 0)


def _produce_error(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


def _offset_error(answer: TxnOffsetCommitResponse) -> int:
    return answer.topics[0].partitions[0].error_code


def _offset_fetch_error(answer: OffsetFetchResponse) -> int:
    return answer.error_code or (answer.topics[0].partitions[0].error_code if answer.topics else 0)


def _fetch_error(answer: FetchResponse) -> int:
    return answer.error_code or answer.responses[0].partitions[0].error_code
