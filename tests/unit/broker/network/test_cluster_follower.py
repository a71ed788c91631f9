"""A broker that follows the controller: what it logs while the controller is out of reach."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import cast

import pytest

from tidelog.broker import cluster_follower
from tidelog.broker.cluster_follower import ClusterFollower
from tidelog.broker.peers import Peers
from tidelog.client.address import Address
from tidelog.client.errors import ConnectError, ConnectionLostError
from tidelog.client.network.connection import Connection
from tidelog.common.observable import Observable
from tidelog.controller import Controller
from tidelog.controller.cluster_view import ClusterView
from tidelog.controller.layout import ControllerLocation
from tidelog.protocol.messages.k10001_follow_cluster import FollowClusterResponse


class Road:
    """The way to the controller: open or not; the controller has no news."""

    def __init__(self) -> None:
        self.is_open = True
        self.answers = 0
        self.attempts = 0
        self.changed = asyncio.Condition()

    def learn(self, node_id: int, address: Address) -> None:
        pass

    async def open(self, node_id: int) -> Connection:
        await self._count("attempts")
        if not self.is_open:
            raise ConnectError(f"cannot reach broker {node_id}")
        return cast(Connection, self)

    async def request(self, *_: object, **__: object) -> FollowClusterResponse:
        await self._count("answers")
        if not self.is_open:
            raise ConnectionLostError("the connection broke")
        return FollowClusterResponse(controller_epoch=1, revision=7, is_complete=True)

    def close(self) -> None:
        pass

    async def _count(self, what: str) -> None:
        async with self.changed:
            setattr(self, what, getattr(self, what) + 1)
            self.changed.notify_all()
        await asyncio.sleep(0)

    async def more(self, what: str, count: int) -> None:
        """Wait until it has happened so many times more."""
        async with self.changed:
            wanted = getattr(self, what) + count
            await self.changed.wait_for(lambda: getattr(self, what) >= wanted)


def test_an_outage_is_logged_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_follower, "_PAUSE_S", 0.0)
    caplog.set_level(logging.INFO, cluster_follower.__name__)

    async def run() -> None:
        road = Road()
        where = Observable[ControllerLocation | None](ControllerLocation(1, 1, "127.0.0.1", 9092))
        controller = cast(Controller, SimpleNamespace(location=where, is_active=False))
        follower = ClusterFollower(2, controller, cast(Peers, road), ClusterView())
        follower.start()
        try:
            await road.more("answers", 3)
            assert not caplog.messages
            for outage in (1, 2):
                road.is_open = False
                await road.more("attempts", 5)
                road.is_open = True
                await road.more("answers", 3)
                assert len(caplog.messages) == outage * 2
        finally:
            await follower.close()

    asyncio.run(run())
    lost, again = "lost touch with the controller, broker 1: the connection broke", "in touch with the controller again"
    assert caplog.messages == [lost, f"{again}, revision 7"] * 2
