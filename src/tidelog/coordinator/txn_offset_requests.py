"""Commits offsets in a transaction: written immediately, effective when its marker says so (KIP-98, KIP-447).

What always holds: one request is one batch of the producer's transaction; until the marker is in the log, the offsets
are pending and invisible; a member that has lost its place in the group can't commit through its transaction either.
The caller has confirmed that the transaction may write here.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.coordinator.actions import Action, Answer, AppendInTransaction, Client, Now
from tidelog.coordinator.offset_requests import Commits, OffsetRequests, fail_commit
from tidelog.coordinator.shard_state import ShardState
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

# Topics are named, as in every version of OffsetCommit up to this one.
_BY_NAME = Client("", "", 9)


class _Waiting(NamedTuple):
    """A write that is not committed yet."""

    request: TxnOffsetCommitRequest
    commits: Commits
    response: OffsetCommitResponse
    exchange: int


class TxnOffsetRequests:
    """The requests about offsets in transactions, in one shard."""

    def __init__(self, state: ShardState, offsets: OffsetRequests) -> None:
        self._state = state
        self._offsets = offsets
        self._waiting: dict[int, _Waiting] = {}
        self._next_token = 0

    def commit(self, request: TxnOffsetCommitRequest, permit: object, now: Now, exchange: int) -> list[Action]:
        error = self._check(request)
        plain = _as_plain(request)
        commits = Commits(self._state, request.group_id, is_transactional=True)
        response = OffsetCommitResponse(
            topics=[self._offsets.prepare(topic, plain, _BY_NAME, now, error, commits) for topic in plain.topics]
        )
        if not commits.rows:
            return [Answer(exchange, _as_transactional(response))]
        group = self._state.groups.get(request.group_id)
        actions = [] if group is None else group.on_offset_commit(request.member_id, now)
        records = tuple(offset.record(request.group_id, topic, partition) for topic, partition, offset in commits.rows)
        commits.reserve()
        token = self._next_token
        self._next_token += 1
        self._waiting[token] = _Waiting(request, commits, response, exchange)
        actions.append(AppendInTransaction(records, request.producer_id, request.producer_epoch, permit, token))
        return actions

    def _check(self, request: TxnOffsetCommitRequest) -> ErrorCode:
        group = self._state.groups.get(request.group_id)
        if group is not None:
            return group.check_txn_offset_commit(request.member_id, request.group_instance_id, request.generation_id)
        if request.generation_id < 0:
            # A producer may commit for a group without members as long as it names no generation.
            return ErrorCode.NONE
        # A group that only has offsets exists, but nobody is a member of it.
        is_known = request.group_id in self._state.offsets
        return ErrorCode.UNKNOWN_MEMBER_ID if is_known else ErrorCode.ILLEGAL_GENERATION

    def finish(self, token: int, error: ErrorCode, first_offset: int) -> list[Action]:
        request, commits, response, exchange = self._waiting.pop(token)
        commits.release()
        if error:
            fail_commit(response, error)
        for index, (topic, partition, offset) in enumerate(() if error else commits.rows):
            written = offset._replace(record_offset=first_offset + index)
            self._offsets.put_pending(request.group_id, request.producer_id, topic, partition, written)
        return [Answer(exchange, _as_transactional(response))]


def _as_plain(request: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        committed_metadata=partition.committed_metadata,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _as_transactional(response: OffsetCommitResponse) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=partition.error_code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )
