"""A broker's place in the cluster: its session with the metadata store, and the key that says that it is alive.

What always holds: a broker has one session at a time, and owns `live/<node id>` by it, so no two brokers of one id are
members at once, and the key is gone once the broker is. Each session is an incarnation of the broker with an id of its
own: a session that is lost ends all that was registered under it, and the next one registers again (KAFKA-2729). The
ids of one process begin alike, so that it can be told from one that was started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import uuid
from dataclasses import field
from typing import Final

from tidelog.common.background import start_background, stop_background
from tidelog.common.ids import ZERO_UUID, uuid_from_text, uuid_to_text
from tidelog.common.light_dataclass import dataclass
from tidelog.common.observable import Observable
from tidelog.controller import layout
from tidelog.metadata.store import ABSENT, Conflict, MetadataStoreError, Ok, Put, Rec, Session, SessionLost, Store

logger = logging.getLogger(__name__)

SESSION_TTL_MS: Final = 6_000
"""How long a broker may be silent before it counts as dead: longer than a disk occasionally stalls."""

_TAKEN_TTLS: Final = 2.0
"""How many times as long as a session lasts a start waits for the broker before it to be gone: ZooKeeper gives each
session its whole time again when it elects a leader."""

_TAKEN_GRACE_S: Final = 1.0
"""How much longer than that: stores notice late."""

_RETRY_PAUSE_S: Final = 1.0
_PROCESS_BYTES: Final = 12
_UNKNOWN_PAUSE_S: Final = 0.05


class NodeIdTakenError(MetadataStoreError):
    """Another running broker has this node id."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One session of a broker."""

    session: Session
    incarnation: uuid.UUID
    _refused: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_lost(self) -> bool:
        return self.session.lost.is_set() or self._refused.is_set()

    def report_lost(self) -> None:
        """The store has refused the session, which its heartbeats may not have noticed yet."""
        self._refused.set()

    async def wait_until_lost(self) -> None:
        losses = [asyncio.ensure_future(event.wait()) for event in (self.session.lost, self._refused)]
        try:
            await asyncio.wait(losses, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for loss in losses:
                loss.cancel()


class Membership:
    """Keeps a broker a member of the cluster, from `join` to `close`."""

    def __init__(self, store: Store, node_id: int, *, ttl_ms: float = SESSION_TTL_MS) -> None:
        self._store = store
        self._node_id = node_id
        self._ttl_ms = ttl_ms
        # The present member, None while there is no session, or why there can't be one at the moment.
        self._state: Observable[Member | MetadataStoreError | None] = Observable(None)
        self._process_id = uuid.uuid4().bytes[:_PROCESS_BYTES]
        self._incarnations = itertools.count()
        # A session that will be closed, whatever happens to it.
        self._session: Session | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def current(self) -> Member | None:
        """None while there is no session that can be relied on."""
        member = self._state.value
        return member if isinstance(member, Member) and not member.is_lost else None

    async def join(self) -> None:
        """Become a member; raises NodeIdTakenError, or MetadataStoreError, and leaves no session then."""
        try:
            self._state.set(await self._enter(_TAKEN_TTLS * self._ttl_ms / 1000 + _TAKEN_GRACE_S))
        except BaseException:
            await self._close_session()
            raise
        self._keeper = start_background(self._keep(), "membership")

    async def wait(self) -> Member:
        """The present member, once there is one; raises MetadataStoreError where the store gives no session."""
        state = await self._state.wait_for(lambda state: state is not None)
        if isinstance(state, MetadataStoreError):
            raise MetadataStoreError(str(state)) from state
        assert state is not None  # that is what was waited for
        return state

    async def wait_for_next(self, last: Member | None) -> Member:
        """The member after this one, however long it takes."""
        state = await self._state.wait_for(lambda state: isinstance(state, Member) and state is not last)
        assert isinstance(state, Member)
        return state

    async def close(self) -> None:
        """End the session, and with it all that it owns."""
        await stop_background(self._keeper)
        self._state.set(None)
        try:
            await self._close_session()
        except MetadataStoreError as error:
            logger.warning("broker %d leaves its session to end by itself: %s", self._node_id, error)

    async def _keep(self) -> None:
        """Become a member again whenever the session is lost."""
        while True:
            member = self._state.value
            if isinstance(member, Member):
                await member.wait_until_lost()
                logger.warning("broker %d has lost its session with the metadata store", self._node_id)
                self._state.set(None)
            try:
                await self._close_session()
                self._state.set(await self._enter(None))
                logger.info("broker %d has a new session with the metadata store", self._node_id)
            except MetadataStoreError as error:
                logger.error("broker %d gets no session with the metadata store: %s", self._node_id, error)
                self._state.set(error)
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _close_session(self) -> None:
        # Forgotten only once it is closed, so that a cancelled attempt can be repeated.
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _enter(self, patience_s: float | None) -> Member:
        """Open a session and claim the node id.

        Waits for another owner to go, for ever where patience is None, and else for so long from when it is first seen:
        what it takes to reach the store does not count.
        """
        loop = asyncio.get_running_loop()
        deadline_s: float | None = None
        key = layout.live_key(self._node_id)
        while True:
            session = self._session = await self._store.session(self._ttl_ms)
            incarnation = self._next_incarnation()
            value = layout.encode({"incarnation": uuid_to_text(incarnation)})
            while not session.lost.is_set():
                result = await self._store.txn([(key, ABSENT)], [Put(key, value, owner=session.id)])
                if isinstance(result, Ok):
                    return Member(session, incarnation)
                if isinstance(result, SessionLost):
                    break
                rec = await self._store.get(key)
                if rec is not None and live_incarnation(rec) == incarnation:
                    return Member(session, incarnation)  # an attempt before was carried out after all
                if isinstance(result, Conflict) and rec is not None:
                    if deadline_s is None and patience_s is not None:
                        deadline_s = loop.time() + patience_s
                    await self._wait_for_owner_to_go(key, session, deadline_s)
                else:
                    await asyncio.sleep(_UNKNOWN_PAUSE_S)
            await self._close_session()

    def _next_incarnation(self) -> uuid.UUID:
        number = next(self._incarnations)
        return uuid.UUID(bytes=self._process_id + number.to_bytes(16 - _PROCESS_BYTES))

    async def _wait_for_owner_to_go(self, key: str, session: Session, deadline_s: float | None) -> None:
        """Wait until nobody holds the key, or our own session is lost; raises NodeIdTakenError at the deadline."""
        logger.info("waiting for the broker that has node id %d to be gone", self._node_id)
        watching = asyncio.ensure_future(self._watch_until_absent(key))
        lost = asyncio.ensure_future(session.lost.wait())
        try:
            timeout_s = None if deadline_s is None else max(0.0, deadline_s - asyncio.get_running_loop().time())
            done, _ = await asyncio.wait({watching, lost}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise NodeIdTakenError(
                    f"node id {self._node_id} is used by another running broker; stop that one, "
                    "or choose another id with --node-id"
                )
            if watching in done:
                watching.result()
        finally:
            for task in (watching, lost):
                task.cancel()
            await asyncio.wait({watching, lost})

    async def _watch_until_absent(self, key: str) -> None:
        while True:
            try:
                async with contextlib.aclosing(self._store.watch(key)) as snapshots:
                    async for snapshot in snapshots:
                        if key not in snapshot.records:
                            return
            except MetadataStoreError as error:
                # A store that loses its leader also makes others wait; our own session tells how long it may be away.
                logger.warning("can't see whether the broker that has node id %d is gone: %s", self._node_id, error)
                await asyncio.sleep(_RETRY_PAUSE_S)


def is_same_process(one: uuid.UUID, other: uuid.UUID) -> bool:
    """Whether two incarnations of a broker are sessions of one process: nothing it had can be lost in between."""
    return one.bytes[:_PROCESS_BYTES] == other.bytes[:_PROCESS_BYTES] != ZERO_UUID.bytes[:_PROCESS_BYTES]


def live_incarnation(rec: Rec) -> uuid.UUID:
    """Which incarnation of a broker a `live/` key stands for."""
    return uuid_from_text(layout.decode(rec.value)["incarnation"])
