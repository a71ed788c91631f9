"""A Delta table, written with the library `deltalake`, exactly once and without a jar.

What always holds: executors write Parquet files into the table's directory, where Delta readers ignore them until the
log refers to them; one log entry adds them together with the marker (writer, batch), and a batch whose marker is
already there is not written again. Delta's own vacuum removes files that never made it into the log.

The library never syncs what it writes, so we do: the files of an append before the log refers to them, and everything
that a commit wrote before the commit counts as done. For upserts and compaction, the library writes the files and the
entry in one call; a power cut at that very moment may leave an entry whose files are missing.
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
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.client.serialization.contract import missing_extra
from tidelog.common.durable_files import make_directory, sync_path

_STAGING = "_staging-"


def _library() -> Any:
    try:
        import deltalake
    except ImportError as missing:
        raise missing_extra("DeltaOutput", "deltalake", "delta") from missing
    return deltalake


def read_delta(place: Path) -> pa.Table:
    """All rows of the latest version of the table."""
    table = _library().DeltaTable(str(place))
    return pa.table(table.to_pyarrow_table())


class DeltaStore:
    """The table in one location. `on_step` is called between the steps of a commit, for tests that kill it there."""

    def __init__(self, place: Path, schema: pa.Schema, on_step: Callable[[str], None] | None = None) -> None:
        self._delta = _library()
        self.place = place
        self._schema = pa.schema([field.with_nullable(True) for field in schema])
        self._step = on_step or (lambda name: None)

    def open(self) -> None:
        """Create the table if it is missing; otherwise clean up after a writer that died, and after compaction.

        Files that the log no longer refers to are removed after Delta's retention for readers of old versions, a week.
        """
        if not self._delta.DeltaTable.is_deltatable(str(self.place)):
            make_directory(self.place)
            self._delta.DeltaTable.create(str(self.place), self._schema, mode="ignore")
            self._force_version(0)
            return
        for staging in self.place.glob(f"{_STAGING}*"):
            shutil.rmtree(staging)
        table = self._table()
        table.vacuum(dry_run=False)
        # A writer that died may have committed this version without syncing it, and from here on its marker counts.
        self._force_version(table.version())

    def _table(self) -> Any:
        return self._delta.DeltaTable(str(self.place))

    def staging(self) -> Path:
        """Where the files of a batch are written before they are committed; readers ignore a directory of this name."""
        return self.place / f"{_STAGING}{secrets.token_hex(6)}"

    def is_committed(self, app_id: str, batch_id: int) -> bool:
        mark = self._table().transaction_version(app_id)
        return mark is not None and batch_id <= mark

    def append(self, paths: Iterable[Path], app_id: str, batch_id: int) -> bool:
        """Commit finished files as one batch; returns False if that batch had already been committed."""
        table = self._table()
        if self._is_marked(table, app_id, batch_id):
            return False
        actions = [action for path in paths if (action := self._take(path)) is not None]
        self._step("files")
        if not actions:
            return True  # nothing to write, so nothing could be written twice
        sync_path(self.place)
        before = table.version()
        table.create_write_transaction(actions, "append", self._schema, commit_properties=self._mark(app_id, batch_id))
        self._step("commit")
        self._force_since(before)
        return True

    def upsert(
        self, rows: pa.Table, key: Sequence[str], app_id: str, batch_id: int, removed: pa.Table | None = None
    ) -> bool:
        """Replace rows with the same key, and delete the keys in `removed`, in one log entry."""
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
        before = table.version()
        merger.execute()
        self._step("commit")
        self._force_since(before)
        return True

    def compact(self, compact_files: int, target_file_bytes: int) -> int:
        """Compact small files if there are at least `compact_files` of them; returns how many were compacted."""
        table = self._table()
        sizes = pa.table(table.get_add_actions(flatten=True))["size_bytes"].to_pylist()
        if sum(size < target_file_bytes for size in sizes) < compact_files:
            return 0
        before = table.version()
        result = table.optimize.compact(target_size=target_file_bytes)
        self._force_since(before)
        return int(result["numFilesRemoved"])

    def _force_since(self, version: int) -> None:
        """Sync everything that later versions of the table added."""
        for later in range(version + 1, self._table().version() + 1):
            self._force_version(later)

    def _force_version(self, version: int) -> None:
        log = self.place / "_delta_log"
        entry = log / f"{version:020d}.json"
        if not entry.exists():  # removed by the library, long after it was synced
            return
        for line in entry.read_text(encoding="utf-8").splitlines():
            added = json.loads(line).get("add")
            if added is not None:
                sync_path(self.place / unquote(added["path"]))
        sync_path(self.place)
        sync_path(entry)
        sync_path(log)

    @staticmethod
    def _is_marked(table: Any, app_id: str, batch_id: int) -> bool:
        mark = table.transaction_version(app_id)
        return mark is not None and batch_id <= mark

    def _mark(self, app_id: str, batch_id: int) -> Any:
        transaction = self._delta.Transaction(app_id, batch_id)
        return self._delta.CommitProperties(app_transactions=[transaction])

    def _take(self, path: Path) -> Any:
        """Move a finished file into the table's directory; returns None if it has no rows."""
        rows = pq.read_metadata(path).num_rows
        if not rows:
            return None
        name = f"part-{time.time_ns()}-{secrets.token_hex(6)}.parquet"
        sync_path(path)
        os.rename(path, self.place / name)
        size = (self.place / name).stat().st_size
        stats = json.dumps({"numRecords": rows})
        return self._delta.transaction.AddAction(name, size, {}, time.time_ns() // 1_000_000, True, stats)
