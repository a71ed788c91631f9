"""Fixtures for all tests that need a whole broker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker
    from tidelog.testing.raw_client import RawClient

# The broker is imported by the fixtures that need it, so that tests of lower layers run without it.


def pytest_configure() -> None:
    """A JVM of the tests lives for a minute or two, so it should compile quickly rather than well.

    The start of a Spark session with its first query takes 12 s of CPU time instead of 20.
    """
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests of one group share a session of Spark, a server or a core: xdist is to keep them on one worker.

    It does so by their names, which some versions of pytest don't let it change.
    """
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if getattr(session.config.option, "loadgroup", False) and any("@" not in item.nodeid for item in grouped):
        raise pytest.UsageError("this pytest and this pytest-xdist don't keep groups together; see pyproject.toml")


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker of the test's own."""
    from tidelog.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def start_broker() -> Iterator[Callable[..., Broker]]:
    """Starts brokers with settings of the test's choice; takes what `Broker` takes."""
    from tidelog.testing.broker import Broker

    with ExitStack() as brokers:
        yield lambda *args, **kwargs: brokers.enter_context(Broker(*args, **kwargs))


@pytest.fixture
def connect() -> Iterator[Callable[[Broker], RawClient]]:
    """Opens raw connections that are closed after the test."""
    from tidelog.testing.raw_client import RawClient

    with ExitStack() as clients:
        yield lambda broker: clients.enter_context(RawClient(broker.port))


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool], str], None]:
    """Waits for a condition with a deadline, looking again every few milliseconds."""
    return _wait_until


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 20
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited 20 s in vain: {what}")
        pause.wait(0.005)
