"""What the sender does with answers: brokers are played by hand, and time is turned by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from tidelog.client.address import Address
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLostError,
    DeliveryTimeoutError,
    RetriableBrokerError,
)
from tidelog.client.network.metadata_cache import MetadataCache
from tidelog.client.producer.accumulator import Accumulator, NoRoom, PartitionQueue
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.idempotence import Idempotence
from tidelog.client.producer.sender import Sender
from tidelog.client.producer.settings import ProducerSettings
from tidelog.client.types import ClusterMetadata, Node, PartitionMetadata, TopicMetadata, TopicPartition
from tidelog.common.clock import VirtualClock
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.protocol.messages.k22_init_producer_id import InitProducerIdResponse
from tidelog.records.batch import parse_header
from tidelog.records.codec import decode_records

BIG = b"x" * 400


@dataclass
class Sent:
    """A request that the broker got, and where its answer goes."""

    node_id: int
    message: ProduceRequest
    answer: asyncio.Future[ProduceResponse]

    def batches(self) -> dict[TopicPartition, bytes]:
        return {
            TopicPartition(topic.name, row.index): bytes(row.records)  # type: ignore[arg-type]  # it is in memory
            for topic in self.message.topic_data
            for row in topic.partition_data
        }

    def sequences(self) -> list[int]:
        return [parse_header(batch).base_sequence for batch in self.batches().values()]

    def epochs(self) -> list[int]:
        return [parse_header(batch).producer_epoch for batch in self.batches().values()]

    def values(self) -> list[bytes | None]:
        return [record.value for batch in self.batches().values() for record in decode_records(batch)]


class FakeConnection:
    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.is_open = True

    def version_for(self, api: object, *, at_most: int | None = None) -> int:
        return 12 if at_most is None else min(12, at_most)

    def send(self, api: object, message: ProduceRequest, response_class: object, *, version: int) -> Any:
        sent = Sent(self.node_id, message, asyncio.get_running_loop().create_future())
        self.cluster.sent.append(sent)
        return sent.answer

    def send_unanswered(self, api: object, message: ProduceRequest, *, version: int) -> None:
        self.cluster.sent.append(Sent(self.node_id, message, asyncio.get_running_loop().create_future()))


class FakeCluster:
    """Two brokers that lead three partitions of topic t."""

    def __init__(self) -> None:
        self.metadata = MetadataCache()
        self.leaders = {0: 1, 1: 1, 2: 2}
        self.epoch = 5
        self.tell_metadata()
        self.connections = {1: FakeConnection(self, 1), 2: FakeConnection(self, 2)}
        self.sent: list[Sent] = []
        self.refreshed = 0
        self.errors: dict[str, ErrorCode] = {}
        self.producer_ids = [ErrorCode.NONE]

    def tell_metadata(self) -> ClusterMetadata:
        partitions = tuple(
            PartitionMetadata(number, leader, self.epoch, (1, 2), (1, 2)) for number, leader in self.leaders.items()
        )
        nodes = {number: Node(number, Address("b", number)) for number in (1, 2)}
        told = ClusterMetadata("c", 1, nodes, {"t": TopicMetadata("t", ZERO_UUID, False, partitions)})
        self.metadata.remember(told, everything=False)
        return told

    def known_topic(self, name: str) -> TopicMetadata | None:
        return self.metadata.topics.get(name)

    def open_connection_to(self, node_id: int) -> FakeConnection | None:
        connection = self.connections[node_id]
        return connection if connection.is_open else None

    async def connection_to(self, node_id: int) -> FakeConnection:
        self.connections[node_id].is_open = True
        return self.connections[node_id]

    def note_leader(self, topic_partition: TopicPartition, leader_id: int, leader_epoch: int) -> bool:
        return self.metadata.note_leader(topic_partition, leader_id, leader_epoch)

    async def refresh(self, topics: object) -> ClusterMetadata:
        self.refreshed += 1
        told = self.tell_metadata()
        return ClusterMetadata("c", 1, told.nodes, told.topics, self.errors)

    async def call(self, api: object, message: object, response_class: object) -> InitProducerIdResponse:
        code = self.producer_ids.pop(0)
        return InitProducerIdResponse(error_code=code, producer_id=1000, producer_epoch=0)


class Scene:
    def __init__(self, **options: Any) -> None:
        given = {"batch_size": 1000, "linger_ms": 0, "retry_backoff_ms": 100, "batch_growth_max_bytes": 0, **options}
        self.settings = ProducerSettings.read(None, given)
        self.clock = VirtualClock(start_ms=0)
        self.cluster = FakeCluster()
        self.idempotence = Idempotence() if self.settings.enable_idempotence else None
        self.fatal: list[ClientError] = []
        self.accumulator = Accumulator(
            self.settings, self.clock.monotonic_ms, lambda: self.sender.wake(), lambda _: [0, 1, 2]
        )
        self.sender = Sender(
            self.settings,
            self.cluster,  # type: ignore[arg-type]  # it has what the sender uses
            self.accumulator,
            self.idempotence,
            None,
            self.clock.monotonic_ms,
            self.fatal.append,
        )
        self.topic = self.accumulator.set_partitions("t", 3)
        self.sender.start()

    @property
    def sent(self) -> list[Sent]:
        return self.cluster.sent

    def append(self, value: bytes, partition: int = 0) -> DeliveryFuture:
        return self.accumulator.append(self.topic, partition, None, value, None, 0, None)

    async def settle(self) -> None:
        """Let everything happen that can without time going by."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def advance(self, ms: float) -> None:
        self.clock.advance(ms=ms)
        self.sender.wake()
        await self.settle()

    async def establish(self, *partitions: int) -> None:
        """Have a first batch of each partition acknowledged, after which several may be under way."""
        for partition in partitions:
            self.append(b"first", partition)
        await self.settle()
        for sent in list(self.sent):
            await self.answer(sent)
        self.sent.clear()

    async def answer(self, sent: Sent, *codes: ErrorCode, **fields: Any) -> None:
        rows = []
        for number, (topic_partition, batch) in enumerate(sent.batches().items()):
            code = codes[number % len(codes)] if codes else ErrorCode.NONE
            rows.append(
                PartitionProduceResponse(
                    index=topic_partition.partition,
                    error_code=code,
                    base_offset=fields.get("base_offset", 0 if code is ErrorCode.NONE else -1),
                    **{name: value for name, value in fields.items() if name not in ("base_offset", "throttle_ms")},
                )
            )
            assert batch
        response = ProduceResponse(
            responses=[TopicProduceResponse(name="t", partition_responses=rows)],
            throttle_time_ms=fields.get("throttle_ms", 0),
        )
        sent.answer.set_result(response)
        await self.settle()

    async def lose(self, sent: Sent) -> None:
        sent.answer.set_exception(ConnectionLostError("gone"))
        await self.settle()


def plays(**options: Any) -> Callable[[Callable[[Scene], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Runs a test in an event loop of its own, with such a scene."""

    def wrap(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                scene = Scene(**options)
                try:
                    await test(scene)
                finally:
                    scene.sender.stop()

            asyncio.run(main())

        run.__name__ = test.__name__
        run.__doc__ = test.__doc__
        return run

    return wrap


@plays()
async def test_a_record_is_sent_to_its_leader_and_acknowledged(scene: Scene) -> None:
    first, second = scene.append(b"a", 0), scene.append(b"b", 2)
    await scene.settle()
    assert {sent.node_id: sent.values() for sent in scene.sent} == {1: [b"a"], 2: [b"b"]}
    await scene.answer(scene.sent[0], base_offset=40)
    assert first.result(0).offset == 40
    assert not second.done()
    assert scene.accumulator.pool.lent_bytes > 0
    await scene.answer(scene.sent[1])
    assert scene.accumulator.pool.lent_bytes == 0
    assert not scene.accumulator.incomplete


@plays()
async def test_a_request_holds_one_batch_of_each_partition(scene: Scene) -> None:
    await scene.establish(0, 1)
    for _ in range(6):
        scene.append(BIG, 0)
        scene.append(BIG, 1)
    await scene.settle()
    assert [len(sent.batches()) for sent in scene.sent] == [2, 2, 2]


@plays(max_request_size=1500)
async def test_requests_stay_below_their_bound(scene: Scene) -> None:
    await scene.establish(0, 1)
    scene.append(BIG * 2, 0)
    scene.append(BIG * 2, 1)
    await scene.settle()
    assert [len(sent.batches()) for sent in scene.sent] == [1, 1]


@plays()
async def test_five_requests_are_under_way_at_once(scene: Scene) -> None:
    await scene.establish(0)
    futures = [scene.append(BIG * 2) for _ in range(8)]
    await scene.settle()
    assert len(scene.sent) == 5
    assert [sent.sequences() for sent in scene.sent] == [[1], [2], [3], [4], [5]]
    await scene.answer(scene.sent[0])
    assert len(scene.sent) == 6
    for number in range(1, 8):
        await scene.answer(scene.sent[number])
    assert all(future.done() for future in futures)


@plays()
async def test_nothing_overtakes_a_partitions_first_batch(scene: Scene) -> None:
    for _ in range(3):
        scene.append(BIG * 2)
    await scene.settle()
    assert len(scene.sent) == 1
    await scene.answer(scene.sent[0])
    assert len(scene.sent) == 3


@plays()
async def test_a_passing_error_is_retried_after_a_pause(scene: Scene) -> None:
    future = scene.append(b"a")
    await scene.settle()
    await scene.answer(scene.sent[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    assert len(scene.sent) == 1
    await scene.advance(79)
    assert len(scene.sent) == 1
    await scene.advance(50)  # 100 ms, with a fifth of chance
    assert len(scene.sent) == 2
    assert scene.sent[1].sequences() == scene.sent[0].sequences()
    await scene.answer(scene.sent[1], base_offset=3)
    assert future.result(0).offset == 3
    assert scene.sender.counters.records_retried == 1


@plays()
async def test_order_is_kept_when_one_of_many_fails(scene: Scene) -> None:
    await scene.establish(0)
    values = [b"%d" % number + BIG * 2 for number in range(4)]
    for value in values:
        scene.append(value)
    await scene.settle()
    first, *others = scene.sent
    await scene.answer(first, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for sent in others:
        await scene.answer(sent, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    scene.sent.clear()
    stored: list[bytes | None] = []
    for _ in range(20):
        await scene.advance(150)
        while scene.sent:
            sent = scene.sent.pop(0)
            stored += sent.values()
            await scene.answer(sent)
    assert stored == values
    assert scene.idempotence is not None
    assert scene.idempotence.producer_epoch == 0


@plays()
async def test_a_lost_connection_is_retried_with_the_same_numbers(scene: Scene) -> None:
    await scene.establish(0)
    futures = [scene.append(BIG * 2) for _ in range(3)]
    await scene.settle()
    before = [sent.sequences() for sent in scene.sent]
    scene.cluster.connections[1].is_open = False
    for sent in list(scene.sent):
        await scene.lose(sent)
    assert scene.cluster.refreshed >= 1
    scene.sent.clear()
    again = []
    for _ in range(10):
        await scene.advance(150)
        while scene.sent:
            sent = scene.sent.pop(0)
            again.append(sent.sequences())
            await scene.answer(sent, ErrorCode.DUPLICATE_SEQUENCE_NUMBER if len(again) == 1 else ErrorCode.NONE)
    assert again == before
    assert [future.exception(0) for future in futures] == [None, None, None]


@plays()
async def test_a_refused_record_fails_and_the_next_has_a_new_epoch(scene: Scene) -> None:
    first = scene.append(b"bad")
    await scene.settle()
    errors = [BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message="it has no key")]
    await scene.answer(scene.sent[0], ErrorCode.INVALID_RECORD, record_errors=errors)
    error = first.exception(0)
    assert isinstance(error, BrokerError)
    assert "it has no key" in str(error)
    assert "t-0" in str(error)
    scene.append(b"good")
    await scene.settle()
    assert (scene.sent[1].epochs(), scene.sent[1].sequences()) == ([1], [0])


@plays()
async def test_a_named_leader_is_gone_to_at_once(scene: Scene) -> None:
    future = scene.append(b"a")
    await scene.settle()
    leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=6)
    await scene.answer(scene.sent[0], ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader)
    assert scene.sent[1].node_id == 2
    assert scene.cluster.refreshed == 0
    await scene.answer(scene.sent[1])
    assert future.done()


@plays()
async def test_a_new_leader_is_asked_for(scene: Scene) -> None:
    scene.append(b"a")
    await scene.settle()
    scene.cluster.leaders[0] = 2
    scene.cluster.epoch = 6
    await scene.answer(scene.sent[0], ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert scene.cluster.refreshed == 1
    assert scene.sent[1].node_id == 2  # without the pause, because it is another broker


@plays()
async def test_partitions_without_a_leader_wait_for_one(scene: Scene) -> None:
    scene.cluster.leaders[0] = -1
    scene.cluster.epoch = 6
    scene.cluster.tell_metadata()
    future = scene.append(b"a")
    await scene.settle()
    assert not scene.sent
    scene.cluster.leaders[0] = 1
    scene.cluster.epoch = 7
    await scene.advance(200)
    await scene.advance(200)
    await scene.answer(scene.sent[0])
    assert future.done()


@plays()
async def test_a_topic_that_may_not_be_written_fails_at_once(scene: Scene) -> None:
    scene.cluster.leaders[0] = -1
    scene.cluster.epoch = 6
    scene.cluster.tell_metadata()
    scene.cluster.errors = {"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    future = scene.append(b"a")
    await scene.settle()
    assert isinstance(future.exception(0), BrokerError)


@plays()
async def test_a_batch_too_large_is_split(scene: Scene) -> None:
    futures = [scene.append(b"%d" % number + b"x" * 200) for number in range(4)]
    await scene.settle()
    await scene.answer(scene.sent[0], ErrorCode.MESSAGE_TOO_LARGE)
    stored: list[bytes | None] = []
    sequences = []
    while len(scene.sent) > 1:
        sent = scene.sent.pop(1)
        sequences += sent.sequences()
        stored += sent.values()
        await scene.answer(sent, base_offset=len(stored) - len(sent.values()))
    assert stored == [b"%d" % number + b"x" * 200 for number in range(4)]
    assert sequences == [0, 2]
    assert [future.result(0).offset for future in futures] == [0, 1, 2, 3]
    assert scene.sender.counters.batches_split == 1


@plays()
async def test_one_record_too_large_fails(scene: Scene) -> None:
    future = scene.append(b"a")
    await scene.settle()
    await scene.answer(scene.sent[0], ErrorCode.MESSAGE_TOO_LARGE)
    error = future.exception(0)
    assert isinstance(error, BrokerError)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE


@plays(delivery_timeout_ms=1000, request_timeout_ms=500)
async def test_retries_end_with_the_delivery_timeout(scene: Scene) -> None:
    future = scene.append(b"a")
    await scene.settle()
    for _ in range(20):
        if future.done():
            break
        for sent in scene.sent:
            if not sent.answer.done():
                await scene.answer(sent, ErrorCode.NOT_ENOUGH_REPLICAS)
        await scene.advance(100)
    error = future.exception(0)
    assert isinstance(error, (DeliveryTimeoutError, RetriableBrokerError))
    assert scene.accumulator.pool.lent_bytes == 0


@plays(delivery_timeout_ms=1000, request_timeout_ms=500)
async def test_a_batch_under_way_fails_in_time_but_keeps_its_memory(scene: Scene) -> None:
    future = scene.append(b"a")
    await scene.settle()
    await scene.advance(1000)
    error = future.exception(0)
    assert isinstance(error, DeliveryTimeoutError)
    assert "delivery.timeout.ms, 1000" in str(error)
    assert scene.accumulator.pool.lent_bytes > 0
    await scene.answer(scene.sent[0])
    assert scene.accumulator.pool.lent_bytes == 0
    scene.append(b"b")
    await scene.settle()
    assert (scene.sent[1].sequences(), scene.sent[1].epochs()) == ([0], [1])


@plays(retries=1)
async def test_a_batch_that_may_be_stored_costs_no_epoch_if_the_one_behind_it_was(scene: Scene) -> None:
    """The connection was lost, so nobody knows. The broker took the next sequence, so it had stored this one."""
    await scene.establish(0)
    lost = scene.append(b"lost")
    await scene.settle()
    behind = scene.append(b"behind")
    await scene.settle()
    await scene.lose(scene.sent[0])
    await scene.advance(1000)
    await scene.lose(scene.sent[2])  # sent again, with the same result
    assert isinstance(lost.exception(0), ConnectionLostError)
    await scene.answer(scene.sent[1], base_offset=2)
    assert behind.exception(0) is None
    scene.append(b"next")
    await scene.settle()
    assert (scene.sent[3].epochs(), scene.sent[3].sequences()) == ([0], [3])


@plays()
async def test_a_refused_batch_leaves_no_gap_in_a_transaction(scene: Scene) -> None:
    """It is surely not stored, so the sequence of the one behind it moves up instead of failing for ever."""
    assert scene.idempotence is not None
    scene.idempotence.is_transactional = True
    await scene.establish(0)
    refused = scene.append(b"refused")
    await scene.settle()
    behind = scene.append(b"behind")
    await scene.settle()
    await scene.answer(scene.sent[0], ErrorCode.INVALID_RECORD)
    await scene.answer(scene.sent[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    await scene.advance(1000)
    assert isinstance(refused.exception(0), BrokerError)
    assert (scene.sent[2].values(), scene.sent[2].sequences()) == ([b"behind"], [1])
    await scene.answer(scene.sent[2])
    assert behind.exception(0) is None


@pytest.mark.parametrize("waits_to_retry", [False, True])
def test_an_expired_batch_that_may_be_stored_costs_no_epoch_if_the_one_behind_it_was(waits_to_retry: bool) -> None:
    @plays(delivery_timeout_ms=1000, request_timeout_ms=500, retry_backoff_ms=5000, retry_backoff_max_ms=5000)
    async def play(scene: Scene) -> None:
        await scene.establish(0)
        late = scene.append(b"late")
        await scene.settle()
        scene.clock.advance(ms=500)
        behind = scene.append(b"behind")
        await scene.settle()
        if waits_to_retry:
            await scene.lose(scene.sent[0])
        await scene.advance(500)
        assert isinstance(late.exception(0), DeliveryTimeoutError)
        assert not behind.done()
        await scene.answer(scene.sent[1], base_offset=2)
        assert behind.exception(0) is None
        scene.append(b"next")
        await scene.settle()
        assert (scene.sent[2].epochs(), scene.sent[2].sequences()) == ([0], [3])

    play()


@plays(delivery_timeout_ms=1000, request_timeout_ms=500, buffer_memory=2000)
async def test_memory_of_a_batch_under_way_is_never_written_to(scene: Scene) -> None:
    """It may not have left yet: what is appended meanwhile must not go out in its place, to another partition."""
    late = scene.append(b"late", 0)
    await scene.settle()
    await scene.advance(1000)
    assert isinstance(late.exception(0), DeliveryTimeoutError)
    scene.append(b"other", 2)  # the other half of the memory
    with pytest.raises(NoRoom):
        scene.append(b"one too many", 1)
    await scene.settle()
    assert scene.sent[0].values() == [b"late"]
    assert list(scene.sent[0].batches()) == [TopicPartition("t", 0)]
    await scene.lose(scene.sent[0])  # from here on it is free
    scene.append(b"fits now", 1)


@plays(retries=2)
async def test_retries_are_counted(scene: Scene) -> None:
    future = scene.append(b"a")
    await scene.settle()
    for number in range(3):
        await scene.answer(scene.sent[number], ErrorCode.NOT_ENOUGH_REPLICAS)
        await scene.advance(1000)
    assert isinstance(future.exception(0), RetriableBrokerError)
    assert len(scene.sent) == 3


@plays(enable_idempotence=False)
async def test_without_idempotence_batches_have_no_numbers(scene: Scene) -> None:
    scene.append(b"a")
    await scene.settle()
    assert scene.sent[0].sequences() == [-1]
    await scene.answer(scene.sent[0])


@plays(enable_idempotence=False, max_in_flight_requests_per_connection=1)
async def test_one_request_at_a_time_keeps_the_order(scene: Scene) -> None:
    first, second = scene.append(BIG * 2), scene.append(BIG * 2)
    await scene.settle()
    assert len(scene.sent) == 1
    await scene.answer(scene.sent[0], ErrorCode.NOT_ENOUGH_REPLICAS)
    await scene.advance(200)
    assert len(scene.sent) == 2
    assert scene.sent[1].values() == scene.sent[0].values()
    await scene.answer(scene.sent[1])
    await scene.answer(scene.sent[2])
    assert first.done()
    assert second.done()


@plays(acks=0)
async def test_without_acks_a_record_counts_when_it_is_sent(scene: Scene) -> None:
    future = scene.append(b"a")
    await scene.settle()
    assert scene.sent[0].message.acks == 0
    assert future.result(0).offset == -1
    assert scene.accumulator.pool.lent_bytes == 0


@plays()
async def test_a_broker_that_asks_for_a_pause_gets_it(scene: Scene) -> None:
    await scene.establish(0)
    scene.append(b"a")
    await scene.settle()
    await scene.answer(scene.sent[0], throttle_ms=300)
    scene.append(b"b")
    await scene.settle()
    assert len(scene.sent) == 1
    await scene.advance(300)
    assert len(scene.sent) == 2


@plays()
async def test_a_producer_that_may_not_have_an_id_can_not_go_on(scene: Scene) -> None:
    scene.cluster.producer_ids = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    future = scene.append(b"a")
    await scene.settle()
    assert isinstance(future.exception(0), BrokerError)
    assert len(scene.fatal) == 1


@plays()
async def test_an_answer_that_leaves_a_partition_out_fails_it(scene: Scene) -> None:
    future = scene.append(b"a")
    await scene.settle()
    scene.sent[0].answer.set_result(ProduceResponse())
    await scene.settle()
    assert "left it out" in str(future.exception(0))


@plays()
async def test_everything_can_be_given_up(scene: Scene) -> None:
    waits, flies = scene.append(b"a", 0), scene.append(b"b", 2)
    await scene.settle()
    scene.append(b"c", 1)
    scene.sender.fail_all(ClientError("over"))
    assert str(waits.exception(0)) == str(flies.exception(0)) == "over"


@plays()
async def test_a_broker_that_takes_nothing_counts_as_stuck(scene: Scene) -> None:
    await scene.establish(0)
    for _ in range(6):
        scene.append(BIG * 2)
    await scene.settle()
    assert not scene.sender.is_stuck(1, 100)
    scene.clock.advance(ms=101)
    assert scene.sender.is_stuck(1, 100)
    assert not scene.sender.is_stuck(2, 100)


@plays(linger_ms=50)
async def test_a_record_that_comes_while_the_sender_looks_is_not_overlooked(scene: Scene) -> None:
    await scene.establish(0)
    scene.append(b"first")
    await scene.advance(1)
    scene.clock.advance(ms=60)
    seen = scene.accumulator.ready_at_ms

    def append_meanwhile(queue: PartitionQueue, now_ms: float) -> float:
        scene.accumulator.ready_at_ms = seen  # type: ignore[method-assign]  # once is enough
        scene.append(b"meanwhile", 2)
        return seen(queue, now_ms)

    scene.accumulator.ready_at_ms = append_meanwhile  # type: ignore[method-assign]
    scene.sender._on_timer()
    assert scene.sender._is_woken
    await scene.advance(50)
    assert [b"meanwhile"] in [sent.values() for sent in scene.sent]


@pytest.mark.parametrize("fails", [False, True])
def test_wakes_are_counted_once(fails: bool) -> None:
    async def run() -> None:
        scene = Scene()
        for _ in range(3):
            scene.sender.wake()
        await scene.settle()
        if fails:
            scene.sender.stop()
        scene.append(b"a")
        await scene.settle()
        assert bool(scene.sent) is not fails
        scene.sender.stop()

    asyncio.run(run())


# What failed is told


def test_records_that_nobody_waits_for_are_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @plays(batch_size=200)
    async def play(scene: Scene) -> None:
        for _ in range(3):
            scene.append(b"x" * 100, 0)
            scene.append(b"x" * 100, 1)
        await scene.settle()
        await scene.answer(scene.sent[0], ErrorCode.INVALID_RECORD)
        assert _warnings(caplog) == [f"2 records to topic t failed: {_refusal(1)}"]
        # The same cause is not told again so soon, but what it cost is.
        await scene.answer(scene.sent[1], ErrorCode.INVALID_RECORD)
        await scene.answer(scene.sent[2], ErrorCode.INVALID_RECORD)
        assert len(_warnings(caplog)) == 1
        await scene.advance(10_000)
        assert _warnings(caplog)[1:] == [f"4 records to topic t failed: {_refusal(1)}"]
        assert scene.sender.counters.records_failed == 6
        # Another cause is told at once.
        scene.append(b"y", 2)
        await scene.settle()
        await scene.answer(scene.sent[3], ErrorCode.INVALID_TIMESTAMP)
        assert len(_warnings(caplog)) == 3
        # And the rest in the end.
        scene.append(b"z", 0)
        await scene.settle()
        await scene.answer(scene.sent[4], ErrorCode.INVALID_RECORD)
        scene.sender.stop()
        assert _warnings(caplog)[3:] == [f"1 record to topic t failed: {_refusal(0)}"]

    play()


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def _refusal(partition: int) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_RECORD, None, subject=f"partition t-{partition}")
