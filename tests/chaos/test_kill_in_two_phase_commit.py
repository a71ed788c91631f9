"""The broker is killed with -9 between the two phases of a commit: what an engine has decided elsewhere comes true.

An engine writes a transaction to all partitions, notes in its database which one it has prepared and that it is to be
committed, and commits it. The broker dies, the engine starts anew, or both, at any of these steps.
"""

from __future__ import annotations

import enum
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pytest

from tidelog.protocol import Api, ErrorCode
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.protocol.messages.k26_end_txn import END_TXN, EndTxnRequest, EndTxnResponse
from tidelog.records import encode_batch
from tidelog.testing.raw_client import RawClient

if TYPE_CHECKING:
    from tests.chaos.conftest import ReadCommitted, ServedBroker, StartServed

TOPIC = "sink"
PARTITIONS = 3
WAIT_S = 30.0
SETTINGS = {
    "transaction.two.phase.commit.enable": "true",
    "unstable.api.versions.enable": "true",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
    "transaction.state.log.num.partitions": 3,
}
AGAIN = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)

ResponseT = TypeVar("ResponseT")


class Identity(NamedTuple):
    producer_id: int
    producer_epoch: int


NOTHING = Identity(-1, -1)


class Step(enum.Enum):
    """Where a broker may die."""

    INITIALIZED = enum.auto()
    WRITTEN_HALF = enum.auto()
    WRITTEN = enum.auto()
    DECIDED = enum.auto()
    ASKED_TO_KEEP = enum.auto()
    KEPT = enum.auto()
    ASKED_TO_END = enum.auto()
    ENDED = enum.auto()


class Database:
    """The engine's own: it survives everything here. A transaction is to be committed when it is noted."""

    def __init__(self) -> None:
        self.prepared: dict[Identity, int] = {}


class Engine:
    """One incarnation of a sink that takes part in two-phase commits; `at` is called at each step."""

    def __init__(self, broker: ServedBroker, name: str, database: Database, at: Callable[[Step], None]) -> None:
        self.broker = broker
        self.name = name
        self.database = database
        self.at = at
        self.identity = NOTHING
        self.client: RawClient | None = None

    def close(self) -> None:
        if self.client is not None:
            self.client.close()

    def recover(self) -> None:
        """Begin, and end what the incarnation before left open as the database says."""
        response = self._init()
        self.identity = Identity(response.producer_id, response.producer_epoch)
        ongoing = Identity(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
        self.at(Step.KEPT)
        if ongoing != NOTHING:
            self._end(committed=ongoing in self.database.prepared)
        self.at(Step.INITIALIZED)

    def write(self, number: int, *, is_decided: bool) -> None:
        """The transaction of this number, committed if the database comes to note it."""
        for index in range(PARTITIONS):
            self._produce(index, b"%d" % number)
            self.at(Step.WRITTEN_HALF if index < PARTITIONS - 1 else Step.WRITTEN)
        if is_decided:
            self.database.prepared[self.identity] = number
            self.at(Step.DECIDED)
        self._end(committed=is_decided)
        self.at(Step.ENDED)

    def _init(self) -> InitProducerIdResponse:
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name])
        self._ask(FIND_COORDINATOR, find, FindCoordinatorResponse, 5, lambda found: found.coordinators[0].error_code)
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=1000, enable2_pc=True, keep_prepared_txn=True
        )
        response, code = self._ask(
            INIT_PRODUCER_ID,
            request,
            InitProducerIdResponse,
            6,
            lambda given: given.error_code,
            sent=Step.ASKED_TO_KEEP,
        )
        assert code is ErrorCode.NONE
        return response

    def _produce(self, index: int, value: bytes) -> None:
        batch = encode_batch(
            [(None, value, (), time.time_ns() // 1_000_000)],
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=0,
            is_transactional=True,
        )
        data = PartitionProduceData(index=index, records=batch)
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])],
        )
        _, code = self._ask(
            PRODUCE, request, ProduceResponse, 12, lambda done: done.responses[0].partition_responses[0].error_code
        )
        assert code is ErrorCode.NONE

    def _end(self, *, committed: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            committed=committed,
        )
        response, code = self._ask(
            END_TXN, request, EndTxnResponse, 5, lambda ended: ended.error_code, sent=Step.ASKED_TO_END
        )
        assert code is ErrorCode.NONE, code
        self.identity = Identity(response.producer_id, response.producer_epoch)

    def _ask(
        self,
        api: Api,
        request: object,
        response: type[ResponseT],
        version: int,
        error_of: Callable[[ResponseT], int],
        *,
        sent: Step | None = None,
    ) -> tuple[ResponseT, ErrorCode]:
        """Ask until there is an answer; whatever is asked here may be asked twice."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            assert time.monotonic() < deadline_s, f"no answer to {api.name}"
            try:
                if self.client is None:
                    self.client = RawClient(self.broker.port)
                correlation_id = self.client.send(api, request, version)
                if sent is not None:
                    self.at(sent)
                answered_id, answer = self.client.receive(api, response, version)
                assert answered_id == correlation_id
            except OSError:
                self.close()
                self.client = None
                continue
            code = ErrorCode(error_of(answer))
            if code not in AGAIN:
                return answer, code


class Restarted(Exception):  # noqa: N818 - it is no error, but what the test wants
    """The engine is gone; another incarnation begins."""


class Fate:
    """Kills the broker at the chosen steps, and the engine with it now and then."""

    def __init__(self, broker: ServedBroker, rng: random.Random, kills: int) -> None:
        self.broker = broker
        self.rng = rng
        # Every step is hit, then those that chance chooses.
        self.plan = list(Step) + [rng.choice(list(Step)) for _ in range(kills - len(Step))]
        self.kills = 0
        self._countdown = 1

    @property
    def is_over(self) -> bool:
        return not self.plan

    def at(self, step: Step) -> None:
        if self.is_over or step is not self.plan[0]:
            return
        self._countdown -= 1
        if self._countdown:
            return
        self.plan.pop(0)
        self._countdown = self.rng.randint(1, 3)
        self.kills += 1
        self.broker.kill()
        self.broker.start()
        if self.rng.random() < 0.6:
            raise Restarted


@pytest.mark.parametrize(
    ("seed", "kills"), [(939, len(Step)), *[pytest.param(seed, 60, marks=pytest.mark.soak) for seed in range(1, 4)]]
)
def test_what_was_decided_elsewhere_is_committed_and_nothing_else(
    serve: StartServed, read_committed: ReadCommitted, seed: int, kills: int
) -> None:
    broker = serve(SETTINGS)
    broker.create_topic(TOPIC, PARTITIONS)
    rng = random.Random(seed)
    fate, database = Fate(broker, rng, kills), Database()
    number = 0
    engine: Engine | None = None
    while not (fate.is_over and number % 5 == 0):
        try:
            if engine is None:
                engine = Engine(broker, "engine", database, fate.at)
                engine.recover()
            number += 1
            engine.write(number, is_decided=rng.random() < 0.7)
            if rng.random() < 0.2:
                raise Restarted
        except Restarted:
            assert engine is not None
            engine.close()
            engine = None
    # Whatever the last incarnation left is ended by one more.
    last = Engine(broker, "engine", database, fate.at)
    last.recover()
    last.close()
    if engine is not None:
        engine.close()
    found = read_committed(broker, TOPIC, PARTITIONS)
    decided = sorted(database.prepared.values())
    assert len(decided) >= kills / 4
    for index in range(PARTITIONS):
        assert [int(value) for partition, value in found if partition == index] == decided, f"partition {index}"
    assert fate.kills == kills
