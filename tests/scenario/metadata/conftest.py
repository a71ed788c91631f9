"""Stores of every kind to run the same scenarios over, and coroutines as tests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.settings import Setting, Settings, SettingScope, SettingsTable, SettingType
from tidelog.metadata.faulty import FaultyStore
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.sqlite import SqliteStore
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
    """The time by which sessions end; it stands still, so that they do only when a test says so."""
    return VirtualClock()


@pytest.fixture
def open_sqlite(closing: AsyncExitStack, clock: VirtualClock, tmp_path: Path) -> Callable[..., SqliteStore]:
    """Opens stores on one file, each as another process would."""

    def open_store(clock_ms: Callable[[], float] = clock.monotonic_ms) -> SqliteStore:
        store = SqliteStore(tmp_path / "metadata.db", poll_interval_ms=5, clock_ms=clock_ms)
        closing.push_async_callback(store.close)
        return store

    return open_store


@pytest.fixture(params=["memory", "sqlite", "faulty memory", "faulty sqlite"])
def store(
    request: pytest.FixtureRequest,
    closing: AsyncExitStack,
    clock: VirtualClock,
    open_sqlite: Callable[..., SqliteStore],
) -> Store:
    """A store of each kind; the faulty ones have no faults here, so that only the wrapping shows."""
    store: Store
    if "sqlite" in request.param:
        store = open_sqlite()
    else:
        store = MemoryStore(clock, poll_interval_ms=5)
        closing.push_async_callback(store.close)
    return FaultyStore(store) if "faulty" in request.param else store


@pytest.fixture
def settings() -> Settings:
    """The few settings that the controller reads."""
    return Settings(
        SettingsTable(
            [
                Setting("num.partitions", SettingType.INT, 1, ""),
                Setting("tidelog.max.partitions", SettingType.INT, 200_000, ""),
                Setting("default.replication.factor", SettingType.INT, 1, ""),
                Setting("retention.ms", SettingType.LONG, 604_800_000, "", scope=SettingScope.TOPIC),
            ]
        )
    )
