"""Every test of admin calls runs twice: through Admin, and through AsyncAdmin on a loop of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tidelog import Admin, AsyncAdmin, NewTopic, Producer
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.types import RecordMetadata

FreshName = Callable[[str], str]
MakeTopic = Callable[..., str]


class Waiting:
    """The calls of an AsyncAdmin, each run to its end."""

    def __init__(self, admin: AsyncAdmin, runner: asyncio.Runner) -> None:
        self._admin = admin
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._admin, name)
        return lambda *args, **kwargs: self._runner.run(call(*args, **kwargs))


@pytest.fixture(params=["Admin", "AsyncAdmin"])
def admin(request: pytest.FixtureRequest, client_cluster: BrokerProcess) -> Iterator[Admin]:
    if request.param == "Admin":
        with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
            yield admin
        return
    with asyncio.Runner() as runner:
        asynchronous = AsyncAdmin(bootstrap_servers=client_cluster.bootstrap)
        yield cast(Admin, Waiting(asynchronous, runner))
        runner.run(asynchronous.close())


@pytest.fixture
def make_topic(admin: Admin, fresh_name: FreshName) -> MakeTopic:
    """Makes a topic whose partitions have leaders and gives its name."""

    def make(partitions: int = 1, **fields: Any) -> str:
        name = fresh_name("topic")
        admin.create_topics([NewTopic(name, partitions, **fields)]).raise_for_errors()
        admin.wait_for_topics(name)
        return name

    return make


@pytest.fixture
def produce(client_cluster: BrokerProcess) -> Iterator[Callable[..., RecordMetadata]]:
    """Sends a record and waits until it is stored."""
    with Producer(bootstrap_servers=client_cluster.bootstrap, linger_ms=0) as producer:
        yield lambda *args, **kwargs: producer.send(*args, **kwargs).result(20)
