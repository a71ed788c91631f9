"""The sender: takes batches that are ready, sends them to the leaders of their partitions, and acts on the answers.

What always holds: to one broker at most `max.in.flight.requests.per.connection` requests are under way, each with at
most one batch a partition; every batch that was taken ends delivered or failed, or goes back into its queue; a failed
batch is tried again only while its error may pass, its `retries` and its `delivery.timeout.ms` last. A batch whose time
is up while it is under way fails at once, but its memory is not used again before the broker has answered or the
connection is gone: it may still be on its way out.

Everything here runs on the event loop, in callbacks; only `wake` may be called from other threads.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from functools import partial

from tidelog.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLostError,
    RequestTimeoutError,
    RetriableError,
    error_code,
)
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.producer.accumulator import Accumulator, PartitionQueue
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.hooks import TransactionHooks
from tidelog.client.producer.idempotence import Idempotence
from tidelog.client.producer.metrics import ProducerCounters
from tidelog.client.producer.produce_request import answers_of, build_request, nodes_of
from tidelog.client.producer.sender_questions import SenderQuestions
from tidelog.client.producer.settings import ProducerSettings
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, PartitionProduceResponse, ProduceResponse

log = logging.getLogger(__name__)

# Where these are the answer, somebody else leads the partition, or nobody.
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
# Memory that comes free is handed to waiting threads in portions of this part of the whole, not batch by batch: a
# change of threads costs more than a batch.
_MEMORY_PORTIONS = 8
_NEVER_MS = float("inf")


class _Broker:
    """What is known of a broker that leads partitions."""

    __slots__ = ("blocked_until_ms", "in_flight", "stuck_since_ms")

    def __init__(self) -> None:
        self.in_flight = 0
        self.blocked_until_ms = 0.0  # it asked for a pause
        self.stuck_since_ms: float | None = None  # since when something is ready for it and can't go


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
        self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = _NEVER_MS
        self._brokers: dict[int, _Broker] = {}
        self._under_way: dict[ProducerBatch, None] = {}
        self._questions = SenderQuestions(
            cluster,
            settings.retry_backoff,
            now_ms,
            on_answer=self._look_soon,
            on_unreachable=self._note_unreachable,
            on_topic_refused=self._fail_topic,
            on_no_producer_id=self._on_no_producer_id,
        )
        self._last_errors: dict[TopicPartition, ClientError] = {}
        self._is_stopped = False

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._look_soon()

    def stop(self) -> None:
        """Send nothing more; what is under way is waited for no longer."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._questions.stop()

    def wake(self) -> None:
        """There may be something to send. Called from any thread; many calls before the look cost one."""
        loop = self._loop
        if self._is_woken or loop is None or self._is_stopped:
            return
        self._is_woken = True
        try:
            loop.call_soon_threadsafe(self._look)
        except RuntimeError:
            log.debug("the event loop of a producer is closed, nothing more is sent")

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

    # Looking for what can be sent

    def _look(self) -> None:
        # Before anything is looked at: what is appended from here on wakes again, whatever was planned.
        self._is_woken = False
        self._accumulator.next_look_ms = _NEVER_MS
        if self._is_stopped:
            return
        now_ms = self._now_ms()
        accumulator = self._accumulator
        next_ms = self._expire(now_ms)
        if self._has_producer_id():
            next_ms = min(next_ms, self._send_ready(now_ms))
        if accumulator.pool.has_waiters:
            is_idle = not self._under_way
            with accumulator.lock:
                pool = accumulator.pool
                pool.wake_waiters(at_least=0 if is_idle else pool.memory_bytes // _MEMORY_PORTIONS)
        self._set_timer(next_ms, now_ms)
        accumulator.next_look_ms = self._timer_at_ms

    def _set_timer(self, at_ms: float, now_ms: float) -> None:
        """Look again at that time. A timer that comes before stays: a look too many costs less than setting it anew."""
        if self._timer_at_ms <= now_ms:
            self._timer_at_ms = _NEVER_MS  # its time has come, and this look was it
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
        """Send what is ready and can go; says when to look again without being woken."""
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
        self._questions.stale_topics |= leaderless
        return min(next_ms, self._questions.ask_leaders(now_ms))

    def _send_to(self, node_id: int, queues: list[PartitionQueue], now_ms: float) -> float:
        broker = self._brokers.get(node_id)
        if broker is None:
            broker = self._brokers[node_id] = _Broker()
        connection = self._cluster.open_connection_to(node_id)
        if connection is None:
            broker.stuck_since_ms = broker.stuck_since_ms or now_ms
            self._questions.connect(node_id, [queue.topic_partition.topic for queue in queues])
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
        return _NEVER_MS  # the next answer looks again

    def is_stuck(self, node_id: int, longer_than_ms: float) -> bool:
        """Whether this broker has taken nothing for that long although something was ready for it."""
        broker = self._brokers.get(node_id)
        if broker is None or broker.stuck_since_ms is None:
            return False
        return self._now_ms() - broker.stuck_since_ms > longer_than_ms

    def _take(self, queues: Iterable[PartitionQueue], now_ms: float) -> list[ProducerBatch]:
        """The batches of one request, at most one a partition."""
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

    # Answers

    def _answered(
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
                log.error("a request of a producer has failed in an unforeseen way", exc_info=error)
                error = ClientError(f"the request failed: {type(error).__name__}: {error}")
            for batch in batches:
                self._failed(self._returned(batch), error)
        else:
            response = future.result()
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
        self._look_soon()

    def _returned(self, batch: ProducerBatch) -> ProducerBatch:
        """It is not under way any more."""
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
                self._questions.stale_topics.add(batch.topic_partition.topic)
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
        """A try has failed: the batch is sent again, sent in parts, or given up."""
        if batch.is_done:  # its time was up before the answer came
            self._accumulator.release(batch)
            return
        code = error.code if isinstance(error, BrokerError) else None
        idempotence = self._idempotence
        if isinstance(error, (ConnectionLostError, RequestTimeoutError)):
            self._questions.stale_topics.add(batch.topic_partition.topic)
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
        # A broker that refused it for good has not stored it; after any other failure that is not known.
        is_refused = code is not None and not code.retriable
        may_be_stored = batch.has_sequence and not is_refused
        self._give_up(batch, error, record_errors=record_errors, may_be_stored=may_be_stored)

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
        may_be_stored: bool = False,
    ) -> None:
        if self._idempotence is not None:
            self._idempotence.on_failed(batch, may_be_stored=may_be_stored)
        if self._hooks is not None:
            self._hooks.on_batch_failed(batch.topic_partition, error)
        self.counters.records_failed += batch.count
        self._accumulator.incomplete.pop(batch, None)
        batch.fail(error, record_errors)
        if not batch.in_flight:
            self._accumulator.release(batch)

    def _expire(self, now_ms: float) -> float:
        """Give up what is too old; says when the next batch gets so."""
        timeout_ms = self._settings.delivery_timeout_ms
        oldest = self._accumulator.oldest()
        if oldest is None:
            return _NEVER_MS
        if oldest.created_ms + timeout_ms > now_ms:
            return oldest.created_ms + timeout_ms
        for batch in self._accumulator.expired(now_ms):
            error = self._accumulator.timeout_error(batch, self._last_errors.get(batch.topic_partition))
            self._give_up(batch, error, may_be_stored=batch.has_sequence)
        for batch in [one for one in self._under_way if one.created_ms + timeout_ms <= now_ms and not one.is_done]:
            error = self._accumulator.timeout_error(batch, self._last_errors.get(batch.topic_partition))
            self._give_up(batch, error, may_be_stored=True)
        oldest = self._accumulator.oldest()
        return _NEVER_MS if oldest is None else max(oldest.created_ms + timeout_ms, now_ms + 1)

    def fail_all(self, error: ClientError) -> None:
        """Give up everything, what is under way included."""
        for batch in [*self._accumulator.take_all(unsent_only=False), *self._under_way]:
            if not batch.is_done:
                self._give_up(batch, error, may_be_stored=batch.in_flight)

    def fail_undrained(self, error: ClientError) -> None:
        """Give up what was never sent."""
        for batch in self._accumulator.take_all(unsent_only=True):
            self._give_up(batch, error)

    # What has to be asked of brokers first

    def _note_unreachable(self, node_id: int, error: ClientError) -> None:
        for queue in list(self._accumulator.active):
            partition = self._cluster.metadata.partition(queue.topic_partition)
            if partition is not None and partition.leader_id == node_id:
                self._last_errors[queue.topic_partition] = error

    def _fail_topic(self, name: str, error: ClientError) -> None:
        topic = self._accumulator.topic(name)
        for queue in topic.queues if topic is not None else ():
            for batch in self._accumulator.take_queue(queue) if queue is not None else ():
                self._give_up(batch, error, may_be_stored=batch.has_sequence)

    def _has_producer_id(self) -> bool:
        """Whether batches can be numbered, or need no numbers; asks for a producer id where there is none."""
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
            self._questions.ask_producer_id(idempotence)
        return idempotence.has_producer_id

    def _on_no_producer_id(self, error: ClientError) -> None:
        self._on_fatal(error)
        self.fail_all(error)


def _has_new_leader(queue: PartitionQueue, leader_epoch: int) -> bool:
    """Whether the first batch waits for a retry at a leader that is not the leader any more."""
    batch = queue.batches[0] if queue.batches else None
    return batch is not None and batch.attempts > 0 and leader_epoch > batch.leader_epoch >= 0


def _subject(batch: ProducerBatch) -> str:
    return f"partition {batch.topic_partition}"
