"""Turns Spark's report after each micro-batch into the progress that the registry keeps.

What always holds: rows and dead letters are counted since the start of the run; offsets are the next to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.inputs import DEAD_LETTERS_METRIC
from tidelog.pipeline.versions.registry_rows import Offsets, Progress, offsets_from_json

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class ProgressReader:
    """Follows one query. `news` returns each batch once, in order."""

    def __init__(self, query: StreamingQuery, processed: Offsets) -> None:
        self._query = query
        self._seen = -1
        self._latest: dict[str, Any] = {}
        self.processed: dict[str, dict[int, int]] = {topic: dict(rows) for topic, rows in processed.items()}
        self.rows = 0

    def news(self) -> list[dict[str, Any]]:
        """What Spark has reported since the last call, oldest first; nothing if the query is idle."""
        last = _document(self._query.lastProgress)
        if last is None or last == self._latest:
            return []
        self._latest = last
        if last["batchId"] <= self._seen:
            return []
        told = [last]
        if last["batchId"] > self._seen + 1:
            recent = [document for each in self._query.recentProgress if (document := _document(each)) is not None]
            told = [document for document in recent if document["batchId"] > self._seen] or told
        by_batch: dict[int, dict[str, Any]] = {}
        for document in told:
            if _is_batch(document):
                by_batch[document["batchId"]] = document
        if not by_batch:
            return []
        self._seen = max(by_batch)
        for document in by_batch.values():
            self.rows += int(document.get("numInputRows") or 0)
            for source in document["sources"]:
                for topic, partitions in _offsets(source.get("endOffset")).items():
                    self.processed.setdefault(topic, {}).update(partitions)
        return [by_batch[batch_id] for batch_id in sorted(by_batch)]

    def progress(self, document: Mapping[str, Any], ends: Offsets, dead_letters: int) -> Progress:
        """The progress after this batch, for the registry."""
        operators = document.get("stateOperators") or []
        return Progress(
            batch_id=document["batchId"],
            rows=self.rows,
            rows_per_s=float(document.get("processedRowsPerSecond") or 0.0),
            batch_ms=batch_ms(document),
            processed={topic: dict(rows) for topic, rows in self.processed.items()},
            ends=ends,
            state_rows=sum(int(each.get("numRowsTotal") or 0) for each in operators),
            state_bytes=sum(int(each.get("memoryUsedBytes") or 0) for each in operators),
            dead_letters=dead_letters,
            details=_details(document),
        )


def batch_ms(document: Mapping[str, Any]) -> int:
    return int((document.get("durationMs") or {}).get("triggerExecution") or document.get("batchDuration") or 0)


def refused_counts(document: Mapping[str, Any]) -> dict[str, int]:
    """How many rows of each input a batch rejected; inputs without a count are left out."""
    observed = document.get("observedMetrics") or {}
    return {
        name.removeprefix(DEAD_LETTERS_METRIC): int(row["rows"])
        for name, row in observed.items()
        if name.startswith(DEAD_LETTERS_METRIC) and row.get("rows") is not None
    }


def _is_batch(document: Mapping[str, Any]) -> bool:
    """Spark also reports that there was nothing to do, under the number of the next batch."""
    return "addBatch" in (document.get("durationMs") or {})


def _details(document: Mapping[str, Any]) -> dict[str, Any]:
    details: dict[str, Any] = {"input_rows": int(document.get("numInputRows") or 0)}
    watermark = (document.get("eventTime") or {}).get("watermark")
    if watermark:
        details["watermark"] = watermark
    details["at"] = document.get("timestamp")
    return details


def _offsets(value: object) -> dict[str, dict[int, int]]:
    if isinstance(value, str):
        value = json.loads(value)
    return offsets_from_json(value) if isinstance(value, dict) else {}


def _document(progress: Any) -> dict[str, Any] | None:
    if progress is None:
        return None
    document: dict[str, Any] = json.loads(progress.json) if hasattr(progress, "json") else dict(progress)
    return document
