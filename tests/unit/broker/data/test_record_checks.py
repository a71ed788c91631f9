"""Batches whose records a thread has to check: order is kept, and nobody else waits."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from crc32c import crc32c

from damaged_batches import RawBatch
from tidelog.broker import record_checks
from tidelog.broker.handlers.k00_produce import handle_produce
from tidelog.broker.memory import HeldRequest, Holder, ReceiveMemory, is_unshared
from tidelog.broker.partition import Partition
from tidelog.broker.record_checks import CHECK_THREADS
from tidelog.broker.registry import CloseConnection
from tidelog.broker.request_context import ClientSession, RequestContext
from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.ids import random_uuid
from tidelog.controller.image import EMPTY_IMAGE, BrokerInfo, PartitionState, TopicImage
from tidelog.log.validation import LOOP_PACKED_BYTES_MAX, LOOP_PLAIN_BYTES_MAX, ValidatedBatch, takes_long
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.records import Compression, encode_batch
from tidelog.records.errors import CorruptBatchError

if TYPE_CHECKING:
    from tests.unit.broker.data.conftest import Node

    Run = Callable[[Callable[[Node], Coroutine[Any, Any, None]]], None]

NOISE = os.urandom(LOOP_PACKED_BYTES_MAX)


class Gate:
    """Lets the checks of a node begin but not end before it is opened."""

    def __init__(self, node: Node, patch: pytest.MonkeyPatch) -> None:
        self.is_open = asyncio.Event()
        self.started = 0
        self._start = node.replicas.checks.start
        patch.setattr(node.replicas.checks, "start", self.start)

    def start(
        self, session: ClientSession, partition: Partition, records: memoryview
    ) -> asyncio.Future[ValidatedBatch]:
        self.started += 1
        return asyncio.ensure_future(self._later(session, partition, records))

    async def _later(self, session: ClientSession, partition: Partition, records: memoryview) -> ValidatedBatch:
        await self.is_open.wait()
        return await self._start(session, partition, records)


async def prepare(node: Node, partitions: int = 1) -> None:
    state = PartitionState((1,), (1,), 1, leader_epoch=4, partition_epoch=4)
    topic = TopicImage("topic", random_uuid(), (state,) * partitions)
    await node.apply(
        replace(
            EMPTY_IMAGE,
            revision=1,
            brokers={1: BrokerInfo(1, 10, (Endpoint(PLAINTEXT, "one.example", 9092),))},
            topics={"topic": topic},
            topics_by_id={topic.topic_id: topic},
        )
    )


def short(node: Node, **fields: Any) -> bytearray:
    return encode_batch([(b"k", b"short", (), node.clock.now_ms())], **fields)


def long(node: Node, **fields: Any) -> bytearray:
    batch = encode_batch([(b"k", NOISE, (), node.clock.now_ms())], compression=Compression.LZ4, **fields)
    assert takes_long(memoryview(batch), node.replicas.find("topic", 0).log.config)
    return batch


def damaged(node: Node) -> bytearray:
    """Long, and announcing a record more than there is."""
    batch = bytearray(long(node))
    cut = encode_batch([(b"k", b"", (), node.clock.now_ms())] * 2)
    batch[23:27], batch[57:61] = cut[23:27], cut[57:61]
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


class Held:
    """Counts the memory of requests as a connection does."""

    def __init__(self) -> None:
        self.requests: list[HeldRequest] = []
        self.memory = ReceiveMemory(1 << 30, 1 << 20, asyncio.get_running_loop())

    def hold_request(self, size_bytes: int) -> HeldRequest:
        self.requests.append(self.memory.hold_request(cast(Holder, self), size_bytes))
        return self.requests[-1]

    @property
    def held_bytes(self) -> int:
        return self.memory.held_bytes


def start(
    node: Node,
    session: ClientSession,
    *batches: bytearray | memoryview,
    acks: int = 1,
    held: Held | None = None,
    request_bytes: int = 1 << 20,
) -> asyncio.Future[Any]:
    """Begin one request, a partition for each batch; as the connection does, so that it starts before this returns."""
    data = [PartitionProduceData(index=index, records=memoryview(batch)) for index, batch in enumerate(batches)]
    topic = TopicProduceData(name="topic", partition_data=data)
    request = ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=[topic])
    context = RequestContext(
        PRODUCE, 9, node.services, session=session, holder=held, request_bytes=request_bytes if held else 0
    )
    result = handle_produce(request, context)
    if isinstance(result, Awaitable):
        return asyncio.ensure_future(result)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    done.set_result(result)
    return done


async def answers(requests: Sequence[asyncio.Future[Any]]) -> list[PartitionProduceResponse]:
    found: list[PartitionProduceResponse] = []
    for request in requests:
        response = await request
        assert isinstance(response, ProduceResponse)
        found += response.responses[0].partition_responses
    return found


def test_a_short_batch_waits_behind_a_long_one_of_its_connection_and_others_do_not(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: Node) -> None:
        await prepare(node)
        gate = Gate(node, monkeypatch)
        one, other = ClientSession(), ClientSession()
        waiting = [start(node, one, long(node)), start(node, one, short(node)), start(node, one, long(node))]
        (passing,) = await answers([start(node, other, short(node))])
        assert (passing.error_code, passing.base_offset) == (0, 0)
        assert not any(request.done() for request in waiting)
        assert gate.started == 2, "checks run side by side"
        gate.is_open.set()
        assert [answer.base_offset for answer in await answers(waiting)] == [1, 2, 3]
        (after,) = await answers([start(node, one, short(node))])
        assert after.base_offset == 4

    run(scenario)


def test_five_idempotent_batches_in_flight_keep_their_sequences(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await prepare(node)
        session = ClientSession()
        for first in range(0, 100, 5):
            made = [
                (long if (sequence * 7) % 3 else short)(node, producer_id=9, producer_epoch=0, base_sequence=sequence)
                for sequence in range(first, first + 5)
            ]
            found = await answers([start(node, session, batch) for batch in made])
            assert [(answer.error_code, answer.base_offset) for answer in found] == [
                (0, offset) for offset in range(first, first + 5)
            ]

    run(scenario)


def test_a_refused_batch_lets_the_next_ones_pass(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await prepare(node)
        session = ClientSession()
        requests = [start(node, session, batch) for batch in (long(node), damaged(node), short(node), long(node))]
        found = await answers(requests)
        assert [answer.error_code for answer in found] == [0, ErrorCode.INVALID_RECORD, 0, 0]
        assert [answer.base_offset for answer in found] == [0, -1, 1, 2]

    run(scenario)


def test_a_request_whose_connection_is_gone_lets_the_next_ones_pass(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: Node) -> None:
        await prepare(node)
        gate = Gate(node, monkeypatch)
        session = ClientSession()
        gone, left = start(node, session, long(node)), start(node, session, short(node))
        gone.cancel()
        (answer,) = await answers([left])
        assert answer.base_offset == 0
        gate.is_open.set()

    run(scenario)


def test_giving_up_a_place_lets_nobody_pass_those_before_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: Node) -> None:
        await prepare(node)
        gate = Gate(node, monkeypatch)
        session = ClientSession()
        first, gone, last = [start(node, session, batch) for batch in (long(node), short(node), short(node))]
        gone.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not last.done()
        gate.is_open.set()
        assert [answer.base_offset for answer in await answers([first, last])] == [0, 1]

    run(scenario)


def test_a_small_batch_that_opens_to_much_is_checked_in_a_thread(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: Node) -> None:
        await prepare(node)
        gate = Gate(node, monkeypatch)
        gate.is_open.set()
        now_ms = node.clock.now_ms()
        large = encode_batch([(b"k", bytes(1 << 20), (), now_ms)], compression=Compression.ZSTD)
        bomb = encode_batch([(b"k", bytes(65 << 20), (), now_ms)], compression=Compression.ZSTD)
        session = ClientSession()
        found = await answers([start(node, session, batch) for batch in (large, bomb, short(node))])
        assert [answer.error_code for answer in found] == [0, ErrorCode.MESSAGE_TOO_LARGE, 0]
        assert gate.started == 2

    run(scenario)


def test_a_request_with_much_to_check_hands_it_to_threads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: Node) -> None:
        await prepare(node, partitions=5)
        gate = Gate(node, monkeypatch)
        gate.is_open.set()
        value = bytes(LOOP_PLAIN_BYTES_MAX * 7 // 10)
        batches = [encode_batch([(b"k", value, (), node.clock.now_ms())]) for _ in range(5)]
        found = await answers([start(node, ClientSession(), *batches)])
        assert [(answer.index, answer.error_code, answer.base_offset) for answer in found] == [
            (index, 0, 0) for index in range(5)
        ]
        assert gate.started == 3

    run(scenario)


def test_a_refusal_without_acks_ends_the_connection(run: Run) -> None:
    async def scenario(node: Node) -> None:
        await prepare(node)
        session = ClientSession()
        kept = start(node, session, long(node), acks=0)
        refused = start(node, session, damaged(node), acks=0)
        assert await kept is None
        with pytest.raises(CloseConnection, match="acks=0"):
            await refused
        assert node.replicas.find("topic", 0).log.log_end_offset == 1

    run(scenario)


class TestMemory:
    """What waits for a check counts as received memory: a client may have 64 requests under way."""

    def test_all_that_waits_counts_until_it_is_appended(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario(node: Node) -> None:
            await prepare(node)
            gate, held, session = Gate(node, monkeypatch), Held(), ClientSession()
            assert (await answers([start(node, session, short(node), held=held)]))[0].error_code == 0
            assert held.held_bytes == 0, "a batch that is appended at once does not count"
            batches = (long(node), short(node), damaged(node))
            requests = [start(node, session, batch, held=held, request_bytes=1000) for batch in batches]
            assert held.held_bytes == 3000
            gate.is_open.set()
            await answers(requests)
            assert held.held_bytes == 0

        run(scenario)

    def test_a_request_that_is_given_up_does_not_count(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario(node: Node) -> None:
            await prepare(node)
            Gate(node, monkeypatch)
            held, batch = Held(), long(node)
            gone = start(node, ClientSession(), batch, held=held)
            assert held.held_bytes
            gone.cancel()
            await asyncio.wait([gone])
            assert held.held_bytes == 0

        run(scenario)

    def test_a_check_that_was_cancelled_in_the_queue_lets_go_of_its_records(self, run: Run) -> None:
        async def scenario(node: Node) -> None:
            await prepare(node)
            checks, partition = node.replicas.checks, node.replicas.find("topic", 0)
            may_go_on = threading.Event()
            blockers = [checks._threads.submit(may_go_on.wait) for _ in range(CHECK_THREADS)]
            batch = long(node)
            check = checks.start(ClientSession(), partition, memoryview(batch))
            assert not is_unshared(batch)
            check.cancel()
            await asyncio.wait([check])
            assert is_unshared(batch)
            may_go_on.set()
            assert all(blocker.result() for blocker in blockers)

        run(scenario)

    def test_connections_take_turns(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """A connection that sent many batches at once delays the others by one of them."""
        monkeypatch.setattr(record_checks, "CHECK_THREADS", 1)
        checked: list[bytes] = []
        may_begin = threading.Event()

        def note(records: memoryview, *_: object) -> ValidatedBatch:
            assert may_begin.wait(20)
            checked.append(bytes(records))
            raise KafkaError(ErrorCode.INVALID_RECORD)

        monkeypatch.setattr(record_checks, "validate_batch", note)

        async def scenario(node: Node) -> None:
            await prepare(node)
            checks, partition = node.replicas.checks, node.replicas.find("topic", 0)
            greedy, modest, gone = ClientSession(), ClientSession(), ClientSession()
            sent = [(greedy, b"g1"), (greedy, b"g2"), (greedy, b"g3"), (gone, b"x"), (modest, b"m1"), (modest, b"m2")]
            started = {batch: checks.start(session, partition, memoryview(batch)) for session, batch in sent}
            started[b"x"].cancel()
            may_begin.set()
            await asyncio.wait(started.values())
            assert checked == [b"g1", b"g2", b"m1", b"g3", b"m2"]

        run(scenario)

    def test_records_are_freed_before_the_acknowledgement(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """Followers may take their time, and their fetches have to be received meanwhile."""

        async def scenario(node: Node) -> None:
            await prepare(node)
            held, batch = Held(), long(node)
            waits, may_answer = asyncio.Event(), asyncio.Event()

            async def acknowledge(pending: object, timeout_ms: int) -> None:
                waits.set()
                await may_answer.wait()

            monkeypatch.setattr(node.replicas, "wait_for_acknowledgement", acknowledge)
            monkeypatch.setattr(Partition, "acknowledgement", lambda *_: None)
            request = start(node, ClientSession(), batch, acks=-1, held=held, request_bytes=len(batch))
            await waits.wait()
            assert held.held_bytes == 0
            # The thread has let go of the records once it does something else.
            loop, threads, barrier = (
                asyncio.get_running_loop(),
                node.replicas.checks._threads,
                threading.Barrier(CHECK_THREADS),
            )
            await asyncio.gather(*(loop.run_in_executor(threads, barrier.wait) for _ in range(CHECK_THREADS)))
            assert is_unshared(batch)
            assert not request.done()
            may_answer.set()
            await request

        run(scenario)

    @pytest.mark.parametrize("share", [1, 10])
    def test_a_small_request_keeps_no_large_buffer(self, run: Run, monkeypatch: pytest.MonkeyPatch, share: int) -> None:
        async def scenario(node: Node) -> None:
            await prepare(node)
            gate, held = Gate(node, monkeypatch), Held()
            batch = long(node)
            size_bytes = len(batch)
            buffer = batch + bytes((share - 1) * size_bytes)
            request = start(node, ClientSession(), memoryview(buffer)[:size_bytes], held=held, request_bytes=size_bytes)
            assert is_unshared(buffer) == (share > 1)
            gate.is_open.set()
            assert (await answers([request]))[0].error_code == 0

        run(scenario)


def test_a_refusal_lets_go_of_what_was_opened(run: Run) -> None:
    """Frames of the check in its traceback would keep the opened batch until the garbage collector comes by."""

    async def scene(node: Node) -> None:
        await prepare(node)
        batch = RawBatch(codec=Compression.GZIP, inside=bytes(1 << 20)).encode()
        with pytest.raises((KafkaError, CorruptBatchError)) as refused:
            await node.replicas.checks.start(ClientSession(), node.replicas.find("topic", 0), memoryview(batch))
        assert (refused.value.__cause__, refused.value.__context__) == (None, None)
        files = {Path(frame.f_code.co_filename).name for frame, _ in traceback.walk_tb(refused.tb)}
        assert "record_checks.py" in files
        assert files.isdisjoint({"validation.py", "codec.py", "compression.py"})

    run(scene)
