"""DescribeLogDirs, versions 1 to 5.

1 changes nothing in the fields, 2 is flexible, 3 brings an error for the whole answer, 4 the size of the volume and
what is left of it (KIP-827), 5 whether a directory takes no new partitions (cordoned; none is here). Null topics ask
for all. Replicas never move between directories, so none is a future one.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidelog.broker.partition import Partition
from tidelog.broker.registry import handles
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
    response = DescribeLogDirsResponse()
    for directory in directories:
        if directory.offline_reason is None:
            response.results.append((yield from _describe(directory.path, by_path[directory.path])))
        else:
            response.results.append(_offline(directory.path))
    return response


def _offline(directory: Path) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(directory.absolute()))


def _describe(directory: Path, partitions: list[Partition]) -> Steps[DescribeLogDirsResult]:
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
