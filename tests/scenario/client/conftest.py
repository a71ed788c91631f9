"""The cluster that the client suite runs against: Tidelog, or Apache Kafka where the environment names a version.

`COMPAT_CLIENT_PEER=4.3.1` (or 3.9.2) runs the same tests against that Kafka, which Maven brings, and
`COMPAT_BROKERS=3` against a cluster of so many of our brokers, with three replicas of each partition; `make compat`
does both. Without either, tests marked `on_three_brokers` run on one broker and on three.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from cluster_of_brokers import ClusterOfBrokers
from proxied_cluster import ProxiedCluster
from tcp_proxy import TcpProxy
from tidelog.bench.brokers import BrokerProcess, KafkaBroker, TidelogBroker, kafka_jars

# Both brokers know these: groups form at once, as in a test broker, and old records are not looked for.
_DAY_MS = "86400000"
_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "log.initial.task.delay.ms": _DAY_MS,
    "log.retention.check.interval.ms": _DAY_MS,
}


_BROKERS = int(os.environ.get("COMPAT_BROKERS", "1"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = metafunc.definition.get_closest_marker("on_three_brokers") is not None
    if chosen and "client_cluster" in metafunc.fixturenames and _BROKERS == 1 and not _peer():
        metafunc.parametrize("client_cluster", [1, 3], indirect=True, scope="session", ids=["one", "three"])


@pytest.fixture(scope="session")
def client_cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[BrokerProcess | ClusterOfBrokers]:
    """A running broker in a process of its own, or several, shared by the whole suite; `.bootstrap` is the address."""
    broker = make_cluster(tmp_path_factory.mktemp("cluster"), getattr(request, "param", _BROKERS))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
        _end(broker)


@pytest.fixture(scope="session")
def restarting_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | ClusterOfBrokers]:
    """For `own_cluster`: started when it is first needed, and whenever a test has left it stopped."""
    broker = make_cluster(tmp_path_factory.mktemp("restarting"), _BROKERS)
    try:
        yield broker
    finally:
        broker.kill()
        _end(broker)


@pytest.fixture
def own_cluster(restarting_broker: BrokerProcess | ClusterOfBrokers) -> BrokerProcess | ClusterOfBrokers:
    """A broker or a cluster that a test has for itself while it runs, and may stop, kill and start again as it was."""
    _ensure_it_runs(restarting_broker)
    return restarting_broker


@pytest.fixture(scope="session")
def broker_behind_a_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    with TcpProxy() as proxy:
        settings = {"advertised.listeners": f"PLAINTEXT://{proxy.address}"}
        broker = make_broker(tmp_path_factory.mktemp("proxied"), settings)
        proxy.target_port = broker.port
        try:
            yield ProxiedCluster(broker, proxy)
        finally:
            broker.kill()


@pytest.fixture
def proxied_cluster(broker_behind_a_proxy: ProxiedCluster) -> Iterator[ProxiedCluster]:
    """A broker behind a proxy that it advertises as its address; a test has both for itself while it runs."""
    _ensure_it_runs(broker_behind_a_proxy.broker)
    broker_behind_a_proxy.proxy.reset()
    yield broker_behind_a_proxy
    broker_behind_a_proxy.proxy.reset()


def _end(broker: BrokerProcess | ClusterOfBrokers) -> None:
    if isinstance(broker, ClusterOfBrokers):
        broker.close()


def _ensure_it_runs(broker: BrokerProcess | ClusterOfBrokers) -> None:
    if not broker.is_running:
        broker.kill()
        broker.start()


def make_cluster(directory: Path, brokers: int) -> BrokerProcess | ClusterOfBrokers:
    return make_broker(directory) if brokers == 1 else ClusterOfBrokers(directory, brokers, settings=_SETTINGS)


def _peer() -> str | None:
    return os.environ.get("COMPAT_CLIENT_PEER")


def make_broker(directory: Path, settings: Mapping[str, str] | None = None) -> BrokerProcess:
    peer = _peer()
    chosen = {**_SETTINGS, **(settings or {})}
    if peer:
        return KafkaBroker(directory, jars=kafka_jars(peer), settings=chosen)
    return TidelogBroker(directory, settings=chosen)


@pytest.fixture
def fresh_name() -> Callable[[str], str]:
    """Names of topics and groups that no other test has used, with a word that tells what they are for."""
    numbers = itertools.count()
    test = uuid.uuid4().hex[:8]
    return lambda word: f"{word}-{test}-{next(numbers)}"
