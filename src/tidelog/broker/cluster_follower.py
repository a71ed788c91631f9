"""How a broker that is not the controller keeps up with the cluster: it asks the controller for what has changed.

What always holds: what is published is the controller's image of one revision, never half of a change; a controller
that was deposed is not listened to once a newer one was heard of; when the controller moves, the broker follows it
there. It asks over a connection of its own, because each question waits at the controller until there is news.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final

from tidelog.client.address import Address
from tidelog.client.errors import ClientError
from tidelog.common.background import start_background, stop_background
from tidelog.common.steps import run_with_pauses, with_pauses
from tidelog.controller import layout
from tidelog.controller.image_builder import ImageBuilder
from tidelog.metadata.store import MetadataStoreError
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k10001_follow_cluster import (
    FOLLOW_CLUSTER,
    FollowClusterRequest,
    FollowClusterResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.peers import Peers
    from tidelog.client.network.connection import Connection
    from tidelog.controller import Controller
    from tidelog.controller.cluster_view import ClusterView
    from tidelog.controller.layout import ControllerLocation

logger = logging.getLogger(__name__)

MAX_WAIT_S: Final = 5.0
"""How long a question waits for news: an idle cluster asks every few seconds."""

_ANSWER_GRACE_S: Final = 10.0
"""How much longer than that an answer may take: a controller that elects thousands of leaders is busy."""

_MAX_BYTES: Final = 1 << 20
_PAUSE_S: Final = 0.1
"""Before the same controller is asked again after it could not answer."""


class ClusterFollower:
    """Publishes the controller's images in this broker's view, while another broker is the controller."""

    def __init__(
        self,
        node_id: int,
        controller: Controller,
        peers: Peers,
        cluster: ClusterView,
        *,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        """`controller` is this broker's own, which knows who is elected."""
        self._max_wait_s = min(MAX_WAIT_S, max_wait_s)
        # When it last heard of a controller, in the event loop's time.
        self._heard_s = -math.inf
        # It can't be reached, and that has been logged.
        self._is_out_of_touch = False
        self._node_id = node_id
        self._controller = controller
        self._peers = peers
        self._cluster = cluster
        # The controller epoch that the image was heard of in.
        self._epoch = -1
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = start_background(self._run(), "cluster follower")

    def is_in_touch(self, within_s: float) -> bool:
        """Whether this broker is the controller, or has heard of it within this time."""
        return self._controller.is_active or asyncio.get_running_loop().time() - self._heard_s <= within_s

    async def close(self) -> None:
        await stop_background(self._task)

    async def _run(self) -> None:
        while True:
            location = await self._controller.location.wait_for(
                lambda location: location is not None and location.node_id != self._node_id
            )
            assert location is not None  # that is what was waited for
            following = asyncio.ensure_future(self._follow(location))
            moved = asyncio.ensure_future(self._wait_until_moved(location))
            try:
                await asyncio.wait([following, moved], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (following, moved):
                    task.cancel()
                await asyncio.wait([following, moved])
            if not following.cancelled():
                following.result()

    async def _wait_until_moved(self, location: ControllerLocation) -> None:
        await self._controller.location.wait_for(lambda now: now != location)

    async def _follow(self, location: ControllerLocation) -> None:
        """Follow this controller until cancelled."""
        self._peers.learn(location.node_id, Address(location.host, location.port))
        while True:
            try:
                connection = await self._peers.open(location.node_id)
                try:
                    await self._listen(connection)
                finally:
                    connection.close()
            except ClientError as error:
                level = logging.DEBUG if self._is_out_of_touch else logging.INFO
                logger.log(level, "lost touch with the controller, broker %d: %s", location.node_id, error)
                self._is_out_of_touch = True
            except MetadataStoreError as error:
                # What was heard does not fit what is known: begin with a snapshot.
                logger.error("could not follow the controller, broker %d: %s", location.node_id, error)
                self._epoch = -1
            await asyncio.sleep(_PAUSE_S)

    async def _listen(self, connection: Connection) -> None:
        """Ask again and again, until the broker says that it is not the controller."""
        while True:
            response = await self._ask(connection, self._epoch, self._cluster.image.revision)
            if not self._is_from_controller(response):
                return
            builder = ImageBuilder(self._cluster.image, is_complete=response.is_snapshot)
            await _add(builder, response)
            epoch, revision, position = response.controller_epoch, response.revision, len(response.changes)
            while not response.is_complete:
                response = await self._ask(connection, epoch, revision, position)
                if not self._is_from_controller(response) or response.revision != revision:
                    return  # another controller, or the snapshot was restarted: start over as well
                await _add(builder, response)
                position += len(response.changes)
            if position:
                built = await run_with_pauses(builder.build(revision, response.controller_id))
                self._epoch = epoch
                self._peers.follow(built.image)
                self._cluster.publish(built.image, built.deleted_topics)

    def _is_from_controller(self, response: FollowClusterResponse) -> bool:
        return response.error_code == ErrorCode.NONE and response.controller_epoch >= self._epoch

    async def _ask(self, connection: Connection, epoch: int, revision: int, position: int = 0) -> FollowClusterResponse:
        request = FollowClusterRequest(
            node_id=self._node_id,
            controller_epoch=epoch,
            revision=revision,
            snapshot_position=position,
            max_wait_ms=int(self._max_wait_s * 1000),
            max_bytes=_MAX_BYTES,
        )
        response = await connection.request(
            FOLLOW_CLUSTER, request, FollowClusterResponse, timeout_s=self._max_wait_s + _ANSWER_GRACE_S
        )
        if response.error_code == ErrorCode.NONE:
            self._heard_s = asyncio.get_running_loop().time()
            if self._is_out_of_touch:
                self._is_out_of_touch = False
                logger.info("in touch with the controller again, revision %d", response.revision)
        return response


async def _add(builder: ImageBuilder, response: FollowClusterResponse) -> None:
    async for change in with_pauses(response.changes):
        builder.add(change.key, None if change.value is None else layout.decode(change.value))
