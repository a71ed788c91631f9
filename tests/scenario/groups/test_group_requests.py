"""Groups and their offsets over plain sockets: what every version is told, and what __consumer_offsets holds then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.ids import ZERO_UUID
from tidelog.coordinator.actions import GroupRecord
from tidelog.coordinator.group_records import OffsetCommitKey, OffsetCommitValue, decode_record
from tidelog.protocol import encode
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.protocol.messages.k03_metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
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
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
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
from tidelog.protocol.messages.k13_leave_group import (
    LEAVE_GROUP,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from tidelog.protocol.messages.k14_sync_group import SYNC_GROUP, SyncGroupRequest, SyncGroupResponse
from tidelog.protocol.messages.k15_describe_groups import (
    DESCRIBE_GROUPS,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.protocol.messages.k16_list_groups import LIST_GROUPS, ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.k20_delete_topics import DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.k42_delete_groups import DELETE_GROUPS, DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.protocol.messages.k47_offset_delete import (
    OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tidelog.records import decode_records, iter_headers
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient, fetch_request, produce_request

Connect = Callable[[Broker], RawClient]
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 4}


@pytest.fixture
def groups_broker(start_broker: Callable[..., Broker]) -> Broker:
    """A broker whose groups do not wait for more members."""
    broker = start_broker(settings=SETTINGS)
    broker.create_topic("t", partitions=2)
    return broker


@pytest.fixture
def client(groups_broker: Broker, connect: Connect) -> RawClient:
    """A connection that has found the coordinator."""
    client = connect(groups_broker)
    found = client.ask(FIND_COORDINATOR, FindCoordinatorRequest(key="g"), FindCoordinatorResponse, 0)
    assert (found.error_code, found.port) == (0, groups_broker.port)
    return client


def commit(
    client: RawClient,
    offset: int,
    version: int = 7,
    *,
    group_id: str = "g",
    metadata: str | None = "",
    member_id: str = "",
    generation: int = -1,
) -> int:
    """Commit an offset of t-0; the error."""
    row = OffsetCommitRequestPartition(committed_offset=offset, committed_metadata=metadata)
    topic_id = described(client).topic_id if version >= 10 else ZERO_UUID
    name = "t" if version < 10 else ""
    request = OffsetCommitRequest(
        group_id=group_id,
        member_id=member_id,
        generation_id_or_member_epoch=generation,
        topics=[OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=[row])],
    )
    answer = client.ask(OFFSET_COMMIT, request, OffsetCommitResponse, version)
    assert (answer.topics[0].name, answer.topics[0].topic_id) == (name, topic_id)
    return answer.topics[0].partitions[0].error_code


def described(client: RawClient, topic: str = "t") -> MetadataResponseTopic:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    return client.ask(METADATA, request, MetadataResponse, 12).topics[0]


def fetch(client: RawClient, version: int, group_id: str = "g") -> list[tuple[int, int, str | None]]:
    """Offset, error and metadata of both partitions."""
    if version < 8:
        request = OffsetFetchRequest(
            group_id=group_id, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        )
        answer = client.ask(OFFSET_FETCH, request, OffsetFetchResponse, version)
        assert answer.error_code == 0
        [found] = answer.topics
        return [(row.committed_offset, row.error_code, row.metadata) for row in found.partitions]
    topic_id = described(client).topic_id if version >= 10 else ZERO_UUID
    asked = OffsetFetchRequestTopics(name="t" if version < 10 else "", topic_id=topic_id, partition_indexes=[0, 1])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=[asked])])
    [group] = client.ask(OFFSET_FETCH, request, OffsetFetchResponse, version).groups
    assert (group.group_id, group.error_code) == (group_id, 0)
    return [(row.committed_offset, row.error_code, row.metadata) for row in group.topics[0].partitions]


def join(client: RawClient, group_id: str = "g", session_timeout_ms: int = 30_000) -> tuple[str, int]:
    """Become the only member of the group, a consumer of t; its id and generation."""
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[
            JoinGroupRequestProtocol(
                name="range", metadata=b"\0\0" + encode(ConsumerProtocolSubscription(topics=["t"]), 0)
            )
        ],
    )
    joined = client.ask(JOIN_GROUP, request, JoinGroupResponse, 3)
    assert joined.error_code == 0
    sync = SyncGroupRequest(group_id=group_id, generation_id=joined.generation_id, member_id=joined.member_id)
    assert client.ask(SYNC_GROUP, sync, SyncGroupResponse, 2).error_code == 0
    return joined.member_id, joined.generation_id


def leave(client: RawClient, member_id: str, group_id: str = "g") -> None:
    request = LeaveGroupRequest(group_id=group_id, members=[MemberIdentity(member_id=member_id)])
    assert client.ask(LEAVE_GROUP, request, LeaveGroupResponse, 3).error_code == 0


def delete_groups(client: RawClient, version: int, *group_ids: str) -> dict[str, int]:
    request = DeleteGroupsRequest(groups_names=list(group_ids))
    answer = client.ask(DELETE_GROUPS, request, DeleteGroupsResponse, version)
    return {row.group_id: row.error_code for row in answer.results}


def delete_offset(client: RawClient, group_id: str = "g", topic: str = "t") -> tuple[int, list[int]]:
    rows = [OffsetDeleteRequestPartition(partition_index=0)]
    request = OffsetDeleteRequest(group_id=group_id, topics=[OffsetDeleteRequestTopic(name=topic, partitions=rows)])
    answer = client.ask(OFFSET_DELETE, request, OffsetDeleteResponse, 0)
    return answer.error_code, [row.error_code for found in answer.topics for row in found.partitions]


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_commits(client: RawClient, version: int) -> None:
    """Behaviour 52."""
    assert commit(client, 5, version, metadata="mine") == 0
    assert fetch(client, 7) == [(5, 0, "mine"), (-1, 0, "")]
    assert commit(client, 6, version, metadata="x" * 4097) == 12
    assert fetch(client, 7) == [(5, 0, "mine"), (-1, 0, "")]


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_fetches(client: RawClient, version: int) -> None:
    """Behaviour 52: no offset is -1 without an error, also in a group that is not there."""
    assert fetch(client, version) == [(-1, 0, ""), (-1, 0, "")]
    assert commit(client, 5, metadata="mine") == 0
    assert fetch(client, version) == [(5, 0, "mine"), (-1, 0, "")]


def test_null_topics_are_all_and_several_groups_are_asked_at_once(client: RawClient) -> None:
    """Behaviour 52."""
    assert (commit(client, 5, group_id="a"), commit(client, 6, group_id="b")) == (0, 0)
    for version in range(2, 8):
        request = OffsetFetchRequest(group_id="a", topics=None)
        answer = client.ask(OFFSET_FETCH, request, OffsetFetchResponse, version)
        assert [(topic.name, topic.partitions[0].committed_offset) for topic in answer.topics] == [("t", 5)]
    for version in range(8, 11):
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None) for group_id in ("a", "none", "b")],
            require_stable=True,
        )
        groups = client.ask(OFFSET_FETCH, request, OffsetFetchResponse, version).groups
        assert [
            (group.group_id, [row.committed_offset for topic in group.topics for row in topic.partitions])
            for group in groups
        ] == [("a", [5]), ("none", []), ("b", [6])]
        names = [topic.name for group in groups for topic in group.topics]
        assert names == (["t", "t"] if version < 10 else ["", ""])


def test_a_commit_without_a_member_needs_an_empty_group(client: RawClient) -> None:
    """Behaviours 47 and 48."""
    assert commit(client, 1) == 0
    member_id, generation_id = join(client)
    assert commit(client, 2) == 25
    assert commit(client, 3, member_id=member_id, generation=generation_id) == 0
    assert commit(client, 4, member_id=member_id, generation=generation_id + 1) == 22
    assert commit(client, 4, member_id="stranger", generation=generation_id) == 25
    assert fetch(client, 7)[0][0] == 3
    leave(client, member_id)
    assert commit(client, 5) == 0
    assert fetch(client, 7)[0][0] == 5


def test_a_group_is_listed_described_and_deleted(client: RawClient) -> None:
    """Behaviour 18."""
    assert commit(client, 1) == 0
    assert commit(client, 1, group_id="simple") == 0
    member_id, _ = join(client)
    for version in range(6):
        rows = client.ask(LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, version).groups
        kinds = {row.group_id: (row.protocol_type, row.group_state, row.group_type) for row in rows}
        state = ("Stable", "Empty") if version >= 4 else ("", "")
        kind = "classic" if version >= 5 else ""
        assert kinds == {"g": ("consumer", state[0], kind), "simple": ("", state[1], kind)}

    def listed(request: ListGroupsRequest, version: int) -> list[str]:
        return [row.group_id for row in client.ask(LIST_GROUPS, request, ListGroupsResponse, version).groups]

    assert listed(ListGroupsRequest(states_filter=["Empty"]), 4) == ["simple"]
    assert listed(ListGroupsRequest(states_filter=["Stable"], types_filter=["classic"]), 5) == ["g"]
    assert listed(ListGroupsRequest(types_filter=["consumer"]), 5) == []
    for version in range(7):
        request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=version >= 3)
        found, missing = client.ask(DESCRIBE_GROUPS, request, DescribeGroupsResponse, version).groups
        assert (found.group_state, found.protocol_data, found.members[0].member_id) == ("Stable", "range", member_id)
        assert found.authorized_operations == (0b1101_0100_1000 if version >= 3 else -(2**31))
        assert (missing.group_state, missing.error_code) == ("Dead", 69 if version >= 6 else 0)
    assert delete_offset(client) == (0, [86])
    assert delete_offset(client, "none") == (69, [])
    assert delete_offset(client, "simple", "nowhere") == (0, [3])
    assert delete_groups(client, 0, "g", "none") == {"g": 68, "none": 69}
    leave(client, member_id)
    assert delete_offset(client) == (0, [0])
    assert fetch(client, 7)[0][0] == -1
    assert delete_groups(client, 1, "g") == {"g": 0}
    assert delete_groups(client, 2, "simple") == {"simple": 0}
    assert listed(ListGroupsRequest(), 5) == []


def test_groups_and_offsets_survive_restart_and_crash(
    groups_broker: Broker, client: RawClient, connect: Connect, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    """Behaviour 53: while they are loaded the answer is 14, never an empty one."""
    for number in range(200):
        assert commit(client, number, group_id=f"group-{number}", metadata="m" * 4000) == 0
    member_id, generation_id = join(client)
    for end in (groups_broker.stop, groups_broker.crash):
        end()
        groups_broker.start()
        again = connect(groups_broker)
        codes: set[int] = set()

        def is_loaded(client: RawClient = again, codes: set[int] = codes) -> bool:
            answer = client.ask(LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, 5)
            codes.add(answer.error_code)
            assert answer.error_code or len(answer.groups) == 201
            return not answer.error_code

        wait_until(is_loaded, "the groups are loaded")
        assert codes <= {0, 14}
        for number in range(200):
            assert fetch(again, 7, group_id=f"group-{number}")[0][0] == number
        assert commit(again, 8, member_id=member_id, generation=generation_id) == 0


def test_offsets_expire_once_nobody_uses_them(
    start_broker: Callable[..., Broker], connect: Connect, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    """Behaviour 53: seven days after the group became empty."""
    clock = VirtualClock()
    broker = start_broker(clock, settings=SETTINGS | {"group.max.session.timeout.ms": 2**31 - 1})
    broker.create_topic("t", partitions=2)
    client = connect(broker)
    client.ask(FIND_COORDINATOR, FindCoordinatorRequest(key="g"), FindCoordinatorResponse, 0)
    member_id, generation_id = join(client, session_timeout_ms=2**31 - 1)
    assert commit(client, 5, member_id=member_id, generation=generation_id) == 0
    clock.advance(days=8)
    assert commit(client, 6, group_id="marker") == 0
    assert fetch(client, 7)[0][0] == 5
    leave(client, member_id)
    clock.advance(days=6.9)
    wait_until(lambda: fetch(client, 7, "marker")[0][0] == 6, "nothing is expired yet")
    assert fetch(client, 7)[0][0] == 5
    clock.advance(days=0.2)
    wait_until(lambda: fetch(client, 7)[0][0] == -1, "the offset is expired")
    wait_until(lambda: fetch(client, 7, "marker")[0][0] == -1, "the offset of the other group is expired")


def test_offsets_of_a_deleted_topic_are_gone(groups_broker: Broker, client: RawClient) -> None:
    assert commit(client, 5) == 0
    deletion = DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000)
    assert client.ask(DELETE_TOPICS, deletion, DeleteTopicsResponse, 4).responses[0].error_code == 0
    groups_broker.create_topic("t", partitions=2)
    assert fetch(client, 7) == [(-1, 0, ""), (-1, 0, "")]


def test_the_topic_is_internal_and_holds_kafkas_records(groups_broker: Broker, client: RawClient) -> None:
    assert commit(client, 5, metadata="mine") == 0
    topic = described(client, "__consumer_offsets")
    assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 4)
    # The hash of its id, 103, puts the group into the last partition.
    answer = client.ask(FETCH, fetch_request("__consumer_offsets", 0, partition=3), FetchResponse, 12)
    records = answer.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    headers = list(iter_headers(records))
    assert [header.records_count for _, header in headers] == [1]
    [record] = decode_records(records)
    assert record.key is not None
    decoded = decode_record(GroupRecord(record.key, record.value))
    assert decoded is not None
    key, value = decoded
    assert key == OffsetCommitKey(group="g", topic="t", partition=0)
    assert isinstance(value, OffsetCommitValue)
    assert (value.offset, value.leader_epoch, value.metadata) == (5, -1, "mine")
    assert value.topic_id == described(client).topic_id


def test_clients_may_not_write_to_the_topic(client: RawClient) -> None:
    answer = client.ask(PRODUCE, produce_request("__consumer_offsets", b"x"), ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == 17


def test_a_broker_without_the_topic_coordinates_nothing(broker: Broker, connect: Connect) -> None:
    broker.create_topic("t")
    client = connect(broker)
    assert commit(client, 5) == 16
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    for version in range(1, 8):
        answer = client.ask(OFFSET_FETCH, request, OffsetFetchResponse, version)
        assert [row.error_code for row in answer.topics[0].partitions] == [16]
        assert version == 1 or answer.error_code == 16
    assert delete_groups(client, 2, "g") == {"g": 16}
    assert delete_offset(client) == (16, [])
    described_groups = client.ask(DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["g"]), DescribeGroupsResponse, 5)
    assert described_groups.groups[0].error_code == 16
    assert client.ask(LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, 5).groups == []
    long = client.ask(FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse, 4)
    assert long.coordinators[0].error_code == 0
    assert commit(client, 5, 8, group_id="g" * 10_000) == 24
