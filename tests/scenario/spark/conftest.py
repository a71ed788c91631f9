"""One Spark session for all tests of this folder: a JVM takes 8 s to start and 1 GB; and the cluster they talk to.

`TIDELOG_CLIENT_PEER=4.3.1` runs the tests that use `cluster` against that Apache Kafka, which Maven brings; so does
`make compat`. A test that is about a broker of ours is marked `tidelog_only`.
"""

from __future__ import annotations

import itertools
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.bench.brokers import BrokerProcess, KafkaBroker, TidelogBroker, kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them run in one worker process, so that there is one session."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores, with the source and the sink registered; the tests' own settings go on queries."""
    from pyspark.sql import SparkSession

    import tidelog.spark

    # Spark starts its workers with the first python3 of the path, which need not be this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tidelog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        )
        .getOrCreate()
    )
    tidelog.spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker in a process of its own, shared by the whole suite; `.bootstrap` is its address."""
    peer = os.environ.get("TIDELOG_CLIENT_PEER")
    directory = tmp_path_factory.mktemp("cluster")
    settings = {"group.initial.rebalance.delay.ms": "0"}
    broker: BrokerProcess = (
        KafkaBroker(directory, jars=kafka_jars(peer), settings=settings)
        if peer
        else TidelogBroker(directory, settings=settings)
    )
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def fresh_name() -> Callable[[str], str]:
    """Names of topics and groups that no other test has used, with a word that tells what they are for."""
    numbers = itertools.count()
    test = uuid.uuid4().hex[:8]
    return lambda word: f"{word}-{test}-{next(numbers)}"
