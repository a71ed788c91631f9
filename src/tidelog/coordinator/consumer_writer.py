"""Writes the changes that requests make to groups of the new protocol, one request per group at a time.

What always holds: a batch takes effect when it is committed; while one is in flight, the group's other requests wait
for it, so each sees the state that the previous one left. Those that waited are then handled one by one, with pauses;
any that come meanwhile wait behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.coordinator.actions import Action, ActionSteps, Answer, Now, Work
from tidelog.coordinator.appends import coordinator_error
from tidelog.coordinator.classic_group import ClassicGroup
from tidelog.coordinator.consumer_draft import GroupDraft
from tidelog.coordinator.consumer_group import ConsumerGroup
from tidelog.protocol import ErrorCode

if TYPE_CHECKING:
    from tidelog.coordinator.group import Group
    from tidelog.coordinator.shard_state import ShardState

Handle = Callable[[Now], list[Action]]
Done = Callable[[ErrorCode, Now], list[Action]]


class Waiting(NamedTuple):
    """Something that waits for the previous write; `refuse` answers it if this is no longer the coordinator."""

    handle: Handle
    refuse: Callable[[ErrorCode], list[Action]]


class GroupWriter:
    """The writes of consumer groups in one shard."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        # Groups with a batch in flight, or with requests that waited for one, and what waits.
        self._waiting: dict[str, deque[Waiting]] = {}

    def in_turn(self, group_id: str, item: Waiting, now: Now) -> list[Action]:
        waiting = self._waiting.get(group_id)
        if waiting is not None:
            waiting.append(item)
            return []
        return item.handle(now)

    def write(self, draft: GroupDraft, now: Now, done: Done, *, instead: Group | None = None) -> list[Action]:
        """Write the draft's changes; the group has changed when `done` is called with NONE.

        `instead` is the group of the other kind that then replaces the draft's.
        """
        group = draft.group
        records = draft.records()
        if not records:
            return done(ErrorCode.NONE, now)
        waiting = self._waiting[group.group_id] = deque()

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            actions: list[Action] = []
            if not error:
                actions += self._place(instead or group, now)
                draft.take_over(self._state.image, now)
            actions += done(coordinator_error(error), now)
            if waiting:
                actions.append(Work(self._handle_waiting(group.group_id, waiting, now)))
            else:
                del self._waiting[group.group_id]
            return actions

        return [self._state.appends.start(records, finish)]

    def _handle_waiting(self, group_id: str, waiting: deque[Waiting], now: Now) -> ActionSteps:
        while waiting:
            del self._waiting[group_id]
            actions = waiting.popleft().handle(now)
            writing = self._waiting.setdefault(group_id, waiting)
            if writing is not waiting:
                # It writes something itself; the rest waits for that.
                writing.extend(waiting)
                yield actions
                return
            yield actions
        del self._waiting[group_id]

    def _place(self, group: Group, now: Now) -> list[Action]:
        """Add the group, replacing the one of the other kind if there was one."""
        old = self._state.groups.get(group.group_id)
        if old is group:
            return []
        self._state.put_group(group)
        actions: list[Action] = []
        if isinstance(old, ClassicGroup):
            # Members that wait in it have to rejoin, and find the new group.
            actions += old.on_replaced()
        elif old is not None:
            actions += old.on_deleted()
        if isinstance(group, ConsumerGroup):
            actions += [group.session_timer(member, now) for member in group.members.values()]
        return actions

    def on_unloaded(self, error: ErrorCode) -> list[Action]:
        """This broker is no longer the coordinator: answer everything that waits for an earlier write."""
        waiting = [item for items in self._waiting.values() for item in items]
        for items in self._waiting.values():
            items.clear()
        return [action for item in waiting for action in item.refuse(error)]


def nobody(error: ErrorCode) -> list[Action]:
    """The refusal for work that no client waits for."""
    return []


def answerer(exchange: int, response: Callable[[ErrorCode], object]) -> Callable[[ErrorCode], list[Action]]:
    return lambda error: [Answer(exchange, response(error))]
