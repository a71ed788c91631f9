"""Fetch sessions over a plain socket (behaviour 37)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from tidelog.testing import Broker, VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scenario.data.conftest import RawClient

    MakeBatch = Callable[..., bytearray]
    NewTopic = Callable[..., str]
    Connect = Callable[[Broker], RawClient]


class Session:
    """A client's end of one fetch session."""

    def __init__(self, raw: RawClient, topic: str, version: int, broker: Broker) -> None:
        self.raw = raw
        self.topic = topic
        self.topic_id = broker.server.services.controller.image.topics[topic].topic_id
        self.version = version
        self.session_id = 0
        self.epoch = 0

    def fetch(
        self, offsets: dict[int, int] | None = None, *, forget: tuple[int, ...] = (), max_bytes: int = 1 << 20
    ) -> FetchResponse:
        request = FetchRequest(
            session_id=self.session_id,
            session_epoch=self.epoch,
            max_bytes=max_bytes,
            min_bytes=0,
            topics=[FetchTopic(topic=self.topic, topic_id=self.topic_id, partitions=[])] if offsets else [],
            forgotten_topics_data=[ForgottenTopic(topic=self.topic, topic_id=self.topic_id, partitions=list(forget))]
            if forget
            else [],
        )
        for index, offset in (offsets or {}).items():
            wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            request.topics[0].partitions.append(wanted)
        response = self.raw.ask(FETCH, self.version, request, FetchResponse)
        if not response.error_code:
            self.session_id = response.session_id
            self.epoch += 1
        return response


def told(response: FetchResponse) -> list[int]:
    return [partition.partition_index for topic in response.responses for partition in topic.partitions]


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_an_incremental_fetch_tells_what_changed(
    broker: Broker, raw: RawClient, new_topic: NewTopic, batch: MakeBatch, version: int
) -> None:
    """Behaviour 37: all on epoch 0, then news only; partitions can be changed, added and forgotten."""
    topic = new_topic(partitions=4)
    session = Session(raw, topic, version, broker)
    first = session.fetch({0: 0, 1: 0, 2: 0})
    assert first.session_id > 0
    assert told(first) == [0, 1, 2]
    second = session.fetch()
    assert second.session_id == first.session_id
    assert told(second) == []
    raw.produce(topic, batch(b"a"), partition=1)
    assert told(session.fetch()) == [1]
    # The client has not said that it has the record, so it comes again.
    assert told(session.fetch()) == [1]
    assert told(session.fetch({1: 1})) == []
    raw.produce(topic, batch(b"b"), partition=3)
    assert told(session.fetch({3: 0}, forget=(0,))) == [3]
    raw.produce(topic, batch(b"c"), partition=0)
    assert told(session.fetch({3: 1})) == []


def test_errors_of_a_session(broker: Broker, raw: RawClient, new_topic: NewTopic) -> None:
    """Behaviour 37: an unknown id, an epoch out of step, topic ids where names were used."""
    session = Session(raw, new_topic(), 12, broker)
    session.fetch({0: 0})
    session_id = session.session_id
    session.epoch = 5
    assert session.fetch().error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.epoch = 1
    session.version = 13
    assert session.fetch().error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    session.version = 12
    session.session_id = 1 if session_id != 1 else 2
    assert session.fetch().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session.session_id = session_id
    assert session.fetch().error_code == 0


def test_epoch_minus_1_closes_the_session(broker: Broker, raw: RawClient, new_topic: NewTopic) -> None:
    """Behaviour 37: its answer belongs to no session."""
    session = Session(raw, new_topic(), 12, broker)
    session.fetch({0: 0})
    session_id = session.session_id
    session.epoch = -1
    assert session.fetch({0: 0}).session_id == 0
    session.session_id, session.epoch = session_id, 1
    assert session.fetch().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_small_limits_starve_no_partition(
    broker: Broker, raw: RawClient, new_topic: NewTopic, batch: MakeBatch
) -> None:
    """Behaviour 34: whoever gave data goes to the end of the session's order."""
    topic = new_topic(partitions=3)
    for partition in range(3):
        for _ in range(4):
            raw.produce(topic, batch(bytes(100)), partition=partition)
    session = Session(raw, topic, 12, broker)
    offsets = {0: 0, 1: 0, 2: 0}
    session.fetch(offsets, max_bytes=1)
    given = []
    changed: dict[int, int] = {0: 1}
    for _ in range(6):
        response = session.fetch(changed, max_bytes=1)
        with_data = [
            partition.partition_index
            for answer in response.responses
            for partition in answer.partitions
            if partition.records
        ]
        assert len(with_data) == 1
        given += with_data
        offsets[with_data[0]] += 1
        changed = {with_data[0]: offsets[with_data[0]]}
    assert given == [1, 2, 0, 1, 2, 0]


def test_errors_in_a_session_are_told_until_they_end(
    broker: Broker, raw: RawClient, new_topic: NewTopic, batch: MakeBatch
) -> None:
    """Behaviour 37: and their end is told too."""
    topic = new_topic()
    raw.produce(topic, batch(b"a"))
    session = Session(raw, topic, 12, broker)
    session.fetch({0: 1, 5: 0})
    for _ in range(2):
        (answer,) = session.fetch().responses[0].partitions
        assert (answer.partition_index, answer.error_code) == (5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    session.fetch({0: 9}, forget=(5,))
    (answer,) = session.fetch({0: 1}).responses[0].partitions
    assert (answer.partition_index, answer.error_code) == (0, 0)
    assert told(session.fetch()) == []


def test_sessions_give_way_when_there_is_no_room(connect: Connect, batch: MakeBatch) -> None:
    """Behaviour 37: a full cache serves without a session; one not used for two minutes is evicted for a new one."""
    clock = VirtualClock()
    with Broker(clock=clock, settings={"max.incremental.fetch.session.cache.slots": 2}) as broker:
        broker.create_topic("t")
        raw = connect(broker)
        raw.produce("t", batch(b"a"))
        used, unused, third = (Session(raw, "t", 12, broker) for _ in range(3))
        assert used.fetch({0: 0}).session_id
        assert unused.fetch({0: 0}).session_id
        for _ in range(2):
            third.session_id = third.epoch = 0
            without = third.fetch({0: 0})
            assert (without.error_code, without.session_id, told(without)) == (0, 0, [0])
        clock.advance(minutes=1.5)
        assert used.fetch().session_id == used.session_id
        clock.advance(minutes=1)
        third.session_id = third.epoch = 0
        assert third.fetch({0: 0}).session_id
        assert unused.fetch().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert [session.fetch().error_code for session in (used, third)] == [0, 0]


def test_epoch_0_with_an_id_replaces_the_session(broker: Broker, raw: RawClient, new_topic: NewTopic) -> None:
    """Behaviour 37: the client starts anew and the old session is gone."""
    session = Session(raw, new_topic(), 12, broker)
    first_id = session.fetch({0: 0}).session_id
    session.epoch = 0
    second_id = session.fetch({0: 0}).session_id
    assert second_id not in (0, first_id)
    session.session_id, session.epoch = first_id, 1
    assert session.fetch().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_restart_forgets_sessions(connect: Connect) -> None:
    """Behaviour 37: the client is told and begins a new one."""
    with Broker() as broker:
        broker.create_topic("t")
        session = Session(connect(broker), "t", 12, broker)
        session.fetch({0: 0})
        broker.stop()
        broker.start()
        session.raw = connect(broker)
        assert session.fetch().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.session_id = session.epoch = 0
        assert session.fetch({0: 0}).session_id
