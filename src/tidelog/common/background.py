"""Tasks that run as long as their owner does, and must not end unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


def start_background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run this on the running loop until its owner cancels it; if it fails, which is a bug, the log says so at once."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_report)
    return task


async def stop_background(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, if there is one, and wait for its end."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def _report(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.critical("%s has failed: %s", task.get_name(), error, exc_info=error)
