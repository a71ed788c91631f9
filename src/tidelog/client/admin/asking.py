"""How admin calls reach the brokers that can answer them: leaders, coordinators, the controller, or all of them.

What always holds: each item ends with its value or its error, even when others fail, and items already answered are not
asked again because of the rest. If no broker at all can be reached, the call raises, because then there are no results
to report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from tidelog.client.admin.results import Results
from tidelog.client.errors import BrokerError, ClientError, ConnectError, NoSuchPartitionError, error_code, is_retriable
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.routing import KeyType, at_coordinator
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode

# Several thousand groups are asked about in batches, so that one client does not fill a broker's queue.
_AT_ONCE = 64

GroupT = TypeVar("GroupT")
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")

PartitionAnswer = tuple[TopicPartition, int, str | None, ResultT]
"""What a leader said of a partition: code, message, and the value that counts when the code says that all went well."""

Answer = tuple[KeyT, BrokerError | None, ResultT]
"""What a broker said of one thing; the value counts when there is no error."""


def refusal(code: int, message: str | None, subject: str) -> BrokerError | None:
    """The error for a code; None for success."""
    if code == ErrorCode.NONE:
        return None
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and subject.startswith("topic "):
        # A broker reports partitions that it does not host; here the cluster as a whole was asked.
        return NoSuchPartitionError(f"{subject}: there is no such topic")
    return BrokerError(error_code(code), message, subject=subject)


def by_topic(wanted: Mapping[TopicPartition, ValueT]) -> list[tuple[str, list[tuple[int, ValueT]]]]:
    """Partitions and their values, grouped by topic."""
    topics: dict[str, list[tuple[int, ValueT]]] = {}
    for (topic, partition), value in wanted.items():
        topics.setdefault(topic, []).append((partition, value))
    return list(topics.items())


def request_timeout_ms(cluster: Cluster) -> int:
    """How long a broker may take over a change: the client would not wait for the answer any longer than this."""
    return int(cluster.settings.request_timeout_s * 1000)


# The leaders of partitions


async def at_leaders(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, ValueT],
    ask: Callable[[Connection, Mapping[TopicPartition, ValueT]], Awaitable[Iterable[PartitionAnswer[ResultT]]]],
    *,
    repeatable: bool = True,
) -> Results[TopicPartition, ResultT]:
    """Ask every partition's leader; only partitions whose leader moved are asked again."""
    collected = _Collected[ValueT, ResultT](cluster, {TopicPartition(*key): value for key, value in wanted.items()})
    try:
        await cluster.retry(lambda: collected.ask_missing(ask), repeatable=repeatable)
    except ClientError as error:
        if not collected.is_anything_known:
            raise
        collected.give_up(error)
    return Results(collected.wanted, collected.values, collected.errors)


class _Collected(Generic[ValueT, ResultT]):
    """The leaders' answers so far."""

    def __init__(self, cluster: Cluster, wanted: Mapping[TopicPartition, ValueT]) -> None:
        self._cluster = cluster
        self.wanted = wanted
        self.values: dict[TopicPartition, ResultT] = {}
        self.errors: dict[TopicPartition, ClientError] = {}
        # Temporary errors of the latest attempt.
        self._passing: dict[TopicPartition, ClientError] = {}

    @property
    def is_anything_known(self) -> bool:
        return bool(self.values or self.errors) or any(isinstance(e, BrokerError) for e in self._passing.values())

    def give_up(self, error: ClientError) -> None:
        """Partitions still unanswered get the error they met, or this one if the last attempt was cut short."""
        for key in self.wanted:
            if key not in self.values:
                self.errors.setdefault(key, self._passing.get(key, error))

    async def ask_missing(
        self,
        ask: Callable[[Connection, Mapping[TopicPartition, ValueT]], Awaitable[Iterable[PartitionAnswer[ResultT]]]],
    ) -> None:
        """One attempt for everything still unanswered; raises a temporary error if there is one."""
        self._passing.clear()
        led: dict[int, list[TopicPartition]] = {}
        missing = [key for key in self.wanted if key not in self.values and key not in self.errors]
        unknown = {topic for topic, _ in missing if self._cluster.known_topic(topic) is None}
        if unknown:
            await self._cluster.refresh(unknown)
        for key in missing:
            try:
                led.setdefault(await self._cluster.leader(*key), []).append(key)
            except ClientError as error:
                self._note_error(key, error)
        await asyncio.gather(*(self._ask_leader(leader_id, keys, ask) for leader_id, keys in led.items()))
        for passing in self._passing.values():
            raise passing

    async def _ask_leader(
        self,
        leader_id: int,
        keys: Sequence[TopicPartition],
        ask: Callable[[Connection, Mapping[TopicPartition, ValueT]], Awaitable[Iterable[PartitionAnswer[ResultT]]]],
    ) -> None:
        try:
            connection = await self._cluster.connection_to(leader_id)
            answers = await ask(connection, {key: self.wanted[key] for key in keys})
        except ClientError as error:
            for key in keys:
                self._note_error(key, error)
            return
        for key, code, message, value in answers:
            refused = refusal(code, message, f"partition {key}")
            if refused is None:
                self.values[key] = value
            else:
                self._note_error(key, refused)

    def _note_error(self, key: TopicPartition, error: ClientError) -> None:
        if is_retriable(error):
            self._cluster.forget(key.topic)
            self._passing[key] = error
        else:
            self.errors[key] = error


# Coordinators


async def at_coordinators(
    cluster: Cluster,
    key_type: KeyType,
    keys: Iterable[str],
    ask: Callable[[Connection, int, str], Awaitable[ResultT]],
) -> Results[str, ResultT]:
    """Ask the coordinator of each group or transactional id; `ask` gets its connection, its node id and the key."""
    wanted = list(dict.fromkeys(keys))
    return await _for_each(
        wanted,
        lambda key: at_coordinator(cluster, key_type, key, lambda connection, node_id: ask(connection, node_id, key)),
    )


# All brokers


async def at_brokers(
    cluster: Cluster,
    ask: Callable[[Connection, int], Awaitable[ResultT]],
    *,
    node_ids: Iterable[int] | None = None,
) -> Results[int, ResultT]:
    """Ask these brokers, or all of them, sorted by id; when asking all, brokers that leave meanwhile are skipped."""
    known = (await cluster.retry(lambda: cluster.refresh([]))).nodes
    gone: set[int] = set()

    async def ask_one(node_id: int) -> ResultT:
        async def attempt() -> ResultT:
            try:
                connection = await cluster.connection_to(node_id)
            except ConnectError:
                if node_id not in (await cluster.refresh([])).nodes:
                    raise _GoneError from None
                raise
            return await ask(connection, node_id)

        if node_id not in known:
            raise no_such_broker(node_id, known)
        try:
            return await cluster.retry(attempt)
        except _GoneError:
            gone.add(node_id)
            raise no_such_broker(node_id, cluster.nodes) from None

    asked = list(dict.fromkeys(sorted(known) if node_ids is None else node_ids))
    values, errors = await _ask_each(asked, ask_one)
    if node_ids is None:
        asked = [node_id for node_id in asked if node_id not in gone]
    return Results(asked, values, errors)


class _GoneError(Exception):
    """The cluster no longer knows the broker."""


def no_such_broker(node_id: int, known: Iterable[int]) -> BrokerError:
    listed = ", ".join(str(known_id) for known_id in sorted(known)) or "none"
    return BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id} is not in the cluster (brokers: {listed})")


async def _for_each(keys: Sequence[KeyT], ask: Callable[[KeyT], Awaitable[ResultT]]) -> Results[KeyT, ResultT]:
    return Results(keys, *await _ask_each(keys, ask))


async def _ask_each(
    keys: Sequence[KeyT], ask: Callable[[KeyT], Awaitable[ResultT]]
) -> tuple[dict[KeyT, ResultT], dict[KeyT, ClientError]]:
    values: dict[KeyT, ResultT] = {}
    errors: dict[KeyT, ClientError] = {}
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(key: KeyT) -> None:
        async with turns:
            try:
                values[key] = await ask(key)
            except ClientError as error:
                errors[key] = error

    await asyncio.gather(*(one(key) for key in keys))
    if not values:
        _raise_unless_refused(errors.values())
    return values, errors


async def at_groups(
    groups: Mapping[GroupT, Sequence[KeyT]],
    ask: Callable[[GroupT, Sequence[KeyT]], Awaitable[Iterable[Answer[KeyT, ResultT]]]],
) -> Results[KeyT, ResultT]:
    """Ask about several groups of items concurrently; an error of a group applies to each of its items."""
    answers: list[Answer[KeyT, ResultT]] = []
    errors: dict[KeyT, ClientError] = {}

    async def one(group: GroupT, keys: Sequence[KeyT]) -> None:
        try:
            answers.extend(await ask(group, keys))
        except ClientError as error:
            errors.update(dict.fromkeys(keys, error))

    await asyncio.gather(*(one(group, keys) for group, keys in groups.items()))
    if not answers:
        _raise_unless_refused(errors.values())
    return as_results([key for keys in groups.values() for key in keys], answers, errors)


def _raise_unless_refused(errors: Iterable[ClientError]) -> None:
    """Raise an error that is not a broker's answer, if there is one."""
    for error in errors:
        if not isinstance(error, BrokerError):
            raise error


# The controller


async def at_controller(
    cluster: Cluster,
    keys: Iterable[KeyT],
    ask: Callable[[Connection], Awaitable[Iterable[Answer[KeyT, ResultT]]]],
) -> Results[KeyT, ResultT]:
    """Have something changed: any broker forwards the request to the controller, or says who the controller is.

    While there is no controller the request is retried, because nothing was changed. After a lost connection it is not
    retried, because the change may have been made.
    """
    controller_id = -1

    async def attempt() -> list[Answer[KeyT, ResultT]]:
        nonlocal controller_id
        connection = await (cluster.any_connection() if controller_id < 0 else cluster.connection_to(controller_id))
        answers = list(await ask(connection))
        refused = [error for _, error, _ in answers if error is not None]
        if refused and all(error.code is ErrorCode.NOT_CONTROLLER for error in refused):
            controller_id = (await cluster.refresh([])).controller_id
            raise refused[0]
        return answers

    answers = await cluster.retry(attempt, repeatable=False)
    return as_results(keys, answers)


def as_results(
    keys: Iterable[KeyT], answers: Iterable[Answer[KeyT, ResultT]], failed: Mapping[KeyT, ClientError] | None = None
) -> Results[KeyT, ResultT]:
    values: dict[KeyT, ResultT] = {}
    errors: dict[KeyT, ClientError] = dict(failed or {})
    for key, error, value in answers:
        if error is None:
            values[key] = value
        else:
            errors[key] = error
    return Results(keys, values, errors)
