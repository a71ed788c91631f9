"""Fetch sessions: what is named in a request so that the broker looks at exactly what is wanted."""

from __future__ import annotations

import uuid

from tidelog.client.consumer.fetch_session import FetchSession, SessionRequest, Wanted
from tidelog.client.types import TopicPartition
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ID = uuid.UUID(int=5)


def want(offset: int, topic_id: uuid.UUID = ID) -> Wanted:
    return Wanted(offset, 100, 3, topic_id)


def named(request: SessionRequest) -> dict[int, int]:
    return {row.partition: row.fetch_offset for topic in request.topics for row in topic.partitions}


def forgotten(request: SessionRequest) -> list[int]:
    return [number for topic in request.forgotten for number in topic.partitions]


def test_only_changes_are_named_once_there_is_a_session() -> None:
    session = FetchSession()
    first = session.build({A: want(0), B: want(0)})
    assert (first.session_id, first.session_epoch, named(first)) == (0, 0, {0: 0, 1: 0})
    assert first.topics[0].topic_id == ID
    session.answered(ErrorCode.NONE, 77)
    second = session.build({A: want(10), B: want(0)})
    assert (second.session_id, second.session_epoch, named(second), forgotten(second)) == (77, 1, {0: 10}, [])
    session.answered(ErrorCode.NONE, 77)
    third = session.build({B: want(0)})
    assert (third.session_epoch, named(third), forgotten(third)) == (2, {}, [0])
    session.answered(ErrorCode.NONE, 77)
    fourth = session.build({A: want(10), B: want(0)})
    assert (named(fourth), forgotten(fourth)) == ({0: 10}, [])


def test_a_topic_that_was_made_anew_is_forgotten_and_named() -> None:
    session = FetchSession()
    session.build({A: want(0)})
    session.answered(ErrorCode.NONE, 77)
    request = session.build({A: want(0, uuid.UUID(int=6))})
    assert request.forgotten[0].topic_id == ID
    assert request.topics[0].topic_id == uuid.UUID(int=6)


def test_a_broker_without_room_for_a_session_gets_everything_each_time() -> None:
    session = FetchSession()
    for _ in range(2):
        request = session.build({A: want(0)})
        assert (request.session_id, request.session_epoch, named(request)) == (0, 0, {0: 0})
        session.answered(ErrorCode.NONE, 0)


def test_errors_begin_a_new_session() -> None:
    session = FetchSession()
    session.build({A: want(0)})
    session.answered(ErrorCode.NONE, 77)
    session.build({A: want(1)})
    session.answered(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
    request = session.build({A: want(1)})
    assert (request.session_id, request.session_epoch, named(request)) == (0, 0, {0: 1})
    session.answered(ErrorCode.NONE, 78)
    session.build({A: want(1)})
    session.answered(ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0)
    request = session.build({A: want(1)})
    assert (request.session_id, request.session_epoch) == (78, 0), "the broker ends the old one by its id"


def test_a_lost_answer_begins_a_new_session() -> None:
    session = FetchSession()
    session.build({A: want(0)})
    session.answered(ErrorCode.NONE, 77)
    session.build({A: want(1)})
    session.restart()
    assert session.is_new
    assert named(session.build({A: want(1)})) == {0: 1}


def test_names_and_ids_do_not_share_a_session() -> None:
    session = FetchSession()
    session.build({A: want(0)})
    session.answered(ErrorCode.NONE, 77)
    request = session.build({A: want(0), TopicPartition("old", 0): want(0, ZERO_UUID)})
    assert not request.has_topic_ids
    assert request.session_epoch == 0


def test_epochs_wrap_around() -> None:
    session = FetchSession()
    session.build({A: want(0)})
    session.answered(ErrorCode.NONE, 77)
    session._epoch = 0x7FFFFFFF
    session.build({A: want(1)})
    session.answered(ErrorCode.NONE, 77)
    assert session.build({A: want(2)}).session_epoch == 1
