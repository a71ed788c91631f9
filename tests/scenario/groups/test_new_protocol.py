"""Groups of the new consumer protocol (KIP-848) over plain sockets: epochs, hand-overs, refusals, and time.

Real consumers in such groups are in test_new_protocol_clients.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.protocol.messages.k69_consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from tidelog.server.server import BrokerServer
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient

GROUP = "readers"
SETTINGS = {
    "offsets.topic.num.partitions": 4,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.session.timeout.ms": 30_000,
}
REBALANCE_MS = 20_000

StartBroker = Callable[..., Broker]
FindCoordinator = Callable[[Broker], None]


class NewMember:
    """A member of the new protocol, or somebody who wants to be one; it has what it was given until it gives it up."""

    def __init__(self, broker: Broker, client: RawClient, instance: str | None = None) -> None:
        self.topic_ids = {name: _topic_id(broker, name) for name in ("t", "t-more")}
        self.client = client
        self.instance = instance
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: dict[str, list[int]] = {}

    def beat(self, *, epoch: int | None = None, **said: Any) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat that says what the member has, and whatever else it is given to say."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            instance_id=self.instance,
            member_epoch=self.epoch if epoch is None else epoch,
        )
        request.topic_partitions = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=self.topic_ids[name], partitions=partitions)
            for name, partitions in self.owned.items()
        ]
        for name, value in said.items():
            setattr(request, name, value)
        answer = self.client.ask(CONSUMER_GROUP_HEARTBEAT, request, ConsumerGroupHeartbeatResponse, 1)
        if answer.error_code == ErrorCode.NONE:
            assert answer.member_id == self.member_id
            self.epoch = answer.member_epoch
        return answer

    def join(self, **said: Any) -> ConsumerGroupHeartbeatResponse:
        """Join with nothing; what is given is taken."""
        self.owned = {}
        first: dict[str, Any] = {"rebalance_timeout_ms": REBALANCE_MS}
        if "subscribed_topic_regex" not in said:
            first["subscribed_topic_names"] = ["t"]
        return self.obey(self.beat(epoch=0, **(first | said)))

    def obey(self, answer: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        """Have what the answer gives, and nothing else."""
        if answer.assignment is not None:
            names = {topic_id: name for name, topic_id in self.topic_ids.items()}
            self.owned = {names[row.topic_id]: row.partitions for row in answer.assignment.topic_partitions}
        return answer

    def commit(self, offset: int = 1, *, epoch: int | None = None, version: int = 9) -> ErrorCode:
        topic = OffsetCommitRequestTopic(
            name="t",
            topic_id=self.topic_ids["t"],
            partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
        )
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self.epoch if epoch is None else epoch,
            member_id=self.member_id,
            group_instance_id=self.instance,
            topics=[topic],
        )
        answer = self.client.ask(OFFSET_COMMIT, request, OffsetCommitResponse, version)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def committed(self, *, epoch: int | None = None) -> OffsetFetchResponseGroup:
        asked = OffsetFetchRequestGroup(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
        )
        return self.client.ask(OFFSET_FETCH, OffsetFetchRequest(groups=[asked]), OffsetFetchResponse, 9).groups[0]


MakeNewMember = Callable[..., NewMember]


@pytest.fixture
def join_new() -> Iterator[MakeNewMember]:
    """Members with connections of their own; takes the broker, and what `NewMember` takes. They have not joined yet."""
    with ExitStack() as clients:
        yield lambda broker, instance=None: NewMember(broker, clients.enter_context(RawClient(broker.port)), instance)


@pytest.fixture
def new_broker(start_broker: StartBroker, find_coordinator: FindCoordinator) -> Broker:
    """A broker whose groups assign at once, with a topic "t" of four partitions."""
    return _prepare(start_broker(settings=SETTINGS), find_coordinator)


def test_one_joins_and_gets_everything(new_broker: Broker, join_new: MakeNewMember) -> None:
    """Behaviour 55"""
    member = join_new(new_broker)
    answer = member.join()
    assert (answer.error_code, answer.member_epoch, answer.heartbeat_interval_ms) == (ErrorCode.NONE, 1, 5_000)
    assert member.owned == {"t": [0, 1, 2, 3]}
    # What has not changed is not told again, unless the member says everything of itself.
    assert member.beat(topic_partitions=None).assignment is None
    whole = member.beat(rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=["t"])
    assert whole.assignment is not None
    assert whole.member_epoch == 1


def test_partitions_are_given_up_before_another_member_gets_them(new_broker: Broker, join_new: MakeNewMember) -> None:
    """Behaviour 55"""
    one, two = join_new(new_broker), join_new(new_broker)
    one.join()
    assert (two.join().member_epoch, two.owned) == (2, {})
    told = one.beat()
    assert told.assignment is not None
    assert told.member_epoch == 1, "it moved on before it gave anything up"
    kept = [row.partitions for row in told.assignment.topic_partitions]
    assert [len(partitions) for partitions in kept] == [2]
    # However often both are heard, nothing moves while the first still has everything.
    for _ in range(3):
        assert two.obey(two.beat()).assignment is None
        assert one.beat(topic_partitions=None).member_epoch == one.beat().member_epoch == 1
    assert _describe(two.client).group_state == "Reconciling"
    one.owned = {"t": kept[0]}
    assert one.beat().member_epoch == 2
    two.obey(two.beat())
    assert sorted(one.owned["t"] + two.owned["t"]) == [0, 1, 2, 3]
    assert _describe(two.client).group_state == "Stable"


def test_who_does_not_give_up_partitions_in_time_is_removed(
    start_broker: StartBroker, find_coordinator: FindCoordinator, join_new: MakeNewMember
) -> None:
    """Behaviour 55"""
    clock = VirtualClock()
    broker = _prepare(start_broker(clock, settings=SETTINGS), find_coordinator)
    slow, waiting = join_new(broker), join_new(broker)
    slow.join()
    waiting.join()
    slow.beat()
    _advance(broker, clock, REBALANCE_MS - 1)
    # Its heartbeats keep its session, but not its place.
    assert slow.beat().error_code == waiting.beat().error_code == ErrorCode.NONE
    assert waiting.owned == {}
    _advance(broker, clock, 1)
    assert slow.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    waiting.obey(waiting.beat())
    assert waiting.owned == {"t": [0, 1, 2, 3]}


def test_sessions_end_by_the_broker_s_clock(
    start_broker: StartBroker, find_coordinator: FindCoordinator, join_new: MakeNewMember
) -> None:
    """Behaviour 55"""
    clock = VirtualClock()
    broker = _prepare(start_broker(clock, settings=SETTINGS), find_coordinator)
    gone, there = join_new(broker), join_new(broker)
    gone.join()
    there.join()
    _advance(broker, clock, 29_999)
    assert len(_describe(there.client).members) == 2
    assert there.beat().error_code == ErrorCode.NONE
    _advance(broker, clock, 1)
    assert len(_describe(there.client).members) == 1
    there.obey(there.beat())
    assert there.owned == {"t": [0, 1, 2, 3]}
    assert gone.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    # A member that was away must begin anew.
    assert gone.join().member_epoch > there.epoch


def test_epochs_of_others_are_fenced(new_broker: Broker, join_new: MakeNewMember) -> None:
    """Behaviour 55"""
    one, two = join_new(new_broker), join_new(new_broker)
    assert one.beat(epoch=1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    one.join()
    two.join()
    assert join_new(new_broker).beat(epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    one.obey(one.beat())
    assert one.beat().member_epoch == 2
    assert one.beat(epoch=3).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    # The answer with epoch 2 may not have arrived: the epoch before is taken with what belongs to it, not with more.
    assert one.beat(epoch=1).member_epoch == 2
    one.owned = {"t": [0, 1, 2, 3]}
    fenced = one.beat(epoch=1)
    assert fenced.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert fenced.error_message is not None
    # What was fenced gives everything up and joins again, under its own id.
    assert one.join().error_code == ErrorCode.NONE


def test_leaving(new_broker: Broker, join_new: MakeNewMember) -> None:
    """Behaviour 55"""
    one, two = join_new(new_broker), join_new(new_broker)
    one.join()
    two.join()
    assert one.beat(epoch=-1).member_epoch == -1
    assert one.beat(epoch=-1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    two.obey(two.beat())
    assert two.owned == {"t": [0, 1, 2, 3]}
    assert two.beat(epoch=-1).error_code == ErrorCode.NONE
    described = _describe(two.client)
    assert (described.group_state, described.members) == ("Empty", [])


def test_an_instance_keeps_its_partitions_while_it_is_away(
    start_broker: StartBroker, find_coordinator: FindCoordinator, join_new: MakeNewMember
) -> None:
    """Behaviour 55"""
    clock = VirtualClock()
    broker = _prepare(start_broker(clock, settings=SETTINGS), find_coordinator)
    old, other = join_new(broker, "one"), join_new(broker, "two")
    old.join()
    other.join()
    old.obey(old.beat())
    old.beat()
    other.obey(other.beat())
    had, group_epoch = old.owned, old.epoch
    assert join_new(broker, "one").join().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert old.beat(epoch=-2).member_epoch == -2
    assert other.beat().assignment is None
    back = join_new(broker, "one")
    assert (back.join().member_epoch, back.owned) == (group_epoch, had)
    assert other.beat().member_epoch == group_epoch, "a bounce made a rebalance"
    old.epoch = group_epoch
    assert old.beat().error_code == ErrorCode.FENCED_INSTANCE_ID
    # One that does not come back is gone when its session is over.
    back.beat(epoch=-2)
    _advance(broker, clock, 15_000)
    other.beat()
    _advance(broker, clock, 15_000)
    other.obey(other.beat())
    assert other.owned == {"t": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "(t"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        # Kafka's expressions are RE2's, which have no look-behind.
        ({"subscribed_topic_regex": "(?<=t)"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_heartbeats_that_are_refused(
    new_broker: Broker, join_new: MakeNewMember, said: dict[str, Any], error: ErrorCode
) -> None:
    """Behaviour 55"""
    member = join_new(new_broker)
    answer = member.join(**said)
    assert answer.error_code == error
    assert answer.error_message
    assert member.join().error_code == ErrorCode.NONE


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_choose_among_the_broker_s_assignors(
    new_broker: Broker, join_new: MakeNewMember, assignor: str
) -> None:
    """Behaviour 55"""
    member = join_new(new_broker)
    member.join(server_assignor=assignor)
    assert _describe(member.client).assignor_name == assignor


def test_a_regular_expression_stands_for_whole_names_also_of_topics_to_come(
    new_broker: Broker, join_new: MakeNewMember
) -> None:
    """Behaviour 55"""
    member = join_new(new_broker)
    member.join(subscribed_topic_regex="t|consumer|no.*")
    assert member.owned == {"t": [0, 1, 2, 3]}, "part of a name"
    member.join(subscribed_topic_regex="t.*")
    new_broker.create_topic("t-more", 2)
    member.topic_ids["t-more"] = _topic_id(new_broker, "t-more")
    member.obey(member.beat())
    assert member.owned == {"t": [0, 1, 2, 3], "t-more": [0, 1]}


def test_commits_and_fetches_of_another_epoch_are_stale(new_broker: Broker, join_new: MakeNewMember) -> None:
    """Behaviour 55"""
    one, two = join_new(new_broker), join_new(new_broker)
    one.join()
    assert one.commit(5) == ErrorCode.NONE
    two.join()
    one.obey(one.beat())
    assert one.beat().member_epoch == 2
    for epoch in (1, 3):
        assert one.commit(6, epoch=epoch) == ErrorCode.STALE_MEMBER_EPOCH
        assert one.committed(epoch=epoch).error_code == ErrorCode.STALE_MEMBER_EPOCH
    nobody = join_new(new_broker)
    assert nobody.commit(6, epoch=2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert nobody.committed(epoch=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    # Requests that have no member epoch can't tell whether their sender still has the partition.
    assert one.commit(6, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert one.committed().topics[0].partitions[0].committed_offset == 5
    assert one.commit(6, version=10) == ErrorCode.NONE
    assert one.committed().topics[0].partitions[0].committed_offset == 6


@pytest.mark.parametrize("version", [0, 1])
def test_a_group_is_described(new_broker: Broker, join_new: MakeNewMember, version: int) -> None:
    """Behaviour 55"""
    member = join_new(new_broker, "one")
    member.join(rack_id="here")
    described = _describe(member.client, version=version)
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 1, 1)
    (told,) = described.members
    assert (told.member_id, told.instance_id, told.rack_id) == (member.member_id, "one", "here")
    assert (told.client_id, told.client_host, told.member_epoch) == ("raw", "127.0.0.1", 1)
    assert told.subscribed_topic_names == ["t"]
    assert told.member_type == (1 if version else -1)
    for assignment in (told.assignment, told.target_assignment):
        assert [(row.topic_name, row.partitions) for row in assignment.topic_partitions] == [("t", [0, 1, 2, 3])]
    assert _describe(member.client, "nobody", version).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_is_the_same_after_a_crash(new_broker: Broker, join_new: MakeNewMember) -> None:
    """Behaviour 55"""
    one, two = join_new(new_broker), join_new(new_broker)
    one.join()
    two.join()
    told = one.beat().assignment
    assert told is not None
    assert one.commit(7) == ErrorCode.NONE
    before = _describe(one.client)
    new_broker.crash()
    new_broker.start()
    for member in (one, two):
        again = join_new(new_broker)
        member.client = again.client
    assert _describe(one.client) == before
    assert one.committed().topics[0].partitions[0].committed_offset == 7
    # In the middle of a hand-over it goes on where it was: what the first still has, the second does not get.
    assert two.beat().assignment is None
    one.owned = {"t": told.topic_partitions[0].partitions}
    assert one.beat().member_epoch == 2
    two.obey(two.beat())
    assert sorted(one.owned["t"] + two.owned["t"]) == [0, 1, 2, 3]


def _prepare(broker: Broker, find_coordinator: FindCoordinator) -> Broker:
    broker.create_topic("t", 4)
    find_coordinator(broker)
    return broker


def _describe(client: RawClient, group: str = GROUP, version: int = 1) -> DescribedGroup:
    request = ConsumerGroupDescribeRequest(group_ids=[group])
    return client.ask(CONSUMER_GROUP_DESCRIBE, request, ConsumerGroupDescribeResponse, version).groups[0]


def _topic_id(broker: Broker, name: str) -> uuid.UUID:
    topic = broker.server.services.controller.image.topics.get(name)
    return topic.topic_id if topic is not None else uuid.UUID(int=0)


def _advance(broker: Broker, clock: VirtualClock, ms: int) -> None:
    """Move the broker's time on, and wait until what became due by that is done."""
    clock.advance(ms=ms)

    async def after_the_timers(_: BrokerServer) -> None:
        """It is taken up in turn, and the timers are before it."""

    broker.call(after_the_timers)
