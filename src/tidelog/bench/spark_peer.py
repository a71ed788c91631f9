"""Spark's own `kafka` format, from Maven, and the session in which it and ours run side by side.

What always holds: both formats run in one JVM with one set of settings, so that neither has what the other lacks. The
session has what `tidelog.pipeline` also sets because measurement favours it; none of it makes the peer slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.bench import maven

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR_VERSION = "4.2.0"
PEER = f"spark-sql-kafka {CONNECTOR_VERSION}"
# What the connector needs beside the jars that pyspark has. Each is named, without what it depends on itself: Spark's
# poms name a mirror of their own first, which not every network reaches. The token provider is one that the connector
# asks for nothing newer of.
_ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def spark_kafka_jars() -> list[Path]:
    """Spark's own format as jars, brought by Maven the first time and kept in the user's cache."""
    place = maven.jars(f"spark-sql-kafka-{CONNECTOR_VERSION}", _ARTIFACTS, with_dependencies=False)
    return sorted(place.glob("*.jar"))


@contextmanager
def session_with_both(work: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session on two cores that knows `kafka` and `tidelog`; the JVM ends with it."""
    from pyspark.sql import SparkSession

    import tidelog.spark

    tidelog.spark.use_this_python()
    builder = SparkSession.builder.master("local[2]").appName("tidelog bench spark")
    jars = {"spark.jars": ",".join(map(str, spark_kafka_jars())), "spark.sql.warehouse.dir": str(work / "warehouse")}
    for name, value in {**SETTINGS, **jars, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    tidelog.spark.register(session)
    try:
        yield session
    finally:
        session.stop()
