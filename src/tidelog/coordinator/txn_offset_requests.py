"""Commits offsets in a transaction: written immediately, effective when its marker says so (KIP-98, KIP-447).

What always holds: one request is one batch of the producer's transaction; until the marker is in the log, the offsets
are pending and invisible; a member that has lost its place in the group can't commit through its transaction either.
The caller has confirmed that the transaction may write here. As in `offset_requests`, a request is prepared in steps,
and carried out at once after the member was checked again.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.common.steps import Steps
from tidelog.coordinator.actions import Action, Answer, AppendInTransaction, Now, Prepared
from tidelog.coordinator.offset_requests import Commits, OffsetRequests, fail_commit, write_error
from tidelog.coordinator.shard_state import ShardState
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)


class _Waiting(NamedTuple):
    """A write that is not committed yet."""

    producer_id: int
    commits: Commits
    response: TxnOffsetCommitResponse
    exchange: int


class TxnOffsetRequests:
    """The requests about offsets in transactions, in one shard."""

    def __init__(self, state: ShardState, offsets: OffsetRequests) -> None:
        self._state = state
        self._offsets = offsets
        self._waiting: dict[int, _Waiting] = {}
        self._next_token = 0

    def commit(self, request: TxnOffsetCommitRequest, permit: object, now: Now) -> Steps[Prepared]:
        error = self._check(request)
        commits = Commits(self._state, request.group_id, now, is_transactional=True)
        response = TxnOffsetCommitResponse()
        for topic in request.topics:
            partitions = yield from self._offsets.prepare(
                topic.name, topic.partitions, TxnOffsetCommitResponsePartition, error, commits
            )
            response.topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
            yield 0

        def carry_out(now: Now, exchange: int) -> list[Action]:
            if not commits.rows:
                return [Answer(exchange, response)]
            error = self._check(request) or commits.reserve()
            if error:
                fail_commit(response, error)
                return [Answer(exchange, response)]
            group = self._state.groups.get(request.group_id)
            actions = [] if group is None else group.on_offset_commit(request.member_id, now)
            token = self._next_token
            self._next_token += 1
            self._waiting[token] = _Waiting(request.producer_id, commits, response, exchange)
            records = tuple(commits.records)
            actions.append(AppendInTransaction(records, request.producer_id, request.producer_epoch, permit, token))
            return actions

        return carry_out

    def _check(self, request: TxnOffsetCommitRequest) -> ErrorCode:
        if error := self._state.check_unchanging(request.group_id):
            return error
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
        producer_id, commits, response, exchange = self._waiting.pop(token)
        commits.release()
        if error:
            fail_commit(response, write_error(error))
        else:
            self._offsets.put_pending(producer_id, commits, first_offset)
        return [Answer(exchange, response)]
