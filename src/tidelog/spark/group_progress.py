"""Publishes the progress of a query as the committed offsets of a consumer group, so that lag tools can show it.

What always holds: only offsets that Spark has committed are published, and unchanged offsets are not published again;
the group has no members, so there are no assignments. If publishing fails, the error is logged and the query continues:
the next attempt includes the missed offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tidelog.client.admin import Admin
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition

logger = logging.getLogger(__name__)


class GroupProgress:
    """The offsets that one query has published for one group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self._published: dict[TopicPartition, int] = {}

    def publish(self, admin: Admin, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets that have changed since the last call, if any."""
        news = {key: offset for key, offset in offsets.items() if self._published.get(key) != offset}
        if not news:
            return
        try:
            outcome = admin.alter_consumer_group_offsets(self.group_id, news)
        except ClientError as error:
            logger.warning("could not publish the offsets of group %s: %s", self.group_id, error)
            return
        for key, refusal in outcome.errors.items():
            logger.warning("could not publish the offset of %s for group %s: %s", key, self.group_id, refusal)
        self._published.update({key: news[key] for key in outcome.succeeded})
