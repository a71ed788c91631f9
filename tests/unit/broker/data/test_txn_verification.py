"""Transactions begin in a partition only when their coordinator says so: asked once, and not when it is too late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.broker.handlers.k00_produce import handle_produce
from tidelog.broker.request_context import RequestContext
from tidelog.broker.txn_verification import TopicPartition, produce_error
from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.ids import random_uuid
from tidelog.controller.image import EMPTY_IMAGE, BrokerInfo, PartitionState, TopicImage
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.records import encode_batch

if TYPE_CHECKING:
    from tests.unit.broker.data.conftest import Node

    Run = Callable[[Callable[[Node], Coroutine[Any, Any, None]]], None]

PRODUCER_ID = 7
COORDINATOR_EPOCH = 0
TV1, TV2 = 11, 12


class Coordinator:
    """Answers when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, list[TopicPartition], bool]] = []
        self.answer = ErrorCode.NONE
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.asked.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        self.was_asked.set()
        await self.may_answer.wait()
        if self.answer is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            raise KafkaError(self.answer)
        return dict.fromkeys(partitions, self.answer)


class CoordinatorHere:
    """Answers at once, as the coordinators of this broker do."""

    def __init__(self) -> None:
        self.asked: list[list[TopicPartition]] = []
        self.answers: list[ErrorCode | KafkaError] = []

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.asked.append(list(partitions))
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if isinstance(answer, KafkaError):
            raise answer
        return dict.fromkeys(partitions, answer)


async def begin(node: Node) -> Coordinator:
    coordinator = Coordinator()
    state = PartitionState((1,), (1,), 1, leader_epoch=4, partition_epoch=4)
    topic = TopicImage("topic", random_uuid(), (state, state))
    image = replace(
        EMPTY_IMAGE,
        revision=1,
        brokers={1: BrokerInfo(1, 10, (Endpoint(PLAINTEXT, "one.example", 9092),))},
        topics={"topic": topic},
        topics_by_id={topic.topic_id: topic},
    )
    await node.apply(image)
    node.replicas.transactions.verifier = coordinator
    return coordinator


async def produce(
    node: Node, sequence: int, *, epoch: int = 0, version: int = TV1, partitions: Sequence[int] = (0,)
) -> list[PartitionProduceResponse]:
    result = start_produce(node, sequence, epoch=epoch, version=version, partitions=partitions)
    response = await result if isinstance(result, Awaitable) else result
    assert isinstance(response, ProduceResponse)
    return response.responses[0].partition_responses


def start_produce(
    node: Node, sequence: int, *, epoch: int = 0, version: int = TV1, partitions: Sequence[int] = (0,)
) -> object:
    batches = [
        encode_batch(
            [(b"k", b"v", (), node.clock.now_ms())],
            producer_id=PRODUCER_ID,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        for _ in partitions
    ]
    request = ProduceRequest(
        transactional_id="tx",
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name="topic",
                partition_data=[
                    PartitionProduceData(index=index, records=memoryview(batch))
                    for index, batch in zip(partitions, batches, strict=True)
                ],
            )
        ],
    )
    return handle_produce(request, RequestContext(PRODUCE, version, node.services))


def end(node: Node, *, epoch: int = 0) -> None:
    partition = node.replicas.find("topic", 0)
    node.replicas.write_txn_marker(partition, PRODUCER_ID, epoch, COORDINATOR_EPOCH, False)


def codes(answers: Sequence[PartitionProduceResponse]) -> list[int]:
    return [answer.error_code for answer in answers]


def test_a_transaction_is_asked_about_once_a_partition(run: Run) -> None:
    async def scenario(node: Node) -> None:
        coordinator = await begin(node)
        assert codes(await produce(node, 0, partitions=(0, 1))) == [0, 0]
        assert codes(await produce(node, 1, partitions=(0, 1))) == [0, 0]
        assert coordinator.asked == [("tx", PRODUCER_ID, 0, [("topic", 0), ("topic", 1)], False)]
        end(node)
        assert codes(await produce(node, 2, partitions=(0, 1))) == [0, 0]
        assert coordinator.asked[1:] == [("tx", PRODUCER_ID, 0, [("topic", 0)], False)]

    run(scenario)


def at_once(answer: object) -> list[int]:
    assert isinstance(answer, ProduceResponse)
    return codes(answer.responses[0].partition_responses)


def test_a_coordinator_on_this_broker_is_not_waited_for(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await begin(node)
        coordinator = node.replicas.transactions.verifier = CoordinatorHere()
        busy = ErrorCode.CONCURRENT_TRANSACTIONS
        coordinator.answers = [busy, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        both = (0, 1)
        assert at_once(start_produce(node, 0, version=TV2, partitions=both)) == [busy, busy]
        refused = ErrorCode.NOT_ENOUGH_REPLICAS  # which every producer tries again after
        assert at_once(start_produce(node, 0, version=TV2, partitions=both)) == [refused, refused]
        assert at_once(start_produce(node, 0, version=TV2, partitions=both)) == [0, 0]
        assert at_once(start_produce(node, 1, version=TV2, partitions=both)) == [0, 0]
        assert coordinator.asked == [[("topic", 0), ("topic", 1)]] * 3
        assert node.replicas.find("topic", 1).log.log_end_offset == 2

    run(scenario)


def test_batches_for_one_partition_stay_in_order(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await begin(node)
        node.replicas.transactions.verifier = CoordinatorHere()
        first, other, again = await produce(node, 0, partitions=(0, 1, 0))
        assert codes([first, other, again]) == [0, 0, 0]
        assert first.base_offset == again.base_offset == 0  # it repeats the first one
        assert node.replicas.find("topic", 0).log.log_end_offset == 1

    run(scenario)


def test_newer_producers_have_partitions_added(run: Run) -> None:
    async def scenario(node: Node) -> None:
        coordinator = await begin(node)
        assert codes(await produce(node, 3, version=TV2)) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        assert codes(await produce(node, 0, version=TV2)) == [0]
        assert [asked[-1] for asked in coordinator.asked] == [True, True]

    run(scenario)


def test_batches_that_arrive_meanwhile_wait_for_the_same_answer(run: Run) -> None:
    async def scenario(node: Node) -> None:
        coordinator = await begin(node)
        coordinator.may_answer.clear()
        tasks = [asyncio.ensure_future(produce(node, sequence)) for sequence in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # Whose connection goes away leaves the others their answer.
        tasks.append(asyncio.ensure_future(produce(node, 3)))
        await asyncio.sleep(0)
        tasks.pop().cancel()
        coordinator.may_answer.set()
        answers = [await task for task in tasks]
        assert [answer[0].base_offset for answer in answers] == [0, 1, 2]
        assert len(coordinator.asked) == 1

    run(scenario)


def test_no_batch_gets_ahead_of_those_that_wait(run: Run) -> None:
    async def scenario(node: Node) -> None:
        coordinator = await begin(node)
        coordinator.may_answer.clear()
        tasks = [asyncio.ensure_future(produce(node, sequence)) for sequence in range(2)]
        await asyncio.sleep(0)
        coordinator.may_answer.set()
        # One more in every turn of the loop: while the answer is on its way, while it is told, and after that.
        for sequence in range(2, 20):
            tasks.append(asyncio.ensure_future(produce(node, sequence)))
            await asyncio.sleep(0)
        answers = [await task for task in tasks]
        assert [(answer[0].error_code, answer[0].base_offset) for answer in answers] == [(0, n) for n in range(20)]
        assert not node.replicas.transactions._turns._last

    run(scenario)


def test_an_answer_that_comes_after_the_end_opens_nothing(run: Run) -> None:
    async def scenario(node: Node) -> None:
        coordinator = await begin(node)
        coordinator.may_answer.clear()
        late = asyncio.ensure_future(produce(node, 0))
        await coordinator.was_asked.wait()
        end(node)
        coordinator.may_answer.set()
        assert codes(await late) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        log = node.replicas.find("topic", 0).log
        assert (log.log_end_offset, log.last_stable_offset) == (1, 1)
        # Sent again, it is the coordinator's to say whether there is such a transaction.
        coordinator.answer = ErrorCode.INVALID_TXN_STATE
        assert codes(await produce(node, 0)) == [ErrorCode.INVALID_TXN_STATE]

    run(scenario)


def test_a_transaction_begins_though_a_marker_of_the_last_one_comes_while_it_is_confirmed(run: Run) -> None:
    """As after a restart of the coordinator, which writes the markers of the last transaction again."""

    async def scenario(node: Node) -> None:
        coordinator = await begin(node)
        coordinator.may_answer.clear()
        first = asyncio.ensure_future(produce(node, 0))
        await coordinator.was_asked.wait()
        end(node)
        coordinator.may_answer.set()
        assert codes(await first) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        assert codes(await produce(node, 0)) == [ErrorCode.NONE]

    run(scenario)


def test_what_the_coordinator_refuses_is_not_written(run: Run) -> None:
    async def scenario(node: Node) -> None:
        coordinator = await begin(node)
        coordinator.answer = ErrorCode.TRANSACTION_ABORTABLE
        assert codes(await produce(node, 0, version=10)) == [ErrorCode.INVALID_TXN_STATE]
        assert codes(await produce(node, 0, version=11)) == [ErrorCode.TRANSACTION_ABORTABLE]
        coordinator.answer = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert codes(await produce(node, 0)) == [ErrorCode.NOT_ENOUGH_REPLICAS]
        # The first batch was refused, so one behind it can't begin the transaction.
        coordinator.answer = ErrorCode.NONE
        assert codes(await produce(node, 1)) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        assert node.replicas.find("topic", 0).log.log_end_offset == 0
        node.replicas.transactions.verifier = None
        assert codes(await produce(node, 0)) == [ErrorCode.INVALID_TXN_STATE]

    run(scenario)


@pytest.mark.parametrize(
    ("error", "version", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NOT_COORDINATOR, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 9, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_producers_are_told_what_their_version_knows(error: ErrorCode, version: int, told: ErrorCode) -> None:
    refusal = produce_error(error, version)
    assert refusal is not None
    assert refusal.code is told
    assert produce_error(ErrorCode.NONE, version) is None
