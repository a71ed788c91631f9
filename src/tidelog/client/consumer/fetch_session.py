"""Fetch sessions (KIP-227): brokers remember the partitions of a fetch, so the next one names only those that changed.

What always holds: for its next response the broker looks at exactly the partitions that were passed to the last
`build`. After any doubt (an error, a lost connection) the next request names all of them and starts a new session.
Pure: no sockets, no clock.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from tidelog.client.types import TopicPartition
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import FetchPartition, FetchTopic, ForgottenTopic

NO_SESSION_ID = 0
FIRST_EPOCH = 0  # requests a new session
NO_SESSION_EPOCH = -1  # requests no session
_EPOCH_MAX = 0x7FFFFFFF


class Wanted(NamedTuple):
    """The request for one partition."""

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    topic_id: uuid.UUID


class SessionRequest(NamedTuple):
    """The parts of a fetch request that depend on the session."""

    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten: list[ForgottenTopic]
    has_topic_ids: bool


class FetchSession:
    """The session with one broker."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION_ID
        self._epoch = FIRST_EPOCH
        self._known: dict[TopicPartition, Wanted] = {}
        self._had_topic_ids = True

    @property
    def is_new(self) -> bool:
        """Whether the next request names everything."""
        return self._epoch == FIRST_EPOCH

    def build(self, wanted: Mapping[TopicPartition, Wanted]) -> SessionRequest:
        """The next request: the broker will look at exactly these partitions, in this order if the session is new."""
        has_topic_ids = all(row.topic_id != ZERO_UUID for row in wanted.values())
        if has_topic_ids != self._had_topic_ids:
            # A session uses either ids or names; the broker ends the old one when it gets epoch 0 with its id.
            self._epoch = FIRST_EPOCH
        self._had_topic_ids = has_topic_ids
        if self._epoch == FIRST_EPOCH:
            named, forgotten = dict(wanted), {}
        else:
            named = {key: row for key, row in wanted.items() if self._known.get(key) != row}
            forgotten = {
                key: row
                for key, row in self._known.items()
                if key not in wanted or wanted[key].topic_id != row.topic_id
            }
        self._known = dict(wanted)
        return SessionRequest(self._session_id, self._epoch, _topics(named), _forgotten(forgotten), has_topic_ids)

    def answered(self, error_code: int, session_id: int) -> None:
        """Record the broker's response: it continued the session, created one, or has none."""
        if error_code != ErrorCode.NONE:
            if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = NO_SESSION_ID
            self._epoch = FIRST_EPOCH
        elif session_id == NO_SESSION_ID:
            self._session_id, self._epoch = NO_SESSION_ID, FIRST_EPOCH
        else:
            self._session_id = session_id
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def restart(self) -> None:
        """After no response, or one that names unknown topics: start over, and let the broker end the old session."""
        self._epoch = FIRST_EPOCH


def without_session(wanted: Mapping[TopicPartition, Wanted]) -> SessionRequest:
    """A stand-alone request, outside any session."""
    has_topic_ids = all(row.topic_id != ZERO_UUID for row in wanted.values())
    return SessionRequest(NO_SESSION_ID, NO_SESSION_EPOCH, _topics(wanted), [], has_topic_ids)


def _topics(rows: Mapping[TopicPartition, Wanted]) -> list[FetchTopic]:
    topics: dict[tuple[str, uuid.UUID], FetchTopic] = {}
    for (name, partition), row in rows.items():
        topic = topics.get((name, row.topic_id))
        if topic is None:
            topic = topics[name, row.topic_id] = FetchTopic(topic=name, topic_id=row.topic_id)
        topic.partitions.append(
            FetchPartition(
                partition=partition,
                current_leader_epoch=row.current_leader_epoch,
                fetch_offset=row.fetch_offset,
                partition_max_bytes=row.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(rows: Mapping[TopicPartition, Wanted]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, uuid.UUID], ForgottenTopic] = {}
    for (name, partition), row in rows.items():
        topic = topics.get((name, row.topic_id))
        if topic is None:
            topic = topics[name, row.topic_id] = ForgottenTopic(topic=name, topic_id=row.topic_id)
        topic.partitions.append(partition)
    return list(topics.values())
