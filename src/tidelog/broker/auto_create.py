"""Creates topics on first use: requested while Metadata is answered, created in the background.

What always holds: a topic is requested once, however many clients want it at the same time. Clients get no error from
here, because they repeat their Metadata request until the topic has a leader. If the controller refuses a topic, that
is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.controller.requests import NewTopic
from tidelog.protocol import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidelog.broker.topic_creation import TopicCreation

logger = logging.getLogger(__name__)


class AutoTopicCreation:
    """The topics being created because a client asked for their metadata."""

    def __init__(self, creation: TopicCreation) -> None:
        self._creation = creation
        self._in_work: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, names: Sequence[str]) -> None:
        """Have the controller create these topics with the broker's defaults, in the background."""
        wanted = [name for name in names if name not in self._in_work]
        if not wanted:
            return
        self._in_work.update(wanted)
        task = asyncio.get_running_loop().create_task(self._create(wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until every topic requested so far is ready or has been refused."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _create(self, names: Sequence[str]) -> None:
        try:
            results = await self._creation.create([NewTopic(name) for name in names])
        except KafkaError as error:
            logger.warning("could not create topics %s on a client's first use: %s", ", ".join(names), error)
            return
        finally:
            self._in_work.difference_update(names)
        for result in results:
            if result.error is ErrorCode.NONE:
                logger.info("created topic %s on a client's first use", result.name)
            elif result.error is not ErrorCode.TOPIC_ALREADY_EXISTS:
                logger.warning("could not create topic %s on a client's first use: %s", result.name, result.message)
