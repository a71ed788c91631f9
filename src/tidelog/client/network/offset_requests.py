"""Builds OffsetFetch requests for the consumer, the admin client and the Spark sink.

Up to version 7 a request names one group, later ones a list of groups; this module hides the difference. The caller
chooses the version: up to `NAMES_UP_TO` topics are identified by name, after that by topic id.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from tidelog.client.types import TopicPartition, group_by_topic
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

NAMES_UP_TO = 9  # of OffsetCommit and OffsetFetch; later versions identify topics by id
STABLE_FROM = 7  # from this version on OffsetFetch can wait for open transactions
SEVERAL_GROUPS_FROM = 8


def build_offset_fetch(
    version: int,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool,
    topic_ids: Mapping[str, uuid.UUID] | None = None,
    member: tuple[str, int] | None = None,
) -> OffsetFetchRequest:
    """A request for the committed offsets of one group; `partitions=None` asks for all of them.

    `member` is the member id and epoch of a caller that belongs to the group; versions before 9 don't send it. Versions
    before 7 can't ask for stable offsets; callers that depend on those must reject such a version.
    """
    wanted = None if partitions is None else group_by_topic(partitions)
    if version < SEVERAL_GROUPS_FROM:
        request = OffsetFetchRequest(
            group_id=group_id,
            topics=None
            if wanted is None
            else [OffsetFetchRequestTopic(name=name, partition_indexes=numbers) for name, numbers in wanted.items()],
        )
    else:
        ids = topic_ids or {}
        group = OffsetFetchRequestGroup(
            group_id=group_id,
            topics=None
            if wanted is None
            else [
                OffsetFetchRequestTopics(name=name, topic_id=ids.get(name, ZERO_UUID), partition_indexes=numbers)
                for name, numbers in wanted.items()
            ],
        )
        if member is not None:
            group.member_id, group.member_epoch = member
        request = OffsetFetchRequest(groups=[group])
    if version >= STABLE_FROM:
        request.require_stable = require_stable
    return request
