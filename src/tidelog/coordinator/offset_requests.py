"""Committing, reading, deleting and expiring the offsets of groups.

What always holds: one request is one batch in the log, so all its offsets take effect or none; an offset is
acknowledged when it is committed, in the order of the requests. A member's group decides whether it may commit. When a
topic is deleted, so are its offsets; a topic recreated under the same name does not inherit them. When the memory for
offsets is used up, those that exist can still be moved, but no more are committed (INVALID_COMMIT_OFFSET_SIZE, which
clients report instead of retrying).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.common.ids import ZERO_UUID
from tidelog.common.steps import Steps
from tidelog.coordinator.actions import Action, Answer, Client, GroupRecord, Now
from tidelog.coordinator.appends import coordinator_error
from tidelog.coordinator.config import GroupImage
from tidelog.coordinator.group_records import OffsetCommitKey, OffsetCommitValue
from tidelog.coordinator.offsets import (
    NO_EXPIRATION,
    CommittedOffset,
    GroupOffsets,
    offset_bytes,
    offset_tombstone,
    pending_bytes,
    topic_bytes,
)
from tidelog.coordinator.shard_state import ShardState
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tidelog.protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

_TOPIC_IDS_FROM: Final = 10
_GROUP_ID_NOT_FOUND_FROM: Final = 9
_NO_OFFSET: Final = -1
_TIMESTAMP_MS_MAX: Final = 2**63 - 1
NO_PRODUCER_ID: Final = -1
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Commits:
    """The offsets that one request commits; the memory that they will take is reserved while they are written."""

    __slots__ = ("_growth_bytes", "_is_transactional", "_new_topics", "_offsets", "_state", "has_members", "rows")

    def __init__(self, state: ShardState, group_id: str, *, is_transactional: bool = False) -> None:
        self.rows: list[tuple[str, int, CommittedOffset]] = []
        group = state.groups.get(group_id)
        self.has_members = group is not None and not group.is_empty
        self._state = state
        self._is_transactional = is_transactional
        self._offsets = state.offsets.get(group_id)
        self._growth_bytes = 0 if self._offsets is not None else GroupOffsets(group_id).footprint.size_bytes
        self._new_topics: set[str] = set()

    def add(self, topic: str, partition: int, offset: CommittedOffset) -> bool:
        """Commit this offset, too; False if there is no memory for it."""
        more_bytes = self._more_bytes(topic, partition, offset.metadata)
        if more_bytes > 0:
            growth_bytes = self._growth_bytes + more_bytes
            if not self._state.shared_memory.has_room_for_offsets(growth_bytes, has_members=self.has_members):
                return False
            self._growth_bytes = growth_bytes
        self.rows.append((topic, partition, offset))
        return True

    def _more_bytes(self, topic: str, partition: int, metadata: str) -> int:
        if self._is_transactional:
            return pending_bytes(topic, metadata)
        before = None
        if self._offsets is not None and self._offsets.of_topic(topic):
            before = self._offsets.get(topic, partition)
        elif topic not in self._new_topics:
            self._new_topics.add(topic)
            return topic_bytes(topic) + offset_bytes(metadata)
        return offset_bytes(metadata) - (0 if before is None else offset_bytes(before.metadata))

    def reserve(self) -> None:
        self._state.offsets_memory.add(self._growth_bytes)

    def release(self) -> None:
        """Their write is decided; what counts from now on is what is kept."""
        self._state.offsets_memory.add(-self._growth_bytes)


class OffsetRequests:
    """The requests about offsets in one shard."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        # The groups that an open transaction commits offsets for, by its producer.
        self._groups_in_transactions: dict[int, set[str]] = {}

    def replay(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        record_offset: int,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Apply a record of the log, which belongs to a transaction if it has a producer id."""
        if value is None:
            self._forget(key.group, ((key.topic, key.partition),))
            return
        offsets, offset = self._state.offsets_of(key.group), CommittedOffset.from_value(value, record_offset)
        if producer_id == NO_PRODUCER_ID:
            offsets.put(key.topic, key.partition, offset)
        else:
            self.put_pending(key.group, producer_id, key.topic, key.partition, offset)

    def put_pending(self, group_id: str, producer_id: int, topic: str, partition: int, offset: CommittedOffset) -> None:
        """Hold an offset that is in the log until its transaction ends."""
        self._state.offsets_of(group_id).put_pending(producer_id, topic, partition, offset)
        self._groups_in_transactions.setdefault(producer_id, set()).add(group_id)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """The marker of a producer's transaction is in the log: apply its pending offsets, or drop them."""
        for group_id in self._groups_in_transactions.pop(producer_id, ()):
            offsets = self._state.offsets.get(group_id)
            if offsets is not None:
                offsets.end_transaction(producer_id, committed=committed)
                if not offsets:
                    self._state.drop_offsets(group_id)

    def _forget(self, group_id: str, partitions: Iterable[tuple[str, int]], *, keep_group: bool = False) -> None:
        offsets = self._state.offsets.get(group_id)
        if offsets is None:
            return
        for topic, partition in partitions:
            offsets.remove(topic, partition)
        if not offsets and not keep_group:
            self._state.drop_offsets(group_id)

    # Commit

    def commit(self, request: OffsetCommitRequest, client: Client, now: Now, exchange: int) -> list[Action]:
        error = self._check_commit(request, client.api_version)
        group_id = request.group_id
        commits = Commits(self._state, group_id)
        response = OffsetCommitResponse(
            topics=[self.prepare(topic, request, client, now, error, commits) for topic in request.topics]
        )
        if not commits.rows:
            return [Answer(exchange, response)]
        commits.reserve()
        group = self._state.groups.get(group_id)
        actions = [] if group is None else group.on_offset_commit(request.member_id, now)

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            commits.release()
            if error:
                fail_commit(response, error)
            else:
                offsets = self._state.offsets_of(group_id)
                for topic, partition, offset in commits.rows:
                    offsets.put(topic, partition, offset)
            return [Answer(exchange, response)]

        records = [offset.record(group_id, topic, partition) for topic, partition, offset in commits.rows]
        actions.append(self._state.appends.start(records, finish))
        return actions

    def _check_commit(self, request: OffsetCommitRequest, api_version: int) -> ErrorCode:
        group = self._state.groups.get(request.group_id)
        if group is not None:
            return group.check_offset_commit(
                request.member_id, request.group_instance_id, request.generation_id_or_member_epoch, api_version
            )
        if request.generation_id_or_member_epoch < 0:
            # A consumer that assigns its own partitions, or an administrator.
            return ErrorCode.NONE
        if request.group_id in self._state.offsets:
            # It exists without members, like a classic group whose members have all left.
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.GROUP_ID_NOT_FOUND if api_version >= _GROUP_ID_NOT_FOUND_FROM else ErrorCode.ILLEGAL_GENERATION

    def prepare(
        self,
        topic: OffsetCommitRequestTopic,
        request: OffsetCommitRequest,
        client: Client,
        now: Now,
        group_error: ErrorCode,
        commits: Commits,
    ) -> OffsetCommitResponseTopic:
        """The answer for one topic if all goes well, and the offsets to commit."""
        image = self._state.image
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if client.api_version >= _TOPIC_IDS_FROM:
            name, topic_id = image.topic_name(topic.topic_id), topic.topic_id
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else unknown
        else:
            name, topic_id = topic.name, image.topic_id(topic.name) or ZERO_UUID
        count = 0 if name is None else image.partition_count(name)
        expire_ms = NO_EXPIRATION
        if request.retention_time_ms >= 0:
            # A time that doesn't fit into a record is replaced by the latest one that does.
            expire_ms = min(now.wall_ms + request.retention_time_ms, _TIMESTAMP_MS_MAX)
        answers = []
        for partition in topic.partitions:
            index, metadata = partition.partition_index, partition.committed_metadata or ""
            error = group_error
            if name is None or not 0 <= index < count:
                error = unknown
            elif not error and len(metadata) > self._state.config.offset_metadata_max_bytes:
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if not error and name is not None:
                offset = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata,
                    now.wall_ms,
                    expire_ms,
                    topic_id,
                )
                if not commits.add(name, index, offset):
                    error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            answers.append(OffsetCommitResponsePartition(partition_index=index, error_code=error))
        return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers)

    # Fetch

    def fetch(self, group: OffsetFetchRequestGroup, *, require_stable: bool) -> Steps[OffsetFetchResponseGroup]:
        """The committed offsets of these topics, or of all topics if none are named."""
        known = self._state.groups.get(group.group_id)
        if known is not None:
            error = known.check_offset_fetch(group.member_id, group.member_epoch)
            if error:
                return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
        offsets = self._state.offsets.get(group.group_id) or GroupOffsets()
        if group.topics is None:
            topics = yield from self._all_topics(offsets, require_stable)
        else:
            topics = yield from self._named_topics(group.topics, offsets, require_stable)
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)

    def _all_topics(self, offsets: GroupOffsets, require_stable: bool) -> Steps[list[OffsetFetchResponseTopics]]:
        topics = []
        for name in offsets.topics:
            topic = OffsetFetchResponseTopics(name=name, topic_id=self._state.image.topic_id(name) or ZERO_UUID)
            for index in tuple(offsets.of_topic(name)):
                topic.partitions.append(_fetched(offsets, name, index, require_stable))
                yield 0
            topics.append(topic)
        return topics

    def _named_topics(
        self, asked: Sequence[OffsetFetchRequestTopics], offsets: GroupOffsets, require_stable: bool
    ) -> Steps[list[OffsetFetchResponseTopics]]:
        """A partition that is named several times is answered once."""
        topics: dict[tuple[str, uuid.UUID], OffsetFetchResponseTopics] = {}
        seen: set[tuple[str, uuid.UUID, int]] = set()
        for topic in asked:
            key = topic.name, topic.topic_id
            answer = topics.setdefault(key, OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id))
            name: str | None = topic.name
            if topic.topic_id != ZERO_UUID or not topic.name:
                name = self._state.image.topic_name(topic.topic_id)
            for index in topic.partition_indexes:
                yield 0
                if (*key, index) in seen:
                    continue
                seen.add((*key, index))
                if name is None:
                    answer.partitions.append(_no_offset(index, ErrorCode.UNKNOWN_TOPIC_ID))
                else:
                    answer.partitions.append(_fetched(offsets, name, index, require_stable))
        return list(topics.values())

    # Delete

    def delete(self, request: OffsetDeleteRequest, exchange: int) -> list[Action]:
        group_id = request.group_id
        group = self._state.groups.get(group_id)
        if not self._state.is_known(group_id):
            return [Answer(exchange, OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))]
        error = ErrorCode.NONE if group is None else group.check_offset_delete()
        if error:
            return [Answer(exchange, OffsetDeleteResponse(error_code=error))]
        deleted: list[tuple[str, int]] = []
        response = OffsetDeleteResponse(
            topics=[self._delete_topic(topic, group_id, deleted) for topic in request.topics]
        )
        if not deleted:
            return [Answer(exchange, response)]

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            if error:
                return [Answer(exchange, OffsetDeleteResponse(error_code=coordinator_error(error)))]
            # The group itself stays until the next check for expired offsets, even if it has none left.
            self._forget(group_id, deleted, keep_group=True)
            return [Answer(exchange, response)]

        records = [offset_tombstone(group_id, topic, partition) for topic, partition in deleted]
        return self._state.appends.start_all(records, finish)

    def _delete_topic(
        self, topic: OffsetDeleteRequestTopic, group_id: str, deleted: list[tuple[str, int]]
    ) -> OffsetDeleteResponseTopic:
        group = self._state.groups.get(group_id)
        offsets = self._state.offsets.get(group_id) or GroupOffsets()
        count = self._state.image.partition_count(topic.name)
        is_subscribed = group is not None and group.is_subscribed_to(topic.name)
        answers = []
        for partition in topic.partitions:
            index = partition.partition_index
            error = ErrorCode.NONE
            if not 0 <= index < count:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_subscribed:
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif offsets.get(topic.name, index) is not None:
                deleted.append((topic.name, index))
            answers.append(OffsetDeleteResponsePartition(partition_index=index, error_code=error))
        return OffsetDeleteResponseTopic(name=topic.name, partitions=answers)

    # What removes offsets without a request

    def on_topics_deleted(self, old: GroupImage | None = None) -> list[Action]:
        """Delete the offsets of topics that no longer exist: those gone since an older image, or all in the records."""
        image = self._state.image
        actions: list[Action] = []
        is_gone: dict[str, bool] = {}
        for group_id, offsets in tuple(self._state.offsets.items()):
            gone = [name for name in offsets.pending_partitions() if image.topic_id(name[0]) is None]
            for topic in offsets.topics:
                if old is None:
                    gone += self._of_former_topics(topic, offsets)
                    continue
                if topic not in is_gone:
                    is_gone[topic] = old.topic_id(topic) != image.topic_id(topic)
                if is_gone[topic]:
                    gone += [(topic, partition) for partition in offsets.of_topic(topic)]
            actions += self._remove(group_id, gone)
        return actions

    def _of_former_topics(self, topic: str, offsets: GroupOffsets) -> list[tuple[str, int]]:
        """The offsets under a topic name that belong to no topic, or to a deleted predecessor of the current one."""
        topic_id = self._state.image.topic_id(topic)
        return [
            (topic, partition)
            for partition, offset in offsets.of_topic(topic).items()
            if topic_id is None or offset.topic_id not in (ZERO_UUID, topic_id)
        ]

    def expire(self, now: Now) -> list[Action]:
        """Delete offsets that have been unused for offsets.retention.minutes, and groups that have none left."""
        actions: list[Action] = []
        for group_id, offsets in tuple(self._state.offsets.items()):
            if offsets:
                actions += self._remove(group_id, self._expired(group_id, offsets, now))
            else:
                self._state.drop_offsets(group_id)
        for group_id, group in tuple(self._state.groups.items()):
            if group_id not in self._state.offsets and group.is_empty and not group.check_delete():
                actions += self._remove_group(group_id)
        return actions

    def _expired(self, group_id: str, offsets: GroupOffsets, now: Now) -> list[tuple[str, int]]:
        group = self._state.groups.get(group_id)
        expired = []
        for topic in offsets.topics:
            if group is not None and group.is_subscribed_to(topic):
                continue
            for partition, offset in offsets.of_topic(topic).items():
                from_ms = offset.commit_timestamp_ms if group is None else group.expires_from_ms(offset)
                if from_ms is None or offsets.is_pending(topic, partition):
                    continue
                due_ms = offset.expire_timestamp_ms
                if due_ms == NO_EXPIRATION:
                    due_ms = from_ms + self._state.config.offsets_retention_ms
                if now.wall_ms >= due_ms:
                    expired.append((topic, partition))
        return expired

    def _remove(self, group_id: str, partitions: list[tuple[str, int]]) -> list[Action]:
        if not partitions:
            return []

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            # After an error they stay, and the next check finds them again.
            if not error:
                self._forget(group_id, partitions)
            return []

        records = [offset_tombstone(group_id, topic, partition) for topic, partition in partitions]
        return self._state.appends.start_all(records, finish)

    def _remove_group(self, group_id: str) -> list[Action]:
        group = self._state.groups[group_id]
        records: list[GroupRecord] = group.tombstones()

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            if error or self._state.groups.get(group_id) is not group or not group.is_empty:
                return []
            self._state.drop_group(group_id)
            return group.on_deleted()

        return self._state.appends.start_all(records, finish)


def _fetched(offsets: GroupOffsets, topic: str, partition: int, require_stable: bool) -> OffsetFetchResponsePartitions:
    if require_stable and offsets.is_pending(topic, partition):
        return _no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    offset = offsets.get(topic, partition)
    if offset is None:
        return _no_offset(partition, ErrorCode.NONE)
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


def _no_offset(partition: int, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition_index=partition, committed_offset=_NO_OFFSET, error_code=error)


def fail_commit(response: OffsetCommitResponse, error: ErrorCode) -> None:
    """Set the error on every partition that would have been committed."""
    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error in _TOO_LARGE else coordinator_error(error)
    for topic in response.topics:
        for partition in topic.partitions:
            partition.error_code = partition.error_code or code
