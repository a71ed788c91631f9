"""The sender: takes batches that are ready, sends them to their partitions' leaders, and acts on the responses.

What always holds: each broker has at most `max.in.flight.requests.per.connection` requests in flight, each with at most
one batch per partition. Every batch that was taken ends delivered or failed, or returns to its queue. A failed batch is
retried only while its error is temporary and its `retries` and `delivery.timeout.ms` last. A batch that times out in
flight fails immediately, but its memory is not reused before the broker has answered or the connection is gone: it may
still be on its way out.

Everything here runs on the event loop, in callbacks, with two exceptions. `wake` may be called from any thread. A
thread that waits for a record may send its batch itself and wait for the response (`send_from_caller`), over a
connection that only such threads use: that saves two thread switches, which cost more than everything else. It does so
only while nothing else of the partition is waiting or in flight, and nothing else of it goes out meanwhile. `_lock`
guards the state that both use.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from tidelog.client.errors import (
    BrokerError,
    ClientError,
    ClosedError,
    ConnectionLostError,
    RequestTimeoutError,
    RetriableError,
    error_code,
    raise_for,
)
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.outage import Reminders
from tidelog.client.producer.accumulator import Accumulator, PartitionQueue
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.failure_log import FailureLog
from tidelog.client.producer.hooks import TransactionHooks
from tidelog.client.producer.idempotence import Idempotence
from tidelog.client.producer.metrics import ProducerCounters
from tidelog.client.producer.produce_request import BuiltRequest, answers_of, build_request, nodes_of
from tidelog.client.producer.settings import ProducerSettings
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, PartitionProduceResponse, ProduceResponse
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

logger = logging.getLogger(__name__)

# These codes mean that another broker leads the partition, or none.
_LEADER_ERRORS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
# Freed memory is passed to waiting threads in portions of this share of the whole, not batch by batch: a thread switch
# costs more than a batch.
_MEMORY_PORTIONS = 8
_NEVER_MS = float("inf")
# A producer that waits for single records this often gets a second connection to speed that up.
_WAITS_BEFORE_LENDING = 3
# How far `linger.ms` may be exceeded when threads that send by themselves stop doing so. As long as they go on, they
# wake the sender for whatever else waits. With 1 ms, each of their sends took 8 % longer and a fifth more CPU time.
_CALLER_SLACK_MS = 4.0
_NO_TRANSACTION_TIMEOUT_MS = 0x7FFFFFFF  # it means nothing without transactions; Kafka's client does the same


class _Broker:
    """The state of a broker that leads partitions."""

    __slots__ = ("blocked_until_ms", "in_flight", "stuck_since_ms")

    def __init__(self) -> None:
        self.in_flight = 0
        self.blocked_until_ms = 0.0  # the broker asked for a pause
        self.stuck_since_ms: float | None = None  # since when something has been ready for it without being sent


class _Lent:
    """A connection to one broker for threads that send by themselves, one at a time."""

    __slots__ = ("_connection", "is_busy", "is_gone", "wanted")

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self.is_busy = False
        self.is_gone = False  # the loop has taken it back
        self.wanted = 0  # how often a thread wanted it before it existed

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def connection(self) -> Connection:
        assert self._connection is not None  # only called when it exists
        return self._connection

    def lend(self, connection: Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        """Called on the loop."""
        if self._connection is not None:
            if self.is_busy and not self.is_gone:
                self._connection.interrupt()
            else:
                self._connection.take_back()
                self._connection.close()


class Sender:
    """Sends what the accumulator has."""

    def __init__(
        self,
        settings: ProducerSettings,
        cluster: Cluster,
        accumulator: Accumulator,
        idempotence: Idempotence | None,
        hooks: TransactionHooks | None,
        now_ms: Callable[[], float],
        on_fatal: Callable[[ClientError], None],
    ) -> None:
        self.counters = ProducerCounters()
        self._settings = settings
        self._cluster = cluster
        self._accumulator = accumulator
        self._idempotence = idempotence
        self._hooks = hooks
        self._now_ms = now_ms
        self._on_fatal = on_fatal
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread_id = 0
        self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = _NEVER_MS
        self._brokers: dict[int, _Broker] = {}
        self._under_way: dict[ProducerBatch, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # running background requests, see below
        self._connecting: set[int] = set()
        self._unreachable = Reminders()
        self._stale_topics: set[str] = set()  # topics whose leaders must be looked up
        self._is_asking_leaders = False
        self._leader_failures = 0
        self._ask_leaders_at_ms = 0.0
        self._is_asking_producer_id = False
        # Held by the loop while it works, and by a thread that sends its own batch before and after the exchange.
        self._lock = threading.RLock()
        self.sends_from_callers = 0
        self._sends_from_callers_seen = 0
        self._lent: dict[int, _Lent] = {}  # by node: the connections of those threads
        self._last_errors: dict[TopicPartition, ClientError] = {}
        self._failures = FailureLog()
        self._is_stopped = False

    def start(self) -> None:
        """Start, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread_id = threading.get_ident()
        self._look_soon()

    def stop(self) -> None:
        """Send nothing more; don't wait for what is in flight."""
        self._is_stopped = True
        self._accumulator.stop()
        with self._lock:
            self._failures.tell_all()
        for lent in self._lent.values():
            lent.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def wake(self) -> None:
        """There may be something to send. Called from any thread; many calls before the next look cost one."""
        loop = self._loop
        if self._is_woken or loop is None or self._is_stopped:
            return
        self._is_woken = True
        try:
            if threading.get_ident() == self._loop_thread_id:
                loop.call_soon(self._look)  # waking the loop from outside costs a system call
            else:
                loop.call_soon_threadsafe(self._look)
        except RuntimeError:
            logger.debug("the event loop of a producer is closed, nothing more is sent")

    def _look_soon(self) -> None:
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            self._loop.call_soon(self._look)

    @property
    def requests_in_flight(self) -> int:
        return sum(broker.in_flight for broker in self._brokers.values())

    @property
    def has_under_way(self) -> bool:
        return bool(self._under_way)

    # Finding batches to send

    def _look(self) -> None:
        with self._lock:
            self._look_now()

    def _look_now(self) -> None:
        # Set before looking: anything appended from here on wakes again, whatever was planned.
        self._is_woken = False
        self._accumulator.next_look_ms = _NEVER_MS
        if self._is_stopped:
            return
        now_ms = self._now_ms()
        accumulator = self._accumulator
        next_ms = min(self._expire(now_ms), self._failures.tell(now_ms))
        if self._has_producer_id():
            next_ms = min(next_ms, self._send_ready(now_ms))
        if accumulator.pool.has_waiters:
            is_idle = not self._under_way
            with accumulator.lock:
                pool = accumulator.pool
                pool.wake_waiters(at_least=0 if is_idle else pool.memory_bytes // _MEMORY_PORTIONS)
        accumulator.wake_slack_ms = 0.0
        if self.sends_from_callers != self._sends_from_callers_seen:
            # Threads are sending by themselves, and waking this one each time would only get in their way: it looks at
            # regular intervals instead, until they stop.
            self._sends_from_callers_seen = self.sends_from_callers
            accumulator.wake_slack_ms = _CALLER_SLACK_MS
            next_ms = min(next_ms, now_ms + max(self._settings.linger_ms, _CALLER_SLACK_MS))
        self._set_timer(next_ms, now_ms)
        accumulator.next_look_ms = self._timer_at_ms

    def _set_timer(self, at_ms: float, now_ms: float) -> None:
        """Look again at that time. An earlier timer stays: an extra look costs less than resetting it."""
        if self._timer_at_ms <= now_ms:
            self._timer_at_ms = _NEVER_MS  # the timer fired, and this is its look
        if at_ms >= self._timer_at_ms or self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        self._timer = self._loop.call_later(max(at_ms - now_ms, 0.0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at_ms = _NEVER_MS
        self._look()

    def _send_ready(self, now_ms: float) -> float:
        """Send what is ready and can go; returns when to look again without being woken."""
        next_ms = _NEVER_MS
        ready: dict[int, list[PartitionQueue]] = {}
        leaderless: set[str] = set()
        metadata = self._cluster.metadata
        for queue in list(self._accumulator.active):
            at_ms = self._accumulator.ready_at_ms(queue, now_ms)
            if at_ms == _NEVER_MS:
                continue
            partition = metadata.partition(queue.topic_partition)
            if partition is None or partition.leader_id < 0:
                leaderless.add(queue.topic_partition.topic)
                continue
            if at_ms > now_ms and not _has_new_leader(queue, partition.leader_epoch):
                next_ms = min(next_ms, at_ms)
                continue
            ready.setdefault(partition.leader_id, []).append(queue)
        for leader_id, queues in ready.items():
            next_ms = min(next_ms, self._send_to(leader_id, queues, now_ms))
        self._stale_topics |= leaderless
        return min(next_ms, self._ask_leaders(now_ms))

    def _send_to(self, node_id: int, queues: list[PartitionQueue], now_ms: float) -> float:
        broker = self._brokers.get(node_id)
        if broker is None:
            broker = self._brokers[node_id] = _Broker()
        connection = self._cluster.open_connection_to(node_id)
        if connection is None:
            broker.stuck_since_ms = broker.stuck_since_ms or now_ms
            self._connect(node_id, {queue.topic_partition.topic for queue in queues})
            return _NEVER_MS
        if broker.blocked_until_ms > now_ms:
            return broker.blocked_until_ms
        while broker.in_flight < self._settings.max_in_flight and connection.is_open:
            batches = self._take(queues, now_ms)
            if not batches:
                return _NEVER_MS
            broker.stuck_since_ms = None
            self._send(connection, broker, batches, now_ms)
            queues = [queue for queue in queues if self._accumulator.ready_at_ms(queue, now_ms) <= now_ms]
        if queues:
            broker.stuck_since_ms = broker.stuck_since_ms or now_ms
        return _NEVER_MS  # the next response triggers another look

    def is_stuck(self, node_id: int, longer_than_ms: float) -> bool:
        """Whether this broker has accepted nothing for that long although something was ready for it."""
        broker = self._brokers.get(node_id)
        if broker is None or broker.stuck_since_ms is None:
            return False
        return self._now_ms() - broker.stuck_since_ms > longer_than_ms

    def _take(self, queues: Iterable[PartitionQueue], now_ms: float) -> list[ProducerBatch]:
        """The batches of one request, at most one per partition."""
        batches: list[ProducerBatch] = []
        size = 0
        for queue in queues:
            batch = queue.batches[0]
            if batches and size + batch.size > self._settings.max_request_size:
                continue
            if self._hooks is not None and not self._hooks.may_send(queue.topic_partition):
                continue
            if self._idempotence is not None and not self._idempotence.may_send(batch):
                continue
            batch = self._accumulator.take(queue, now_ms)
            if self._idempotence is not None:
                self._idempotence.number(batch)
            if self._settings.max_in_flight == 1:
                queue.is_muted = True
            size += batch.size
            batches.append(batch)
        return batches

    def _send(self, connection: Connection, broker: _Broker, batches: list[ProducerBatch], now_ms: float) -> None:
        settings, cluster = self._settings, self._cluster
        for batch in batches:
            self._under_way[batch] = None
            partition = cluster.metadata.partition(batch.topic_partition)
            batch.leader_epoch = partition.leader_epoch if partition is not None else -1
        try:
            request = build_request(settings, cluster, connection, batches, self._hooks)
            for batch, sealed_size in request.sealed_sizes:
                self.counters.note_sent(batch.size, sealed_size, now_ms - batch.created_ms, now_ms)
            self.counters.requests_sent += 1
            if settings.acks == 0:
                connection.send_unanswered(PRODUCE, request.message, version=request.version)
                for batch in batches:
                    self._delivered(self._returned(batch), -1, -1)
                return
            future = connection.send(PRODUCE, request.message, ProduceResponse, version=request.version)
        except ClientError as error:
            for batch in batches:
                self._failed(self._returned(batch), error)
            self._look_soon()
            return
        broker.in_flight += 1
        future.add_done_callback(partial(self._answered, broker, batches, request.names, now_ms))

    # Threads that send by themselves

    def send_from_caller(self, batch: ProducerBatch, timeout_s: float | None) -> bool:
        """Send a batch in the thread that waits for it, if nothing is in the way, and wait for the response.

        Returns whether the batch has ended. Otherwise the loop sends it, or waits for its response.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            begun = self._begin_in_caller(batch)
        finally:
            self._lock.release()
        if begun is None:
            return False
        lent, broker, request = begun
        sent_ms = self._now_ms()
        finish = partial(self._finish_in_caller, lent, broker, batch, request.names, sent_ms)
        try:
            answer = lent.connection.exchange(
                PRODUCE, request.message, ProduceResponse, version=request.version, timeout_s=timeout_s
            )
        except ClientError as error:
            answer = asyncio.Future(loop=self._loop)
            answer.set_exception(error)
        if isinstance(answer, asyncio.Future) or not self._may_finish_here(batch):
            assert self._loop is not None  # the caller has checked that it was started
            try:
                self._loop.call_soon_threadsafe(finish, answer)
            except RuntimeError:
                logger.debug("the event loop of a producer is closed, nothing more is received")
            return batch.is_done
        finish(answer)
        return batch.is_done

    def _begin_in_caller(self, batch: ProducerBatch) -> tuple[_Lent, _Broker, BuiltRequest] | None:
        """Take the batch and build its request, if it can be sent now and on its own."""
        idempotence, now_ms = self._idempotence, self._now_ms()
        if self._is_stopped or self._hooks is not None or self._settings.acks == 0 or batch.is_done:
            return None
        if idempotence is not None and (
            not idempotence.has_producer_id or idempotence.needs_epoch_bump or not idempotence.may_send(batch)
        ):
            return None
        partition = self._cluster.metadata.partition(batch.topic_partition)
        broker = self._brokers.get(partition.leader_id) if partition is not None else None
        if partition is None or broker is None or broker.in_flight or broker.blocked_until_ms > now_ms:
            return None
        lent = self._lent_connection(partition.leader_id)
        if lent is None or not self._accumulator.take_alone(batch, now_ms):
            return None
        if idempotence is not None:
            idempotence.number(batch)
        self._under_way[batch] = None
        batch.leader_epoch = partition.leader_epoch
        request = build_request(self._settings, self._cluster, lent.connection, [batch], None)
        for _, sealed_size in request.sealed_sizes:
            self.counters.note_sent(batch.size, sealed_size, now_ms - batch.created_ms, now_ms)
        self.counters.requests_sent += 1
        self.sends_from_callers += 1
        broker.in_flight += 1
        lent.is_busy = True
        return lent, broker, request

    def _may_finish_here(self, batch: ProducerBatch) -> bool:
        """Whether there are no callbacks to run, which belong on the loop's thread."""
        if batch.has_watchers:
            return False
        receipts = batch.take_callbacks()
        for receipt in receipts:
            batch.add_callback(receipt)
        return not receipts

    def _finish_in_caller(
        self,
        lent: _Lent,
        broker: _Broker,
        batch: ProducerBatch,
        names: dict[uuid.UUID, str],
        sent_ms: float,
        answer: ProduceResponse | asyncio.Future[ProduceResponse],
    ) -> None:
        """Act on the response, in the thread that has it, or on the loop if there is none yet."""
        if isinstance(answer, asyncio.Future):
            lent.is_gone = True  # it belongs to the loop until this response arrives
            lent.connection.take_back()
            answer.add_done_callback(partial(self._finish_late, lent, broker, batch, names, sent_ms))
            return
        with self._lock:
            self._accumulator.unmute(batch)
            broker.in_flight -= 1
            lent.is_busy = False
            if self._is_stopped:
                lent.connection.end_lent()
            self._handle_response(broker, [batch], names, sent_ms, answer)
            is_idle = batch.is_done and not self._accumulator.active and not self._accumulator.pool.has_waiters
        if not is_idle or batch.error is not None:
            self.wake()

    def _finish_late(
        self,
        lent: _Lent,
        broker: _Broker,
        batch: ProducerBatch,
        names: dict[uuid.UUID, str],
        sent_ms: float,
        future: asyncio.Future[ProduceResponse],
    ) -> None:
        with self._lock:
            self._accumulator.unmute(batch)
            lent.connection.close()
            self._handle_answer(broker, [batch], names, sent_ms, future)
        self._look_soon()

    def _lent_connection(self, node_id: int) -> _Lent | None:
        """A connection to the broker for this thread; the loop opens one once threads keep asking for it."""
        lent = self._lent.get(node_id)
        if lent is not None and lent.is_open:
            if lent.is_busy:
                return None
            if not lent.connection.has_ended():
                return lent
            lent.is_gone = True
            lent.connection.end_lent()
            return None
        if lent is None or lent.is_gone:
            lent = self._lent[node_id] = _Lent()
        lent.wanted += 1
        if lent.wanted == _WAITS_BEFORE_LENDING and self._loop is not None:
            self._loop.call_soon_threadsafe(self._start_lending, node_id, lent)
        return None

    def _start_lending(self, node_id: int, lent: _Lent) -> None:
        if not self._is_stopped:
            self._start_task(self._lend(node_id, lent))

    async def _lend(self, node_id: int, lent: _Lent) -> None:
        try:
            connection = await self._cluster.open_own_connection(node_id)
        except ClientError as error:
            logger.debug("a producer got no second connection to broker %d: %s", node_id, error)
            lent.wanted = 0
            return
        if self._is_stopped:
            connection.close()
            return
        connection.lend()
        lent.lend(connection)

    # Responses

    def _answered(
        self,
        broker: _Broker,
        batches: list[ProducerBatch],
        names: dict[uuid.UUID, str],
        sent_ms: float,
        future: asyncio.Future[ProduceResponse],
    ) -> None:
        with self._lock:
            self._handle_answer(broker, batches, names, sent_ms, future)
        self._look_soon()

    def _handle_answer(
        self,
        broker: _Broker,
        batches: list[ProducerBatch],
        names: dict[uuid.UUID, str],
        sent_ms: float,
        future: asyncio.Future[ProduceResponse],
    ) -> None:
        broker.in_flight -= 1
        error = ConnectionLostError("the request was cancelled") if future.cancelled() else future.exception()
        if error is not None:
            if not isinstance(error, ClientError):
                logger.error("a producer's request failed with an unexpected error", exc_info=error)
                error = ClientError(f"the request failed: {type(error).__name__}: {error}")
            for batch in batches:
                self._failed(self._returned(batch), error)
        else:
            self._handle_response(broker, batches, names, sent_ms, future.result())

    def _handle_response(
        self,
        broker: _Broker,
        batches: list[ProducerBatch],
        names: dict[uuid.UUID, str],
        sent_ms: float,
        response: ProduceResponse,
    ) -> None:
        now_ms = self._now_ms()
        self.counters.note_latency(now_ms - sent_ms)
        if response.throttle_time_ms > 0:
            broker.blocked_until_ms = now_ms + response.throttle_time_ms
        if response.node_endpoints:
            self._cluster.metadata.note_nodes(nodes_of(response))
        rows = answers_of(response, names)
        for batch in batches:
            row = rows.get(batch.topic_partition)
            self._returned(batch)
            if row is None:
                missing = "the broker's answer left it out"
                self._failed(batch, BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, missing, subject=_subject(batch)))
            else:
                self._answered_one(batch, row)

    def _returned(self, batch: ProducerBatch) -> ProducerBatch:
        """It is no longer in flight."""
        self._under_way.pop(batch, None)
        self._accumulator.answered(batch)
        if self._settings.max_in_flight == 1:
            self._accumulator.queue_of(batch).is_muted = False
        return batch

    def _answered_one(self, batch: ProducerBatch, row: PartitionProduceResponse) -> None:
        code = error_code(row.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._delivered(batch, row.base_offset, row.log_append_time_ms)
            return
        record_errors = {
            item.batch_index: item.batch_index_error_message or row.error_message or code.description
            for item in row.record_errors
        }
        message = row.error_message
        if len(record_errors) == 1 and not message:
            message = next(iter(record_errors.values()))
        if code in _LEADER_ERRORS:
            leader = row.current_leader
            if leader.leader_id < 0 or not self._cluster.note_leader(
                batch.topic_partition, leader.leader_id, leader.leader_epoch
            ):
                self._stale_topics.add(batch.topic_partition.topic)
        error = BrokerError(code, message, subject=_subject(batch))
        self._failed(batch, error, record_errors=record_errors, log_start_offset=row.log_start_offset)

    def _delivered(self, batch: ProducerBatch, base_offset: int, log_append_time: int) -> None:
        self._last_errors.pop(batch.topic_partition, None)
        if self._idempotence is not None:
            self._idempotence.on_delivered(batch, base_offset)
        if not batch.is_done:
            self.counters.note_delivered(batch.count, batch.size)
            self._accumulator.incomplete.pop(batch, None)
            batch.deliver(base_offset, log_append_time)
        self._accumulator.release(batch)

    def _failed(
        self,
        batch: ProducerBatch,
        error: ClientError,
        *,
        record_errors: dict[int, str] | None = None,
        log_start_offset: int = -1,
    ) -> None:
        """An attempt has failed: the batch is resent, split, or given up."""
        if batch.is_done:  # its time was up before the response came
            self._accumulator.release(batch)
            return
        code = error.code if isinstance(error, BrokerError) else None
        idempotence = self._idempotence
        if isinstance(error, (ConnectionLostError, RequestTimeoutError)):
            self._stale_topics.add(batch.topic_partition.topic)
        if code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            self.counters.batches_split += 1
            replace, order_of = (None, None) if idempotence is None else (idempotence.replace, idempotence.order_of)
            self._accumulator.split(batch, replace, order_of)
            return
        self._last_errors[batch.topic_partition] = error
        if self._may_retry(batch, error, code, log_start_offset):
            self.counters.records_retried += batch.count
            pause_ms = self._settings.retry_backoff.pause_s(batch.attempts + 1) * 1000
            order_of = None if idempotence is None else idempotence.order_of
            self._accumulator.put_back(batch, self._now_ms() + pause_ms, order_of)
            return
        self._give_up(batch, error, record_errors=record_errors, is_refused=code is not None and not code.retriable)

    def _may_retry(
        self, batch: ProducerBatch, error: ClientError, code: ErrorCode | None, log_start_offset: int
    ) -> bool:
        if self._is_stopped or batch.attempts >= self._settings.retries:
            return False
        if self._now_ms() - batch.created_ms >= self._settings.delivery_timeout_ms:
            return False
        if code is not None and self._idempotence is not None:
            return self._idempotence.may_retry(batch, code, log_start_offset)
        return isinstance(error, RetriableError)

    def _give_up(
        self,
        batch: ProducerBatch,
        error: ClientError,
        *,
        record_errors: dict[int, str] | None = None,
        is_refused: bool = False,
    ) -> None:
        """A broker that refused a batch for good has not stored it; after any other failure that is not known."""
        if self._idempotence is not None:
            self._idempotence.on_failed(batch, may_be_stored=not is_refused)
        if self._hooks is not None:
            self._hooks.on_batch_failed(batch.topic_partition, error)
        if self._hooks is not None:
            self.counters.records_failed += batch.count  # the transaction's commit raises it
        else:
            self.note_failed(batch.topic_partition.topic, batch.count, error)
        self._accumulator.incomplete.pop(batch, None)
        batch.fail(error, record_errors)
        if not batch.in_flight:
            self._accumulator.release(batch)

    def note_failed(self, topic: str, records: int, error: ClientError) -> None:
        """These records failed; the next look logs it. From any thread."""
        with self._lock:
            self.counters.records_failed += records
            self._failures.note(topic, records, error)
        self.wake()

    def _expire(self, now_ms: float) -> float:
        """Give up batches that are too old; returns when the next one will be."""
        timeout_ms = self._settings.delivery_timeout_ms
        oldest = self._accumulator.oldest()
        if oldest is None:
            return _NEVER_MS
        if oldest.created_ms + timeout_ms > now_ms:
            return oldest.created_ms + timeout_ms
        for batch in self._accumulator.expired(now_ms):
            error = self._accumulator.timeout_error(batch, self._last_errors.get(batch.topic_partition))
            self._give_up(batch, error)
        for batch in [one for one in self._under_way if one.created_ms + timeout_ms <= now_ms and not one.is_done]:
            error = self._accumulator.timeout_error(batch, self._last_errors.get(batch.topic_partition))
            self._give_up(batch, error)
        oldest = self._accumulator.oldest()
        return _NEVER_MS if oldest is None else max(oldest.created_ms + timeout_ms, now_ms + 1)

    def fail_all(self, error: ClientError) -> None:
        """Give up everything, including what is in flight."""
        with self._lock:
            for batch in [*self._accumulator.take_all(unsent_only=False), *self._under_way]:
                if not batch.is_done:
                    self._give_up(batch, error)

    def fail_undrained(self, error: ClientError) -> None:
        """Give up batches that were never sent."""
        with self._lock:
            for batch in self._accumulator.take_all(unsent_only=True):
                self._give_up(batch, error)

    # Requests that must be answered before anything can be sent: connections, leaders, a producer id. Only one of each
    # kind runs at a time, and it is retried after growing pauses; a batch that waits in vain fails through its own
    # timeout.

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _warn(self, message: str, *values: object) -> None:
        """Log what is being retried, but not every attempt."""
        if self._unreachable.is_due(self._now_ms() / 1000):
            logger.warning(message, *values)

    def _connect(self, node_id: int, topics: set[str]) -> None:
        """Connect to this broker, which leads partitions of these topics."""
        if node_id not in self._connecting:
            self._connecting.add(node_id)
            self._start_task(self._connect_once(node_id, topics))

    async def _connect_once(self, node_id: int, topics: set[str]) -> None:
        try:
            await self._cluster.connection_to(node_id)
            self._unreachable.reset()
        except ClosedError:
            return
        except ClientError as error:
            self._warn("a producer can't reach broker %d, retrying: %s", node_id, error)
            self._stale_topics |= topics
            for queue in list(self._accumulator.active):
                partition = self._cluster.metadata.partition(queue.topic_partition)
                if partition is not None and partition.leader_id == node_id:
                    self._last_errors[queue.topic_partition] = error
        finally:
            self._connecting.discard(node_id)
        self._look_soon()

    def _ask_leaders(self, now_ms: float) -> float:
        """Look up the leaders of stale topics, if there are any, but not too often; returns when to come back."""
        if not self._stale_topics or self._is_asking_leaders:
            return _NEVER_MS
        if self._ask_leaders_at_ms > now_ms:
            return self._ask_leaders_at_ms
        topics, self._stale_topics = self._stale_topics, set()
        self._is_asking_leaders = True
        self._start_task(self._ask_leaders_once(topics))
        return _NEVER_MS

    async def _ask_leaders_once(self, topics: set[str]) -> None:
        try:
            told = await self._cluster.refresh(topics)
        except ClosedError:
            return
        except ClientError as error:
            self._leader_failures += 1
            self._stale_topics |= topics
            self._warn("a producer can't find the leaders of its partitions, retrying: %s", error)
        else:
            self._leader_failures = self._leader_failures + 1 if told.errors else 0
            for name, code in told.errors.items():
                if not code.retriable:
                    self._fail_topic(name, BrokerError(code, subject=f"topic {name}"))
        finally:
            self._is_asking_leaders = False
        pause_s = self._settings.retry_backoff.pause_s(max(self._leader_failures, 1))
        self._ask_leaders_at_ms = self._now_ms() + pause_s * 1000
        self._look_soon()

    def _fail_topic(self, name: str, error: ClientError) -> None:
        topic = self._accumulator.topic(name)
        with self._lock:
            for queue in topic.queues if topic is not None else ():
                for batch in self._accumulator.take_queue(queue) if queue is not None else ():
                    self._give_up(batch, error)

    def _has_producer_id(self) -> bool:
        """Whether batches can be numbered, or need no numbers; requests a producer id if there is none."""
        idempotence = self._idempotence
        if idempotence is None:
            return True
        gaps = idempotence.resolve()
        if self._hooks is not None:
            for topic_partition in gaps:
                message = "it is not known whether a record was stored whose delivery.timeout.ms was up"
                subject = f"partition {topic_partition}"
                lost = BrokerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, message, subject=subject)
                self._hooks.on_batch_failed(topic_partition, lost)
            return idempotence.has_producer_id
        if idempotence.needs_epoch_bump and idempotence.can_bump_epoch:
            idempotence.bump_epoch()
        if not idempotence.has_producer_id and self._accumulator.active:
            self._ask_producer_id(idempotence)
        return idempotence.has_producer_id

    def _ask_producer_id(self, idempotence: Idempotence) -> None:
        """Get an id for a producer without transactions."""
        if not self._is_asking_producer_id:
            self._is_asking_producer_id = True
            self._start_task(self._ask_producer_id_until_answered(idempotence))

    async def _ask_producer_id_until_answered(self, idempotence: Idempotence) -> None:
        failures = 0
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS)
        try:
            while True:
                try:
                    response = await self._cluster.call(INIT_PRODUCER_ID, request, InitProducerIdResponse)
                    raise_for(response.error_code, subject="producer id")
                    break
                except RetriableError as error:
                    failures += 1
                    self._warn("a producer can't get its id, retrying: %s", error)
                    await asyncio.sleep(self._settings.retry_backoff.pause_s(failures))
            idempotence.set_producer_id(response.producer_id, response.producer_epoch)
            self._unreachable.reset()
        except ClosedError:
            return
        except ClientError as error:
            self._on_fatal(error)
            self.fail_all(error)
        finally:
            self._is_asking_producer_id = False
        self._look_soon()


def _has_new_leader(queue: PartitionQueue, leader_epoch: int) -> bool:
    """Whether the first batch is waiting to be retried at a broker that is no longer the leader."""
    batch = queue.batches[0] if queue.batches else None
    return batch is not None and batch.attempts > 0 and leader_epoch > batch.leader_epoch >= 0


def _subject(batch: ProducerBatch) -> str:
    return f"partition {batch.topic_partition}"
