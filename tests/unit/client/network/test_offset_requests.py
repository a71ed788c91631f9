"""OffsetFetch requests: every version that a broker may have can carry what was asked."""

from __future__ import annotations

import uuid

import pytest

from tidelog.client.network.offset_requests import NAMES_UP_TO, SEVERAL_GROUPS_FROM, STABLE_FROM, build_offset_fetch
from tidelog.client.types import TopicPartition
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.messages.k09_offset_fetch import OFFSET_FETCH, OffsetFetchRequest

TOPIC_ID = uuid.UUID(int=7)
ORDERS = [TopicPartition("orders", 0), TopicPartition("clicks", 3), TopicPartition("orders", 2)]
VERSIONS = range(OFFSET_FETCH.versions.first, OFFSET_FETCH.versions.last + 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_survives_the_wire_in_every_version(version: int) -> None:
    request = build_offset_fetch(
        version, "billing", ORDERS, require_stable=True, topic_ids={"orders": TOPIC_ID}, member=("member-1", 4)
    )
    read = decode(OffsetFetchRequest, encode(request, version), version)
    if version < SEVERAL_GROUPS_FROM:
        assert read.group_id == "billing"
        assert {topic.name: topic.partition_indexes for topic in read.topics or ()} == {"orders": [0, 2], "clicks": [3]}
    else:
        (group,) = read.groups
        assert group.group_id == "billing"
        assert [topic.partition_indexes for topic in group.topics or ()] == [[0, 2], [3]]
        if version > NAMES_UP_TO:
            assert [topic.topic_id for topic in group.topics or ()] == [TOPIC_ID, uuid.UUID(int=0)]
        if version >= NAMES_UP_TO:
            assert (group.member_id, group.member_epoch) == ("member-1", 4)
    assert read.require_stable is (version >= STABLE_FROM)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 2])
def test_no_partitions_given_asks_for_all(version: int) -> None:
    request = build_offset_fetch(version, "billing", None, require_stable=False)
    read = decode(OffsetFetchRequest, encode(request, version), version)
    topics = read.topics if version < SEVERAL_GROUPS_FROM else read.groups[0].topics
    assert topics is None
    assert read.require_stable is False
