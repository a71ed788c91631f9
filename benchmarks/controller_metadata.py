"""How long a controller takes over thousands of partitions: `benchmarks/controller_metadata.py [--partitions N]`.

A controller over a SQLite store in a temporary directory gets topics with three replicas. Then a new one is elected and
loads them, a broker is fenced and registers again, and its leaders ask for all ISRs with it. The table has the time of
each step, and the longest time that the event loop was held meanwhile, during which the broker would serve nobody.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
import uuid
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from tidelog.common.clock import SystemClock
from tidelog.common.endpoint import Endpoint
from tidelog.controller import BrokerInfo, Controller, IsrChange, IsrMember, NewTopic
from tidelog.metadata.sqlite import SqliteStore
from tidelog.server.settings_load import load

T = TypeVar("T")
NODES = (1, 2, 3)
TOPIC_PARTITIONS = 100
ISR_CHANGES_PER_REQUEST = 1000


class LoopWatch:
    """Measures steps, and how long the loop was held at a time."""

    def __init__(self) -> None:
        self.held_s = 0.0
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        before_s = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now_s = time.perf_counter()
            self.held_s = max(self.held_s, now_s - before_s)
            before_s = now_s

    async def measure(self, what: str, step: Awaitable[T]) -> T:
        await asyncio.sleep(0.01)
        self.held_s = 0.0
        begun_s = time.perf_counter()
        result = await step
        took_s = time.perf_counter() - begun_s
        await asyncio.sleep(0)
        print(f"{what:<46}{took_s * 1000:>9.0f} ms{self.held_s * 1000:>9.0f} ms held")
        return result

    def stop(self) -> None:
        self._task.cancel()


def broker(node_id: int) -> BrokerInfo:
    endpoint = Endpoint("PLAINTEXT", "127.0.0.1", 9092 + node_id)
    return BrokerInfo(node_id, -1, (endpoint,), incarnation=uuid.uuid4())


async def run(directory: Path, partitions: int, topic_partitions: int) -> None:
    settings = load(options={"node.id": 1, "min.insync.replicas": 2})
    store_path = directory / "metadata.sqlite"

    def controller() -> tuple[SqliteStore, Controller]:
        store = SqliteStore(store_path)
        return store, Controller(store, SystemClock(), settings, node_id=1)

    watch = LoopWatch()
    store, first = controller()
    await first.start()
    epochs = {node_id: await first.register_broker(broker(node_id), clean_shutdown=True) for node_id in NODES}
    names = [f"topic-{number}" for number in range(partitions // topic_partitions)]

    async def create() -> None:
        for start in range(0, len(names), 500):
            new = [NewTopic(name, topic_partitions, 3) for name in names[start : start + 500]]
            results = await first.create_topics(new)
            assert not any(result.error for result in results), results[0]

    await watch.measure(f"create {partitions} partitions of {len(names)} topics", create())
    await first.close()
    await store.close()
    store, second = controller()
    await watch.measure("be elected and load them", second.start())
    assert second.image.partitions_count == partitions
    await watch.measure("fence a broker", second.fence_brokers([3]))
    await watch.measure("balance leaders", second.balance_leaders())
    epochs[3] = await watch.measure("register it again", second.register_broker(broker(3), clean_shutdown=False))
    epochs = {node_id: info.epoch for node_id, info in second.image.brokers.items()}

    async def join() -> int:
        asked: dict[int, list[IsrChange]] = {node_id: [] for node_id in NODES}
        for topic in second.image.topics.values():
            for index, state in enumerate(topic.partitions):
                members = [IsrMember(node_id, epochs[node_id]) for node_id in state.replicas]
                asked[state.leader].append(
                    IsrChange(topic.topic_id, index, state.leader_epoch, state.partition_epoch, members)
                )
        for leader, changes in asked.items():
            for start in range(0, len(changes), ISR_CHANGES_PER_REQUEST):
                results = await second.alter_partition(
                    leader, epochs[leader], changes[start : start + ISR_CHANGES_PER_REQUEST]
                )
                assert not any(result.error for result in results)
        return sum(map(len, asked.values()))

    await watch.measure("let it join all ISRs", join())
    assert all(len(state.isr) == 3 for topic in second.image.topics.values() for state in topic.partitions)
    watch.stop()
    await second.close()
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=5000)
    parser.add_argument("--topic-partitions", type=int, default=TOPIC_PARTITIONS, help="of each topic")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory), given.partitions, given.topic_partitions))


if __name__ == "__main__":
    main()
