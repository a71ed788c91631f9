"""Topics to read from, written by another client, so that reading is held against somebody else's writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import confluent_kafka
import pytest

from tidelog import Admin, NewTopic
from tidelog.bench.brokers import BrokerProcess

MakeTopic = Callable[..., str]
Write = Callable[..., None]


class Writer:
    """Writes with confluent-kafka, and waits until everything is acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        headers: list[tuple[str, str | bytes | None]] | None = None,
        timestamp: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20, **(settings or {})})
        failed: list[object] = []

        def delivered(error: object, message: object) -> None:
            if error is not None:
                failed.append(error)

        for value in values:
            producer.produce(
                topic,
                value,
                key=key,
                partition=partition,
                headers=headers or [],
                on_delivery=delivered,
                timestamp=timestamp or 0,
            )
            producer.poll(0)
        assert producer.flush(60) == 0
        assert not failed


@pytest.fixture
def write(client_cluster: BrokerProcess) -> Writer:
    return Writer(client_cluster.bootstrap)


@pytest.fixture
def make_topic(client_cluster: BrokerProcess, fresh_name: Callable[[str], str]) -> Iterator[MakeTopic]:
    """Makes a topic with a name of its own."""

    with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:

        def make(word: str = "topic", partitions: int = 1, **configs: str) -> str:
            name = fresh_name(word)
            chosen = {key.replace("_", "."): value for key, value in configs.items()}
            admin.create_topics([NewTopic(name, partitions, configs=chosen)]).raise_for_errors()
            return name

        yield make
