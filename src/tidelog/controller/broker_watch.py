"""How the controller notices that a broker is gone: its `live/` key vanishes, another incarnation holds it, or the
broker lives and is cut off from the controller.

What always holds: while this broker is the controller, every registered broker whose registration is not that of the
incarnation that holds its key gets fenced, however the two came about: keys and registrations are compared whenever
either of them changes. A broker is registered only after its key was seen, so that its end will be seen too. Nothing is
watched, and the store is not polled, while there is no other broker. A broker that does not ask the controller for news
is fenced as well, since it can neither lead by what is decided nor ask for a smaller ISR. But a controller that hears
of fewer than half of the brokers, itself among them, is the one that is cut off, and leaves its role to another. Those
that it has fenced for their silence count, as long as they live: brokers seldom fall silent in the same moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tidelog.common.background import start_background, stop_background
from tidelog.common.observable import Observable
from tidelog.controller import layout
from tidelog.controller.broker_contact import SILENT_TURNS
from tidelog.controller.controller import Controller
from tidelog.controller.image import ClusterImage
from tidelog.controller.membership import is_same_process, live_incarnation
from tidelog.metadata.store import MetadataStoreError, Store
from tidelog.protocol import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

SEEN_WITHIN_S: Final = 3.0
"""How long a registration waits for the broker's key to be seen: watches of all stores are faster."""

SILENCE_MAX_MS: Final = 9_000
"""As Kafka's controller waits for a broker's heartbeat."""

_RETRY_PAUSE_S: Final = 1.0


class BrokerWatch:
    """Fences brokers that are gone, as long as this broker is the controller."""

    def __init__(
        self, controller: Controller, store: Store, node_id: int, *, silence_max_ms: float = SILENCE_MAX_MS
    ) -> None:
        """`silence_max_ms` is how long a broker may ask nothing before it counts as cut off."""
        self._turn_s = silence_max_ms / 1000 / SILENT_TURNS
        self._controller = controller
        self._store = store
        self._node_id = node_id
        # Which incarnations are alive, as last seen; None while nothing is watched.
        self._live: Observable[Mapping[int, uuid.UUID] | None] = Observable(None)
        self._is_wanted = Observable(False)
        self._look_again = asyncio.Event()
        # Who was fenced for being silent, and as which incarnation.
        self._cut_off: dict[int, uuid.UUID] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = start_background(self._run(), "broker watch")

    async def close(self) -> None:
        await stop_background(self._task)

    async def confirm(self, node_id: int, incarnation: uuid.UUID) -> None:
        """Wait until it is seen that this incarnation of a broker is alive; raises KafkaError if it is not."""
        if node_id == self._node_id:
            member = self._controller.membership.current
            if member is None or member.incarnation != incarnation:
                raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "This broker has a new session by now.")
            return
        self._is_wanted.set(True)
        try:
            async with asyncio.timeout(SEEN_WITHIN_S):
                await self._live.wait_for(lambda live: live is not None and live.get(node_id) == incarnation)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"The metadata store does not show this start of broker {node_id} as alive.",
            ) from None

    async def _run(self) -> None:
        while True:
            await self._controller.wait_until_active()
            end = self._controller.view.subscribe(self._on_image)
            work = (
                self._watch_brokers(),
                self._fence_gone(),
                self._watch_contact(),
                self._controller.wait_until_resigned(),
            )
            tasks = [asyncio.ensure_future(each) for each in work]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                end()
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                self._live.set(None)
                self._is_wanted.set(False)
                self._cut_off.clear()
            for task in tasks:
                if not task.cancelled():
                    task.result()

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.brokers is not new.brokers:
            self._look_again.set()

    def _has_others(self, image: ClusterImage) -> bool:
        return any(not broker.fenced and broker.node_id != self._node_id for broker in image.brokers.values())

    async def _watch_brokers(self) -> None:
        if not self._has_others(self._controller.image):
            await self._is_wanted.wait_for(bool)
        while True:
            try:
                async with contextlib.aclosing(self._store.watch(layout.LIVE)) as snapshots:
                    async for snapshot in snapshots:
                        self._live.set(
                            {
                                int(key.removeprefix(layout.LIVE)): live_incarnation(rec)
                                for key, rec in snapshot.records.items()
                            }
                        )
                        self._look_again.set()
            except MetadataStoreError as error:
                logger.warning("can't see which brokers are alive: %s", error)
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _fence_gone(self) -> None:
        while True:
            await self._look_again.wait()
            self._look_again.clear()
            gone = list(self._gone())
            if gone:
                await self._fence(gone)

    async def _fence(self, node_ids: Collection[int]) -> None:
        try:
            await self._controller.fence_brokers(node_ids)
        except (KafkaError, MetadataStoreError) as error:
            # It has resigned, and whoever is elected next looks again.
            logger.info("could not fence brokers %s: %s", node_ids, error)

    async def _watch_contact(self) -> None:
        """Fence brokers that are cut off from this one, or leave the role if this one is."""
        if not self._has_others(self._controller.image):
            await self._is_wanted.wait_for(bool)
        while True:
            await asyncio.sleep(self._turn_s)
            others = self._others_alive()
            silent = self._controller.contact.take_turn(others)
            newly = sorted(node_id for node_id in silent if not self._controller.image.brokers[node_id].fenced)
            if 2 * len(silent) > len(others) + 1:
                await self._controller.step_down(f"brokers {sorted(silent)} are alive and can't reach it")
            elif newly:
                logger.warning("brokers %s are alive and can't reach the controller", newly)
                for node_id in newly:
                    self._cut_off[node_id] = self._controller.image.brokers[node_id].incarnation
                await self._fence(newly)

    def _others_alive(self) -> list[int]:
        """The brokers that should ask this one for news: those that it counts on, and those that it lost touch with."""
        live = self._live.value or {}
        others = []
        for broker in self._controller.image.brokers.values():
            if broker.node_id == self._node_id:
                continue
            if not broker.fenced:
                others.append(broker.node_id)
                continue
            # A broker that was started again may be reading its logs for a while, before it asks anything.
            cut_off, now = self._cut_off.get(broker.node_id), live.get(broker.node_id)
            if cut_off is not None and now is not None and is_same_process(cut_off, now):
                others.append(broker.node_id)
        return others

    def _gone(self) -> Iterable[int]:
        live, brokers = self._live.value, self._controller.image.brokers
        if live is None:
            return
        own = self._controller.membership.current
        if own is not None:
            # It knows about itself what a watch may tell it later; it would fence each of its registrations until then.
            live = {**live, self._node_id: own.incarnation}
        for broker in brokers.values():
            if not broker.fenced and live.get(broker.node_id) != broker.incarnation:
                yield broker.node_id
