"""Runs copiers of one family from a topic to another in transactions, disturbs them, and looks at what they wrote.

Where brokers die, some libraries never end a call, or fail; whoever runs such programs restarts them, and `tend` does.
What must hold at the end: a reader of committed records finds each record of the source once, in the order of its
partition, and none of a transaction that was aborted, left open or fenced; another reader finds those as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from copiers.report import STALLED, TO_ABORT, TO_COMMIT, Options

SOURCE, TARGET, GROUP = "source", "target", "copiers"
PARTITIONS = 4
DEADLINE_S = 40.0
# A copier that has ended no transaction for this long, with brokers there and records to copy, is restarted.
SILENT_S = 45.0
# Twice as long as a transaction of a copier that was killed stays open.
STUCK_S = 120.0
PROGRAMS = {
    "aiokafka": "aiokafka_copier",
    "confluent-kafka": "confluent_copier",
    "kafka-python": "kafka_python_copier",
}
JAVA_PROGRAM = "io.tidelog.compat.TransactionalCopier"


@dataclass
class Copier:
    """One process, and what it said."""

    process: subprocess.Popen[str]
    options: Options
    said: list[dict[str, Any]] = field(default_factory=list)
    said_s: float = 0.0
    following: threading.Thread | None = None

    def has_said(self, event: str) -> bool:
        return any(line["event"] == event for line in self.said)

    @property
    def partitions(self) -> list[int]:
        """Those that it was assigned last."""
        return next((line["partitions"] for line in reversed(self.said) if line["event"] == "assigned"), [])


class CopyScenario:
    """The copiers, and the topics between which they copy; to be used as a context, at whose end no process is left."""

    def __init__(self, bootstrap: str, family: str, logs: Path, *, java_jars: Path | None = None) -> None:
        self._bootstrap = bootstrap
        self._family = family
        self._logs = logs
        self._java_jars = java_jars
        self._copiers: dict[str, Copier] = {}
        self._changed = threading.Condition()
        self._written = 0
        self._started = 0
        self.restarts: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for copier in self._copiers.values():
            copier.process.kill()
            self._end(copier)

    def write(self, count: int) -> None:
        """Add this many records to every partition of the source; their values number them."""
        # Idempotent, so that none of them is there twice if brokers die.
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True})
        for number in range(self._written, self._written + count):
            for partition in range(PARTITIONS):
                producer.produce(SOURCE, b"%d" % number, partition=partition)
        assert producer.flush(DEADLINE_S) == 0
        self._written += count

    def start(self, name: str, transactional_id: str, partitions: list[int] | None = None) -> None:
        """Start a copier and wait until its transactional id is its own."""
        seed = self._started
        self._started += 1
        self._launch(
            name,
            Options(self._bootstrap, GROUP, SOURCE, TARGET, transactional_id, seed=seed, partitions=partitions),
        )
        self.wait_until_said("ready", name)

    def _launch(self, name: str, options: Options) -> None:
        argument = json.dumps(asdict(options))
        if self._family == "java":
            command = ["java", "-Xmx128m", "-cp", f"{self._java_jars}/*", JAVA_PROGRAM, argument]
        else:
            command = [sys.executable, "-m", f"copiers.{PROGRAMS[self._family]}", argument]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        copier = self._copiers[name] = Copier(process, options, said_s=time.monotonic())
        copier.following = threading.Thread(target=self._follow, args=(copier,), name=f"following {name}")
        copier.following.start()

    def tend(self) -> None:
        """Restart the copiers that have failed, and those that have not ended a transaction for long."""
        for name, copier in list(self._copiers.items()):
            is_silent = time.monotonic() - copier.said_s > SILENT_S
            if is_silent or copier.process.poll() is not None:
                self.restarts.append(f"{name}: {'silent' if is_silent else 'failed'} after {copier.said[-2:]}")
                self.kill(name)
                self._launch(name, copier.options)

    def lead(self, name: str, line: str) -> None:
        """Tell a copier to `stall` inside its next transaction, or to `go` on."""
        stdin = self._copiers[name].process.stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def kill(self, name: str) -> None:
        copier = self._copiers[name]
        copier.process.kill()
        self._end(copier)

    def leave(self, name: str) -> None:
        """Have a copier end by itself after its transaction."""
        copier = self._copiers[name]
        stdin = copier.process.stdin
        assert stdin is not None
        stdin.close()
        assert copier.process.wait(DEADLINE_S) == 0, f"{name} failed; what it said is in {self._logs}"
        self._end(copier)

    def count(self, event: str, name: str) -> int:
        return sum(line["event"] == event for line in self._copiers[name].said)

    def wait_until_said(self, event: str, *names: str) -> None:
        self._wait(lambda: all(self._copiers[name].has_said(event) for name in names), f"{names} to be {event}")

    def wait_until_assigned(self, *names: str) -> None:
        """Wait until these copiers have all partitions among them, and each some."""

        def is_shared_out() -> bool:
            shares = [self._copiers[name].partitions for name in names]
            return all(shares) and sorted(chain.from_iterable(shares)) == list(range(PARTITIONS))

        self._wait(is_shared_out, f"{names} to share the partitions")

    def wait_until_copied(self) -> None:
        """Wait until readers of committed records have found as many as there are in the source."""
        consumer = reader(self._bootstrap, "read_committed")
        try:
            deadline, found = time.monotonic() + DEADLINE_S, 0
            while found < self._written * PARTITIONS:
                assert time.monotonic() < deadline, f"{found} records were copied; {self._state()}"
                found += sum(message.error() is None for message in consumer.consume(500, timeout=0.2))
        finally:
            consumer.close()

    def tend_until_copied(self) -> None:
        """As `wait_until_copied`, with copiers restarted where they need it; ends only when nothing moves any more."""
        consumer = reader(self._bootstrap, "read_committed")
        try:
            moved_s, found = time.monotonic(), 0
            while found < self._written * PARTITIONS:
                self.tend()
                more = sum(message.error() is None for message in consumer.consume(500, timeout=0.2))
                found, moved_s = found + more, time.monotonic() if more else moved_s
                assert time.monotonic() - moved_s < STUCK_S, f"{found} records were copied; {self._state()}"
        finally:
            consumer.close()

    def check_values(self) -> Rows:
        """Each record is there once, and in order."""
        expected = {partition: [b"%d" % number for number in range(self._written)] for partition in range(PARTITIONS)}
        committed = read(self._bootstrap, "read_committed")
        found = {partition: [value for _, value in rows] for partition, rows in committed.items()}
        assert found == expected, f"not copied as written; restarts: {self.restarts}"
        return committed

    def check(self) -> None:
        committed = self.check_values()
        everything = read(self._bootstrap, "read_uncommitted")
        keys = {key for rows in everything.values() for key, _ in rows}
        # Without these in the log, the reader of committed records would have had nothing to leave out.
        assert keys == {TO_COMMIT, TO_ABORT, STALLED}, keys
        committed_keys = {key for rows in committed.values() for key, _ in rows}
        assert committed_keys == {TO_COMMIT}, committed_keys

    def _follow(self, copier: Copier) -> None:
        assert copier.process.stdout is not None
        for line in copier.process.stdout:
            with self._changed:
                copier.said.append(json.loads(line))
                copier.said_s = time.monotonic()
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _end(self, copier: Copier) -> None:
        copier.process.wait()
        assert copier.following is not None
        copier.following.join()
        for stream in (copier.process.stdin, copier.process.stdout):
            if stream is not None:
                stream.close()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S), f"waited for {what}; {self._state()}"

    def _state(self) -> str:
        said = {name: (copier.process.poll(), copier.said[-3:]) for name, copier in self._copiers.items()}
        return f"{said}; logs in {self._logs}"


def reader(bootstrap: str, isolation: str, topic: str = TARGET, partitions: int = PARTITIONS) -> Consumer:
    """A consumer at the beginning of all partitions; it tells when it comes to the end of one."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    return consumer


Rows = dict[int, Sequence[tuple[bytes | None, bytes | None]]]


def read(bootstrap: str, isolation: str, topic: str = TARGET, partitions: int = PARTITIONS) -> Rows:
    """The keys and values of all records of each partition."""
    consumer = reader(bootstrap, isolation, topic, partitions)
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {partition: [] for partition in range(partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + DEADLINE_S
    try:
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"the ends of {ended} alone were reached"
            for message in consumer.consume(500, timeout=0.2):
                partition, error = message.partition(), message.error()
                assert partition is not None
                if error is None:
                    found[partition].append((_raw(message.key()), _raw(message.value())))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(partition)
    finally:
        consumer.close()
    return dict(found)


def _raw(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
