"""The cluster as one broker knows it: the newest image it has, and who is told of the next one.

What always holds: images only get newer; subscribers see every image in order, on the event loop, before anyone who
waits for it goes on. On the controller's own broker the controller publishes here what it has committed; on the others
it is what they have heard of it, so it may lag behind.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import TypeAlias

from tidelog.common.observable import Observable
from tidelog.controller.image import EMPTY_IMAGE, ClusterImage

logger = logging.getLogger(__name__)

Subscriber: TypeAlias = Callable[[ClusterImage, ClusterImage], None]


class ClusterView:
    """The image that the parts of a broker work with."""

    def __init__(self, image: ClusterImage = EMPTY_IMAGE) -> None:
        self._image = Observable(image)
        self._subscribers: list[Subscriber] = []
        # Topics that are known to have been deleted: a broker may have files of them since before its start.
        self.deleted_topic_ids: set[uuid.UUID] = set()

    @property
    def image(self) -> ClusterImage:
        return self._image.value

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call with the image before and after every change; returns the function that ends it."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def publish(self, image: ClusterImage, deleted_topic_ids: Iterable[uuid.UUID] = ()) -> None:
        """Make an image known; one that is older than the known one is passed over."""
        self.deleted_topic_ids.update(deleted_topic_ids)
        old = self.image
        if image.revision < old.revision:
            logger.info("passed over revision %d of the metadata; %d is known", image.revision, old.revision)
            return
        # Those who wait for it run after this turn of the loop, so after the subscribers.
        self._image.set(image)
        for subscriber in tuple(self._subscribers):
            subscriber(old, image)

    async def wait_for(self, is_wanted: Callable[[ClusterImage], bool], timeout_s: float | None = None) -> bool:
        """Wait for an image for which this holds; False if none came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._image.wait_for(is_wanted)
        except TimeoutError:
            return False
        return True

    async def wait_for_revision(self, revision: int, timeout_s: float | None = None) -> bool:
        """Wait until the image is at least this new; False when it is not in time."""
        return await self.wait_for(lambda image: image.revision >= revision, timeout_s)
