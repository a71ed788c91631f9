"""A thousand idle connections cost the active ones nothing, and storms of connects pass."""

from __future__ import annotations

import resource
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient, frame

WaitUntil = Callable[[Callable[[], bool], str], None]

IDLE = 1000
ACTIVE = 200


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of every connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.fail(f"only {hard} open files are allowed here: raise the hard limit (ulimit -Hn 8192) for this test")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_idle_and_two_hundred_active_connections(broker: Broker, wait_until: WaitUntil) -> None:
    request = frame(METADATA, MetadataRequest(topics=[]), 1)
    connections = broker.server.connections
    with ExitStack() as clients:
        for _ in range(IDLE):
            clients.enter_context(RawClient(broker.port))
        active = [clients.enter_context(RawClient(broker.port)) for _ in range(ACTIVE)]
        wait_until(lambda: len(connections) == IDLE + ACTIVE, "all are accepted")
        for _ in range(5):
            for client in active:
                client.sock.sendall(request)
            for client in active:
                assert client.receive(METADATA, MetadataResponse, 1)[1].brokers
        assert connections.memory.held_bytes == 0, "idle connections hold no buffers"
    wait_until(lambda: len(connections) == 0, "all are forgotten")


@pytest.mark.usefixtures("many_files")
def test_a_storm_of_connects_that_say_nothing_and_go(broker: Broker, wait_until: WaitUntil) -> None:
    with RawClient(broker.port) as steady:
        for _ in range(20):
            with ExitStack() as clients:
                for number in range(50):
                    client = clients.enter_context(RawClient(broker.port))
                    if number % 2:
                        client.reset()
                assert steady.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1).brokers
                assert not select.select([steady.sock], [], [], 0)[0]
        wait_until(lambda: len(broker.server.connections) == 1, "all others are forgotten")
