"""A pipeline on a real Spark cluster, whose master and workers run from pyspark's own files; a worker is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.bench.brokers import BrokerProcess, free_port

# Several JVMs start here, which takes its time on a busy machine.
pytestmark = pytest.mark.timeout(600)

PARTITIONS = 4
EVENTS_A_BATCH = 2_500
# Micro-batches of many records, which tasks read, and a last one of few, which the driver reads for them.
EVENTS = 12 * EVENTS_A_BATCH + 50
BATCHES_BEFORE_THE_KILL = 3
DEADLINE_S = 180.0

# What the executors need of this file beside tidelog is a function of its own, and a module beside it.
PIPELINE = """\
from prices import with_tax

from tidelog.pipeline import Json, Pipeline, TopicInput, TopicOutput


def taxed(row):
    return {{"id": row["id"], "total": with_tax(row["price"])}}


def passed_on(orders):
    return orders


pipeline = Pipeline(
    name="taxes",
    version=1,
    inputs={{
        "orders": TopicInput(
            "{source}",
            format=Json("id long, price long"),
            map=taxed,
            map_schema="id long, total long",
            options={{"maxOffsetsPerTrigger": "{batch}"}},
        )
    }},
    transform=passed_on,
    outputs=[TopicOutput("{target}", key=["id"])],
)
"""
PRICES = """\
def with_tax(price):
    return price + price // 5
"""


class SparkCluster:
    """A master and two workers, each a process group of its own, on this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = Path(pyspark.__file__).parent
        self.port = free_port()
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._started("master", "master.Master", "--port", str(self.port)))
            self._wait_for("master", "New state: ALIVE")
            for number in (1, 2):
                place = self.directory / f"work-{number}"
                limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(place))
                process = self._started(f"worker-{number}", "worker.Worker", *limits, self.url)
                self.workers.append(stack.enter_context(process))
            for number in (1, 2):
                self._wait_for(f"worker-{number}", "Successfully registered")
            yield

    def kill_a_worker(self) -> None:
        """The worker and its executor, at once and without a word."""
        os.killpg(self.workers[0].pid, signal.SIGKILL)

    @contextmanager
    def _started(self, name: str, class_name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{class_name}"]
        environment = {
            **os.environ,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with (
            (self.directory / f"{name}.log").open("wb") as output,
            subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--webui-port", str(free_port()), *arguments],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def _wait_for(self, name: str, text: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while text not in (self.directory / f"{name}.log").read_text():
            assert time.monotonic() < deadline_s, (self.directory / f"{name}.log").read_text()[-2000:]
            time.sleep(0.05)


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    cluster = SparkCluster(tmp_path)
    with cluster.running():
        yield cluster


def committed(bootstrap: str, topic: str) -> Counter[tuple[int, int]]:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    rows: Counter[tuple[int, int]] = Counter()
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            for record in consumer.poll(timeout=1.0):
                row = json.loads(record.value)
                rows[row["id"], row["total"]] += 1
    return rows


def test_a_worker_dies_and_the_result_is_right(
    cluster: BrokerProcess, spark_cluster: SparkCluster, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    source, target = fresh_name("orders"), fresh_name("taxes")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        topics = [NewTopic(source, PARTITIONS, 1), NewTopic(target, PARTITIONS, 1)]
        admin.create_topics(topics).raise_for_errors()
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(EVENTS):
            producer.send(source, b'{"id": %d, "price": %d}' % (number, number % 997), key=b"%d" % number)
    project = tmp_path / "project"
    project.mkdir()
    (project / "prices.py").write_text(PRICES)
    file = project / "taxes.py"
    file.write_text(PIPELINE.format(source=source, target=target, batch=EVENTS_A_BATCH))

    run_pipeline(file, cluster.bootstrap, spark_cluster, tmp_path)

    assert committed(cluster.bootstrap, target) == Counter(
        {(number, number % 997 + number % 997 // 5): 1 for number in range(EVENTS)}
    )
    # The executor of the killed worker had its share of the work: what is tested is its loss.
    started = re.findall(r"Launch(?:ing|ed) executor (?:app-\S+/)?(\d+)", (tmp_path / "master.log").read_text())
    assert len(set(started)) >= 2


def python_without_tidelog(directory: Path) -> Path:
    """An interpreter as the machines of a cluster have it: with what Spark's Arrow functions need, and no more."""
    packages = directory / "packages"
    packages.mkdir()
    here = Path(pyspark.__file__).parent.parent
    for name in ("pyarrow", "pyarrow.libs", "pandas", "numpy", "numpy.libs", "dateutil", "pytz", "six.py", "tzdata"):
        if (here / name).exists():
            (packages / name).symlink_to(here / name)
    interpreter = directory / "python"
    base = Path(sys.executable).resolve()
    interpreter.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {base} "$@"\n')
    interpreter.chmod(0o755)
    imports = [str(interpreter), "-c", "import pandas, pyarrow, tidelog"]
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(imports, capture_output=True, text=True, env=without, cwd=directory)
    assert "No module named 'tidelog'" in found.stderr, found.stderr
    return interpreter


def run_pipeline(file: Path, bootstrap: str, spark_cluster: SparkCluster, directory: Path) -> None:
    """Run it until it has read all there is; a worker is killed after a few micro-batches."""
    command = [sys.executable, "-m", "tidelog", "pipeline", "run", str(file), "--once", "--json"]
    command += ["--bootstrap", bootstrap, "--master", spark_cluster.url, "--state", str(directory / "state")]
    command += ["--conf", "spark.executor.memory=512m", "--conf", "spark.executor.cores=1"]
    command += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.memory=512m"]
    command += ["--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false"]
    python = python_without_tidelog(directory)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)}
    log = directory / "pipeline.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, env=environment, cwd=directory, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as run,
    ):
        assert run.stdout is not None
        try:
            lines = []
            for line in run.stdout:
                lines.append(line)
                if len(lines) == BATCHES_BEFORE_THE_KILL:
                    spark_cluster.kill_a_worker()
            code = run.wait(DEADLINE_S)
        finally:
            run.kill()
    spark_log = directory / "state" / "taxes" / "v1" / "logs" / "spark.log"
    assert code == 0, log.read_text()[-3000:] + (spark_log.read_text()[-5000:] if spark_log.exists() else "")
    assert len(lines) > BATCHES_BEFORE_THE_KILL, lines
