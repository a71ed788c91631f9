"""Commits and reads of offsets in every version, and what becomes of them when the coordinator refuses."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tidelog.client.consumer.commits import GroupOffsets
from tidelog.client.consumer.membership import Identity
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    CommitFailedError,
    ConnectionLostError,
    InvalidResponseError,
    RetriableError,
)
from tidelog.client.types import OffsetAndMetadata, TopicPartition
from tidelog.protocol import Api, ErrorCode, decode, encode
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

T = TypeVar("T")
T0, U1 = TopicPartition("t", 0), TopicPartition("u", 1)
IDS = {"t": uuid.UUID(int=1), "u": uuid.UUID(int=2)}
OFFSETS = {T0: OffsetAndMetadata(5, 2, "note"), U1: OffsetAndMetadata(7)}


class Coordinator:
    """Answers one request after the other as it is told to, in the version that the client chose."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.requests: list[Any] = []
        self.codes: deque[ErrorCode | Exception | dict[TopicPartition, ErrorCode]] = deque()
        self.stored: dict[TopicPartition, OffsetAndMetadata] = {}
        self.knows_ids = True
        self.forgotten = 0

    # What the client sees of it

    def version_for(self, api: Api, *, at_most: int | None = None) -> int:
        return self.version if at_most is None else min(self.version, at_most)

    def send(self, api: Api, message: Any, response_class: type, *, version: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        fault = self.codes.popleft() if self.codes else ErrorCode.NONE
        if isinstance(fault, Exception):
            future.set_exception(fault)
            return future
        seen = decode(type(message), encode(message, version), version)
        self.requests.append((version, seen))
        codes = fault if isinstance(fault, dict) else {}
        overall = fault if isinstance(fault, ErrorCode) else ErrorCode.NONE
        answer = (
            self._commit(seen, version, codes, overall)
            if api is OFFSET_COMMIT
            else self._fetch(seen, version, codes, overall)
        )
        future.set_result(decode(response_class, encode(answer, version), version))
        return future

    async def request(self, api: Api, message: Any, response_class: type, *, version: int) -> Any:
        return await self.send(api, message, response_class, version=version)

    def _commit(
        self,
        request: OffsetCommitRequest,
        version: int,
        codes: dict[TopicPartition, ErrorCode],
        overall: ErrorCode,
    ) -> OffsetCommitResponse:
        names = {topic_id: name for name, topic_id in IDS.items()}
        topics = []
        for topic in request.topics:
            name = topic.name or names[topic.topic_id]
            rows = []
            for row in topic.partitions:
                partition = TopicPartition(name, row.partition_index)
                code = codes.get(partition, overall)
                rows.append(OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code))
                if code is ErrorCode.NONE:
                    note = row.committed_metadata or ""
                    self.stored[partition] = OffsetAndMetadata(row.committed_offset, row.committed_leader_epoch, note)
            topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=rows))
        return OffsetCommitResponse(topics=topics)

    def _fetch(
        self, request: OffsetFetchRequest, version: int, codes: dict[TopicPartition, ErrorCode], overall: ErrorCode
    ) -> OffsetFetchResponse:
        if version < 8:
            return OffsetFetchResponse(
                topics=[
                    OffsetFetchResponseTopic(
                        name=topic.name,
                        partitions=[
                            self._row(OffsetFetchResponsePartition, topic.name, number, codes)
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in request.topics or []
                ],
                error_code=overall if version >= 2 else 0,
            )
        (group,) = request.groups
        names = {topic_id: name for name, topic_id in IDS.items()}
        topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    self._row(OffsetFetchResponsePartitions, topic.name or names[topic.topic_id], number, codes)
                    for number in topic.partition_indexes
                ],
            )
            for topic in group.topics or []
        ]
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics, error_code=overall)])

    def _row(self, kind: type[Any], topic: str, number: int, codes: dict[TopicPartition, ErrorCode]) -> Any:
        partition = TopicPartition(topic, number)
        stored = self.stored.get(partition, OffsetAndMetadata(-1))
        return kind(
            partition_index=number,
            committed_offset=stored.offset,
            committed_leader_epoch=stored.leader_epoch,
            metadata=stored.metadata,
            error_code=codes.get(partition, ErrorCode.NONE),
        )


class FakeCluster:
    """Topics by name, and retries without pauses."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def known_topic(self, name: str) -> object:
        return SimpleNamespace(topic_id=IDS[name]) if self._coordinator.knows_ids else None

    async def retry(
        self,
        action: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None,
        giving_up_on: frozenset[ErrorCode] = frozenset(),
        patient: bool,
    ) -> T:
        for _ in range(5):
            try:
                return await action()
            except RetriableError as error:
                last = error
                if isinstance(error, BrokerError) and error.code in giving_up_on:
                    raise
            await asyncio.sleep(0)
        raise last


class Member:
    """Who commits, as the runner tells it."""

    def __init__(self, identity: Identity | None) -> None:
        self.now = identity
        self.next: Identity | None = identity
        self.owned: frozenset[TopicPartition] = frozenset(OFFSETS)
        self.may_wait = False

    def identity(self) -> Identity | None:
        return self.now

    def refuse(self, code: ErrorCode, identity: Identity) -> bool:
        return self.may_wait

    async def settled(self) -> None:
        self.now = self.next

    def owns(self, partitions: Iterable[TopicPartition]) -> bool:
        return self.owned.issuperset(partitions)

    def why_not_member(self) -> ClientError:
        return ClientError("the group went on")


def make(coordinator: Coordinator, identity: Identity | None = None, **options: Any) -> tuple[GroupOffsets, Member]:
    member = Member(identity)

    def note_error(error: BaseException) -> None:
        coordinator.forgotten += 1

    source: Any = SimpleNamespace(cluster=FakeCluster(coordinator), key="g", note_error=note_error)
    offsets = GroupOffsets(source, member, **options)

    async def connection() -> Coordinator:
        return coordinator

    channel: Any = SimpleNamespace(connection=connection)
    offsets._channel = channel
    return offsets, member


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


# Brokers of older versions do not let static members join.
_COMMITS = [
    (version, identity)
    for version in range(OFFSET_COMMIT.versions[0], OFFSET_COMMIT.versions[1] + 1)
    for identity in (None, Identity(3, "m"), Identity(3, "m", "desk-1"))
    if version >= 7 or identity is None or identity.instance_id is None
]


@pytest.mark.parametrize(("version", "identity"), _COMMITS)
def test_commits_in_every_version(version: int, identity: Identity | None) -> None:
    coordinator = Coordinator(version)
    offsets, _ = make(coordinator, identity)
    run(offsets.commit(OFFSETS))
    epochs = version >= 6
    assert coordinator.stored == {
        T0: OffsetAndMetadata(5, 2 if epochs else -1, "note"),
        U1: OffsetAndMetadata(7),
    }
    ((_, request),) = coordinator.requests
    generation, member_id = (-1, "") if identity is None else (3, "m")
    assert (request.generation_id_or_member_epoch, request.member_id) == (generation, member_id)
    assert [topic.name for topic in request.topics] == (["", ""] if version >= 10 else ["t", "u"])


@pytest.mark.parametrize("version", range(OFFSET_FETCH.versions[0], OFFSET_FETCH.versions[1] + 1))
@pytest.mark.parametrize("reads_as_member", [True, False])
def test_reading_in_every_version(version: int, reads_as_member: bool) -> None:
    coordinator = Coordinator(version)
    coordinator.stored[T0] = OffsetAndMetadata(5, 2, "note")
    options = {"require_stable": True, "reads_as_member": reads_as_member}
    offsets, _ = make(coordinator, Identity(3, "m"), **options)
    found = run(offsets.committed([T0, U1, T0]))
    assert found == {T0: OffsetAndMetadata(5, 2 if version >= 5 else -1, "note"), U1: None}
    ((_, request),) = coordinator.requests
    assert request.require_stable is (version >= 7)
    if version >= 9:
        told = (request.groups[0].member_id, request.groups[0].member_epoch)
        assert told == (("m", 3) if reads_as_member else (None, -1))


def test_topics_whose_ids_are_not_known_are_named() -> None:
    coordinator = Coordinator(10)
    coordinator.knows_ids = False
    offsets, _ = make(coordinator)
    run(offsets.commit(OFFSETS))
    run(offsets.committed([T0]))
    assert [version for version, _ in coordinator.requests] == [9, 9]


def test_an_id_that_is_refused_is_not_used_again() -> None:
    coordinator = Coordinator(10)
    coordinator.codes.append({T0: ErrorCode.UNKNOWN_TOPIC_ID})
    offsets, _ = make(coordinator)
    run(offsets.commit(OFFSETS))
    assert [version for version, _ in coordinator.requests] == [10, 9]
    assert coordinator.stored.keys() == OFFSETS.keys()


@pytest.mark.parametrize(
    "fault",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ConnectionLostError("lost"),
    ],
)
def test_what_may_pass_is_tried_again_by_a_commit_that_waits_only(fault: ErrorCode | Exception) -> None:
    coordinator = Coordinator(9)
    offsets, _ = make(coordinator, Identity(3, "m"))
    coordinator.codes.extend([fault, fault])
    run(offsets.commit(OFFSETS))
    assert coordinator.stored.keys() == OFFSETS.keys()
    assert coordinator.forgotten == 2
    coordinator.stored.clear()
    coordinator.codes.append(fault)
    errors: list[Exception | None] = []

    async def commit() -> None:
        offsets.commit_nowait(OFFSETS, lambda _, error: errors.append(error))
        await offsets.drain()

    run(commit())
    assert isinstance(errors[0], RetriableError)
    assert not coordinator.stored


@pytest.mark.parametrize(
    "code", [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.INVALID_GROUP_ID]
)
def test_what_will_not_pass_is_raised_at_once(code: ErrorCode) -> None:
    coordinator = Coordinator(9)
    coordinator.codes.append({U1: code})
    offsets, _ = make(coordinator)
    with pytest.raises(BrokerError, match="u-1") as caught:
        run(offsets.commit(OFFSETS))
    assert caught.value.code is code
    assert len(coordinator.requests) == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    ],
)
def test_a_commit_between_two_generations_is_sent_again_in_the_next(code: ErrorCode) -> None:
    coordinator = Coordinator(9)
    coordinator.codes.append(code)
    offsets, member = make(coordinator, Identity(3, "m"))
    member.may_wait, member.next = True, Identity(4, "m")
    run(offsets.commit(OFFSETS))
    assert [request.generation_id_or_member_epoch for _, request in coordinator.requests] == [3, 4]
    assert coordinator.forgotten == 0, "the coordinator is the right one"


def test_a_commit_is_not_sent_again_for_partitions_that_went_to_others() -> None:
    coordinator = Coordinator(9)
    coordinator.codes.append(ErrorCode.REBALANCE_IN_PROGRESS)
    offsets, member = make(coordinator, Identity(3, "m"))
    member.may_wait, member.next, member.owned = True, Identity(4, "m"), frozenset({T0})
    with pytest.raises(CommitFailedError, match="the group went on"):
        run(offsets.commit(OFFSETS))
    assert len(coordinator.requests) == 1


def test_a_rebalance_that_does_not_end_is_told() -> None:
    coordinator = Coordinator(9)
    coordinator.codes.extend([ErrorCode.REBALANCE_IN_PROGRESS] * 9)
    offsets, member = make(coordinator, Identity(3, "m"))
    member.may_wait = True
    with pytest.raises(CommitFailedError, match=r"call poll\(\)"):
        run(offsets.commit(OFFSETS))
    errors: list[Exception | None] = []

    async def commit() -> None:
        offsets.commit_nowait(OFFSETS, lambda _, error: errors.append(error))
        await offsets.drain()

    run(commit())
    assert isinstance(errors[0], CommitFailedError)


def test_whoever_is_in_no_generation_commits_nothing() -> None:
    coordinator = Coordinator(9)
    offsets, _ = make(coordinator, Identity(-1, "m"))
    with pytest.raises(CommitFailedError, match="the group went on"):
        run(offsets.commit(OFFSETS))
    assert coordinator.requests == []


def test_an_incomplete_answer_is_no_commit() -> None:
    coordinator = Coordinator(9)
    offsets, _ = make(coordinator)

    async def commit() -> None:
        answer = OffsetCommitResponse(topics=[])
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(answer)
        source: Any = coordinator
        source.send = lambda *_, **__: future
        await offsets.commit(OFFSETS)

    with pytest.raises(InvalidResponseError, match="incomplete"):
        run(commit())


def test_a_member_that_was_fenced_reads_offsets_once_it_is_in_again() -> None:
    coordinator = Coordinator(9)
    coordinator.stored[T0] = OffsetAndMetadata(5)
    coordinator.codes.append(ErrorCode.STALE_MEMBER_EPOCH)
    offsets, _ = make(coordinator, Identity(3, "m"), reads_as_member=True)
    assert run(offsets.committed([T0])) == {T0: OffsetAndMetadata(5)}


def test_open_transactions_are_waited_for() -> None:
    coordinator = Coordinator(9)
    coordinator.stored[T0] = OffsetAndMetadata(5)
    coordinator.codes.extend([{T0: ErrorCode.UNSTABLE_OFFSET_COMMIT}] * 2)
    offsets, _ = make(coordinator, require_stable=True)
    assert run(offsets.committed([T0])) == {T0: OffsetAndMetadata(5)}
    assert len(coordinator.requests) == 3
