"""The controller over a file: restarts, thousands of partitions, and processes that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from tidelog.common.clock import SystemClock
from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.settings import Settings
from tidelog.controller import ConfigReplacement, Controller, NewPartitions, NewTopic, TopicResult
from tidelog.controller.image import BrokerInfo
from tidelog.metadata.liveness import boot_time_ms
from tidelog.metadata.sqlite import SqliteStore
from tidelog.protocol import ErrorCode
from tidelog.protocol.config_values import ConfigResource, ResourceType

OpenStore = Callable[..., SqliteStore]

BROKER = BrokerInfo(0, -1, (Endpoint(PLAINTEXT, "host", 9092),))

CREATE_FOREVER = """
import asyncio, sys
from tidelog.common.clock import SystemClock
from tidelog.common.endpoint import Endpoint
from tidelog.common.settings import Settings
from tidelog.controller import BrokerInfo, Controller, NewTopic
from tidelog.metadata import SqliteStore
from tidelog.server.settings_table import TABLE
async def main():
    controller = Controller(SqliteStore(sys.argv[1]), SystemClock(), Settings(TABLE), node_id=0)
    await controller.start()
    broker = BrokerInfo(0, -1, (Endpoint("PLAINTEXT", "host", 9092),))
    await controller.register_broker(broker, clean_shutdown=False)
    count = len(controller.image.topics)
    while True:
        (result,) = await controller.create_topics([NewTopic("t%d" % count, 200)])
        assert not result.error, result
        block = await controller.allocate_producer_ids()
        print(count, result.topic_id.hex, block.start, flush=True)
        count += 1
asyncio.run(main())
"""


async def test_everything_is_there_after_a_restart(open_sqlite: OpenStore, settings: Settings) -> None:
    first = Controller(open_sqlite(), SystemClock(), settings, node_id=0)
    await first.start()
    await first.register_broker(replace(BROKER, rack="rack"), clean_shutdown=True)
    await first.create_topics([NewTopic("a", 130, configs={"retention.ms": "5"}), NewTopic("b"), NewTopic("c")])
    await first.delete_topics(["b"])
    await first.create_partitions([NewPartitions("c", 3)])
    replacement = ConfigReplacement(ConfigResource(ResourceType.TOPIC, "c"), {"retention.ms": "7"})
    await first.alter_configs([replacement])
    await first.close()
    second = Controller(open_sqlite(), SystemClock(), settings, node_id=0)
    await second.start()
    assert second.image.cluster_id == first.image.cluster_id
    assert second.image.topics == first.image.topics
    assert second.image.configs == first.image.configs
    assert second.image.revision > first.image.revision
    old_epoch = first.image.brokers[0].epoch
    assert await second.register_broker(replace(BROKER, rack="rack"), clean_shutdown=True) > old_epoch
    await second.close()


async def test_five_thousand_topics_are_made_and_taken_over(open_sqlite: OpenStore, settings: Settings) -> None:
    controller = Controller(open_sqlite(), SystemClock(), settings, node_id=0)
    await controller.start()
    await controller.register_broker(BROKER, clean_shutdown=True)
    results = await controller.create_topics([NewTopic(f"t{n}", 1) for n in range(5_000)])
    assert {result.error for result in results} == {ErrorCode.NONE}
    await controller.close()
    again = Controller(open_sqlite(), SystemClock(), settings, node_id=0)
    await again.start()
    await again.register_broker(BROKER, clean_shutdown=False)
    epochs = {state.leader_epoch for topic in again.image.topics.values() for state in topic.partitions}
    assert (len(again.image.topics), epochs) == (5_000, {1})
    await again.close()


async def test_a_controller_that_is_killed_loses_nothing_it_answered(
    open_sqlite: OpenStore, settings: Settings, tmp_path: Path
) -> None:
    """Killed several times in the middle of writing; the next one takes over at once each time."""
    topics: dict[str, str] = {}
    blocks: list[int] = []
    for round_number in range(1, 5):
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CREATE_FOREVER,
            os.fspath(tmp_path / "metadata.db"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdout is not None
        lines = [await child.stdout.readline() for _ in range(7 * round_number)]
        child.send_signal(signal.SIGKILL)
        lines += (await child.stdout.read()).splitlines(keepends=True)
        await child.wait()
        for line in lines:
            if line.endswith(b"\n"):
                number, topic_id, block = line.split()
                topics[f"t{int(number)}"] = topic_id.decode()
                blocks.append(int(block))
    assert len(set(blocks)) == len(blocks)
    controller = Controller(open_sqlite(boot_time_ms), SystemClock(), settings, node_id=0)
    await controller.start()
    found = {name: topic.topic_id.hex for name, topic in controller.image.topics.items()}
    assert topics.items() <= found.items()
    assert all(len(topic.partitions) == 200 for topic in controller.image.topics.values())
    assert (await controller.allocate_producer_ids()).start > max(blocks)
    await controller.close()


async def test_two_controllers_on_one_file_take_turns(
    open_sqlite: OpenStore, settings: Settings, closing: AsyncExitStack
) -> None:
    controllers = [Controller(open_sqlite(), SystemClock(), settings, node_id=n) for n in range(2)]
    for controller in controllers:
        closing.push_async_callback(controller.close)
    first, second = controllers
    await first.start()
    await second.start()
    await first.register_broker(BROKER, clean_shutdown=True)
    result: list[TopicResult] = await first.create_topics([NewTopic("a")])
    assert result[0].error is ErrorCode.NONE
    assert not second.is_active
    await first.close()
    await second.wait_until_active()
    assert list(second.image.topics) == ["a"]
    assert second.epoch == 2
