"""The cluster as one broker knows it: the newest image it has, and who is told of the next one.

What always holds: images only get newer; subscribers see every image in order, on the event loop, before anyone who
waits for it goes on. On the controller's own broker the controller publishes here what it has committed; on the others
it is what they have heard of it, so it may lag behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from tidelog.controller.image import EMPTY_IMAGE, ClusterImage

logger = logging.getLogger(__name__)

Subscriber: TypeAlias = Callable[[ClusterImage, ClusterImage], None]


class ClusterView:
    """The image that the parts of a broker work with."""

    def __init__(self, image: ClusterImage = EMPTY_IMAGE) -> None:
        self._image = image
        self._subscribers: list[Subscriber] = []
        self._waiting: dict[asyncio.Future[None], Callable[[ClusterImage], bool]] = {}

    @property
    def image(self) -> ClusterImage:
        return self._image

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call with the image before and after every change; returns the function that ends it."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def publish(self, image: ClusterImage) -> None:
        """Make an image known; one that is older than the known one is passed over."""
        old = self._image
        if image.revision < old.revision:
            logger.info("passed over revision %d of the metadata; %d is known", image.revision, old.revision)
            return
        self._image = image
        for subscriber in tuple(self._subscribers):
            subscriber(old, image)
        for waiting, is_wanted in tuple(self._waiting.items()):
            if not waiting.done() and is_wanted(image):
                waiting.set_result(None)

    async def wait_for(self, is_wanted: Callable[[ClusterImage], bool], timeout_s: float | None = None) -> bool:
        """Wait for an image of which this holds; False when none came in time."""
        if is_wanted(self._image):
            return True
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = is_wanted
        try:
            async with asyncio.timeout(timeout_s):
                await waiting
        except TimeoutError:
            return False
        finally:
            del self._waiting[waiting]
        return True

    async def wait_for_revision(self, revision: int, timeout_s: float | None = None) -> bool:
        """Wait until the image is at least this new; False when it is not in time."""
        return await self.wait_for(lambda image: image.revision >= revision, timeout_s)
