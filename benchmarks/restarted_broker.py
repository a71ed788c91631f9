"""How long a restarted broker takes to be in sync again: `python benchmarks/restarted_broker.py [--partitions N]`.

Three brokers, processes of their own on one machine, hold topics with three replicas and some records in each
partition. One broker, not the controller, is stopped in order, some records are written, and it is started again; then
the same after kill -9. The table has the time from its start until it is back in all ISRs, the longest that another
broker took for one request meanwhile, and the processor time of all brokers.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

from tidelog import Admin, Producer
from tidelog.bench.brokers import TidelogBroker
from tidelog.bench.processes import cpu_s_of
from tidelog.client.admin import NewTopic

TOPICS = 20
RECORD_BYTES = 1000
DEADLINE_S = 170.0
STOPPED = 3
_POLL_S = 0.05


class Member(TidelogBroker):
    """One broker of the cluster."""

    def __init__(self, directory: Path, node_id: int) -> None:
        settings = {"default.replication.factor": "3", "min.insync.replicas": "2"}
        metadata = f"sqlite:{directory / 'metadata.sqlite'}"
        super().__init__(directory / f"process-{node_id}", settings=settings, node_id=node_id, metadata=metadata)


class Prober:
    """Asks a broker for its cluster over and over, and keeps the longest answer."""

    def __init__(self, bootstrap: str) -> None:
        self.longest_s = 0.0
        self._bootstrap = bootstrap
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            admin.describe_cluster()
            while not self._is_over.wait(0.005):
                begun_s = time.perf_counter()
                admin.describe_cluster()
                self.longest_s = max(self.longest_s, time.perf_counter() - begun_s)


def lacking(admin: Admin, names: list[str]) -> int:
    """How many partitions lack a replica in sync."""
    described = admin.describe_topics(names).succeeded.values()
    return sum(len(each.isr) < 3 for topic in described for each in topic.partitions)


def write(bootstrap: str, names: list[str], partitions: int) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for name in names:
            for index in range(partitions):
                producer.send(name, bytes(RECORD_BYTES), partition=index)


def wait_until_in_sync(admin: Admin, names: list[str]) -> None:
    deadline_s = time.perf_counter() + DEADLINE_S
    while lacking(admin, names):
        if time.perf_counter() > deadline_s:
            raise SystemExit(f"{lacking(admin, names)} partitions still lack a replica")
        time.sleep(_POLL_S)


def run(directory: Path, partitions: int) -> None:
    brokers = [Member(directory, node_id) for node_id in (1, 2, 3)]
    names = [f"topic-{number}" for number in range(TOPICS)]
    of_each = partitions // TOPICS
    try:
        for broker in brokers:
            broker.start()
        with Admin(bootstrap_servers=brokers[0].bootstrap) as admin:
            begun_s = time.perf_counter()
            admin.create_topics([NewTopic(name, of_each, 3) for name in names]).raise_for_errors()
            wait_until_in_sync(admin, names)
            print(f"{partitions} partitions created in {time.perf_counter() - begun_s:.1f} s")
            write(brokers[0].bootstrap, names, of_each)
            for how in ("stopped", "killed"):
                stopped = brokers[STOPPED - 1]
                if how == "stopped":
                    stopped.stop()
                else:
                    stopped.kill()
                write(brokers[0].bootstrap, names, of_each)
                cpu_s = [cpu_s_of(broker.pid) for broker in brokers if broker.is_running]
                with Prober(brokers[0].bootstrap) as prober:
                    begun_s = time.perf_counter()
                    stopped.start()
                    up_s = time.perf_counter() - begun_s
                    wait_until_in_sync(admin, names)
                    took_s = time.perf_counter() - begun_s
                spent_s = sum(cpu_s_of(broker.pid) for broker in brokers) - sum(cpu_s)
                print(
                    f"{how}: answers after {up_s:.2f} s, in sync after {took_s:.2f} s; longest answer of another "
                    f"broker {prober.longest_s * 1000:.0f} ms; processor time of all {spent_s:.1f} s"
                )
    finally:
        for broker in brokers:
            broker.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory), given.partitions)


if __name__ == "__main__":
    main()
