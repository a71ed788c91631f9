"""The contents of a topic or a table, kept in a file: the last value of every key, or how often each record occurs.

What always holds: memory use is bounded, however many keys there are, because all rows are in an SQLite file with a
fixed-size cache; rows and the positions up to which a topic was read change together, so a killed reader resumes where
it left off. Two of these can be compared row by row in key order. `topic_reader` reads topics; this module doesn't.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tidelog.common.closing import Closing

_CACHE_KIB = 64 * 1024
# With the default of 1,000 pages, loading a large topic would sync to disk thousands of times.
_CHECKPOINT_PAGES = 16_384
_FETCHED_AT_ONCE = 1_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rows(key BLOB PRIMARY KEY, value BLOB, partition INTEGER, copies INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions(partition INTEGER PRIMARY KEY, position INTEGER);
CREATE TABLE IF NOT EXISTS origin(name TEXT PRIMARY KEY, value TEXT);
"""

Same = Callable[[bytes, bytes], bool]
"""Whether two values with different bytes mean the same."""


class Row(NamedTuple):
    """A key with its value and its partition, which is -1 for tables."""

    key: bytes
    value: bytes
    partition: int


class Change(NamedTuple):
    """The change of one key from the old contents to the new: `old` is None if it was added, `new` if it is missing."""

    key: bytes
    old: bytes | None
    new: bytes | None
    old_partition: int | None
    new_partition: int | None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many keys (or records, if there are no keys) are only in the new, changed, only in the old, and equal."""

    added: int
    changed: int
    missing: int
    equal: int

    @property
    def differing(self) -> int:
        return self.added + self.changed + self.missing


class Contents(Closing):
    """The rows of one topic or table in the file at `path`; only one process may use it at a time."""

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

    @property
    def origin(self) -> str | None:
        """Identifies what was read, as opposed to something else with the same name."""
        row = self._connection.execute("SELECT value FROM origin WHERE name = 'origin'").fetchone()
        return None if row is None else str(row[0])

    @property
    def positions(self) -> dict[int, int]:
        """How far each partition has been read."""
        return dict(self._connection.execute("SELECT partition, position FROM positions"))

    def __len__(self) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM rows").fetchone()
        return int(count)

    def begin_anew(self, origin: str) -> None:
        """Delete everything, and record what will be read next."""
        with self._transaction():
            for table in ("rows", "positions", "origin"):
                self._connection.execute(f"DELETE FROM {table}")
            self._connection.execute("INSERT INTO origin VALUES ('origin', ?)", (origin,))

    def put(self, latest: Mapping[bytes, tuple[bytes | None, int]], positions: Mapping[int, int] | None = None) -> None:
        """Set the values and partitions of keys; a value of None removes the key."""
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
        """Add copies of records, for contents without keys."""
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
        """Sync everything, so that it survives a power cut."""
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._connection.execute("PRAGMA synchronous=NORMAL")

    def rows(self) -> Iterator[Row]:
        """All rows in key order."""
        yield from map(Row._make, _fetch(self._connection, "SELECT key, value, partition FROM rows ORDER BY key"))

    # Comparing

    def counts(self, new: Contents, same: Same | None = None) -> Counts:
        """How these contents, the old ones, differ from the new."""
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
        """The changes that turn these contents, the old ones, into the new; at most `limit` of each kind."""
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
        """A separate connection that has both files attached."""
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
