"""Requests that only some brokers can answer: partition leaders, and the coordinators of groups and transactional ids.

What always holds: leaders and coordinators are looked up again after they move. Partitions that were answered are not
requested again because others failed. A known coordinator is remembered until it refuses or can't be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from tidelog.client.errors import BrokerError, ClientError, RetriableError, error_code, raise_for
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_SEVERAL_COORDINATORS_FROM = 4
_KEY_TYPES_FROM = 1

ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")


class KeyType(enum.IntEnum):
    """The keys by which a coordinator is looked up."""

    GROUP = 0
    TRANSACTIONAL_ID = 1

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


async def at_leaders(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, ValueT],
    ask: Callable[
        [Connection, Mapping[TopicPartition, ValueT]], Awaitable[Iterable[tuple[TopicPartition, int, ResultT]]]
    ],
    *,
    is_partial: bool = False,
    timeout_s: float | None = None,
) -> dict[TopicPartition, ResultT]:
    """Ask all the partitions' leaders concurrently; only partitions whose leader moved are asked again.

    `is_partial`: ask once, and return what was answered; raise only if that is nothing.
    """
    results: dict[TopicPartition, ResultT] = {}

    async def ask_leader(leader_id: int, led: list[TopicPartition]) -> None:
        connection = await cluster.connection_to(leader_id)
        answers = await ask(connection, {topic_partition: wanted[topic_partition] for topic_partition in led})
        failures = []
        for topic_partition, code, result in answers:
            if code == ErrorCode.NONE:
                results[topic_partition] = result
            else:
                cluster.forget(topic_partition.topic)
                failures.append(BrokerError(error_code(code), subject=f"partition {topic_partition}"))
        if failures:
            raise next((error for error in failures if not error.retriable), failures[0])

    async def attempt() -> None:
        missing = [topic_partition for topic_partition in wanted if topic_partition not in results]
        leaders, errors = await cluster.by_leader(missing)
        outcomes = await asyncio.gather(
            *(ask_leader(leader_id, led) for leader_id, led in leaders.items()), return_exceptions=True
        )
        for led, outcome in zip(leaders.values(), outcomes, strict=True):
            if outcome is not None:
                errors.append(outcome)
                for topic_partition in led:
                    cluster.forget(topic_partition.topic)
        if errors:
            raise next((error for error in errors if not isinstance(error, RetriableError)), errors[0])

    if is_partial:
        try:
            await attempt()
        except ClientError:
            if not results:
                raise
    else:
        await cluster.retry(attempt, timeout_s=timeout_s)
    return {topic_partition: results[topic_partition] for topic_partition in wanted if topic_partition in results}


class Coordinator:
    """The coordinator of one group or transactional id: found, remembered, and found again."""

    def __init__(self, cluster: Cluster, key_type: KeyType, key: str) -> None:
        self.cluster = cluster
        self.key = key
        self._key_type = key_type
        self.node_id: int | None = None

    async def find(self) -> int:
        """Its node id; looked up once if unknown, so retrying after errors is up to the caller."""
        if self.node_id is None:
            self.node_id = await find_coordinator(self.cluster, self._key_type, self.key)
        return self.node_id

    async def connection(self) -> Connection:
        """The shared connection to it; one attempt, so retrying after errors is up to the caller."""
        node_id = await self.find()
        try:
            return await self.cluster.connection_to(node_id)
        except ClientError:
            self.forget()
            raise

    def forget(self) -> None:
        """Look it up again before the next request."""
        self.node_id = None

    def note_error(self, error: BaseException) -> None:
        """Forget it if the error may mean that the coordinator has moved."""
        if isinstance(error, BrokerError):
            if error.code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                self.forget()
        elif isinstance(error, RetriableError):
            self.forget()


async def at_coordinator(
    cluster: Cluster,
    key_type: KeyType,
    key: str,
    ask: Callable[[Connection, int], Awaitable[ResultT]],
    *,
    timeout_s: float | None = None,
    repeatable: bool = True,
) -> ResultT:
    """Ask the broker that coordinates the group or transactional id; `ask` gets its connection and its node id."""

    async def attempt() -> ResultT:
        node_id = await find_coordinator(cluster, key_type, key)
        return await ask(await cluster.connection_to(node_id), node_id)

    return await cluster.retry(attempt, timeout_s=timeout_s, repeatable=repeatable)


async def find_coordinator(cluster: Cluster, key_type: KeyType, key: str) -> int:
    """The node id of the coordinator; one attempt."""
    try:
        return await _find_coordinator(await cluster.any_connection(), key_type, key)
    except BrokerError as error:
        if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            # The broker that was asked may be cut off from its cluster; try the others next.
            with contextlib.suppress(ClientError):
                await cluster.refresh([])
        raise


async def _find_coordinator(connection: Connection, key_type: KeyType, key: str) -> int:
    version = connection.version_for(FIND_COORDINATOR)
    subject = f"{key_type} {key}"
    if version >= _SEVERAL_COORDINATORS_FROM:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        response = await connection.request(FIND_COORDINATOR, request, FindCoordinatorResponse, version=version)
        for row in response.coordinators:
            raise_for(row.error_code, row.error_message, subject=subject)
            return row.node_id
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, subject=subject)
    request = FindCoordinatorRequest(key=key)
    if version >= _KEY_TYPES_FROM:
        request.key_type = key_type
    response = await connection.request(FIND_COORDINATOR, request, FindCoordinatorResponse, version=version)
    raise_for(response.error_code, response.error_message, subject=subject)
    return response.node_id
