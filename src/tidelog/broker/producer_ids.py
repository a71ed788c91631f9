"""Producer ids for idempotent producers, out of blocks that the controller hands to this broker.

What always holds: no id is given twice in a cluster, however often brokers restart (the rest of a block is lost then);
at most one request for a block is in flight, and it starts before the block in hand is used up, so that a producer
seldom waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k67_allocate_producer_ids import (
    ALLOCATE_PRODUCER_IDS,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.controller_channel import ControllerChannel

logger = logging.getLogger(__name__)

_ALLOCATION_TIMEOUT_S: Final = 10.0

REFILL_BELOW = 100
"""A tenth of a block: at thousands of new producers a second the next block is here before this one ends."""


class ProducerIdAllocator:
    """Gives out producer ids one by one."""

    def __init__(self, allocate_block: Callable[[], Awaitable[range]]) -> None:
        self._allocate_block = allocate_block
        self._ids = range(0)
        self._next_ids = range(0)
        self._refill: asyncio.Task[None] | None = None

    async def allocate(self) -> int:
        """A producer id that nobody else has or had; raises whatever the controller raised, when there is none left."""
        while not self._ids:
            if self._next_ids:
                self._ids, self._next_ids = self._next_ids, range(0)
            else:
                # Shielded: the block belongs to all who wait, and one of them may go away.
                await asyncio.shield(self._start_refill())
        producer_id = self._ids[0]
        self._ids = self._ids[1:]
        if len(self._ids) < REFILL_BELOW and not self._next_ids:
            self._start_refill()
        return producer_id

    async def close(self) -> None:
        if self._refill is not None:
            self._refill.cancel()
            await asyncio.wait([self._refill])

    def _start_refill(self) -> asyncio.Task[None]:
        if self._refill is None or self._refill.done():
            self._refill = asyncio.get_running_loop().create_task(self._fetch_block(), name="producer id block")
            self._refill.add_done_callback(_log_failure)
        return self._refill

    async def _fetch_block(self) -> None:
        self._next_ids = await self._allocate_block()


async def allocate_block(channel: ControllerChannel, node_id: int, broker_epoch: int) -> range:
    """A block of ids from the controller; raises KafkaError."""
    request = AllocateProducerIdsRequest(broker_id=node_id, broker_epoch=broker_epoch)
    response = await channel.call(
        ALLOCATE_PRODUCER_IDS, request, AllocateProducerIdsResponse, timeout_s=_ALLOCATION_TIMEOUT_S
    )
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code))
    return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)


def _log_failure(refill: asyncio.Task[None]) -> None:
    error = None if refill.cancelled() else refill.exception()
    if error is not None:
        logger.warning("could not get producer ids from the controller; trying again for the next producer: %s", error)
