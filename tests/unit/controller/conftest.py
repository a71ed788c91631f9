"""A controller over stores in memory, and coroutines as tests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.settings import Setting, Settings, SettingScope, SettingsTable, SettingType
from tidelog.controller import BrokerInfo, ClusterImage, Controller
from tidelog.metadata.store import Store


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on a loop of its own, and close what it left open."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    closing = pyfuncitem.funcargs["closing"]
    assert isinstance(closing, AsyncExitStack)

    async def run() -> None:
        async with closing:
            async with asyncio.timeout(60):
                await test(**given)

    asyncio.run(run())
    return True


@pytest.fixture(autouse=True)
def closing() -> AsyncExitStack:
    """Closed on the test's own loop when it ends."""
    return AsyncExitStack()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(start_ms=1_000_000)


def _positive(value: int) -> str | None:
    return None if value > 0 else "expected a number above 0"


@pytest.fixture
def settings() -> Settings:
    """A table with one setting of each kind that the controller treats in its own way."""
    topic = SettingScope.TOPIC
    return Settings(
        SettingsTable(
            [
                Setting("num.partitions", SettingType.INT, 3, ""),
                Setting("tidelog.max.partitions", SettingType.INT, 200_000, ""),
                Setting("default.replication.factor", SettingType.INT, 1, ""),
                Setting("log.cleanup.policy", SettingType.LIST, ["delete"], "", dynamic=True),
                Setting("log.retention.ms", SettingType.LONG, 604_800_000, "", dynamic=True),
                Setting("socket.request.max.bytes", SettingType.INT, 104_857_600, ""),
                Setting("log.cleaner.min.compaction.lag.ms", SettingType.LONG, 0, "", dynamic=True),
                Setting("cleanup.policy", SettingType.LIST, ["delete"], "", topic, broker_name="log.cleanup.policy"),
                Setting("max.compaction.lag.ms", SettingType.LONG, 2**63 - 1, "", topic),
                Setting(
                    "min.compaction.lag.ms",
                    SettingType.LONG,
                    0,
                    "",
                    topic,
                    broker_name="log.cleaner.min.compaction.lag.ms",
                ),
                Setting("retention.ms", SettingType.LONG, 604_800_000, "", topic, broker_name="log.retention.ms"),
                Setting("segment.bytes", SettingType.INT, 1_073_741_824, "", topic, check=_positive),
                Setting("leader.imbalance.per.broker.percentage", SettingType.INT, 10, ""),
                Setting("min.insync.replicas", SettingType.INT, 1, "", dynamic=True, check=_positive),
                Setting("min.insync.replicas", SettingType.INT, 1, "", topic, broker_name="min.insync.replicas"),
                Setting("unclean.leader.election.enable", SettingType.BOOLEAN, False, "", topic),
                Setting("group.consumer.assignment.interval.ms", SettingType.INT, 1_000, ""),
                Setting("group.consumer.min.assignment.interval.ms", SettingType.INT, 0, ""),
                Setting("group.consumer.max.assignment.interval.ms", SettingType.INT, 15_000, ""),
                Setting("consumer.assignment.interval.ms", SettingType.INT, 1_000, "", SettingScope.GROUP),
            ]
        )
    )


@pytest.fixture
def image() -> ClusterImage:
    """Four brokers, of which 3 is fenced; no topics."""
    return ClusterImage(
        revision=1,
        cluster_id="c",
        controller_id=0,
        brokers={n: BrokerInfo(n, 1, (Endpoint(PLAINTEXT, "host", 9092 + n),), fenced=n == 3) for n in range(4)},
    )


@pytest.fixture
def make_controller(closing: AsyncExitStack, clock: VirtualClock, settings: Settings) -> Callable[..., Controller]:
    """Makes controllers that are closed after the test; their sessions last until a test ends them."""

    def make(store: Store, node_id: int = 0, ttl_ms: float = 60_000) -> Controller:
        controller = Controller(store, clock, settings, node_id=node_id, session_ttl_ms=ttl_ms)
        closing.push_async_callback(controller.close)
        return controller

    return make
