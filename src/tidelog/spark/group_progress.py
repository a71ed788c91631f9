"""Publishes how far a query is as the committed offsets of a consumer group, for tools that show lag.

What always holds: only offsets that Spark has committed are published, and never twice the same; the group has no
members, so nothing is assigned to anybody. A publication that fails is logged and does not stop the query: the next
one brings the same and more.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tidelog.client.admin import Admin
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition

log = logging.getLogger(__name__)


class GroupProgress:
    """What was published for one group by one query."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self._published: dict[TopicPartition, int] = {}

    def publish(self, admin: Admin, offsets: Mapping[TopicPartition, int]) -> None:
        """Tell the group's coordinator, if there is anything new."""
        news = {key: offset for key, offset in offsets.items() if self._published.get(key) != offset}
        if not news:
            return
        try:
            outcome = admin.alter_consumer_group_offsets(self.group_id, news)
        except ClientError as error:
            log.warning("the offsets of group %s could not be published: %s", self.group_id, error)
            return
        for key, refusal in outcome.errors.items():
            log.warning("the offset of %s could not be published for group %s: %s", key, self.group_id, refusal)
        self._published.update({key: news[key] for key in outcome.succeeded})
