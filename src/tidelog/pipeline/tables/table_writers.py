"""Writes micro-batches to tables: the Spark side of each kind of table.

What always holds: a batch that a table already has is not computed again for it. Executors write files; rows for
databases and upserted rows pass through the driver, as one Arrow table per batch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.pipeline.outputs import DeltaOutput, ParquetOutput, PostgresOutput, SqliteOutput, TableOutput
from tidelog.pipeline.tables.parquet_table import ParquetTable, last_by_key, split_deleted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TableWriter = Callable[["DataFrame", str, int], bool]


def table_writer(output: TableOutput, schema: StructType) -> TableWriter:
    """Create the table if it is missing, and return a writer for its batches."""
    kept = StructType([field for field in schema.fields if field.name != getattr(output, "deleted", None)])
    columns = to_arrow_schema(kept, timezone="UTC")
    if isinstance(output, ParquetOutput):
        return _ParquetWriter(output, columns)
    if isinstance(output, DeltaOutput):
        return _DeltaWriter(output, columns)
    assert isinstance(output, PostgresOutput | SqliteOutput)
    return _DatabaseWriter(output, columns)


def _split(batch: DataFrame, output: Any) -> tuple[pa.Table, pa.Table | None]:
    """The batch as Arrow: rows to keep, only the last of each key, and rows to remove."""
    rows = batch.toArrow()
    if output.mode == "upsert":
        rows = last_by_key(rows, output.key)
    return split_deleted(rows, output.deleted)


def _stage(batch: DataFrame, staging: Path) -> list[Path]:
    """Have executors write the batch to Parquet files."""
    batch.write.mode("overwrite").option("compression", "zstd").parquet(str(staging))
    return sorted(staging.glob("part-*.parquet"))


class _ParquetWriter:
    def __init__(self, output: ParquetOutput, columns: pa.Schema) -> None:
        self._output = output
        self._table = ParquetTable(output.place)
        self._table.open()
        if not self._table.manifest().files:
            # An empty file, so that readers see the columns before there are any rows.
            self._table.upsert(columns.empty_table(), output.key, "tidelog", 0)

    def __call__(self, batch: DataFrame, query_id: str, batch_id: int) -> bool:
        if self._table.is_committed(query_id, batch_id):
            return False
        if self._output.mode == "upsert":
            rows, removed = _split(batch, self._output)
            self._table.upsert(rows, self._output.key, query_id, batch_id, removed)
            return True
        staging = self._table.staging(query_id, batch_id)
        try:
            self._table.append(_stage(batch, staging), query_id, batch_id)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        self._table.compact(self._output.compact_files, self._output.target_file_bytes)
        return True


class _DeltaWriter:
    def __init__(self, output: DeltaOutput, columns: pa.Schema) -> None:
        from tidelog.pipeline.tables.delta_table import DeltaStore

        self._output = output
        self._table = DeltaStore(output.place, columns)
        self._table.open()

    def __call__(self, batch: DataFrame, query_id: str, batch_id: int) -> bool:
        if self._table.is_committed(query_id, batch_id):
            return False
        if self._output.mode == "upsert":
            rows, removed = _split(batch, self._output)
            self._table.upsert(rows, self._output.key, query_id, batch_id, removed)
        else:
            staging = self._table.staging()
            try:
                self._table.append(_stage(batch, staging), query_id, batch_id)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        if batch_id % self._output.compact_files == self._output.compact_files - 1:
            self._table.compact(self._output.compact_files, self._output.target_file_bytes)
        return True


class _DatabaseWriter:
    """Opens a connection for each batch, so a restart of the server in between does no harm."""

    def __init__(self, output: PostgresOutput | SqliteOutput, columns: pa.Schema) -> None:
        self._output = output
        with output.connect() as table:
            table.open(output.placed_version(), columns)

    def __call__(self, batch: DataFrame, query_id: str, batch_id: int) -> bool:
        app_id = f"{query_id}.{self._output.place}"
        with self._output.connect() as table:
            if table.is_committed(app_id, batch_id):
                return False
            rows, removed = _split(batch, self._output)
            is_upsert = self._output.mode == "upsert"
            version = self._output.placed_version()
            table.write(version, rows, app_id, batch_id, is_upsert=is_upsert, removed=removed)
        return True
