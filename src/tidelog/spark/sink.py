"""The writers that Spark calls: one for streams and one for batches.

What always holds: columns and options are checked on the driver, when a writer is created. Tasks write rows through
`sink_tasks`. `sink_driver` does commits and aborts, which Spark runs in a process beside the driver that it keeps for
many batches.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidelog.client.network.cluster import Cluster, ClusterSettings
from tidelog.client.network.loop_thread import LoopThread
from tidelog.client.producer.settings import PRODUCER_TABLE
from tidelog.spark.options import OptionError, Use
from tidelog.spark.sink_columns import check_columns
from tidelog.spark.sink_driver import SinkDriver
from tidelog.spark.sink_identity import TaskReport, new_name
from tidelog.spark.sink_settings import SinkSettings, read_settings
from tidelog.spark.sink_tasks import write_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


_Messages = list[WriterCommitMessage | None]


def make_batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchSink:
    """The writer of `df.write`."""
    if overwrite:
        raise OptionError('a topic can\'t be overwritten; write with mode("append"), or to a new topic')
    settings = read_settings(options, Use.BATCH_WRITE, new_name())
    check_columns(schema, settings.topic)
    return BatchSink(settings)


def make_stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamSink:
    """The writer of `df.writeStream`."""
    if overwrite:
        raise OptionError(
            'output mode "complete" writes the whole result in every batch, and a topic can\'t be overwritten; use '
            '"update" or "append"'
        )
    settings = read_settings(options, Use.STREAM_WRITE, "")
    check_columns(schema, settings.topic)
    return StreamSink(settings)


class StreamSink(DataSourceStreamArrowWriter):
    """A micro-batch of a stream."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return _write(self._settings, iterator)

    def commit(self, messages: _Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        _run(self._settings, _driver(self._settings).commit(self._settings, _reports(messages)))

    def abort(self, messages: _Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        _run(self._settings, _driver(self._settings).abort(self._settings, _reports(messages)))


class BatchSink(DataSourceArrowWriter):
    """One write of a DataFrame."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return _write(self._settings, iterator)

    def commit(self, messages: _Messages) -> None:
        _run(self._settings, _driver(self._settings).commit(self._settings, _reports(messages)))

    def abort(self, messages: _Messages) -> None:
        _run(self._settings, _driver(self._settings).abort(self._settings, _reports(messages)))


def _reports(messages: _Messages) -> list[TaskReport | None]:
    """The reports of the tasks; None for a task that failed."""
    return [message if isinstance(message, TaskReport) else None for message in messages]


def _write(settings: SinkSettings, batches: Iterator[pa.RecordBatch]) -> TaskReport:
    context = TaskContext.get()
    assert context is not None, "only Spark tasks write rows"
    properties = context._localProperties or {}
    is_repeated = context.attemptNumber() > 0 or properties.get("spark.speculation", "").lower() == "true"
    return write_rows(settings, properties, context.partitionId(), batches, is_repeated=is_repeated)


# The driver's side: a process that Spark keeps for commits


class _DriverClient:
    def __init__(self, settings: SinkSettings) -> None:
        self.pid = os.getpid()
        self.thread = LoopThread("tidelog-spark-commits")
        known = PRODUCER_TABLE.read(settings.producer_settings(transactional=False), {})
        self.driver = SinkDriver(Cluster(ClusterSettings.read(known)))


_clients: dict[tuple[tuple[str, str], ...], _DriverClient] = {}


def _client(settings: SinkSettings) -> _DriverClient:
    key = tuple(sorted(settings.kafka.items()))
    client = _clients.get(key)
    if client is None or client.pid != os.getpid():
        client = _clients[key] = _DriverClient(settings)
    return client


def _driver(settings: SinkSettings) -> SinkDriver:
    return _client(settings).driver


def _run(settings: SinkSettings, work: Coroutine[Any, Any, None]) -> None:
    _client(settings).thread.run(work)
