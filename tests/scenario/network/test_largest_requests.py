"""No request, however much it asks for, keeps the event loop from others for long.

Every API that is served is asked with as many elements as a request may have, about a broker with many topics and
groups. What counts is the processor time of each callback on the broker's loop, which a busy machine lengthens little;
what holds the loop does so each time, so a pause that does not come again was the machine's.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from tidelog.broker.registry import Handler, registered_handlers
from tidelog.protocol import Api, ErrorCode, Message, decode, decode_response_header, request_class, response_class
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
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
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.protocol.messages.k47_offset_delete import (
    OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tidelog.protocol.schema import Field, fields_of
from tidelog.protocol.wire import ELEMENTS_MAX
from tidelog.testing import broker as testing_broker
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient

PARTITIONS = 1000
GROUPS = 1000

HOLD_S_MAX = 0.020
ATTEMPTS = 3


@dataclass
class Holds:
    """The callback that took the loop's thread for longest, and its time."""

    longest_s: float = 0.0
    longest: str = ""

    def clear(self) -> None:
        self.longest_s, self.longest = 0.0, ""


@contextmanager
def watched_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holds]:
    """Times every callback of brokers that start meanwhile; they run on asyncio's own loop."""
    holds = Holds()
    run = asyncio.Handle._run

    def timed_run(handle: asyncio.Handle) -> None:
        before_s = time.thread_time()
        run(handle)
        spent_s = time.thread_time() - before_s
        if spent_s > holds.longest_s:
            holds.longest_s, holds.longest = spent_s, repr(handle)

    monkeypatch.setattr(testing_broker, "new_event_loop", asyncio.new_event_loop)
    monkeypatch.setattr(asyncio.Handle, "_run", timed_run)
    yield holds


@pytest.fixture(scope="module")
def crowded() -> Iterator[tuple[Broker, Holds]]:
    """A broker with a topic of many partitions, many topics, and many groups, one of which has many offsets."""
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        watched_loop(monkeypatch) as holds,
        Broker(settings={"group.initial.rebalance.delay.ms": 0, "transaction.state.log.num.partitions": 1}) as broker,
    ):
        broker.create_topic("topic-0", PARTITIONS)
        for number in range(1, 20):
            broker.create_topic(f"topic-{number}", 5)
        with RawClient(broker.port) as client:
            found = FindCoordinatorRequest(key_type=0, coordinator_keys=["group-0"])
            client.ask(FIND_COORDINATOR, found, FindCoordinatorResponse, 4)
            for number in range(GROUPS):
                indexes = range(PARTITIONS) if number == 0 else range(1)
                partitions = [OffsetCommitRequestPartition(partition_index=i, committed_offset=1) for i in indexes]
                topic = OffsetCommitRequestTopic(name="topic-0", partitions=partitions)
                commit = OffsetCommitRequest(group_id=f"group-{number}", topics=[topic])
                answer = client.ask(OFFSET_COMMIT, commit, OffsetCommitResponse, 8)
                assert not any(row.error_code for row in answer.topics[0].partitions)
        # Pauses of the garbage collector are another matter; the tests' own objects are among what it looks at.
        gc.disable()
        try:
            yield broker, holds
        finally:
            gc.enable()


def largest(cls: type[Message], version: int, outer: int, inner: int, *, repeated: bool) -> Any:
    """A request with `outer` elements in each of its arrays and `inner` in each of theirs."""
    return _filled(cls, version, (outer, inner, 1), 0, repeated=repeated)


def _filled(cls: type[Message], version: int, counts: tuple[int, ...], number: int, *, repeated: bool) -> Any:
    message = cls()
    for each in fields_of(cls):
        if each.versions.holds(version) and not each.is_tagged(version):
            setattr(message, each.name, _value(each, version, counts, number, repeated=repeated))
    return message


def _value(each: Field, version: int, counts: tuple[int, ...], number: int, *, repeated: bool) -> object:
    if each.is_array:
        numbers = [0] * counts[0] if repeated else range(counts[0])
        if each.struct is not None:
            return [_filled(each.struct, version, counts[1:], item, repeated=repeated) for item in numbers]
        return [_scalar(each, item) for item in numbers]
    if each.struct is not None:
        return each.default()
    return _scalar(each, number)


def _scalar(each: Field, number: int) -> object:
    assert each.wire is not None
    if each.name == "acks":
        return 1
    if each.name in ("assignments", "records", "protocol_metadata", "metadata", "assignment", "pattern"):
        return each.default() if each.wire.name != "bytes" else b"x"
    if each.wire.name == "string":
        return _name(each.name, number)
    if each.wire.name == "bytes":
        return b"x"
    if each.name in ("partition", "partition_index", "partition_indexes", "partitions", "index"):
        return number % PARTITIONS
    if each.wire.name == "uuid":
        return UUID(int=number)
    return each.default() if not each.is_array else number % 100


def _name(field_name: str, number: int) -> str:
    if "group" in field_name:
        return f"group-{number}"
    if "regex" in field_name or "pattern" in field_name or "filter" in field_name:
        return ""
    return f"topic-{number}"


# Elements in the arrays of a request, in each of theirs, and whether all are the same.
SHAPES = {
    "many": (ELEMENTS_MAX // 3, 1, False),
    "deep": (1, ELEMENTS_MAX // 3, False),
    "none": (0, 0, False),
}
# Enough for a request to be decoded in steps.
WARM_UP = (600, 1, True)


def handlers() -> list[Handler]:
    from tidelog.broker.handlers import load_all

    load_all()
    return list(registered_handlers())


@pytest.mark.parametrize("handler", handlers(), ids=lambda handler: handler.api.name)
def test_no_request_holds_the_loop(crowded: tuple[Broker, Holds], handler: Handler) -> None:
    broker, holds = crowded
    # The first of its kind compiles codecs, which happens only once in a broker's life.
    ask(broker, handler, *WARM_UP)
    for shape, (outer, inner, repeated) in SHAPES.items():
        for attempt in range(ATTEMPTS):
            holds.clear()
            ask(broker, handler, outer, inner, repeated)
            if holds.longest_s < HOLD_S_MAX:
                break
            assert attempt < ATTEMPTS - 1, f"{shape}: {holds.longest_s * 1000:.0f} ms in {holds.longest}"


def ask(broker: Broker, handler: Handler, outer: int, inner: int, repeated: bool) -> None:
    api, version = handler.api, handler.version_max
    request = largest(request_class(api), version, outer, inner, repeated=repeated)
    with RawClient(broker.port) as client:
        client.send(api, request, version)
        try:
            data = client.receive_frame()
        except ConnectionError:
            return  # refused; that must not take long either
    _, offset = decode_response_header(api, version, data)
    decode(response_class(api), data, version, offset)


# As many partitions as fit into one batch of __consumer_offsets, and more than that, which is refused only by the log.
FITTING = 12_000
TOO_LARGE = ELEMENTS_MAX - 100

Asked = tuple[Api, Any, type[Any], int]


def offset_commit(count: int) -> Asked:
    rows = [OffsetCommitRequestPartition(partition_index=i % PARTITIONS, committed_offset=1) for i in range(count)]
    topics = [OffsetCommitRequestTopic(name="topic-0", partitions=rows)]
    return OFFSET_COMMIT, OffsetCommitRequest(group_id="group-0", topics=topics), OffsetCommitResponse, 8


def txn_offset_commit(count: int, producer_id: int) -> Asked:
    rows = [TxnOffsetCommitRequestPartition(partition_index=i % PARTITIONS, committed_offset=1) for i in range(count)]
    topics = [TxnOffsetCommitRequestTopic(name="topic-0", partitions=rows)]
    request = TxnOffsetCommitRequest(transactional_id="id", group_id="group-0", producer_id=producer_id, topics=topics)
    return TXN_OFFSET_COMMIT, request, TxnOffsetCommitResponse, 5


def offset_delete(count: int) -> Asked:
    rows = [OffsetDeleteRequestPartition(partition_index=i % PARTITIONS) for i in range(count)]
    topics = [OffsetDeleteRequestTopic(name="topic-0", partitions=rows)]
    return OFFSET_DELETE, OffsetDeleteRequest(group_id="group-0", topics=topics), OffsetDeleteResponse, 0


def codes(response: Any) -> set[int]:
    return {row.error_code for topic in response.topics for row in topic.partitions}


def test_large_requests_that_are_carried_out(crowded: tuple[Broker, Holds]) -> None:
    """Those above are mostly about nothing that exists; what is written and remembered takes longer."""
    broker, holds = crowded

    def asked_briefly(asked: Asked, expected: set[int]) -> None:
        for attempt in range(ATTEMPTS):
            holds.clear()
            assert codes(client.ask(*asked)) == expected
            if holds.longest_s < HOLD_S_MAX:
                return
            assert attempt < ATTEMPTS - 1, f"{asked[0].name}: {holds.longest_s * 1000:.0f} ms in {holds.longest}"

    with RawClient(broker.port) as client:
        found = FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
        client.ask(FIND_COORDINATOR, found, FindCoordinatorResponse, 4)
        init = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
        producer_id = client.ask(INIT_PRODUCER_ID, init, InitProducerIdResponse, 4).producer_id
        asked_briefly(offset_commit(FITTING), {ErrorCode.NONE})
        asked_briefly(offset_commit(TOO_LARGE), {ErrorCode.INVALID_COMMIT_OFFSET_SIZE})
        asked_briefly(txn_offset_commit(FITTING, producer_id), {ErrorCode.NONE})
        asked_briefly(txn_offset_commit(TOO_LARGE, producer_id), {ErrorCode.INVALID_COMMIT_OFFSET_SIZE})
        # What is in the transaction is deleted with the rest.
        asked_briefly(offset_delete(TOO_LARGE), {ErrorCode.NONE})
