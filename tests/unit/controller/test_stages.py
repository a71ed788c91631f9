"""A change of many topics becomes known in parts: what every part holds, and that together they are the whole."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidelog.controller.image import EMPTY_IMAGE, ClusterImage, PartitionState, TopicImage, stages
from tidelog.protocol.config_values import ConfigResource, ResourceType

BROKER = ConfigResource(ResourceType.BROKER, "")


def image_of(topics: Mapping[str, int], configs: Mapping[str, str], revision: int) -> ClusterImage:
    """Topics by name with their numbers of partitions, and what they set themselves."""
    state = PartitionState((1,), (1,), 1)
    made = [TopicImage(name, uuid.uuid5(uuid.NAMESPACE_DNS, name), (state,) * count) for name, count in topics.items()]
    overrides: dict[ConfigResource, Mapping[str, str]] = {
        ConfigResource(ResourceType.TOPIC, name): {"retention.ms": value}
        for name, value in configs.items()
        if name in topics
    }
    return replace(EMPTY_IMAGE.with_topics(made).with_configs(overrides), revision=revision)


TOPICS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 3))
CONFIGS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["1", "2"]))


@given(TOPICS, CONFIGS, TOPICS, CONFIGS, st.integers(1, 4))
def test_every_part_changes_few_topics_and_all_of_them_change_all(
    topics_before: dict[str, int],
    configs_before: dict[str, str],
    topics_after: dict[str, int],
    configs_after: dict[str, str],
    topics_max: int,
) -> None:
    old = image_of(topics_before, configs_before, 7)
    new = image_of(topics_after, configs_after, 8).with_configs({BROKER: {"log.retention.ms": "5"}})
    parts = list(stages(old, new, topics_max))
    assert parts[-1] is new
    for before, after in itertools.pairwise([old, *parts[:-1]]):
        assert after.revision == old.revision
        names = before.topics.keys() | after.topics.keys()
        differing = {
            name
            for name in names
            if before.topics.get(name) is not after.topics.get(name)
            or before.topic_configs(name) != after.topic_configs(name)
        }
        assert 0 < len(differing) <= topics_max
        # A topic is never seen without what it sets itself.
        for name in differing:
            assert after.topics.get(name) == new.topics.get(name)
            assert after.topic_configs(name) == new.topic_configs(name)
    last = parts[-2] if len(parts) > 1 else old
    assert last.topics == new.topics
    assert last.topics_by_id == new.topics_by_id
    assert last.partitions_count == new.partitions_count
    assert last.names_by_collision_key == new.names_by_collision_key
    assert last.configs == {resource: values for resource, values in new.configs.items() if resource != BROKER}


def test_nothing_that_differs_needs_no_parts() -> None:
    old = image_of({"a": 1}, {}, 7)
    assert list(stages(old, replace(old, revision=8), 1)) == [replace(old, revision=8)]
