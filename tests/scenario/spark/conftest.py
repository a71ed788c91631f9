"""One Spark session for all tests of this folder: a JVM takes 8 s to start and 1 GB; and the cluster they talk to.

`COMPAT_CLIENT_PEER=4.3.1` runs the tests that use `cluster` against that Apache Kafka, which Maven brings; so does
`make compat`. A test that is about a broker of ours is marked `tidelog_only`.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog import Admin, NewTopic
from tidelog.bench.brokers import BrokerProcess, KafkaBroker, TidelogBroker, kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
DEADLINE_S = 90


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
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

    tidelog.spark.use_this_python()
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
    peer = os.environ.get("COMPAT_CLIENT_PEER")
    directory = tmp_path_factory.mktemp("cluster")
    # Both brokers know these: groups form at once, compaction begins at once, records may be as old as a test likes.
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.backoff.ms": "100",
        "log.retention.ms": "-1",
    }
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


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool], str], None]:
    """Waits for a condition; longer than elsewhere, because Spark is slow to begin on a busy machine."""

    def wait(condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline_s, f"waited {DEADLINE_S} s in vain: {what}"
            pause.wait(0.02)

    return wait


@pytest.fixture
def new_topic(cluster: BrokerProcess, fresh_name: Callable[[str], str]) -> Callable[..., str]:
    """Makes a topic that is ready to be used; settings of the topic are given with underscores."""

    def make(word: str = "topic", partitions: int = 1, **configs: str) -> str:
        name = fresh_name(word)
        named = {key.replace("_", "."): value for key, value in configs.items()}
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(name, partitions, configs=named)]).raise_for_errors()
            admin.wait_for_topics(name)
        return name

    return make


@pytest.fixture
def source(spark: SparkSession, cluster: BrokerProcess, tmp_path: Path) -> Source:
    """Reads of the cluster's topics."""
    return Source(spark, cluster.bootstrap, tmp_path)


class Source:
    """Reads topics as batches and as queries that end at what is there."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.checkpoint = str(directory / "checkpoint")

    def batch(self, schema: str | None = None, /, **options: object) -> DataFrame:
        """A batch read; an option with a dot is given with two underscores."""
        reader = self.spark.read.format("tidelog").options(**self._options(options))
        return (reader if schema is None else reader.schema(schema)).load()

    def stream(self, schema: str | None = None, /, **options: object) -> DataFrame:
        reader = self.spark.readStream.format("tidelog").options(**self._options(options))
        return (reader if schema is None else reader.schema(schema)).load()

    def _options(self, options: dict[str, object]) -> dict[str, Any]:
        named = {name.replace("__", "."): value for name, value in options.items()}
        return {"kafka.bootstrap.servers": self.bootstrap, **named}

    def available_now(self, schema: str | None = None, /, **options: object) -> list[list[Any]]:
        """The rows of each micro-batch of a query that ends at what is there; the next call goes on behind them."""
        batches: list[list[Any]] = []
        query = (
            self.stream(schema, **options)
            .writeStream.foreachBatch(lambda rows, _: batches.append(rows.collect()))
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
        return batches
