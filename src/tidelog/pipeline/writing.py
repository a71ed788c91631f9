"""Starts the query of a pipeline with its outputs.

What always holds: a single topic in append mode is written by the `tidelog` sink itself. For tables, several outputs,
and other modes, which Spark doesn't support for Python sinks, each micro-batch is passed to every output in turn. Each
output keeps its own marker of (query id, batch id), so a repeated batch is written only where it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.outputs import Output, TableOutput, TopicOutput
from tidelog.pipeline.rows.encoding import check_columns, records_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from tidelog.pipeline.declaration import Pipeline

BatchWriter = Callable[["DataFrame", str, int], bool]
"""Writes a batch under (app id, batch id); returns False if it had already been written."""


def start_query(
    rows: DataFrame,
    pipeline: Pipeline,
    outputs: Sequence[Output],
    checkpoint: str,
    bootstrap: str,
    trigger: dict[str, Any],
) -> StreamingQuery:
    """Start the query."""
    name = f"{pipeline.name} v{pipeline.version}"
    only = outputs[0]
    if len(outputs) == 1 and isinstance(only, TopicOutput) and pipeline.output_mode == "append":
        writer = records_of(rows, only).writeStream.format("tidelog").options(**_sink_options(only, bootstrap))
    else:
        writer = rows.writeStream.foreachBatch(_Fan(prepare_outputs(rows, outputs, bootstrap)))
    writer = writer.outputMode(pipeline.output_mode).option("checkpointLocation", checkpoint).queryName(name)
    return writer.trigger(**trigger).start()


def prepare_outputs(rows: DataFrame, outputs: Sequence[Output], bootstrap: str) -> list[BatchWriter]:
    """A batch writer for each output; creates tables. Raises DeclarationError before anything runs."""
    for output in outputs:
        check_columns(rows, output, f"output {output.name!r}")
        if isinstance(output, TopicOutput):
            records_of(rows, output)
    return [_writer(output, rows, bootstrap) for output in outputs]


class _Fan:
    """Passes a micro-batch to every output."""

    def __init__(self, writers: Sequence[BatchWriter]) -> None:
        self._writers = writers

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        query_id: Any = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        is_shared = len(self._writers) > 1
        if is_shared:
            batch = batch.persist()
        try:
            written = [write(batch, query_id, batch_id) for write in self._writers]
            if not any(written):
                # The plan must still run, because it advances the state of the query.
                batch.write.format("noop").mode("overwrite").save()
        finally:
            if is_shared:
                batch.unpersist()


def _sink_options(output: TopicOutput, bootstrap: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "topic": output.topic, **output.options}


def _writer(output: Output, rows: DataFrame, bootstrap: str) -> BatchWriter:
    if isinstance(output, TopicOutput):
        return _topic_writer(output, bootstrap)
    assert isinstance(output, TableOutput)
    from tidelog.pipeline.tables.table_writers import table_writer

    return table_writer(output, rows.schema)


def _topic_writer(output: TopicOutput, bootstrap: str) -> BatchWriter:
    def write(batch: DataFrame, query_id: str, batch_id: int) -> bool:
        writer = records_of(batch, output).write.format("tidelog").mode("append")
        writer = writer.options(**_sink_options(output, bootstrap)).option("txnAppId", f"{query_id}.{output.name}")
        writer.option("txnVersion", str(batch_id)).save()
        return True

    return write
