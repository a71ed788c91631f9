"""Every client family plays the same scenario against a broker started with its defaults, and against a cluster.

In the cluster, three brokers have a replica of each partition, and `min.insync.replicas` is 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_drivers.aiokafka_client import AiokafkaDriver
from client_drivers.confluent import ConfluentDriver
from client_drivers.java import JavaDriver
from client_drivers.kafka_python import KafkaPythonDriver
from client_drivers.kcat import KcatDriver
from client_drivers.model import AdminDriver, ClientDriver
from client_drivers.tidelog import TidelogArrowDriver, TidelogDriver
from scenario import Scenario
from tidelog.testing import Broker, Cluster

FAMILIES = [ConfluentDriver, KafkaPythonDriver, AiokafkaDriver, KcatDriver, TidelogDriver, TidelogArrowDriver]
JAVA_VERSIONS = ["3.9.2", "4.3.1"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"min.insync.replicas": 2}) as cluster:
        yield cluster


@pytest.mark.parametrize("make", FAMILIES)
def test_python_and_c_clients(make: Callable[[str], ClientDriver], broker: Broker) -> None:
    play_on_one(make(broker.bootstrap), broker)


@pytest.mark.parametrize("make", FAMILIES)
def test_python_and_c_clients_on_a_cluster(make: Callable[[str], ClientDriver], cluster: Cluster) -> None:
    play_on_three(make(cluster.bootstrap), cluster)


@pytest.mark.compat
@pytest.mark.parametrize("version", JAVA_VERSIONS)
def test_java_client(version: str, broker: Broker, java_jars: Path, tmp_path: Path) -> None:
    play_on_one(JavaDriver(broker.bootstrap, java_jars / f"lib-{version}", version, tmp_path / "java.log"), broker)


@pytest.mark.compat
@pytest.mark.parametrize("version", JAVA_VERSIONS)
def test_java_client_on_a_cluster(version: str, cluster: Cluster, java_jars: Path, tmp_path: Path) -> None:
    play_on_three(JavaDriver(cluster.bootstrap, java_jars / f"lib-{version}", version, tmp_path / "java.log"), cluster)


def play_on_one(client: ClientDriver, broker: Broker) -> None:
    admin = client if isinstance(client, AdminDriver) else ConfluentDriver(broker.bootstrap)
    try:
        Scenario(client, admin, replicas=1, wait_until_known=lambda topic, partitions: None).play()
    finally:
        client.close()


def play_on_three(client: ClientDriver, cluster: Cluster) -> None:
    def wait(topic: str, partitions: int) -> None:
        cluster.wait(
            lambda image: topic in image.topics and len(image.topics[topic].partitions) == partitions,
            f"{topic} to have {partitions} partitions",
        )

    admin = client if isinstance(client, AdminDriver) else ConfluentDriver(cluster.bootstrap)
    try:
        Scenario(client, admin, replicas=3, wait_until_known=wait).play()
    finally:
        client.close()
