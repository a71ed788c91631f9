"""A table in an SQLite file.

What always holds: the file uses write-ahead logging, so a batch doesn't block readers; a batch is on disk before the
checkpoint says that it is done. SQLite has few types: times are stored as text in UTC (ISO 8601), decimals as text, and
nested values as JSON.
"""

from __future__ import annotations

import datetime
import decimal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.sql_tables import SqlTable, plain_rows, quoted

if TYPE_CHECKING:
    from tidelog.pipeline.outputs import SqliteOutput

_BUSY_TIMEOUT_S = 60.0


class SqliteTable(SqlTable):
    """The table of one output, over one connection."""

    placeholder = "?"

    def __init__(self, output: SqliteOutput, on_step: Callable[[str], None] | None = None) -> None:
        super().__init__(output.table, output.key, on_step)
        path = Path(output.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Batches are written by the thread of their query, which may not be this one.
        self._connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        cursor = self._connection.cursor()
        try:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")
        except sqlite3.Error as error:
            raise PipelineError(f"SQLite table {self.table}: {error}") from error
        finally:
            cursor.close()

    def type_name(self, kind: pa.DataType) -> str:
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
            return "INTEGER"
        if pa.types.is_floating(kind):
            return "REAL"
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return "BLOB"
        return "TEXT"

    def plain(self, value: Any) -> Any:
        if isinstance(value, datetime.datetime):
            if value.tzinfo is not None:
                value = value.astimezone(datetime.UTC)
            return value.isoformat(sep=" ")
        if isinstance(value, datetime.date):
            return value.isoformat()
        if isinstance(value, decimal.Decimal):
            return str(value)
        return super().plain(value)

    def columns_of(self, cursor: Any, table: str) -> list[str]:
        return [row[1] for row in cursor.execute(f"PRAGMA table_info({quoted(table)})").fetchall()]

    def _load(self, cursor: Any, place: str, rows: pa.Table, *, is_upsert: bool) -> None:
        columns = ", ".join(quoted(name) for name in rows.column_names)
        marks = ", ".join("?" for _ in rows.column_names)
        tail = self.upsert_tail(rows.column_names) if is_upsert else ""
        statement = f"INSERT INTO {quoted(place)} ({columns}) VALUES ({marks}){tail}"
        cursor.executemany(statement, (tuple(row.values()) for row in plain_rows(rows, self.plain)))

    def _replace_view(self, cursor: Any, place: str) -> None:
        found = cursor.execute("SELECT type FROM sqlite_master WHERE name = ?", (self.table,)).fetchone()
        if found is not None and found[0] != "view":
            raise PipelineError(
                f"SQLite already has a {found[0]} {self.table}, which is not a view of this output; rename it, or "
                f"choose another name"
            )
        cursor.execute(f"DROP VIEW IF EXISTS {quoted(self.table)}")
        cursor.execute(f"CREATE VIEW {quoted(self.table)} AS SELECT * FROM {quoted(place)}")
