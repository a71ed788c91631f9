"""The metadata database: SQL over one SQLite file, called from one thread at a time.

What always holds: a transaction that returned is on the disk (write-ahead log, synchronous=FULL); tokens are revisions
of the whole store, so no token is ever used twice; every SQLite error that reaches the caller is a
MetadataStoreError that names the file and says what to do. It knows nothing about event loops: `sqlite` runs it in a
thread.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import apsw

from tidelog.common.file_lock import is_locked
from tidelog.metadata.filesystem import network_filesystem
from tidelog.metadata.liveness import HeldLock, boot_id
from tidelog.metadata.store import (
    ABSENT,
    Check,
    Conflict,
    MetadataStoreError,
    Ok,
    Op,
    Put,
    Rec,
    SessionLost,
    Snapshot,
    TxnResult,
    Unknown,
)

APPLICATION_ID: Final = 0x5449444C
"""Stored in the file's header ("TIDL"), to recognise the database of another program."""

SCHEMA_VERSION: Final = 1
BUSY_TIMEOUT_MS: Final = 10_000
_RETRY_PAUSE_S: Final = 0.005

_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema_version', 1), ('revision', 0);
CREATE TABLE records (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, token INTEGER NOT NULL, rev INTEGER NOT NULL,
    created INTEGER NOT NULL, owner TEXT
);
CREATE INDEX records_by_owner ON records (owner) WHERE owner IS NOT NULL;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, boot_id TEXT NOT NULL, ttl_ms REAL NOT NULL, deadline_ms REAL NOT NULL
) WITHOUT ROWID;
"""


class Database:
    """One connection to the file."""

    def __init__(self, path: Path, clock_ms: Callable[[], float]) -> None:
        self._path = path
        self._clock_ms = clock_ms
        self._boot_id = boot_id()
        self._locks: dict[str, HeldLock] = {}
        _check_place(path)
        with self._explained("open"):
            is_new = not path.exists()
            self._connection = apsw.Connection(os.fspath(path))
            try:
                self._prepare_among_others()
            except BaseException:
                self._connection.close()
                raise
            if is_new:
                _sync_directory(path.parent)
            self._remove_stray_locks()

    def close(self) -> None:
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()
        with self._explained("close"):
            self._connection.close()

    def get(self, key: str) -> Rec | None:
        with self._explained("read"):
            row = self._connection.execute(
                "SELECT value, token, rev, created, owner FROM records WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else Rec(*row)

    def snapshot(self, prefix: str) -> Snapshot:
        # The key after all that start with the prefix: "/" is followed by "0".
        where, bounds = "", ()  # type: str, tuple[str, ...]
        if prefix.endswith("/"):
            where, bounds = "WHERE key >= ? AND key < ?", (prefix, prefix[:-1] + "0")
        elif prefix:
            where, bounds = "WHERE key = ?", (prefix,)
        with self._explained("read"), self._transaction("BEGIN"):
            rows = self._connection.execute(
                f"SELECT key, value, token, rev, created, owner FROM records {where} ORDER BY key", bounds
            )
            records = {row[0]: Rec(*row[1:]) for row in rows}
            rev = self._revision()
        return Snapshot(rev, records)

    def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        with self._explained("write"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                refusal = self._refusal(checks, ops)
                if refusal is not None:
                    return refusal
                result = self._apply(ops)
                return self._commit(result)
            finally:
                self._roll_back()

    def barrier(self) -> int:
        with self._explained("write"), self._transaction():
            return self._next_revision()

    def data_version(self) -> int:
        """A number that changes when another process has written."""
        with self._explained("read"):
            return int(self._scalar("PRAGMA data_version"))

    def open_session(self, ttl_ms: float) -> str:
        session_id = uuid.uuid4().hex
        # Locked before others can see the session, so nobody finds it unlocked and considers it dead.
        self._locks[session_id] = HeldLock(self._lock_path(session_id))
        with self._explained("write"), self._transaction():
            self._connection.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?)",
                (session_id, self._boot_id, ttl_ms, self._clock_ms() + ttl_ms),
            )
        return session_id

    def renew_session(self, session_id: str) -> bool:
        now_ms = self._clock_ms()
        with self._explained("write"), self._unsynced(), self._transaction():
            self._connection.execute(
                "UPDATE sessions SET deadline_ms = ? + ttl_ms WHERE id = ? AND boot_id = ? AND deadline_ms > ?",
                (now_ms, session_id, self._boot_id, now_ms),
            )
            return self._connection.changes() == 1

    def end_session(self, session_id: str) -> list[str]:
        """End it; returns the keys that were removed with it."""
        with self._explained("write"), self._transaction():
            removed = self._remove_sessions([session_id])
        lock = self._locks.pop(session_id, None)
        if lock is not None:
            lock.release()
        return removed

    def reap_sessions(self) -> list[str]:
        """End the sessions whose owners are dead; returns the keys that were removed with them."""
        with self._explained("write"):
            if not self._dead_sessions():
                return []
            with self._transaction():
                return self._remove_sessions(self._dead_sessions())

    def _prepare_among_others(self) -> None:
        """Prepare the file, also while other brokers of a new cluster do the same.

        SQLite does not wait for the others where two connections would wait for each other, as when both turn on the
        write-ahead log: one of them has to start over.
        """
        deadline_s = time.monotonic() + BUSY_TIMEOUT_MS / 1000
        while True:
            try:
                self._prepare()
                return
            except apsw.BusyError:
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(_RETRY_PAUSE_S)

    def _prepare(self) -> None:
        connection = self._connection
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        if not self._is_ours():
            raise MetadataStoreError(f"{self._path} is the database of another program; use another data directory")
        connection.pragma("journal_mode", "WAL")
        connection.pragma("synchronous", "FULL")
        with self._transaction():
            # Inside, because another process may be doing the same.
            if connection.pragma("application_id") == 0:
                connection.execute(_SCHEMA)
                connection.pragma("application_id", APPLICATION_ID)
        version = self._scalar("SELECT value FROM meta WHERE name = 'schema_version'")
        if version != SCHEMA_VERSION:
            raise MetadataStoreError(
                f"{self._path} has schema version {version}, this Tidelog reads {SCHEMA_VERSION}: "
                "start the version of Tidelog that wrote it"
            )

    def _is_ours(self) -> bool:
        with self._transaction("BEGIN"):
            application_id = self._connection.pragma("application_id")
            is_empty = self._scalar("SELECT count(*) FROM sqlite_schema") == 0
        return application_id == APPLICATION_ID or (application_id == 0 and is_empty)

    def _refusal(self, checks: Sequence[Check], ops: Sequence[Op]) -> Conflict | SessionLost | None:
        for key, token in checks:
            if self._token(key) != token:
                return Conflict(key)
        for op in ops:
            if isinstance(op, Put) and op.owner is not None:
                if op.owner in self._dead_sessions() or not self._has_session(op.owner):
                    return SessionLost(op.owner)
                row = self._connection.execute("SELECT owner FROM records WHERE key = ?", (op.key,)).fetchone()
                if row is not None and row[0] != op.owner:
                    return Conflict(op.key)
        return None

    def _apply(self, ops: Sequence[Op]) -> Ok:
        if not ops:
            return Ok(self._revision())
        rev = self._next_revision()
        self._connection.executemany(
            "INSERT INTO records VALUES (?1, ?2, ?3, ?3, ?3, ?4) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value, token = excluded.token, rev = excluded.rev",
            [(op.key, bytes(op.value), rev, op.owner) for op in ops if isinstance(op, Put)],
        )
        self._connection.executemany(
            "DELETE FROM records WHERE key = ?", [(op.key,) for op in ops if not isinstance(op, Put)]
        )
        return Ok(rev, {op.key: rev for op in ops if isinstance(op, Put)})

    def _commit(self, result: Ok) -> Ok | Unknown:
        try:
            self._connection.execute("COMMIT")
        except apsw.IOError as error:
            # The write-ahead log may or may not contain the commit; only reading the data can tell.
            return Unknown(f"{self._path}: {error}")
        return result

    def _token(self, key: str) -> object:
        row = self._connection.execute("SELECT token FROM records WHERE key = ?", (key,)).fetchone()
        return ABSENT if row is None else row[0]

    def _revision(self) -> int:
        return int(self._scalar("SELECT value FROM meta WHERE name = 'revision'"))

    def _next_revision(self) -> int:
        return int(self._scalar("UPDATE meta SET value = value + 1 WHERE name = 'revision' RETURNING value"))

    def _scalar(self, sql: str) -> int:
        value = self._connection.execute(sql).get
        if not isinstance(value, int):
            raise apsw.CorruptError(f"{sql} answered {value!r}")
        return value

    def _has_session(self, session_id: str) -> bool:
        return self._connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).get is not None

    def _dead_sessions(self) -> list[str]:
        now_ms = self._clock_ms()
        return [
            session_id
            for session_id, session_boot_id, deadline_ms in self._connection.execute(
                "SELECT id, boot_id, deadline_ms FROM sessions"
            )
            if session_boot_id != self._boot_id
            or deadline_ms <= now_ms
            or (session_id not in self._locks and not is_locked(self._lock_path(session_id)))
        ]

    def _remove_sessions(self, session_ids: Sequence[str]) -> list[str]:
        removed: list[str] = []
        for session_id in session_ids:
            removed += [
                row[0] for row in self._connection.execute("SELECT key FROM records WHERE owner = ?", (session_id,))
            ]
            self._connection.execute("DELETE FROM records WHERE owner = ?", (session_id,))
            self._connection.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            if session_id not in self._locks:
                with contextlib.suppress(FileNotFoundError):
                    self._lock_path(session_id).unlink()
        if removed:
            self._next_revision()
        return removed

    def _lock_path(self, session_id: str) -> Path:
        return self._path.with_name(f"{self._path.name}-session-{session_id}")

    def _remove_stray_locks(self) -> None:
        """Remove lock files whose owners died before their session was written, or after it was removed."""
        prefix = self._lock_path("").name
        for path in self._path.parent.glob(f"{prefix}*"):
            if not self._has_session(path.name.removeprefix(prefix)) and not is_locked(path):
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        self._connection.execute(begin)
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            self._roll_back()

    def _roll_back(self) -> None:
        """Roll back a transaction that was not committed; after some errors SQLite has already done so."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def _unsynced(self) -> Iterator[None]:
        """Don't wait for the disk: for heartbeats, which mean nothing after a power cut."""
        self._connection.pragma("synchronous", "NORMAL")
        try:
            yield
        finally:
            self._connection.pragma("synchronous", "FULL")

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise MetadataStoreError(
                f"the metadata database {self._path} is damaged ({error}). Stop all brokers, then restore the file "
                f"from a backup without {self._path.name}-wal and {self._path.name}-shm; if there is none, move the "
                f"whole directory {self._path.parent} away to start with an empty cluster"
            ) from error
        except apsw.BusyError as error:
            raise MetadataStoreError(
                f"can't {doing} the metadata database {self._path}: another process has locked it for "
                f"{BUSY_TIMEOUT_MS // 1000} s"
            ) from error
        except apsw.FullError as error:
            raise MetadataStoreError(f"can't {doing} the metadata database {self._path}: the disk is full") from error
        except (apsw.Error, OSError) as error:
            raise MetadataStoreError(f"can't {doing} the metadata database {self._path}: {error}") from error


def _check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise MetadataStoreError(f"the directory of the metadata database does not exist: {path.parent}")
    network = network_filesystem(path.parent)
    if network is not None:
        raise MetadataStoreError(
            f"the metadata database can't be on a network filesystem ({network}): {path.parent}. "
            "SQLite's locks are not safe there; use a local disk, or ZooKeeper for several machines"
        )


def _sync_directory(directory: Path) -> None:
    """A new file is only there after a power cut once its directory is on the disk."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
