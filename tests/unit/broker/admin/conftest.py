"""A real controller over the in-memory store, and the handlers on top of it, without sockets, disks or waiting."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar, cast

import pytest

from tidelog.broker.auto_create import AutoTopicCreation
from tidelog.broker.controller_channel import RoutedControllerChannel
from tidelog.broker.group_service import GroupService
from tidelog.broker.handlers import (  # noqa: F401 - importing a handler registers it
    k03_metadata,
    k10_find_coordinator,
    k19_create_topics,
    k20_delete_topics,
    k29_describe_acls,
    k30_create_acls,
    k31_delete_acls,
    k32_describe_configs,
    k33_alter_configs,
    k37_create_partitions,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k45_alter_partition_reassignments,
    k46_list_partition_reassignments,
    k48_describe_client_quotas,
    k50_describe_user_scram_credentials,
    k60_describe_cluster,
    k64_unregister_broker,
    k74_list_config_resources,
    k75_describe_topic_partitions,
)
from tidelog.broker.peers import Peers
from tidelog.broker.producer_ids import ProducerIdAllocator
from tidelog.broker.registry import find_handler
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.broker.services import BrokerServices
from tidelog.broker.topic_creation import TopicCreation
from tidelog.broker.txn_markers import LocalMarkerWriter
from tidelog.broker.txn_service import TransactionService
from tidelog.common.clock import VirtualClock
from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.settings import Settings
from tidelog.common.steps import Steps, run_through
from tidelog.controller import Controller
from tidelog.controller.image import BrokerInfo, ClusterImage
from tidelog.metadata.memory import MemoryStore
from tidelog.protocol import Api, decode, encode
from tidelog.server.settings_load import load
from tidelog.server.settings_table import TABLE

NODE_ID = 1
ResponseT = TypeVar("ResponseT")
ValueT = TypeVar("ValueT")


class Replicas:
    """As much of the replicas as the admin handlers ask: whether new partitions can be used."""

    fenced_node_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.are_slow = False
        self.first_opening: int | None = None

    def opening_from(self, topic_id: uuid.UUID) -> int | None:
        return self.first_opening

    async def wait_until_opened(
        self, topic_ids: Iterable[uuid.UUID], deadline_s: float | None = None
    ) -> set[uuid.UUID]:
        return set(topic_ids) if self.are_slow else set()


class AdminBroker:
    """What admin handlers need of a broker; requests and answers go through their bytes, as a client's would."""

    def __init__(self, settings: Settings) -> None:
        self._runner = asyncio.Runner()
        clock = VirtualClock()
        self.settings = settings
        self.controller = self.run(self._started(clock))
        unused: Any = None  # the admin handlers touch no logs
        self.replicas = Replicas()
        peers = Peers(NODE_ID)
        channel = RoutedControllerChannel(lambda: self.services, self.controller, peers)
        self.creation = TopicCreation(channel, self.controller.view, cast(ReplicaManager, self.replicas))
        self.services = BrokerServices(
            node_id=NODE_ID,
            clock=clock,
            settings=settings,
            table=TABLE,
            cluster=self.controller.view,
            controller=self.controller,
            channel=channel,
            forwarder=unused,
            broker_watch=unused,
            peers=peers,
            registration=unused,
            logs=unused,
            replicas=cast(ReplicaManager, self.replicas),
            producer_ids=unused,
            groups=self.run(self._groups(clock)),
            transactions=self.run(self._transactions(clock)),
            auto_topic_creation=AutoTopicCreation(self.creation),
        )

    async def _started(self, clock: VirtualClock) -> Controller:
        controller = Controller(MemoryStore(clock), clock, self.settings, node_id=NODE_ID)
        await controller.start()
        await controller.register_broker(
            BrokerInfo(NODE_ID, -1, (Endpoint(PLAINTEXT, "127.0.0.1", 9092),), "rack-a"), clean_shutdown=True
        )
        return controller

    async def _groups(self, clock: VirtualClock) -> GroupService:
        return GroupService(
            settings=self.settings,
            clock=clock,
            cluster=self.controller.view,
            creation=self.creation,
            replicas=cast(ReplicaManager, self.replicas),
        )

    async def _transactions(self, clock: VirtualClock) -> TransactionService:
        replicas = cast(ReplicaManager, self.replicas)
        return TransactionService(
            settings=self.settings,
            clock=clock,
            cluster=self.controller.view,
            creation=self.creation,
            replicas=replicas,
            producer_ids=ProducerIdAllocator(self.controller.allocate_producer_ids),
            markers=LocalMarkerWriter(replicas),
        )

    def register(self, node_id: int) -> None:
        """Have another broker in the cluster."""
        broker = BrokerInfo(node_id, -1, (Endpoint(PLAINTEXT, "127.0.0.1", 9092 + node_id),))
        self.run(self.controller.register_broker(broker, clean_shutdown=True))

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    def run(self, work: Coroutine[Any, Any, ValueT]) -> ValueT:
        return self._runner.run(work)

    def call(self, api: Api, request: object, response_class: type[ResponseT], version: int) -> ResponseT:
        """The handler's answer to this request in this version, background work finished."""
        return self.run(self._call(api, request, response_class, version))

    async def _call(self, api: Api, request: Any, response_class: type[ResponseT], version: int) -> ResponseT:
        handler = find_handler(api.key)
        assert handler is not None
        context = RequestContext(api=api, version=version, services=self.services)
        answer = handler.handle(decode(type(request), bytearray(encode(request, version)), version), context)
        if inspect.isgenerator(answer):
            answer = run_through(cast("Steps[object]", answer))
        if inspect.isawaitable(answer):
            answer = await answer
        await self.services.auto_topic_creation.wait()
        return decode(response_class, bytearray(encode(answer, version)), version)

    def close(self) -> None:
        self.run(self.services.auto_topic_creation.close())
        self.run(self.services.groups.close())
        self.run(self.controller.close())
        self._runner.close()


@pytest.fixture
def make_broker() -> Iterator[Callable[..., AdminBroker]]:
    """Brokers with settings given as "key=value"."""
    brokers: list[AdminBroker] = []

    def make(*overrides: str) -> AdminBroker:
        brokers.append(AdminBroker(load(None, {}, overrides)))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.close()


@pytest.fixture
def broker(make_broker: Callable[..., AdminBroker]) -> AdminBroker:
    return make_broker()
