"""Produce, versions 3 to 13.

3 brings the transactional id and record batches of magic 2, the only ones taken. 4 to 6 may answer KAFKA_STORAGE_ERROR
and (5) tell the log start offset. 7 allows zstd (KIP-110). 8 tells which records made a batch fail (KIP-467). 9 is
flexible. 10 names the current leader and its address after NOT_LEADER_OR_FOLLOWER (KIP-951). 11 may answer
TRANSACTION_ABORTABLE, and 12 adds partitions to transactions by itself (KIP-890). 13 names topics by id (KIP-516).

A log that is at rest since the start is opened by a thread first, and all that comes for it meanwhile waits.

A batch that would begin a transaction in its partition is appended once the transaction's coordinator has confirmed it,
and one whose records take long to check once a thread has checked them. What the same connection sent to the partition
before is appended before. Whatever waits counts as received memory until it is appended or refused.

Every partition succeeds or fails on its own. A produce never creates a topic. With acks=0 there is no answer, and an
error closes the connection, the one sign that such a producer can notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from math import inf
from time import monotonic

from tidelog.broker.arrival_order import Place
from tidelog.broker.delayed_produce import PendingAppend
from tidelog.broker.log_opening import Turn
from tidelog.broker.partition import ACKS_ALL, ACKS_LEADER, ACKS_NONE, Partition
from tidelog.broker.registry import CloseConnection, handles
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.broker.txn_verification import BeginningTransaction, adds_partitions, first_sequence, produce_error
from tidelog.common.light_dataclass import dataclass
from tidelog.common.steps import Steps, run_with_pauses
from tidelog.log.txn_guard import TransactionGuard
from tidelog.log.validation import LOOP_PLAIN_BYTES_MAX, LongCheckError, ValidatedBatch, takes_long
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.records import TRANSACTIONAL_BIT, Compression, CorruptBatchError, parse_header

_TOPIC_IDS_FROM = 13
_CURRENT_LEADER_FROM = 10
_ZSTD_FROM = 7
_ACKS = frozenset({ACKS_ALL, ACKS_NONE, ACKS_LEADER})
_BATCH_ATTRIBUTES_LOW_BYTE = 22
_CODEC_MASK = 0x07

_PARTITIONS_AT_ONCE_MAX = 64
"""A request for more than these is appended in steps."""

_LOOP_S_MAX = 0.01
"""How long one request may hold the event loop; what is left of it then is appended later, with pauses for others."""

_LOOP_CHECKED_BYTES_MAX = 2 * LOOP_PLAIN_BYTES_MAX
"""How many bytes of one request are checked on the loop; what is left of them is validated in threads."""

_BUFFER_SHARE_MAX = 2
"""Records that wait are copied out of a buffer that is this many times as large as the request they came in."""

# Most responses say nothing here; sharing one object saves making it a partition.
_NO_LEADER = LeaderIdAndEpoch()

Pending = PendingAppend[PartitionProduceResponse]


@dataclass(slots=True)
class Deferred:
    """A batch that can't be appended at once, what it waits for, and where its answer goes."""

    partition: Partition
    index: int
    records: memoryview | None
    answers: list[PartitionProduceResponse]
    slot: int
    transaction: BeginningTransaction | None  # to be confirmed by its coordinator
    turn: Place | None = None  # among what its connection sent to the partition
    check: asyncio.Future[ValidatedBatch] | None = None  # running in a thread

    def end(self) -> None:
        """It is appended or refused, or nobody waits for it any more."""
        if self.turn is not None:
            self.turn.end()
        if self.transaction is not None:
            self.transaction.end_turn()
        if self.check is not None:
            self.check.cancel()
            self.check = None
        self.records = None


ProduceResult = ProduceResponse | Coroutine[None, None, ProduceResponse] | asyncio.Task[ProduceResponse | None] | None


@handles(PRODUCE, "3-13")
def handle_produce(request: ProduceRequest, context: RequestContext) -> ProduceResult | Steps[ProduceResult]:
    replicas = context.services.replicas
    opening = replicas.log_opening
    if not opening.is_idle:
        partitions = _found(replicas, request, context.version)
        if any(map(opening.must_wait, partitions)):
            turn = opening.take_turn(partitions)
            _keep_records(request, context)
            context.hold_request()
            later = asyncio.get_running_loop().create_task(_append_when_open(request, context, turn))

            def end(_: asyncio.Future[ProduceResponse | None]) -> None:
                opening.end_turn(turn)
                context.release_request()

            # However it ends: a task that is cancelled before it began ran nothing of its own.
            later.add_done_callback(end)
            return later
    if _names_many(request):
        _keep_records(request, context)
        return _append_in_steps(request, context)
    return _append(request, context)


def _names_many(request: ProduceRequest) -> bool:
    count = len(request.topic_data)
    for topic in request.topic_data:
        count += len(topic.partition_data)
    return count > _PARTITIONS_AT_ONCE_MAX


def _keep_records(request: ProduceRequest, context: RequestContext) -> None:
    """Have the whole request wait: its records may have to be copied for that."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if isinstance(data.records, memoryview):
                kept = _kept(data.records, context)
                if kept is data.records:
                    return  # all of them are in the same buffer
                data.records = kept


async def _append_when_open(request: ProduceRequest, context: RequestContext, turn: Turn) -> ProduceResponse | None:
    """Append once the logs are open, behind all that came before."""
    opening = context.services.replicas.log_opening
    await opening.wait(turn)
    try:
        if _names_many(request):
            result = await run_with_pauses(_append_in_steps(request, context))
        else:
            result = _append(request, context)
    finally:
        opening.end_turn(turn)
    if result is None or isinstance(result, ProduceResponse):
        return result
    del request
    if not isinstance(result, asyncio.Task):
        # All is appended. What is left to do is to wait for the acknowledgement.
        context.release_request()
    return await result


def _found(replicas: ReplicaManager, request: ProduceRequest, version: int) -> list[Partition]:
    """The partitions of a request that are here; what is wrong with others, the append says."""
    found: dict[Partition, None] = {}
    for topic in request.topic_data:
        for data in topic.partition_data:
            with suppress(KafkaError):
                found[_find(replicas, topic, data.index, version)] = None
    return list(found)


def _append(request: ProduceRequest, context: RequestContext) -> ProduceResult:
    appending = _Appending(request, context, monotonic() + _LOOP_S_MAX)
    for topic in request.topic_data:
        answers = appending.begin_topic(topic)
        for data in topic.partition_data:
            appending.append(topic, data, answers)
    return appending.result()


def _append_in_steps(request: ProduceRequest, context: RequestContext) -> Steps[ProduceResult]:
    """The same for many partitions, with pauses. The connection's next request starts when all of this is done."""
    context.hold_request()
    appending = _Appending(request, context, inf)
    result: ProduceResult = None
    try:
        for topic in request.topic_data:
            answers = appending.begin_topic(topic)
            for data in topic.partition_data:
                appending.append(topic, data, answers)
                yield 0
        result = appending.result()
        return result
    except GeneratorExit:
        # The connection is gone; what is left of its request is not appended any more.
        _end(appending.deferred)
        raise
    finally:
        if not isinstance(result, asyncio.Task):
            context.release_request()


class _Appending:
    """The appends of one request; those that would begin after `until_s` are left for later."""

    __slots__ = (
        "_checked_bytes",
        "_context",
        "_has_failed",
        "_pending",
        "_request",
        "_response",
        "_unconfirmed",
        "_until_s",
        "deferred",
    )

    def __init__(self, request: ProduceRequest, context: RequestContext, until_s: float) -> None:
        self._request = request
        self._context = context
        self._until_s = until_s
        self._response = ProduceResponse(responses=[])
        self._pending: list[Pending] = []
        # Those that only wait for their coordinators, which may answer at once.
        self._unconfirmed: dict[Partition, Deferred] = {}
        self.deferred: list[Deferred] = []
        self._has_failed = False
        self._checked_bytes = 0

    def begin_topic(self, topic: TopicProduceData) -> list[PartitionProduceResponse]:
        """Where the answers of its partitions go."""
        answers: list[PartitionProduceResponse] = []
        self._response.responses.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
        return answers

    def append(
        self, topic: TopicProduceData, data: PartitionProduceData, answers: list[PartitionProduceResponse]
    ) -> None:
        """Append to one partition, or see to it that this happens later."""
        context, acks = self._context, self._request.acks
        replicas, version = context.services.replicas, context.version
        try:
            if acks not in _ACKS:
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
            partition = _find(replicas, topic, data.index, version)
            if partition in self._unconfirmed:
                self._defer_unconfirmed()
            records = _records(data, version)
            transaction = _begin_transaction(replicas, partition, records, self._request.transactional_id, version)
            is_long = False
            if records is not None:
                self._checked_bytes += len(records)
                is_long = self._checked_bytes > _LOOP_CHECKED_BYTES_MAX or takes_long(records, partition.log.config)
            must_wait = monotonic() > self._until_s or replicas.checks.must_wait(context.session, partition)
            if not (is_long or transaction or must_wait):
                try:
                    answers.append(_produce(replicas, partition, data.index, records, acks, self._pending))
                    return
                except LongCheckError:
                    is_long = True
            item = Deferred(partition, data.index, records, answers, len(answers), transaction)
            if is_long or must_wait or self._is_in_steps:
                self._defer(item, is_long=is_long)
            else:
                self._unconfirmed[partition] = item
            answers.append(PartitionProduceResponse(index=data.index))
        except KafkaError as error:
            answers.append(self._refuse(data.index, error))

    @property
    def _is_in_steps(self) -> bool:
        return self._until_s == inf

    def _refuse(self, index: int, error: KafkaError) -> PartitionProduceResponse:
        """The answer for a partition that nothing is appended to."""
        self._has_failed = True
        if self._request.acks == ACKS_NONE:
            _end(self.deferred)
            raise CloseConnection(f"sent records with acks=0 that failed: {error}") from error
        return _failure(index, error)

    def _defer(self, item: Deferred, *, is_long: bool) -> None:
        """Have a batch wait for its turn, and for what it needs besides."""
        context = self._context
        replicas = context.services.replicas
        if item.records is not None:
            item.records = _kept(item.records, context)
            if is_long:
                item.partition.check_writable()
                item.check = replicas.checks.start(context.session, item.partition, item.records)
        item.turn = replicas.checks.take_turn(context.session, item.partition)
        if item.transaction is not None:
            replicas.transactions.take_turn(item.transaction)
        self.deferred.append(item)

    def _defer_unconfirmed(self) -> None:
        for item in self._unconfirmed.values():
            self._defer(item, is_long=False)
        self._unconfirmed = {}

    def _append_confirmed(self) -> None:
        """Append what waits only for coordinators that answer at once."""
        context, request = self._context, self._request
        replicas, version = context.services.replicas, context.version
        begun = [item.transaction for item in self._unconfirmed.values() if item.transaction is not None]
        if not replicas.transactions.confirm_at_once(
            request.transactional_id or "", begun, add=adds_partitions(version)
        ):
            self._defer_unconfirmed()
            return
        for item in self._unconfirmed.values():
            try:
                item.answers[item.slot] = _produce_confirmed(
                    replicas, item, item.records, request.acks, self._pending, version
                )
            except LongCheckError:
                self._defer(item, is_long=True)
            except KafkaError as error:
                item.answers[item.slot] = self._refuse(item.index, error)

    def result(self) -> ProduceResult:
        """The response, or what to wait for until there is one."""
        if self._unconfirmed:
            self._append_confirmed()
        request, context, deferred = self._request, self._context, self.deferred
        if deferred:
            context.hold_request()
            # It must not refer to the request: the records may be freed once they are appended, before the answer is
            # due.
            appended = _append_deferred(
                context,
                self._response,
                deferred,
                self._pending,
                request.acks,
                request.timeout_ms,
                request.transactional_id,
            )
            answer = asyncio.get_running_loop().create_task(appended)

            def end(_: asyncio.Future[ProduceResponse | None]) -> None:
                _end(deferred)
                context.release_request()

            # However it ends: a task that is cancelled before it began ran nothing of its own.
            answer.add_done_callback(end)
            return answer
        if request.acks == ACKS_NONE:
            return None
        if self._pending:
            return _answer_later(context, self._response, self._pending, request.timeout_ms)
        return _answer(context, self._response) if self._has_failed else self._response


def _find(replicas: ReplicaManager, topic: TopicProduceData, index: int, version: int) -> Partition:
    if version >= _TOPIC_IDS_FROM:
        return replicas.find_by_id(topic.topic_id, index)
    return replicas.find(topic.name, index)


def _records(data: PartitionProduceData, version: int) -> memoryview | None:
    records = data.records
    if records is None:
        return None
    if not isinstance(records, memoryview):
        raise TypeError("decoded records are always a memoryview")
    if version < _ZSTD_FROM and _attributes(records) & _CODEC_MASK == Compression.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later")
    return records


def _kept(records: memoryview, context: RequestContext) -> memoryview:
    """The records in memory that may be kept while they wait: a small request must not keep a large buffer from use."""
    if memoryview(records.obj).nbytes < _BUFFER_SHARE_MAX * context.request_bytes:
        return records
    return memoryview(bytearray(records))


def _attributes(records: memoryview) -> int:
    return records[_BATCH_ATTRIBUTES_LOW_BYTE] if len(records) > _BATCH_ATTRIBUTES_LOW_BYTE else 0


def _produce(
    replicas: ReplicaManager,
    partition: Partition,
    index: int,
    records: memoryview | ValidatedBatch | None,
    acks: int,
    pending: list[Pending],
    guard: TransactionGuard | None = None,
) -> PartitionProduceResponse:
    result = replicas.append(partition, records, acks, guard=guard)
    answer = PartitionProduceResponse(
        index=index,
        base_offset=result.first_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        current_leader=_NO_LEADER,
    )
    if acks != ACKS_NONE:
        end_offset = result.last_offset + 1
        error = partition.acknowledgement(end_offset, partition.leader_epoch, acks)
        if error is None:
            pending.append(Pending(partition, end_offset, partition.leader_epoch, acks, answer))
        elif error:
            raise KafkaError(error)
    return answer


def _begin_transaction(
    replicas: ReplicaManager,
    partition: Partition,
    records: memoryview | None,
    transactional_id: str | None,
    version: int,
) -> BeginningTransaction | None:
    """What the transaction's coordinator must confirm before the batch is appended, if anything."""
    if records is None or not _attributes(records) & TRANSACTIONAL_BIT:
        return None
    if transactional_id is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch needs the id of its transaction"
        )
    try:
        header = parse_header(records)
    except CorruptBatchError:
        return None  # the append refuses it, and says why
    partition.check_writable()
    sequence = first_sequence(header.base_sequence, version)
    return replicas.transactions.begin(partition, header.producer_id, header.producer_epoch, sequence)


async def _append_deferred(
    context: RequestContext,
    response: ProduceResponse,
    deferred: list[Deferred],
    pending: list[Pending],
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
) -> ProduceResponse | None:
    """Append what could not be appended at once, each batch when its turn has come, and answer."""
    replicas, version = context.services.replicas, context.version
    begun = [item.transaction for item in deferred if item.transaction is not None]
    if begun:
        await replicas.transactions.confirm(transactional_id or "", begun, add=adds_partitions(version))
    until_s = monotonic() + _LOOP_S_MAX
    for item in deferred:
        try:
            item.answers[item.slot] = await _append_in_turn(context, item, acks, pending)
        except KafkaError as refusal:
            if acks == ACKS_NONE:
                raise CloseConnection(f"sent records with acks=0 that failed: {refusal}") from refusal
            item.answers[item.slot] = _failure(item.index, refusal)
        finally:
            item.end()
        if monotonic() > until_s:
            await asyncio.sleep(0)
            until_s = monotonic() + _LOOP_S_MAX
    context.release_request()
    if acks == ACKS_NONE:
        return None
    if pending:
        return await _answer_later(context, response, pending, timeout_ms)
    return _answer(context, response)


async def _append_in_turn(
    context: RequestContext, item: Deferred, acks: int, pending: list[Pending]
) -> PartitionProduceResponse:
    replicas, version = context.services.replicas, context.version
    assert item.turn is not None  # it was taken when the batch was deferred
    await item.turn.wait()
    if item.transaction is not None:
        await item.transaction.wait_for_turn()
    records = await item.check if item.check is not None else item.records
    try:
        return _produce_confirmed(replicas, item, records, acks, pending, version)
    except LongCheckError:
        assert isinstance(records, memoryview)  # a validated batch is not checked again
        item.check = replicas.checks.start(context.session, item.partition, records)
        return _produce_confirmed(replicas, item, await item.check, acks, pending, version)


def _produce_confirmed(
    replicas: ReplicaManager,
    item: Deferred,
    records: memoryview | ValidatedBatch | None,
    acks: int,
    pending: list[Pending],
    version: int,
) -> PartitionProduceResponse:
    """Append a batch, unless the coordinator of its transaction has refused it."""
    guard = None
    if item.transaction is not None:
        error = produce_error(item.transaction.error, version)
        if error is not None:
            raise error
        guard = item.transaction.guard
    return _produce(replicas, item.partition, item.index, records, acks, pending, guard)


def _end(deferred: list[Deferred]) -> None:
    for item in deferred:
        item.end()


def _failure(index: int, error: KafkaError) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in error.record_errors
        ],
        error_message=error.message,
    )


async def _answer_later(
    context: RequestContext, response: ProduceResponse, pending: list[Pending], timeout_ms: int
) -> ProduceResponse:
    await context.services.replicas.wait_for_acknowledgement(pending, timeout_ms)
    for append in pending:
        if append.error:
            append.response.error_code = append.error
            append.response.base_offset = -1
            append.response.log_append_time_ms = -1
    return _answer(context, response)


def _answer(context: RequestContext, response: ProduceResponse) -> ProduceResponse:
    if context.version < _CURRENT_LEADER_FROM:
        return response
    replicas = context.services.replicas
    leader_ids = set()
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                state = replicas.leader_state(topic.name, topic.topic_id, partition.index)
                if state is not None:
                    partition.current_leader = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
                    leader_ids.add(state.leader)
    if leader_ids:
        response.node_endpoints = [
            NodeEndpoint(node_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for broker, endpoint in replicas.endpoints(leader_ids, context.listener_name)
        ]
    return response
