"""Stores of every kind to run the same scenarios over, and coroutines as tests."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.settings import Settings
from tidelog.metadata.faulty import FaultyStore
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import Store
from tidelog.metadata.zookeeper import ZooKeeperStore, parse_address
from tidelog.server.settings_table import TABLE
from tidelog.torture.zookeeper_ensemble import Ensemble


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


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three ZooKeeper servers, shared by all tests that leave them as they were."""
    with Ensemble(tmp_path_factory.mktemp("zookeeper"), servers=3) as started:
        yield started


_chroots = itertools.count()


@pytest.fixture
def open_zookeeper(closing: AsyncExitStack, clock: VirtualClock, ensemble: Ensemble) -> Callable[..., ZooKeeperStore]:
    """Opens stores on one path of the ensemble, each as another process would."""
    chroot = f"/test-{next(_chroots)}"

    def open_store(clock_ms: Callable[[], float] = clock.monotonic_ms) -> ZooKeeperStore:
        store = ZooKeeperStore(parse_address(ensemble.address + chroot), clock_ms=clock_ms)
        closing.push_async_callback(store.close)
        return store

    return open_store


TIMED_KINDS = ("memory", "sqlite", "faulty memory", "faulty sqlite")


@pytest.fixture
def open_kind(closing: AsyncExitStack, clock: VirtualClock, request: pytest.FixtureRequest) -> Callable[[str], Store]:
    """Opens a store of this kind; the faulty ones have no faults here, so that only the wrapping shows."""

    def open_store(kind: str) -> Store:
        store: Store
        if kind == "zookeeper":
            store = request.getfixturevalue("open_zookeeper")()
        elif "sqlite" in kind:
            store = request.getfixturevalue("open_sqlite")()
        else:
            store = MemoryStore(clock, poll_interval_ms=5)
            closing.push_async_callback(store.close)
        return FaultyStore(store) if "faulty" in kind else store

    return open_store


@pytest.fixture(params=TIMED_KINDS)
def timed_store(request: pytest.FixtureRequest, open_kind: Callable[[str], Store]) -> Store:
    """A store of each kind whose sessions end by `clock`; ZooKeeper's end by its own."""
    return open_kind(request.param)


@pytest.fixture(params=[*TIMED_KINDS, pytest.param("zookeeper", marks=pytest.mark.xdist_group("zookeeper"))])
def store(request: pytest.FixtureRequest, open_kind: Callable[[str], Store]) -> Store:
    """A store of each kind."""
    return open_kind(request.param)


@pytest.fixture
def settings() -> Settings:
    return Settings(TABLE)
