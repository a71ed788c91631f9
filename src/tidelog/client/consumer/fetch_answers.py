"""Interprets one partition's row of a fetch response: records to queue, an error to report, or a leader to look for.

What always holds: a row changes nothing unless it answers a request that still matters: same partition version, same
offset. Pure: no sockets, no waiting.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tidelog.client.consumer.fetch_queue import FetchedChunk
from tidelog.client.consumer.fetch_session import Wanted
from tidelog.client.consumer.subscription import NO_EPOCH, NO_OFFSET, OffsetReset, PartitionState, SubscriptionState
from tidelog.client.errors import BrokerError, ClientError, CorruptRecordError, OffsetOutOfRangeError, error_code
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import PartitionData
from tidelog.records.batch import parse_header
from tidelog.records.errors import CorruptBatchError
from tidelog.records.kernel_consume import find_end

_NOTHING = memoryview(b"")
# The leader has changed, or the broker does not know the topic (any more, or yet): refresh the metadata.
_ASK_WHO_LEADS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
# The broker can't answer now, and asking others would not help.
_TRY_LATER = frozenset({ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR})


class Asked(NamedTuple):
    """A partition as it was when the request was made."""

    state: PartitionState
    version: int
    wanted: Wanted


class Next(enum.Enum):
    """What to do about the partition now."""

    FETCH_ON = enum.auto()
    TRY_LATER = enum.auto()
    ASK_WHO_LEADS = enum.auto()


def read_row(
    subscription: SubscriptionState, reset: OffsetReset | None, asked: Asked, row: PartitionData
) -> tuple[FetchedChunk | None, Next]:
    """Apply the response for one partition."""
    code = error_code(row.error_code)
    if code in _ASK_WHO_LEADS:
        return None, Next.ASK_WHO_LEADS
    if code in _TRY_LATER:
        return None, Next.TRY_LATER
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        return _out_of_range(subscription, reset, asked), Next.FETCH_ON
    if code is not ErrorCode.NONE:
        error = BrokerError(code, subject=f"partition {asked.state.topic_partition}")
        return _in_place_of_data(subscription, asked, error, stays=False), Next.FETCH_ON
    return _data(subscription, asked, row), Next.FETCH_ON


def _data(subscription: SubscriptionState, asked: Asked, row: PartitionData) -> FetchedChunk | None:
    state = asked.state
    if state.version == asked.version:
        state.high_watermark = row.high_watermark
        state.last_stable_offset = row.last_stable_offset
        state.log_start_offset = row.log_start_offset
        state.checked_leader_epoch = max(state.checked_leader_epoch, asked.wanted.current_leader_epoch)
    view = row.records
    if not isinstance(view, memoryview) or not len(view):
        return None
    offset = asked.wanted.fetch_offset
    end = find_end(view)
    if end.next_offset <= offset:
        return _in_place_of_data(subscription, asked, _damaged(asked, view), stays=True)
    if not subscription.fetched(state, asked.version, offset, end.next_offset, end.leader_epoch):
        return None
    aborted = sorted((each.first_offset, each.producer_id) for each in row.aborted_transactions or ())
    return FetchedChunk(state, asked.version, offset, view[: end.size], aborted)


def _damaged(asked: Asked, view: memoryview) -> CorruptRecordError:
    """Not even the first header is valid, or the response ends before the requested offset."""
    topic, partition = asked.state.topic_partition
    offset = asked.wanted.fetch_offset
    reason = "the broker's answer ends before that offset"
    try:
        parse_header(view)
    except CorruptBatchError as error:
        reason = str(error)
    return CorruptRecordError(
        f"partition {topic}-{partition} holds a damaged batch at offset {offset}: {reason}; "
        f"seek to {offset + 1} or beyond to skip it",
        topic,
        partition,
        offset,
        offset + 1,
    )


def _out_of_range(subscription: SubscriptionState, reset: OffsetReset | None, asked: Asked) -> FetchedChunk | None:
    topic_partition, offset = asked.state.topic_partition, asked.wanted.fetch_offset
    if reset is None:
        error = OffsetOutOfRangeError(
            f"partition {topic_partition} does not hold offset {offset}, and auto.offset.reset is none; "
            "seek to an offset that it holds (see beginning_offsets and end_offsets)"
        )
        return _in_place_of_data(subscription, asked, error, stays=True)
    chunk = _in_place_of_data(subscription, asked, None, stays=False)
    if chunk is not None:
        chunk.reset = reset
    return chunk


def _in_place_of_data(
    subscription: SubscriptionState, asked: Asked, error: ClientError | None, *, stays: bool
) -> FetchedChunk | None:
    """A chunk without data, queued behind earlier data; nothing more is fetched until it has been dealt with."""
    if not subscription.fetched(asked.state, asked.version, asked.wanted.fetch_offset, NO_OFFSET, NO_EPOCH):
        return None
    chunk = FetchedChunk(asked.state, asked.version, asked.wanted.fetch_offset, _NOTHING)
    chunk.error = error
    chunk.error_stays = stays
    return chunk
