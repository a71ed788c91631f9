"""What a topic or a table holds, kept in a file: the last value of every key, or how often each record is there.

What always holds: memory stays bounded, however many keys there are, since all rows are in an SQLite file with a cache
of fixed size; rows and the positions up to which a topic was read change together, so that a killed reader goes on
where it was. Two of them can be compared row by row in the order of their keys. It reads no topic (`topic_reader`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

_CACHE_KIB = 64 * 1024
# With the default of 1,000 pages a large topic would be synced to disk thousands of times on its way in.
_CHECKPOINT_PAGES = 16_384
_FETCHED_AT_ONCE = 1_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rows(key BLOB PRIMARY KEY, value BLOB, partition INTEGER, copies INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions(partition INTEGER PRIMARY KEY, position INTEGER);
CREATE TABLE IF NOT EXISTS origin(name TEXT PRIMARY KEY, value TEXT);
"""

Same = Callable[[bytes, bytes], bool]
"""Whether two values that differ in their bytes mean the same."""


class Row(NamedTuple):
    """A key with its value, and the partition where it is, -1 for a table's."""

    key: bytes
    value: bytes
    partition: int


class Change(NamedTuple):
    """What makes one key of the old contents as in the new: `old` is None for an added one, `new` for a missing one."""

    key: bytes
    old: bytes | None
    new: bytes | None
    old_partition: int | None
    new_partition: int | None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many keys (or records, where there are no keys) are only in the new, changed, only in the old, and alike."""

    added: int
    changed: int
    missing: int
    equal: int

    @property
    def differing(self) -> int:
        return self.added + self.changed + self.missing


class Contents:
    """The rows of one topic or table in the file at `path`; not to be used by two processes at once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        self._connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def origin(self) -> str | None:
        """What was read, told apart from another of the same name."""
        row = self._connection.execute("SELECT value FROM origin WHERE name = 'origin'").fetchone()
        return None if row is None else str(row[0])

    @property
    def positions(self) -> dict[int, int]:
        """Up to where each partition was read."""
        return dict(self._connection.execute("SELECT partition, position FROM positions"))

    def __len__(self) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM rows").fetchone()
        return int(count)

    def begin_anew(self, origin: str) -> None:
        """Forget everything and note what will be read."""
        with self._transaction():
            for table in ("rows", "positions", "origin"):
                self._connection.execute(f"DELETE FROM {table}")
            self._connection.execute("INSERT INTO origin VALUES ('origin', ?)", (origin,))

    def put(self, latest: Mapping[bytes, tuple[bytes | None, int]], positions: Mapping[int, int] | None = None) -> None:
        """Set the values of keys, given with their partitions; None removes a key."""
        with self._transaction():
            self._connection.executemany(
                "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, 1)",
                ((key, value, partition) for key, (value, partition) in sorted(latest.items()) if value is not None),
            )
            self._connection.executemany(
                "DELETE FROM rows WHERE key = ?", ((key,) for key, (value, _) in latest.items() if value is None)
            )
            self._note(positions)

    def count(self, records: Mapping[bytes, int], positions: Mapping[int, int] | None = None) -> None:
        """Add so many copies of each record, for contents without keys."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO rows VALUES (?, x'', -1, ?) ON CONFLICT DO UPDATE SET copies = copies + excluded.copies",
                records.items(),
            )
            self._note(positions)

    def _note(self, positions: Mapping[int, int] | None) -> None:
        statement = "INSERT OR REPLACE INTO positions VALUES (?, ?)"
        self._connection.executemany(statement, (positions or {}).items())

    def make_durable(self) -> None:
        """Return when a power cut can't take any of it."""
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._connection.execute("PRAGMA synchronous=NORMAL")

    def rows(self) -> Iterator[Row]:
        """All rows in the order of their keys."""
        yield from map(Row._make, _fetch(self._connection, "SELECT key, value, partition FROM rows ORDER BY key"))

    # Comparing

    def counts(self, new: Contents, same: Same | None = None) -> Counts:
        """How this one, the old, differs from the new."""
        with self._beside(new, same) as connection:
            added = _number(connection, f"SELECT sum(copies - held) FROM ({_ONLY_NEW})")
            missing = _number(connection, f"SELECT sum(copies - held) FROM ({_ONLY_OLD})")
            changed = _number(connection, f"SELECT count(*) FROM ({_CHANGED})")
            common = "SELECT sum(min(o.copies, n.copies)) FROM main.rows o JOIN new.rows n ON n.key = o.key"
            return Counts(added, changed, missing, equal=_number(connection, common) - changed)

    def changes(
        self,
        new: Contents,
        same: Same | None = None,
        *,
        kinds: Iterable[str] = ("added", "changed", "missing"),
        limit: int = -1,
    ) -> Iterator[Change]:
        """What is to be written to make this one, the old, as the new is; at most `limit` of each kind."""
        statements = {
            "added": f"SELECT key, NULL, value, NULL, partition FROM ({_ONLY_NEW}) LIMIT ?",
            "changed": f"SELECT key, old, new, old_partition, new_partition FROM ({_CHANGED}) LIMIT ?",
            "missing": f"SELECT key, value, NULL, partition, NULL FROM ({_ONLY_OLD}) LIMIT ?",
        }
        with self._beside(new, same) as connection:
            for kind in kinds:
                yield from map(Change._make, _fetch(connection, statements[kind], limit))

    @contextmanager
    def _beside(self, new: Contents, same: Same | None) -> Iterator[sqlite3.Connection]:
        """A connection of its own that sees both files."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            connection.execute("ATTACH ? AS new", (str(new.path),))
            connection.create_function("means_same", 2, same or (lambda old, new: False), deterministic=True)
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


_ONLY_NEW = (
    "SELECT n.key, n.value, n.partition, n.copies, coalesce(o.copies, 0) AS held FROM new.rows n "
    "LEFT JOIN main.rows o ON o.key = n.key WHERE n.copies > coalesce(o.copies, 0)"
)
_ONLY_OLD = (
    "SELECT o.key, o.value, o.partition, o.copies, coalesce(n.copies, 0) AS held FROM main.rows o "
    "LEFT JOIN new.rows n ON n.key = o.key WHERE o.copies > coalesce(n.copies, 0)"
)
_CHANGED = (
    "SELECT o.key, o.value AS old, n.value AS new, o.partition AS old_partition, n.partition AS new_partition "
    "FROM main.rows o JOIN new.rows n ON n.key = o.key WHERE o.value <> n.value AND NOT means_same(o.value, n.value)"
)


def _number(connection: sqlite3.Connection, statement: str) -> int:
    (number,) = connection.execute(statement).fetchone()
    return int(number or 0)


def _fetch(connection: sqlite3.Connection, statement: str, *values: object) -> Iterator[tuple[object, ...]]:
    cursor = connection.execute(statement, values)
    while rows := cursor.fetchmany(_FETCHED_AT_ONCE):
        yield from rows
