"""Committing, reading, deleting and expiring the offsets of groups.

What always holds: one request is one batch in the log, so all its offsets take effect or none; an offset is
acknowledged when it is committed, in the order of the requests. A member's group decides whether it may commit. When a
topic is deleted, so are its offsets; a topic recreated under the same name does not inherit them. When the memory for
offsets is used up, those that exist can still be moved, but no more are committed (INVALID_COMMIT_OFFSET_SIZE, which
clients report instead of retrying).

A request may name thousands of partitions, so it is prepared in steps: what to answer, the records, the offsets. That
changes nothing that others can see, and others are served in between. Then all of it is carried out at once, after a
second look at whatever may have changed meanwhile: whether the member is still one, whether there is memory, whether
topics were deleted or subscribed to. A deletion that comes in between does not make an offset that was not there count
as one: the later record wins, as with two requests one after the other.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from tidelog.common.ids import ZERO_UUID
from tidelog.common.steps import Steps
from tidelog.coordinator.actions import Action, ActionSteps, Answer, Client, GroupRecord, Now, Prepared, Work
from tidelog.coordinator.appends import RECORD_OVERHEAD_BYTES, Outcome, coordinator_error, split_batches
from tidelog.coordinator.config import GroupImage
from tidelog.coordinator.group import Group
from tidelog.coordinator.group_records import OffsetCommitKey, OffsetCommitValue
from tidelog.coordinator.offsets import (
    NO_EXPIRATION,
    CommittedOffset,
    GroupOffsets,
    PendingOffset,
    offset_bytes,
    offset_tombstone,
    pending_bytes,
    topic_bytes,
)
from tidelog.coordinator.shard_state import ShardState
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
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
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
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
_TOPIC_BYTES_MAX: Final = 249
_TIMESTAMP_MS_MAX: Final = 2**63 - 1
NO_PRODUCER_ID: Final = -1
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


_STEP_PARTITIONS: Final = 32
"""After so many partitions of a topic a step ends: they take a tenth of a millisecond."""

_AT_ONCE_MAX: Final = 256
"""So many offsets of a transaction are applied at once, which takes a quarter of a millisecond."""

_BATCH_PARTITIONS_MAX: Final = 256
_BATCH_BYTES_MAX: Final = 256 * 1024
"""How much one write deletes: that takes half a millisecond. Names may be long, so bytes count as well."""

FoundOffset = tuple[str, int, CommittedOffset]
Found = Iterator[FoundOffset | None]
"""Offsets to delete, one by one; None for one that stays."""

AnswerT = TypeVar("AnswerT", OffsetCommitResponsePartition, TxnOffsetCommitResponsePartition)


class Commits:
    """The offsets that one request commits; the memory that they will take is reserved while they are written."""

    __slots__ = (
        "_growth_bytes",
        "_image",
        "_is_transactional",
        "_new_topics",
        "_offsets",
        "_state",
        "_topic_ids",
        "commit_timestamp_ms",
        "expire_timestamp_ms",
        "group_id",
        "pending",
        "records",
        "rows",
    )

    def __init__(
        self,
        state: ShardState,
        group_id: str,
        now: Now,
        *,
        expire_timestamp_ms: int = NO_EXPIRATION,
        is_transactional: bool = False,
    ) -> None:
        self.group_id = group_id
        self.commit_timestamp_ms = now.wall_ms
        self.expire_timestamp_ms = expire_timestamp_ms
        self.rows: list[tuple[str, int, CommittedOffset]] = []
        self.records: list[GroupRecord] = []
        # The same in a transaction, for each partition the last one.
        self.pending: dict[tuple[str, int], PendingOffset] = {}
        self._state = state
        self._image = state.image
        self._is_transactional = is_transactional
        self._offsets = state.offsets.get(group_id)
        self._growth_bytes = 0 if self._offsets is not None else GroupOffsets(group_id).footprint.size_bytes
        self._new_topics: set[str] = set()
        self._topic_ids: dict[str, uuid.UUID | None] = {}

    def add_topic(self, topic: str) -> uuid.UUID | None:
        """Offsets of this topic follow; its id, if there is one."""
        topic_id = self._topic_ids[topic] = self._state.image.topic_id(topic)
        return topic_id

    def add(self, topic: str, partition: int, offset: CommittedOffset) -> bool:
        """Commit this offset, too; False if there is no memory for it."""
        more_bytes = self._more_bytes(topic, partition, offset.metadata)
        if more_bytes > 0:
            growth_bytes = self._growth_bytes + more_bytes
            if not self._has_room(growth_bytes):
                return False
            self._growth_bytes = growth_bytes
        if self._is_transactional:
            self.pending[topic, partition] = PendingOffset(topic, offset, len(self.rows))
        self.rows.append((topic, partition, offset))
        self.records.append(offset.record(self.group_id, topic, partition))
        return True

    def _has_room(self, size_bytes: int) -> bool:
        group = self._state.groups.get(self.group_id)
        has_members = group is not None and not group.is_empty
        return self._state.shared_memory.has_room_for_offsets(size_bytes, has_members=has_members)

    def _more_bytes(self, topic: str, partition: int, metadata: str) -> int:
        if self._is_transactional:
            return pending_bytes(topic, metadata)
        before = None if self._offsets is None else self._offsets.get(topic, partition)
        if before is not None:
            return offset_bytes(metadata) - offset_bytes(before.metadata) if before.metadata or metadata else 0
        is_known = topic in self._new_topics or (self._offsets is not None and self._offsets.of_topic(topic))
        if is_known:
            return offset_bytes(metadata)
        self._new_topics.add(topic)
        return topic_bytes(topic) + offset_bytes(metadata)

    def reserve(self) -> ErrorCode:
        """Take the memory, as the last thing before they are written; the error if they can't be written any more."""
        image = self._state.image
        if image is not self._image and any(image.topic_id(name) != known for name, known in self._topic_ids.items()):
            # Topics were deleted while this was prepared. When the client asks again, it hears about each partition.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if self._growth_bytes > 0 and not self._has_room(self._growth_bytes):
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        self._state.offsets_memory.add(self._growth_bytes)
        self._state.undecided_commits[self.group_id] += 1
        return ErrorCode.NONE

    def release(self) -> None:
        """Their write is decided; what counts from now on is what is kept."""
        self._state.offsets_memory.add(-self._growth_bytes)
        undecided = self._state.undecided_commits
        undecided[self.group_id] -= 1
        if not undecided[self.group_id]:
            del undecided[self.group_id]


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
            offsets.put_pending(producer_id, key.topic, key.partition, offset)
            self._groups_in_transactions.setdefault(producer_id, set()).add(key.group)

    def put_pending(self, producer_id: int, commits: Commits, first_offset: int) -> None:
        """Hold offsets whose batch is in the log at this offset until their transaction ends."""
        size_bytes = sum(pending.size_bytes for pending in commits.pending.values())
        self._state.offsets_of(commits.group_id).put_all_pending(producer_id, commits.pending, first_offset, size_bytes)
        self._groups_in_transactions.setdefault(producer_id, set()).add(commits.group_id)

    def replay_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        """Apply the marker of a producer's transaction."""
        for group_id in self._groups_in_transactions.pop(producer_id, ()):
            for _ in self._end_transaction(producer_id, group_id, committed=committed):
                pass

    def end_transaction(self, producer_id: int, *, committed: bool) -> list[Action]:
        """The marker of a producer's transaction is in the log: apply its pending offsets, or drop them."""
        actions: list[Action] = []
        for group_id in self._groups_in_transactions.pop(producer_id, ()):
            offsets = self._state.offsets.get(group_id)
            steps = self._end_transaction(producer_id, group_id, committed=committed)
            if offsets is None or offsets.pending_count(producer_id) <= _AT_ONCE_MAX:
                for _ in steps:
                    pass
            else:
                self._state.begin_change(group_id)
                actions.append(Work(self._changed_in_steps(group_id, steps)))
        return actions

    def _end_transaction(self, producer_id: int, group_id: str, *, committed: bool) -> ActionSteps:
        offsets = self._state.offsets.get(group_id)
        if offsets is not None:
            for _ in offsets.end_transaction(producer_id, committed=committed):
                yield []
            if not offsets:
                self._state.drop_offsets(group_id)

    def _changed_in_steps(self, group_id: str, steps: ActionSteps) -> ActionSteps:
        yield from steps
        self._state.end_change(group_id)

    def _forget(self, group_id: str, partitions: Iterable[tuple[str, int]], *, keep_group: bool = False) -> None:
        offsets = self._state.offsets.get(group_id)
        if offsets is None:
            return
        for topic, partition in partitions:
            offsets.remove(topic, partition)
        if not offsets and not keep_group:
            self._state.drop_offsets(group_id)

    # Commit

    def commit(self, request: OffsetCommitRequest, client: Client, now: Now) -> Steps[Prepared]:
        api_version = client.api_version
        group_id = request.group_id
        expire_ms = NO_EXPIRATION
        if request.retention_time_ms >= 0:
            # A time that doesn't fit into a record is replaced by the latest one that does.
            expire_ms = min(now.wall_ms + request.retention_time_ms, _TIMESTAMP_MS_MAX)
        error = self._check_commit(request, api_version)
        commits = Commits(self._state, group_id, now, expire_timestamp_ms=expire_ms)
        response = OffsetCommitResponse()
        for topic in request.topics:
            name, unknown = self._named(topic, api_version)
            partitions = yield from self.prepare(
                name, topic.partitions, OffsetCommitResponsePartition, error, commits, unknown
            )
            answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            response.topics.append(answer)
            yield 0

        def carry_out(now: Now, exchange: int) -> list[Action]:
            if not commits.rows:
                return [Answer(exchange, response)]
            error = self._check_commit(request, api_version) or commits.reserve()
            if error:
                fail_commit(response, error)
                return [Answer(exchange, response)]

            def finish(error: ErrorCode, now: Now) -> list[Action]:
                commits.release()
                if error:
                    fail_commit(response, write_error(error))
                else:
                    self._state.offsets_of(group_id).put_all(commits.rows)
                return [Answer(exchange, response)]

            group = self._state.groups.get(group_id)
            actions = [] if group is None else group.on_offset_commit(request.member_id, now)
            actions.append(self._state.appends.start(commits.records, finish))
            return actions

        return carry_out

    def _named(self, topic: OffsetCommitRequestTopic, api_version: int) -> tuple[str | None, ErrorCode]:
        """The name of the topic, if there is one, and the error for partitions that it does not have."""
        if api_version < _TOPIC_IDS_FROM:
            return topic.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        name = self._state.image.topic_name(topic.topic_id)
        return name, ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _check_commit(self, request: OffsetCommitRequest, api_version: int) -> ErrorCode:
        if error := self._state.check_unchanging(request.group_id):
            return error
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
        name: str | None,
        partitions: Sequence[OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition],
        answer: type[AnswerT],
        group_error: ErrorCode,
        commits: Commits,
        unknown: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ) -> Steps[list[AnswerT]]:
        """The answers for one topic if all goes well; its offsets are added to those to commit."""
        image = self._state.image
        count, topic_id = 0, ZERO_UUID
        if name is not None:
            count, topic_id = image.partition_count(name), commits.add_topic(name) or ZERO_UUID
        metadata_bytes_max = self._state.config.offset_metadata_max_bytes
        answers = []
        for number, partition in enumerate(partitions, 1):
            index, metadata = partition.partition_index, partition.committed_metadata or ""
            error = group_error
            if name is None or not 0 <= index < count:
                error = unknown
            elif not error and len(metadata) > metadata_bytes_max:
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if not error and name is not None:
                offset = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata,
                    commits.commit_timestamp_ms,
                    commits.expire_timestamp_ms,
                    topic_id,
                )
                if not commits.add(name, index, offset):
                    error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            answers.append(answer(partition_index=index, error_code=error))
            if not number % _STEP_PARTITIONS:
                yield 0
        return answers

    # Fetch

    def fetch(self, group: OffsetFetchRequestGroup, *, require_stable: bool) -> Steps[OffsetFetchResponseGroup]:
        """The committed offsets of these topics, or of all topics if none are named."""
        known = self._state.groups.get(group.group_id)
        error = self._state.check_unchanging(group.group_id)
        if known is not None and not error:
            error = known.check_offset_fetch(group.member_id, group.member_epoch)
        if error:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
        offsets = self._state.offsets.get(group.group_id) or GroupOffsets()
        if group.topics is None:
            topics = yield from self._all_topics(offsets, require_stable)
        else:
            topics = yield from self._named_topics(group.topics, offsets, require_stable)
        if error := self._state.check_unchanging(group.group_id):
            # Some of these offsets may be older than others.
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)

    def _all_topics(self, offsets: GroupOffsets, require_stable: bool) -> Steps[list[OffsetFetchResponseTopics]]:
        topics = []
        for name in offsets.topics:
            topic = OffsetFetchResponseTopics(name=name, topic_id=self._state.image.topic_id(name) or ZERO_UUID)
            for index, offset in tuple(offsets.of_topic(name).items()):
                if self._has_topic(name, offset):
                    topic.partitions.append(self._fetched(offsets, name, index, require_stable))
                yield 0
            if topic.partitions:
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
                    answer.partitions.append(self._fetched(offsets, name, index, require_stable))
        return list(topics.values())

    def _fetched(
        self, offsets: GroupOffsets, topic: str, partition: int, require_stable: bool
    ) -> OffsetFetchResponsePartitions:
        if require_stable and offsets.is_pending(topic, partition):
            return _no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        offset = offsets.get(topic, partition)
        if offset is None or not self._has_topic(topic, offset):
            return _no_offset(partition, ErrorCode.NONE)
        return OffsetFetchResponsePartitions(
            partition_index=partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
        )

    # Delete

    def delete(self, request: OffsetDeleteRequest) -> Steps[Prepared]:
        group_id = request.group_id
        error = self._check_delete(group_id)
        deleted: list[tuple[str, int]] = []
        response = OffsetDeleteResponse(error_code=error)
        for topic in () if error else request.topics:
            response.topics.append((yield from self._delete_topic(topic, group_id, deleted)))
            yield 0
        records = []
        for number, (name, partition) in enumerate(deleted, 1):
            records.append(offset_tombstone(group_id, name, partition))
            if not number % _STEP_PARTITIONS:
                yield 0
        batches = []
        for batch in split_batches(records):
            batches.append(batch)
            yield 0
        topics = frozenset(name for name, _ in deleted)

        def carry_out(now: Now, exchange: int) -> list[Action]:
            if not deleted:
                return [Answer(exchange, response)]
            error = self._check_delete(group_id)
            group = self._state.groups.get(group_id)
            if group is not None and group.is_subscribed_to_any(topics):
                # A member that came while this was prepared. When the client asks again, it hears about each topic.
                error = error or ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if error:
                return [Answer(exchange, OffsetDeleteResponse(error_code=error))]

            def finish(error: ErrorCode, now: Now) -> list[Action]:
                if error:
                    return [Answer(exchange, OffsetDeleteResponse(error_code=coordinator_error(error)))]
                # The group itself stays until the next check for expired offsets, even if it has none left.
                self._forget(group_id, deleted, keep_group=True)
                return [Answer(exchange, response)]

            return self._state.appends.start_batches(batches, finish)

        return carry_out

    def _check_delete(self, group_id: str) -> ErrorCode:
        if not self._state.is_known(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if error := self._state.check_unchanging(group_id):
            return error
        group = self._state.groups.get(group_id)
        return ErrorCode.NONE if group is None else group.check_offset_delete()

    def _delete_topic(
        self, topic: OffsetDeleteRequestTopic, group_id: str, deleted: list[tuple[str, int]]
    ) -> Steps[OffsetDeleteResponseTopic]:
        group = self._state.groups.get(group_id)
        offsets = self._state.offsets.get(group_id) or GroupOffsets()
        count = self._state.image.partition_count(topic.name)
        is_subscribed = group is not None and group.is_subscribed_to(topic.name)
        answers = []
        for number, partition in enumerate(topic.partitions, 1):
            index = partition.partition_index
            error = ErrorCode.NONE
            if not 0 <= index < count:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif is_subscribed:
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif offsets.get(topic.name, index) is not None:
                deleted.append((topic.name, index))
            answers.append(OffsetDeleteResponsePartition(partition_index=index, error_code=error))
            if not number % _STEP_PARTITIONS:
                yield 0
        return OffsetDeleteResponseTopic(name=topic.name, partitions=answers)

    # What removes offsets without a request

    def on_topics_deleted(self, old: GroupImage | None = None) -> Work:
        """Delete the offsets of topics that no longer exist: those gone since an older image, or all in the records."""
        return Work(self._remove_of_deleted_topics(self._state.image, old))

    def _remove_of_deleted_topics(self, image: GroupImage, old: GroupImage | None) -> ActionSteps:
        is_gone: dict[str, bool] = {}
        for group_id, offsets in tuple(self._state.offsets.items()):
            for topic in offsets.topics:
                if topic not in is_gone:
                    is_gone[topic] = old is None or old.topic_id(topic) != image.topic_id(topic)
                if is_gone[topic]:
                    yield from self._remove(group_id, self._of_former_topic(topic, offsets))
            yield from self._remove(group_id, self._pending_of_former_topics(offsets))
            yield []

    def _of_former_topic(self, topic: str, offsets: GroupOffsets) -> Found:
        """The offsets under a topic name that belong to no topic, or to a deleted predecessor of the current one."""
        for partition, offset in tuple(offsets.of_topic(topic).items()):
            yield None if self._has_topic(topic, offset) else (topic, partition, offset)

    def _pending_of_former_topics(self, offsets: GroupOffsets) -> Found:
        for topic, partition, offset in offsets.pending():
            yield None if self._has_topic(topic, offset) else (topic, partition, offset)

    def _has_topic(self, topic: str, offset: CommittedOffset) -> bool:
        """Whether the offset belongs to the topic that has this name now, which old records do not say."""
        topic_id = self._state.image.topic_id(topic)
        return topic_id is not None and offset.topic_id in (ZERO_UUID, topic_id)

    def expire(self, now: Now) -> Work:
        """Delete offsets that have been unused for offsets.retention.minutes, and groups that have none left."""
        return Work(self._expire(now))

    def _expire(self, now: Now) -> ActionSteps:
        for group_id, offsets in tuple(self._state.offsets.items()):
            if offsets:
                yield from self._remove(group_id, self._expired(group_id, offsets, now))
            elif self._state.offsets.get(group_id) is offsets and self._state.may_remove_offsets(group_id):
                self._state.drop_offsets(group_id)
            yield []
        for group_id, group in tuple(self._state.groups.items()):
            yield self._remove_unused_group(group_id, group)

    def _remove_unused_group(self, group_id: str, group: Group) -> list[Action]:
        is_unused = (
            self._state.groups.get(group_id) is group
            and group_id not in self._state.offsets
            and self._state.may_remove_offsets(group_id)
            and group.is_empty
            and not group.check_delete()
        )
        return self._remove_group(group_id) if is_unused else []

    def _expired(self, group_id: str, offsets: GroupOffsets, now: Now) -> Found:
        group = self._state.groups.get(group_id)
        retention_ms = self._state.config.offsets_retention_ms
        for topic in offsets.topics:
            is_subscribed = group is not None and group.is_subscribed_to(topic)
            for partition, offset in tuple(offsets.of_topic(topic).items()):
                if not self._has_topic(topic, offset):
                    # Its topic was deleted while the group was being changed.
                    yield topic, partition, offset
                    continue
                from_ms = offset.commit_timestamp_ms if group is None else group.expires_from_ms(offset)
                if is_subscribed or from_ms is None or offsets.is_pending(topic, partition):
                    yield None
                    continue
                due_ms = offset.expire_timestamp_ms
                if due_ms == NO_EXPIRATION:
                    due_ms = from_ms + retention_ms
                yield (topic, partition, offset) if now.wall_ms >= due_ms else None

    def _remove(self, group_id: str, found: Found) -> ActionSteps:
        """Delete what is found, unless it has changed meanwhile; in several batches if it is much."""
        size = _batch_size(group_id)
        removing: list[FoundOffset] = []
        for number, row in enumerate(found, 1):
            if row is not None:
                removing.append(row)
            if len(removing) == size:
                yield self._remove_batch(group_id, removing)
                removing = []
            elif not number % _STEP_PARTITIONS:
                yield []
        if removing:
            yield self._remove_batch(group_id, removing)

    def _remove_batch(self, group_id: str, rows: list[FoundOffset]) -> list[Action]:
        offsets = self._state.offsets.get(group_id)
        if offsets is None or not self._state.may_remove_offsets(group_id):
            # The next check finds them again.
            return []
        names = [(topic, partition) for topic, partition, offset in rows if offsets.holds(topic, partition, offset)]
        if not names:
            return []

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            # After an error they stay, and the next check finds them again.
            if not error:
                self._forget(group_id, names)
            return []

        return [self._write_tombstones(group_id, names, (), finish)]

    # Deleting a group

    def delete_all(self, group_id: str, last: Sequence[GroupRecord], outcome: Outcome) -> Work:
        """Delete all offsets of a group, which must have some, then write the `last` records.

        Nobody reads or changes the group meanwhile. What a write deletes from the log is gone from memory as well once
        it is committed, so a write that fails leaves the same in both. `outcome` gets the first error of all writes.
        """
        self._state.begin_change(group_id)
        offsets = self._state.offsets[group_id]
        # What a transaction would commit later belongs to the group that is deleted now, too. It may move to the
        # committed ones at any time, so it is listed first.
        names = itertools.chain(offsets.pending_partitions(), offsets.partitions())
        return Work(self._delete_all(group_id, names, last, outcome))

    def _delete_all(
        self, group_id: str, names: Iterable[tuple[str, int]], last: Sequence[GroupRecord], outcome: Outcome
    ) -> ActionSteps:
        first_error = ErrorCode.NONE

        def written(names: Sequence[tuple[str, int]], error: ErrorCode) -> None:
            nonlocal first_error
            first_error = first_error or error
            if not error:
                self._forget(group_id, names, keep_group=True)

        def finish_last(error: ErrorCode, now: Now) -> list[Action]:
            written(batch, error)
            self._state.end_change(group_id)
            return outcome(first_error, now)

        batch: Sequence[tuple[str, int]] = ()
        for following in _batches(names, _batch_size(group_id)):
            if batch:
                yield [self._write_tombstones(group_id, batch, (), partial(_then, written, batch))]
            batch = following
        yield [self._write_tombstones(group_id, batch, last, finish_last)]

    def _write_tombstones(
        self, group_id: str, names: Sequence[tuple[str, int]], last: Sequence[GroupRecord], outcome: Outcome
    ) -> Action:
        return self._state.appends.start([*(offset_tombstone(group_id, *name) for name in names), *last], outcome)

    def _remove_group(self, group_id: str) -> list[Action]:
        group = self._state.groups[group_id]
        records: list[GroupRecord] = group.tombstones()

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            if error or self._state.groups.get(group_id) is not group or not group.is_empty:
                return []
            self._state.drop_group(group_id)
            return group.on_deleted()

        return self._state.appends.start_all(records, finish)


def _batch_size(group_id: str) -> int:
    """How many offsets of a group are deleted by one write."""
    record_bytes_max = len(group_id.encode()) + _TOPIC_BYTES_MAX + RECORD_OVERHEAD_BYTES
    return max(1, min(_BATCH_PARTITIONS_MAX, _BATCH_BYTES_MAX // record_bytes_max))


def _batches(names: Iterable[tuple[str, int]], size: int) -> Iterator[list[tuple[str, int]]]:
    rest = iter(names)
    while batch := list(itertools.islice(rest, size)):
        yield batch


def _then(
    written: Callable[[Sequence[tuple[str, int]], ErrorCode], None],
    names: Sequence[tuple[str, int]],
    error: ErrorCode,
    now: Now,
) -> list[Action]:
    written(names, error)
    return []


def _no_offset(partition: int, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(partition_index=partition, committed_offset=_NO_OFFSET, error_code=error)


def fail_commit(response: OffsetCommitResponse | TxnOffsetCommitResponse, error: ErrorCode) -> None:
    """Set the error on every partition that would have been committed."""
    for topic in response.topics:
        for partition in topic.partitions:
            partition.error_code = partition.error_code or error


def write_error(error: ErrorCode) -> ErrorCode:
    """The error for a commit whose write failed with this one."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error in _TOO_LARGE else coordinator_error(error)
