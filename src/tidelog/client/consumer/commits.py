"""A group's offsets: commits that wait, commits that don't, and reading committed offsets.

What always holds: commits reach the coordinator in the order in which they were requested, and callbacks of commits
that don't wait run in that order. A commit that waits is retried after temporary errors; one that doesn't wait is not.
A member's commit carries its current generation. If the group has moved on without the member, the commit fails with an
error that says why, and nothing is committed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from tidelog.client.consumer.coordinator_channel import CoordinatorChannel
from tidelog.client.consumer.membership import Identity
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    CommitFailedError,
    InvalidResponseError,
    RetriableBrokerError,
    RetriableError,
    error_code,
)
from tidelog.client.network.connection import Connection
from tidelog.client.network.offset_requests import NAMES_UP_TO, SEVERAL_GROUPS_FROM, build_offset_fetch
from tidelog.client.network.routing import Coordinator
from tidelog.client.types import OffsetAndMetadata, TopicPartition, group_by_topic
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[Offsets, Exception | None], None]

_INSTANCES_FROM = 7

# The generation is not the coordinator's: the member is between two of them, or gone.
_GENERATION_CODES = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)


class _MembershipMovedError(RetriableError):
    """Refused because of the generation it was sent in; the next generation may be accepted."""

    def __init__(self, error: BrokerError, identity: Identity) -> None:
        super().__init__(str(error))
        self.code = error.code
        self.identity = identity

    def help(self) -> ClientError:
        return ClientError(f"{self}; call poll() to finish the rebalance, then commit again")


class Committer(Protocol):
    """The committer: what commits have to know about the membership."""

    def identity(self) -> Identity | None:
        """The member's current identity; None for a consumer without a group that commits for itself."""
        ...

    def refuse(self, code: ErrorCode, identity: Identity) -> bool:
        """The coordinator refused this identity. Returns whether waiting may bring a better one."""
        ...

    async def settled(self) -> None:
        """Wait until the member is in a generation, or in none."""
        ...

    def owns(self, partitions: Iterable[TopicPartition]) -> bool: ...

    def why_not_member(self) -> ClientError:
        """Why there is no generation to commit in, and what to do about it."""
        ...


class GroupOffsets:
    """The offsets of one group, as committed and read by one consumer."""

    def __init__(
        self,
        coordinator: Coordinator,
        committer: Committer,
        *,
        require_stable: bool = False,
        reads_as_member: bool = False,
    ) -> None:
        self._coordinator = coordinator
        self._cluster = coordinator.cluster
        self._group_id = coordinator.key
        self._committer = committer
        self._require_stable = require_stable
        self._reads_as_member = reads_as_member  # in the consumer protocol, a fenced member may not read offsets
        self._refused_ids: set[uuid.UUID] = set()  # of topics that were recreated with the same name
        self._channel = CoordinatorChannel(coordinator)
        self._sending = asyncio.Lock()
        self._last: asyncio.Task[None] | None = None  # commits that don't wait

    async def connection(self) -> Connection:
        """For other requests that must not wait behind a join: leaving the group."""
        return await self._channel.connection()

    # Commits

    async def commit(
        self, offsets: Offsets, *, timeout_s: float | None = None, giving_up_on: frozenset[ErrorCode] = frozenset()
    ) -> None:
        """Commit and wait. Raises CommitFailedError, or the last temporary error when the time is up."""
        if offsets:
            try:
                await self._cluster.retry(
                    lambda: self._commit_when_settled(offsets),
                    timeout_s=timeout_s,
                    giving_up_on=giving_up_on,
                    patient=True,
                )
            except _MembershipMovedError as error:
                why = error.help()
                raise self._failed(why) from why
        if self._last is not None:
            await asyncio.wait({self._last})

    async def _commit_when_settled(self, offsets: Offsets) -> None:
        try:
            await self._commit_once(offsets)
        except _MembershipMovedError:
            await self._committer.settled()
            identity = self._committer.identity()
            if identity is None or not identity.is_member or not self._committer.owns(offsets):
                why = self._committer.why_not_member()
                raise self._failed(why) from why
            raise

    def commit_nowait(self, offsets: Offsets, on_done: CommitCallback | None = None) -> None:
        """Commit without waiting and without retries."""
        self._last = asyncio.get_running_loop().create_task(self._commit_in_turn(dict(offsets), on_done, self._last))

    async def _commit_in_turn(
        self, offsets: Offsets, on_done: CommitCallback | None, before: asyncio.Task[None] | None
    ) -> None:
        failure: ClientError | None = None
        try:
            if offsets:
                await self._commit_once(offsets)
        except _MembershipMovedError as error:
            failure = self._failed(error.help())
            failure.__cause__ = error
        except ClientError as error:
            failure = error
        if before is not None:
            await asyncio.wait({before})
        if on_done is not None:
            on_done(offsets, failure)

    async def _commit_once(self, offsets: Offsets) -> None:
        identity = self._committer.identity()
        if identity is not None and not identity.is_member:
            why = self._committer.why_not_member()
            raise self._failed(why) from why
        sender = identity or Identity()
        try:
            async with self._sending:  # in the order of the calls
                connection = await self._channel.connection()
                topic_ids = self._topic_ids(offsets)
                version = connection.version_for(OFFSET_COMMIT, at_most=None if topic_ids else NAMES_UP_TO)
                request = _commit_request(self._group_id, sender, offsets, topic_ids, version)
                future = connection.send(OFFSET_COMMIT, request, OffsetCommitResponse, version=version)
            self._read_commit(await future, offsets, topic_ids, sender)
        except _MembershipMovedError:
            raise
        except RetriableError as error:
            self._coordinator.note_error(error)
            raise

    def _read_commit(
        self,
        response: OffsetCommitResponse,
        offsets: Offsets,
        topic_ids: Mapping[str, uuid.UUID],
        identity: Identity,
    ) -> None:
        names = {topic_id: name for name, topic_id in topic_ids.items()}
        answered: set[TopicPartition] = set()
        refusals: list[BrokerError] = []
        for topic in response.topics:
            name = topic.name or names.get(topic.topic_id, "")
            for row in topic.partitions:
                partition = TopicPartition(name, row.partition_index)
                answered.add(partition)
                if row.error_code != ErrorCode.NONE:
                    refusals.append(self._refusal(row.error_code, f"partition {partition}"))
        if refusals:
            self._raise_refusal(refusals, identity, topic_ids)
        if not answered.issuperset(offsets):
            raise InvalidResponseError(f"group {self._group_id}: the coordinator's response to a commit is incomplete")

    def _raise_refusal(
        self, refusals: list[BrokerError], identity: Identity, topic_ids: Mapping[str, uuid.UUID]
    ) -> None:
        """Raise the gravest error: about the membership first, then permanent ones, then temporary ones."""
        for error in refusals:
            if error.code in _GENERATION_CODES:
                if self._committer.refuse(error.code, identity):
                    raise _MembershipMovedError(error, identity)
                why = self._committer.why_not_member()
                raise self._failed(why) from why
        if any(error.code is ErrorCode.UNKNOWN_TOPIC_ID for error in refusals):
            self._refused_ids.update(topic_ids.values())
        raise next((error for error in refusals if not isinstance(error, RetriableError)), refusals[0])

    def _refusal(self, code: int, subject: str) -> BrokerError:
        return BrokerError(error_code(code), subject=f"group {self._group_id}, {subject}")

    def _failed(self, why: ClientError) -> CommitFailedError:
        return CommitFailedError(f"group {self._group_id}: the offsets were not committed: {why}")

    # Reading committed offsets

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offset for each partition; None if there is none."""
        wanted = list(dict.fromkeys(TopicPartition(*partition) for partition in partitions))
        if not wanted:
            return {}
        return await self._cluster.retry(lambda: self._ask_committed(wanted), timeout_s=timeout_s, patient=True)

    async def _ask_committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        try:
            connection = await self._channel.connection()
            return await self._fetch_offsets(connection, partitions)
        except RetriableError as error:
            self._coordinator.note_error(error)
            raise

    async def _fetch_offsets(
        self, connection: Connection, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        topic_ids = self._topic_ids(partitions)
        version = connection.version_for(OFFSET_FETCH, at_most=None if topic_ids else NAMES_UP_TO)
        identity = (self._committer.identity() if self._reads_as_member else None) or Identity()
        request = build_offset_fetch(
            version,
            self._group_id,
            partitions,
            require_stable=self._require_stable,
            topic_ids=topic_ids,
            member=(identity.member_id, identity.generation) if identity.is_member else None,
        )
        response = await connection.request(OFFSET_FETCH, request, OffsetFetchResponse, version=version)
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions)
        for partition, row in self._rows(response, topic_ids, version, identity):
            if row.error_code != ErrorCode.NONE:
                error = self._refusal(row.error_code, f"partition {partition}")
                if error.code is ErrorCode.UNKNOWN_TOPIC_ID:
                    self._refused_ids.update(topic_ids.values())
                raise error
            if row.committed_offset >= 0:
                epoch = row.committed_leader_epoch
                found[partition] = OffsetAndMetadata(row.committed_offset, epoch, row.metadata or "")
        return found

    def _rows(
        self, response: OffsetFetchResponse, topic_ids: Mapping[str, uuid.UUID], version: int, identity: Identity
    ) -> list[tuple[TopicPartition, OffsetFetchResponsePartition | OffsetFetchResponsePartitions]]:
        if version < SEVERAL_GROUPS_FROM:
            self._check_group(response.error_code, identity)
            return [
                (TopicPartition(topic.name, row.partition_index), row)
                for topic in response.topics
                for row in topic.partitions
            ]
        names = {topic_id: name for name, topic_id in topic_ids.items()}
        rows: list[tuple[TopicPartition, OffsetFetchResponsePartition | OffsetFetchResponsePartitions]] = []
        for group in response.groups:
            self._check_group(group.error_code, identity)
            for found in group.topics:
                name = found.name or names.get(found.topic_id, "")
                rows += [(TopicPartition(name, each.partition_index), each) for each in found.partitions]
        return rows

    def _check_group(self, code: int, identity: Identity) -> None:
        if code == ErrorCode.NONE:
            return
        error = self._refusal(code, "offsets")
        if error.code in _GENERATION_CODES:
            # Only members of the consumer protocol identify themselves here; they get their identity from a heartbeat.
            self._committer.refuse(error.code, identity)
            raise RetriableBrokerError(error.code, error.message, subject=error.subject)
        raise error

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, uuid.UUID]:
        """The ids of all these topics; empty if any is unknown, in which case names have to do."""
        topic_ids: dict[str, uuid.UUID] = {}
        for topic in {partition.topic for partition in partitions}:
            known = self._cluster.known_topic(topic)
            if known is None or known.topic_id == ZERO_UUID or known.topic_id in self._refused_ids:
                return {}
            topic_ids[topic] = known.topic_id
        return topic_ids

    # Closing

    async def drain(self) -> None:
        """Wait for the commits that don't wait."""
        if self._last is not None:
            await asyncio.wait({self._last})

    def close(self) -> None:
        self._channel.close()


def _commit_request(
    group_id: str, identity: Identity, offsets: Offsets, topic_ids: Mapping[str, uuid.UUID], version: int
) -> OffsetCommitRequest:
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id if identity.is_member else "",
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_ids.get(topic, ZERO_UUID),
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offsets[TopicPartition(topic, number)].offset,
                        committed_leader_epoch=offsets[TopicPartition(topic, number)].leader_epoch,
                        committed_metadata=offsets[TopicPartition(topic, number)].metadata,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in group_by_topic(offsets).items()
        ],
    )
    if version >= _INSTANCES_FROM and identity.is_member:
        request.group_instance_id = identity.instance_id
    return request
