"""Every client family plays the same scenario against a broker started with its defaults."""

from __future__ import annotations

from collections.abc import Callable
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
from tidelog.testing import Broker


@pytest.mark.parametrize(
    "make", [ConfluentDriver, KafkaPythonDriver, AiokafkaDriver, KcatDriver, TidelogDriver, TidelogArrowDriver]
)
def test_python_and_c_clients(make: Callable[[str], ClientDriver], broker: Broker) -> None:
    play(make(broker.bootstrap), broker)


@pytest.mark.compat
@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_java_client(version: str, broker: Broker, java_jars: Path, tmp_path: Path) -> None:
    play(JavaDriver(broker.bootstrap, java_jars / f"lib-{version}", version, tmp_path / "java.log"), broker)


def play(client: ClientDriver, broker: Broker) -> None:
    admin = client if isinstance(client, AdminDriver) else ConfluentDriver(broker.bootstrap)
    try:
        Scenario(client, admin).play()
    finally:
        client.close()
