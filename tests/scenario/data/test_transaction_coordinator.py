"""Transactions as a producer's coordinator keeps them: fencing, ends, time-outs and restarts, over plain sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.broker.internal_topics import partition_for
from tidelog.controller.image import PartitionState
from tidelog.coordinator.transaction import ProducerIdentity
from tidelog.coordinator.txn_requests import EndTxn
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import PartitionData
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.k25_add_offsets_to_txn import (
    ADD_OFFSETS_TO_TXN,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.protocol.messages.k66_list_transactions import (
    LIST_TRANSACTIONS,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tidelog.records import Record
from tidelog.server.server import BrokerServer
from tidelog.testing import Broker

if TYPE_CHECKING:
    from tests.scenario.data.conftest import RawClient, TransactionalProducer

ReadRecords = Callable[[PartitionData], list[Record]]
Connect = Callable[[Broker], "RawClient"]
WaitUntil = Callable[[Callable[[], bool], str], None]

READ_COMMITTED = 1
MARKER_KEYS = (b"\0\0\0\0", b"\0\0\0\1")
FEW_PARTITIONS = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3"}
IMPATIENT = FEW_PARTITIONS | {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "20"}


NewProducer = Callable[[str], "TransactionalProducer"]
NewProducerAt = Callable[["RawClient", str], "TransactionalProducer"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=FEW_PARTITIONS) as running:
        running.create_topic("t", partitions=2)
        yield running


@pytest.fixture
def new_producer(raw: RawClient, new_producer_at: NewProducerAt) -> NewProducer:
    return lambda transactional_id: new_producer_at(raw, transactional_id)


def values(raw: RawClient, records: ReadRecords, topic: str) -> list[bytes | None]:
    data = raw.fetch(topic, 0, isolation_level=READ_COMMITTED)
    aborted = {entry.producer_id for entry in data.aborted_transactions or []}
    assert not aborted, "read those that were not aborted only"
    return [record.value for record in records(data) if record.key not in MARKER_KEYS]


def test_a_producer_that_comes_back_shuts_out_the_one_before(new_producer: NewProducer) -> None:
    """Behaviour 56."""
    zombie, newer = new_producer("fencing"), new_producer("fencing")
    assert zombie.init() == 0
    assert zombie.add("t") == [0]
    assert zombie.send("t", b"a") == 0
    assert newer.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    newer.init_patiently()
    assert newer.producer_id == zombie.producer_id
    assert newer.epoch > zombie.epoch
    assert zombie.add("t") == [ErrorCode.PRODUCER_FENCED]
    assert zombie.add("t", version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert zombie.end(commit=True) == ErrorCode.PRODUCER_FENCED
    assert zombie.end(commit=True, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.end(commit=False, version=5) == ErrorCode.PRODUCER_FENCED
    assert zombie.send("t", b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert zombie.init(names_itself=True) == ErrorCode.PRODUCER_FENCED
    assert zombie.init(names_itself=True, version=3) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert newer.describe().transaction_state == "Empty"


def test_times_that_producers_may_ask_for(new_producer: NewProducer) -> None:
    """Behaviour 56."""
    producer = new_producer("long")
    assert producer.init(timeout_ms=900_001) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init(timeout_ms=0) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init(timeout_ms=900_000) == 0


def test_a_producer_that_failed_takes_the_next_epoch(new_producer: NewProducer) -> None:
    """Behaviour 56: with the id and epoch it has, and again when the answer was lost."""
    producer = new_producer("recovering")
    assert producer.init() == 0
    first = producer.producer_id, producer.epoch
    assert producer.init(names_itself=True) == 0
    assert (producer.producer_id, producer.epoch) == (first[0], first[1] + 1)
    producer.producer_id, producer.epoch = first
    assert producer.init(names_itself=True) == 0
    assert (producer.producer_id, producer.epoch) == (first[0], first[1] + 1)


@pytest.mark.parametrize("version", range(6))
def test_ends_in_every_version(broker: Broker, new_producer: NewProducer, version: int) -> None:
    """Behaviour 58."""
    producer = new_producer(f"ends-{version}")
    assert producer.init() == 0
    assert producer.end(commit=True, version=version) == ErrorCode.INVALID_TXN_STATE
    for commit in (True, False):
        assert producer.add("t") == [0]
        before = producer.producer_id, producer.epoch
        assert producer.end(commit=commit, version=version) == 0
        after = producer.producer_id, producer.epoch
        assert after == (before[0], before[1] + (version >= 5))
        producer.wait_for("CompleteCommit" if commit else "CompleteAbort")
        # The answer was lost and it is asked again, then for the other end.
        producer.epoch = before[1]
        assert producer.end(commit=commit, version=version) == 0
        assert (producer.producer_id, producer.epoch) == after
        producer.epoch = before[1]
        assert producer.end(commit=not commit, version=version) == ErrorCode.INVALID_TXN_STATE
        producer.producer_id, producer.epoch = after


def test_an_end_is_answered_before_its_markers_are_written(broker: Broker, new_producer: NewProducer) -> None:
    producer = new_producer("answered-first")
    assert producer.init() == 0
    assert producer.add("t") == [0]
    ask = EndTxn(producer.transactional_id, ProducerIdentity(producer.producer_id, producer.epoch), committed=True)

    async def end(server: BrokerServer) -> tuple[int, int, int]:
        log = server.services.replicas.find("t", 0).log
        before = log.log_end_offset
        answer = server.services.transactions.ask(
            ask.transactional_id, lambda shard, now, exchange: shard.end_txn(ask, now, exchange)
        )
        at_answer = log.log_end_offset - before
        await asyncio.sleep(0)
        return answer.error, at_answer, log.log_end_offset - before

    assert broker.call(end) == (0, 0, 1)
    producer.wait_for("CompleteCommit")


class SilentFollower:
    """A second replica of a partition, in sync and far away: what is appended is committed when the test says so."""

    def __init__(self, broker: Broker, topic: str, partition: int) -> None:
        self.broker = broker
        self._name = topic, partition
        broker.call(self._set_replicas((1, 2)))

    def catch_up(self) -> None:
        self.broker.call(self._catch_up)

    def remove(self) -> None:
        self.broker.call(self._set_replicas((1,)))

    def _set_replicas(self, replicas: tuple[int, ...]) -> Callable[[BrokerServer], Coroutine[None, None, None]]:
        async def change(server: BrokerServer) -> None:
            partition = server.services.replicas.find(*self._name)
            state = PartitionState(
                replicas=replicas,
                isr=replicas,
                leader=1,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch + 1,
            )
            partition.apply(state)
            server.services.replicas._purgatory.check(partition)

        return change

    async def _catch_up(self, server: BrokerServer) -> None:
        partition = server.services.replicas.find(*self._name)
        partition.update_follower(2, partition.log.log_end_offset, 0, 1)
        server.services.replicas._purgatory.check(partition)


@pytest.fixture
def add_follower(broker: Broker) -> Iterator[Callable[[str, int], SilentFollower]]:
    with ExitStack() as followers:

        def add(topic: str, partition: int) -> SilentFollower:
            follower = SilentFollower(broker, topic, partition)
            followers.callback(follower.remove)
            return follower

        yield add


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_counts_once_it_is_replicated(
    broker: Broker,
    new_producer: NewProducer,
    add_follower: Callable[[str, int], SilentFollower],
    wait_until: WaitUntil,
    committed: bool,
) -> None:
    """Until then the leader may fail, and another broker lead the partition without the marker."""
    producer = new_producer(f"replicated-{committed}")
    assert producer.init() == 0
    assert producer.add("t") == [0]
    assert producer.send("t", b"x") == 0

    async def end_of_log(server: BrokerServer) -> int:
        return server.services.replicas.find("t", 0).log.log_end_offset

    follower = add_follower("t", 0)
    follower.catch_up()
    before = broker.call(end_of_log)
    assert producer.end(commit=committed) == 0
    wait_until(lambda: broker.call(end_of_log) == before + 1, "the marker is appended")
    assert producer.describe().transaction_state.startswith("Prepare")
    # Nor is the transaction over for its producer.
    assert producer.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    follower.catch_up()
    producer.wait_for("CompleteCommit" if committed else "CompleteAbort")


def test_offsets_of_a_transaction_count_once_its_marker_is_replicated(
    broker: Broker,
    raw: RawClient,
    new_producer: NewProducer,
    add_follower: Callable[[str, int], SilentFollower],
    wait_until: WaitUntil,
) -> None:
    group_id = "replicated-offsets"
    find = FindCoordinatorRequest(coordinator_keys=[group_id])
    assert raw.ask(FIND_COORDINATOR, 4, find, FindCoordinatorResponse).coordinators[0].error_code == 0
    producer = new_producer("replicated-offsets")
    assert producer.init() == 0
    commit = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t", partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
            )
        ],
    )
    answer = raw.ask(TXN_OFFSET_COMMIT, 5, commit, TxnOffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == 0

    def committed() -> tuple[int, int]:
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        fetch = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)], require_stable=True
        )
        [found] = raw.ask(OFFSET_FETCH, 8, fetch, OffsetFetchResponse).groups[0].topics[0].partitions
        return found.committed_offset, found.error_code

    partition = partition_for(group_id, 3)
    follower = add_follower("__consumer_offsets", partition)
    follower.catch_up()

    async def end_of_log(server: BrokerServer) -> int:
        return server.services.replicas.find("__consumer_offsets", partition).log.log_end_offset

    before = broker.call(end_of_log)
    assert producer.end(commit=True, version=5) == 0
    wait_until(lambda: broker.call(end_of_log) == before + 1, "the marker is appended")
    assert committed() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    follower.catch_up()
    wait_until(lambda: committed() == (5, 0), "the offset is committed")


def test_what_is_refused_in_a_transaction(new_producer: NewProducer) -> None:
    """Behaviour 58."""
    producer = new_producer("refused")
    assert producer.add("t") == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert producer.end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert producer.init() == 0
    assert producer.add("t", partitions=(0, 9)) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    producer.producer_id += 1_000_000
    assert producer.add("t") == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert producer.end(commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_records_of_partitions_that_were_not_added_are_refused(new_producer: NewProducer) -> None:
    """Behaviour 60: brokers ask before a transaction begins in a partition; newer producers have it added then."""
    producer = new_producer("verified")
    assert producer.init() == 0
    assert producer.verify("t", 4) == ErrorCode.INVALID_TXN_STATE
    assert producer.verify("t", 5) == ErrorCode.TRANSACTION_ABORTABLE
    assert producer.send("t", b"a", version=10) == ErrorCode.INVALID_TXN_STATE
    assert producer.send("t", b"a", version=11) == ErrorCode.TRANSACTION_ABORTABLE
    assert producer.send("t", b"a", version=12) == 0
    assert producer.verify("t", 5) == 0
    [topic] = producer.describe().topics
    assert (topic.topic, topic.partitions) == ("t", [0])
    assert producer.end(commit=False, version=5) == 0


def test_offsets_are_part_of_a_transaction(raw: RawClient, new_producer: NewProducer) -> None:
    producer = new_producer("offsets")
    assert producer.init() == 0
    request = AddOffsetsToTxnRequest(
        transactional_id="offsets", producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id="g"
    )
    for version in range(5):
        assert raw.ask(ADD_OFFSETS_TO_TXN, version, request, AddOffsetsToTxnResponse).error_code == 0
    [topic] = producer.describe().topics
    assert (topic.topic, len(topic.partitions)) == ("__consumer_offsets", 1)
    request.producer_epoch += 5
    errors = [raw.ask(ADD_OFFSETS_TO_TXN, version, request, AddOffsetsToTxnResponse).error_code for version in (1, 2)]
    assert errors == [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED]
    assert producer.end(commit=True) == 0
    producer.wait_for("CompleteCommit")


def test_transactions_are_listed_and_described(raw: RawClient, new_producer: NewProducer) -> None:
    """Behaviour 61."""
    open_, idle = new_producer("listed-open"), new_producer("listed-idle")
    assert (open_.init(), idle.init()) == (0, 0)
    assert open_.add("t", partitions=(0, 1)) == [0, 0]

    def listed(version: int = 2, **filters: object) -> dict[str, str]:
        request = ListTransactionsRequest(transactional_id_pattern="listed-.*" if version > 1 else None)
        for name, value in filters.items():
            setattr(request, name, value)
        answer = raw.ask(LIST_TRANSACTIONS, version, request, ListTransactionsResponse)
        assert answer.error_code == 0
        return {row.transactional_id: row.transaction_state for row in answer.transaction_states}

    assert listed() == {"listed-open": "Ongoing", "listed-idle": "Empty"}
    assert listed(state_filters=["Ongoing", "Whatever"]) == {"listed-open": "Ongoing"}
    assert listed(producer_id_filters=[idle.producer_id]) == {"listed-idle": "Empty"}
    assert "listed-open" not in listed(1, duration_filter=3_600_000)
    assert listed(0).items() >= listed().items()
    request = ListTransactionsRequest(state_filters=["Whatever"])
    assert raw.ask(LIST_TRANSACTIONS, 2, request, ListTransactionsResponse).unknown_state_filters == ["Whatever"]
    request = ListTransactionsRequest(transactional_id_pattern="(")
    answer = raw.ask(LIST_TRANSACTIONS, 2, request, ListTransactionsResponse)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    described = open_.describe()
    assert (described.transaction_state, described.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert (described.producer_id, described.producer_epoch) == (open_.producer_id, open_.epoch)
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("t", [0, 1])]
    open_.transactional_id = "nobody"
    assert open_.describe().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_the_version_of_transactions_is_announced(raw: RawClient) -> None:
    """Behaviour 58."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = raw.ask(API_VERSIONS, 4, request, ApiVersionsResponse)
    [feature] = [feature for feature in answer.finalized_features if feature.name == "transaction.version"]
    assert (feature.min_version_level, feature.max_version_level) == (2, 2)


def test_a_transaction_that_takes_too_long_is_aborted(
    connect: Connect, new_producer_at: NewProducerAt, records: ReadRecords
) -> None:
    """Behaviour 60: by the coordinator, and its producer is shut out."""
    with Broker(settings=IMPATIENT) as broker:
        broker.create_topic("t")
        raw = connect(broker)
        producer = new_producer_at(raw, "slow")
        assert producer.init(timeout_ms=1) == 0
        assert producer.add("t") == [0]
        producer.wait_for("CompleteAbort")
        assert producer.end(commit=True) == ErrorCode.PRODUCER_FENCED
        assert producer.send("t", b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert producer.init() == 0
        assert producer.add("t") == [0]
        assert producer.send("t", b"in time") == 0
        assert producer.end(commit=True) == 0
        producer.wait_for("CompleteCommit")
        assert values(raw, records, "t") == [b"in time"]


def test_transactions_wait_for_the_flush_that_the_broker_asks_for(
    connect: Connect, new_producer_at: NewProducerAt, records: ReadRecords
) -> None:
    """No record and no marker is committed at once then, so that requests meet writes that are under way."""
    with Broker(settings=FEW_PARTITIONS | {"log.flush.interval.messages": "1"}) as broker:
        broker.create_topic("t")
        producers = [new_producer_at(connect(broker), "tx") for _ in range(2)]
        for number in range(10):
            producer = producers[number % 2]
            producer.init_patiently()
            assert producer.add("t") == [0]
            assert producer.send("t", b"%d" % number) == 0
            assert producer.end(commit=True, version=4 + number % 2) == 0
        producer.wait_for("CompleteCommit")
        assert values(producer.raw, records, "t") == [b"%d" % number for number in range(10)]


def test_open_transactions_and_ids_survive_restarts(
    tmp_path: Path, connect: Connect, new_producer_at: NewProducerAt, records: ReadRecords
) -> None:
    broker = Broker(data_dir=tmp_path, settings=FEW_PARTITIONS).start()
    broker.create_topic("t")
    producer = new_producer_at(connect(broker), "tx")
    assert producer.init() == 0
    for number, end in enumerate((Broker.stop, Broker.crash)):
        assert producer.add("t") == [0]
        assert producer.send("t", b"%d before" % number) == 0
        end(broker)
        broker.start()
        producer.raw = connect(broker)
        deadline_s = time.monotonic() + 20
        while (errors := producer.add("t")) != [0]:
            assert errors[0] in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
            assert time.monotonic() < deadline_s
        assert producer.send("t", b"%d after" % number) == 0
        assert producer.end(commit=True) == 0
        producer.wait_for("CompleteCommit")
    assert values(producer.raw, records, "t") == [b"0 before", b"0 after", b"1 before", b"1 after"]
    broker.stop()
