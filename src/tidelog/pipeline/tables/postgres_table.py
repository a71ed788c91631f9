"""A table in PostgreSQL: rows are loaded with COPY and merged with one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidelog.client.serialization.contract import missing_extra
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.tables.sql_tables import SqlTable, plain_rows, quoted

if TYPE_CHECKING:
    from tidelog.pipeline.outputs import PostgresOutput

_LOADED = "tidelog_loaded"


class PostgresTable(SqlTable):
    """The table of one output, over one connection."""

    placeholder = "%s"

    def __init__(self, output: PostgresOutput, on_step: Callable[[str], None] | None = None) -> None:
        super().__init__(output.table, output.key, on_step)
        try:
            import psycopg
        except ImportError as missing:
            raise missing_extra("PostgresOutput", "psycopg", "postgres") from missing
        self._psycopg = psycopg
        try:
            self._connection = psycopg.connect(output.url, autocommit=True)
        except psycopg.Error as error:
            raise PipelineError(f"{output.address}: {' '.join(str(error).split())}") from error

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                yield cursor
        except self._psycopg.Error as error:
            raise PipelineError(f"PostgreSQL table {self.table}: {' '.join(str(error).split())}") from error

    def type_name(self, kind: pa.DataType) -> str:
        return type_name(kind)

    def columns_of(self, cursor: Any, table: str) -> list[str]:
        found = cursor.execute("SELECT to_regclass(%s)", (quoted(table),)).fetchone()
        if found[0] is None:
            return []
        rows = cursor.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
            "ORDER BY attnum",
            (quoted(table),),
        ).fetchall()
        return [row[0] for row in rows]

    def _load(self, cursor: Any, place: str, rows: pa.Table, *, is_upsert: bool) -> None:
        columns = ", ".join(quoted(name) for name in rows.column_names)
        target = quoted(place)
        if is_upsert:
            cursor.execute(f"CREATE TEMPORARY TABLE {_LOADED} (LIKE {target}) ON COMMIT DROP")
            target = _LOADED
        with cursor.copy(f"COPY {target} ({columns}) FROM STDIN") as copy:
            for row in plain_rows(rows, self.plain):
                copy.write_row(tuple(row.values()))
        if is_upsert:
            tail = self.upsert_tail(rows.column_names)
            cursor.execute(f"INSERT INTO {quoted(place)} ({columns}) SELECT {columns} FROM {_LOADED}{tail}")

    def _replace_view(self, cursor: Any, place: str) -> None:
        """Change the view instead of recreating it if the columns allow it, so that grants are kept."""
        kind = cursor.execute(
            "SELECT relkind FROM pg_class WHERE oid = to_regclass(%s)", (quoted(self.table),)
        ).fetchone()
        if kind is not None and kind[0] != "v":
            raise PipelineError(
                f"PostgreSQL already has a table {self.table}, which is not a view of this output; rename it, or "
                f"choose another name"
            )
        body = f"VIEW {quoted(self.table)} AS SELECT * FROM {quoted(place)}"
        try:
            with self._connection.transaction():
                cursor.execute(f"CREATE OR REPLACE {body}")
        except self._psycopg.errors.InvalidTableDefinition:
            cursor.execute(f"DROP VIEW {quoted(self.table)}")
            cursor.execute(f"CREATE {body}")


def type_name(kind: pa.DataType) -> str:
    """The PostgreSQL type for an Arrow type; nested types become JSON."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return {8: "smallint", 16: "smallint", 32: "integer"}.get(kind.bit_width, "bigint")
    if pa.types.is_floating(kind):
        return "real" if kind.bit_width == 32 else "double precision"
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytea"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if pa.types.is_nested(kind):
        return "jsonb"
    return "text"
