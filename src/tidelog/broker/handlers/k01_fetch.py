"""Fetch, versions 4 to 18.

4 brings the isolation level, 5 the log start offset, 7 fetch sessions (KIP-227), 9 the client's leader epoch (KIP-320),
10 zstd (KIP-110). 11 brings the consumer's rack and the preferred read replica, and lets consumers read from followers
(KIP-392). 12 is flexible and brings the last fetched epoch with DivergingEpoch (KIP-595) and the current leader. 13
names topics by id (KIP-516).
14 is for tiered storage. 15 moves the replica id beside the replica's epoch (KIP-903). 16 adds leaders' addresses
(KIP-951). 17 and 18 add fields for controllers, which are read over.

Followers fetch in sessions of their own (`follower_fetches`), from version 15 on; before, they could not say which
process of their broker they are, and are refused as replicas that the leader doesn't know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TypeAlias

from tidelog.broker.delayed_fetch import FetchParams
from tidelog.broker.fetch_session import INVALID_SESSION_ID, FetchExchange, FetchKey, PartitionFetch
from tidelog.broker.follower_fetches import (
    FollowerFetch,
    FollowerFetches,
    FollowerKey,
    FollowerRow,
    FollowerSession,
    follower_key,
)
from tidelog.broker.partition import PartitionRead, cut_before_zstd
from tidelog.broker.registry import handles
from tidelog.broker.replica_manager import LargeRead, ReplicaManager
from tidelog.broker.request_context import ClientSession, RequestContext
from tidelog.common.steps import Steps, run_through, run_with_pauses
from tidelog.log import NotInMemoryError
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)

_ZSTD_FROM = 10
_RACK_FROM = 11
_CURRENT_LEADER_FROM = 12
_TOPIC_IDS_FROM = 13
_REPLICA_STATE_FROM = 15
_NODE_ENDPOINTS_FROM = 16

# A fetch of more partitions than these is read and answered in steps.
_PARTITIONS_AT_ONCE_MAX = 100

# What steps end with: the response, or something to wait for, which ends with further steps.
FetchResult: TypeAlias = "FetchResponse | Coroutine[None, None, Steps[FetchResult]]"

# Most partitions say nothing here; sharing one object saves making it a partition.
_NO_DIVERGENCE = EpochEndOffset()
_NO_LEADER = LeaderIdAndEpoch()
_NO_SNAPSHOT = SnapshotId()
_NOT_THERE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


@handles(FETCH, "4-18")
def handle_fetch(
    request: FetchRequest, context: RequestContext
) -> FetchResponse | Coroutine[None, None, FetchResponse] | Steps[FetchResult]:
    replicas = context.services.replicas
    version = context.version
    params = _params(request, version, replicas.fetch_max_bytes)
    if params.replica_id >= 0:
        return _answer_follower(request, context, params)
    if _names_many(request):
        return _open_in_steps(request, replicas, params, context)
    try:
        exchange = _open(request, replicas, params, version, _wanted(request.topics))
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    if len(exchange.fetches) > _PARTITIONS_AT_ONCE_MAX:
        return _read_in_steps(replicas, LargeRead(params, exchange.fetches), exchange, context)
    try:
        reads = replicas.read(params, exchange.fetches, in_memory=True)
    except NotInMemoryError:
        return _answer_patiently(replicas, params, exchange, context)
    if replicas.must_wait(params, exchange.fetches, reads):
        return _answer_later(replicas, params, exchange, reads, context)
    return _answer(replicas, exchange, reads, context)


def _names_many(request: FetchRequest) -> bool:
    count = len(request.topics)
    for topic in request.topics:
        count += len(topic.partitions)
    return count > _PARTITIONS_AT_ONCE_MAX


def _open(
    request: FetchRequest, replicas: ReplicaManager, params: FetchParams, version: int, wanted: list[PartitionFetch]
) -> FetchExchange:
    return replicas.fetch_sessions.open(
        request.session_id,
        request.session_epoch,
        wanted,
        _forgotten(request, version),
        uses_topic_ids=version >= _TOPIC_IDS_FROM,
    )


# A fetch of many partitions: the same, with pauses. Between them others append and read, as they may between the reads
# of two fetches; the connection itself has to wait for its response.


def _open_in_steps(
    request: FetchRequest, replicas: ReplicaManager, params: FetchParams, context: RequestContext
) -> Steps[FetchResult]:
    wanted: list[PartitionFetch] = []
    for topic in request.topics:
        for start in range(0, len(topic.partitions), _PARTITIONS_AT_ONCE_MAX):
            part = topic.partitions[start : start + _PARTITIONS_AT_ONCE_MAX]
            wanted += _wanted((FetchTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=part),))
            yield 0
    try:
        exchange = _open(request, replicas, params, context.version, wanted)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    return (yield from _read_in_steps(replicas, LargeRead(params, exchange.fetches), exchange, context))


def _read_in_steps(
    replicas: ReplicaManager,
    read: LargeRead,
    exchange: FetchExchange,
    context: RequestContext,
    *,
    may_wait: bool = True,
) -> Steps[FetchResult]:
    """The response, or what to await before going on with further steps."""
    try:
        yield from replicas.read_in_steps(read)
    except NotInMemoryError as cold:
        return _bring_in(replicas, read, exchange, context, cold, may_wait=may_wait)
    if may_wait and read.must_wait:
        wait = yield from replicas.delay_in_steps(read)
        return _read_again_after(wait, replicas, read, exchange, context)
    response = FetchResponse(session_id=exchange.session_id, responses=[], node_endpoints=[])
    leader_ids: set[int] = set()
    for start in range(0, len(read.reads), _PARTITIONS_AT_ONCE_MAX):
        part = slice(start, start + _PARTITIONS_AT_ONCE_MAX)
        leader_ids |= _add_partitions(
            response, replicas, exchange, read.fetches[part], read.reads[part], context.version
        )
        yield 0
    _add_endpoints(response, replicas, leader_ids, context)
    return response


async def _bring_in(
    replicas: ReplicaManager,
    read: LargeRead,
    exchange: FetchExchange,
    context: RequestContext,
    cold: NotInMemoryError,
    *,
    may_wait: bool,
) -> Steps[FetchResult]:
    await replicas.bring_in(read, cold)
    return _read_in_steps(replicas, read, exchange, context, may_wait=may_wait)


async def _read_again_after(
    wait: Callable[[], Coroutine[None, None, None]],
    replicas: ReplicaManager,
    read: LargeRead,
    exchange: FetchExchange,
    context: RequestContext,
) -> Steps[FetchResult]:
    await wait()
    return _read_in_steps(replicas, LargeRead(read.params, read.fetches), exchange, context, may_wait=False)


# Followers


def _answer_follower(
    request: FetchRequest, context: RequestContext, params: FetchParams
) -> FetchResponse | Coroutine[None, None, FetchResponse]:
    replicas = context.services.replicas
    if context.version < _REPLICA_STATE_FROM:
        refused = PartitionRead(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return _follower_response(INVALID_SESSION_ID, [(fetch, refused) for fetch in _wanted(request.topics)])
    fetches = replicas.follower_fetches
    try:
        session = fetches.open(params.replica_id, params.replica_epoch, request.session_id, request.session_epoch)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    # What the follower sends next tells about other partitions, and should not wait for this.
    session.is_hurried = False
    context.session.on_next_request = session.hurry
    if _names_many(request):
        return _answer_follower_later(replicas, session, params, context.session, request)
    _name_all(fetches, session, request.topics)
    fetches.forget_fetches(session, _forgotten_ids(request))
    if len(session.due) > _PARTITIONS_AT_ONCE_MAX:
        return _answer_follower_later(replicas, session, params, context.session)
    try:
        rows = run_through(fetches.collect(session, params.max_bytes, may_wait=params.max_wait_ms > 0))
    except NotInMemoryError:
        return _answer_follower_later(replicas, session, params, context.session)
    if rows or params.max_wait_ms <= 0:
        context.session.on_next_request = None
        return _follower_response(session.session_id, rows)
    return _answer_follower_after_wait(replicas, session, params, context.session)


async def _answer_follower_later(
    replicas: ReplicaManager,
    session: FollowerSession,
    params: FetchParams,
    client: ClientSession,
    request: FetchRequest | None = None,
) -> FetchResponse:
    """The answer to a request that names many partitions or reads from disk."""
    fetches = replicas.follower_fetches
    if request is not None:
        for topic in request.topics:
            for start in range(0, len(topic.partitions), _PARTITIONS_AT_ONCE_MAX):
                part = topic.partitions[start : start + _PARTITIONS_AT_ONCE_MAX]
                _name_all(fetches, session, (FetchTopic(topic_id=topic.topic_id, partitions=part),))
                await asyncio.sleep(0)
        fetches.forget_fetches(session, _forgotten_ids(request))
    may_wait = params.max_wait_ms > 0
    rows = await _collect_patiently(replicas, session, params, may_wait=may_wait)
    if not rows and may_wait:
        return await _answer_follower_after_wait(replicas, session, params, client)
    client.on_next_request = None
    return _follower_response(session.session_id, rows)


async def _answer_follower_after_wait(
    replicas: ReplicaManager, session: FollowerSession, params: FetchParams, client: ClientSession
) -> FetchResponse:
    """The answer to a request that found nothing to tell."""
    await session.wait(params.max_wait_ms)
    rows = await _collect_patiently(replicas, session, params, may_wait=False)
    client.on_next_request = None
    return _follower_response(session.session_id, rows)


async def _collect_patiently(
    replicas: ReplicaManager, session: FollowerSession, params: FetchParams, *, may_wait: bool
) -> list[FollowerRow]:
    while True:
        try:
            return await run_with_pauses(
                replicas.follower_fetches.collect(session, params.max_bytes, may_wait=may_wait)
            )
        except NotInMemoryError as cold:
            await replicas.bring_in_for(cold)


def _name_all(fetches: FollowerFetches, session: FollowerSession, topics: Sequence[FetchTopic]) -> None:
    for topic in topics:
        for partition in topic.partitions:
            fetches.name(
                session,
                FollowerFetch(
                    "",
                    topic.topic_id,
                    partition.partition,
                    partition.fetch_offset,
                    partition.partition_max_bytes,
                    partition.current_leader_epoch,
                    partition.last_fetched_epoch,
                    partition.log_start_offset,
                ),
            )


def _forgotten_ids(request: FetchRequest) -> list[FollowerKey]:
    return [
        follower_key(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions
    ]


def _follower_response(session_id: int, rows: Sequence[tuple[PartitionFetch, PartitionRead]]) -> FetchResponse:
    response = FetchResponse(session_id=session_id, responses=[], node_endpoints=[])
    topic = None
    for fetch, read in rows:
        if topic is None or topic.topic_id != fetch.topic_id or topic.topic != fetch.topic:
            topic = FetchableTopicResponse(topic=fetch.topic, topic_id=fetch.topic_id, partitions=[])
            response.responses.append(topic)
        topic.partitions.append(_partition_data(fetch, read))
    return response


def _params(request: FetchRequest, version: int, fetch_max_bytes: int) -> FetchParams:
    replica_id, replica_epoch = request.replica_id, -1
    if version >= _REPLICA_STATE_FROM:
        replica_id, replica_epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    max_bytes = min(request.max_bytes, fetch_max_bytes)
    return FetchParams(
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        read_committed=request.isolation_level != 0,
        replica_id=replica_id,
        replica_epoch=replica_epoch,
        may_read_followers=replica_id < 0 and version >= _RACK_FROM,
        client_rack=request.rack_id if version >= _RACK_FROM else "",
    )


def _wanted(topics: Sequence[FetchTopic]) -> list[PartitionFetch]:
    return [
        PartitionFetch(
            topic.topic,
            topic.topic_id,
            partition.partition,
            partition.fetch_offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch,
            partition.last_fetched_epoch,
            partition.log_start_offset,
        )
        for topic in topics
        for partition in topic.partitions
    ]


def _forgotten(request: FetchRequest, version: int) -> list[FetchKey]:
    return [
        (topic.topic_id if version >= _TOPIC_IDS_FROM else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


async def _answer_patiently(
    replicas: ReplicaManager, params: FetchParams, exchange: FetchExchange, context: RequestContext
) -> FetchResponse:
    reads = await replicas.read_patiently(params, exchange.fetches)
    if replicas.must_wait(params, exchange.fetches, reads):
        return await _answer_later(replicas, params, exchange, reads, context)
    return _answer(replicas, exchange, reads, context)


async def _answer_later(
    replicas: ReplicaManager,
    params: FetchParams,
    exchange: FetchExchange,
    reads: list[PartitionRead],
    context: RequestContext,
) -> FetchResponse:
    await replicas.wait_for_data(params, exchange.fetches, reads)
    return _answer(replicas, exchange, await replicas.read_patiently(params, exchange.fetches), context)


def _answer(
    replicas: ReplicaManager, exchange: FetchExchange, reads: Sequence[PartitionRead], context: RequestContext
) -> FetchResponse:
    response = FetchResponse(session_id=exchange.session_id, responses=[], node_endpoints=[])
    leader_ids = _add_partitions(response, replicas, exchange, exchange.fetches, reads, context.version)
    _add_endpoints(response, replicas, leader_ids, context)
    return response


def _add_partitions(
    response: FetchResponse,
    replicas: ReplicaManager,
    exchange: FetchExchange,
    fetches: Collection[PartitionFetch],
    reads: Sequence[PartitionRead],
    version: int,
) -> set[int]:
    """Put what was read into the response; gives the leaders that it names."""
    leader_ids: set[int] = set()
    topic = response.responses[-1] if response.responses else None
    for fetch, read in zip(fetches, reads, strict=True):
        if version < _ZSTD_FROM and read.size_bytes:
            cut_before_zstd(read)
        if exchange.session is not None and not _is_told(exchange, fetch, read):
            continue
        if topic is None or topic.topic_id != fetch.topic_id or topic.topic != fetch.topic:
            topic = FetchableTopicResponse(topic=fetch.topic, topic_id=fetch.topic_id, partitions=[])
            response.responses.append(topic)
        data = _partition_data(fetch, read)
        if version >= _CURRENT_LEADER_FROM and read.error in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        ):
            _name_leader(replicas, fetch, data, leader_ids)
        topic.partitions.append(data)
    return leader_ids


def _add_endpoints(
    response: FetchResponse, replicas: ReplicaManager, leader_ids: set[int], context: RequestContext
) -> None:
    if leader_ids and context.version >= _NODE_ENDPOINTS_FROM:
        response.node_endpoints = [
            NodeEndpoint(node_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for broker, endpoint in replicas.endpoints(leader_ids, context.listener_name)
        ]


def _is_told(exchange: FetchExchange, fetch: PartitionFetch, read: PartitionRead) -> bool:
    """Whether the response names the partition; keeps the session's memory of what it says."""
    session = exchange.session
    if session is not None and read.size_bytes:
        session.move_to_end(fetch.key)
    told = fetch.must_be_told(
        read.high_watermark,
        read.log_start_offset,
        has_news=read.size_bytes > 0 or read.diverging_epoch is not None or read.preferred_read_replica >= 0,
        is_error=read.error != ErrorCode.NONE,
    )
    return told or not exchange.is_incremental


def _partition_data(fetch: PartitionFetch, read: PartitionRead) -> PartitionData:
    aborted = read.aborted_transactions
    return PartitionData(
        partition_index=fetch.partition,
        error_code=read.error,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        diverging_epoch=_NO_DIVERGENCE
        if read.diverging_epoch is None
        else EpochEndOffset(epoch=read.diverging_epoch[0], end_offset=read.diverging_epoch[1]),
        current_leader=_NO_LEADER,
        snapshot_id=_NO_SNAPSHOT,
        # Null means that aborted transactions were not asked for; a partition that is not there has none, as in Kafka.
        aborted_transactions=(None if read.error not in _NOT_THERE else [])
        if aborted is None
        else [AbortedTransaction(producer_id=producer_id, first_offset=offset) for producer_id, offset in aborted],
        # Clients read null records as a broken response; nothing to give is an empty field.
        preferred_read_replica=read.preferred_read_replica,
        records=read.records,
    )


def _name_leader(replicas: ReplicaManager, fetch: PartitionFetch, data: PartitionData, leader_ids: set[int]) -> None:
    state = replicas.leader_state(fetch.topic, fetch.topic_id, fetch.partition)
    if state is not None:
        data.current_leader = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
        leader_ids.add(state.leader)
