"""Assignment changes while the user is inside poll(), close() or unsubscribe(): commit, report, revoke, assign.

What always holds: turns run one at a time and to completion. The listener is called only while the user is inside. If
the user's poll ends before the turn does, the turn continues up to the next listener call and waits there for the next
poll. An exception from a listener does not stop the turn: it is kept, and raised to the user when the turn has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidelog.client.consumer.membership import Membership
from tidelog.client.consumer.rebalance import RebalanceEvent, UserCall
from tidelog.client.consumer.subscription import SubscriptionState
from tidelog.client.types import TopicPartition
from tidelog.common.clock import Clock

logger = logging.getLogger(__name__)


class UserTurns:
    """Carries out the turns of one member."""

    def __init__(
        self,
        member: Membership,
        subscription: SubscriptionState,
        call_user: Callable[[UserCall], Awaitable[None]],
        commit: Callable[[float | None], Awaitable[None]],
        clock: Clock,
        on_end: Callable[[], None],
    ) -> None:
        """`commit` commits the returned records within some seconds and does not raise; `on_end` ends a turn."""
        self._member = member
        self._subscription = subscription
        self._call_user = call_user
        self._commit = commit
        self._clock = clock
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._inside = asyncio.Event()
        self._call: asyncio.Task[None] | None = None  # of the listener
        self._listener_error: BaseException | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a turn is running or waiting for the user."""
        return self._task is not None or self._member.turn() is not None

    async def take(self, timeout_s: float | None) -> None:
        """The user is inside: carry out all turns, or as much as time allows."""
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        self._inside.set()
        try:
            while self.is_waiting:
                if self._task is None:
                    self._task = loop.create_task(self._carry_out())
                    self._task.add_done_callback(self._ended)
                if not await self._wait(self._task, None if deadline_s is None else max(deadline_s - loop.time(), 0.0)):
                    return
        finally:
            self._inside.clear()

    async def _wait(self, task: asyncio.Task[None], timeout_s: float | None) -> bool:
        """Whether the turn ended in time; a listener call in progress is waited for in any case."""
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
            if not done and self._call is not None:
                await asyncio.wait({self._call})
        except asyncio.CancelledError:
            # The user's poll was interrupted, perhaps inside the listener: stop waiting for it.
            if self._call is not None:
                self._call.cancel()
            raise
        if not done:
            return False
        task.result()
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._on_end()

    async def _carry_out(self) -> None:
        turn = self._member.begin_turn()
        if turn is None:
            return
        if turn.going and not turn.is_lost:
            await self._commit(None)
        if turn.tells_going:
            await self._tell(RebalanceEvent.LOST if turn.is_lost else RebalanceEvent.REVOKED, turn.going)
        if turn.going:
            self._subscription.set_assignment(turn.remaining)
        if turn.assignment is not None:
            self._subscription.set_assignment(turn.assignment)
            await self._tell(RebalanceEvent.ASSIGNED, turn.coming)
        self._member.turn_done(turn, self._clock.monotonic_ms())

    async def give_up_all(self, timeout_s: float) -> None:
        """The user leaves the group: finish the current turn, commit, and report that everything goes."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        self._inside.set()
        try:
            if self._task is not None:
                await self._wait(self._task, timeout_s)
                self.cancel()
            owned = tuple(sorted(self._subscription.assigned()))
            if not owned:
                return
            if self._member.identity.is_member:
                await self._commit(max(deadline_s - loop.time(), 0.0))
            is_lost = not self._member.identity.is_member
            await self._tell(RebalanceEvent.LOST if is_lost else RebalanceEvent.REVOKED, owned)
            self._subscription.set_assignment(())
        finally:
            self._inside.clear()

    async def _tell(self, event: RebalanceEvent, partitions: tuple[TopicPartition, ...]) -> None:
        listener = self._subscription.listener
        if listener is None:
            return
        await self._inside.wait()
        call = UserCall(listener, event, partitions)
        task = self._call = asyncio.get_running_loop().create_task(self._make(call))
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()  # the turn itself was cancelled; otherwise it has ended
            self._call = None
        if task.cancelled():
            logger.warning("%s was interrupted", call)
        elif (error := task.exception()) is not None:
            logger.warning("%s raised %r", call, error)
            self._listener_error = self._listener_error or error

    async def _make(self, call: UserCall) -> None:
        await self._call_user(call)

    def raise_listener_error(self) -> None:
        """Raise the exception of a listener, once."""
        error, self._listener_error = self._listener_error, None
        if error is not None:
            raise error

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
