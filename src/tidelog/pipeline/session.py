"""The Spark session of a pipeline: its settings, and the reasons for them.

What always holds: every setting that differs from Spark's default is a row in SETTINGS, with its reason; the pipeline's
file and the command line override the table. The documentation and `tidelog pipeline settings` show this table.
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
from tidelog.pipeline.spark_jvm import activate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

DEFAULT_MASTER = "local[*]"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")
_CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@dataclass(frozen=True)
class Setting:
    """One Spark setting that pipelines change by default. A value of None keeps Spark's default."""

    name: str
    value: Callable[[str], str | None]  # takes the master's address
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
        "the same file produces the same rows on every machine",
    ),
    Setting(
        "spark.sql.ansi.enabled",
        _always("false"),
        "false",
        "a division by zero or an overflow gives null in that row; in ANSI mode, one such row would stop the query, "
        "and again after each restart",
    ),
    Setting(
        "spark.sql.shuffle.partitions",
        _shuffle_partitions,
        "cores (local)",
        "with Spark's default, the 200 tasks of each shuffle cost more than the rows of a micro-batch; fixed by the "
        "first run of a stateful query",
    ),
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        _when_local(_CHECKPOINT_MANAGER),
        "by rename (local)",
        "Spark's default starts a shell for each checkpoint file: a micro-batch took 131-141 ms, now 55; only for "
        "local disks, where a rename is atomic",
    ),
    Setting(
        "spark.python.unix.domain.socket.enabled",
        _when_local("true"),
        "true (local)",
        "Unix domain sockets between Spark and Python: a micro-batch took 140 ms, now 93-112",
    ),
    Setting(
        "spark.sql.python.filterPushdown.enabled",
        _always("true"),
        "true",
        "filters on partition, offset and timestamp in batch reads are turned into offset ranges",
    ),
    Setting(
        "spark.sql.execution.arrow.pyspark.enabled",
        _always("true"),
        "true",
        "results are transferred to Python as Arrow instead of pickled rows",
    ),
    Setting(
        "spark.sql.streaming.stateStore.providerClass",
        _always("org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"),
        "RocksDB",
        "state is kept on disk instead of in the Java heap, and transformWithState requires it",
    ),
    Setting(
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
        _always("true"),
        "true",
        "a micro-batch writes only the changes of its state, not a copy: 254-277 ms for a windowed count, 391-636 "
        "without it, 270-500 with Spark's default store (on a busy machine)",
    ),
    Setting(
        "spark.sql.parquet.outputTimestampType",
        _always("TIMESTAMP_MICROS"),
        "TIMESTAMP_MICROS",
        "timestamps in Parquet files that every reader understands, instead of the old INT96",
    ),
    Setting(
        "spark.ui.enabled",
        _always("true"),
        "true",
        "the command links to the Spark UI",
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
        "nothing listens on the network",
    ),
    Setting(
        "spark.driver.bindAddress",
        _when_local("127.0.0.1"),
        "127.0.0.1 (local)",
        "nothing listens on the network",
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
        "many pipelines on one machine can each have a Spark UI",
    ),
)


def settings_markdown() -> str:
    """The table for the documentation; `python -m tidelog.pipeline.session` prints it."""
    lines = ["| setting | value | why |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {row.shown} | {row.reason} |" for row in SETTINGS]
    return "\n".join(lines)


def settings_for(master: str, *layers: Mapping[str, str]) -> dict[str, str]:
    """The table's values for this master; each layer overrides those before it."""
    values = {row.name: value for row in SETTINGS if (value := row.value(master)) is not None}
    for layer in layers:
        values.update({str(name): str(value) for name, value in layer.items()})
    return values


def start_session(name: str, master: str, conf: Mapping[str, str], log_file: Path) -> SparkSession:
    """A session with these settings; the output of Spark and its workers goes to the log file."""
    _check_java()
    from pyspark.sql import SparkSession

    from tidelog.spark.worker_python import VARIABLE, use_this_python

    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the Spark UI has no other setting for this
        use_this_python()
    else:
        os.environ.setdefault(VARIABLE, sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in conf.items():
        builder = builder.config(key, value)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with _output_into(log_file):
        session = _create(builder, log_file)
    session.sparkContext.setLogLevel("WARN")
    return session


def _create(builder: Any, log_file: Path) -> SparkSession:
    """Create the session; if the JVM exits during startup, try once more."""
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
                raise PipelineError(f"Spark's JVM exited during startup; see {log_file}") from error
            logger.warning("Spark's JVM exited during startup; starting it again")
            is_last = True


def prepare_session(session: SparkSession) -> None:
    """Register the format `tidelog` with a session, and make the session active in this thread."""
    import tidelog.spark

    tidelog.spark.register(session)
    activate(session)


def _check_java() -> None:
    import shutil

    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
        raise PipelineError("Spark needs Java 17 or later, but 'java' was not found; install it, or set JAVA_HOME")


@contextmanager
def _output_into(file: Path) -> Iterator[None]:
    """Processes started in this block use the file as their standard output and error."""
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
