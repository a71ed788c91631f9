"""Tables that are written exactly once: a writer that dies at any step, and one that repeats a batch."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from power_cut import PowerCut
from tidelog.pipeline import ParquetOutput, PipelineError, SqliteOutput
from tidelog.pipeline.tables import parquet_table as parquet_table_module
from tidelog.pipeline.tables.delta_table import DeltaStore
from tidelog.pipeline.tables.parquet_table import ParquetTable, last_by_key, split_deleted, without_keys
from tidelog.pipeline.tables.sqlite_table import SqliteTable
from tidelog.pipeline.tables.table_pointer import point_to, pointed_version

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.string())])
BATCHES = 4
STEPS_MAX = 60


class DiedError(Exception):
    """The writer's process is gone."""


class Dying:
    """Ends a commit at its step of this number."""

    def __init__(self, step: int) -> None:
        self._left = step
        self.has_died = False

    def __call__(self, name: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.has_died = True
            raise DiedError(name)


class Writer(Protocol):
    def write(self, batch_id: int) -> None: ...

    def rows(self) -> list[int]: ...


def rows_of(batch_id: int) -> pa.Table:
    return pa.table({"key": [batch_id * 10, batch_id * 10 + 1], "value": ["a", "b"]}, schema=SCHEMA)


class ParquetWriter:
    def __init__(self, directory: Path, dying: Dying, is_upsert: bool) -> None:
        self.table = ParquetTable(directory / "t__v1", dying)
        self.table.open()
        self._is_upsert = is_upsert

    def write(self, batch_id: int) -> None:
        if self._is_upsert:
            self.table.upsert(rows_of(batch_id), ["key"], "query", batch_id)
            return
        staging = self.table.staging("query", batch_id)
        staging.mkdir()
        pq.write_table(rows_of(batch_id), staging / "part-0.parquet")
        self.table.append([staging / "part-0.parquet"], "query", batch_id)
        self.table.compact(3, 1 << 20)

    def rows(self) -> list[int]:
        plain = pq.read_table(str(self.table.current))["key"].to_pylist() if self.table.current.exists() else []
        assert sorted(plain) == sorted(self.table.read().column("key").to_pylist() if plain else [])
        return sorted(plain)


class DeltaWriter:
    def __init__(self, directory: Path, dying: Dying, is_upsert: bool) -> None:
        self.table = DeltaStore(directory / "t__v1", SCHEMA, dying)
        self.table.open()
        self._is_upsert = is_upsert

    def write(self, batch_id: int) -> None:
        if self._is_upsert:
            self.table.upsert(rows_of(batch_id), ["key"], "query", batch_id)
            return
        staging = self.table.staging()
        staging.mkdir()
        pq.write_table(rows_of(batch_id), staging / "part-0.parquet")
        self.table.append([staging / "part-0.parquet"], "query", batch_id)
        self.table.compact(3, 1 << 20)

    def rows(self) -> list[int]:
        return sorted(DeltaTable(self.table.place).to_pyarrow_table()["key"].to_pylist())


class SqliteWriter:
    def __init__(self, directory: Path, dying: Dying, is_upsert: bool) -> None:
        key = ["key"] if is_upsert else []
        self._file = directory / "t.db"
        self._is_upsert = is_upsert
        self.table = SqliteTable(SqliteOutput(self._file, "t", key=key), dying)
        self.table.open(1, SCHEMA)

    def write(self, batch_id: int) -> None:
        self.table.write(1, rows_of(batch_id), "query", batch_id, is_upsert=self._is_upsert)

    def rows(self) -> list[int]:
        with sqlite3.connect(self._file) as database:
            return [key for (key,) in database.execute("SELECT key FROM t__v1 ORDER BY 1")]


WRITERS: list[Callable[[Path, Dying, bool], Writer]] = [ParquetWriter, DeltaWriter, SqliteWriter]


@pytest.mark.parametrize("is_upsert", [False, True], ids=["append", "upsert"])
@pytest.mark.parametrize("make", WRITERS)
def test_a_writer_dies_at_every_step(
    tmp_path: Path, make: Callable[[Path, Dying, bool], Writer], is_upsert: bool
) -> None:
    """After each death the batch that it was at is repeated, as Spark does, and sometimes one that was done."""
    for step in range(1, STEPS_MAX):
        directory = tmp_path / str(step)
        directory.mkdir()
        dying = Dying(step)
        batch_id = 0
        writer = make(directory, dying, is_upsert)
        while batch_id < BATCHES:
            try:
                writer.write(batch_id)
            except DiedError:
                whole = [key for done in range(batch_id + 1) for key in rows_of(done)["key"].to_pylist()]
                # A reader sees the batch or not, never half of it.
                assert writer.rows() in (whole, whole[:-2])
                writer = make(directory, Dying(0), is_upsert)
                continue
            batch_id += 1
        writer.write(BATCHES - 1)
        writer.write(0)
        assert writer.rows() == sorted(key for done in range(BATCHES) for key in rows_of(done)["key"].to_pylist())
        if not dying.has_died:
            return
    pytest.fail("a commit has more steps than are tried")


@pytest.mark.parametrize("is_upsert", [False, True], ids=["append", "upsert"])
@pytest.mark.parametrize("make", [ParquetWriter, DeltaWriter])
def test_a_power_cut_at_every_step_takes_no_batch_that_was_done(
    tmp_path: Path, make: Callable[[Path, Dying, bool], Writer], is_upsert: bool
) -> None:
    """After the cut only what was forced to disk is left, and the batches that were not done are repeated."""
    for step in range(1, STEPS_MAX):
        before, dying = tmp_path / f"{step}-before", Dying(step)
        before.mkdir()
        done = 0
        with PowerCut(before) as cut:
            try:
                writer = make(before, dying, is_upsert)
                while done < BATCHES:
                    writer.write(done)
                    done += 1
            except DiedError:
                pass
        # An append forces its files before the log names them; where the library writes both, it is not in our hands.
        lucky = "_delta_log" if make is DeltaWriter and not is_upsert else None
        if lucky is not None:
            assert len(make(cut.leave(tmp_path / f"{step}-lucky", lucky), Dying(0), is_upsert).rows()) >= 2 * done
        after = make(cut.leave(tmp_path / f"{step}-after"), Dying(0), is_upsert)
        left = after.rows()
        assert left[: 2 * done] == [key for batch_id in range(done) for key in rows_of(batch_id)["key"].to_pylist()]
        assert len(left) in (2 * done, 2 * done + 2)
        for batch_id in range(max(done - 1, 0), BATCHES):
            after.write(batch_id)
        assert after.rows() == sorted(key for each in range(BATCHES) for key in rows_of(each)["key"].to_pylist())
        if not dying.has_died:
            return
    pytest.fail("a commit has more steps than are tried")


def test_parquet_as_others_read_it(tmp_path: Path) -> None:
    output = ParquetOutput(tmp_path / "t").live(1)
    writer = ParquetWriter(tmp_path, Dying(0), False)
    for batch_id in range(20):
        writer.write(batch_id)
    output.switch_to(1)
    assert output.read_arrow().num_rows == 40
    assert polars.read_parquet(tmp_path / "t").height == 40
    assert ds.dataset(str(tmp_path / "t")).count_rows() == 40
    assert all(name.endswith(".parquet") for name in os.listdir(tmp_path / "t"))
    # Sizes by powers of three: far fewer files than batches.
    assert len(os.listdir(tmp_path / "t")) < 10


def test_old_snapshots_go_with_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_table_module, "KEPT_S", -1.0)
    writer = ParquetWriter(tmp_path, Dying(0), False)
    for batch_id in range(30):
        writer.write(batch_id)
    assert len(list(writer.table.snapshots.iterdir())) == 3
    assert len(list(writer.table.manifests.iterdir())) == 3
    kept = {name for snapshot in writer.table.snapshots.iterdir() for name in os.listdir(snapshot)}
    assert set(os.listdir(writer.table.files)) == kept
    assert len(writer.rows()) == 60


def test_pointers(tmp_path: Path) -> None:
    pointer = tmp_path / "t"
    assert pointed_version(pointer) is None
    with pytest.raises(PipelineError, match="no version 1"):
        point_to(pointer, 1)
    (tmp_path / "t__v1").mkdir()
    (tmp_path / "t__v12").mkdir()
    assert point_to(pointer, 1) is None
    assert point_to(pointer, 12) == 1
    assert pointed_version(pointer) == 12
    output = ParquetOutput(pointer)
    with pytest.raises(PipelineError, match="switch to another"):
        output.live(12).drop()
    output.live(1).drop()
    assert not (tmp_path / "t__v1").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(PipelineError, match="choose another path"):
        pointed_version(tmp_path / "mine")


def test_views_in_sqlite(tmp_path: Path) -> None:
    output = SqliteOutput(tmp_path / "t.db", "t", key="key")
    with output.connect() as table:
        table.open(1, SCHEMA)
        table.open(2, SCHEMA)
        table.write(2, rows_of(1), "q", 0, is_upsert=True)
        with pytest.raises(PipelineError, match="new version and replay"):
            table.open(1, pa.schema([("other", pa.int64())]))
    assert output.current_version() is None
    assert output.switch_to(1) is None
    assert output.switch_to(2) == 1
    with sqlite3.connect(tmp_path / "t.db") as database:
        assert database.execute("SELECT count(*) FROM t").fetchone() == (2,)
    with pytest.raises(PipelineError, match="no version 3"):
        output.switch_to(3)
    with pytest.raises(PipelineError, match="readers currently see"):
        output.live(2).drop()
    output.live(1).drop()


def test_a_table_of_somebody_else(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute("CREATE TABLE t (mine)")
    output = SqliteOutput(tmp_path / "t.db", "t", key="key")
    with output.connect() as table:
        table.open(1, SCHEMA)
    with pytest.raises(PipelineError, match="rename it, or choose another name"):
        output.switch_to(1)


def test_rows_by_key() -> None:
    rows = pa.table({"key": [1, 2, 1, None], "value": ["a", "b", "c", "d"], "gone": [False, True, None, False]})
    assert last_by_key(rows, ["key"])["value"].to_pylist() == ["b", "c", "d"]
    kept, removed = split_deleted(rows, "gone")
    assert kept.column_names == ["key", "value"]
    assert kept["value"].to_pylist() == ["a", "c", "d"]
    assert removed is not None
    assert removed["key"].to_pylist() == [2]
    assert without_keys(rows, pa.table({"key": [None, 2]}), ["key"])["value"].to_pylist() == ["a", "c"]
