"""What the driver asks the cluster, and how long it keeps asking, with an admin client that the test makes up."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from tidelog.client.admin.results import Results
from tidelog.client.admin.types import ListedOffset
from tidelog.client.errors import BrokerError, ClientError, ConnectError, NoSuchPartitionError
from tidelog.client.types import PartitionMetadata, TopicMetadata, TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.spark import topic_view
from tidelog.spark.errors import SourceError
from tidelog.spark.offsets import EARLIEST, Bound
from tidelog.spark.options import OptionError, Use, read_options
from tidelog.spark.topic_view import TopicView

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Cluster:
    """An admin client whose cluster has topics a and b of two partitions, which hold offsets 5 to 50."""

    def __init__(self) -> None:
        self.topics = {"a": 2, "b": 2}
        self.failures: list[ClientError] = []  # of the next calls
        self.gone: set[TopicPartition] = set()
        self.calls = 0

    def _begin(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)

    def _topic(self, name: str) -> TopicMetadata:
        rows = tuple(PartitionMetadata(number, 1, 0, (1,), (1,)) for number in range(self.topics[name]))
        return TopicMetadata(name, uuid.UUID(int=1), False, rows)

    def list_topics(self) -> list[TopicMetadata]:
        self._begin()
        return [self._topic(name) for name in self.topics]

    def describe_topics(self, names: list[str]) -> Results[str, TopicMetadata]:
        self._begin()
        values = {name: self._topic(name) for name in names if name in self.topics}
        errors: dict[str, ClientError] = {name: NoSuchPartitionError("no") for name in names if name not in values}
        return Results(names, values, errors)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: str
    ) -> Results[TopicPartition, ListedOffset]:
        self._begin()
        assert isolation_level == "read_committed"
        offsets = {-2: 5, -1: 50}
        values = {
            key: ListedOffset(offsets.get(when, when if when < 50 else -1), -1, -1)
            for key, when in wanted.items()
            if key not in self.gone
        }
        errors: dict[TopicPartition, ClientError] = {key: NoSuchPartitionError("no") for key in self.gone}
        return Results(wanted, values, errors)

    def list_consumer_group_offsets(self, groups: Mapping[str, list[TopicPartition]]) -> dict[str, Any]:
        self._begin()
        return {"g": {A0: ListedOffset(17, -1, -1)}}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    now_s = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(topic_view, "Admin", lambda settings: cluster)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(time, "sleep", sleep)
    return cluster


def view(**options: str) -> TopicView:
    return TopicView(read_options({"kafka.bootstrap.servers": "127.0.0.1:9092", **options}, Use.STREAM_READ))


@pytest.mark.parametrize(
    ("options", "partitions"),
    [
        ({"subscribe": " a , b,"}, {("a", 0), ("a", 1), ("b", 0), ("b", 1)}),
        ({"subscribePattern": "[a-z]"}, {("a", 0), ("a", 1), ("b", 0), ("b", 1)}),
        ({"subscribePattern": "b|ba"}, {("b", 0), ("b", 1)}),
        ({"subscribePattern": "(?!a)."}, {("b", 0), ("b", 1)}),
        ({"assign": '{"a":[1]}'}, {("a", 1)}),
    ],
)
def test_which_partitions_are_read(options: dict[str, str], partitions: set[object], cluster: Cluster) -> None:
    seen = view(**options)
    seen.refresh()
    seen.require_all()
    assert seen.partitions() == partitions


@pytest.mark.parametrize(
    "options",
    [{}, {"subscribe": "a", "assign": '{"a":[0]}'}, {"subscribe": " ,"}, {"subscribePattern": "("}],
)
def test_what_is_read_must_be_said_once_and_rightly(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="subscribe"):
        view(**options)


def test_what_is_missing_is_named(cluster: Cluster) -> None:
    for options, said in (({"subscribe": "a,c"}, "no topic c"), ({"assign": '{"a":[1,7]}'}, "no partition a-7")):
        seen = view(**options)
        seen.refresh()
        with pytest.raises(SourceError, match=said):
            seen.require_all()


def test_topics_are_asked_for_no_more_often_than_allowed(cluster: Cluster) -> None:
    seen = view(subscribe="a")
    seen.refresh(age_max_s=1.0)
    seen.refresh(age_max_s=1.0)
    assert cluster.calls == 1
    time.sleep(1.5)  # of the fixture: no time passes
    seen.refresh(age_max_s=1.0)
    assert cluster.calls == 2
    seen.refresh()
    assert cluster.calls == 3


def test_a_cluster_that_was_never_reached_is_told_at_once(cluster: Cluster) -> None:
    cluster.failures = [ConnectError("nobody is there")]
    with pytest.raises(ConnectError):
        view(subscribe="a").refresh()
    assert cluster.calls == 1


def test_a_cluster_that_was_there_is_waited_for(cluster: Cluster) -> None:
    seen = view(subscribe="a")
    seen.refresh()
    cluster.failures = [ConnectError("nobody is there")] * 30
    assert seen.latest([A0]) == {A0: 50}
    cluster.failures = [ConnectError("nobody is there")] * 1000
    with pytest.raises(ConnectError):
        seen.latest([A0])
    assert len(cluster.failures) > 800  # a minute, and pauses that grow


def test_other_errors_are_tried_again_a_few_times(cluster: Cluster) -> None:
    refused = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    seen = view(subscribe="a", **{"fetchOffset.numRetries": "2"})
    cluster.failures = [refused, refused]
    seen.refresh()
    assert cluster.calls == 3
    cluster.failures = [refused] * 3
    with pytest.raises(BrokerError):
        seen.refresh()


def test_partitions_that_are_gone_are_left_out_and_topics_asked_for_again(cluster: Cluster) -> None:
    seen = view(subscribe="a")
    seen.refresh()
    cluster.gone = {A1}
    assert seen.latest([A0, A1]) == {A0: 50}
    calls = cluster.calls
    seen.refresh(age_max_s=1000.0)
    assert cluster.calls == calls + 1


def test_bounds_become_offsets(cluster: Cluster) -> None:
    seen = view(subscribe="a")
    seen.refresh()
    assert seen.resolve(Bound("startingOffsets", everywhere=EARLIEST)) == {A0: 5, A1: 5}
    assert seen.resolve(Bound("startingOffsets", offsets={A0: -1, A1: 9})) == {A0: 50, A1: 9}
    assert seen.resolve(Bound("startingOffsets", offsets={A0: -1, A1: 9}), latest={A0: 40}) == {A0: 40, A1: 9}
    assert seen.resolve(Bound("startingOffsets", group_id="g")) == {A0: 17, A1: 5}
    assert seen.resolve(Bound("startingTimestamp", timestamp=30)) == {A0: 30, A1: 30}
    late = Bound("startingOffsetsByTimestamp", timestamps={A0: 30, A1: 99})
    with pytest.raises(SourceError, match="a-1 has no record at or after 99"):
        seen.resolve(late)
    tolerant = Bound("startingTimestamp", timestamps={A0: 30, A1: 99}, is_latest_if_none=True)
    assert seen.resolve(tolerant) == {A0: 30, A1: 50}
