"""What pipelines need of Spark's JVM and PySpark does not offer: the only file that uses its private gateway.

Paths are those of Hadoop, so a checkpoint may be on any file system that Spark can write to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def file_names(spark: SparkSession, directory: str) -> list[str]:
    """The names in a directory; none if it doesn't exist."""
    file_system, path = _open(spark, directory)
    if not file_system.exists(path):
        return []
    return [status.getPath().getName() for status in file_system.listStatus(path)]


def file_text(spark: SparkSession, file: str) -> str:
    jvm: Any = spark._jvm
    file_system, path = _open(spark, file)
    stream = file_system.open(path)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def _open(spark: SparkSession, location: str) -> tuple[Any, Any]:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path


def activate(session: SparkSession) -> None:
    """Make the session the active one in this thread."""
    jvm: Any = session._jvm
    type(session)._get_j_spark_session_class(jvm).setActiveSession(session._jsparkSession)


def end_java() -> None:
    """Stop Spark's Java process, which it leaves running for the next session; that may be a day away."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # which makes it exit
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None
