"""What is published for a group: what is new, and what failed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tidelog.client.admin.results import Results
from tidelog.client.errors import ConnectError
from tidelog.client.types import TopicPartition
from tidelog.spark.group_progress import GroupProgress

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Coordinator:
    """Remembers what it was told; refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.told: list[dict[TopicPartition, int]] = []
        self.refuses: set[TopicPartition] = set()
        self.is_down = False

    def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> Results[TopicPartition, None]:
        assert group_id == "lag"
        if self.is_down:
            raise ConnectError("nobody is there")
        self.told.append(dict(offsets))
        values = dict.fromkeys(offsets.keys() - self.refuses)
        return Results(offsets, values, {key: ConnectError("refused") for key in self.refuses})


@pytest.fixture
def coordinator() -> Any:
    return Coordinator()


def test_only_news_are_published(coordinator: Any) -> None:
    progress = GroupProgress("lag")
    progress.publish(coordinator, {A0: 5, A1: 6})
    progress.publish(coordinator, {A0: 5, A1: 6})
    progress.publish(coordinator, {A0: 5, A1: 9})
    assert coordinator.told == [{A0: 5, A1: 6}, {A1: 9}]


def test_what_was_refused_is_published_again(coordinator: Any, caplog: pytest.LogCaptureFixture) -> None:
    progress = GroupProgress("lag")
    coordinator.refuses = {A0}
    progress.publish(coordinator, {A0: 5, A1: 6})
    assert "could not publish the offset of a-0 for group lag" in caplog.text
    coordinator.refuses = set()
    progress.publish(coordinator, {A0: 5, A1: 6})
    assert coordinator.told[-1] == {A0: 5}


def test_a_coordinator_that_is_down_does_not_stop_the_query(coordinator: Any, caplog: pytest.LogCaptureFixture) -> None:
    progress = GroupProgress("lag")
    coordinator.is_down = True
    progress.publish(coordinator, {A0: 5})
    assert "could not publish" in caplog.text
    coordinator.is_down = False
    progress.publish(coordinator, {A0: 5})
    assert coordinator.told == [{A0: 5}]
