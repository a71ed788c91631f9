"""Requests that not every broker can answer: to the leaders of partitions, to the coordinators of groups and ids.

What always holds: leader and coordinator are looked up anew when they have moved; partitions that were answered are not
asked for again because others failed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from tidelog.client.cluster import Cluster, TopicPartition
from tidelog.client.connection import Connection
from tidelog.client.errors import BrokerError, error_code, raise_for
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
    """What a coordinator is asked for by."""

    GROUP = 0
    TRANSACTIONAL_ID = 1

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


def at_leaders(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, ValueT],
    ask: Callable[[Connection, Mapping[TopicPartition, ValueT]], Iterable[tuple[TopicPartition, int, ResultT]]],
    *,
    repeatable: bool = True,
) -> dict[TopicPartition, ResultT]:
    """Ask every partition's leader; partitions whose leader moved are asked again, the others are not."""
    results: dict[TopicPartition, ResultT] = {}

    def attempt() -> None:
        missing = [topic_partition for topic_partition in wanted if topic_partition not in results]
        for leader_id, led in cluster.by_leader(missing).items():
            connection = cluster.connection_to(leader_id)
            answers = list(ask(connection, {topic_partition: wanted[topic_partition] for topic_partition in led}))
            failures = []
            for topic_partition, code, result in answers:
                if code == ErrorCode.NONE:
                    results[topic_partition] = result
                else:
                    cluster.forget(topic_partition.topic)
                    failures.append(BrokerError(error_code(code), subject=f"partition {topic_partition}"))
            if failures:
                raise next((error for error in failures if not error.retriable), failures[0])

    cluster.retry(attempt, repeatable=repeatable)
    return {topic_partition: results[topic_partition] for topic_partition in wanted if topic_partition in results}


def at_coordinator(cluster: Cluster, key_type: KeyType, key: str, ask: Callable[[Connection, int], ResultT]) -> ResultT:
    """Ask the broker that coordinates the group or transactional id; `ask` gets its connection and its node id."""

    def attempt() -> ResultT:
        node_id = _find_coordinator(cluster, key_type, key)
        return ask(cluster.connection_to(node_id), node_id)

    return cluster.retry(attempt)


def _find_coordinator(cluster: Cluster, key_type: KeyType, key: str) -> int:
    connection = cluster.any_connection()
    version = connection.version_for(FIND_COORDINATOR)
    subject = f"{key_type} {key}"
    if version >= _SEVERAL_COORDINATORS_FROM:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        response = connection.request(FIND_COORDINATOR, request, FindCoordinatorResponse, version=version)
        for row in response.coordinators:
            raise_for(row.error_code, row.error_message, subject=subject)
            return row.node_id
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, subject=subject)
    request = FindCoordinatorRequest(key=key)
    if version >= _KEY_TYPES_FROM:
        request.key_type = key_type
    response = connection.request(FIND_COORDINATOR, request, FindCoordinatorResponse, version=version)
    raise_for(response.error_code, response.error_message, subject=subject)
    return response.node_id
