"""Images from records and back, and what stays the same object."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.steps import run_through
from tidelog.controller import layout
from tidelog.controller.image import EMPTY_IMAGE, BrokerInfo, ClusterImage, PartitionState, TopicImage
from tidelog.controller.image_builder import ImageBuilder, records_of
from tidelog.metadata.store import MetadataStoreError
from tidelog.protocol.config_values import ConfigResource, ResourceType

STATE = PartitionState((1, 2), (1, 2), 1)
ENDPOINTS = (Endpoint(PLAINTEXT, "host", 9092),)


def topic(name: str, number: int, partitions: int) -> TopicImage:
    return TopicImage(name, uuid.UUID(int=number), (STATE,) * partitions, created_ms=5)


def image_of(*topics: TopicImage) -> ClusterImage:
    brokers = {n: BrokerInfo(n, n, ENDPOINTS, fenced=n == 2) for n in (1, 2)}
    image = ClusterImage(revision=7, cluster_id="c", controller_id=1, brokers=brokers).with_topics(topics)
    return image.with_configs(
        {
            ConfigResource(ResourceType.BROKER, ""): {"a": "1"},
            ConfigResource(ResourceType.BROKER, "2"): {"b": "2"},
            ConfigResource(ResourceType.GROUP, "a/ group\n"): {"c": "3"},
            **{ConfigResource(ResourceType.TOPIC, each.name): {"retention.ms": each.name} for each in topics[:1]},
        }
    )


def after(image: ClusterImage, *records: tuple[str, layout.Record | None], is_complete: bool = False) -> ClusterImage:
    builder = ImageBuilder(image, is_complete=is_complete)
    for key, record in records:
        builder.add(key, None if record is None else layout.decode(layout.encode(record)))
    return run_through(builder.build(image.revision + 1, image.controller_id)).image


TOPICS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(1, 200)), unique_by=lambda each: each[0], max_size=4
).map(lambda rows: [topic(name, number, count) for number, (name, count) in enumerate(rows)])


@settings(deadline=None)
@given(TOPICS, TOPICS)
def test_a_snapshot_gives_the_image_again_whatever_was_known_before(
    before: list[TopicImage], now: list[TopicImage]
) -> None:
    image = replace(image_of(*now), revision=8)
    built = after(image_of(*before), *records_of(image, {}), is_complete=True)
    assert built == image
    assert built.names_by_collision_key == image.names_by_collision_key
    assert built.partitions_count == image.partitions_count


@settings(deadline=None)
@given(TOPICS)
def test_a_snapshot_of_what_is_known_changes_no_object(topics: list[TopicImage]) -> None:
    image = image_of(*topics)
    built = after(image, *records_of(image, {}), is_complete=True)
    assert built.topics is image.topics
    assert built.brokers is image.brokers
    assert built.configs is image.configs


def test_only_what_changed_is_a_new_object() -> None:
    image = image_of(topic("a", 1, 100), topic("b", 2, 3))
    states = list(image.topics["a"].partitions)
    states[70] = replace(STATE, leader=2, leader_epoch=1)
    (chunk,) = layout.chunk_records(uuid.UUID(int=1), states, {70})
    built = after(image, chunk)
    assert built.topics["a"].partitions == tuple(states)
    assert all(
        new is old
        for index, (new, old) in enumerate(zip(built.topics["a"].partitions, image.topics["a"].partitions, strict=True))
        if index != 70
    )
    assert built.topics["b"] is image.topics["b"]
    assert built.topic_configs("a") == {"retention.ms": "a"}
    assert built.configs is image.configs
    assert built.brokers is image.brokers


def test_more_partitions_a_setting_and_a_broker_come_in() -> None:
    image = image_of(topic("a", 1, 60))
    grown = topic("a", 1, 70)
    broker = BrokerInfo(3, 3, ENDPOINTS)
    built = after(
        image,
        *layout.chunk_records(grown.topic_id, grown.partitions, set(range(60, 70))),
        (layout.topic_key("a"), layout.topic_record(grown, {})),
        (layout.broker_key(3), layout.broker_record(broker)),
        (layout.broker_key(2), None),
        (layout.broker_configs_key(""), {"configs": {}}),
    )
    assert built.topics["a"] == grown
    assert built.topic_configs("a") == {}
    assert built.broker_configs(None) == {}
    assert built.broker_configs(2) == {"b": "2"}
    assert built.brokers == {1: image.brokers[1], 3: broker}


def test_a_topic_that_was_deleted_and_created_anew_is_another_one() -> None:
    old, new = topic("a", 1, 2), topic("a", 9, 3)
    built = after(
        image_of(old),
        (layout.topic_key("a"), layout.topic_tombstone(old.topic_id)),
        (layout.chunk_key(old.topic_id, 0), None),
        *layout.chunk_records(new.topic_id, new.partitions),
        (layout.topic_key("a"), layout.topic_record(new, {})),
    )
    assert built.topics == {"a": new}
    assert list(built.topics_by_id) == [new.topic_id]
    assert built.topic_configs("a") == {}
    assert built.partitions_count == 3


def test_deleted_topics_and_orphans_are_told() -> None:
    gone, orphan = topic("a", 1, 2), topic("b", 2, 2)
    builder = ImageBuilder(image_of(gone))
    builder.add(layout.topic_key("a"), layout.topic_tombstone(gone.topic_id))
    for key, record in layout.chunk_records(orphan.topic_id, orphan.partitions):
        builder.add(key, record)
    builder.add(layout.PRODUCER_IDS, {"next": 1000})
    built = run_through(builder.build(8, 1))
    assert built.image.topics == {}
    assert built.deleted_topics == {gone.topic_id: "a"}
    assert built.orphans == [layout.chunk_key(orphan.topic_id, 0)]
    told = dict(records_of(built.image, built.deleted_topics))
    assert layout.parse_tombstone(told[layout.topic_key("a")]) == gone.topic_id


def test_a_topic_without_all_of_its_partitions_is_an_error() -> None:
    whole = topic("a", 1, 70)
    records = [record for record in records_of(image_of(whole), {}) if not record[0].endswith("00001")]
    with pytest.raises(MetadataStoreError, match="the states of 64 are there"):
        after(EMPTY_IMAGE, *records)
