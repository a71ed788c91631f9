"""Writes records that could not be parsed or processed to the dead-letter topic, exactly once.

The query itself only counts them, which costs next to nothing. If a finished batch counted any, or its count is unknown
because the process died or did not run it, the offsets of that batch are read again and the rejected records are
written. The write is identified by the query id and the batch id, so it takes effect only once, however often it is
repeated.

What always holds: batches are processed in order, and none is skipped; progress is kept in a file that is replaced
atomically after the write. A dead letter keeps the key, value and headers of the record; what is known about the error
is added as headers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from tidelog.common.durable_files import replace_file
from tidelog.pipeline.inputs import SourceSettings, refused_of
from tidelog.pipeline.query_log import QueryLog
from tidelog.pipeline.rows.decoding import ERROR

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidelog.pipeline.declaration import Pipeline
    from tidelog.pipeline.versions.registry_rows import Offsets

# The headers of a dead letter, which follow the record's own.
ORIGIN_TOPIC = "tidelog.origin.topic"
ORIGIN_PARTITION = "tidelog.origin.partition"
ORIGIN_OFFSET = "tidelog.origin.offset"
ORIGIN_TIMESTAMP = "tidelog.origin.timestamp"  # milliseconds since 1970
ERROR_CLASS = "tidelog.error.class"
ERROR_MESSAGE = "tidelog.error.message"
PIPELINE = "tidelog.pipeline"
VERSION = "tidelog.pipeline.version"
INPUT = "tidelog.pipeline.input"


@dataclass(frozen=True)
class _Range:
    start: dict[str, dict[int, int]]
    end: dict[str, dict[int, int]]

    @property
    def is_empty(self) -> bool:
        return not self.end


class DeadLetters:
    """The dead letters of one query."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        source: SourceSettings,
        log: QueryLog,
        *,
        query_id: str,
        topic: str,
        starts: Mapping[str, Offsets],
        progress_file: Path,
        delivery_options: Mapping[str, str],
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._source = source
        self._log = log
        self._query_id = query_id
        self._topic = topic
        self._starts = starts
        self._file = progress_file
        self._options = delivery_options
        self._done = self._read_done()
        # How many rows the batches of this run have rejected, by input.
        self._counts: dict[int, Mapping[str, int]] = {}
        self.written = 0

    def _read_done(self) -> int:
        """The last batch that was processed, -1 before the first; with a new checkpoint, it starts over."""
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return -1
        return int(document["batch_id"]) if document["query_id"] == self._query_id else -1

    def _note_done(self, batch_id: int) -> None:
        replace_file(self._file, json.dumps({"query_id": self._query_id, "batch_id": batch_id}))
        self._done = batch_id

    def note_counts(self, batch_id: int, counts: Mapping[str, int]) -> None:
        """Record how many rows of each input a batch has rejected; inputs without a count are left out."""
        self._counts[batch_id] = counts

    def deliver(self) -> int:
        """Write the dead letters of all finished batches; returns how many there were."""
        written = 0
        reached = self._done
        for batch_id in self._log.finished():
            if batch_id <= self._done:
                continue
            suspects = self._suspects(batch_id)
            if suspects:
                if reached > self._done:
                    self._note_done(reached)
                written += self._deliver_batch(batch_id, suspects)
            reached = batch_id
        if reached > self._done:
            self._note_done(reached)
        self._counts = {batch_id: counts for batch_id, counts in self._counts.items() if batch_id > self._done}
        self.written += written
        return written

    def _suspects(self, batch_id: int) -> list[str]:
        """The inputs from which a batch has, or may have, rejected rows."""
        counts = self._counts.get(batch_id, {})
        return [name for name in self._pipeline.topic_inputs if counts.get(name) != 0]

    def _deliver_batch(self, batch_id: int, suspects: Iterable[str]) -> int:
        letters: DataFrame | None = None
        for name in suspects:
            covered = self._range(name, batch_id)
            if covered.is_empty:
                continue
            declared = self._pipeline.topic_inputs[name]
            refused = refused_of(self._spark, name, declared, self._source, covered.start, covered.end)
            found = refused.select(*self._columns(name))
            letters = found if letters is None else letters.unionByName(found)
        if letters is None:
            return 0
        letters = letters.persist()
        try:
            count = letters.count()
            if count:
                writer = letters.write.format("tidelog").mode("append").options(**self._options)
                writer = writer.option("topic", self._topic)
                writer = writer.option("txnAppId", f"{self._query_id}.dead-letters").option("txnVersion", str(batch_id))
                writer.save()
        finally:
            letters.unpersist()
        return count

    def _columns(self, name: str) -> list[Column]:
        error = sf.col(ERROR)
        milliseconds = sf.unix_millis("timestamp")
        added = {
            ORIGIN_TOPIC: sf.col("topic"),
            ORIGIN_PARTITION: sf.col("partition").cast("string"),
            ORIGIN_OFFSET: sf.col("offset").cast("string"),
            ORIGIN_TIMESTAMP: milliseconds.cast("string"),
            ERROR_CLASS: sf.substring_index(error, ": ", 1),
            ERROR_MESSAGE: sf.expr(f"substring({ERROR}, instr({ERROR}, ': ') + 2)"),
            PIPELINE: sf.lit(self._pipeline.name),
            VERSION: sf.lit(str(self._pipeline.version)),
            INPUT: sf.lit(name),
        }
        headers = sf.array(
            *(sf.struct(sf.lit(key).alias("key"), value.cast("binary").alias("value")) for key, value in added.items())
        )
        nothing = sf.array().cast("array<struct<key:string,value:binary>>")
        return [sf.col("key"), sf.col("value"), sf.concat(sf.coalesce("headers", nothing), headers).alias("headers")]

    def _range(self, name: str, batch_id: int) -> _Range:
        """The offsets of an input that a batch covers."""
        ends = self._input_offsets(name, self._log.ends(batch_id))
        before: dict[str, dict[int, int]] = {}
        if batch_id > 0 and batch_id - 1 in self._log.planned():
            before = self._input_offsets(name, self._log.ends(batch_id - 1))
        first = self._starts.get(name, {})
        start: dict[str, dict[int, int]] = {}
        end: dict[str, dict[int, int]] = {}
        for topic, partitions in ends.items():
            for partition, until in partitions.items():
                begun = before.get(topic, {}).get(partition)
                since = first.get(topic, {}).get(partition, 0) if begun is None else begun
                if until > since:
                    start.setdefault(topic, {})[partition] = since
                    end.setdefault(topic, {})[partition] = until
        return _Range(start, end)

    def _input_offsets(self, name: str, offsets: Offsets) -> dict[str, dict[int, int]]:
        declared = self._pipeline.topic_inputs[name]
        return {
            topic: dict(partitions)
            for topic, partitions in offsets.items()
            if topic in declared.topics or (declared.pattern and re.fullmatch(declared.pattern, topic))
        }
