"""DescribeLogDirs, versions 1 to 5.

1 changes nothing in the fields, 2 is flexible, 3 brings an error for the whole answer, 4 the size of the volume and
what is left of it (KIP-827), 5 whether a directory takes no new partitions (cordoned; none is here). Null topics ask
for all. A replica that moves to another directory is listed there, too, as a future one with what it lacks.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidelog.broker.partition import Partition
from tidelog.broker.registry import handles
from tidelog.broker.replica_moves import MoveStatus
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k35_describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


@handles(DESCRIBE_LOG_DIRS, "1-5")
def handle_describe_log_dirs(
    request: DescribeLogDirsRequest, context: RequestContext
) -> Steps[DescribeLogDirsResponse]:
    services = context.services
    wanted: set[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    directories = services.logs.directories
    by_path: dict[Path, list[Partition]] = {directory.path: [] for directory in directories}
    # Partitions come and go while others have their turn.
    for partition in tuple(services.replicas.partitions()):
        yield 0
        if wanted is None or (partition.topic, partition.partition) in wanted:
            by_path[partition.log.parent].append(partition)
    coming: dict[Path, list[MoveStatus]] = {directory.path: [] for directory in directories}
    for move in services.replicas.moves.under_way:
        yield 0
        if wanted is None or (move.partition.topic, move.partition.partition) in wanted:
            coming[move.target].append(move)
    response = DescribeLogDirsResponse()
    for directory in directories:
        path = directory.path
        if directory.offline_reason is None:
            response.results.append((yield from _describe(path, by_path[path], coming[path])))
        else:
            response.results.append(_offline(directory.path))
    return response


def _offline(directory: Path) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(directory.absolute()))


def _describe(directory: Path, partitions: list[Partition], coming: list[MoveStatus]) -> Steps[DescribeLogDirsResult]:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition in partitions:
        yield 0
        topic = topics.setdefault(partition.topic, DescribeLogDirsTopic(name=partition.topic))
        log = partition.log
        topic.partitions.append(
            DescribeLogDirsPartition(
                partition_index=partition.partition,
                partition_size=log.size_bytes,
                offset_lag=max(0, log.high_watermark - log.log_end_offset),
            )
        )
    for move in coming:
        yield 0
        name = move.partition.topic
        topics.setdefault(name, DescribeLogDirsTopic(name=name)).partitions.append(
            DescribeLogDirsPartition(
                partition_index=move.partition.partition,
                partition_size=move.size_bytes,
                offset_lag=move.offset_lag,
                is_future_key=True,
            )
        )
    try:
        volume = os.statvfs(directory)
    except OSError:
        # The disk is gone and nothing was written since, which would have taken the directory offline.
        return _offline(directory)
    return DescribeLogDirsResult(
        log_dir=str(directory.absolute()),
        topics=list(topics.values()),
        total_bytes=volume.f_frsize * volume.f_blocks,
        usable_bytes=volume.f_frsize * volume.f_bavail,
    )
