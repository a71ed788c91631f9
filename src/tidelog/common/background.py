"""Tasks that run as long as their owner does, and must not end unseen.

What always holds: a task that fails, which is a bug, is logged at once, and the loop's exception handler is called with
`BACKGROUND_TASK` in its context. A broker's process ends then: a broker that keeps running without one of its parts
could lead for ever with outdated knowledge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

logger = logging.getLogger(__name__)

BACKGROUND_TASK: Final = "background_task"
"""The key of the failed task's name in the context of an exception handler."""


def start_background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run this on the running loop until its owner cancels it."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(report_failure)
    return task


async def stop_background(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, if there is one, and wait for its end."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def report_failure(task: asyncio.Task[None]) -> None:
    """To be called when a task is done that must not fail."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.critical("%s has failed: %s", task.get_name(), error, exc_info=error)
        message = f"{task.get_name()} has failed"
        context = {"message": message, "exception": error, "task": task, BACKGROUND_TASK: task.get_name()}
        task.get_loop().call_exception_handler(context)
