"""Requests to the controller, when the one that was asked is replaced before it has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tidelog.broker import controller_channel
from tidelog.broker.controller_channel import RoutedControllerChannel
from tidelog.broker.peers import Peers
from tidelog.common.observable import Observable
from tidelog.controller import Controller
from tidelog.controller.layout import ControllerLocation
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k67_allocate_producer_ids import (
    ALLOCATE_PRODUCER_IDS,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

FIRST = ControllerLocation(1, 7, "127.0.0.1", 9091)
SECOND = ControllerLocation(2, 8, "127.0.0.1", 9092)


class ElectedController:
    """A broker's own controller, as far as it knows who was elected."""

    is_active = False

    def __init__(self) -> None:
        self.location: Observable[ControllerLocation | None] = Observable(FIRST)


class SilentPeers:
    """Brokers that answer once they are told to, by node id; which were asked, in order."""

    def __init__(self) -> None:
        self.asked: Observable[tuple[int, ...]] = Observable(())
        self.answers = {node_id: asyncio.get_running_loop().create_future() for node_id in (1, 2)}

    def learn(self, node_id: int, address: object) -> None:
        pass

    async def call(self, node_id: int, *_: object, **__: object) -> AllocateProducerIdsResponse:
        self.asked.set((*self.asked.value, node_id))
        answer: AllocateProducerIdsResponse = await self.answers[node_id]
        return answer


class Case:
    def __init__(self) -> None:
        self.controller = ElectedController()
        self.peers = SilentPeers()
        no_services: Callable[[], Any] = dict
        self.channel = RoutedControllerChannel(no_services, cast(Controller, self.controller), cast(Peers, self.peers))

    async def ask(self, timeout_s: float = 60.0) -> int:
        response = await self.channel.call(
            ALLOCATE_PRODUCER_IDS, AllocateProducerIdsRequest(), AllocateProducerIdsResponse, timeout_s=timeout_s
        )
        return response.producer_id_start

    async def until_asked(self, *node_ids: int) -> None:
        await asyncio.wait_for(self.peers.asked.wait_for(lambda asked: asked == node_ids), 20)


def answer(producer_id_start: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=producer_id_start)


@pytest.mark.parametrize("is_vacant_first", [False, True])
def test_a_silent_controller_that_was_replaced_is_not_waited_for(
    is_vacant_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_channel, "REPLACED_GRACE_S", 0.01)

    async def run() -> None:
        case = Case()
        case.peers.answers[2].set_result(answer(2000))
        asking = asyncio.create_task(case.ask())
        await case.until_asked(1)
        if is_vacant_first:
            case.controller.location.set(None)
        case.controller.location.set(SECOND)
        assert await asyncio.wait_for(asking, 20) == 2000
        assert case.peers.asked.value == (1, 2)

    asyncio.run(run())


def test_a_silent_controller_may_be_replaced_after_the_time_to_find_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_channel, "REPLACED_GRACE_S", 0.01)
    monkeypatch.setattr(controller_channel, "ELECTION_WAIT_S", 0.05)

    async def run() -> None:
        case = Case()
        case.peers.answers[2].set_result(answer(2000))
        asking = asyncio.create_task(case.ask())
        await case.until_asked(1)
        asked_s = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < asked_s + 0.06:
            await asyncio.wait((asking,), timeout=0.01)
        case.controller.location.set(SECOND)
        assert await asyncio.wait_for(asking, 20) == 2000

    asyncio.run(run())


def test_a_controller_that_answers_as_it_is_replaced_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_channel, "REPLACED_GRACE_S", 60.0)

    async def run() -> None:
        case = Case()
        asking = asyncio.create_task(case.ask())
        await case.until_asked(1)
        case.controller.location.set(SECOND)
        await asyncio.wait((asking,), timeout=0.01)
        case.peers.answers[1].set_result(answer(1000))
        assert await asyncio.wait_for(asking, 20) == 1000
        assert case.peers.asked.value == (1,)

    asyncio.run(run())


def test_a_controller_that_stays_has_all_the_time() -> None:
    async def run() -> None:
        case = Case()
        with pytest.raises(KafkaError) as caught:
            await case.ask(timeout_s=0.05)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert case.peers.asked.value == (1,)

    asyncio.run(run())
