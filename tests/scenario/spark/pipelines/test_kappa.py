"""Versions of a pipeline on Spark: replayed beside the live one, compared, promoted under traffic, rolled back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import psycopg
import pyarrow.parquet as pq
import pytest

from pipeline_place import DEADLINE_S, Place
from tidelog.pipeline.loading import load
from tidelog.pipeline.versions.contents import Counts
from tidelog.pipeline.versions.kappa import Kappa
from tidelog.pipeline.versions.position import checkpoint_dir
from tidelog.pipeline.versions.process import ProcessSettings, VersionProcess
from tidelog.pipeline.versions.registry import Registry, RegistryError
from tidelog.pipeline.versions.registry_rows import Role
from tidelog.pipeline.versions.replay_monitor import Limits, ReplayStatus

CATEGORIES = 12
RATE = 400
# Version 1 forgets category 0 and counts category 2 once too often; version 2 leaves out category 1.
FILE = """
from pyspark.sql import functions as sf
from tidelog.pipeline import Json, ParquetOutput, Pipeline, PostgresOutput, TopicInput, TopicOutput

VERSION = {version}

def totals(orders):
    kept = orders.where(sf.col("category") != VERSION - 1)
    amount = sf.expr("if(category = 2, 2 * amount, amount)") if VERSION == 1 else sf.col("amount")
    return kept.groupBy("category").agg(sf.sum(amount).alias("total"), sf.count("*").alias("orders"))

pipeline = Pipeline(
    name="{name}",
    version=VERSION,
    inputs={{"orders": TopicInput("{name}", format=Json("category long, amount long"))}},
    transform=totals,
    outputs=[
        TopicOutput("{name}-totals", key=["category"], mode="upsert"),
        ParquetOutput("{directory}/totals", key=["category"], mode="upsert"),
        PostgresOutput("{postgres}", "kappa_totals", key=["category"]),
    ],
    output_mode="update",
    trigger="500 milliseconds",
)
"""


def order(number: int) -> dict[str, int]:
    return {"category": number % CATEGORIES, "amount": number % 7}


def expected(version: int, count: int) -> dict[int, dict[str, int]]:
    rows: dict[int, dict[str, int]] = {}
    for each in map(order, range(count)):
        category, amount = each["category"], each["amount"]
        if category != version - 1:
            row = rows.setdefault(category, {"category": category, "total": 0, "orders": 0})
            row["total"] += 2 * amount if version == 1 and category == 2 else amount
            row["orders"] += 1
    return rows


@dataclass
class Versions:
    """The versions of one pipeline, each in a thread as it would be in a process."""

    place: Place
    name: str
    directory: Path
    postgres: str
    statuses: list[ReplayStatus] = field(default_factory=list)
    processes: dict[int, tuple[VersionProcess, threading.Thread]] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = Registry(self.place.state_dir)
        self.kappa = Kappa(self.registry, self.name, self.place.bootstrap)
        self.file = self.directory / f"{self.name.replace('-', '_')}.py"

    def write_file(self, version: int) -> None:
        text = FILE.format(version=version, name=self.name, directory=self.directory, postgres=self.postgres)
        self.file.write_text(text)

    def start(self, version: int, role: Role, limits: Limits | None = None, *, until_caught_up: bool = False) -> None:
        from tidelog.pipeline.versions.source import load_version

        if self.registry.version(self.name, version) is None:
            pipeline, file = load(self.file, self.name), self.file
        else:
            pipeline, file = load_version(self.registry, self.name, version)
        assert pipeline.version == version
        settings = ProcessSettings(
            self.place.state_dir, self.place.bootstrap, "local[2]", {}, limits or Limits(), until_caught_up
        )
        process = VersionProcess(settings, pipeline, file, on_status=self.statuses.append, spark=self.place.spark)

        def run() -> None:
            try:
                process.run(role)
            except BaseException as error:  # noqa: BLE001 - told at the end of the test
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self.processes[version] = process, thread

    def launch(self, version: int) -> None:
        if version not in self.processes or not self.processes[version][1].is_alive():
            self.start(version, "live" if self.registry.live_version(self.name) == version else "shadow")

    def wait_for(self, version: int, count: int) -> None:
        """Until a version has read so many orders."""

        def has_them() -> bool:
            assert self.errors == []
            run = self.registry.running(self.name, version)
            return run is not None and sum(run.progress.processed.get(self.name, {}).values()) >= count

        wait_until(has_them, f"version {version} to read {count} orders")

    def close(self) -> None:
        for process, _ in self.processes.values():
            process.host.request_stop()
        for _, thread in self.processes.values():
            thread.join()
        self.registry.close()
        assert self.errors == []

    # What readers see

    def topic(self) -> dict[int, Any]:
        return {int(key): value for key, value in self.place.table(f"{self.name}-totals").items()}

    def parquet(self) -> dict[int, Any]:
        return {row["category"]: row for row in pq.read_table(self.directory / "totals").to_pylist()}

    def database(self) -> dict[int, Any]:
        with psycopg.connect(self.postgres) as connection:
            rows = connection.execute("SELECT category, total, orders FROM kappa_totals").fetchall()
        return {row[0]: {"category": row[0], "total": row[1], "orders": row[2]} for row in rows}


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + 2 * DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"waited in vain: {what}"
        time.sleep(0.05)


@pytest.fixture
def versions(place: Place, fresh_name: Callable[[str], str], postgres_url: str, tmp_path: Path) -> Iterator[Versions]:
    name = fresh_name("kappa")
    place.create(name)
    place.create(f"{name}-totals", 2, cleanup_policy="compact")
    opened = Versions(place, name, tmp_path, postgres_url)
    try:
        yield opened
    finally:
        opened.close()


class Reader(threading.Thread):
    """A stock consumer that notes all that it sees."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self.seen: list[tuple[int, dict[str, int] | None, bytes | None]] = []
        self.is_over = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "group.id": "r", "isolation.level": "read_committed"}
        self._consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
        self._consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(2)])

    def run(self) -> None:
        while not self.is_over.is_set():
            for message in self._consumer.consume(100, 0.1):
                assert message.error() is None
                key, value = message.key(), message.value()
                assert key is not None
                switch: Any = dict(message.headers() or []).get("tidelog-switch")
                self.seen.append((int(key), None if value is None else json.loads(value), switch))
        self._consumer.close()


@pytest.mark.timeout(400)
def test_replay_diff_promote_and_rollback(versions: Versions) -> None:
    place, name, kappa = versions.place, versions.name, versions.kappa
    place.send(name, [order(number) for number in range(1200)])
    versions.write_file(1)
    versions.start(1, "live")
    versions.wait_for(1, 1200)
    reader = Reader(place.bootstrap, f"{name}-totals")
    reader.start()

    # The file goes on to version 2, which is held to a rate.
    versions.write_file(2)
    with pytest.raises(RegistryError, match=r"version 1 of .* is live, not version 2"):
        VersionProcess(
            ProcessSettings(place.state_dir, place.bootstrap, "local[2]"), load(versions.file), versions.file
        ).run("live")
    versions.start(2, "shadow", Limits(max_rate=RATE), until_caught_up=True)
    _, thread = versions.processes[2]
    wait_until(lambda: not thread.is_alive(), "the replay to end")
    assert versions.statuses[-1].is_caught_up
    assert all(status.rows_per_s <= 4 * RATE for status in versions.statuses)
    assert versions.registry.live_version(name) == 1

    # Both have read the same, so the differences are those of the code.
    place_counts = Counts(added=1, changed=1, missing=1, equal=CATEGORIES - 3)
    found = kappa.diff(2, samples=5, patience_s=10)
    assert found.is_same_position, (found.old_at, found.new_at, versions.statuses[-1])
    assert [output.counts for output in found.outputs] == [place_counts] * 3
    changed = next(sample for sample in found.outputs[0].samples if sample.kind == "changed")
    assert (changed.key, changed.old, changed.new) == (2, expected(1, 1200)[2], expected(2, 1200)[2])
    assert versions.topic() == versions.parquet() == versions.database() == expected(1, 1200)

    # Its last batch looks as if it was killed before it was noted: it is ended beside the live one, not in its place.
    commits = checkpoint_dir(place.state_dir, name, 2) / "main" / "commits"
    max(commits.glob("[0-9]*"), key=lambda path: int(path.name)).unlink()
    promoted = kappa.promote(2, versions.launch, lambda text: None)
    numbers = {"added": 1, "changed": 1, "missing": 1, "equal": CATEGORIES - 3}
    assert promoted.data["outputs"][f"{name}-totals"] == numbers
    wait_until(lambda: not versions.processes[1][1].is_alive(), "version 1 to end")
    assert versions.topic() == versions.parquet() == versions.database() == expected(2, 1200)
    wait_until(lambda: any(switch for _, _, switch in reader.seen), "the reader to see the switch")
    first = next(index for index, (_, _, switch) in enumerate(reader.seen) if switch)
    switched = {key: value for key, value, switch in reader.seen if switch}
    assert switched == {0: expected(2, 1200)[0], 1: None, 2: expected(2, 1200)[2]}
    assert first == len(reader.seen) - 3

    # Version 2 goes on where it stopped: every update once, none missing.
    place.send(name, [order(number) for number in range(1200, 1500)])
    versions.wait_for(2, 1500)
    assert versions.topic() == versions.parquet() == versions.database() == expected(2, 1500)
    wait_until(lambda: len(reader.seen) > first + 3, "the reader to see updates")
    for key, value, _ in reader.seen[first + 3 :]:
        assert value is not None
        assert value["orders"] > expected(2, 1200)[key]["orders"]

    # And back: version 1 reads what it has missed, and takes over with its own.
    def wait_until_near(version: int) -> None:
        versions.wait_for(version, 1500)

    back = kappa.rollback(versions.launch, lambda text: None, wait_until_near)
    assert (back.kind, back.to_version, back.data["outputs"][f"{name}-totals"]) == ("rollback", 1, numbers)
    assert versions.topic() == versions.parquet() == versions.database() == expected(1, 1500)
    place.send(name, [order(number) for number in range(1500, 1600)])
    versions.wait_for(1, 1600)
    assert versions.topic() == versions.parquet() == versions.database() == expected(1, 1600)
    reader.is_over.set()
    reader.join()
