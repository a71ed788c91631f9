"""A Delta table, written by the library `deltalake`, exactly once and without a jar.

What always holds: executors write Parquet files into the table's directory, where no reader of Delta looks at them
until the log names them; one entry of the log adds them together with the mark (writer, batch), and a batch whose mark
is there already is not written again. Files that never got into the log are removed by Delta's own vacuum.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.client.serialization.contract import missing_extra

_STAGING = "_staging-"


def _library() -> Any:
    try:
        import deltalake
    except ImportError as missing:
        raise missing_extra("DeltaOutput", "deltalake", "delta") from missing
    return deltalake


def read_delta(place: Path) -> pa.Table:
    """All rows of the latest version of the table's log."""
    table = _library().DeltaTable(str(place))
    return pa.table(table.to_pyarrow_table())


class DeltaStore:
    """The table in one place. `on_step` is called between the steps of a commit, for tests that end it there."""

    def __init__(self, place: Path, schema: pa.Schema, on_step: Callable[[str], None] | None = None) -> None:
        self._delta = _library()
        self.place = place
        self._schema = pa.schema([field.with_nullable(True) for field in schema])
        self._step = on_step or (lambda name: None)

    def open(self) -> None:
        """Make the table when it is missing; else remove what a writer that died, and joined files, have left.

        Files that the log no longer names go after Delta's own time for readers of old versions, a week.
        """
        self.place.parent.mkdir(parents=True, exist_ok=True)
        if not self._delta.DeltaTable.is_deltatable(str(self.place)):
            self._delta.DeltaTable.create(str(self.place), self._schema, mode="ignore")
            return
        for staging in self.place.glob(f"{_STAGING}*"):
            shutil.rmtree(staging)
        self._table().vacuum(dry_run=False)

    def _table(self) -> Any:
        return self._delta.DeltaTable(str(self.place))

    def staging(self) -> Path:
        """Where the files of a batch are written before they are committed; the name keeps readers away."""
        return self.place / f"{_STAGING}{secrets.token_hex(6)}"

    def is_committed(self, app_id: str, batch_id: int) -> bool:
        mark = self._table().transaction_version(app_id)
        return mark is not None and batch_id <= mark

    def append(self, paths: Iterable[Path], app_id: str, batch_id: int) -> bool:
        """Commit finished files as one batch; False when that batch was committed before."""
        table = self._table()
        if self._is_marked(table, app_id, batch_id):
            return False
        actions = [action for path in paths if (action := self._take(path)) is not None]
        self._step("files")
        if not actions:
            return True  # there is nothing that could be written twice
        table.create_write_transaction(actions, "append", self._schema, commit_properties=self._mark(app_id, batch_id))
        self._step("commit")
        return True

    def upsert(
        self, rows: pa.Table, key: Sequence[str], app_id: str, batch_id: int, removed: pa.Table | None = None
    ) -> bool:
        """Commit rows over those with the same key, and take out the keys of `removed`, in one entry of the log."""
        table = self._table()
        if self._is_marked(table, app_id, batch_id):
            return False
        flag = "__tidelog_removed"
        source = rows.append_column(flag, pa.repeat(pa.scalar(False), rows.num_rows))
        if removed is not None and removed.num_rows:
            gone = removed.append_column(flag, pa.repeat(pa.scalar(True), removed.num_rows))
            source = pa.concat_tables([source, gone.select(source.column_names)])
        if not source.num_rows:
            return True
        same = " AND ".join(f"target.`{column}` IS NOT DISTINCT FROM source.`{column}`" for column in key)
        values = {column: f"source.`{column}`" for column in rows.column_names}
        merger = table.merge(
            source, same, source_alias="source", target_alias="target", commit_properties=self._mark(app_id, batch_id)
        )
        merger = merger.when_matched_delete(f"source.`{flag}`")
        merger = merger.when_matched_update(values).when_not_matched_insert(values, f"NOT source.`{flag}`")
        self._step("merge")
        merger.execute()
        self._step("commit")
        return True

    def compact(self, compact_files: int, target_file_bytes: int) -> int:
        """Join small files when there are so many; how many were joined."""
        table = self._table()
        sizes = pa.table(table.get_add_actions(flatten=True))["size_bytes"].to_pylist()
        if sum(size < target_file_bytes for size in sizes) < compact_files:
            return 0
        result = table.optimize.compact(target_size=target_file_bytes)
        return int(result["numFilesRemoved"])

    @staticmethod
    def _is_marked(table: Any, app_id: str, batch_id: int) -> bool:
        mark = table.transaction_version(app_id)
        return mark is not None and batch_id <= mark

    def _mark(self, app_id: str, batch_id: int) -> Any:
        transaction = self._delta.Transaction(app_id, batch_id)
        return self._delta.CommitProperties(app_transactions=[transaction])

    def _take(self, path: Path) -> Any:
        """Move a finished file into the table's directory; None for one without rows."""
        rows = pq.read_metadata(path).num_rows
        if not rows:
            return None
        name = f"part-{time.time_ns()}-{secrets.token_hex(6)}.parquet"
        os.rename(path, self.place / name)
        size = (self.place / name).stat().st_size
        stats = json.dumps({"numRecords": rows})
        return self._delta.transaction.AddAction(name, size, {}, time.time_ns() // 1_000_000, True, stats)
