"""A task's part of a write: send its rows, either in a transaction that is left open for the driver, or at least once.

What always holds: when a task reports, all its rows are stored. An attempt that fails aborts its own transaction if it
still can. A process creates its producers once and uses them for all its tasks, one task at a time.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.client.errors import BrokerError, ClientError, ConfigError
from tidelog.client.producer.foreign_transactions import Outcome, end_transactions
from tidelog.client.producer.handover import HandoverProducer, check_topic
from tidelog.client.producer.producer import Producer
from tidelog.protocol import ErrorCode
from tidelog.spark.sink_columns import by_topic
from tidelog.spark.sink_decision import Decision, DecisionLog, is_second_write
from tidelog.spark.sink_identity import TaskReport, WorkerNames, WriteIdentity
from tidelog.spark.sink_settings import SinkSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.client.producer.arrow_rows import RowsFuture

logger = logging.getLogger(__name__)

_REMEMBERED_RUNS_MAX = 256
_LONG_TASK_S = 0.5  # after a task this long, check whether the batch has been decided in the meantime


_Key = tuple[tuple[str, str], ...]


class _Process:
    """The producers of one process, by their settings; a forked child starts with none."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.names = WorkerNames()
        self.producers: dict[_Key, Producer] = {}
        # For some bases and runs: a version that is known to have been undecided when this run started it.
        self.undecided: dict[tuple[str, str], int] = {}


_process: _Process | None = None


def _this_process() -> _Process:
    global _process
    if _process is None or _process.pid != os.getpid():
        _process = _Process()
    return _process


def write_rows(
    settings: SinkSettings,
    properties: Mapping[str, str],
    partition: int,
    batches: Iterable[pa.RecordBatch],
    *,
    is_repeated: bool = False,
) -> TaskReport:
    """Write the rows of one attempt. `properties` are those of the Spark job, `partition` is that of the task."""
    identity = settings.identity(properties)
    if identity is None:
        return _write_at_least_once(settings, partition, batches)
    process = _this_process()
    producer = _transactional_producer(process, settings)
    began_s = time.monotonic()
    earlier = _decided(process, settings, producer, identity)
    if earlier is not None:
        report = _report_decided(settings, producer, identity, earlier, partition)
        if report is not None:
            for _ in batches:  # Spark waits until all rows have been consumed
                pass
            return report
    checks_at_s = began_s if is_repeated else began_s + _LONG_TASK_S
    report = _write_in_transaction(process, settings, producer, identity, partition, batches, checks_at_s)
    return replace(report, is_repeated=is_repeated)


# At least once


def _write_at_least_once(settings: SinkSettings, partition: int, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    process = _this_process()
    key = _key(settings, transactional=False)
    producer = process.producers.get(key)
    if producer is None:
        producer = process.producers[key] = Producer(settings.producer_settings(transactional=False))
    try:
        rows, _ = _send(settings, producer, batches)
        producer.flush()
    except ClientError:
        _discard(process, key)
        raise
    return TaskReport(None, partition, rows)


def _send(settings: SinkSettings, producer: Producer, batches: Iterable[pa.RecordBatch]) -> tuple[int, str]:
    """Send all rows and wait until they are stored; returns their number and one of their topics."""
    rows, first_topic = 0, ""
    under_way: list[RowsFuture] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        partition = "partition" if "partition" in batch.schema.names else None
        for topic, rows_of_it in by_topic(batch, settings.topic):
            check_topic(producer, topic, settings.topic_timeout_s)
            under_way.append(producer.send_arrow(topic, rows_of_it, partition=partition))
            first_topic = first_topic or topic
        rows += batch.num_rows
        under_way = _still_under_way(under_way)
    for future in under_way:
        future.result()
    return rows, first_topic


def _still_under_way(futures: list[RowsFuture]) -> list[RowsFuture]:
    left = []
    for future in futures:
        if future.done():
            future.result()  # raises the error if the rows were not stored
        else:
            left.append(future)
    return left


# Exactly once


def _write_in_transaction(
    process: _Process,
    settings: SinkSettings,
    producer: HandoverProducer,
    identity: WriteIdentity,
    partition: int,
    batches: Iterable[pa.RecordBatch],
    checks_at_s: float,
) -> TaskReport:
    """After `checks_at_s`, another attempt may have won; an open transaction of this one would only delay readers."""
    began_ms = time.time_ns() // 1_000_000
    try:
        _start(settings, producer, process.names.claim(identity))
        rows, topic = _send(settings, producer, batches)
        if time.monotonic() >= checks_at_s and _is_decided_meanwhile(settings, producer, identity):
            producer.give_up()
            return TaskReport(identity, partition, 0, is_skipped=True)
        transaction = producer.hand_over()
    except BaseException:
        _give_up(process, settings, producer)
        raise
    return TaskReport(identity, partition, rows, transaction, topic, began_ms)


def _start(settings: SinkSettings, producer: HandoverProducer, transactional_id: str) -> None:
    try:
        producer.start(transactional_id)
    except ClientError as error:
        cause = error.__cause__ if isinstance(error.__cause__, BrokerError) else error
        if isinstance(cause, BrokerError) and cause.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise ConfigError(
                f"the broker doesn't allow transactions to stay open for {settings.transaction_timeout_ms} ms: set the "
                "option kafka.transaction.timeout.ms to at most the broker's transaction.max.timeout.ms, but longer "
                "than a batch takes"
            ) from error
        raise


def _give_up(process: _Process, settings: SinkSettings, producer: HandoverProducer) -> None:
    """Abort what a failed attempt wrote, so that readers need not wait for its timeout."""
    try:
        producer.give_up()
    except ClientError as error:
        logger.info("a failed attempt could not abort its transaction: %s", error)
        _discard(process, _key(settings, transactional=True))


def _decided(
    process: _Process, settings: SinkSettings, producer: HandoverProducer, identity: WriteIdentity
) -> Decision | None:
    """The decision for this version or a later one, if there is one.

    It is looked up once per run: a run never repeats a version, so versions after an undecided one are undecided as
    well. If another driver is running, our driver finds out when it commits.
    """
    if identity.version is None:
        return None
    key = (identity.base, identity.run)
    if process.undecided.get(key, identity.version + 1) <= identity.version:
        return None
    decision = _read_decision(settings, producer, identity)
    if decision is not None and decision.version >= identity.version:
        return decision
    if len(process.undecided) >= _REMEMBERED_RUNS_MAX:
        process.undecided.clear()
    process.undecided[key] = identity.version
    return None


def _is_decided_meanwhile(settings: SinkSettings, producer: HandoverProducer, identity: WriteIdentity) -> bool:
    if identity.version is None:
        return False
    decision = _read_decision(settings, producer, identity)
    return decision is not None and decision.version >= identity.version


def _read_decision(settings: SinkSettings, producer: HandoverProducer, identity: WriteIdentity) -> Decision | None:
    decisions = DecisionLog(producer.cluster, identity.base, timeout_s=settings.timeout_s)
    return producer.loop_thread.run(decisions.read(stable=False))


def _report_decided(
    settings: SinkSettings, producer: HandoverProducer, identity: WriteIdentity, decision: Decision, partition: int
) -> TaskReport | None:
    """Finish a version that has already been decided; None if this partition must be written again."""
    if is_second_write(identity, decision):
        return TaskReport(identity, partition, 0, is_second_write=True)
    if decision.version == identity.version:
        winner = decision.winner_of(partition)
        if winner is not None:
            # We don't know whether it was committed: the driver that decided may have died before it got to that.
            transaction = winner.transaction(identity.base)
            work = end_transactions(producer.cluster, [transaction], committed=True, timeout_s=settings.timeout_s)
            if producer.loop_thread.run(work)[transaction] is Outcome.LOST:
                return None
    return TaskReport(identity, partition, 0, is_skipped=True)


# Producers


def _key(settings: SinkSettings, *, transactional: bool) -> _Key:
    """Writes with the same client settings share a producer."""
    return (("", str(transactional)), *sorted(settings.kafka.items()))


def _transactional_producer(process: _Process, settings: SinkSettings) -> HandoverProducer:
    key = _key(settings, transactional=True)
    producer = process.producers.get(key)
    if producer is None:
        producer = process.producers[key] = HandoverProducer(settings.producer_settings(transactional=True))
    assert isinstance(producer, HandoverProducer)
    return producer


def _discard(process: _Process, key: _Key) -> None:
    """Close a producer that can no longer be used; the next task creates a new one."""
    producer = process.producers.pop(key, None)
    if producer is not None:
        producer.close(timeout=0)
