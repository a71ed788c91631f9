"""Records of the store: whatever is written is read back as the same value, and only what changed is written."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.controller import layout
from tidelog.controller.image import BrokerInfo, LeaderRecoveryState, PartitionState, TopicImage

NODES = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
EPOCHS = st.integers(0, 2**31 - 1)
STATES = st.builds(
    PartitionState,
    replicas=NODES,
    isr=NODES,
    leader=st.integers(-1, 2**31 - 1),
    leader_epoch=EPOCHS,
    partition_epoch=EPOCHS,
    adding=NODES,
    removing=NODES,
    elr=NODES,
    recovery=st.sampled_from(LeaderRecoveryState),
)
TOPIC_ID = uuid.UUID(int=7)
STATE = PartitionState((0,), (0,), 0)


@given(st.lists(STATES, min_size=1, max_size=3))
def test_partition_states_survive_the_store(states: list[PartitionState]) -> None:
    (chunk,) = layout.chunk_records(TOPIC_ID, states)
    assert layout.parse_chunk(layout.decode(layout.encode(chunk[1]))) == states


@given(st.text(), st.integers(0, 65535), st.none() | st.text(), st.booleans(), st.lists(st.uuids()).map(tuple))
def test_brokers_survive_the_store(
    host: str, port: int, rack: str | None, fenced: bool, directories: tuple[uuid.UUID, ...]
) -> None:
    endpoints = (Endpoint(PLAINTEXT, host, port), Endpoint("INTERNAL", "", 1))
    features = {"transaction.version": (0, 2)}
    broker = BrokerInfo(3, 9, endpoints, rack, fenced, directories, fenced, uuid.UUID(int=5), features)
    record = layout.decode(layout.encode(layout.broker_record(broker)))
    assert layout.parse_broker(layout.broker_key(3), record) == broker


def test_brokers_of_the_time_when_they_had_one_address_are_read() -> None:
    record = {"epoch": 4, "host": "h", "port": 9092, "rack": None, "fenced": False, "directories": []}
    assert layout.parse_broker("brokers/3", record) == BrokerInfo(3, 4, (Endpoint(PLAINTEXT, "h", 9092),))


def test_a_topic_survives_the_store() -> None:
    topic = TopicImage("a", TOPIC_ID, (STATE,) * 3, created_ms=5)
    record = layout.decode(layout.encode(layout.topic_record(topic, {"retention.ms": "1"})))
    assert layout.parse_topic(record) == layout.TopicRecord(TOPIC_ID, 3, 5, {"retention.ms": "1"})
    assert layout.parse_tombstone(record) is None
    assert layout.parse_tombstone(layout.topic_tombstone(TOPIC_ID)) == TOPIC_ID


def test_only_chunks_with_a_change_are_written() -> None:
    states = [STATE] * 200
    assert [len(record["states"]) for _, record in layout.chunk_records(TOPIC_ID, states)] == [64, 64, 64, 8]
    changed = [key for key, _ in layout.chunk_records(TOPIC_ID, states, {63, 199})]
    assert changed == [layout.chunk_key(TOPIC_ID, 0), layout.chunk_key(TOPIC_ID, 3)]


def test_broker_defaults_have_a_key_of_their_own() -> None:
    for name in ("", "0", "17"):
        assert layout.broker_configs_name(layout.broker_configs_key(name)) == name
