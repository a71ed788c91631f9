"""Fetch, versions 4 to 18.

4 brings the isolation level, 5 the log start offset, 7 fetch sessions (KIP-227), 9 the client's leader epoch (KIP-320),
10 zstd (KIP-110), 11 the preferred read replica (KIP-392; -1 here, the leader serves every consumer). 12 is flexible
and brings the last fetched epoch with DivergingEpoch (KIP-595) and the current leader. 13 names topics by id (KIP-516).
14 is for tiered storage. 15 moves the replica id beside the replica's epoch (KIP-903). 16 adds leaders' addresses
(KIP-951). 17 and 18 add fields for controllers, which are read over.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence

from tidelog.broker.delayed_fetch import FetchParams
from tidelog.broker.fetch_session import FetchExchange, FetchKey, PartitionFetch
from tidelog.broker.partition import PartitionRead, cut_before_zstd
from tidelog.broker.registry import handles
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.log import NotInMemoryError
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)

_ZSTD_FROM = 10
_CURRENT_LEADER_FROM = 12
_TOPIC_IDS_FROM = 13
_REPLICA_STATE_FROM = 15
_NODE_ENDPOINTS_FROM = 16

# Most partitions say nothing here; sharing one object saves making it a partition.
_NO_DIVERGENCE = EpochEndOffset()
_NO_LEADER = LeaderIdAndEpoch()
_NO_SNAPSHOT = SnapshotId()


@handles(FETCH, "4-18")
def handle_fetch(
    request: FetchRequest, context: RequestContext
) -> FetchResponse | Coroutine[None, None, FetchResponse]:
    replicas = context.services.replicas
    version = context.version
    params = _params(request, version, replicas.fetch_max_bytes)
    try:
        exchange = replicas.fetch_sessions.open(
            request.session_id,
            request.session_epoch,
            _wanted(request),
            _forgotten(request, version),
            uses_topic_ids=version >= _TOPIC_IDS_FROM,
            privileged=params.replica_id >= 0,
        )
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    try:
        reads = replicas.read(params, exchange.fetches, in_memory=True)
    except NotInMemoryError:
        return _answer_patiently(replicas, params, exchange, version)
    if replicas.must_wait(params, reads):
        return _answer_later(replicas, params, exchange, reads, version)
    return _answer(replicas, exchange, reads, version)


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
    )


def _wanted(request: FetchRequest) -> list[PartitionFetch]:
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
        for topic in request.topics
        for partition in topic.partitions
    ]


def _forgotten(request: FetchRequest, version: int) -> list[FetchKey]:
    return [
        (topic.topic_id if version >= _TOPIC_IDS_FROM else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


async def _answer_patiently(
    replicas: ReplicaManager, params: FetchParams, exchange: FetchExchange, version: int
) -> FetchResponse:
    reads = await replicas.read_patiently(params, exchange.fetches)
    if replicas.must_wait(params, reads):
        return await _answer_later(replicas, params, exchange, reads, version)
    return _answer(replicas, exchange, reads, version)


async def _answer_later(
    replicas: ReplicaManager, params: FetchParams, exchange: FetchExchange, reads: list[PartitionRead], version: int
) -> FetchResponse:
    await replicas.wait_for_data(params, exchange.fetches, reads)
    return _answer(replicas, exchange, await replicas.read_patiently(params, exchange.fetches), version)


def _answer(
    replicas: ReplicaManager, exchange: FetchExchange, reads: Sequence[PartitionRead], version: int
) -> FetchResponse:
    response = FetchResponse(session_id=exchange.session_id, responses=[], node_endpoints=[])
    leader_ids: set[int] = set()
    topic: FetchableTopicResponse | None = None
    for fetch, read in zip(exchange.fetches, reads, strict=True):
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
    if leader_ids and version >= _NODE_ENDPOINTS_FROM:
        response.node_endpoints = [
            NodeEndpoint(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in replicas.endpoints(leader_ids)
        ]
    return response


def _is_told(exchange: FetchExchange, fetch: PartitionFetch, read: PartitionRead) -> bool:
    """Whether the response names the partition; keeps the session's memory of what it says."""
    session = exchange.session
    if session is not None and read.size_bytes:
        session.move_to_end(fetch.key)
    told = fetch.must_be_told(
        read.high_watermark,
        read.log_start_offset,
        has_news=read.size_bytes > 0 or read.diverging_epoch is not None,
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
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=producer_id, first_offset=offset) for producer_id, offset in aborted],
        # Clients read null records as a broken response; nothing to give is an empty field.
        records=read.records,
    )


def _name_leader(replicas: ReplicaManager, fetch: PartitionFetch, data: PartitionData, leader_ids: set[int]) -> None:
    state = replicas.leader_state(fetch.topic, fetch.topic_id, fetch.partition)
    if state is not None:
        data.current_leader = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
        leader_ids.add(state.leader)
