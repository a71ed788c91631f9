"""Offsets without members: who may commit, what is read, what a crash leaves, and what happens when a write fails."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.common.steps import run_through
from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.group_records import OffsetCommitKey, OffsetCommitValue, decode_record, encode_record
from tidelog.coordinator.offsets import CommittedOffset
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k09_offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.coordinator.offsets.conftest import Offsets

    MakeRequest = Callable[..., OffsetCommitRequest]


def test_what_is_committed_is_read_and_survives_a_crash(offsets: Offsets, commit_request: MakeRequest) -> None:
    assert offsets.commit(commit_request("g", "t", {0: 5, 2: 7})) == [0, 0]
    assert offsets.commit(commit_request("g", "u", {0: 1})) == [0]
    assert offsets.commit(commit_request("g", "t", {0: 4})) == [0]
    assert offsets.batches == 3
    for _ in range(2):
        assert offsets.fetch("g", "t", 0, 1, 2) == [(4, 0), (-1, 0), (7, 0)]
        assert offsets.fetch_all("g") == {("t", 0): 4, ("t", 2): 7, ("u", 0): 1}
        assert offsets.fetch("other", "t", 0) == [(-1, 0)]
        assert offsets.fetch_all("other") == {}
        offsets.crash()


def test_metadata_and_leader_epoch_come_back(offsets: Offsets) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=1, committed_offset=9, committed_leader_epoch=3, committed_metadata="where I was ü"
    )
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    assert offsets.commit(OffsetCommitRequest(group_id="g", topics=[topic])) == [0]
    offsets.crash()
    group = OffsetFetchRequestGroup(group_id="g", topics=None)
    [found] = run_through(offsets.shard.offset_fetch(group, require_stable=False)).topics[0].partitions
    assert (found.committed_offset, found.committed_leader_epoch, found.metadata) == (9, 3, "where I was ü")


def test_null_metadata_is_kept_as_an_empty_text(offsets: Offsets, commit_request: MakeRequest) -> None:
    assert offsets.commit(commit_request("g", "t", {0: 5}, metadata=None)) == [0]
    group = OffsetFetchRequestGroup(group_id="g", topics=None)
    assert run_through(offsets.shard.offset_fetch(group, require_stable=False)).topics[0].partitions[0].metadata == ""


def test_metadata_that_is_too_long_is_refused_for_its_partition(offsets: Offsets, commit_request: MakeRequest) -> None:
    assert offsets.commit(commit_request("g", "t", {0: 5}, metadata="x" * 4096)) == [0]
    assert offsets.commit(commit_request("g", "t", {0: 6}, metadata="x" * 4097)) == [12]
    assert offsets.fetch("g", "t", 0) == [(5, 0)]


@pytest.mark.parametrize(("topic", "partition", "error"), [("nowhere", 0, 3), ("t", 3, 3), ("t", -1, 3), ("t", 2, 0)])
def test_only_partitions_that_exist_are_committed(
    offsets: Offsets, commit_request: MakeRequest, topic: str, partition: int, error: int
) -> None:
    assert offsets.commit(commit_request("g", topic, {partition: 5})) == [error]
    assert offsets.fetch(("g"), topic, partition) == [(5 if not error else -1, 0)]


def test_version_10_names_topics_by_id(offsets: Offsets) -> None:
    known, unknown = offsets.image.topic_id("t"), uuid.uuid4()
    assert known is not None
    rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=8)]
    request = OffsetCommitRequest(
        group_id="g",
        topics=[OffsetCommitRequestTopic(topic_id=topic_id, partitions=rows) for topic_id in (known, unknown)],
    )
    assert offsets.commit(request, version=10) == [0, 100]
    asked = [OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0]) for topic_id in (known, unknown)]
    answer = run_through(
        offsets.shard.offset_fetch(OffsetFetchRequestGroup(group_id="g", topics=asked), require_stable=False)
    )
    assert [(topic.topic_id, topic.partitions[0].committed_offset) for topic in answer.topics] == [
        (known, 8),
        (unknown, -1),
    ]
    assert [topic.partitions[0].error_code for topic in answer.topics] == [0, 100]
    everything = run_through(
        offsets.shard.offset_fetch(OffsetFetchRequestGroup(group_id="g", topics=None), require_stable=False)
    )
    assert [topic.topic_id for topic in everything.topics] == [known]


@pytest.mark.parametrize(("version", "error"), [(8, 22), (9, 69), (10, 69)])
def test_a_generation_needs_a_group(offsets: Offsets, commit_request: MakeRequest, version: int, error: int) -> None:
    request = commit_request("g", "t", {0: 5}, generation=1, member_id="m")
    request.topics[0].topic_id = offsets.image.topic_id("t") or request.topics[0].topic_id
    assert offsets.commit(request, version) == [error]
    assert not offsets.log


def test_a_member_of_a_group_that_only_has_offsets_is_not_known(offsets: Offsets, commit_request: MakeRequest) -> None:
    assert offsets.commit(commit_request("g", "t", {0: 5})) == [0]
    assert offsets.commit(commit_request("g", "t", {0: 6}, generation=1, member_id="m")) == [25]
    assert offsets.fetch("g", "t", 0) == [(5, 0)]


def test_an_offset_counts_when_it_is_committed_and_in_the_order_of_the_requests(
    offsets: Offsets, commit_request: MakeRequest
) -> None:
    offsets.holds_writes = True
    first = offsets.send_commit(commit_request("g", "t", {0: 5}))
    second = offsets.send_commit(commit_request("g", "t", {0: 4}))
    assert not offsets.answers
    assert offsets.fetch("g", "t", 0) == [(-1, 0)]
    offsets.decide()
    assert offsets.fetch("g", "t", 0) == [(5, 0)]
    assert list(offsets.answers) == [first]
    offsets.decide()
    assert offsets.fetch("g", "t", 0) == [(4, 0)]
    assert list(offsets.answers) == [first, second]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 16),
        (ErrorCode.KAFKA_STORAGE_ERROR, 16),
        (ErrorCode.NOT_ENOUGH_REPLICAS, 15),
        (ErrorCode.REQUEST_TIMED_OUT, 15),
        (ErrorCode.MESSAGE_TOO_LARGE, 28),
    ],
)
def test_a_refused_write_changes_nothing_and_is_told(
    offsets: Offsets, commit_request: MakeRequest, error: ErrorCode, told: int
) -> None:
    assert offsets.commit(commit_request("g", "t", {0: 5})) == [0]
    offsets.holds_writes = True
    exchange = offsets.send_commit(commit_request("g", "t", {0: 6, 9: 1}))
    offsets.decide(error)
    rows = offsets.answer(OffsetCommitResponse, exchange).topics[0].partitions
    assert [row.error_code for row in rows] == [told, 3]
    assert offsets.fetch("g", "t", 0) == [(5, 0)]


def test_offsets_of_an_open_transaction_are_unstable_and_count_when_it_is_committed(offsets: Offsets) -> None:
    for producer_id, offset in ((7, 50), (8, 60)):
        record = CommittedOffset(offset).record("g", "t", producer_id - 7)
        offsets.shard.replay(record, producer_id, producer_id)
    assert offsets.fetch("g", "t", 0, 1, 2) == [(-1, 0)] * 3
    assert offsets.fetch("g", "t", 0, 1, 2, require_stable=True) == [(-1, 88), (-1, 88), (-1, 0)]
    offsets.shard.replay_transaction_end(7, committed=True)
    offsets.shard.replay_transaction_end(8, committed=False)
    assert offsets.fetch("g", "t", 0, 1, require_stable=True) == [(50, 0), (-1, 0)]
    offsets.shard.replay_transaction_end(9, committed=True)
    assert offsets.fetch_all("g") == {("t", 0): 50}


def test_a_group_of_nothing_but_aborted_offsets_is_gone(offsets: Offsets) -> None:
    offsets.shard.replay(CommittedOffset(1).record("g", "t", 0), 0, 7)
    assert [row.group_id for row in offsets.shard.list_groups([], [])] == ["g"]
    offsets.shard.replay_transaction_end(7, committed=False)
    assert offsets.shard.list_groups([], []) == []


@given(
    group_id=st.text(max_size=300),
    topic=st.text(max_size=200),
    partition=st.integers(0, 2**31 - 1),
    offset=st.builds(
        CommittedOffset,
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-1, 2**31 - 1),
        st.text(max_size=300),
        st.integers(0, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        st.uuids(),
    ),
)
def test_records_written_by_hand_are_those_of_the_declarations(
    group_id: str, topic: str, partition: int, offset: CommittedOffset
) -> None:
    record = offset.record(group_id, topic, partition)
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=offset.expire_timestamp_ms,
        topic_id=offset.topic_id,
    )
    expires = offset.expire_timestamp_ms != -1
    assert record == encode_record(key, value, 1 if expires else 4)
    decoded = decode_record(record)
    assert decoded is not None
    assert decoded.key == key
    assert isinstance(decoded.value, OffsetCommitValue)
    kept = offset._replace(leader_epoch=-1, topic_id=uuid.UUID(int=0)) if expires else offset
    assert CommittedOffset.from_value(decoded.value, offset.record_offset) == kept


def test_the_limit_of_metadata_is_a_setting(make_offsets: type[Offsets], commit_request: MakeRequest) -> None:
    offsets = make_offsets(GroupConfig(offset_metadata_max_bytes=1))
    assert offsets.commit(commit_request("g", "t", {0: 5}, metadata="xy")) == [12]
    assert offsets.commit(commit_request("g", "t", {0: 5}, metadata="x")) == [0]
