"""Which offsets the next micro-batch covers, with a cluster that the test makes up."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tidelog.client.types import TopicPartition
from tidelog.spark.errors import DataLossError, SourceError
from tidelog.spark.offsets import EARLIEST, LATEST, Bound, Offsets
from tidelog.spark.options import Use, read_options
from tidelog.spark.planning import OffsetRange
from tidelog.spark.stream_driver import StreamDriver

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))


class View:
    """The cluster: where each partition begins and ends."""

    def __init__(self) -> None:
        self.first: Offsets = {A0: 0, A1: 0}
        self.last: Offsets = {A0: 100, A1: 200}
        self.ids = {"a": uuid.UUID(int=1)}
        self.published: list[dict[TopicPartition, int]] = []
        self.admin = self

    def alter_consumer_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> Any:
        self.published.append(dict(offsets))
        return type("Done", (), {"errors": {}, "succeeded": dict.fromkeys(offsets)})()

    def refresh(self, *, age_max_s: float = 0.0) -> None:
        pass

    def require_all(self) -> None:
        pass

    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self.last)

    def topic_ids(self) -> dict[str, uuid.UUID]:
        return dict(self.ids)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return {key: self.first[key] for key in partitions if key in self.last}

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return {key: self.last[key] for key in partitions}

    def offset_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        return dict.fromkeys(partitions, 10.0)

    def resolve(self, bound: Bound, *, latest: Mapping[TopicPartition, int] | None = None) -> Offsets:
        return dict(self.first if bound.everywhere == EARLIEST else latest or self.last)


@pytest.fixture
def view() -> View:
    return View()


def driver(view: View, **options: str) -> StreamDriver:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "a", **options}
    return StreamDriver(read_options(given, Use.STREAM_READ), view)  # type: ignore[arg-type]  # as far as it is used


START = {A0: 0, A1: 0}


def test_without_limits_all_is_read(view: View) -> None:
    assert driver(view).next_end(START, has_limit=False) == {A0: 100, A1: 200}


def test_a_limit_is_shared_out(view: View) -> None:
    assert driver(view, maxOffsetsPerTrigger="30").next_end(START, has_limit=True) == {A0: 10, A1: 20}


def test_spark_may_ask_for_all_that_there_is(view: View) -> None:
    """As for Trigger.Once: then no limit counts."""
    assert driver(view, maxOffsetsPerTrigger="30").next_end(START, has_limit=False) == {A0: 100, A1: 200}


def test_a_limit_of_bytes(view: View) -> None:
    assert driver(view, maxBytesPerTrigger="300").next_end(START, has_limit=True) == {A0: 10, A1: 20}


def test_the_lower_of_two_limits_counts(view: View) -> None:
    both = driver(view, maxOffsetsPerTrigger="60", maxBytesPerTrigger="300")
    assert both.next_end(START, has_limit=True) == {A0: 10, A1: 20}


def test_a_limit_from_a_file_is_read_anew(view: View, tmp_path: Path) -> None:
    file = tmp_path / "limit"
    limited = driver(view, maxOffsetsPerTriggerFile=str(file))
    assert limited.next_end(START, has_limit=True) == {A0: 100, A1: 200}
    file.write_text(" 30\n")
    assert limited.next_end(START, has_limit=True) == {A0: 10, A1: 20}
    file.write_text("0")
    assert limited.next_end(START, has_limit=True) == START
    file.write_text("")
    assert limited.next_end(START, has_limit=True) == {A0: 100, A1: 200}
    file.write_text("fast")
    with pytest.raises(SourceError, match="not an integer"):
        limited.next_end(START, has_limit=True)


def test_none_for_now_does_not_end_a_query_that_ends_by_itself(view: View, tmp_path: Path) -> None:
    file = tmp_path / "limit"
    file.write_text("0")
    limited = driver(view, maxOffsetsPerTriggerFile=str(file))
    limited.fix_end()
    assert limited.next_end(START, has_limit=True) != START


def test_few_records_wait_for_more_but_not_for_ever(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("tidelog.spark.stream_driver.time.monotonic", lambda: now_s)
    waiting = driver(view, minOffsetsPerTrigger="1000", maxTriggerDelay="5s")
    end = waiting.next_end(START, has_limit=True)  # the first batch does not wait
    assert end == {A0: 100, A1: 200}
    view.last = {A0: 150, A1: 200}
    assert waiting.next_end(end, has_limit=True) == end
    now_s += 4.9
    assert waiting.next_end(end, has_limit=True) == end
    now_s += 0.1
    assert waiting.next_end(end, has_limit=True) == view.last
    view.last = {A0: 1150, A1: 200}
    assert waiting.next_end({A0: 150, A1: 200}, has_limit=True) == view.last


def test_minimum_and_maximum_together(view: View) -> None:
    both = driver(view, minOffsetsPerTrigger="300", maxOffsetsPerTrigger="300")
    assert both.next_end(START, has_limit=True) == {A0: 100, A1: 200}
    assert both.next_end({A0: 50, A1: 100}, has_limit=True) == {A0: 50, A1: 100}


def test_a_fixed_end_stays(view: View) -> None:
    fixed = driver(view, maxOffsetsPerTrigger="150", minOffsetsPerTrigger="100")
    fixed.fix_end()
    view.last = {A0: 1000, A1: 2000}
    assert fixed.initial(Bound("startingOffsets", everywhere=LATEST)) == {A0: 100, A1: 200}
    ends: list[dict[TopicPartition, int]] = []
    end = dict(START)
    while not ends or ends[-1] != end:
        ends.append(end)
        end = fixed.next_end(end, has_limit=True)
    assert end == {A0: 100, A1: 200}
    assert len(ends) == 3


def test_ranges_lie_between(view: View) -> None:
    ranges = driver(view).ranges({A0: 5, A1: 200}, {A0: 10, A1: 200})
    assert ranges == [OffsetRange(A0, 5, 10)]


def test_added_partitions_begin_at_the_earliest(view: View) -> None:
    view.first[A2], view.last[A2] = 0, 50
    added = driver(view, maxOffsetsPerTrigger="35")
    end = added.next_end({A0: 100, A1: 180}, has_limit=True)
    assert end == {A0: 100, A1: 190, A2: 25}
    assert added.ranges({A0: 100, A1: 180}, end) == [OffsetRange(A1, 180, 190), OffsetRange(A2, 0, 25)]


def test_an_added_partition_that_lost_records_already(view: View) -> None:
    view.first[A2], view.last[A2] = 7, 50
    end = {A0: 100, A1: 200, A2: 50}
    with pytest.raises(DataLossError, match="the new partition a-2 starts at offset 7"):
        driver(view).ranges({A0: 100, A1: 200}, end)
    ranges = driver(view, failOnDataLoss="false").ranges({A0: 100, A1: 200}, end)
    assert ranges == [OffsetRange(A2, 7, 50)]


def test_a_deleted_partition_fails_before_spark_notes_the_batch(view: View) -> None:
    del view.last[A1]
    with pytest.raises(DataLossError, match=r"partition a-1 no longer exists.*failOnDataLoss to false"):
        driver(view).next_end(START, has_limit=False)
    tolerant = driver(view, failOnDataLoss="false")
    assert tolerant.next_end(START, has_limit=False) == {A0: 100}
    assert tolerant.ranges(START, {A0: 100}) == [OffsetRange(A0, 0, 100)]


def test_a_partition_that_has_become_shorter(view: View) -> None:
    start = {A0: 500, A1: 200}
    with pytest.raises(DataLossError, match="a-0 ends at offset 100 now, but 500 had already been reached"):
        driver(view).next_end(start, has_limit=False)
    tolerant = driver(view, failOnDataLoss="false")
    end = tolerant.next_end(start, has_limit=False)
    assert tolerant.ranges(start, end) == [OffsetRange(A0, 0, 100)]


def test_a_topic_that_was_made_anew(view: View) -> None:
    """Known by its id, even where it is longer than the one before."""
    start, end = {A0: 50, A1: 200}, {A0: 100, A1: 200}
    for tolerant in ("true", "false"):
        view.ids["a"] = uuid.UUID(int=1)
        running = driver(view, failOnDataLoss=tolerant)
        assert running.ranges(start, end) == [OffsetRange(A0, 50, 100)]
        view.ids["a"] = uuid.UUID(int=2)
        view.last = {A0: 110, A1: 150}
        if tolerant == "true":
            with pytest.raises(DataLossError, match="topic a was deleted and recreated"):
                running.next_end(end, has_limit=False)
            with pytest.raises(DataLossError, match="topic a was deleted and recreated"):
                running.ranges(end, {A0: 110, A1: 200})
        else:
            anew = running.ranges(end, {A0: 110, A1: 200})
            assert anew == [OffsetRange(A0, 0, 110), OffsetRange(A1, 0, 150)]  # no further than it goes
            assert running.ranges({A0: 110, A1: 200}, {A0: 120, A1: 200}) == [OffsetRange(A0, 110, 120)]


def test_only_what_is_committed_is_published(view: View) -> None:
    running = driver(view, **{"group.id": "lag"})
    start = running.initial(Bound("startingOffsets", everywhere=EARLIEST))
    end = running.next_end(start, has_limit=False)
    assert not view.published
    view.last = {A0: 101, A1: 200}
    later = running.next_end(end, has_limit=False)
    assert view.published == [{A0: 100, A1: 200}]
    running.publish(end)
    assert len(view.published) == 1
    running.next_end(later, has_limit=False)
    assert view.published[1:] == [{A0: 101}]
