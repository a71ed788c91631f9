"""Clusters of brokers in the test's own process, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tidelog.controller.image import ClusterImage
from tidelog.server.server import BrokerServer
from tidelog.testing.broker import Broker

DEADLINE_S = 30.0


class SmallCluster:
    """Brokers on one metadata store."""

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        self.directory = directory
        self.settings = dict(settings or {})
        self.brokers: dict[int, Broker] = {}
        self._open = ExitStack()

    def __enter__(self) -> SmallCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def start(self, *node_ids: int, **settings: object) -> None:
        """Start these brokers, the first time or again."""
        for node_id in node_ids:
            if node_id not in self.brokers:
                self.brokers[node_id] = Broker(
                    settings={
                        "node.id": node_id,
                        "tidelog.metadata": f"sqlite:{self.directory / 'metadata.sqlite'}",
                        **self.settings,
                        **{name.replace("_", "."): value for name, value in settings.items()},
                    },
                    data_dir=self.directory / f"data-{node_id}",
                )
                self._open.callback(self.brokers[node_id].close)
            self.brokers[node_id].start()

    def __getitem__(self, node_id: int) -> Broker:
        return self.brokers[node_id]

    @property
    def running(self) -> list[Broker]:
        return [self.brokers[node_id] for node_id in self.running_ids]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.running)

    def controller_id(self) -> int:
        """The controller that all running brokers agree on."""
        return self.wait(lambda image: image.controller_id in self.running_ids).controller_id

    @property
    def running_ids(self) -> set[int]:
        return {node_id for node_id, broker in self.brokers.items() if broker._thread is not None}

    def wait_for_topic(self, name: str) -> ClusterImage:
        return self.wait(lambda image: name in image.topics)

    def wait(self, is_wanted: Callable[[ClusterImage], bool]) -> ClusterImage:
        """Wait until this holds of the images of all running brokers; returns that of one of them."""

        async def wait_on(server: BrokerServer) -> ClusterImage:
            cluster = server.services.cluster
            assert await cluster.wait_for(is_wanted, DEADLINE_S), cluster.image
            return cluster.image

        images = [broker.call(wait_on) for broker in self.running]
        return images[-1]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., SmallCluster]]:
    with ExitStack() as clusters:

        def make(settings: Mapping[str, object] | None = None) -> SmallCluster:
            return clusters.enter_context(SmallCluster(tmp_path, settings))

        yield make
