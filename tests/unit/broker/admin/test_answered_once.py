"""A forwarded request that comes again is carried out once."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tidelog.broker.answered_once import AnsweredOnce
from tidelog.common.ids import ZERO_UUID

ID, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


class Work:
    """Answers with its size and how often it was carried out."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.times = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def carry_out(self) -> bytes:
        self.times += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return bytes([self.times]) * self.size


def test_it_goes_on_without_who_asked_first_and_answers_who_asks_again() -> None:
    async def scenario() -> None:
        answered, work = AnsweredOnce(), Work()
        first = asyncio.create_task(answered.answer(ID, work.carry_out))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        again = asyncio.create_task(answered.answer(ID, work.carry_out))
        await asyncio.sleep(0)
        work.may_end.set()
        assert await again == b"\x01"
        assert await answered.answer(ID, work.carry_out) == b"\x01"
        assert await answered.answer(OTHER, work.carry_out) == b"\x02"
        assert [await answered.answer(ZERO_UUID, work.carry_out) for _ in range(2)] == [b"\x03", b"\x04"]

    asyncio.run(scenario())


def test_a_failure_is_not_remembered() -> None:
    async def scenario() -> None:
        answered, work = AnsweredOnce(), Work()
        work.may_end.set()
        work.error = ValueError()
        with pytest.raises(ValueError):
            await answered.answer(ID, work.carry_out)
        work.error = None
        assert await answered.answer(ID, work.carry_out) == b"\x02"

    asyncio.run(scenario())


def test_answers_are_bounded_in_number_and_in_bytes() -> None:
    async def scenario() -> None:
        for answered, size in ((AnsweredOnce(answers_max=3), 1), (AnsweredOnce(bytes_max=30), 10)):
            work = Work(size)
            work.may_end.set()
            for number in range(1, 6):
                await answered.answer(uuid.UUID(int=number), work.carry_out)
                assert len(answered) <= 3
            assert (await answered.answer(uuid.UUID(int=3), work.carry_out))[:1] == b"\x03"
            assert (await answered.answer(uuid.UUID(int=2), work.carry_out))[:1] == b"\x06"
        # What is under way counts, too: beyond the bound nothing is remembered.
        answered, work = AnsweredOnce(answers_max=2), Work()
        waiting = [asyncio.create_task(answered.answer(uuid.UUID(int=n), work.carry_out)) for n in range(1, 5)]
        await asyncio.sleep(0)
        assert len(answered) == 2
        work.may_end.set()
        await asyncio.gather(*waiting)

    asyncio.run(scenario())
