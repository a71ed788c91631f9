"""What clients do to a cluster while its brokers fail, and what each of them may rely on meanwhile.

Feeders write numbered records to one topic; copiers copy it to another in transactions, and abort some of them; members
of groups read it and commit; readers look at the copy and at the groups' offsets. What always holds: a worker checks
what it sees as it sees it, and the first fault ends it with its reason; it counts what it got done, so that a test
waits for progress and not for a time. A worker goes on over every error that a client may get while brokers fail.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from broker_processes import BrokerProcesses
from tidelog import Admin, Consumer, Producer
from tidelog.client.admin import NewTopic, OffsetSpec
from tidelog.client.errors import AbortableError, ClientError, CommitFailedError, RetriableError
from tidelog.client.types import OffsetAndMetadata, TopicPartition

SOURCE, COPY = "source", "copy"
PARTITIONS = 3
# So that clients of a broker that hangs look for another one soon; the default is 30 s.
_REQUEST_TIMEOUT_MS = 5_000
# A worker that gets nothing done for this long is stuck. Far more than any time-out of the clients and brokers.
STUCK_S = 120.0
# So that what is written is soon copied, and the load costs the machine little.
_AHEAD_MAX = 1_000
_ABORTED = b"aborted"


class Worker(ABC):
    """One client in a thread of its own."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.done = 0
        self.fault: Exception | None = None
        self.last_error: ClientError | None = None
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self.is_over.set()
        self._thread.join()

    def check(self) -> None:
        if self.fault is not None:
            raise AssertionError(f"{self.name}: {self.fault}") from self.fault

    def _main(self) -> None:
        try:
            self.run()
        except (ClientError, AssertionError) as fault:  # reported by `check`, in the test's thread
            self.fault = fault

    @abstractmethod
    def run(self) -> None:
        """Work until `is_over` is set."""


def wait_for_progress(workers: Sequence[Worker], more: int) -> None:
    """Wait until each of them got this much more done; those that have not must be getting on."""
    goals = {worker: worker.done + more for worker in workers}
    seen: dict[Worker, int] = {}
    moved_s: dict[Worker, float] = {}
    while waiting := [worker for worker, goal in goals.items() if worker.done < goal]:
        check_all(workers)
        now_s = time.monotonic()
        for worker in waiting:
            if seen.get(worker) != worker.done:
                seen[worker], moved_s[worker] = worker.done, now_s
        stuck = [worker for worker in waiting if now_s - moved_s[worker] > STUCK_S]
        assert not stuck, f"nothing done for {STUCK_S:g} s: {describe(stuck)}; all: {describe(workers)}"
        time.sleep(0.02)


def wait_until(condition: Callable[[], bool], what: Callable[[], object], workers: Sequence[Worker]) -> None:
    """Wait for a condition, as long as `what` still changes."""
    seen: object = None
    moved_s = time.monotonic()
    while not condition():
        check_all(workers)
        if (now := what()) != seen:
            seen, moved_s = now, time.monotonic()
        assert time.monotonic() - moved_s < STUCK_S, f"nothing moves any more: {now}; {describe(workers)}"
        time.sleep(0.02)


def check_all(workers: Iterable[Worker]) -> None:
    for worker in workers:
        worker.check()


def describe(workers: Iterable[Worker]) -> str:
    return ", ".join(f"{worker.name} {worker.done} ({worker.last_error!r})" for worker in workers)


class Feeder(Worker):
    """Writes numbered records to all partitions, idempotent and with acks=all: those are the defaults."""

    def __init__(self, bootstrap: str, name: str, copied: Callable[[], int] = lambda: 0) -> None:
        super().__init__(bootstrap, name)
        self.acknowledged: set[int] = set()
        self._copied = copied

    def run(self) -> None:
        number = 0
        with Producer(
            bootstrap_servers=self.bootstrap, linger_ms=2, request_timeout_ms=_REQUEST_TIMEOUT_MS
        ) as producer:
            while not self.is_over.is_set():
                if self.done > self._copied() + _AHEAD_MAX:
                    self.is_over.wait(0.01)
                    continue
                futures = []
                for _ in range(20):
                    value = b"%s-%d" % (self.name.encode(), number)
                    futures.append((number, producer.send(SOURCE, value, partition=number % PARTITIONS)))
                    number += 1
                for sent, future in futures:
                    future.result()  # two minutes of retries are enough for any of these faults
                    self.acknowledged.add(sent)
                    self.done += 1
                self.is_over.wait(0.04)


class Group:
    """The offsets of a group that its members know to be committed."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.acknowledged: dict[TopicPartition, int] = {}
        self._guard = threading.Lock()

    def acknowledge(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self._guard:
            for key, stored in offsets.items():
                self.acknowledged[key] = max(stored.offset, self.acknowledged.get(key, 0))

    def floor(self) -> dict[TopicPartition, int]:
        with self._guard:
            return dict(self.acknowledged)


class Copier(Worker):
    """Copies what it reads, in transactions that hold the offsets, too; every tenth or so is aborted.

    Its records say the offset that they were read from, in the partition of the same number.
    """

    def __init__(self, bootstrap: str, name: str, group: Group, seed: int) -> None:
        super().__init__(bootstrap, name)
        self._group = group
        self._source = random.Random(seed)

    def run(self) -> None:
        while not self.is_over.is_set():
            try:
                self._copy()
            except ClientError as error:
                # As applications do: whether the last transaction counts is told by its offsets, so start from those.
                self.last_error = error

    def _copy(self) -> None:
        with (
            Consumer(
                bootstrap_servers=self.bootstrap,
                group_id=self._group.group_id,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                request_timeout_ms=_REQUEST_TIMEOUT_MS,
            ) as consumer,
            Producer(
                bootstrap_servers=self.bootstrap,
                transactional_id=self.name,
                linger_ms=2,
                request_timeout_ms=_REQUEST_TIMEOUT_MS,
            ) as producer,
        ):
            consumer.subscribe([SOURCE])
            while not self.is_over.is_set():
                try:
                    self._transact(consumer, producer)
                except AbortableError as error:
                    self.last_error = error
                    consumer.seek_to_committed()
                except _UnwantedError:
                    consumer.seek_to_committed()

    def _transact(self, consumer: Consumer, producer: Producer) -> None:
        if not (records := consumer.poll(0.2)):
            return
        is_wanted = self._source.random() > 0.1
        positions = consumer.positions()
        with producer.transaction():
            for record in records:
                value = b"%d" % record.offset if is_wanted else _ABORTED
                producer.send(COPY, value, partition=record.partition)
            producer.send_offsets_to_transaction(positions, consumer.group_metadata())
            if not is_wanted:
                producer.flush()
                raise _UnwantedError
        self._group.acknowledge(positions)
        self.done += 1


class _UnwantedError(Exception):
    """A copier does not want what it wrote in this transaction."""


class Member(Worker):
    """Reads the source as a member of a group and commits after each poll."""

    def __init__(self, bootstrap: str, name: str, group: Group, protocol: str) -> None:
        super().__init__(bootstrap, name)
        self._group = group
        self._protocol = protocol

    def run(self) -> None:
        with Consumer(
            bootstrap_servers=self.bootstrap,
            group_id=self._group.group_id,
            group_protocol=self._protocol,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
        ) as consumer:
            consumer.subscribe([SOURCE])
            while not self.is_over.is_set():
                if not consumer.poll(0.2):
                    continue
                positions = consumer.positions()
                try:
                    consumer.commit_sync(positions)
                except (RetriableError, CommitFailedError) as error:
                    self.last_error = error
                else:
                    self._group.acknowledge(positions)
                    self.done += 1


class OffsetWatcher(Worker):
    """Reads the offsets of groups: they never go back, not behind what a member was told either."""

    def __init__(self, bootstrap: str, groups: Sequence[Group]) -> None:
        super().__init__(bootstrap, "offset watcher")
        self._groups = groups

    def run(self) -> None:
        with Admin(bootstrap_servers=self.bootstrap, request_timeout_ms=_REQUEST_TIMEOUT_MS) as admin:
            while not self.is_over.is_set():
                floors = {group.group_id: group.floor() for group in self._groups}
                try:
                    self.look(admin, floors)
                except RetriableError as error:
                    self.last_error = error
                self.is_over.wait(0.05)

    def look(self, admin: Admin, floors: Mapping[str, Mapping[TopicPartition, int]]) -> None:
        # By name: of all partitions of a group, those that have only offsets of open transactions would be left out.
        partitions = [TopicPartition(SOURCE, index) for index in range(PARTITIONS)]
        wanted = {group.group_id: partitions for group in self._groups}
        found = admin.list_consumer_group_offsets(wanted, require_stable=True)
        found.raise_for_errors()
        for group in self._groups:
            stored = found[group.group_id]
            for key, offset in floors[group.group_id].items():
                now = stored[key].offset if key in stored else None
                assert now is not None, f"{group.group_id} lost its offset of {key}, which was {offset}"
                assert now >= offset, f"{group.group_id} went back from {offset} to {now} in {key}"
            group.acknowledge(stored)
        self.done += 1


class CopyReader(Worker):
    """Reads what is committed of the copy: each record of the source once, in order, and nothing aborted."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, "reader of the copy")
        self.copied = dict.fromkeys(range(PARTITIONS), 0)

    def run(self) -> None:
        with Consumer(
            bootstrap_servers=self.bootstrap,
            auto_offset_reset="none",
            isolation_level="read_committed",
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
        ) as consumer:
            partitions = [TopicPartition(COPY, index) for index in range(PARTITIONS)]
            consumer.assign(partitions)
            for each in partitions:
                consumer.seek(each, 0)
            offsets = dict.fromkeys(range(PARTITIONS), -1)
            while not self.is_over.is_set():
                try:
                    records = consumer.poll(0.2)
                except RetriableError as error:
                    self.last_error = error
                    continue
                for record in records:
                    place = f"{record.topic}-{record.partition} at {record.offset}"
                    assert record.offset > offsets[record.partition], f"{place} was read before"
                    offsets[record.partition] = record.offset
                    assert record.value != _ABORTED, f"{place} was aborted"
                    expected = self.copied[record.partition]
                    assert record.value == b"%d" % expected, f"{place} is a copy of {record.value!r}, not of {expected}"
                    self.copied[record.partition] += 1
                    self.done += 1


class ClusterLoad:
    """All of these at once on one cluster; `finish` checks what is left of it."""

    def __init__(self, cluster: BrokerProcesses, seed: int) -> None:
        self._cluster = cluster
        address = cluster.bootstrap
        groups = {name: Group(name) for name in ("copiers", "classic", "consumer")}
        self._reader = CopyReader(address)
        self._feeders = [Feeder(address, f"feeder{number}", lambda: self._reader.done) for number in range(2)]
        self._copiers = [
            Copier(address, f"copier{number}", groups["copiers"], seed * 2 + number) for number in range(2)
        ]
        self._members = [
            Member(address, f"{protocol} member {number}", groups[protocol], protocol)
            for protocol in ("classic", "consumer")
            for number in range(2)
        ]
        self._watcher = OffsetWatcher(address, list(groups.values()))
        self._groups = groups
        self.workers: list[Worker] = [*self._feeders, *self._copiers, *self._members, self._watcher, self._reader]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def stop(self) -> None:
        for worker in self.workers:
            worker.is_over.set()
        for worker in self.workers:
            worker.finish()

    def finish(self) -> None:
        """Let the rest be copied and read by everyone, and end the load."""
        for feeder in self._feeders:
            feeder.finish()
            feeder.check()
        with Admin(bootstrap_servers=self._cluster.bootstrap) as admin:
            wanted = {TopicPartition(SOURCE, index): OffsetSpec.LATEST for index in range(PARTITIONS)}
            found = admin.list_offsets(wanted)
            found.raise_for_errors()
            ends = {key: found[key].offset for key in wanted}
        written = sum(ends.values())
        acknowledged = sum(len(feeder.acknowledged) for feeder in self._feeders)
        assert written == acknowledged, f"{acknowledged} records are acknowledged, {written} are there"
        rest = [worker for worker in self.workers if not isinstance(worker, Feeder)]
        wait_until(lambda: self._state() == self._wanted(ends), self._state, rest)
        self.stop()
        check_all(self.workers)

    def _state(self) -> list[dict[TopicPartition, int]]:
        """How far the readers of the source have come: the copy, and the offsets of each group."""
        copied = {TopicPartition(SOURCE, index): count for index, count in self._reader.copied.items()}
        return [copied, *(group.floor() for group in self._groups.values())]

    def _wanted(self, ends: dict[TopicPartition, int]) -> list[dict[TopicPartition, int]]:
        return [ends] * (1 + len(self._groups))


@contextmanager
def cluster_load(cluster: BrokerProcesses, seed: int) -> Iterator[ClusterLoad]:
    """The load while the test does its worst; what it leaves is checked after that."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in (SOURCE, COPY)]).raise_for_errors()
    load = ClusterLoad(cluster, seed)
    load.start()
    try:
        yield load
        load.finish()
    finally:
        load.stop()


@contextmanager
def loaded(cluster: BrokerProcesses, seed: int, topics: Mapping[str, int]) -> Iterator[ClusterLoad]:
    """The load on a cluster that is well; in the end, the brokers stop, and all replicas of these topics are equal."""
    with cluster_load(cluster, seed) as load:
        wait_for_progress(load.workers, 2)
        cluster.wait_until_in_sync(topics)
        yield load
    cluster.stop()
    for topic, partitions in topics.items():
        cluster.compare_replicas(topic, partitions)
    for broker in cluster.brokers.values():
        assert "Traceback" not in broker.output(), broker.output()
