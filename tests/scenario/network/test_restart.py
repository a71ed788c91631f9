"""A broker that comes back is the same broker: port, ids, topics and every acknowledged record."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient, fetch_request, produce_request

Connect = Callable[[Broker], RawClient]


@pytest.mark.parametrize("end", [Broker.stop, Broker.crash])
def test_a_restart_keeps_ids_and_records(broker: Broker, end: Callable[[Broker], None]) -> None:
    broker.create_topic("orders", partitions=2)
    with RawClient(broker.port) as client:
        before = client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, 12)
        for number in range(10):
            client.ask(PRODUCE, produce_request("orders", b"record %d" % number), ProduceResponse, 7)
    port = broker.port
    end(broker)
    broker.start()
    assert broker.port == port
    with RawClient(broker.port) as client:
        after = client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, 12)
        assert after.cluster_id == before.cluster_id
        assert [(row.node_id, row.port) for row in after.brokers] == [(row.node_id, row.port) for row in before.brokers]
        assert [(row.name, row.topic_id) for row in after.topics] == [(row.name, row.topic_id) for row in before.topics]
        fetched = client.ask(FETCH, fetch_request("orders", 0), FetchResponse, 11)
        records = fetched.responses[0].partitions[0].records
        assert isinstance(records, memoryview)
        assert [number for number in range(10) if b"record %d" % number in bytes(records)] == list(range(10))
        response = client.ask(PRODUCE, produce_request("orders", b"more"), ProduceResponse, 7)
        assert response.responses[0].partition_responses[0].base_offset == 10
