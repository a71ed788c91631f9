"""`tidelog.testing`: a broker inside a test, its fixture, its clock, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog import Admin
from tidelog.common.clock import VirtualClock
from tidelog.protocol.config_values import ConfigResource
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.server.server import StartError
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient, produce_request


def test_the_fixture_gives_a_broker(tidelog_broker: Broker) -> None:
    with RawClient(tidelog_broker.port) as client:
        response = client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1)
    assert [(row.host, row.port) for row in response.brokers] == [("127.0.0.1", tidelog_broker.port)]


def test_the_plugin_imports_nothing_of_the_broker() -> None:
    program = (
        "import sys; import tidelog.testing.pytest_plugin; "
        "print(sorted(n for n in sys.modules if n.startswith('tidelog.') and 'testing' not in n))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_nothing_is_left_behind() -> None:
    threads_before = set(threading.enumerate())
    with Broker() as broker:
        data_dir = broker.data_dir
        broker.create_topic("orders")
        assert data_dir.exists()
    assert not data_dir.exists()
    left = [thread for thread in set(threading.enumerate()) - threads_before if thread.is_alive()]
    assert not left


def test_two_brokers_live_side_by_side() -> None:
    with Broker() as first, Broker(settings={"node.id": 7}) as second:
        seen = []
        for broker in (first, second):
            with RawClient(broker.port) as client:
                seen.append(client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 2))
    assert seen[0].cluster_id != seen[1].cluster_id
    assert [answer.controller_id for answer in seen] == [1, 7]


def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        broker.create_topic("orders")
    with Broker(data_dir=tmp_path) as broker, RawClient(broker.port) as client:
        response = client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, 1)
        assert [topic.name for topic in response.topics] == ["orders"]


def test_a_start_that_fails_says_why_and_leaves_nothing_open(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "one") as broker:
        with pytest.raises(StartError, match=str(broker.port)):
            Broker(data_dir=tmp_path / "two", port=broker.port).start()
        with pytest.raises(StartError, match="in use"):
            Broker(data_dir=tmp_path / "one").start()
    with Broker(data_dir=tmp_path / "two"):
        pass


def test_records_carry_the_time_of_the_virtual_clock() -> None:
    clock = VirtualClock(start_ms=1_700_000_000_000)
    with Broker(clock=clock) as broker, RawClient(broker.port) as client:
        broker.create_topic("orders", configs={"message.timestamp.type": "LogAppendTime"})
        times = []
        for _ in range(2):
            response = client.ask(PRODUCE, produce_request("orders", b"x"), ProduceResponse, 7)
            times.append(response.responses[0].partition_responses[0].log_append_time_ms)
            clock.advance(hours=1)
    assert times == [1_700_000_000_000, 1_700_003_600_000]


def test_clients_are_told_the_advertised_address() -> None:
    settings = {"advertised.listeners": "PLAINTEXT://broker.example.org:19092"}
    with Broker(settings=settings) as broker, RawClient(broker.port) as client:
        response = client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1)
    assert [(row.host, row.port) for row in response.brokers] == [("broker.example.org", 19092)]


def test_create_topic_says_why_not(broker: Broker) -> None:
    broker.create_topic("orders")
    with pytest.raises(ValueError, match="orders"):
        broker.create_topic("orders")


@pytest.mark.parametrize("end", [Broker.stop, Broker.crash])
def test_it_comes_back_again_and_again(broker: Broker, end: Callable[[Broker], None]) -> None:
    port = broker.port
    for _ in range(3):
        end(broker)
        with pytest.raises(ConnectionRefusedError):
            RawClient(port)
        broker.start()
        with RawClient(broker.port) as client:
            assert client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1).brokers
    assert broker.port == port


def setting(broker: Broker, name: str) -> str | None:
    resource = ConfigResource.broker(1)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        return admin.describe_configs(resource, [name])[resource][name].value


def test_groups_do_not_wait_for_members_unless_the_test_says_so(tidelog_broker: Broker) -> None:
    assert setting(tidelog_broker, "group.initial.rebalance.delay.ms") == "0"
    with Broker(settings={"group.initial.rebalance.delay.ms": 3000}) as broker:
        assert setting(broker, "group.initial.rebalance.delay.ms") == "3000"


PLUGIN_TESTS = """
import pytest

seen = []


@pytest.fixture(scope="session")
def tidelog_broker_settings():
    return {"num.partitions": 5}


def partitions(broker):
    from tidelog import Admin

    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics("orders").raise_for_errors()
        return len(admin.describe_topics("orders")["orders"].partitions)


def test_settings(tidelog_broker, make_tidelog_broker):
    assert partitions(tidelog_broker) == 5
    assert partitions(make_tidelog_broker()) == 5
    assert partitions(make_tidelog_broker({"num.partitions": 2})) == 2


@pytest.mark.parametrize("number", range(2))
def test_session(tidelog_session_broker, number):
    seen.append(tidelog_session_broker)
    assert len(set(seen)) == 1
    if number == 0:
        assert partitions(tidelog_session_broker) == 5


@pytest.mark.parametrize("number", range(2))
def test_session_cluster(tidelog_session_cluster, number):
    assert tidelog_session_cluster.running == (1, 2, 3)
    if number == 0:
        assert partitions(tidelog_session_cluster) == 5
    else:
        assert tidelog_session_cluster.leader("orders") in (1, 2, 3)  # made by the test before
"""


def test_fixtures_take_settings_and_one_lasts_the_session(tmp_path: Path) -> None:
    (tmp_path / "test_plugin.py").write_text(PLUGIN_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "test_plugin.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "5 passed" in done.stdout, done.stdout + done.stderr
