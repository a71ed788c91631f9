"""Commits and aborts whose callers run out of time: the outcome is told to whoever asks again, and to no other end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from tidelog.client.address import Address
from tidelog.client.errors import ClientError, DeliveryTimeoutError
from tidelog.client.network.cluster import Cluster, ClusterSettings
from tidelog.client.producer.transaction_state import TransactionAbortedError
from tidelog.client.producer.transactions import Transactions, TransactionTimeoutError


class Host:
    """A producer that has nothing under way."""

    producer_id = 1
    producer_epoch = 0
    needs_epoch_bump = False

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        raise AssertionError("nobody gives ids here")

    def set_open(self, is_open: bool) -> None:
        self.is_open = is_open

    def wake(self) -> None:
        return None

    async def flush(self) -> None:
        return None

    def fail_undrained(self, error: ClientError) -> None:
        return None


class SlowEnds(Transactions):
    """Ends take until the test lets them go on; what was carried out is noted."""

    def __init__(self) -> None:
        cluster = Cluster(ClusterSettings(bootstrap=(Address("127.0.0.1", 1),)))
        super().__init__(cluster, Host(), "billing", timeout_ms=1000)
        self.state.initialized()
        self.may_end = asyncio.Event()
        self.ends: list[bool] = []

    async def _carry_out_end(self, committed: bool) -> None:
        await self.may_end.wait()
        if committed:
            self.state.raise_error()
        self.ends.append(committed)
        self.state.ended()


def run(test: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test

    asyncio.run(bounded())


async def settle(transactions: SlowEnds) -> None:
    """Let the end go on and wait until it is done."""
    transactions.may_end.set()
    assert transactions._ending is not None
    await asyncio.wait([transactions._ending.task])


def test_a_commit_that_was_late_is_told_to_who_asks_again() -> None:
    async def test() -> None:
        transactions = SlowEnds()
        transactions.begin()
        with pytest.raises(TransactionTimeoutError, match="commit_transaction again"):
            await transactions.commit(timeout_s=0)
        await settle(transactions)
        await transactions.commit()
        assert transactions.ends == [True]

    run(test())


def test_a_late_commit_is_not_taken_for_the_next_one() -> None:
    async def test() -> None:
        transactions = SlowEnds()
        transactions.begin()
        with pytest.raises(TransactionTimeoutError):
            await transactions.commit(timeout_s=0)
        await settle(transactions)
        transactions.begin()
        await transactions.commit()
        assert transactions.ends == [True, True]

    run(test())


def test_an_abort_follows_a_late_commit_that_failed() -> None:
    async def test() -> None:
        transactions = SlowEnds()
        transactions.begin()
        with pytest.raises(TransactionTimeoutError):
            await transactions.commit(timeout_s=0)
        transactions.state.failed(DeliveryTimeoutError("not delivered in time"))
        await settle(transactions)
        await transactions.abort()
        assert transactions.ends == [False]

    run(test())


def test_a_late_commit_that_failed_says_so_to_who_asks_again() -> None:
    async def test() -> None:
        transactions = SlowEnds()
        transactions.begin()
        with pytest.raises(TransactionTimeoutError):
            await transactions.commit(timeout_s=0)
        transactions.state.failed(DeliveryTimeoutError("not delivered in time"))
        await settle(transactions)
        with pytest.raises(TransactionAbortedError):
            await transactions.commit()

    run(test())
