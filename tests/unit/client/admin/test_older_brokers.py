"""Brokers that know less: calls use the older form, or say what the broker can't do."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from tidelog.client.admin import ConfigResource, ConfigSource, OffsetSpec, ResourceType
from tidelog.client.admin.cluster import describe_cluster
from tidelog.client.admin.configs import describe_configs, incremental_alter_configs, list_config_resources
from tidelog.client.admin.group_offsets import alter_consumer_group_offsets, list_consumer_group_offsets
from tidelog.client.admin.groups import list_groups, remove_members_from_consumer_group
from tidelog.client.admin.offsets import list_offsets
from tidelog.client.admin.topics import delete_topics, describe_topics
from tidelog.client.admin.transactions import list_transactions
from tidelog.client.errors import InvalidResponseError, UnsupportedVersionError
from tidelog.client.network.cluster import Cluster
from tidelog.client.types import OffsetAndMetadata, TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages import k08_offset_commit, k09_offset_fetch, k32_describe_configs
from tidelog.protocol.messages.k02_list_offsets import LIST_OFFSETS
from tidelog.protocol.messages.k03_metadata import METADATA
from tidelog.protocol.messages.k13_leave_group import LEAVE_GROUP
from tidelog.protocol.messages.k16_list_groups import LIST_GROUPS
from tidelog.protocol.messages.k20_delete_topics import (
    DELETE_TOPICS,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tidelog.protocol.messages.k44_incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.k60_describe_cluster import DESCRIBE_CLUSTER
from tidelog.protocol.messages.k66_list_transactions import LIST_TRANSACTIONS
from tidelog.protocol.messages.k74_list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesResponse,
)
from tidelog.protocol.messages.k74_list_config_resources import ConfigResource as ListedResource

if TYPE_CHECKING:
    from tests.unit.client.admin.conftest import FakeBrokers

KEY = TopicPartition("t", 0)
TOPIC = ConfigResource.topic("t")


def test_topics_are_deleted_by_plain_names(cluster: Cluster, brokers: FakeBrokers) -> None:
    def answer(_: int, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        assert not request.topics
        return DeleteTopicsResponse(responses=[DeletableTopicResult(name=name) for name in request.topic_names])

    brokers.versions = {DELETE_TOPICS: 5}
    brokers.answers = {DELETE_TOPICS: answer}
    assert asyncio.run(delete_topics(cluster, ["a"]))["a"].name == "a"
    with pytest.raises(UnsupportedVersionError, match="can't delete topics by id"):
        asyncio.run(delete_topics(cluster, [uuid.uuid4()]))


def test_topics_can_not_be_asked_for_by_id(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.versions = {METADATA: 9}
    with pytest.raises(UnsupportedVersionError, match="can't describe topics by id"):
        asyncio.run(describe_topics(cluster, [uuid.uuid4()]))


def test_filters_that_are_not_known_are_not_left_out_silently(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.versions = {LIST_GROUPS: 4, LIST_TRANSACTIONS: 0}
    with pytest.raises(UnsupportedVersionError, match="can't list groups by their types"):
        asyncio.run(list_groups(cluster, states=["Stable"], types=["classic"], protocol_types=()))
    brokers.versions[LIST_GROUPS] = 3
    with pytest.raises(UnsupportedVersionError, match="can't list groups by their states"):
        asyncio.run(list_groups(cluster, states=["Stable"], types=(), protocol_types=()))
    with pytest.raises(UnsupportedVersionError, match="can't filter transactions by age"):
        asyncio.run(list_transactions(cluster, older_than_ms=1))
    with pytest.raises(UnsupportedVersionError, match="can't filter transactional ids by a pattern"):
        asyncio.run(list_transactions(cluster, transactional_id_pattern=".*"))


def test_special_offsets_that_are_not_known(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.leaders = {KEY: 1}
    brokers.versions = {LIST_OFFSETS: 6}
    with pytest.raises(UnsupportedVersionError, match="does not support the requested OffsetSpec"):
        asyncio.run(list_offsets(cluster, {KEY: OffsetSpec.MAX_TIMESTAMP}, isolation_level="read_committed"))[KEY]


def test_members_can_not_be_removed_from_outside(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.versions = {LEAVE_GROUP: 2}
    with pytest.raises(UnsupportedVersionError, match="can't remove members of a group on request"):
        asyncio.run(remove_members_from_consumer_group(cluster, "g", ["one"], None))


def test_the_cluster_is_described_by_its_metadata(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.unsupported = {DESCRIBE_CLUSTER}
    described = asyncio.run(describe_cluster(cluster))
    assert [node.node_id for node in described.nodes] == [1, 2]
    assert described.controller_id == 2


@pytest.mark.parametrize("version", [1, 7, 8, 9])
def test_committed_offsets_in_the_form_that_the_broker_knows(
    cluster: Cluster, brokers: FakeBrokers, version: int
) -> None:
    def answer(_: int, request: k09_offset_fetch.OffsetFetchRequest) -> object:
        if version < 8:
            assert request.group_id == "g"
            assert request.topics is not None
            assert request.topics[0].partition_indexes == [0, 1]
            old = [
                k09_offset_fetch.OffsetFetchResponsePartition(partition_index=0, committed_offset=5),
                k09_offset_fetch.OffsetFetchResponsePartition(partition_index=1, committed_offset=-1),
            ]
            topic = k09_offset_fetch.OffsetFetchResponseTopic(name="t", partitions=old)
            return k09_offset_fetch.OffsetFetchResponse(topics=[topic])
        (group,) = request.groups
        assert group.topics is not None
        assert group.topics[0].partition_indexes == [0, 1]
        rows = [
            k09_offset_fetch.OffsetFetchResponsePartitions(partition_index=0, committed_offset=5, metadata=None),
            k09_offset_fetch.OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1),
        ]
        topics = [k09_offset_fetch.OffsetFetchResponseTopics(name="t", partitions=rows)]
        return k09_offset_fetch.OffsetFetchResponse(
            groups=[k09_offset_fetch.OffsetFetchResponseGroup(group_id="g", topics=topics)]
        )

    brokers.versions = {k09_offset_fetch.OFFSET_FETCH: version}
    brokers.answers = {k09_offset_fetch.OFFSET_FETCH: answer}
    wanted = {"g": [KEY, TopicPartition("t", 1)]}
    listed = asyncio.run(list_consumer_group_offsets(cluster, wanted, require_stable=False))
    assert listed["g"] == {KEY: OffsetAndMetadata(5)}
    if version < 7:
        with pytest.raises(UnsupportedVersionError, match="can't return stable offsets"):
            asyncio.run(list_consumer_group_offsets(cluster, wanted, require_stable=True))


def test_a_coordinator_that_is_still_loading_is_waited_for(cluster: Cluster, brokers: FakeBrokers) -> None:
    codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.NONE]

    def answer(_: int, request: k08_offset_commit.OffsetCommitRequest) -> object:
        row = k08_offset_commit.OffsetCommitResponsePartition(partition_index=0, error_code=codes.pop(0))
        topic = k08_offset_commit.OffsetCommitResponseTopic(name="t", partitions=[row])
        return k08_offset_commit.OffsetCommitResponse(topics=[topic])

    brokers.answers = {k08_offset_commit.OFFSET_COMMIT: answer}
    assert asyncio.run(alter_consumer_group_offsets(cluster, "g", {KEY: 5})) == {KEY: None}
    assert codes == []


# Newer brokers, and odd ones


def test_a_source_of_settings_that_is_not_known(cluster: Cluster, brokers: FakeBrokers) -> None:
    row = k32_describe_configs.DescribeConfigsResourceResult(name="x", value="1", config_source=99)
    result = k32_describe_configs.DescribeConfigsResult(resource_type=2, resource_name="t", configs=[row])
    brokers.answers = {
        k32_describe_configs.DESCRIBE_CONFIGS: lambda *_: k32_describe_configs.DescribeConfigsResponse(results=[result])
    }
    described = asyncio.run(
        describe_configs(cluster, [TOPIC], None, include_documentation=False, include_synonyms=False)
    )
    assert described[TOPIC]["x"].source is ConfigSource.UNKNOWN


def test_a_type_of_resource_that_is_not_known(cluster: Cluster, brokers: FakeBrokers) -> None:
    rows = [ListedResource(resource_name="x", resource_type=99)]
    brokers.answers = {LIST_CONFIG_RESOURCES: lambda *_: ListConfigResourcesResponse(config_resources=rows)}
    with pytest.raises(InvalidResponseError, match="an unknown resource type, 99"):
        asyncio.run(list_config_resources(cluster, []))
    brokers.versions = {LIST_CONFIG_RESOURCES: 0}
    with pytest.raises(UnsupportedVersionError, match="client metrics only"):
        asyncio.run(list_config_resources(cluster, [ResourceType.TOPIC]))


def test_changes_wait_for_a_controller(cluster: Cluster, brokers: FakeBrokers) -> None:
    codes = [ErrorCode.NOT_CONTROLLER, ErrorCode.NONE]

    def answer(*_: object) -> IncrementalAlterConfigsResponse:
        row = AlterConfigsResourceResponse(resource_type=2, resource_name="t", error_code=codes.pop(0))
        return IncrementalAlterConfigsResponse(responses=[row])

    brokers.answers = {INCREMENTAL_ALTER_CONFIGS: answer}
    changed = asyncio.run(incremental_alter_configs(cluster, {TOPIC: {"a": True, "b": 1.5}}, validate_only=False))
    assert changed == {TOPIC: None}
    _, request = brokers.requests(INCREMENTAL_ALTER_CONFIGS)[0]
    assert [(row.name, row.value) for row in request.resources[0].configs] == [("a", "true"), ("b", "1.5")]
