"""The network works alike on asyncio's own event loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.testing import broker as testing_broker
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient, fetch_request, frame, produce_request

WaitUntil = Callable[[Callable[[], bool], str], None]


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_produce_fetch_wait_and_reset(
    new_event_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr(testing_broker, "new_event_loop", new_event_loop)
    value = bytes(900_000)
    with Broker() as broker, RawClient(broker.port) as client:
        broker.create_topic("orders")
        for number in range(10):
            client.sock.sendall(frame(PRODUCE, produce_request("orders", value), 7, number))
        for number in range(10):
            assert client.receive(PRODUCE, ProduceResponse, 7)[0] == number
        fetched = client.ask(FETCH, fetch_request("orders", 0), FetchResponse, 11)
        records = fetched.responses[0].partitions[0].records
        assert isinstance(records, memoryview)
        assert len(records) > 9_000_000
        waiting = RawClient(broker.port)
        waiting.send(FETCH, fetch_request("orders", 10, max_wait_ms=600_000), 11)
        wait_until(lambda: len(broker.server.connections) == 2, "it is accepted")
        waiting.reset()
        wait_until(lambda: len(broker.server.connections) == 1, "its end is noticed")


def test_nothing_is_throttled() -> None:
    """Behaviour 43: without quotas every answer says so."""
    with Broker() as broker, RawClient(broker.port) as client:
        broker.create_topic("orders")
        produced = client.ask(PRODUCE, produce_request("orders", bytes(900_000)), ProduceResponse, 7)
        fetched = client.ask(FETCH, fetch_request("orders", 0), FetchResponse, 11)
    assert (produced.throttle_time_ms, fetched.throttle_time_ms) == (0, 0)
