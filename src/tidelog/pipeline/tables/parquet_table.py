"""A table of Parquet files, written exactly once, with snapshots that any reader can read.

    place/
      files/                 all data files
      snapshots/00000012/    hard links to the files of one snapshot
      manifests/00000012     the contents of that snapshot, and the writers' markers
      current                a symbolic link to the snapshot that readers see

What always holds: a snapshot never changes; a commit creates the next one beside the others and moves `current` to it
with a rename, which is the moment of the commit. A reader that opens `current` as a plain directory therefore sees
whole batches, each exactly once, even during compaction. The manifest holds the marker of each writer, the last batch
that it has committed, so a repeated batch changes nothing. The run's lock makes sure that only one process writes at a
time; if it dies, the next one removes what it left behind.

A reader that lists `current` and opens the files later by the same path may find that a file has been compacted away:
it gets an error, never wrong rows. A reader that resolves the link first (os.path.realpath) reads one snapshot, which
is kept for `KEPT_S`.
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

from tidelog.common.durable_files import make_directory, replace_file, replace_link, sync_path

KEPT_S = 600.0
_SNAPSHOTS_KEPT_MIN = 3
_TIER_BYTES = 1024 * 1024
COMPRESSION = "zstd"
ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Manifest:
    """The contents of one snapshot."""

    number: int = 0
    files: tuple[str, ...] = ()
    # The last batch that each writer has committed.
    marks: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"number": self.number, "files": self.files, "marks": dict(self.marks)})

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        document = json.loads(text)
        return cls(document["number"], tuple(document["files"]), document["marks"])


class ParquetTable:
    """The table in one location. `on_step` is called between the steps of a commit, for tests that kill it there."""

    def __init__(self, place: Path, on_step: Callable[[str], None] | None = None) -> None:
        self.place = place
        self.files = place / "files"
        self.snapshots = place / "snapshots"
        self.manifests = place / "manifests"
        self.current = place / "current"
        self._step = on_step or (lambda name: None)

    # Reading

    def manifest(self) -> Manifest:
        """The snapshot that readers see now."""
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
        """Create the directories, and clean up after a writer that died."""
        for directory in (self.files, self.snapshots, self.manifests):
            make_directory(directory)
        manifest = self.manifest()
        for directory in self.snapshots.iterdir():
            if not directory.name.isdigit() or int(directory.name) > manifest.number:
                shutil.rmtree(directory)
        for file in self.manifests.iterdir():
            if not file.name.isdigit() or int(file.name) > manifest.number:
                file.unlink()
        known = set(manifest.files)
        for file in self.files.iterdir():
            # With another hard link, the file belongs to a snapshot that is still kept.
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
        """Commit finished files as one batch; returns False if that batch had already been committed."""
        manifest = self.manifest()
        if batch_id <= manifest.marks.get(app_id, -1):
            return False
        added = [self._take(path) for path in paths if not manifest.files or _has_rows(path)]
        self._commit(manifest, (*manifest.files, *added), {**manifest.marks, app_id: batch_id})
        return True

    def upsert(
        self, rows: pa.Table, key: Sequence[str], app_id: str, batch_id: int, removed: pa.Table | None = None
    ) -> bool:
        """Replace rows with the same key, and delete the keys in `removed`. This rewrites the table."""
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
        """Compact small files if there are `compact_files` of about the same size; returns how many were compacted.

        Grouping by size means that a row is copied once for each power of `compact_files` that the table grows by, and
        not with every batch.
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
        """Move a finished file into the table's directory, where readers don't see it yet."""
        sync_path(path)
        name = self._new_name()
        os.rename(path, self.files / name)
        self._step("file")
        return name

    def _commit(self, manifest: Manifest, files: tuple[str, ...], marks: Mapping[str, int]) -> None:
        sync_path(self.files)
        following = Manifest(manifest.number + 1, files, marks)
        directory = self.snapshots / f"{following.number:08d}"
        temporary = self.snapshots / f"new-{secrets.token_hex(6)}"
        temporary.mkdir()
        for name in files:
            os.link(self.files / name, temporary / name)
        self._step("links")
        sync_path(temporary)
        # No reader uses this manifest before `current` points to the snapshot.
        replace_file(self.manifests / directory.name, following.to_json())
        self._step("manifest")
        os.rename(temporary, directory)
        sync_path(self.snapshots)
        self._step("snapshot")
        replace_link(self.current, f"snapshots/{directory.name}")
        self._step("current")
        self._forget(following)

    def _forget(self, manifest: Manifest) -> None:
        """Remove old snapshots, and the files that only they contained."""
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
    sync_path(path)


def _join(paths: Sequence[Path], into: Path) -> None:
    """Write all rows of some files to one file, one batch at a time."""
    schema = pa.unify_schemas([pq.read_schema(path) for path in paths])
    with pq.ParquetWriter(into, schema, compression=COMPRESSION) as writer:
        for path in paths:
            file = pq.ParquetFile(path)
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                writer.write_batch(batch.cast(schema) if batch.schema != schema else batch)
    sync_path(into)


def without_keys(rows: pa.Table, keys: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows whose key is not among those given. Null counts as a value like any other."""
    if not keys.num_rows or not rows.num_rows:
        return rows
    found = {tuple(row.values()) for row in keys.select(list(key)).to_pylist()}
    columns = rows.select(list(key)).to_pylist()
    return rows.filter(pa.array([tuple(row.values()) not in found for row in columns], pa.bool_()))


def last_by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """One row for each key: the last one."""
    if rows.num_rows < 2:
        return rows
    last = {tuple(row.values()): index for index, row in enumerate(rows.select(list(key)).to_pylist())}
    if len(last) == rows.num_rows:
        return rows
    return rows.take(pa.array(sorted(last.values()), pa.int64()))


def split_deleted(rows: pa.Table, deleted: str | None) -> tuple[pa.Table, pa.Table | None]:
    """Rows to keep and rows to remove, without the `deleted` column."""
    if deleted is None:
        return rows, None
    flag = pc.fill_null(rows[deleted].combine_chunks(), False)
    rest = rows.drop_columns([deleted])
    return rest.filter(pc.invert(flag)), rest.filter(flag)
