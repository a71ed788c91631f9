"""What is remembered of a cluster when answers overtake each other."""

from __future__ import annotations

import uuid

from tidelog.client.network.metadata_cache import MetadataCache
from tidelog.client.types import ClusterMetadata, PartitionMetadata, TopicMetadata, TopicPartition

ID = uuid.UUID(int=1)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def told(*leaders: tuple[int, int], topic_id: uuid.UUID = ID) -> ClusterMetadata:
    """An answer about topic t: the leader of each partition, and its epoch."""
    partitions = tuple(
        PartitionMetadata(number, leader_id, leader_epoch, (1, 2), (1, 2))
        for number, (leader_id, leader_epoch) in enumerate(leaders)
    )
    return ClusterMetadata("c", 1, {}, {"t": TopicMetadata("t", topic_id, False, partitions)})


def leaders(cache: MetadataCache) -> list[tuple[int, int]]:
    return [(row.leader_id, row.leader_epoch) for row in cache.topics["t"].partitions]


def test_an_answer_with_an_older_leader_epoch_is_not_believed() -> None:
    cache = MetadataCache()
    cache.remember(told((1, 5), (1, 5)), everything=False)
    cache.remember(told((2, 4), (2, 6)), everything=False)
    assert leaders(cache) == [(1, 5), (2, 6)]
    cache.remember(told((2, 4), (1, 5)), everything=True)
    assert leaders(cache) == [(1, 5), (2, 6)]


def test_an_answer_with_the_same_epoch_is_the_latest_news() -> None:
    cache = MetadataCache()
    cache.remember(told((1, 5)), everything=False)
    cache.remember(told((-1, 5)), everything=False)
    assert leaders(cache) == [(-1, 5)]


def test_a_new_topic_of_the_name_starts_over() -> None:
    cache = MetadataCache()
    cache.remember(told((1, 5)), everything=False)
    cache.remember(told((2, 0), topic_id=uuid.UUID(int=2)), everything=False)
    assert leaders(cache) == [(2, 0)]
    assert cache.name_of(ID) is None


def test_a_refusal_names_a_leader_only_with_a_newer_epoch() -> None:
    cache = MetadataCache()
    cache.remember(told((1, 5), (1, 5)), everything=False)
    assert not cache.note_leader(T0, 2, 4)
    assert not cache.note_leader(T0, 2, 5)
    assert not cache.note_leader(T0, -1, 6)
    assert not cache.note_leader(TopicPartition("t", 7), 2, 6)
    assert leaders(cache) == [(1, 5), (1, 5)]
    assert cache.note_leader(T1, 2, 6)
    assert leaders(cache) == [(1, 5), (2, 6)]
    cache.remember(told((1, 5), (1, 5)), everything=False)
    assert leaders(cache) == [(1, 5), (2, 6)]
