"""The partition that a key chooses is the one that other clients choose."""

from __future__ import annotations

import random
import warnings
from types import ModuleType

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2

from tidelog.records.kernel_build import murmur2, partition_for_key


@pytest.fixture(scope="module")
def kafka_python() -> ModuleType:
    """kafka-python's partitioner; importing the package warns of its own use of old functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka.partitioner.default

        return kafka.partitioner.default  # type: ignore[no-any-return]  # the package has no types


def random_keys(count: int) -> list[bytes]:
    source = random.Random(20260131)
    return [source.randbytes(source.randrange(0, 40)) for _ in range(count)]


def test_agrees_with_other_clients_on_random_keys(kafka_python: ModuleType) -> None:
    for key in random_keys(10_000):
        expected = kafka_python.murmur2(key) & 0xFFFFFFFF
        assert murmur2(key) == expected, key
        assert aiokafka_murmur2(key) & 0xFFFFFFFF == expected, key


class OneTopic:
    """What kafka-python's partitioner asks a cluster for."""

    def __init__(self, partitions: int) -> None:
        self._partitions = set(range(partitions))

    def topics(self) -> set[str]:
        return {"t"}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return self._partitions

    available_partitions_for_topic = partitions_for_topic


def test_picks_the_partition_that_kafka_python_picks(kafka_python: ModuleType) -> None:
    partitioner = kafka_python.DefaultPartitioner()
    for partitions in (1, 2, 3, 7, 50):
        cluster = OneTopic(partitions)
        for key in random_keys(500):
            expected = partitioner.partition("t", key, key, None, None, cluster)
            assert partition_for_key(key, partitions) == expected
