"""What our client writes all others read, byte for byte, and the other way round; on Tidelog and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_drivers.aiokafka_client import AiokafkaDriver
from client_drivers.confluent import ConfluentDriver
from client_drivers.java import JavaDriver
from client_drivers.kafka_python import KafkaPythonDriver
from client_drivers.kcat import KcatDriver
from client_drivers.model import ClientDriver
from client_drivers.tidelog import TidelogArrowDriver, TidelogDriver
from exchanged_records import COMPRESSIONS, KEPT, check_read, fresh_topic, write
from tidelog.bench.brokers import KafkaBroker, kafka_jars
from tidelog.testing import Broker

Make = Callable[[str], ClientDriver]

OURS: list[Make] = [TidelogDriver, TidelogArrowDriver]
OTHERS: list[Make] = [ConfluentDriver, KcatDriver, AiokafkaDriver, KafkaPythonDriver]
KAFKA_VERSION = "4.3.1"
JAVA_VERSIONS = ["3.9.2", "4.3.1"]


@pytest.fixture(scope="module", params=["tidelog", pytest.param("kafka", marks=pytest.mark.compat)])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"log.retention.ms": "-1"}  # some records are old
    if request.param == "tidelog":
        with Broker(settings=settings) as broker:
            yield broker.bootstrap
    else:
        kafka = KafkaBroker(tmp_path_factory.mktemp("kafka"), jars=kafka_jars(KAFKA_VERSION), settings=settings)
        kafka.start()
        try:
            yield kafka.bootstrap
        finally:
            kafka.stop()


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A topic with a partition for each compression."""
    name = fresh_topic()
    admin = TidelogDriver(bootstrap)
    try:
        admin.create_topic(name, len(COMPRESSIONS), KEPT)
    finally:
        admin.close()
    return name


@pytest.fixture(scope="module", params=JAVA_VERSIONS)
def java(
    request: pytest.FixtureRequest, bootstrap: str, java_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaDriver]:
    version: str = request.param
    log = tmp_path_factory.mktemp("java") / "java.log"
    client = JavaDriver(bootstrap, java_jars / f"lib-{version}", version, log)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("make_writer", OURS)
def test_ours_writes_and_all_read(make_writer: Make, bootstrap: str, topic: str) -> None:
    exchange(bootstrap, topic, make_writer(bootstrap), [*OURS, *OTHERS])


@pytest.mark.parametrize("make_writer", OTHERS)
def test_others_write_and_ours_reads(make_writer: Make, bootstrap: str, topic: str) -> None:
    exchange(bootstrap, topic, make_writer(bootstrap), OURS)


@pytest.mark.compat
@pytest.mark.parametrize("make_writer", OURS)
def test_ours_writes_and_java_reads(make_writer: Make, bootstrap: str, topic: str, java: JavaDriver) -> None:
    writer = make_writer(bootstrap)
    try:
        check_read(java, write(writer, topic))
    finally:
        writer.close()


@pytest.mark.compat
def test_java_writes_and_ours_reads(bootstrap: str, topic: str, java: JavaDriver) -> None:
    written = write(java, topic)
    for make in OURS:
        reader = make(bootstrap)
        try:
            check_read(reader, written)
        finally:
            reader.close()


def exchange(bootstrap: str, topic: str, writer: ClientDriver, readers: list[Make]) -> None:
    try:
        written = write(writer, topic)
    finally:
        writer.close()
    for make in readers:
        reader = make(bootstrap)
        try:
            check_read(reader, written)
        finally:
            reader.close()
