"""Reads from the checkpoint of a query which batches were planned, over which offsets, and which are finished.

What always holds: the checkpoint is only read, through Hadoop's file systems, so it works wherever Spark can write one.
The files are Spark's: `offsets/N` has two header lines and then a line for each source; `commits/N` exists once batch N
is done.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tidelog.pipeline.spark_jvm import file_names, file_text
from tidelog.pipeline.versions.registry_rows import Offsets, offsets_from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_OFFSETS = "-"


class QueryLog:
    """The log of one query in its checkpoint."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self.location = location

    def _batch_ids(self, name: str) -> list[int]:
        names = file_names(self._spark, f"{self.location}/{name}")
        return sorted(int(each) for each in names if each.isdigit())

    def finished(self) -> list[int]:
        """The finished batches that Spark still keeps."""
        return self._batch_ids("commits")

    def planned(self) -> list[int]:
        """The planned batches that Spark still keeps."""
        return self._batch_ids("offsets")

    def _sources(self, batch_id: int) -> list[Offsets]:
        """Where each source ends in a batch, in the order of the query's sources."""
        text = file_text(self._spark, f"{self.location}/offsets/{batch_id}")
        # The first two lines are a version and the query's own values.
        lines = text.splitlines()[2:]
        return [{} if line == _NO_OFFSETS else offsets_from_json(json.loads(line)) for line in lines]

    def ends(self, batch_id: int) -> dict[str, dict[int, int]]:
        """Where each partition ends in a batch, whichever source reads it."""
        merged: dict[str, dict[int, int]] = {}
        for source in self._sources(batch_id):
            for topic, partitions in source.items():
                merged.setdefault(topic, {}).update(partitions)
        return merged
