"""A version of a pipeline without Spark: the same promises, checkpoint files and registry, in milliseconds.

It sums amounts by key, batch after batch, exactly once: a batch's offsets are planned in a file, its results are
written in a transaction together with the batch's number, and then the batch is noted as done. Version 2 differs from
version 1 in ways that give added, changed, missing and equal keys. Run as a script, it hosts a version until it is
stopped; killed at any point, its next run goes on exactly.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

from tidelog import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition
from tidelog.pipeline import Json, Pipeline, TopicInput, TopicOutput
from tidelog.pipeline.versions.hosting import Host
from tidelog.pipeline.versions.position import checkpoint_dir
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import Progress, Role
from tidelog.pipeline.versions.run_lock import RunLock

INPUT = "orders"
OUTPUT = "totals"
_TRIGGER_S = 0.02


def declare(version: int) -> Pipeline:
    return Pipeline(
        name="totals",
        version=version,
        inputs={"orders": TopicInput(INPUT, format=Json("key string, amount long"))},
        transform=lambda orders: orders,
        outputs=[TopicOutput(OUTPUT, key=["key"], mode="upsert")],
        output_mode="update",
    )


def declaring_file(state_dir: Path, version: int) -> Path:
    """A file as a user would have it; this module must be on the path of whoever loads it."""
    file = state_dir.parent / f"totals_v{version}.py"
    if not file.exists():
        file.write_text(f"import plain_version\n\npipeline = plain_version.declare({version})\n")
    return file


def contribution(version: int, key: str, amount: int) -> int | None:
    """What a record adds to the total of its key; None when the version leaves it out."""
    number = int(key.removeprefix("k"))
    if version == 1:
        return None if number % 5 == 0 else amount  # forgets some keys
    if number % 5 == 1:
        return None  # and version 2 others
    return 2 * amount if number % 5 == 2 else amount  # and counts some twice


class PlainRun:
    """One run in one role, as `tidelog.pipeline.runner.PipelineRun`."""

    def __init__(self, state_dir: Path, bootstrap: str, version: int, role: Role) -> None:
        self.run_id: int | None = None
        self.progress = Progress()
        self._state_dir = state_dir
        self._bootstrap = bootstrap
        self._version = version
        self._role: Role = role
        self._directory = checkpoint_dir(state_dir, "totals", version) / "main"
        output = declare(version).outputs[0]
        placed = output.live(version) if role == "live" else output.shadow(version)
        assert isinstance(placed, TopicOutput)
        self._topic = placed.topic
        self._is_stopping = threading.Event()
        self._sums: dict[str, list[int]] = {}

    def request_stop(self) -> None:
        self._is_stopping.set()

    def run(self) -> None:
        with RunLock(self._state_dir, "totals", self._version), Registry(self._state_dir) as registry:
            file = declaring_file(self._state_dir, self._version)
            registry.note_version("totals", self._version, file=str(file), source=file.read_text())
            self.run_id = registry.start_run("totals", self._version, self._role)
            self._create_topic()
            try:
                self._run(registry, self.run_id)
            except BaseException as error:
                registry.end_run(self.run_id, "failed", repr(error))
                raise
            registry.end_run(self.run_id, "stopped")

    def _create_topic(self) -> None:
        with Admin(bootstrap_servers=self._bootstrap) as admin, contextlib.suppress(Exception):
            from tidelog import NewTopic

            count = len(admin.describe_topics(OUTPUT)[OUTPUT].partitions)
            admin.create_topics(NewTopic(self._topic, count, configs={"cleanup.policy": "compact"}))
            admin.wait_for_topics([self._topic])

    def _run(self, registry: Registry, run_id: int) -> None:
        identity = f"plain-v{self._version}"
        with (
            Producer(bootstrap_servers=self._bootstrap, transactional_id=identity) as producer,
            Consumer(bootstrap_servers=self._bootstrap, isolation_level="read_committed") as consumer,
            Admin(bootstrap_servers=self._bootstrap) as admin,
        ):
            producer.init_transactions()
            landed = admin.list_consumer_group_offsets(identity, require_stable=True).succeeded.get(identity, {})
            mark = landed.get(TopicPartition(INPUT, 0))
            landed_batch = -1 if mark is None else mark.offset
            partitions = [TopicPartition(INPUT, row.partition) for row in consumer.partitions_for(INPUT)]
            consumer.assign(partitions)
            batch, start = self._restore()
            registry.beat(run_id)
            while True:
                planned = self._planned(batch)
                if planned is None:
                    if self._is_stopping.is_set() or registry.stop_requested(run_id):
                        return
                    ends = {each.partition: end for each, end in consumer.end_offsets(partitions).items()}
                    if ends == start:
                        time.sleep(_TRIGGER_S)
                        continue
                    planned = ends
                    self._write(f"offsets/{batch}", f'v1\n{{"batch":{batch}}}\n{json.dumps({INPUT: planned})}')
                changed = self._add(consumer, start, planned)
                if batch > landed_batch:
                    with producer.transaction():
                        for key in changed:
                            value = json.dumps({"total": self._sums[key][0], "n": self._sums[key][1]})
                            producer.send_nowait(self._topic, value.encode(), key.encode())
                        done = {TopicPartition(INPUT, 0): OffsetAndMetadata(batch)}
                        producer.send_offsets_to_transaction(done, identity)
                self._write("state", json.dumps([batch, planned, self._sums]))
                self._write(f"commits/{batch}", "v1\n{}")
                start, batch = planned, batch + 1
                self.progress = Progress(batch_id=batch - 1, processed={INPUT: planned}, ends={INPUT: planned})
                registry.note_progress(run_id, self.progress)

    def _restore(self) -> tuple[int, dict[int, int]]:
        """The next batch and where it starts; the state of a batch that is not noted as done is not used."""
        try:
            batch, start, sums = json.loads((self._directory / "state").read_text())
        except FileNotFoundError:
            return 0, {}
        self._sums = sums
        if not (self._directory / "commits" / str(batch)).exists():
            self._write(f"commits/{batch}", "v1\n{}")
        return batch + 1, {int(partition): offset for partition, offset in start.items()}

    def _planned(self, batch: int) -> dict[int, int] | None:
        try:
            lines = (self._directory / "offsets" / str(batch)).read_text().splitlines()
        except FileNotFoundError:
            return None
        return {int(partition): offset for partition, offset in json.loads(lines[2])[INPUT].items()}

    def _add(self, consumer: Consumer, start: dict[int, int], end: dict[int, int]) -> list[str]:
        changed: dict[str, None] = {}
        waiting = {TopicPartition(INPUT, partition): offset for partition, offset in end.items()}
        waiting = {each: offset for each, offset in waiting.items() if start.get(each.partition, 0) < offset}
        for each in waiting:
            consumer.seek(each, start.get(each.partition, 0))
        consumer.pause([each for each in consumer.assignment() if each not in waiting])
        consumer.resume(list(waiting))
        while waiting:
            for record in consumer.poll(0.1):
                each = TopicPartition(record.topic, record.partition)
                if record.offset >= end[each.partition] or record.key is None:
                    continue
                key, amount = record.key.decode(), int(record.value)
                added = contribution(self._version, key, amount)
                if added is not None:
                    total, count = self._sums.get(key, [0, 0])
                    self._sums[key] = [total + added, count + 1]
                    changed[key] = None
            waiting = {each: offset for each, offset in waiting.items() if consumer.position(each) < offset}
        return list(changed)

    def _write(self, name: str, text: str) -> None:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text)
        os.replace(temporary, path)


def host(state_dir: Path, bootstrap: str, version: int) -> Host:
    return Host(state_dir, declare(version), lambda role: PlainRun(state_dir, bootstrap, version, role))


if __name__ == "__main__":
    state, address, number, first_role = sys.argv[1:]
    hosted = host(Path(state), address, int(number))
    hosted.run("live" if first_role == "live" else "shadow", handle_signals=True)
