"""Declarations of where rows go: topics, Parquet and Delta tables, PostgreSQL and SQLite.

What always holds: these are plain values that don't need pyspark. The rows of a table are never stored under the
declared name itself, but in a location that belongs to the version that wrote them, `<name>__v<version>`. The declared
name is a pointer to one of those locations (a symbolic link to a directory, or a view of a table), which `switch_to`
moves in one step. A topic has no pointer: the live version writes to the topic itself, and a version that runs beside
it writes to `<topic>.v<version>`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from tidelog.common.checks import topic_name_problem
from tidelog.pipeline.errors import DeclarationError
from tidelog.pipeline.formats import Format, Json

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.pipeline.tables.sql_tables import SqlTable

Mode = Literal["append", "upsert"]
DEFAULT_COMPACT_FILES = 16
DEFAULT_TARGET_FILE_BYTES = 128 * 1024 * 1024


class Output(ABC):
    """What all outputs share. Use TopicOutput, ParquetOutput, DeltaOutput, PostgresOutput or SqliteOutput."""

    kind: ClassVar[Literal["topic", "table"]]
    mode: Mode
    key: Sequence[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """Identifies this output among those of its pipeline; the same in all versions."""

    @property
    @abstractmethod
    def address(self) -> str:
        """The declared location, in readable form."""

    @abstractmethod
    def shadow(self, version: int) -> Self:
        """Where this version writes while it runs beside a live one."""

    @abstractmethod
    def live(self, version: int) -> Self:
        """Where this version writes when it is live."""

    @abstractmethod
    def check(self, where: str, output_mode: str) -> None:
        """Raise DeclarationError if there is a mistake; `where` names the pipeline and the output."""


@dataclass(frozen=True)
class TopicOutput(Output):
    """A topic.

    mode: "append" writes every row as a record; "upsert" writes rows by key into a compacted topic, which is created if
        it is missing: the last record of a key is its current row.
    key: the columns that form the record key. A single text or number column is written as text, anything else as a
        JSON object. Without it, records have no key.
    format: how to write a row as a value: Json(), Avro(...), Protobuf(...); Text() and Raw() use the column `value`.
    deleted: a boolean column; where it is true, a tombstone is written (upsert only).
    headers: a column of Spark's header type (array<struct<key string, value binary>>).
    partitions, replication_factor, configs: used if the topic has to be created; by default those of the broker.
    """

    kind: ClassVar[Literal["topic", "table"]] = "topic"
    topic: str
    key: Sequence[str] = ()
    mode: Mode = "append"
    format: Format = field(default_factory=Json)
    deleted: str | None = None
    headers: str | None = None
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    declared: str | None = None

    def __post_init__(self) -> None:
        _list_key(self)

    @property
    def name(self) -> str:
        return self.declared or self.topic

    @property
    def address(self) -> str:
        return f"topic {self.topic}"

    def shadow(self, version: int) -> Self:
        return dataclasses.replace(self, topic=f"{self.name}.v{version}", declared=self.name)

    def live(self, version: int) -> Self:
        return dataclasses.replace(self, topic=self.name, declared=self.name)

    def check(self, where: str, output_mode: str) -> None:
        problem = topic_name_problem(self.topic) if isinstance(self.topic, str) else f"{self.topic!r} is not a topic"
        if problem is not None:
            raise DeclarationError(f"{where}: {problem}")
        _check_mode(self, where)
        if not isinstance(self.format, Format):
            raise DeclarationError(f"{where}: format must be Json(), Avro(...), Protobuf(...), Text() or Raw()")
        self.format.check_as_output(where)


class TableOutput(Output):
    """What tables share: a location for each version, and a pointer from the declared name to one of them."""

    kind: ClassVar[Literal["topic", "table"]] = "table"
    version: int | None

    @abstractmethod
    def current_version(self) -> int | None:
        """The version that readers of the declared name see, or None if there is none yet."""

    @abstractmethod
    def switch_to(self, version: int) -> int | None:
        """Make readers of the declared name see this version from now on; returns the previous one."""

    @abstractmethod
    def read_arrow(self) -> pa.Table:
        """All committed rows of one version; call it on the result of `live` or `shadow`."""

    @abstractmethod
    def drop(self) -> None:
        """Remove this version's rows; the pointer must be elsewhere."""

    def live(self, version: int) -> Self:
        return dataclasses.replace(self, version=version)  # type: ignore[type-var]  # the subclasses are dataclasses

    def shadow(self, version: int) -> Self:
        return self.live(version)

    def placed_version(self) -> int:
        if self.version is None:
            raise ValueError(f"{self.address} has a location for each version: get one with live(version)")
        return self.version


@dataclass(frozen=True)
class _FileTable(TableOutput):
    """A directory on a disk that the driver and the executors share."""

    # The part of a version's location that readers see.
    inside: ClassVar[str] = ""

    path: str | Path
    key: Sequence[str] = ()
    mode: Mode = "append"
    deleted: str | None = None
    compact_files: int = DEFAULT_COMPACT_FILES
    target_file_bytes: int = DEFAULT_TARGET_FILE_BYTES
    version: int | None = None

    def __post_init__(self) -> None:
        _list_key(self)

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def address(self) -> str:
        return f"{type(self).__name__.removesuffix('Output')} table {self.path}"

    @property
    def pointer(self) -> Path:
        return Path(self.path).absolute()

    @property
    def place(self) -> Path:
        return self.pointer.with_name(f"{self.name}__v{self.placed_version()}")

    def check(self, where: str, output_mode: str) -> None:
        if "://" in str(self.path):
            raise DeclarationError(f"{where}: path={str(self.path)!r} must be a directory, not a URL")
        _check_mode(self, where)
        _check_repeats(self, where, output_mode)
        if self.compact_files < 2:
            raise DeclarationError(f"{where}: compact_files={self.compact_files} must be at least 2")

    def current_version(self) -> int | None:
        from tidelog.pipeline.tables.table_pointer import pointed_version

        return pointed_version(self.pointer)

    def switch_to(self, version: int) -> int | None:
        from tidelog.pipeline.tables.table_pointer import point_to

        return point_to(self.pointer, version, self.inside)

    def drop(self) -> None:
        from tidelog.pipeline.tables.table_pointer import remove_place

        remove_place(self.pointer, self.placed_version())


@dataclass(frozen=True)
class ParquetOutput(_FileTable):
    """A directory of Parquet files, written exactly once, that any Parquet reader can read.

    path: the directory for readers; it is a symbolic link to that of the current version.
    mode: "append", or "upsert" by `key` (which rewrites the table in each batch: for tables that stay small).
    deleted: a boolean column; true removes the row with that key (upsert only).
    compact_files: once this many files are smaller than `target_file_bytes`, they are compacted.
    """

    inside: ClassVar[str] = "current"

    def read_arrow(self) -> pa.Table:
        from tidelog.pipeline.tables.parquet_table import ParquetTable

        return ParquetTable(self.place).read()


@dataclass(frozen=True)
class DeltaOutput(_FileTable):
    """A Delta table, written without a jar, exactly once.

    path: the directory for readers; it is a symbolic link to that of the current version.
    mode: "append", or "upsert" by `key` (with Delta's merge).
    deleted: a boolean column; true removes the row with that key (upsert only).
    compact_files: once this many files are smaller than `target_file_bytes`, they are compacted.
    """

    def read_arrow(self) -> pa.Table:
        from tidelog.pipeline.tables.delta_table import read_delta

        return read_delta(self.place)


class _DatabaseTable(TableOutput):
    """A database table; opens a connection for each operation."""

    table: str  # not a dataclass field here, because it would come before those of the subclasses

    def __post_init__(self) -> None:
        _list_key(self)

    @property
    def name(self) -> str:
        return self.table

    @property
    def place(self) -> str:
        return f"{self.table}__v{self.placed_version()}"

    def check(self, where: str, output_mode: str) -> None:
        _check_table_name(self.table, where)
        _check_mode(self, where)
        _check_repeats(self, where, output_mode)

    @abstractmethod
    def connect(self) -> SqlTable: ...

    def current_version(self) -> int | None:
        with self.connect() as database:
            return database.current_version()

    def switch_to(self, version: int) -> int | None:
        with self.connect() as database:
            return database.switch_to(version)

    def read_arrow(self) -> pa.Table:
        with self.connect() as database:
            return database.read(self.placed_version())

    def drop(self) -> None:
        with self.connect() as database:
            database.drop(self.placed_version())


@dataclass(frozen=True)
class PostgresOutput(_DatabaseTable):
    """A table in PostgreSQL, inserted or updated by key, exactly once.

    url: in psycopg's form, "postgresql://user@host/database"; put the password in PGPASSWORD or ~/.pgpass.
    table: the name for readers; it is a view of the table of the current version.
    key: the primary key.
    mode: "upsert", or "append" (then `key` may be empty).
    deleted: a boolean column; true deletes the row with that key (upsert only).
    """

    url: str
    table: str
    key: Sequence[str] = ()
    mode: Mode = "upsert"
    deleted: str | None = None
    version: int | None = None

    @property
    def address(self) -> str:
        return f"PostgreSQL table {self.table}"

    def connect(self) -> SqlTable:
        from tidelog.pipeline.tables.postgres_table import PostgresTable

        return PostgresTable(self)


@dataclass(frozen=True)
class SqliteOutput(_DatabaseTable):
    """A table in an SQLite file, inserted or updated by key, exactly once.

    path: the file; it is created if it is missing.
    table: the name for readers; it is a view of the table of the current version.
    key: the primary key.
    mode: "upsert", or "append" (then `key` may be empty).
    deleted: a boolean column; true deletes the row with that key (upsert only).
    """

    path: str | Path
    table: str
    key: Sequence[str] = ()
    mode: Mode = "upsert"
    deleted: str | None = None
    version: int | None = None

    @property
    def address(self) -> str:
        return f"SQLite table {self.table} in {self.path}"

    def connect(self) -> SqlTable:
        from tidelog.pipeline.tables.sqlite_table import SqliteTable

        return SqliteTable(self)


def _list_key(output: Any) -> None:
    """A single column may be given as a string."""
    key = (output.key,) if isinstance(output.key, str) else tuple(output.key)
    object.__setattr__(output, "key", key)


def _check_mode(output: Any, where: str) -> None:
    if output.mode not in ("append", "upsert"):
        raise DeclarationError(f"{where}: mode={output.mode!r} must be 'append' or 'upsert'")
    if output.mode == "upsert" and not output.key:
        raise DeclarationError(f"{where}: mode='upsert' needs key columns, such as key=['order_id']")
    if output.deleted is not None and output.mode != "upsert":
        raise DeclarationError(f"{where}: deleted={output.deleted!r} needs mode='upsert': an append can't remove a row")


def _check_repeats(output: Any, where: str, output_mode: str) -> None:
    if output.mode == "append" and output_mode != "append":
        raise DeclarationError(
            f"{where}: output_mode={output_mode!r} emits a row again when it changes, and mode='append' would keep the "
            f"old one as well; use mode='upsert' with a key"
        )


def _check_table_name(table: object, where: str) -> None:
    if not isinstance(table, str) or not all(part.isidentifier() for part in table.split(".")) or len(table) > 50:
        raise DeclarationError(f"{where}: table={table!r} must be a plain name of up to 50 letters, digits and '_'")
