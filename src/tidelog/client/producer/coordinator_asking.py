"""Retries a question about transactions to a coordinator until it answers or the time is up.

What always holds: only temporary errors are retried, and each is passed to the coordinator lookup, which finds out when
the coordinator has moved. The questions are in `transaction_requests`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog.client.errors import BrokerError, ClientError, RequestTimeoutError
from tidelog.client.network.backoff import Backoff
from tidelog.client.network.connection import Connection
from tidelog.client.network.routing import Coordinator
from tidelog.client.producer.transaction_requests import may_pass
from tidelog.protocol import ErrorCode

# The previous transaction is still being completed, which takes moments: a shorter pause than for real failures.
_CONCURRENT_BACKOFF = Backoff(0.01, 0.1)

T = TypeVar("T")


async def ask_coordinator(
    coordinator: Coordinator, retry: Backoff, ask: Callable[[Connection], Awaitable[T]], *, timeout_s: float | None
) -> T:
    """Ask until the answer is final or the time is up (None: never); then the last error is raised."""
    loop = asyncio.get_running_loop()
    deadline_s = None if timeout_s is None else loop.time() + timeout_s
    failures = 0
    last_error: ClientError | None = None
    while True:
        try:
            # A single attempt can outlast the whole deadline: a broker that hangs is given up on only after a while.
            async with asyncio.timeout_at(deadline_s):
                return await ask(await coordinator.connection())
        except TimeoutError:
            coordinator.forget()
            raise last_error or RequestTimeoutError(f"no coordinator answered within {timeout_s:g} s") from None
        except ClientError as error:
            coordinator.note_error(error)
            if not may_pass(error):
                raise
            failures += 1
            is_busy = isinstance(error, BrokerError) and error.code is ErrorCode.CONCURRENT_TRANSACTIONS
            pause_s = (_CONCURRENT_BACKOFF if is_busy else retry).pause_s(failures)
            if deadline_s is not None and loop.time() + pause_s >= deadline_s:
                raise
            last_error = error
        await asyncio.sleep(pause_s)
