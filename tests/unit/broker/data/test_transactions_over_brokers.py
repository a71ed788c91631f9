"""Transactions over several brokers: markers go to the leaders of partitions, questions to the coordinator."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from tidelog.broker.group_service import GroupService
from tidelog.broker.handlers.k27_write_txn_markers import handle_write_txn_markers
from tidelog.broker.internal_topics import partition_for
from tidelog.broker.offsets_topic import OFFSETS_TOPIC
from tidelog.broker.peers import Peers
from tidelog.broker.request_context import RequestContext
from tidelog.broker.txn_coordinators import TransactionCoordinators
from tidelog.broker.txn_markers import ClusterMarkerWriter, MarkerErrors
from tidelog.broker.txn_service import TRANSACTION_TOPIC, TransactionService
from tidelog.broker.txn_verification import Answers
from tidelog.client.errors import ConnectionLostError
from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.ids import random_uuid
from tidelog.common.steps import run_through
from tidelog.controller.cluster_view import ClusterView
from tidelog.controller.image import EMPTY_IMAGE, BrokerInfo, ClusterImage, PartitionState, TopicImage
from tidelog.coordinator.actions import TopicPartition, TxnMarker
from tidelog.coordinator.offsets import CommittedOffset
from tidelog.protocol import Api, ErrorCode
from tidelog.protocol.messages.k24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from tidelog.protocol.messages.k27_write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidelog.server.settings_load import load

if TYPE_CHECKING:
    from tests.unit.broker.data.conftest import Node

    Run = Callable[[Callable[[Node], Coroutine[Any, Any, None]]], None]

ResponseT = TypeVar("ResponseT")

HERE, OTHER, THIRD = 1, 2, 3
MARKER = TxnMarker(producer_id=7, producer_epoch=0, coordinator_epoch=3, committed=True, transaction_version=2)


class OtherBrokers(Peers):
    """Answers requests as the test says, and remembers them."""

    def __init__(self) -> None:
        super().__init__(HERE)
        self.asked: list[tuple[int, object]] = []
        self.answer: Callable[[Any], object] = self.all_written
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def call(
        self,
        node_id: int,
        api: Api,
        request: object,
        response_class: type[ResponseT],
        *,
        timeout_s: float,
        version: int | None = None,
    ) -> ResponseT:
        self.asked.append((node_id, request))
        self.was_asked.set()
        await self.may_answer.wait()
        answer = self.answer(request)
        assert isinstance(answer, response_class)
        return answer

    @staticmethod
    def all_written(request: WriteTxnMarkersRequest, error: ErrorCode = ErrorCode.NONE) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )


def image_with(**leaders: Sequence[int]) -> ClusterImage:
    """Topics whose partitions these brokers lead."""
    topics = [
        TopicImage(name, random_uuid(), tuple(PartitionState((leader,), (leader,), leader) for leader in of_partitions))
        for name, of_partitions in leaders.items()
    ]
    return replace(EMPTY_IMAGE.with_topics(topics), revision=1)


async def written(answer: object) -> MarkerErrors:
    return cast(MarkerErrors, await answer if isinstance(answer, Coroutine) else answer)


def test_markers_go_to_the_leaders_of_their_partitions(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_with(orders=[HERE, OTHER, THIRD, OTHER]))
        peers = OtherBrokers()
        writer = ClusterMarkerWriter(node.replicas, peers)
        names: list[TopicPartition] = [*(("orders", index) for index in range(4)), ("gone", 0)]
        errors = await written(writer.write(MARKER, names))
        assert errors == dict.fromkeys(names, ErrorCode.NONE)
        assert node.replicas.find("orders", 0).log.log_end_offset == 1
        sent = {node_id: request for node_id, request in peers.asked if isinstance(request, WriteTxnMarkersRequest)}
        assert sorted(sent) == [OTHER, THIRD]
        (marker,) = sent[OTHER].markers
        assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 0, 3)
        assert (marker.transaction_result, marker.transaction_version) == (True, 2)
        assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("orders", [1, 3])]
        await writer.close()

    run(scenario)


def image_with_a_follower() -> ClusterImage:
    """A topic whose records count once the other broker has them, too."""
    state = PartitionState((HERE, OTHER), (HERE, OTHER), HERE)
    return replace(EMPTY_IMAGE.with_topics([TopicImage("orders", random_uuid(), (state,))]), revision=1)


def ask_by_local_writer(node: Node) -> Coroutine[Any, Any, list[ErrorCode]]:
    async def ask() -> list[ErrorCode]:
        return list((await written(ClusterMarkerWriter(node.replicas, OtherBrokers()).write(MARKER, NAMES))).values())

    return ask()


def ask_by_request(node: Node) -> Coroutine[Any, Any, list[ErrorCode]]:
    """As the coordinator on another broker does."""

    async def ask() -> list[ErrorCode]:
        topic = WritableTxnMarkerTopic(name="orders", partition_indexes=[0])
        marker = WritableTxnMarker(producer_id=7, transaction_result=True, topics=[topic])
        context = RequestContext(api=WRITE_TXN_MARKERS, version=1, services=node.services)
        answer: Any = handle_write_txn_markers(WriteTxnMarkersRequest(markers=[marker]), context)
        while not isinstance(answer, WriteTxnMarkersResponse):
            answer = await answer if inspect.isawaitable(answer) else run_through(answer)
        return [ErrorCode(row.error_code) for row in answer.markers[0].topics[0].partitions]

    return ask()


NAMES: list[TopicPartition] = [("orders", 0)]


@pytest.mark.parametrize("ask", [ask_by_local_writer, ask_by_request])
def test_a_marker_counts_once_it_is_below_the_high_watermark(
    run: Run, ask: Callable[[Node], Coroutine[Any, Any, list[ErrorCode]]]
) -> None:
    """Until then another leader may be elected without it, and the transaction would never end there."""

    async def scenario(node: Node) -> None:
        await node.apply(image_with_a_follower())
        partition = node.replicas.find("orders", 0)
        outcome = asyncio.ensure_future(ask(node))
        for _ in range(20):
            await asyncio.sleep(0)
        assert partition.log.log_end_offset == 1
        assert not outcome.done()
        partition.update_follower(OTHER, 1, 0, -1)
        node.replicas.on_follower_progress(partition)
        assert await outcome == [ErrorCode.NONE]

    run(scenario)


async def groups_with_an_open_marker(node: Node) -> GroupService:
    """A transaction of group g has ended, and the other broker doesn't have its marker yet."""
    state = PartitionState((HERE, OTHER), (HERE, OTHER), HERE)
    topics = [TopicImage(OFFSETS_TOPIC, random_uuid(), (state,)), TopicImage("t", random_uuid(), (state,))]
    image = replace(EMPTY_IMAGE.with_topics(topics), revision=1)
    await node.apply(image)
    unused = cast(Any, None)
    groups = GroupService(
        settings=load(options={"node.id": HERE}),
        clock=node.clock,
        cluster=ClusterView(image),
        creation=unused,
        replicas=node.replicas,
    )
    groups.start()
    groups.shard_of("g").replay(CommittedOffset(5).record("g", "t", 0), 0, producer_id=7)
    partition = node.replicas.find_leader(OFFSETS_TOPIC, 0)
    node.replicas.write_txn_marker(partition, 7, 0, 1, commit=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert partition.log.log_end_offset == 1
    return groups


def test_offsets_of_a_transaction_take_effect_once_its_marker_is_below_the_high_watermark(run: Run) -> None:
    async def scenario(node: Node) -> None:
        groups = await groups_with_an_open_marker(node)
        shard, partition = groups.shard_of("g"), node.replicas.find_leader(OFFSETS_TOPIC, 0)
        assert shard.state.offsets_of("g").get("t", 0) is None
        partition.update_follower(OTHER, 1, 0, -1)
        node.replicas.on_follower_progress(partition)
        for _ in range(20):
            await asyncio.sleep(0)
        committed = shard.state.offsets_of("g").get("t", 0)
        assert committed is not None
        assert committed.offset == 5
        await groups.close()

    run(scenario)


def test_a_coordinator_that_ends_does_not_wait_for_replicas(run: Run) -> None:
    """They may be hanging or gone; what was written is in the log for the next coordinator."""

    async def scenario(node: Node) -> None:
        groups = await groups_with_an_open_marker(node)
        async with asyncio.timeout(2):
            await groups.close()

    run(scenario)


def test_markers_of_local_partitions_alone_need_no_waiting(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_with(orders=[HERE]))
        peers = OtherBrokers()
        errors = ClusterMarkerWriter(node.replicas, peers).write(MARKER, [("orders", 0)])
        assert errors == {("orders", 0): ErrorCode.NONE}
        assert not peers.asked

    run(scenario)


def test_what_comes_up_while_a_request_is_under_way_goes_out_together(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_with(orders=[OTHER]))
        peers = OtherBrokers()
        peers.may_answer.clear()
        writer = ClusterMarkerWriter(node.replicas, peers)
        writes = []
        for producer_id in range(5):
            writes.append(
                asyncio.ensure_future(written(writer.write(MARKER._replace(producer_id=producer_id), [("orders", 0)])))
            )
            await peers.was_asked.wait()
        peers.may_answer.set()
        for write in writes:
            assert await write == {("orders", 0): ErrorCode.NONE}
        counts = [len(request.markers) for _, request in peers.asked if isinstance(request, WriteTxnMarkersRequest)]
        assert counts == [1, 4]
        await writer.close()

    run(scenario)


def test_a_marker_that_did_not_arrive_is_told_as_failed(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_with(orders=[OTHER, HERE]))
        peers = OtherBrokers()
        writer = ClusterMarkerWriter(node.replicas, peers)

        def lose(request: object) -> object:
            raise ConnectionLostError("gone")

        for answer, error in (
            (lose, ErrorCode.NETWORK_EXCEPTION),
            (
                lambda request: peers.all_written(request, ErrorCode.NOT_LEADER_OR_FOLLOWER),
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ),
            # An answer that leaves a marker out says nothing about it.
            (lambda request: WriteTxnMarkersResponse(), ErrorCode.UNKNOWN_SERVER_ERROR),
        ):
            peers.answer = answer
            errors = await written(writer.write(MARKER, [("orders", 0), ("orders", 1)]))
            assert errors == {("orders", 0): error, ("orders", 1): ErrorCode.NONE}
        await writer.close()

    run(scenario)


def test_a_partition_deleted_meanwhile_needs_no_marker(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_with(orders=[OTHER]))
        peers = OtherBrokers()
        peers.may_answer.clear()
        peers.answer = lambda request: peers.all_written(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        writer = ClusterMarkerWriter(node.replicas, peers)
        write = asyncio.ensure_future(written(writer.write(MARKER, [("orders", 0)])))
        await peers.was_asked.wait()
        await node.apply(replace(EMPTY_IMAGE, revision=2))
        peers.may_answer.set()
        assert await write == {("orders", 0): ErrorCode.NONE}
        await writer.close()

    run(scenario)


def test_a_partition_without_a_leader_is_tried_again(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(image_with(orders=[-1]))
        errors = await written(ClusterMarkerWriter(node.replicas, OtherBrokers()).write(MARKER, [("orders", 0)]))
        assert errors[("orders", 0)]

    run(scenario)


class LocalCoordinator:
    """Stands for this broker's own coordinators."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[Any], add: bool
    ) -> dict[TopicPartition, ErrorCode]:
        self.asked.append(transactional_id)
        return dict.fromkeys(partitions, ErrorCode.NONE)


async def verify(coordinators: TransactionCoordinators, *question: Any) -> Answers:
    answers = coordinators.verify(*question)
    return answers if isinstance(answers, dict) else await cast("Awaitable[Answers]", answers)


def ids_of_partition(wanted: int) -> str:
    return next(f"id-{number}" for number in range(1000) if partition_for(f"id-{number}", 2) == wanted)


def with_brokers(image: ClusterImage) -> ClusterImage:
    endpoints = (Endpoint(PLAINTEXT, "127.0.0.1", 9092),)
    return replace(image, brokers={node_id: BrokerInfo(node_id, 1, endpoints) for node_id in (HERE, OTHER)})


def test_the_coordinator_that_the_image_names_is_asked(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await node.apply(with_brokers(image_with(**{TRANSACTION_TOPIC: [HERE, OTHER]})))
        local, peers = LocalCoordinator(), OtherBrokers()

        def answer(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
            (transaction,) = request.transactions
            results = [
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=index, partition_error_code=ErrorCode.INVALID_TXN_STATE if index else 0
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in transaction.topics
            ]
            result = AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results)
            return AddPartitionsToTxnResponse(results_by_transaction=[result])

        peers.answer = answer
        coordinators = TransactionCoordinators(cast(TransactionService, local), node.replicas, peers)
        mine, others = ids_of_partition(0), ids_of_partition(1)
        names: list[TopicPartition] = [("orders", 0), ("orders", 1), ("clicks", 0)]
        assert await verify(coordinators, mine, 7, 0, names, True) == dict.fromkeys(names, ErrorCode.NONE)
        assert (local.asked, peers.asked) == ([mine], [])
        for add in (True, False):
            assert await verify(coordinators, others, 7, 0, names, add) == {
                ("orders", 0): ErrorCode.NONE,
                ("orders", 1): ErrorCode.INVALID_TXN_STATE,
                ("clicks", 0): ErrorCode.NONE,
            }
            node_id, request = peers.asked[-1]
            assert node_id == OTHER
            assert isinstance(request, AddPartitionsToTxnRequest)
            assert request.transactions[0].verify_only is not add

    run(scenario)


def test_a_coordinator_out_of_reach_gives_an_error_that_producers_retry(run: Run) -> None:
    async def scenario(node: Node) -> None:
        local, peers = LocalCoordinator(), OtherBrokers()
        coordinators = TransactionCoordinators(cast(TransactionService, local), node.replicas, peers)
        await node.apply(with_brokers(image_with(**{TRANSACTION_TOPIC: [OTHER, -1]})))

        def lose(request: object) -> object:
            raise ConnectionLostError("gone")

        peers.answer = lose
        answers = await verify(coordinators, ids_of_partition(0), 7, 0, [("orders", 0)], True)
        assert answers == {("orders", 0): ErrorCode.NETWORK_EXCEPTION}
        answers = await verify(coordinators, ids_of_partition(1), 7, 0, [("orders", 0)], True)
        assert answers == {("orders", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert not local.asked

    run(scenario)
