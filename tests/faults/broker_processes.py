"""Brokers as processes that share a metadata store, to be killed one by one; and a comparison of their files."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from network_namespaces import NetworkNamespaces
from tidelog import Admin
from tidelog.bench.brokers import TidelogBroker, free_port
from tidelog.records import iter_headers

REPLICATED: Mapping[str, object] = {"default.replication.factor": 3, "min.insync.replicas": 2}
# No ISR of a healthy cluster stays short for this long, however busy the machine.
IN_SYNC_S_MAX = 120.0


class ClusterBroker(TidelogBroker):
    """One broker of a cluster."""

    def __init__(
        self,
        directory: Path,
        node_id: int,
        settings: Mapping[str, object],
        metadata: str,
        networks: NetworkNamespaces | None = None,
    ) -> None:
        texts = {name: str(value) for name, value in settings.items()}
        super().__init__(directory / f"process-{node_id}", free_port(), settings=texts)
        self.node_id = node_id
        self._metadata = metadata
        self._data_dir = directory / "data"
        self._networks = networks

    @property
    def bootstrap(self) -> str:
        if self._networks is None:
            return super().bootstrap
        return f"{self._networks.address_of(self.node_id)}:{self.port}"

    @property
    def log_dir(self) -> Path:
        return self._data_dir / f"broker-{self.node_id}"

    def command(self) -> list[str]:
        own = ["--data", str(self._data_dir), "--node-id", str(self.node_id), "--metadata", self._metadata]
        command = [*super().command(), *own]
        return command if self._networks is None else self._networks.command(self.node_id, command)

    def pause(self) -> None:
        """Stop it where it is, as if it hung, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def output(self) -> str:
        return self.log_path.read_text(errors="replace")


class BrokerProcesses:
    """The brokers of a cluster, by node id."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        settings: Mapping[str, object] | None = None,
        metadata: str | Sequence[str] = "sqlite",
        networks: NetworkNamespaces | None = None,
    ) -> None:
        """`metadata` may name the store for each of them, if they reach it in different ways."""
        given = {**REPLICATED, **(settings or {})}
        stores = [metadata] * count if isinstance(metadata, str) else metadata
        self.brokers = {
            node_id: ClusterBroker(directory, node_id, given, store, networks)
            for node_id, store in enumerate(stores, start=1)
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start()

    def kill(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.stop()

    def wait_until_in_sync(self, topics: Iterable[str]) -> None:
        """Wait until all replicas are in the ISR again; gives up when no ISR has changed for long."""
        seen: object = None
        moved_s = time.monotonic()
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            while True:
                found = admin.describe_topics(topics)
                found.raise_for_errors()
                partitions = [(name, each) for name in found for each in found[name].partitions]
                waiting = [
                    (name, each.partition, each.leader_id, each.isr)
                    for name, each in partitions
                    if each.leader_id < 0 or sorted(each.isr) != sorted(each.replicas)
                ]
                if not waiting:
                    return
                if waiting != seen:
                    seen, moved_s = waiting, time.monotonic()
                assert time.monotonic() - moved_s < IN_SYNC_S_MAX, f"never in sync again: {waiting}"
                time.sleep(0.05)

    def compare_replicas(self, topic: str, partitions: int) -> dict[int, int]:
        """Assert that all replicas hold the same batches, byte by byte; returns the end offset of each partition.

        For brokers that have stopped. Replicas may start at other offsets, and roll their segments elsewhere.
        """
        ends = {}
        for index in range(partitions):
            contents = {
                node_id: dict(_batches(broker.log_dir / f"{topic}-{index}"))
                for node_id, broker in self.brokers.items()
                if (broker.log_dir / f"{topic}-{index}").exists()
            }
            assert len(contents) >= 2, f"{topic}-{index} has no replicas to compare: {sorted(contents)}"
            first = next(iter(contents))
            for node_id, batches in contents.items():
                assert batches.keys() == contents[first].keys(), _difference(topic, index, contents, first, node_id)
                for offset, batch in batches.items():
                    assert batch == contents[first][offset], f"{topic}-{index} differs at offset {offset}"
            last = max(contents[first], default=None)
            ends[index] = 0 if last is None else _last_offset(contents[first][last]) + 1
        return ends


def _batches(directory: Path) -> Iterator[tuple[int, bytes]]:
    for path in sorted(directory.glob("*.log")):
        content = path.read_bytes()
        for position, header in iter_headers(content):
            yield header.base_offset, content[position : position + header.size_bytes]


def _last_offset(batch: bytes) -> int:
    ((_, header),) = iter_headers(batch)
    return header.last_offset


def _difference(topic: str, index: int, contents: Mapping[int, Mapping[int, bytes]], one: int, other: int) -> str:
    left, right = set(contents[one]), set(contents[other])
    return (
        f"{topic}-{index}: broker {one} has {len(left)} batches, broker {other} {len(right)}; "
        f"only in {one}: {sorted(left - right)[:5]}, only in {other}: {sorted(right - left)[:5]}"
    )


@contextmanager
def broker_processes(
    directory: Path,
    count: int = 3,
    settings: Mapping[str, object] | None = None,
    metadata: str | Sequence[str] = "sqlite",
    networks: NetworkNamespaces | None = None,
) -> Iterator[BrokerProcesses]:
    """Started brokers, each in its network where there are some; they are killed in the end."""
    processes = BrokerProcesses(directory, count, settings, metadata, networks)
    try:
        processes.start()
        yield processes
    finally:
        processes.kill()
