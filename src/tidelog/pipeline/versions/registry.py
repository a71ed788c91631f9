"""The registry of pipelines: one SQLite file in the state directory that all commands and runs share.

What always holds: every change is one transaction, so a crash leaves the state before or after it; readers and writers
never wait for each other (write-ahead log), and writers wait for other writers only milliseconds. At most one version
of a pipeline is live, and at most one switch of a pipeline is open. A run is alive as long as its process holds the
lock of its version (`RunLock`), which the system releases when the process dies.

    registry = Registry(state_dir)
    registry.note_version("revenue", 1, file="shop.py", source=text)
    with RunLock(state_dir, "revenue", 1):
        run_id = registry.start_run("revenue", 1, "live")   # refuses a version that is not the live one
        registry.note_progress(run_id, Progress(...))       # after each batch
        if registry.stop_requested(run_id): ...             # polled by the run
        registry.end_run(run_id, "stopped")

It doesn't start or stop processes.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidelog.common.closing import Closing
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.versions.registry_rows import (
    Event,
    Progress,
    Role,
    Run,
    RunOutcome,
    Switch,
    SwitchKind,
    SwitchOutcome,
    Version,
    offsets_from_json,
    offsets_to_json,
)
from tidelog.pipeline.versions.run_lock import RunLock

FILE_NAME = "registry.db"
# Other writers hold the file for milliseconds; if we wait longer than this, one of them hangs.
_BUSY_TIMEOUT_S = 30.0
# We can't see the lock of a run on another host; instead, a run sends a heartbeat at least every few seconds.
_REMOTE_HEARTBEAT_MS_MAX = 60_000
_USER_VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pipelines(name TEXT PRIMARY KEY, live_version INTEGER);
CREATE TABLE IF NOT EXISTS versions(
    pipeline TEXT, version INTEGER, file TEXT, source TEXT, created_ms INTEGER, processed TEXT,
    PRIMARY KEY (pipeline, version));
CREATE TABLE IF NOT EXISTS runs(
    run_id INTEGER PRIMARY KEY AUTOINCREMENT, pipeline TEXT, version INTEGER, role TEXT, pid INTEGER, host TEXT,
    user TEXT, started_ms INTEGER, heartbeat_ms INTEGER, ended_ms INTEGER, outcome TEXT, error TEXT, spark_url TEXT,
    stop_requested_ms INTEGER, stop_reason TEXT, progress TEXT);
CREATE INDEX IF NOT EXISTS runs_by_version ON runs(pipeline, version);
CREATE TABLE IF NOT EXISTS switches(
    switch_id INTEGER PRIMARY KEY AUTOINCREMENT, pipeline TEXT, kind TEXT, from_version INTEGER, to_version INTEGER,
    step TEXT, data TEXT, started_ms INTEGER, updated_ms INTEGER, finished_ms INTEGER, outcome TEXT, user TEXT,
    host TEXT);
CREATE UNIQUE INDEX IF NOT EXISTS one_open_switch ON switches(pipeline) WHERE finished_ms IS NULL;
CREATE TABLE IF NOT EXISTS events(
    event_id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER, pipeline TEXT, kind TEXT, version INTEGER,
    run_id INTEGER, switch_id INTEGER, user TEXT, host TEXT, details TEXT);
CREATE INDEX IF NOT EXISTS events_by_pipeline ON events(pipeline);
"""


class RegistryError(PipelineError):
    """The registry rejects a request; the message is one line that says why and what to do."""


class Registry(Closing):
    """Versions, runs, switches and history; may be used from several threads."""

    def __init__(self, state_dir: str | os.PathLike[str], *, now_ms: Callable[[], int] | None = None) -> None:
        self.state_dir = Path(state_dir)
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._guard = threading.RLock()
        self._host = socket.gethostname()
        self._user = _user_name()
        self.state_dir.mkdir(parents=True, exist_ok=True)
        path = self.state_dir / FILE_NAME
        self._connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode=WAL")
        with self._transaction() as cursor:
            (found,) = cursor.execute("PRAGMA user_version").fetchone()
            if found > _USER_VERSION:
                raise RegistryError(f"{path} was written by a newer tidelog; use that one")
            if found < _USER_VERSION:
                for statement in _SCHEMA.split(";\n"):
                    cursor.execute(statement)
                cursor.execute(f"PRAGMA user_version={_USER_VERSION}")

    def close(self) -> None:
        with self._guard:
            self._connection.close()

    # Versions

    def note_version(self, pipeline: str, version: int, *, file: str, source: str) -> None:
        """Record a version that is about to run, with the current contents of its file."""
        now_ms = self._now_ms()
        with self._transaction() as cursor:
            cursor.execute("INSERT INTO pipelines(name) VALUES (?) ON CONFLICT DO NOTHING", (pipeline,))
            added = cursor.execute(
                "INSERT INTO versions VALUES (?, ?, ?, ?, ?, '{}') ON CONFLICT DO NOTHING",
                (pipeline, version, file, source, now_ms),
            ).rowcount
            if added:
                self._tell(cursor, pipeline, "version", version=version, details={"file": file})
            else:
                cursor.execute(
                    "UPDATE versions SET file = ?, source = ? WHERE pipeline = ? AND version = ?",
                    (file, source, pipeline, version),
                )

    def pipelines(self) -> list[str]:
        return [name for (name,) in self._rows("SELECT name FROM pipelines ORDER BY name")]

    def versions(self, pipeline: str) -> list[Version]:
        rows = self._rows(
            "SELECT v.*, p.live_version IS v.version AS is_live FROM versions v JOIN pipelines p ON p.name = v.pipeline"
            " WHERE v.pipeline = ? ORDER BY v.version",
            pipeline,
        )
        return [_version(row) for row in rows]

    def version(self, pipeline: str, version: int) -> Version | None:
        return next((row for row in self.versions(pipeline) if row.version == version), None)

    def live_version(self, pipeline: str) -> int | None:
        """The version that readers see, or None before the first run."""
        rows = self._rows("SELECT live_version FROM pipelines WHERE name = ?", pipeline)
        return rows[0]["live_version"] if rows else None

    # Runs

    def start_run(self, pipeline: str, version: int, role: Role, *, spark_url: str | None = None) -> int:
        """Record a run of this process, and return its id. Take the version's `RunLock` and record the version first.

        The first live run of a pipeline makes its version the live one. Raises RegistryError for a live run of a
        version that isn't live, for a shadow of the one that is, and for a run that conflicts with an open switch.
        """
        now_ms = self._now_ms()
        with self._transaction() as cursor:
            self._check_role(cursor, pipeline, version, role)
            if role == "live":
                cursor.execute(
                    "UPDATE pipelines SET live_version = ?1 WHERE name = ?2 AND live_version IS NOT ?1",
                    (version, pipeline),
                )
                if cursor.rowcount:
                    self._tell(cursor, pipeline, "first-live", version=version)
            # We hold the lock of the version, so any other run of it that is still open has died.
            died = "UPDATE runs SET ended_ms = heartbeat_ms, outcome = 'killed' WHERE ended_ms IS NULL"
            cursor.execute(f"{died} AND pipeline = ? AND version = ?", (pipeline, version))
            cursor.execute(
                "INSERT INTO runs(pipeline, version, role, pid, host, user, started_ms, heartbeat_ms, spark_url, "
                "progress) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    pipeline,
                    version,
                    role,
                    os.getpid(),
                    self._host,
                    self._user,
                    now_ms,
                    now_ms,
                    spark_url,
                    Progress().to_json(),
                ),
            )
            run_id = cursor.lastrowid
            assert run_id is not None
            self._tell(cursor, pipeline, "run", version=version, run_id=run_id, details={"role": role})
            return run_id

    def check_role(self, pipeline: str, version: int, role: Role) -> None:
        """Raise RegistryError if `start_run` would reject it now."""
        with self._transaction() as cursor:
            self._check_role(cursor, pipeline, version, role)

    def _check_role(self, cursor: sqlite3.Cursor, pipeline: str, version: int, role: Role) -> None:
        row = cursor.execute("SELECT live_version FROM pipelines WHERE name = ?", (pipeline,)).fetchone()
        if row is None:
            raise RegistryError(f"pipeline {pipeline} is not registered")
        live = row["live_version"]
        switch = self._open_switch(cursor, pipeline)
        if role == "shadow":
            if live is None:
                raise RegistryError(
                    f"no version of {pipeline} is live yet, so there is nothing to run beside; "
                    f"start version {version} with 'tidelog pipeline run'"
                )
            if live == version:
                raise RegistryError(
                    f"version {version} of {pipeline} is the live one; give the new code another version in its file, "
                    f"then run it beside version {version} with 'tidelog pipeline replay'"
                )
            return
        # A version that has never finished a batch and isn't running has no readers, so any other may be the first.
        is_used = live is not None and (
            self._has_processed(cursor, pipeline, live) or self.running(pipeline, live) is not None
        )
        if live != version and is_used:
            raise RegistryError(
                f"version {live} of {pipeline} is live, not version {version}: run it beside with "
                f"'tidelog pipeline replay', then 'tidelog pipeline promote {pipeline}' switches readers over"
            )
        if switch is not None and switch.from_version == version and switch.is_old_stopped:
            raise RegistryError(
                f"{pipeline} is being switched from version {version} to {switch.to_version}: finish it with "
                f"'tidelog pipeline {switch.kind} {pipeline}', or abandon it with "
                f"'tidelog pipeline {switch.kind} {pipeline} --abandon'"
            )

    @staticmethod
    def _has_processed(cursor: sqlite3.Cursor, pipeline: str, version: int) -> bool:
        statement = "SELECT 1 FROM versions WHERE pipeline = ? AND version = ? AND processed <> '{}'"
        return cursor.execute(statement, (pipeline, version)).fetchone() is not None

    def note_progress(self, run_id: int, progress: Progress) -> None:
        """Record the progress of a run after a batch, and that it is alive."""
        with self._transaction() as cursor:
            row = cursor.execute(
                "UPDATE runs SET progress = ?, heartbeat_ms = ? WHERE run_id = ? RETURNING pipeline, version",
                (progress.to_json(), self._now_ms(), run_id),
            ).fetchone()
            if row is not None and progress.processed:
                cursor.execute(
                    "UPDATE versions SET processed = ? WHERE pipeline = ? AND version = ?",
                    (offsets_to_json(progress.processed), row["pipeline"], row["version"]),
                )

    def note_spark_url(self, run_id: int, spark_url: str) -> None:
        with self._transaction() as cursor:
            cursor.execute("UPDATE runs SET spark_url = ? WHERE run_id = ?", (spark_url, run_id))

    def beat(self, run_id: int) -> None:
        """Record that a run without batches is alive, for processes on other hosts."""
        with self._transaction() as cursor:
            cursor.execute("UPDATE runs SET heartbeat_ms = ? WHERE run_id = ?", (self._now_ms(), run_id))

    def end_run(self, run_id: int, outcome: RunOutcome, error: str | None = None) -> None:
        with self._transaction() as cursor:
            row = cursor.execute(
                "UPDATE runs SET ended_ms = ?, outcome = ?, error = ? WHERE run_id = ? AND ended_ms IS NULL "
                "RETURNING pipeline, version",
                (self._now_ms(), outcome, error, run_id),
            ).fetchone()
            if row is not None:
                details = {"error": error} if error else {}
                self._tell(cursor, row["pipeline"], outcome, version=row["version"], run_id=run_id, details=details)

    def request_stop(self, run_id: int, reason: str = "a user asked for it") -> None:
        """Ask a run to stop at its next batch boundary."""
        with self._transaction() as cursor:
            cursor.execute(
                "UPDATE runs SET stop_requested_ms = ?, stop_reason = ? WHERE run_id = ? AND stop_requested_ms IS NULL",
                (self._now_ms(), reason, run_id),
            )

    def stop_requested(self, run_id: int) -> bool:
        return bool(self._rows("SELECT 1 FROM runs WHERE run_id = ? AND stop_requested_ms IS NOT NULL", run_id))

    def run(self, run_id: int) -> Run:
        rows = self._rows("SELECT * FROM runs WHERE run_id = ?", run_id)
        if not rows:
            raise RegistryError(f"there is no run {run_id}")
        return _run(rows[0])

    def runs(self, pipeline: str, version: int | None = None) -> list[Run]:
        """All runs, oldest first, including dead ones."""
        if version is None:
            rows = self._rows("SELECT * FROM runs WHERE pipeline = ? ORDER BY run_id", pipeline)
        else:
            statement = "SELECT * FROM runs WHERE pipeline = ? AND version = ? ORDER BY run_id"
            rows = self._rows(statement, pipeline, version)
        return [_run(row) for row in rows]

    def running(self, pipeline: str, version: int) -> Run | None:
        """The run of a version whose process is alive."""
        rows = self._rows(
            "SELECT * FROM runs WHERE pipeline = ? AND version = ? AND ended_ms IS NULL ORDER BY run_id DESC LIMIT 1",
            pipeline,
            version,
        )
        if not rows:
            return None
        run = _run(rows[0])
        if run.host != self._host:
            return run if self._now_ms() - run.heartbeat_ms < _REMOTE_HEARTBEAT_MS_MAX else None
        return run if RunLock(self.state_dir, pipeline, version).is_held() else None

    # Switches

    def begin_switch(self, pipeline: str, kind: SwitchKind, to_version: int, step: str) -> Switch:
        """Open a switch from the live version; raises RegistryError if another one is open."""
        now_ms = self._now_ms()
        with self._transaction(survives_power_cut=True) as cursor:
            switch = self._open_switch(cursor, pipeline)
            if switch is not None:
                raise RegistryError(
                    f"{pipeline} is already being switched from version {switch.from_version} to {switch.to_version}; "
                    f"finish it with 'tidelog pipeline {switch.kind} {pipeline}'"
                )
            row = cursor.execute("SELECT live_version FROM pipelines WHERE name = ?", (pipeline,)).fetchone()
            if row is None or row["live_version"] is None:
                raise RegistryError(f"no version of {pipeline} is live; start one with 'tidelog pipeline run'")
            if row["live_version"] == to_version:
                raise RegistryError(f"version {to_version} of {pipeline} is already live")
            cursor.execute(
                "INSERT INTO switches(pipeline, kind, from_version, to_version, step, data, started_ms, updated_ms, "
                "user, host) VALUES (?, ?, ?, ?, ?, '{}', ?, ?, ?, ?)",
                (pipeline, kind, row["live_version"], to_version, step, now_ms, now_ms, self._user, self._host),
            )
            details = {"from": row["live_version"], "to": to_version}
            self._tell(cursor, pipeline, kind, version=to_version, switch_id=cursor.lastrowid, details=details)
            opened = self._open_switch(cursor, pipeline)
            assert opened is not None
            return opened

    def advance_switch(
        self,
        switch: Switch,
        step: str,
        data: Mapping[str, Any] | None = None,
        *,
        live_version: int | None = None,
        outcome: SwitchOutcome | None = None,
    ) -> Switch:
        """Record that a step is done and which one comes next, along with its results.

        `live_version` is the version that readers see from now on; `outcome` ends the switch. Raises RegistryError if
        another command has advanced it in the meantime.
        """
        now_ms = self._now_ms()
        merged = {**switch.data, **(data or {})}
        with self._transaction(survives_power_cut=True) as cursor:
            changed = cursor.execute(
                "UPDATE switches SET step = ?, data = ?, updated_ms = ?, finished_ms = ?, outcome = ? "
                "WHERE switch_id = ? AND step = ? AND finished_ms IS NULL",
                (
                    step,
                    json.dumps(merged),
                    now_ms,
                    None if outcome is None else now_ms,
                    outcome,
                    switch.switch_id,
                    switch.step,
                ),
            ).rowcount
            if not changed:
                raise RegistryError(
                    f"another command has continued switch {switch.switch_id} of {switch.pipeline}; "
                    f"see 'tidelog pipeline history {switch.pipeline}'"
                )
            if live_version is not None:
                cursor.execute("UPDATE pipelines SET live_version = ? WHERE name = ?", (live_version, switch.pipeline))
                self._tell(cursor, switch.pipeline, "live", version=live_version, switch_id=switch.switch_id)
            if outcome is not None:
                kind = f"{switch.kind}-{outcome}"
                details = {"from": switch.from_version, "to": switch.to_version, **merged}
                self._tell(
                    cursor,
                    switch.pipeline,
                    kind,
                    version=switch.to_version,
                    switch_id=switch.switch_id,
                    details=details,
                )
        return self.switch(switch.switch_id)

    def switch(self, switch_id: int) -> Switch:
        rows = self._rows("SELECT * FROM switches WHERE switch_id = ?", switch_id)
        if not rows:
            raise RegistryError(f"there is no switch {switch_id}")
        return _switch(rows[0])

    def open_switch(self, pipeline: str) -> Switch | None:
        with self._guard:
            return self._open_switch(self._connection.cursor(), pipeline)

    def switches(self, pipeline: str) -> list[Switch]:
        """All switches, oldest first."""
        return [_switch(row) for row in self._rows("SELECT * FROM switches WHERE pipeline = ? ORDER BY 1", pipeline)]

    @staticmethod
    def _open_switch(cursor: sqlite3.Cursor, pipeline: str) -> Switch | None:
        statement = "SELECT * FROM switches WHERE pipeline = ? AND finished_ms IS NULL"
        row = cursor.execute(statement, (pipeline,)).fetchone()
        return None if row is None else _switch(row)

    # History

    def history(self, pipeline: str) -> list[Event]:
        """All recorded events of a pipeline, oldest first."""
        return [_event(row) for row in self._rows("SELECT * FROM events WHERE pipeline = ? ORDER BY 1", pipeline)]

    def _tell(
        self,
        cursor: sqlite3.Cursor,
        pipeline: str,
        kind: str,
        *,
        version: int | None = None,
        run_id: int | None = None,
        switch_id: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        cursor.execute(
            "INSERT INTO events(at_ms, pipeline, kind, version, run_id, switch_id, user, host, details) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._now_ms(),
                pipeline,
                kind,
                version,
                run_id,
                switch_id,
                self._user,
                self._host,
                json.dumps(details or {}),
            ),
        )

    # SQL

    @contextmanager
    def _transaction(self, *, survives_power_cut: bool = False) -> Iterator[sqlite3.Cursor]:
        """A write transaction that excludes other writers.

        Committed data survives a killed process. A power cut may lose the latest progress, but not the steps of a
        switch, which are synced to disk one by one.
        """
        with self._guard:
            cursor = self._connection.cursor()
            cursor.execute(f"PRAGMA synchronous={'FULL' if survives_power_cut else 'NORMAL'}")
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def _rows(self, statement: str, *values: object) -> Sequence[sqlite3.Row]:
        with self._guard:
            return self._connection.execute(statement, values).fetchall()


def _version(row: sqlite3.Row) -> Version:
    values = dict(row)
    return Version(**{**values, "processed": offsets_from_json(row["processed"]), "is_live": bool(row["is_live"])})


def _run(row: sqlite3.Row) -> Run:
    return Run(**{**dict(row), "progress": Progress.from_json(row["progress"])})


def _switch(row: sqlite3.Row) -> Switch:
    return Switch(**{**dict(row), "data": json.loads(row["data"])})


def _event(row: sqlite3.Row) -> Event:
    return Event(**{**dict(row), "details": json.loads(row["details"])})


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user has no name, as in some containers
        return str(os.getuid())
