"""A cluster and a state directory of one test of pipelines: topics with records in them, runs, what came out."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog import Admin, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from tidelog.pipeline import Pipeline
from tidelog.pipeline.runner import PipelineRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_S = 60.0


@dataclass
class Place:
    """A cluster and a state directory of one test."""

    bootstrap: str
    state_dir: Path
    spark: SparkSession | None

    def create(self, topic: str, partitions: int = 2, **configs: str) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            named = {name.replace("_", "."): value for name, value in configs.items()}
            admin.create_topics(NewTopic(topic, partitions, configs=named))[topic]

    def send(self, topic: str, values: Sequence[Any], keys: Sequence[Any] | None = None) -> None:
        """Values as JSON unless they are bytes or None; a partition by turns without keys."""
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            for value, key in zip(values, keys or itertools.repeat(None), strict=False):
                producer.send_nowait(topic, value=_bytes(value), key=_bytes(key))
            producer.flush()

    def read(self, topic: str) -> list[ConsumerRecord]:
        """All committed records of a topic."""
        with (
            Admin(bootstrap_servers=self.bootstrap) as admin,
            Consumer(
                bootstrap_servers=self.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
            ) as consumer,
        ):
            count = len(admin.describe_topics(topic)[topic].partitions)
            partitions = [TopicPartition(topic, index) for index in range(count)]
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            found: list[ConsumerRecord] = []
            deadline_s = time.monotonic() + DEADLINE_S
            while any(consumer.position(each) < ends[each] for each in partitions):
                assert time.monotonic() < deadline_s, f"{topic} can't be read to its end"
                found += consumer.poll(0.2)
        return found

    def rows(self, topic: str) -> list[Any]:
        """The values of a topic, as JSON."""
        return [None if record.value is None else json.loads(record.value) for record in self.read(topic)]

    def table(self, topic: str) -> dict[bytes, Any]:
        """The last value of each key, as JSON."""
        found: dict[bytes, Any] = {}
        for record in self.read(topic):
            found[record.key] = None if record.value is None else json.loads(record.value)
        return {key: value for key, value in found.items() if value is not None}

    def run(self, pipeline: Pipeline, **options: Any) -> PipelineRun:
        """Run a pipeline over what is there."""
        run = self.make_run(pipeline, once=True, **options)
        run.run()
        return run

    def make_run(self, pipeline: Pipeline, **options: Any) -> PipelineRun:
        options = {"bootstrap": self.bootstrap, "state_dir": self.state_dir, "master": "local[2]", **options}
        return PipelineRun(pipeline, spark=self.spark, **options)


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
