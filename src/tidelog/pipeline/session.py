"""The Spark session of a pipeline: which settings it gets, and why.

What always holds: every setting that differs from Spark's own is a row of SETTINGS, with its reason; what the
pipeline's file or the command line says wins over the table. The page about pipelines and the command show this table.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

DEFAULT_MASTER = "local[*]"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")
_CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@dataclass(frozen=True)
class Setting:
    """One setting of Spark that pipelines have by default. A value of None leaves Spark's own in this case."""

    name: str
    value: Callable[[str], str | None]  # of the master's address
    shown: str
    reason: str


def is_local(master: str) -> bool:
    return _LOCAL.fullmatch(master) is not None


def _cores(master: str) -> int | None:
    found = _LOCAL.fullmatch(master)
    if found is None:
        return None
    count = found.group(1) or "1"
    return (os.cpu_count() or 1) if count == "*" else int(count)


def _when_local(value: str) -> Callable[[str], str | None]:
    return lambda master: value if is_local(master) else None


def _always(value: str) -> Callable[[str], str | None]:
    return lambda master: value


def _shuffle_partitions(master: str) -> str | None:
    cores = _cores(master)
    return None if cores is None else str(cores)


SETTINGS = (
    Setting(
        "spark.sql.session.timeZone",
        _always("UTC"),
        "UTC",
        "the same file gives the same rows on every machine",
    ),
    Setting(
        "spark.sql.ansi.enabled",
        _always("false"),
        "false",
        "a division by zero or a number too large is null in that row; with ANSI rules one such row would stop the "
        "query, and again after each restart",
    ),
    Setting(
        "spark.sql.shuffle.partitions",
        _shuffle_partitions,
        "cores (local)",
        "Spark's 200 tasks for each shuffle of each micro-batch cost more than the rows; fixed by the first run of a "
        "stateful query",
    ),
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        _when_local(_CHECKPOINT_MANAGER),
        "by rename (local)",
        "Spark's own starts a shell for each file of the checkpoint: 131-141 ms a micro-batch became 55; only on local "
        "disks, where a rename is atomic",
    ),
    Setting(
        "spark.python.unix.domain.socket.enabled",
        _when_local("true"),
        "true (local)",
        "sockets of the file system between Spark and Python: 140 ms a micro-batch became 93-112",
    ),
    Setting(
        "spark.sql.python.filterPushdown.enabled",
        _always("true"),
        "true",
        "filters on partition, offset and timestamp of a batch read become ranges of offsets",
    ),
    Setting(
        "spark.sql.execution.arrow.pyspark.enabled",
        _always("true"),
        "true",
        "results come to Python as Arrow instead of pickled rows",
    ),
    Setting(
        "spark.sql.streaming.stateStore.providerClass",
        _always("org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"),
        "RocksDB",
        "state lives on disk instead of the Java heap, and transformWithState needs it",
    ),
    Setting(
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        _always("true"),
        "true",
        "a micro-batch writes what changed in its state, not a copy: 254-277 ms for one of a window count, 391-636 "
        "without it, 270-500 with Spark's own store (on a busy machine)",
    ),
    Setting(
        "spark.sql.parquet.outputTimestampType",
        _always("TIMESTAMP_MICROS"),
        "TIMESTAMP_MICROS",
        "times in Parquet files as every reader knows them, instead of the old INT96",
    ),
    Setting(
        "spark.ui.enabled",
        _always("true"),
        "true",
        "the command links to Spark's own page",
    ),
    Setting(
        "spark.ui.showConsoleProgress",
        _always("false"),
        "false",
        "the terminal shows the pipeline's progress instead",
    ),
    Setting(
        "spark.driver.host",
        _when_local("127.0.0.1"),
        "127.0.0.1 (local)",
        "nothing listens to the network",
    ),
    Setting(
        "spark.driver.bindAddress",
        _when_local("127.0.0.1"),
        "127.0.0.1 (local)",
        "nothing listens to the network",
    ),
    Setting(
        "spark.ui.port",
        _always("4040"),
        "4040",
        "or the next free one",
    ),
    Setting(
        "spark.port.maxRetries",
        _always("100"),
        "100",
        "many pipelines on one machine each get a page",
    ),
)


def settings_markdown() -> str:
    """The table as the documentation has it: `python -m tidelog.pipeline.session` prints it."""
    lines = ["| setting | value | why |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {row.shown} | {row.reason} |" for row in SETTINGS]
    return "\n".join(lines)


def settings_for(master: str, *layers: Mapping[str, str]) -> dict[str, str]:
    """The table's values for this master, with each layer over those before it."""
    values = {row.name: value for row in SETTINGS if (value := row.value(master)) is not None}
    for layer in layers:
        values.update({str(name): str(value) for name, value in layer.items()})
    return values


def start_session(name: str, master: str, conf: Mapping[str, str], log_file: Path) -> SparkSession:
    """A session with these settings; what Spark and its workers print goes into the file."""
    _check_java()
    from pyspark.sql import SparkSession

    from tidelog.spark.worker_python import VARIABLE, use_this_python

    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Spark's page has no setting of its own for this
        use_this_python()
    else:
        os.environ.setdefault(VARIABLE, sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in conf.items():
        builder = builder.config(key, value)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with _output_into(log_file):
        session = _made(builder, log_file)
    session.sparkContext.setLogLevel("WARN")
    return session


def _made(builder: Any, log_file: Path) -> SparkSession:
    """The session; a JVM that ends before it is up is started once more."""
    from pyspark.errors import PySparkRuntimeError

    is_last = False
    while True:
        try:
            session: SparkSession = builder.getOrCreate()
            return session
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            if is_last:
                raise PipelineError(f"Spark's JVM ended while it was starting; see {log_file}") from error
            log.warning("Spark's JVM ended while it was starting; it is started once more")
            is_last = True


def prepare_session(session: SparkSession) -> None:
    """Make the format `tidelog` known to a session, and the session to this thread, in which Spark looks it up."""
    import tidelog.spark

    tidelog.spark.register(session)
    jvm: Any = session._jvm
    type(session)._get_j_spark_session_class(jvm).setActiveSession(session._jsparkSession)


def _check_java() -> None:
    import shutil

    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        raise PipelineError("Spark needs Java 17 or later, but there is no 'java' here; install one, or set JAVA_HOME")


@contextmanager
def _output_into(file: Path) -> Iterator[None]:
    """What is started meanwhile keeps the file as its standard output and error."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for descriptor in (*kept, target):
            os.close(descriptor)


if __name__ == "__main__":
    print(settings_markdown())
