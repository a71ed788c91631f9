"""What every measurement needs around it: a place on the disk, a topic that is led."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidelog.bench.brokers import BrokerProcess
from tidelog.client.admin import Admin, NewTopic, OffsetSpec
from tidelog.client.types import TopicPartition


@contextmanager
def work_directory(directory: Path | None) -> Iterator[Path]:
    """A temporary directory, inside the one given or the system's, removed afterwards."""
    work = Path(tempfile.mkdtemp(prefix="tidelog-bench-", dir=directory))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def led_topic(
    broker: BrokerProcess, name: str, settings: Mapping[str, str] | None = None, partitions: int = 1
) -> Iterator[Admin]:
    """A topic whose partitions all have a leader that answers; deleted afterwards."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, 1, settings or {})]).raise_for_errors()
        admin.wait_for_topics(name)
        # Kafka names the leader before it leads; this asks again until it answers.
        admin.list_offsets(
            dict.fromkeys((TopicPartition(name, number) for number in range(partitions)), OffsetSpec.LATEST)
        ).raise_for_errors()
        try:
            yield admin
        finally:
            admin.delete_topics(name).raise_for_errors()
