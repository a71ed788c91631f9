"""A shard that is loaded from a log has what a record by record replay gives: repeats, tombstones, transactions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import cast

import pytest

from tidelog.broker.group_loading import load_shard
from tidelog.broker.partition import Partition
from tidelog.common.clock import VirtualClock
from tidelog.coordinator.actions import GroupRecord
from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.offsets import CommittedOffset, offset_tombstone
from tidelog.coordinator.shard import GroupShard
from tidelog.log import LogManager, PartitionLog
from tidelog.log.config import LogConfig
from tidelog.records import TRANSACTIONAL_BIT, BatchDraft, Compression, ControlRecordType, draft_marker

NOW_MS = 1_700_000_000_000


class NoTopics:
    """A cluster without topics: what is loaded does not depend on them."""

    def topic_id(self, name: str) -> uuid.UUID | None:
        return None

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return None

    def partition_count(self, name: str) -> int:
        return 0

    def partition_racks(self, name: str) -> tuple[frozenset[str], ...]:
        return ()

    def topic_names(self) -> Collection[str]:
        return ()


class LoadedLog:
    """The log of a partition of __consumer_offsets."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log

    def write(self, *records: GroupRecord, producer_id: int = -1) -> None:
        rows = [(key, value, (), NOW_MS) for key, value in records]
        in_transaction = (producer_id, 0, TRANSACTIONAL_BIT) if producer_id >= 0 else ()
        self.log.append_as_leader(BatchDraft(rows, Compression.NONE, *in_transaction), leader_epoch=0)

    def end_transaction(self, producer_id: int, kind: ControlRecordType) -> None:
        marker = draft_marker(kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS)
        self.log.append_as_leader(marker, leader_epoch=0)

    def load(self, buffer_bytes: int) -> tuple[int, dict[str, dict[tuple[str, int], int]]]:
        """The number of records, and all offsets by group."""
        shard = GroupShard(0, GroupConfig(), NoTopics())

        class Here:
            log = self.log

        count = asyncio.run(load_shard(shard, cast(Partition, Here()), buffer_bytes))
        return count, {
            group_id: {(topic, partition): offset.offset for topic, partition, offset in offsets}
            for group_id, offsets in shard.state.offsets.items()
        }


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LoadedLog]:
    clock = VirtualClock(start_ms=NOW_MS)
    logs = LogManager([tmp_path], {}, clock)
    logs.open("cluster", 1)
    config = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=20_000)
    yield LoadedLog(logs.create("__consumer_offsets", 0, uuid.uuid4(), config))
    logs.close(clean=True, broker_epoch=1)


def commit(group_id: str, offset: int, partition: int = 0) -> GroupRecord:
    return CommittedOffset(offset).record(group_id, "t", partition)


@pytest.mark.parametrize("buffer_bytes", [1, 5_000, 1 << 20])
def test_the_last_of_many_commits_counts(log: LoadedLog, buffer_bytes: int) -> None:
    for offset in range(500):
        log.write(commit("a", offset), commit("b", offset, offset % 3))
    log.write(commit("gone", 1))
    log.write(offset_tombstone("gone", "t", 0))
    log.write(offset_tombstone("back", "t", 0))
    log.write(commit("back", 7))
    count, offsets = log.load(buffer_bytes)
    assert len(log.log.segments) > 1
    assert count == 1_004
    assert offsets == {
        "a": {("t", 0): 499},
        "b": {("t", 0): 498, ("t", 1): 499, ("t", 2): 497},
        "back": {("t", 0): 7},
    }


def test_an_empty_log(log: LoadedLog) -> None:
    assert log.load(1 << 20) == (0, {})


def test_transactions_count_when_they_are_committed_and_keep_their_order(log: LoadedLog) -> None:
    log.write(commit("g", 1), commit("g", 1, 1), commit("g", 1, 2))
    log.write(commit("g", 2), producer_id=5)
    log.write(commit("g", 2, 1), producer_id=6)
    log.write(commit("g", 2, 2), producer_id=7)
    log.write(commit("g", 3))
    log.end_transaction(5, ControlRecordType.COMMIT)
    log.end_transaction(6, ControlRecordType.ABORT)
    _, offsets = log.load(1 << 20)
    assert offsets == {"g": {("t", 0): 3, ("t", 1): 1, ("t", 2): 1}}
    log.end_transaction(7, ControlRecordType.COMMIT)
    assert log.load(1 << 20)[1] == {"g": {("t", 0): 3, ("t", 1): 1, ("t", 2): 2}}
