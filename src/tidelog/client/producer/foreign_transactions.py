"""Ends transactions that other producers began and handed over, by their ids.

What always holds: a request whose response was lost is repeated, and carried out once. Requesting the same end twice
gives the same answer. If the transaction has already ended the other way, for example by its timeout, the result is
`Outcome.LOST` and nothing is raised. Requests run concurrently, in bounded number.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from tidelog.client.errors import BrokerError
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.routing import Coordinator, KeyType
from tidelog.client.producer.coordinator_asking import ask_coordinator
from tidelog.client.producer.handover import HandedOver
from tidelog.client.producer.transaction_requests import (
    Asker,
    InitAsk,
    end_transaction,
    init_producer_id,
)
from tidelog.protocol import ErrorCode

_AT_ONCE = 64  # so that one client does not fill a coordinator's queue
_IMPLICIT_FEATURE = ("transaction.version", 2)

# Coordinator errors that mean that the transaction has already ended, and not in the requested way.
_ENDED_OTHERWISE = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)

T = TypeVar("T")


class Outcome(enum.Enum):
    """The outcome of a transaction that should be ended."""

    ENDED = "ended as asked, now or before"
    LOST = "ended the other way before"


def adds_partitions_itself(connection: Connection) -> bool:
    """Whether brokers add partitions to transactions themselves and bump epochs at their end (KIP-890)."""
    name, level = _IMPLICIT_FEATURE
    return connection.features.get(name, 0) >= level


async def end_transactions(
    cluster: Cluster, transactions: Iterable[HandedOver], *, committed: bool, timeout_s: float
) -> dict[HandedOver, Outcome]:
    """Commit or abort them all; raises errors that concern none of them alone, such as an unreachable cluster."""
    outcomes: dict[HandedOver, Outcome] = {}
    turns = asyncio.Semaphore(_AT_ONCE)

    async def end(transaction: HandedOver) -> None:
        async def ask(connection: Connection) -> None:
            adds_itself = adds_partitions_itself(connection)
            await end_transaction(connection, asker, committed=committed, adds_itself=adds_itself)

        asker = Asker(transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
        coordinator = Coordinator(cluster, KeyType.TRANSACTIONAL_ID, transaction.transactional_id)
        coordinator.node_id = transaction.coordinator_id  # if it has moved since, its answer says so
        async with turns:
            try:
                await ask_coordinator(coordinator, cluster.settings.retry, ask, timeout_s=timeout_s)
            except BrokerError as error:
                if error.code not in _ENDED_OTHERWISE:
                    raise
                outcomes[transaction] = Outcome.LOST
            else:
                outcomes[transaction] = Outcome.ENDED

    await gather_all(end(transaction) for transaction in dict.fromkeys(transactions))
    return outcomes


async def fence(
    cluster: Cluster, transactional_id: str, *, transaction_timeout_ms: int, timeout_s: float
) -> tuple[int, int]:
    """Start over under this id: fence earlier producers and abort their open transaction; returns id and epoch."""
    nobody = Asker(transactional_id, -1, -1)
    coordinator = Coordinator(cluster, KeyType.TRANSACTIONAL_ID, transactional_id)
    response = await ask_coordinator(
        coordinator,
        cluster.settings.retry,
        lambda connection: init_producer_id(connection, nobody, InitAsk(transaction_timeout_ms)),
        timeout_s=timeout_s,
    )
    return response.producer_id, response.producer_epoch


async def fence_all(
    cluster: Cluster, transactional_ids: Iterable[str], *, transaction_timeout_ms: int, timeout_s: float
) -> None:
    """`fence` for many ids."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(transactional_id: str) -> None:
        async with turns:
            await fence(cluster, transactional_id, transaction_timeout_ms=transaction_timeout_ms, timeout_s=timeout_s)

    await gather_all(one(transactional_id) for transactional_id in dict.fromkeys(transactional_ids))


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all, even if one fails, and then raise the first error."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
