"""A coordinator that is being loaded, waits for its log, does not hear of a write, or loses its topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from tidelog.broker import group_service
from tidelog.broker.delayed_produce import PendingAppend
from tidelog.broker.group_loading import load_shard
from tidelog.broker.partition import Partition
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.controller.requests import ConfigAlteration
from tidelog.coordinator.actions import ActionSteps, Work
from tidelog.coordinator.shard import GroupShard
from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource, ResourceType
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
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k15_describe_groups import (
    DESCRIBE_GROUPS,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.protocol.messages.k16_list_groups import LIST_GROUPS, ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.k20_delete_topics import DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.k42_delete_groups import DELETE_GROUPS, DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.server.server import BrokerServer
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient

Connect = Callable[[Broker], RawClient]
WaitUntil = Callable[[Callable[[], bool], str], None]


@pytest.fixture
def client(broker: Broker, connect: Connect) -> RawClient:
    """A connection to a broker with a topic, which has found the coordinator."""
    broker.create_topic("t")
    client = connect(broker)
    find(client)
    return client


def find(client: RawClient) -> None:
    assert client.ask(FIND_COORDINATOR, FindCoordinatorRequest(key="g"), FindCoordinatorResponse, 1).error_code == 0


def commit(client: RawClient, offset: int) -> int:
    rows = [OffsetCommitRequestPartition(committed_offset=offset)]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=rows)])
    return client.ask(OFFSET_COMMIT, request, OffsetCommitResponse, 7).topics[0].partitions[0].error_code


def fetch(client: RawClient) -> tuple[int, int | None]:
    """The error of the group, which its partition repeats, and the offset if there is none."""
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    answer = client.ask(OFFSET_FETCH, request, OffsetFetchResponse, 7)
    row = answer.topics[0].partitions[0]
    assert row.error_code == answer.error_code, "some clients look only at one of the two"
    return answer.error_code, None if answer.error_code else row.committed_offset


def test_while_groups_are_loaded_nobody_is_told_that_there_are_none(
    broker: Broker, client: RawClient, connect: Connect, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 53."""
    assert commit(client, 5) == 0
    broker.stop()
    may_load: list[asyncio.Event] = []

    async def load_when_told(shard: GroupShard, partition: Partition, buffer_bytes: int) -> int:
        may_load.append(asyncio.Event())
        await may_load[0].wait()
        return await load_shard(shard, partition, buffer_bytes)

    monkeypatch.setattr(group_service, "load_shard", load_when_told)
    broker.start()
    again = connect(broker)
    find(again)
    assert commit(again, 6) == 14
    assert fetch(again) == (14, None)
    assert again.ask(LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, 5).error_code == 14
    describe = DescribeGroupsRequest(groups=["g"])
    assert again.ask(DESCRIBE_GROUPS, describe, DescribeGroupsResponse, 5).groups[0].error_code == 14
    delete = DeleteGroupsRequest(groups_names=["g"])
    assert again.ask(DELETE_GROUPS, delete, DeleteGroupsResponse, 2).results[0].error_code == 14

    async def let_it_load(server: BrokerServer) -> None:
        may_load[0].set()

    wait_until(lambda: bool(may_load), "loading has begun")
    broker.call(let_it_load)
    wait_until(lambda: fetch(again) == (0, 5), "the group is loaded")
    assert commit(again, 6) == 0


def test_a_broken_partition_takes_only_its_own_groups_out_of_service(
    broker: Broker, client: RawClient, connect: Connect, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commit(client, 5) == 0
    broker.stop()

    async def fail(shard: GroupShard, partition: Partition, buffer_bytes: int) -> int:
        raise OSError("the disk does not answer")

    monkeypatch.setattr(group_service, "load_shard", fail)
    broker.start()
    again = connect(broker)
    wait_until(lambda: fetch(again) == (16, None), "loading has failed")
    assert commit(again, 6) == 16
    other = OffsetFetchRequest(group_id="other", topics=None)
    assert again.ask(OFFSET_FETCH, other, OffsetFetchResponse, 7).error_code == 0


def test_long_work_takes_turns_and_fails_alone(broker: Broker, client: RawClient, wait_until: WaitUntil) -> None:
    steps: list[str] = []

    def work(name: str, count: int) -> ActionSteps:
        for _ in range(count):
            steps.append(name)
            time.sleep(0.001)
            yield []

    def failing() -> ActionSteps:
        yield []
        raise RuntimeError("a bug")

    async def begin(server: BrokerServer) -> None:
        groups = server.services.groups
        held = groups._find("g")
        groups._run(held, [Work(work("a", 30)), Work(failing()), Work(work("b", 3))])

    broker.call(begin)
    assert commit(client, 5) == 0
    wait_until(lambda: len(steps) == 33, "all work is done")
    assert steps.index("b") < 29, "the shorter work waited for the longer"


def test_long_work_ends_with_its_shard(broker: Broker, client: RawClient, wait_until: WaitUntil) -> None:
    steps: list[int] = []

    def work() -> ActionSteps:
        try:
            while True:
                steps.append(1)
                yield []
        finally:
            steps.append(0)

    async def begin(server: BrokerServer) -> None:
        groups = server.services.groups
        groups._run(groups._find("g"), [Work(work())])

    broker.call(begin)
    wait_until(lambda: bool(steps), "it has begun")
    deletion = DeleteTopicsRequest(topic_names=["__consumer_offsets"], timeout_ms=10_000)
    assert client.ask(DELETE_TOPICS, deletion, DeleteTopicsResponse, 4).responses[0].error_code == 0
    wait_until(lambda: steps[-1] == 0, "it has ended")


def test_a_commit_is_answered_after_the_flush_that_its_topic_asks_for(broker: Broker, client: RawClient) -> None:
    async def flush_every_message(server: BrokerServer) -> None:
        resource = ConfigResource(ResourceType.TOPIC, "__consumer_offsets")
        change = ConfigChange("flush.messages", AlterOperation.SET, "1")
        results = await server.services.controller.incremental_alter_configs([ConfigAlteration(resource, [change])])
        assert not results[0].error

    async def unflushed(server: BrokerServer) -> int:
        log = server.services.replicas.find("__consumer_offsets", 3).log
        return log.log_end_offset - log.flushed_offset

    broker.call(flush_every_message)
    for offset in range(20):
        assert commit(client, offset) == 0
        assert broker.call(unflushed) == 0
    assert fetch(client) == (0, 19)


def test_a_write_of_which_nothing_is_heard_is_looked_up_in_the_log(
    broker: Broker, client: RawClient, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commit(client, 5) == 0

    async def give_up(self: ReplicaManager, appends: list[PendingAppend[None]], timeout_ms: int) -> None:
        assert timeout_ms == 5_000
        assert [append.end_offset for append in appends] == [2]

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "acknowledgement", lambda self, end_offset, leader_epoch, required_acks: None)
        patch.setattr(ReplicaManager, "wait_for_acknowledgement", give_up)
        assert commit(client, 6) == 15
    wait_until(lambda: fetch(client) == (0, 6), "the group is loaded anew")
    assert commit(client, 7) == 0
    assert fetch(client) == (0, 7)


def test_what_too_few_replicas_have_is_told_to_nobody(
    broker: Broker, client: RawClient, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another leader may be elected without it, and the offset would go back."""
    assert commit(client, 5) == 0
    tried: list[Partition] = []

    def stay(self: Partition) -> bool:
        tried.append(self)
        return False

    async def give_up(self: ReplicaManager, appends: list[PendingAppend[None]], timeout_ms: int) -> None:
        await asyncio.sleep(0)  # and the outcome of the write is not heard of

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "advance_high_watermark", stay)
        with patch.context() as shorter:
            shorter.setattr(ReplicaManager, "wait_for_acknowledgement", give_up)
            assert commit(client, 6) == 15
        wait_until(lambda: fetch(client)[0] == 14, "the group is being loaded anew")
        assert commit(client, 7) == 14

    async def let_replicas_follow(server: BrokerServer) -> None:
        assert tried[0].advance_high_watermark()
        server.services.replicas._purgatory.check(tried[0])

    broker.call(let_replicas_follow)
    wait_until(lambda: fetch(client) == (0, 6), "the group is loaded")
    assert commit(client, 7) == 0


def test_the_topic_may_be_deleted_and_is_made_anew(broker: Broker, client: RawClient) -> None:
    assert commit(client, 5) == 0
    deletion = DeleteTopicsRequest(topic_names=["__consumer_offsets"], timeout_ms=10_000)
    assert client.ask(DELETE_TOPICS, deletion, DeleteTopicsResponse, 4).responses[0].error_code == 0
    assert commit(client, 6) == 16
    find(client)
    assert fetch(client) == (0, -1)
    assert commit(client, 7) == 0
    assert fetch(client) == (0, 7)
