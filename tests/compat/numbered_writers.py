"""Producers of each family that write numbered records while the test does something to the brokers.

Each has its library's defaults, but for acks=all where that is not the default, and idempotence where the library has
it. What must hold: no record fails, and each is there once, in the order it was sent, among those of its key.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import aiokafka
import confluent_kafka

from copy_scenario import read
from tidelog import DeliveryFuture, Producer

TOPIC = "numbered"
PARTITIONS = 4
KEYS = 97
# As long as a producer's own patience, by its default.
STUCK_S = 120.0
_AT_ONCE = 10
_PAUSE_S = 0.02


class Writer(ABC):
    """One producer, in a thread of its own, and what it was told."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = f"{TOPIC}-{type(self).__name__}"
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self.run, name=self.topic)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self._thread.join()

    @abstractmethod
    def run(self) -> None:
        """Write numbers until `is_over` is set, then wait for the rest of the acknowledgements."""

    def settle(self, number: int, error: object) -> None:
        if error is None:
            self.acknowledged.append(number)
        else:
            self.failed.append(f"{number}: {error}")


class Ours(Writer):
    def run(self) -> None:
        number = 0
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            while not self.is_over.wait(_PAUSE_S):
                for sent in range(number, number + _AT_ONCE):
                    future = producer.send(self.topic, b"%d" % sent, key=b"%d" % (sent % KEYS))
                    future.add_done_callback(partial(self._on_done, sent))
                number += _AT_ONCE

    def _on_done(self, number: int, future: DeliveryFuture) -> None:
        self.settle(number, future.exception())


class Confluent(Writer):
    def run(self) -> None:
        number = 0
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        while not self.is_over.wait(_PAUSE_S):
            for sent in range(number, number + _AT_ONCE):
                producer.produce(
                    self.topic,
                    b"%d" % sent,
                    key=b"%d" % (sent % KEYS),
                    on_delivery=partial(self._on_delivery, sent),
                )
            producer.poll(0)
            number += _AT_ONCE
        producer.flush()

    def _on_delivery(self, number: int, error: object, message: object) -> None:
        self.settle(number, error)


class Aiokafka(Writer):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        number = 0
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True) as producer:
            while not self.is_over.is_set():
                sent = [
                    (each, await producer.send(self.topic, b"%d" % each, key=b"%d" % (each % KEYS)))
                    for each in range(number, number + _AT_ONCE)
                ]
                number += _AT_ONCE
                answers = await asyncio.gather(*(future for _, future in sent), return_exceptions=True)
                for (each, _), answer in zip(sent, answers, strict=True):
                    self.settle(each, answer if isinstance(answer, BaseException) else None)
                await asyncio.sleep(_PAUSE_S)


class Program(Writer):
    """A producer in a process of its own: it tells a line for each record, and ends with its standard input."""

    def __init__(self, bootstrap: str, logs: Path) -> None:
        super().__init__(bootstrap)
        self._log = logs / f"{self.topic}.log"

    @abstractmethod
    def command(self) -> list[str]:
        """The program; its last argument is told where to write."""

    def run(self) -> None:
        command = [*self.command(), json.dumps({"bootstrap": self.bootstrap, "topic": self.topic})]
        with ExitStack() as stack:
            log = stack.enter_context(self._log.open("ab"))
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
            )
            stdin, stdout = process.stdin, process.stdout
            assert stdin is not None
            assert stdout is not None

            def end() -> None:
                self.is_over.wait()
                stdin.close()

            ending = threading.Thread(target=end)
            ending.start()
            for line in stdout:
                if line.startswith("failed"):
                    self.failed.append(line)
                else:
                    self.acknowledged.append(int(line))
            self.is_over.set()
            ending.join()


class KafkaPython(Program):
    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("kafka_python_writer.py"))]


class Java(Program):
    def __init__(self, bootstrap: str, logs: Path, jars: Path) -> None:
        super().__init__(bootstrap, logs)
        self._jars = jars

    def command(self) -> list[str]:
        return ["java", "-Xmx128m", "-cp", f"{self._jars}/*", "io.tidelog.compat.NumberedWriter"]


def wait_for_progress(writers: Sequence[Writer], more: int) -> None:
    """Wait until this many more records of each are acknowledged, as long as it gets on."""
    goals = {writer: len(writer.acknowledged) + more for writer in writers}
    seen: dict[Writer, tuple[int, float]] = {}
    while waiting := [writer for writer, goal in goals.items() if len(writer.acknowledged) < goal]:
        for writer in waiting:
            assert not writer.failed, f"{writer.topic}: {writer.failed[:3]}"
            count, since_s = seen.get(writer, (-1, 0.0))
            if count != len(writer.acknowledged):
                seen[writer] = len(writer.acknowledged), time.monotonic()
            else:
                assert time.monotonic() - since_s < STUCK_S, f"{writer.topic} gets nothing done: {seen[writer]}"
        time.sleep(0.02)


def check(writers: Iterable[Writer]) -> None:
    """For writers that have ended."""
    for writer in writers:
        assert not writer.failed, f"{writer.topic}: {writer.failed[:3]}"
        numbers: dict[bytes | None, list[int]] = defaultdict(list)
        for rows in read(writer.bootstrap, "read_committed", writer.topic, PARTITIONS).values():
            for key, value in rows:
                numbers[key].append(int(value or b"-1"))
        for found in numbers.values():
            assert found == sorted(set(found)), f"{writer.topic}: doubled, or out of order"
        assert set().union(*numbers.values()) == set(writer.acknowledged), writer.topic
