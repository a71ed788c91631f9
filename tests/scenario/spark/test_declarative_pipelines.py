"""The source and the sink inside Spark's declarative pipelines, run by `spark-pipelines`; no line registers them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.bench.brokers import BrokerProcess

# Several JVMs start here, which takes its time on a busy machine.
pytestmark = [pytest.mark.timeout(600), pytest.mark.compat]

SPEC = """\
name: orders
storage: {storage}
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "2"
"""
DEFINITIONS = """\
from pyspark import pipelines as dp
from pyspark.sql import functions as F

BROKER = {{"kafka.bootstrap.servers": "{bootstrap}"}}

dp.create_sink("large_orders", "tidelog", {{**BROKER, "topic": "{target}"}})


@dp.temporary_view
def orders():
    source = spark.readStream.format("tidelog").options(**BROKER, subscribe="{source}", startingOffsets="earliest")
    return source.load().select("key", F.col("value").cast("string").cast("int").alias("amount"))


@dp.append_flow(target="large_orders")
def write_large_orders():
    large = spark.readStream.table("orders").where("amount >= 500")
    return large.select("key", F.col("amount").cast("string").alias("value"))
"""
DEADLINE_S = 280


def run_pipelines(project: Path) -> str:
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONWARNINGS": "default",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [str(home / "bin" / "spark-pipelines"), "run", "--spec", str(project / "spark-pipeline.yml")]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def values_of(bootstrap: str, topic: str) -> list[tuple[bytes, bytes]]:
    place = TopicPartition(topic, 0)
    rows: list[tuple[bytes, bytes]] = []
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        while consumer.position(place) < end:
            rows += [(record.key, record.value) for record in consumer.poll(timeout=1.0)]
    return rows


def send_orders(bootstrap: str, topic: str, amounts: range) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for amount in amounts:
            producer.send(topic, b"%d" % amount, key=b"order %d" % amount)


def test_a_declarative_pipeline_reads_and_writes_topics(
    cluster: BrokerProcess, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    source, target = fresh_name("orders"), fresh_name("large")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(source, 2, 1), NewTopic(target, 1, 1)]).raise_for_errors()
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(storage=(tmp_path / "storage").as_uri()))
    definitions = DEFINITIONS.format(bootstrap=cluster.bootstrap, source=source, target=target)
    (tmp_path / "transformations" / "orders.py").write_text(definitions)

    send_orders(cluster.bootstrap, source, range(1000))
    run_pipelines(tmp_path)
    assert sorted(values_of(cluster.bootstrap, target)) == sorted(
        (b"order %d" % amount, b"%d" % amount) for amount in range(500, 1000)
    )

    # A second run goes on where the first one ended.
    send_orders(cluster.bootstrap, source, range(1000, 1100))
    run_pipelines(tmp_path)
    assert sorted(values_of(cluster.bootstrap, target)) == sorted(
        (b"order %d" % amount, b"%d" % amount) for amount in range(500, 1100)
    )
