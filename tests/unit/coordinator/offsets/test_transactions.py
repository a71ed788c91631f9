"""Offsets in transactions: what deletes a group or a topic takes along what open transactions would commit."""

from __future__ import annotations

import pytest

from tidelog.common.steps import run_through
from tidelog.coordinator.offsets import CommittedOffset, GroupOffsets


def offset(number: int, record_offset: int | None = None) -> CommittedOffset:
    committed = CommittedOffset(number)
    return committed if record_offset is None else committed._replace(record_offset=record_offset)


def test_an_offset_that_is_removed_is_not_committed_by_its_transaction() -> None:
    offsets = GroupOffsets()
    offsets.put_pending(1, "topic", 0, offset(5, 10))
    offsets.put_pending(1, "topic", 1, offset(6, 11))
    assert set(offsets.pending_partitions()) == {("topic", 0), ("topic", 1)}
    offsets.remove("topic", 0)
    assert offsets.is_pending("topic", 1)
    assert not offsets.is_pending("topic", 0)
    run_through(offsets.end_transaction(1, committed=True))
    assert [(partition, found.offset) for _, partition, found in offsets] == [(1, 6)]
    offsets.put_pending(1, "topic", 0, offset(5, 12))
    offsets.remove("topic", 0)
    offsets.remove("topic", 1)
    assert not offsets


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_commit_behind_a_pending_one_outranks_it(is_loaded: bool) -> None:
    offsets = GroupOffsets()
    offsets.put("topic", 0, offset(1, 3 if is_loaded else None))
    offsets.put_pending(7, "topic", 0, offset(2, 4))
    run_through(offsets.end_transaction(7, committed=True))
    found = offsets.get("topic", 0)
    assert found is not None
    assert found.offset == 2
    offsets.put_pending(7, "topic", 0, offset(3, 5))
    offsets.put("topic", 0, offset(4, 6 if is_loaded else None))
    run_through(offsets.end_transaction(7, committed=True))
    found = offsets.get("topic", 0)
    assert found is not None
    assert found.offset == 4
