"""Producer ids out of the controller's blocks."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.handlers.k22_init_producer_id import handle_init_producer_id
from tidelog.broker.producer_ids import REFILL_BELOW, ProducerIdAllocator
from tidelog.metadata import MetadataStoreError
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k22_init_producer_id import InitProducerIdRequest


class Blocks:
    """A controller that hands out blocks of a thousand when it is let."""

    def __init__(self) -> None:
        self.given = 0
        self.failures = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def allocate(self) -> range:
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        self.given += 1
        return range((self.given - 1) * 1000, self.given * 1000)


def test_ids_are_unique_across_blocks_and_waiters() -> None:
    async def main() -> None:
        blocks = Blocks()
        allocator = ProducerIdAllocator(blocks.allocate)
        ids = await asyncio.gather(*(allocator.allocate() for _ in range(2500)))
        assert sorted(ids) == list(range(2500))
        await allocator.close()

    asyncio.run(main())


def test_the_next_block_is_fetched_before_this_one_ends() -> None:
    async def main() -> None:
        blocks = Blocks()
        allocator = ProducerIdAllocator(blocks.allocate)
        for _ in range(1000 - REFILL_BELOW):
            await allocator.allocate()
        assert blocks.given == 1
        await allocator.allocate()
        await asyncio.sleep(0)
        assert blocks.given == 2
        # Nobody waits for the controller while the block lasts.
        blocks.gate.clear()
        for _ in range(1000):
            await allocator.allocate()
        await allocator.close()

    asyncio.run(main())


def test_one_request_serves_all_who_wait_and_outlives_who_goes() -> None:
    async def main() -> None:
        blocks = Blocks()
        blocks.gate.clear()
        allocator = ProducerIdAllocator(blocks.allocate)
        first, second = (asyncio.ensure_future(allocator.allocate()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        blocks.gate.set()
        assert await second == 0
        assert blocks.given == 1
        await allocator.close()

    asyncio.run(main())


def test_a_controller_that_fails_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        blocks = Blocks()
        blocks.failures = 1
        allocator = ProducerIdAllocator(blocks.allocate)
        with pytest.raises(KafkaError):
            await allocator.allocate()
        assert await allocator.allocate() == 0
        await allocator.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "could not get producer ids" in caplog.text


@pytest.mark.parametrize(
    "error",
    [KafkaError(ErrorCode.STALE_BROKER_EPOCH), KafkaError(ErrorCode.NOT_CONTROLLER), MetadataStoreError("away")],
)
def test_a_producer_retries_while_the_controller_gives_no_ids(error: Exception) -> None:
    async def refuse() -> range:
        raise error

    async def main() -> int:
        allocator = ProducerIdAllocator(refuse)
        context = SimpleNamespace(services=SimpleNamespace(producer_ids=allocator), version=5)
        answer = await handle_init_producer_id(InitProducerIdRequest(transactional_id=None), cast(Any, context))
        await allocator.close()
        return answer.error_code

    assert asyncio.run(main()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
