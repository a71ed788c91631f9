"""The controller's answers to requests that other brokers forward, so that one that comes again is carried out once.

A broker whose connection to the controller breaks sends the request again, under the same id: it can't know whether the
topic that it asked for was created. What always holds: while an id is remembered, its request is carried out once, and
whoever sends it gets that one answer, also while it is being worked out; a failure without an answer is forgotten. The
answers are bounded in number and in bytes, the oldest go first. It belongs to one election: another controller
remembers nothing of it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tidelog.common.ids import ZERO_UUID

ANSWERS_MAX: Final = 500
"""A broker asks again within seconds, and clusters are not changed hundreds of times in these."""

ANSWER_BYTES_MAX: Final = 4 << 20


class AnsweredOnce:
    """Recent answers by request id."""

    def __init__(self, *, answers_max: int = ANSWERS_MAX, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._answers_max = answers_max
        self._bytes_max = bytes_max
        # Under way or answered, oldest first.
        self._tasks: dict[uuid.UUID, asyncio.Task[bytes]] = {}
        self._sizes: dict[uuid.UUID, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._tasks)

    async def answer(self, request_id: uuid.UUID, carry_out: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """The answer to this request, carried out now unless it was before; without an id it always is."""
        task = self._tasks.get(request_id)
        if task is None:
            if request_id == ZERO_UUID or len(self._tasks) - len(self._sizes) >= self._answers_max:
                return await carry_out()
            task = self._tasks[request_id] = asyncio.get_running_loop().create_task(carry_out())
            task.add_done_callback(lambda done: self._on_done(request_id, done))
        # It goes on when the connection that asked is lost: its answer is for the one that asks again.
        return await asyncio.shield(task)

    def _on_done(self, request_id: uuid.UUID, task: asyncio.Task[bytes]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._tasks[request_id]
            return
        self._sizes[request_id] = len(task.result())
        self._bytes += self._sizes[request_id]
        while self._bytes > self._bytes_max or len(self._sizes) > self._answers_max:
            oldest = next(iter(self._sizes))
            self._bytes -= self._sizes.pop(oldest)
            del self._tasks[oldest]
