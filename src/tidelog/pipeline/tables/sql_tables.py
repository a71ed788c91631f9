"""What tables in PostgreSQL and SQLite have in common: markers, views, statements.

What always holds: the rows of a batch and the marker (writer, batch), and nothing else, are written in one database
transaction; a batch whose marker is already there changes nothing. The declared name is a view of one version's table;
`tidelog_tables` records which one, and changes in the same transaction as the view.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidelog.common.closing import Closing
from tidelog.pipeline.errors import PipelineError

MARKS = "tidelog_batches"
TABLES = "tidelog_tables"


class SqlTable(Closing):
    """One declared table in a database. Use it in a `with` statement."""

    table: str
    key: Sequence[str]
    placeholder: str  # of a parameter in the database's SQL

    def __init__(self, table: str, key: Sequence[str], on_step: Callable[[str], None] | None = None) -> None:
        self.table = table
        self.key = tuple(key)
        self._step = on_step or (lambda name: None)

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _transaction(self) -> Any:
        """A context manager that returns a cursor; it commits at the end, and rolls back on an error."""

    @abstractmethod
    def type_name(self, kind: pa.DataType) -> str: ...

    @abstractmethod
    def columns_of(self, cursor: Any, table: str) -> list[str]:
        """The columns of a table; empty if it doesn't exist."""

    @abstractmethod
    def _load(self, cursor: Any, place: str, rows: pa.Table, *, is_upsert: bool) -> None: ...

    @abstractmethod
    def _replace_view(self, cursor: Any, place: str) -> None: ...

    def place(self, version: int) -> str:
        return f"{self.table}__v{version}"

    # Creating
    def open(self, version: int, schema: pa.Schema) -> None:
        """Create what is missing; raises PipelineError if the table has different columns."""
        place = self.place(version)
        with self._transaction() as cursor:
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {MARKS} (app_id TEXT PRIMARY KEY, batch_id BIGINT NOT NULL)")
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {TABLES} (name TEXT PRIMARY KEY, version BIGINT NOT NULL)")
            found = self.columns_of(cursor, place)
            if not found:
                cursor.execute(self._create_statement(place, schema))
            elif found != schema.names:
                raise PipelineError(
                    f"table {place} has the columns {', '.join(found)}, but transform returns "
                    f"{', '.join(schema.names)}; give the pipeline a new version and replay it, or drop the table"
                )

    def _create_statement(self, place: str, schema: pa.Schema) -> str:
        columns = [f"{quoted(field.name)} {self.type_name(field.type)}" for field in schema]
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(quoted(column) for column in self.key)})")
        return f"CREATE TABLE {quoted(place)} ({', '.join(columns)})"

    # Writing

    def write(
        self,
        version: int,
        rows: pa.Table,
        app_id: str,
        batch_id: int,
        *,
        is_upsert: bool,
        removed: pa.Table | None = None,
    ) -> bool:
        """Write a batch; False when it was written before."""
        place = self.place(version)
        with self._transaction() as cursor:
            if not self._mark(cursor, app_id, batch_id):
                return False
            self._step("mark")
            if rows.num_rows:
                self._load(cursor, place, rows, is_upsert=is_upsert)
            self._step("rows")
            if removed is not None and removed.num_rows:
                same = " AND ".join(f"{quoted(column)} = {self.placeholder}" for column in self.key)
                keys = [tuple(row.values()) for row in plain_rows(removed.select(list(self.key)), self.plain)]
                cursor.executemany(f"DELETE FROM {quoted(place)} WHERE {same}", keys)
            self._step("removed")
        self._step("commit")
        return True

    def is_committed(self, app_id: str, batch_id: int) -> bool:
        with self._transaction() as cursor:
            statement = f"SELECT batch_id FROM {MARKS} WHERE app_id = {self.placeholder}"
            row = cursor.execute(statement, (app_id,)).fetchone()
        return row is not None and batch_id <= row[0]

    def _mark(self, cursor: Any, app_id: str, batch_id: int) -> bool:
        """Whether this batch is new; waits for another transaction that is writing it."""
        found = cursor.execute(
            f"INSERT INTO {MARKS} (app_id, batch_id) VALUES ({self.placeholder}, {self.placeholder}) "
            f"ON CONFLICT (app_id) DO UPDATE SET batch_id = excluded.batch_id "
            f"WHERE {MARKS}.batch_id < excluded.batch_id RETURNING batch_id",
            (app_id, batch_id),
        ).fetchone()
        return found is not None

    def upsert_tail(self, columns: Sequence[str]) -> str:
        """The clause that turns an INSERT into an upsert."""
        conflict = ", ".join(quoted(column) for column in self.key)
        changed = [column for column in columns if column not in self.key]
        if not changed:
            return f" ON CONFLICT ({conflict}) DO NOTHING"
        values = ", ".join(f"{quoted(column)} = excluded.{quoted(column)}" for column in changed)
        return f" ON CONFLICT ({conflict}) DO UPDATE SET {values}"

    def plain(self, value: Any) -> Any:
        """A value in a form that the database driver accepts."""
        if isinstance(value, dict | list):
            return json.dumps(value, default=str, ensure_ascii=False)
        return value

    # Versions

    def current_version(self) -> int | None:
        with self._transaction() as cursor:
            if not self.columns_of(cursor, TABLES):
                return None
            statement = f"SELECT version FROM {TABLES} WHERE name = {self.placeholder}"
            row = cursor.execute(statement, (self.table,)).fetchone()
        return None if row is None else int(row[0])

    def switch_to(self, version: int) -> int | None:
        before = self.current_version()
        with self._transaction() as cursor:
            if not self.columns_of(cursor, self.place(version)):
                raise PipelineError(f"there is no version {version} of table {self.table}")
            self._replace_view(cursor, self.place(version))
            cursor.execute(
                f"INSERT INTO {TABLES} (name, version) VALUES ({self.placeholder}, {self.placeholder}) "
                f"ON CONFLICT (name) DO UPDATE SET version = excluded.version",
                (self.table, version),
            )
        return before

    def read(self, version: int) -> pa.Table:
        with self._transaction() as cursor:
            names = self.columns_of(cursor, self.place(version))
            rows = cursor.execute(f"SELECT * FROM {quoted(self.place(version))}").fetchall()
        return pa.table({name: pa.array([row[index] for row in rows]) for index, name in enumerate(names)})

    def drop(self, version: int) -> None:
        if self.current_version() == version:
            raise PipelineError(f"readers currently see version {version} of table {self.table}")
        with self._transaction() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {quoted(self.place(version))}")


def quoted(name: str) -> str:
    """A name quoted for SQL; a schema before it is quoted separately."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def plain_rows(rows: pa.Table, plain: Callable[[Any], Any]) -> Iterator[dict[str, Any]]:
    for batch in rows.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            yield {name: plain(value) for name, value in row.items()}
