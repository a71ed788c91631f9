"""A shop for tests of switches: orders that keep coming, versions without Spark, a stock consumer that notes all."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka

import plain_version
from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.pipeline.versions.hosting import Host
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import Offsets, Role, Switch, offsets_from_json

PARTITIONS = 3
KEYS = 40
_DEADLINE_S = 60.0


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"waited in vain: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Seen:
    """A record as a stock consumer got it."""

    partition: int
    offset: int
    key: str
    value: dict[str, int] | None
    switch: str | None


def _seen(message: confluent_kafka.Message) -> Seen:
    key, value, partition, offset = message.key(), message.value(), message.partition(), message.offset()
    assert isinstance(key, bytes)
    assert partition is not None
    assert offset is not None
    switch = dict(message.headers() or []).get("tidelog-switch")
    assert switch is None or isinstance(switch, bytes)
    return Seen(
        partition,
        offset,
        key.decode(),
        None if value is None else json.loads(value),
        None if switch is None else switch.decode(),
    )


@dataclass
class Shop:
    """A broker with orders that keep coming, versions that sum them up, and a reader of what they write."""

    bootstrap: str
    state_dir: Path
    seed: int
    seen: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            orders = NewTopic(plain_version.INPUT, PARTITIONS)
            totals = NewTopic(plain_version.OUTPUT, PARTITIONS, configs={"cleanup.policy": "compact"})
            admin.create_topics([orders, totals]).raise_for_errors()
            admin.wait_for_topics([plain_version.INPUT, plain_version.OUTPUT])
        self.registry = Registry(self.state_dir)
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []
        self.hosts: dict[int, tuple[Host, threading.Thread]] = {}
        self._sending: threading.Thread | None = None
        self._stop_sending = threading.Event()

    # Orders

    def start_orders(self) -> None:
        self._sending = threading.Thread(target=self._send)
        self._sending.start()

    def _send(self) -> None:
        random_ = random.Random(self.seed)
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            while not self._stop_sending.is_set():
                for _ in range(random_.randrange(10)):
                    key = f"k{random_.randrange(KEYS)}".encode()
                    producer.send_nowait(plain_version.INPUT, b"%d" % random_.randrange(100), key)
                producer.flush()
                self._stop_sending.wait(0.01)

    def stop_orders(self) -> None:
        self._stop_sending.set()
        if self._sending is not None:
            self._sending.join()

    def orders(self) -> list[tuple[int, int, str, int]]:
        """All orders: partition, offset, key, amount."""
        found = []
        with Consumer(bootstrap_servers=self.bootstrap) as consumer:
            partitions = [TopicPartition(plain_version.INPUT, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(partitions)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(each) < end for each, end in ends.items()):
                for record in consumer.poll(1.0):
                    found.append((record.partition, record.offset, record.key.decode(), int(record.value)))
        return found

    def expected(self, version: int, upto: Offsets | None = None) -> dict[str, dict[str, int]]:
        """What a version must have written when it has read up to these offsets, by a plain loop."""
        sums: dict[str, dict[str, int]] = {}
        for partition, offset, key, amount in self.orders():
            if upto is not None and offset >= upto.get(plain_version.INPUT, {}).get(partition, 0):
                continue
            added = plain_version.contribution(version, key, amount)
            if added is not None:
                row = sums.setdefault(key, {"total": 0, "n": 0})
                row["total"] += added
                row["n"] += 1
        return sums

    # Versions

    def launch(self, version: int) -> None:
        """What a command does that finds no process for a version."""
        is_live = self.registry.live_version("totals") == version
        if version not in self.hosts or not self.hosts[version][1].is_alive():
            self.host(version, "live" if is_live else "shadow")

    def host(self, version: int, role: Role) -> None:
        """Run a version in a thread, as its process would."""
        host = plain_version.host(self.state_dir, self.bootstrap, version)

        def run() -> None:
            try:
                host.run(role)
            except BaseException as error:  # noqa: BLE001 - told at the end of the test
                self.errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self.hosts[version] = host, thread

    def wait_for_batches(self, version: int, count: int = 1) -> None:
        def has_them() -> bool:
            run = self.registry.running("totals", version)
            return run is not None and run.progress.batch_id >= count - 1

        wait_until(has_them, f"{count} batches of version {version}")

    def wait_for_all(self, version: int) -> None:
        """Until the version has read all orders, which must have stopped."""
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for partition, offset, _, _ in self.orders():
            ends[partition] = max(ends[partition], offset + 1)

        def has_all() -> bool:
            run = self.registry.running("totals", version)
            return run is not None and run.progress.processed.get(plain_version.INPUT) == ends

        wait_until(has_all, f"version {version} to read all")

    # The reader

    def start_reader(self) -> None:
        thread = threading.Thread(target=self._read)
        thread.start()
        self._threads.append(thread)

    def _read(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )
        consumer.assign(
            [confluent_kafka.TopicPartition(plain_version.OUTPUT, number, 0) for number in range(PARTITIONS)]
        )
        try:
            while not self._is_over.is_set():
                for message in consumer.consume(100, 0.1):
                    assert message.error() is None, message.error()
                    self.seen.append(_seen(message))
        finally:
            consumer.close()

    def folded(self, seen: list[Seen] | None = None) -> dict[str, dict[str, int]]:
        """What a reader that keeps the last value of every key has."""
        state: dict[str, dict[str, int]] = {}
        for record in self.seen if seen is None else seen:
            if record.value is None:
                state.pop(record.key, None)
            else:
                state[record.key] = record.value
        return state

    def wait_for_reader(self, expected: dict[str, dict[str, int]]) -> None:
        wait_until(lambda: self.folded(list(self.seen)) == expected, "the reader to have seen all")

    def close(self) -> None:
        self.stop_orders()
        for host, thread in self.hosts.values():
            host.request_stop()
            thread.join()
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self.registry.close()
        assert self.errors == []


def check_switch(shop: Shop, switch: Switch) -> None:
    """The reader saw exactly what the switch had to change, where it had to, and nothing of it twice."""
    token = switch.data["token"]
    written = [record for record in shop.seen if record.switch == token]
    old_state = shop.expected(switch.from_version, offsets_from_json(switch.data["old_offsets"]))
    new_state = shop.expected(switch.to_version, offsets_from_json(switch.data["new_offsets"]))
    changed = {
        key: new_state.get(key)
        for key in old_state.keys() | new_state.keys()
        if old_state.get(key) != new_state.get(key)
    }
    assert len({record.key for record in written}) == len(written)
    assert {record.key: record.value for record in written} == changed
    counts = switch.data["outputs"]["totals"]
    assert counts["added"] == len(new_state.keys() - old_state.keys())
    assert counts["missing"] == len(old_state.keys() - new_state.keys())
    assert counts["added"] + counts["missing"] + counts["changed"] == len(changed)
    for partition in range(PARTITIONS):
        mine = [record for record in shop.seen if record.partition == partition]
        at = [index for index, record in enumerate(mine) if record.switch == token]
        if not at:
            continue
        # One run of records, with nothing of anybody between them: they were one transaction.
        assert at == list(range(at[0], at[-1] + 1))
        keys = {record.key for record in mine}
        before = {key: row for key, row in old_state.items() if key in keys}
        assert shop.folded(mine[: at[0]]) == before
        _check_updates(mine[at[-1] + 1 :], new_state)


def _check_updates(after: list[Seen], new_state: dict[str, dict[str, int]]) -> None:
    """Up to the next switch the count of a key only grows: no update comes twice, and none comes late."""
    counts = {key: row["n"] for key, row in new_state.items()}
    for record in itertools.takewhile(lambda record: record.switch is None, after):
        assert record.value is not None
        assert record.value["n"] > counts.get(record.key, 0)
        counts[record.key] = record.value["n"]
