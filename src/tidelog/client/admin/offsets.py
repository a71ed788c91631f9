"""Calls about the contents of partitions: offsets by time, and deleting old records.

What always holds: each partition's leader is asked, and an error for one partition does not affect the results of the
others.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from tidelog.client.admin.asking import PartitionAnswer, at_leaders, by_topic, request_timeout_ms
from tidelog.client.admin.results import Results
from tidelog.client.admin.types import DeletedRecords, IsolationLevel, ListedOffset, OffsetSpec, TimeOrSpec
from tidelog.client.errors import ConfigError, UnsupportedVersionError
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.types import TopicPartition
from tidelog.protocol.messages.k02_list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.k21_delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

_ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
_ISOLATION_FROM = 2
# The first ListOffsets version that knows each special offset.
_SPECS_FROM = {OffsetSpec.MAX_TIMESTAMP: 7, OffsetSpec.EARLIEST_LOCAL: 8, OffsetSpec.LATEST_TIERED: 9}
_CONSUMER_REPLICA_ID = -1


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, TimeOrSpec], *, isolation_level: IsolationLevel
) -> Results[TopicPartition, ListedOffset]:
    if isolation_level not in _ISOLATION_LEVELS:
        raise ConfigError(f"isolation_level={isolation_level!r}: expected one of {', '.join(_ISOLATION_LEVELS)}")
    timestamps = {key: _timestamp(value) for key, value in wanted.items()}
    needed_version = max(
        (_SPECS_FROM.get(value, 0) for value in wanted.values() if isinstance(value, OffsetSpec)), default=0
    )

    async def ask(connection: Connection, asked: Mapping[TopicPartition, int]) -> list[PartitionAnswer[ListedOffset]]:
        version = connection.version_for(LIST_OFFSETS)
        if version < needed_version:
            raise UnsupportedVersionError(f"broker at {connection.address} does not support the requested OffsetSpec")
        request = ListOffsetsRequest(
            replica_id=_CONSUMER_REPLICA_ID,
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
                        for partition, timestamp in rows
                    ],
                )
                for topic, rows in by_topic(asked)
            ],
            timeout_ms=request_timeout_ms(cluster),
        )
        if version >= _ISOLATION_FROM:  # brokers before that knew no transactions
            request.isolation_level = _ISOLATION_LEVELS[isolation_level]
        response = await connection.request(LIST_OFFSETS, request, ListOffsetsResponse, version=version)
        return [
            (
                TopicPartition(topic.name, row.partition_index),
                row.error_code,
                None,
                ListedOffset(row.offset, row.timestamp, row.leader_epoch),
            )
            for topic in response.topics
            for row in topic.partitions
        ]

    return await at_leaders(cluster, timestamps, ask)


def _timestamp(value: TimeOrSpec) -> int:
    if not isinstance(value, datetime.datetime):
        return int(value)
    if value.tzinfo is None:
        raise ConfigError(f"the time {value} has no time zone; add one, as in datetime.now(timezone.utc)")
    return round(value.timestamp() * 1000)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> Results[TopicPartition, DeletedRecords]:
    async def ask(connection: Connection, asked: Mapping[TopicPartition, int]) -> list[PartitionAnswer[DeletedRecords]]:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=partition, offset=offset) for partition, offset in rows
                    ],
                )
                for topic, rows in by_topic(asked)
            ],
            timeout_ms=request_timeout_ms(cluster),
        )
        response = await connection.request(DELETE_RECORDS, request, DeleteRecordsResponse)
        return [
            (
                TopicPartition(topic.name, row.partition_index),
                row.error_code,
                None,
                DeletedRecords(row.low_watermark),
            )
            for topic in response.topics
            for row in topic.partitions
        ]

    return await at_leaders(cluster, before, ask)
