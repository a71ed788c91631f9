"""Two-phase commit (KIP-939): transactions without a time-out, and producers that find open what they had prepared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import PartitionData
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.k22_init_producer_id import INIT_PRODUCER_ID, InitProducerIdRequest
from tidelog.records import Record
from tidelog.testing import Broker

if TYPE_CHECKING:
    from tests.scenario.data.conftest import RawClient, TransactionalProducer

ReadRecords = Callable[[PartitionData], list[Record]]
Connect = Callable[[Broker], "RawClient"]
NewProducerAt = Callable[["RawClient", str], "TransactionalProducer"]
NewTopic = Callable[..., str]

READ_COMMITTED = 1
MARKER_KEYS = (b"\0\0\0\0", b"\0\0\0\1")
NOTHING = (-1, -1)
TWO_PHASE: dict[str, Any] = {"version": 6, "enable2_pc": True}
KEEP = TWO_PHASE | {"keep_prepared_txn": True}
UNSTABLE = {
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "20",
    "unstable.api.versions.enable": "true",
}
SETTINGS = UNSTABLE | {"transaction.two.phase.commit.enable": "true"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as running:
        yield running


@pytest.fixture
def new_producer(raw: RawClient, new_producer_at: NewProducerAt) -> Callable[[str], TransactionalProducer]:
    return lambda transactional_id: new_producer_at(raw, transactional_id)


@pytest.fixture
def committed(raw: RawClient, records: ReadRecords) -> Callable[[str], list[bytes | None]]:
    """What one who reads committed records finds in a topic; without those that were aborted, as a client would."""
    return lambda topic: read_committed(raw, records, topic)


def read_committed(raw: RawClient, records: ReadRecords, topic: str) -> list[bytes | None]:
    data = raw.fetch(topic, 0, isolation_level=READ_COMMITTED)
    assert not data.aborted_transactions, "none of these topics has one"
    return [record.value for record in records(data) if record.key not in MARKER_KEYS]


NewProducer = Callable[[str], "TransactionalProducer"]
Committed = Callable[[str], list[bytes | None]]


def newest_init_version(raw: RawClient) -> int:
    answer = raw.ask(API_VERSIONS, 0, ApiVersionsRequest(), ApiVersionsResponse)
    return next(row.max_version for row in answer.api_keys if row.api_key == INIT_PRODUCER_ID.key)


def test_the_unstable_version_is_served_where_it_is_enabled(connect: Connect, broker: Broker) -> None:
    assert newest_init_version(connect(broker)) == 6
    with Broker() as usual:
        raw = connect(usual)
        assert newest_init_version(raw) == 5
        raw.send(INIT_PRODUCER_ID, 6, InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1000))
        assert raw.is_closed_by_broker()


def test_only_a_broker_that_allows_it_gives_transactions_without_a_time_out(
    connect: Connect, new_producer_at: NewProducerAt
) -> None:
    with Broker(settings=UNSTABLE) as broker:
        broker.create_topic("t")
        producer = new_producer_at(connect(broker), "tx")
        assert producer.init(**TWO_PHASE) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert producer.init(**KEEP) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        # What is open may be kept all the same: that needs nothing that the broker has to give.
        assert producer.init(version=6) == 0
        first = producer.producer_id, producer.epoch
        assert producer.send("t", b"a", version=12) == 0
        assert producer.init(version=6, keep_prepared_txn=True) == 0
        assert producer.ongoing == first
        assert producer.end(commit=True, version=5) == 0
        producer.wait_for("CompleteCommit")


def test_a_transaction_without_a_time_out_is_not_aborted_by_time(
    new_topic: NewTopic, new_producer: NewProducer
) -> None:
    topic = new_topic()
    prepared, late = new_producer("prepared"), new_producer("late")
    assert prepared.init(timeout_ms=1, **TWO_PHASE) == 0
    assert prepared.send(topic, b"a", version=12) == 0
    assert late.init(timeout_ms=1) == 0
    assert late.send(topic, b"b", version=12) == 0
    late.wait_for("CompleteAbort")
    described = prepared.describe()
    assert (described.transaction_state, described.transaction_timeout_ms) == ("Ongoing", 2**31 - 1)
    assert prepared.end(commit=False, version=5) == 0


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("end_version", [4, 5])
def test_a_producer_that_comes_back_ends_what_it_had_prepared(
    new_topic: NewTopic,
    new_producer: NewProducer,
    committed: Committed,
    raw: RawClient,
    commit: bool,
    end_version: int,
) -> None:
    topic = new_topic()
    name = f"comes back {commit} {end_version}"
    before, after = new_producer(name), new_producer(name)
    assert before.init(**TWO_PHASE) == 0
    assert before.send(topic, b"prepared", version=12) == 0
    prepared = before.producer_id, before.epoch

    assert after.init(**KEEP) == 0
    assert after.ongoing == prepared
    assert (after.producer_id, after.epoch) == (prepared[0], prepared[1] + 1)
    # Who had it is shut out, and who has it can't but end it.
    assert before.end(commit=commit, version=5) == ErrorCode.PRODUCER_FENCED
    assert before.add(topic) == [ErrorCode.PRODUCER_FENCED]
    assert after.add(topic) == [ErrorCode.INVALID_TXN_STATE]
    assert after.send(topic, b"more", version=12) == ErrorCode.INVALID_TXN_STATE
    described = after.describe()
    assert (described.transaction_state, described.producer_id, described.producer_epoch) == ("Ongoing", *prepared)
    assert committed(topic) == []

    # The answer is lost, and it comes once more.
    assert after.init(**KEEP) == 0
    assert after.ongoing == prepared
    had = after.producer_id, after.epoch
    assert after.end(commit=commit, version=end_version) == 0
    after.wait_for("CompleteCommit" if commit else "CompleteAbort")
    has = after.producer_id, after.epoch
    assert has == (had[0], had[1] + (end_version >= 5))
    after.producer_id, after.epoch = had
    assert after.end(commit=commit, version=end_version) == 0
    assert (after.producer_id, after.epoch) == has
    assert before.send(topic, b"late", version=12) == ErrorCode.INVALID_PRODUCER_EPOCH

    assert after.send(topic, b"next", version=12) == 0
    assert after.end(commit=True, version=5) == 0
    after.wait_for("CompleteCommit")
    data = raw.fetch(topic, 0, isolation_level=READ_COMMITTED)
    aborted = [(entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or []]
    assert aborted == ([] if commit else [(prepared[0], 0)])
    assert data.last_stable_offset == data.high_watermark == 4


def test_one_that_comes_back_to_nothing_begins_anew(
    new_topic: NewTopic, new_producer: NewProducer, committed: Committed
) -> None:
    """Its commit may have gone through before it heard of it."""
    topic = new_topic()
    producer = new_producer("nothing")
    assert producer.init(**KEEP) == 0
    assert producer.ongoing == NOTHING
    assert producer.send(topic, b"a", version=12) == 0
    assert producer.end(commit=True, version=5) == 0
    producer.init_patiently(**KEEP)
    assert producer.ongoing == NOTHING
    assert producer.send(topic, b"b", version=12) == 0
    assert producer.end(commit=True, version=5) == 0
    producer.wait_for("CompleteCommit")
    assert committed(topic) == [b"a", b"b"]


def test_who_does_not_ask_for_it_aborts_what_is_open(
    new_topic: NewTopic, new_producer: NewProducer, raw: RawClient
) -> None:
    topic = new_topic()
    before, keeping, after = new_producer("aborts"), new_producer("aborts"), new_producer("aborts")
    assert before.init(**TWO_PHASE) == 0
    assert before.send(topic, b"a", version=12) == 0
    assert keeping.init(**KEEP) == 0
    after.init_patiently()
    assert after.epoch > keeping.epoch > before.epoch
    assert keeping.end(commit=True, version=5) == ErrorCode.PRODUCER_FENCED
    assert [entry.first_offset for entry in raw.fetch(topic, 0, isolation_level=1).aborted_transactions or []] == [0]


def test_who_names_an_identity_has_nothing_to_come_back_to(new_producer: NewProducer) -> None:
    producer = new_producer("named")
    assert producer.init(**TWO_PHASE) == 0
    assert producer.init(names_itself=True, **KEEP) == ErrorCode.INVALID_REQUEST
    assert producer.init(names_itself=True, **TWO_PHASE) == 0


@pytest.mark.parametrize("end", [Broker.stop, Broker.crash])
def test_what_is_prepared_survives_restarts_at_every_step(
    tmp_path: Path,
    connect: Connect,
    new_producer_at: NewProducerAt,
    records: ReadRecords,
    end: Callable[[Broker], None],
) -> None:
    broker = Broker(data_dir=tmp_path, settings=SETTINGS).start()
    broker.create_topic("t")

    def restarted() -> TransactionalProducer:
        end(broker)
        broker.start()
        return new_producer_at(connect(broker), "tx")

    producer = new_producer_at(connect(broker), "tx")
    assert producer.init(**TWO_PHASE) == 0
    expected: list[bytes | None] = []
    for number in range(3):
        assert producer.send("t", b"%d" % number, version=12) == 0
        prepared = producer.producer_id, producer.epoch
        for _ in range(2):
            producer = restarted()
            producer.init_patiently(**KEEP)
            assert producer.ongoing == prepared
        assert read_committed(producer.raw, records, "t") == expected
        had = producer.producer_id, producer.epoch
        # One more between the answer that keeps and the end, which then is of a producer that stayed.
        producer = restarted()
        producer.producer_id, producer.epoch = had
        deadline_s = time.monotonic() + 20
        while error := producer.end(commit=True, version=5):
            assert error in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
            assert time.monotonic() < deadline_s
        producer = restarted()
        producer.init_patiently(**KEEP)
        assert producer.ongoing == NOTHING
        expected.append(b"%d" % number)
    assert read_committed(producer.raw, records, "t") == expected
    broker.stop()
