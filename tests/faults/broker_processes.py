"""Brokers as processes that share a metadata store, to be killed one by one; and a comparison of their files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidelog import Admin
from tidelog.bench.brokers import LOOPBACK, TidelogBroker
from tidelog.torture.networks import Networks
from tidelog.torture.replicas import compare_logs

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
        networks: Networks[int] | None = None,
    ) -> None:
        super().__init__(
            directory / f"process-{node_id}",
            settings={name: str(value) for name, value in settings.items()},
            host=LOOPBACK if networks is None else networks.address_of(node_id),
            prefix=() if networks is None else networks.prefix(node_id),
            data=directory / "data",
            node_id=node_id,
            metadata=metadata,
        )

    @property
    def log_dir(self) -> Path:
        return self.data / f"broker-{self.node_id}"

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
        networks: Networks[int] | None = None,
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

        For brokers that have stopped.
        """
        ends = {}
        for index in range(partitions):
            name = f"{topic}-{index}"
            replicas = {
                node_id: broker.log_dir / name
                for node_id, broker in self.brokers.items()
                if (broker.log_dir / name).exists()
            }
            assert len(replicas) >= 2, f"{name} has no replicas to compare: {sorted(replicas)}"
            compared = compare_logs(name, replicas)
            assert not compared.differences, compared.differences
            ends[index] = compared.end_offset
        return ends


@contextmanager
def broker_processes(
    directory: Path,
    count: int = 3,
    settings: Mapping[str, object] | None = None,
    metadata: str | Sequence[str] = "sqlite",
    networks: Networks[int] | None = None,
) -> Iterator[BrokerProcesses]:
    """Started brokers, each in its network where there are some; they are killed in the end."""
    processes = BrokerProcesses(directory, count, settings, metadata, networks)
    try:
        processes.start()
        yield processes
    finally:
        processes.kill()
