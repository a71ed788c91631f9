"""The pytest fixtures for brokers and clusters, which pytest finds once tidelog is installed.

What always holds: importing this costs next to nothing, because every pytest run on the machine does it; the broker is
imported when a test asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker
    from tidelog.testing.cluster import Cluster


@pytest.fixture(scope="session")
def tidelog_broker_settings() -> Mapping[str, object]:
    """The settings of the brokers that the other fixtures start; override it in a conftest.py or a test module."""
    return {}


@pytest.fixture
def tidelog_broker(tidelog_broker_settings: Mapping[str, object]) -> Iterator[Broker]:
    """A new broker for each test, on a free port with a temporary directory."""
    from tidelog.testing.broker import Broker

    with Broker(settings=tidelog_broker_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def tidelog_session_broker(tidelog_broker_settings: Mapping[str, object]) -> Iterator[Broker]:
    """One broker for the whole session; tests share it and use topics and groups of their own."""
    from tidelog.testing.broker import Broker

    with Broker(settings=tidelog_broker_settings) as broker:
        yield broker


@pytest.fixture
def make_tidelog_broker(tidelog_broker_settings: Mapping[str, object]) -> Iterator[Callable[..., Broker]]:
    """Starts brokers with settings of the test's choice: `make_tidelog_broker({"num.partitions": 3})`."""
    from tidelog.testing.broker import Broker

    with ExitStack() as brokers:

        def make(settings: Mapping[str, object] | None = None) -> Broker:
            return brokers.enter_context(Broker(settings={**tidelog_broker_settings, **(settings or {})}))

        yield make


@pytest.fixture
def tidelog_cluster(tidelog_broker_settings: Mapping[str, object]) -> Iterator[Cluster]:
    """A new cluster of three brokers for each test, which the test may stop, kill and start."""
    from tidelog.testing.cluster import Cluster

    with Cluster(settings=tidelog_broker_settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def tidelog_session_cluster(tidelog_broker_settings: Mapping[str, object]) -> Iterator[Cluster]:
    """One cluster of three brokers for the whole session; tests share it and leave all of its brokers running."""
    from tidelog.testing.cluster import Cluster

    with Cluster(settings=tidelog_broker_settings) as cluster:
        yield cluster
