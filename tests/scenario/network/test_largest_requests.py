"""No request, however much it asks for, keeps the event loop from others for long.

Every API that is served is asked with as many elements as a request may have, about a broker with many topics and
groups. What counts is the processor time of each callback on the broker's loop, which a busy machine lengthens little;
what holds the loop does so each time, so a pause that does not come again was the machine's.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import pytest

from tidelog.broker.registry import Handler, registered_handlers
from tidelog.common.clock import VirtualClock
from tidelog.protocol import (
    Api,
    ErrorCode,
    Message,
    decode,
    decode_response_header,
    request_class,
    response_class,
)
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
from tidelog.protocol.messages.k11_join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidelog.protocol.messages.k14_sync_group import (
    SYNC_GROUP,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidelog.protocol.messages.k20_delete_topics import (
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.protocol.messages.k26_end_txn import END_TXN, EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.protocol.messages.k42_delete_groups import (
    DELETE_GROUPS,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
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

T = TypeVar("T")

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


# Offsets of one group: as many as it takes for their deletion, their expiry and the end of their transaction to hold
# the loop for longer than it may, if any of them were done in one go.
WIDE_TOPICS = 10
WIDE_PARTITIONS = 3_000
TOPICS_DELETED_AT_ONCE = 3


class Wide:
    """A broker with many partitions, on a clock that the test moves."""

    def __init__(self, broker: Broker, clock: VirtualClock, client: RawClient, holds: Holds) -> None:
        self.broker = broker
        self.clock = clock
        self.client = client
        self.holds = holds

    def committed(self) -> int | None:
        """How many offsets the group has; None while they are being changed."""

        async def count(server: Any) -> int | None:
            [shard] = server.services.groups.shards()
            if "wide" in shard.state.changing:
                return None
            offsets = shard.state.offsets.get("wide")
            return 0 if offsets is None else sum(1 for _ in offsets)

        return self.broker.call(count)

    def wait_for_offsets(self, count: int) -> None:
        deadline_s = time.monotonic() + 60
        while self.committed() != count:
            assert time.monotonic() < deadline_s, f"the group has other offsets than {count}"
            time.sleep(0.01)

    def commit(self) -> None:
        rows = [OffsetCommitRequestPartition(partition_index=i, committed_offset=1) for i in range(WIDE_PARTITIONS)]
        for number in range(WIDE_TOPICS):
            topics = [OffsetCommitRequestTopic(name=f"wide-{number}", partitions=rows)]
            asked = OFFSET_COMMIT, OffsetCommitRequest(group_id="wide", topics=topics), OffsetCommitResponse, 8
            assert codes(self.client.ask(*asked)) == {ErrorCode.NONE}

    def commit_in_transaction(self) -> InitProducerIdResponse:
        init = InitProducerIdRequest(transactional_id="wide", transaction_timeout_ms=60_000)
        producer = self.client.ask(INIT_PRODUCER_ID, init, InitProducerIdResponse, 4)
        rows = [TxnOffsetCommitRequestPartition(partition_index=i, committed_offset=2) for i in range(WIDE_PARTITIONS)]
        for number in range(WIDE_TOPICS):
            request = TxnOffsetCommitRequest(
                transactional_id="wide",
                group_id="wide",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                topics=[TxnOffsetCommitRequestTopic(name=f"wide-{number}", partitions=rows)],
            )
            answer = self.client.ask(TXN_OFFSET_COMMIT, request, TxnOffsetCommitResponse, 5)
            assert codes(answer) == {ErrorCode.NONE}
        return producer

    def end_transaction(self, producer: InitProducerIdResponse, *, committed: bool) -> None:
        request = EndTxnRequest(
            transactional_id="wide",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=committed,
        )
        assert self.client.ask(END_TXN, request, EndTxnResponse, 4).error_code == ErrorCode.NONE

    def delete_group(self) -> None:
        request = DeleteGroupsRequest(groups_names=["wide"])
        while True:
            [result] = self.client.ask(DELETE_GROUPS, request, DeleteGroupsResponse, 2).results
            if result.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                assert result.error_code == ErrorCode.NONE
                return

    def delete_group_if_any(self) -> None:
        if self.committed():
            self.delete_group()

    def delete_topics(self, names: Iterable[str]) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=30_000)
        results = self.client.ask(DELETE_TOPICS, request, DeleteTopicsResponse, 6).responses
        assert {result.error_code for result in results} == {ErrorCode.NONE}

    def done_briefly(self, prepare: Callable[[], T], act: Callable[[T], object], offsets: int) -> None:
        """Prepare, then act until the group has that many offsets; a pause that comes again each time is a failure."""
        for _ in range(ATTEMPTS):
            prepared = prepare()
            self.holds.clear()
            act(prepared)
            self.wait_for_offsets(offsets)
            if self.holds.longest_s < HOLD_S_MAX:
                return
        raise AssertionError(f"{self.holds.longest_s * 1000:.0f} ms in {self.holds.longest}")


@pytest.fixture(scope="module")
def wide() -> Iterator[Wide]:
    clock = VirtualClock()
    settings = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        watched_loop(monkeypatch) as holds,
        Broker(clock, settings=settings) as broker,
        RawClient(broker.port) as client,
    ):
        for kind in (0, 1):
            found = FindCoordinatorRequest(key_type=kind, coordinator_keys=["wide"])
            client.ask(FIND_COORDINATOR, found, FindCoordinatorResponse, 4)
        for number in range(WIDE_TOPICS):
            broker.create_topic(f"wide-{number}", WIDE_PARTITIONS)
        gc.disable()
        try:
            yield Wide(broker, clock, client, holds)
        finally:
            gc.enable()


def test_a_group_with_many_offsets_is_deleted(wide: Wide) -> None:
    wide.done_briefly(wide.commit, lambda _: wide.delete_group(), 0)


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_with_many_offsets_ends(wide: Wide, committed: bool) -> None:
    wide.delete_group_if_any()
    count = WIDE_TOPICS * WIDE_PARTITIONS if committed else 0
    wide.done_briefly(
        wide.commit_in_transaction, lambda producer: wide.end_transaction(producer, committed=committed), count
    )
    wide.delete_group_if_any()


def test_many_offsets_expire(wide: Wide) -> None:
    wide.done_briefly(wide.commit, lambda _: wide.clock.advance(days=8), 0)


def test_topics_with_many_offsets_are_deleted(wide: Wide) -> None:
    wide.commit()
    names = [f"wide-{number}" for number in range(WIDE_TOPICS)]
    for _ in range(ATTEMPTS):
        deleted, names = names[:TOPICS_DELETED_AT_ONCE], names[TOPICS_DELETED_AT_ONCE:]
        wide.holds.clear()
        wide.delete_topics(deleted)
        wide.wait_for_offsets(len(names) * WIDE_PARTITIONS)
        if wide.holds.longest_s < HOLD_S_MAX:
            return
    raise AssertionError(f"{wide.holds.longest_s * 1000:.0f} ms in {wide.holds.longest}")


# Members of one classic group, each of which waits on a connection of its own.
MEMBERS = 1500
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"
REBALANCE_MS = 60_000
SESSION_MS = 300_000


def join_request(member_id: str = "", subscription: bytes = SUBSCRIPTION) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="crowd",
        member_id=member_id,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
    )


def members_of(broker: Broker) -> tuple[int, int]:
    """How many members the group has, and how many of them wait for the others to join."""

    async def count(server: Any) -> tuple[int, int]:
        group = server.services.groups.shard_of("crowd").state.groups.get("crowd")
        return (0, 0) if group is None else (len(group.members), group.members.joining_count)

    return broker.call(count)


def wait_for_members(broker: Broker, expected: tuple[int, int]) -> None:
    deadline_s = time.monotonic() + 60
    while (found := members_of(broker)) != expected:
        assert time.monotonic() < deadline_s, f"the group has {found} members, not {expected}"
        time.sleep(0.01)


def test_a_generation_of_thousands_of_members(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As a broker logs by default: lines take time, too.
    caplog.set_level(logging.INFO, "tidelog")
    clock = VirtualClock()
    settings = {"group.initial.rebalance.delay.ms": 10_000, "offsets.topic.num.partitions": 1}
    held: dict[str, float] = {}

    def note(what: str) -> None:
        held[what] = holds.longest_s
        holds.clear()

    with (
        watched_loop(monkeypatch) as holds,
        Broker(clock, settings=settings) as broker,
        ExitStack() as connections,
    ):
        gc.disable()
        connections.callback(gc.enable)
        clients = [connections.enter_context(RawClient(broker.port)) for _ in range(MEMBERS)]
        found = FindCoordinatorRequest(key_type=0, coordinator_keys=["crowd"])
        clients[0].ask(FIND_COORDINATOR, found, FindCoordinatorResponse, 4)
        # What is compiled once in a broker's life is not what this is about.
        clients[0].ask(SYNC_GROUP, SyncGroupRequest(group_id="none"), SyncGroupResponse, 2)
        for client in clients:
            client.send(JOIN_GROUP, join_request(), 3)
        wait_for_members(broker, (MEMBERS, MEMBERS))
        holds.clear()
        while members_of(broker) == (MEMBERS, MEMBERS):
            clock.advance(seconds=10)
        joined = [client.receive(JOIN_GROUP, JoinGroupResponse, 3)[1] for client in clients]
        note("joining")
        [leader] = [number for number, answer in enumerate(joined) if answer.member_id == answer.leader]
        assert len(joined[leader].members) == MEMBERS
        ids = [answer.member_id for answer in joined]
        assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"x" * 40) for member_id in ids]
        for number in sorted(range(MEMBERS), key=lambda number: number == leader):
            sync = SyncGroupRequest(
                group_id="crowd",
                generation_id=joined[0].generation_id,
                member_id=ids[number],
                assignments=assignments if number == leader else [],
            )
            clients[number].send(SYNC_GROUP, sync, 2)
        for client in clients:
            assert client.receive(SYNC_GROUP, SyncGroupResponse, 2)[1].assignment == b"x" * 40
        note("syncing")
        # Only one rejoins; the others are dropped when the time to rejoin is over.
        clients[0].send(JOIN_GROUP, join_request(ids[0], SUBSCRIPTION.replace(b"t", b"u")), 3)
        wait_for_members(broker, (MEMBERS, 1))
        clock.advance(ms=REBALANCE_MS)
        assert clients[0].receive(JOIN_GROUP, JoinGroupResponse, 3)[1].error_code == ErrorCode.NONE
        note("dropping those that do not rejoin")
    assert {what: seconds for what, seconds in held.items() if seconds > HOLD_S_MAX} == {}, held
