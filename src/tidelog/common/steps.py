"""Long work that can stop anywhere in between: a generator that yields after each small piece of it.

The caller decides when to continue, so that work of seconds never holds up an event loop for more than a few
milliseconds. A step yields how many bytes of output it added, which is 0 where it only prepared some; the generator's
return value is the result. What one step does must take well under a millisecond.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Iterable
from typing import TypeAlias, TypeVar

T = TypeVar("T")

_PAUSE_AFTER_S = 0.002

Steps: TypeAlias = Generator[int, None, T]


def run_through(steps: Steps[T]) -> T:
    """Do all steps without a pause and give their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def run_with_pauses(steps: Steps[T]) -> T:
    """Do all steps and give their result; others have a turn every few milliseconds."""
    import asyncio  # as in `with_pauses`

    resumed_s = time.perf_counter()
    try:
        while True:
            next(steps)
            if time.perf_counter() - resumed_s > _PAUSE_AFTER_S:
                await asyncio.sleep(0)
                resumed_s = time.perf_counter()
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


async def with_pauses(items: Iterable[T]) -> AsyncIterator[T]:
    """The same items, for a coroutine that does some work for each: others have a turn every few milliseconds."""
    import asyncio  # importing a client only encodes messages, and should not pay for it

    resumed_s = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - resumed_s > _PAUSE_AFTER_S:
            await asyncio.sleep(0)
            resumed_s = time.perf_counter()
