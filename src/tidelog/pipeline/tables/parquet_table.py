"""A table of Parquet files with snapshots that any reader can read, written exactly once.

    place/
      files/                 all data files
      snapshots/00000012/    hard links to the files of one snapshot
      manifests/00000012     what that snapshot holds, and the writers' marks
      current                a symbolic link to the snapshot that readers see

What always holds: a snapshot never changes; a commit makes the next one beside the others and moves `current` to it by
a rename, which is the moment when the commit happens. So whoever reads `current` as a plain directory sees whole
batches, each once, also while small files are joined. The manifest holds the mark of each writer, the last batch that
it has committed, so that a batch that is repeated changes nothing. One process writes at a time, which the run's lock
sees to; what it left half done is removed by the next.

A reader that lists `current` and opens the files later by the same path may find that a file was joined into another
meanwhile: an error, never wrong rows. One that resolves the link first (os.path.realpath) reads one snapshot, which is
kept for `KEPT_S`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.pipeline.tables.table_pointer import replace_link, sync_directory

KEPT_S = 600.0
_SNAPSHOTS_KEPT_MIN = 3
_TIER_BYTES = 1024 * 1024
COMPRESSION = "zstd"
ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Manifest:
    """What one snapshot holds."""

    number: int = 0
    files: tuple[str, ...] = ()
    # By writer, the last batch that it has committed.
    marks: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"number": self.number, "files": self.files, "marks": dict(self.marks)})

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        document = json.loads(text)
        return cls(document["number"], tuple(document["files"]), document["marks"])


class ParquetTable:
    """The table in one place. `on_step` is called between the steps of a commit, for tests that end it there."""

    def __init__(self, place: Path, on_step: Callable[[str], None] | None = None) -> None:
        self.place = place
        self.files = place / "files"
        self.snapshots = place / "snapshots"
        self.manifests = place / "manifests"
        self.current = place / "current"
        self._step = on_step or (lambda name: None)

    # Reading

    def manifest(self) -> Manifest:
        """What readers see now."""
        try:
            target = os.readlink(self.current)
        except FileNotFoundError:
            return Manifest()
        return Manifest.from_json((self.manifests / Path(target).name).read_text(encoding="utf-8"))

    def read(self) -> pa.Table:
        """All rows of the snapshot that readers see now."""
        paths = [str(self.files / name) for name in self.manifest().files]
        if not paths:
            return pa.table({})
        return pa.concat_tables([pq.ParquetFile(path).read() for path in paths], promote_options="default")

    # Writing

    def open(self) -> None:
        """Make the directories, and remove what a writer that died has left."""
        self.files.mkdir(parents=True, exist_ok=True)
        self.snapshots.mkdir(exist_ok=True)
        self.manifests.mkdir(exist_ok=True)
        manifest = self.manifest()
        for directory in self.snapshots.iterdir():
            if not directory.name.isdigit() or int(directory.name) > manifest.number:
                shutil.rmtree(directory)
        for file in self.manifests.iterdir():
            if not file.name.isdigit() or int(file.name) > manifest.number:
                file.unlink()
        known = set(manifest.files)
        for file in self.files.iterdir():
            # A hard link more than this one: a snapshot that is still kept has it.
            if file.name not in known and file.stat().st_nlink == 1:
                file.unlink()
        for staging in self.place.glob("staging-*"):
            shutil.rmtree(staging)

    def staging(self, app_id: str, batch_id: int) -> Path:
        """Where the files of a batch are written before they are committed."""
        return self.place / f"staging-{batch_id}-{secrets.token_hex(4)}"

    def is_committed(self, app_id: str, batch_id: int) -> bool:
        return batch_id <= self.manifest().marks.get(app_id, -1)

    def append(self, paths: Iterable[Path], app_id: str, batch_id: int) -> bool:
        """Commit finished files as one batch; False when that batch was committed before."""
        manifest = self.manifest()
        if batch_id <= manifest.marks.get(app_id, -1):
            return False
        added = [self._take(path) for path in paths if not manifest.files or _has_rows(path)]
        self._commit(manifest, (*manifest.files, *added), {**manifest.marks, app_id: batch_id})
        return True

    def upsert(
        self, rows: pa.Table, key: Sequence[str], app_id: str, batch_id: int, removed: pa.Table | None = None
    ) -> bool:
        """Commit rows over those with the same key; keys of `removed` are taken out. The table is written anew."""
        manifest = self.manifest()
        if batch_id <= manifest.marks.get(app_id, -1):
            return False
        old = self.read()
        if old.num_columns:
            kept = without_keys(old, rows.select(key), key)
            rows = pa.concat_tables([kept.select(rows.column_names), rows], promote_options="default")
        if removed is not None and removed.num_rows:
            rows = without_keys(rows, removed.select(key), key)
        name = self._new_name()
        _write(rows, self.files / name)
        self._commit(manifest, (name,), {**manifest.marks, app_id: batch_id})
        return True

    def compact(self, compact_files: int, target_file_bytes: int) -> int:
        """Join small files of about the same size, when there are so many; how many were joined.

        By sizes, so that a row is copied once for each power of `compact_files` that the table grows by, and not again
        and again with every batch.
        """
        manifest = self.manifest()
        tiers: dict[int, list[str]] = {}
        for name in manifest.files:
            size = (self.files / name).stat().st_size
            if size < target_file_bytes:
                tiers.setdefault(_tier(size, compact_files), []).append(name)
        chosen = next((names for _, names in sorted(tiers.items()) if len(names) >= compact_files), None)
        if chosen is None:
            return 0
        name = self._new_name()
        _join([self.files / each for each in chosen], self.files / name)
        left = tuple(each for each in manifest.files if each not in set(chosen))
        self._commit(manifest, (*left, name), manifest.marks)
        return len(chosen)

    def _new_name(self) -> str:
        return f"part-{time.time_ns()}-{secrets.token_hex(4)}.parquet"

    def _take(self, path: Path) -> str:
        """Move a finished file into the table's own directory; nobody sees it yet."""
        _sync_file(path)
        name = self._new_name()
        os.rename(path, self.files / name)
        self._step("file")
        return name

    def _commit(self, manifest: Manifest, files: tuple[str, ...], marks: Mapping[str, int]) -> None:
        sync_directory(self.files)
        following = Manifest(manifest.number + 1, files, marks)
        directory = self.snapshots / f"{following.number:08d}"
        temporary = self.snapshots / f"new-{secrets.token_hex(6)}"
        temporary.mkdir()
        for name in files:
            os.link(self.files / name, temporary / name)
        self._step("links")
        sync_directory(temporary)
        # Nobody reads it under this name before `current` leads to the snapshot.
        (self.manifests / directory.name).write_text(following.to_json(), encoding="utf-8")
        _sync_file(self.manifests / directory.name)
        sync_directory(self.manifests)
        self._step("manifest")
        os.rename(temporary, directory)
        sync_directory(self.snapshots)
        self._step("snapshot")
        replace_link(self.current, f"snapshots/{directory.name}")
        self._step("current")
        self._forget(following)

    def _forget(self, manifest: Manifest) -> None:
        """Remove snapshots that are old, and the files that only they had."""
        old = sorted(directory for directory in self.snapshots.iterdir() if directory.name.isdigit())
        limit = time.time() - KEPT_S
        for directory in old[:-_SNAPSHOTS_KEPT_MIN]:
            if directory.stat().st_mtime < limit:
                gone = [name for name in os.listdir(directory) if name not in manifest.files]
                shutil.rmtree(directory)
                (self.manifests / directory.name).unlink(missing_ok=True)
                for name in gone:
                    file = self.files / name
                    if file.exists() and file.stat().st_nlink == 1:
                        file.unlink()


def _tier(size: int, base: int) -> int:
    tier, limit = 0, _TIER_BYTES
    while size >= limit:
        tier, limit = tier + 1, limit * base
    return tier


def _has_rows(path: Path) -> bool:
    return bool(pq.read_metadata(path).num_rows)


def _write(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path, compression=COMPRESSION)
    _sync_file(path)


def _join(paths: Sequence[Path], into: Path) -> None:
    """All rows of some files as one file, a piece at a time."""
    schema = pa.unify_schemas([pq.read_schema(path) for path in paths])
    with pq.ParquetWriter(into, schema, compression=COMPRESSION) as writer:
        for path in paths:
            file = pq.ParquetFile(path)
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                writer.write_batch(batch.cast(schema) if batch.schema != schema else batch)
    _sync_file(into)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def without_keys(rows: pa.Table, keys: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows whose key is not among those given. A null is a value like any other here."""
    if not keys.num_rows or not rows.num_rows:
        return rows
    found = {tuple(row.values()) for row in keys.select(list(key)).to_pylist()}
    columns = rows.select(list(key)).to_pylist()
    return rows.filter(pa.array([tuple(row.values()) not in found for row in columns], pa.bool_()))


def last_by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """One row for each key: the last of several."""
    if rows.num_rows < 2:
        return rows
    last = {tuple(row.values()): index for index, row in enumerate(rows.select(list(key)).to_pylist())}
    if len(last) == rows.num_rows:
        return rows
    return rows.take(pa.array(sorted(last.values()), pa.int64()))


def split_deleted(rows: pa.Table, deleted: str | None) -> tuple[pa.Table, pa.Table | None]:
    """Rows to keep and rows to remove, without the column that tells them apart."""
    if deleted is None:
        return rows, None
    flag = pc.fill_null(rows[deleted].combine_chunks(), False)
    rest = rows.drop_columns([deleted])
    return rest.filter(pc.invert(flag)), rest.filter(flag)
