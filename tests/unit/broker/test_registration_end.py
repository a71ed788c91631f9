"""How a registration ends: when a broker hands over no longer, and under which epoch it stops cleanly."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.registration import Registration
from tidelog.common.clock import SystemClock
from tidelog.controller import layout
from tidelog.controller.image import BrokerInfo
from tidelog.controller.membership import Member
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.store import MetadataStoreError, Put, Rec

OURS, OURS_LATER, OTHERS = (
    uuid.UUID(bytes=start.ljust(12, b"-") + b"%04d" % number) for start, number in ((b"a", 1), (b"a", 2), (b"b", 1))
)
BROKER = BrokerInfo(node_id=1, epoch=41, endpoints=(), rack=None, fenced=False, directories=())


def registration_with(store: MemoryStore, cluster: object = None) -> Registration:
    registration = Registration(
        cast(Any, cluster),
        cast(Any, cluster),
        cast(Any, None),
        cast(Any, SimpleNamespace(node_id=1)),
        store=store,
        is_in_touch=lambda: True,
    )
    registration.epoch = 41
    registration._member = Member(cast(Any, None), OURS)
    return registration


@pytest.mark.parametrize(
    ("epoch", "incarnation", "learned"), [(43, OURS_LATER, 43), (43, OTHERS, 41), (41, OURS, 41), (40, OURS, 41)]
)
def test_the_epoch_of_a_registration_that_nobody_told_of_is_learned(
    epoch: int, incarnation: uuid.UUID, learned: int
) -> None:
    async def scenario() -> int:
        store = MemoryStore(SystemClock())
        record = layout.broker_record(replace(BROKER, epoch=epoch, incarnation=incarnation))
        await store.txn([], [Put(layout.broker_key(1), layout.encode(record))])
        registration = registration_with(store)
        await registration.learn_last_epoch()
        return registration.epoch

    assert asyncio.run(scenario()) == learned


class AbsentStore(MemoryStore):
    async def get(self, key: str) -> Rec | None:
        raise MetadataStoreError("away")


def test_without_the_store_a_stop_names_what_is_known() -> None:
    async def scenario() -> tuple[int, int]:
        empty, absent = registration_with(MemoryStore(SystemClock())), registration_with(AbsentStore(SystemClock()))
        await empty.learn_last_epoch()
        await absent.learn_last_epoch()
        return empty.epoch, absent.epoch

    assert asyncio.run(scenario()) == (41, 41)


class Silence:
    """A controller that does not answer, and a cluster of which nothing is heard."""

    def __init__(self) -> None:
        self.was_asked = asyncio.Event()
        self.image = SimpleNamespace(revision=0)

    async def call(self, *_: object, **__: object) -> None:
        self.was_asked.set()
        await asyncio.Event().wait()

    async def wait_for(self, *_: object) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("is_lost_before", [False, True])
def test_a_broker_without_a_session_waits_for_nobody_to_take_over(is_lost_before: bool) -> None:
    async def scenario() -> bool:
        silence = Silence()
        registration = registration_with(MemoryStore(SystemClock()), silence)
        member = registration._member = Member(cast(Any, SimpleNamespace(lost=asyncio.Event())), OURS)
        if is_lost_before:
            member.report_lost()
        ending = asyncio.create_task(registration.shut_down(3600))
        if not is_lost_before:
            await asyncio.wait_for(silence.was_asked.wait(), 20)
            assert not ending.done()
            member.report_lost()
        return await asyncio.wait_for(ending, 20)

    assert asyncio.run(scenario()) is False
