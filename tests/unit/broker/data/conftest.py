"""A broker's replicas over real logs, with the handlers of the data path on top and without sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.handlers.k00_produce import handle_produce
from tidelog.broker.handlers.k01_fetch import handle_fetch
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.broker.services import BrokerServices
from tidelog.common.clock import VirtualClock
from tidelog.controller.image import ClusterImage
from tidelog.log import LogManager
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import FETCH, FetchRequest, FetchResponse
from tidelog.records import encode_batch
from tidelog.server.settings_load import load

NODE = 1


class Node:
    """A replica manager on real files, with the handlers on top; its clock stands still, its loop is the test's."""

    def __init__(self, *paths: Path) -> None:
        self.clock = VirtualClock(start_ms=time.time_ns() // 1_000_000)
        self.logs = LogManager(paths, load(options={}), self.clock)
        self.logs.open("cluster", NODE)
        self.logs.load()
        settings = load(options={"node.id": NODE})
        self.replicas = ReplicaManager(
            node_id=NODE, logs=self.logs, settings=settings, table=settings.table, clock=self.clock
        )
        self.services = cast(BrokerServices, SimpleNamespace(replicas=self.replicas, logs=self.logs))

    async def apply(self, image: ClusterImage) -> None:
        self.replicas.apply(self.replicas.image, image)
        await self.replicas.settled()

    async def close(self) -> None:
        await self.replicas.close()
        self.logs.close(clean=False)

    def batch(self) -> bytearray:
        return encode_batch([(b"k", b"v", (), self.clock.now_ms())], now_ms=self.clock.now_ms())

    async def produce(self, topic: str, index: int = 0, *, acks: int = -1, timeout_ms: int = 0) -> ProduceResponse:
        data = PartitionProduceData(index=index, records=memoryview(self.batch()))
        request = ProduceRequest(
            acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        answer = handle_produce(request, RequestContext(api=PRODUCE, version=10, services=self.services))
        response = answer if isinstance(answer, ProduceResponse) else await cast(Coroutine[Any, Any, Any], answer)
        assert isinstance(response, ProduceResponse)
        return response

    async def produced(self, topic: str, index: int = 0, *, acks: int = -1) -> PartitionProduceResponse:
        return (await self.produce(topic, index, acks=acks)).responses[0].partition_responses[0]

    async def fetch(self, request: FetchRequest, version: int = 16) -> FetchResponse:
        answer = handle_fetch(request, RequestContext(api=FETCH, version=version, services=self.services))
        response = answer if isinstance(answer, FetchResponse) else await cast(Coroutine[Any, Any, Any], answer)
        assert isinstance(response, FetchResponse)
        return response


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Node], Coroutine[Any, Any, None]]], None]:
    def run_scenario(scenario: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            node = Node(tmp_path)
            try:
                await scenario(node)
            finally:
                await node.close()

        asyncio.run(main())

    return run_scenario
