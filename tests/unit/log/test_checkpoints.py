"""The small files: Kafka's texts, and refusal of everything else."""

from __future__ import annotations

import uuid
from itertools import pairwise
from pathlib import Path

import pytest

from tidelog.log import checkpoints
from tidelog.log.errors import CorruptCheckpointError


def test_offset_checkpoint_has_kafkas_text(tmp_path: Path) -> None:
    path = tmp_path / checkpoints.RECOVERY_POINT_FILE
    checkpoints.write_offsets(path, {("b", 1): 7, ("a", 0): 12})
    assert path.read_text() == "0\n2\na 0 12\nb 1 7\n"
    assert checkpoints.read_offsets(path) == {("a", 0): 12, ("b", 1): 7}
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_no_file_is_an_empty_checkpoint(tmp_path: Path) -> None:
    assert checkpoints.read_offsets(tmp_path / "none") == {}


@pytest.mark.parametrize(
    "text",
    ["", "0\n", "1\n0\n", "0\nx\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na b c\n", "0\n1\na 0 1\nb 0 1\n", "\udcff"],
)
def test_a_broken_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CorruptCheckpointError, match="checkpoint"):
        checkpoints.read_offsets(path)


def test_partition_metadata_has_kafkas_text(tmp_path: Path) -> None:
    topic_id = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
    assert checkpoints.read_partition_metadata(tmp_path) is None
    checkpoints.write_partition_metadata(tmp_path, topic_id)
    assert (tmp_path / "partition.metadata").read_text() == "version: 0\ntopic_id: ASNFZ4mrze8BI0VniavN7w\n"
    assert checkpoints.read_partition_metadata(tmp_path) == topic_id


@pytest.mark.parametrize(
    "text", ["version: 1\ntopic_id: ASNFZ4mrze8BI0VniavN7w\n", "version: 0\n", "version: 0\ntopic_id: x"]
)
def test_broken_partition_metadata_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text)
    with pytest.raises(CorruptCheckpointError, match="metadata"):
        checkpoints.read_partition_metadata(tmp_path)


def test_empty_partition_metadata_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").write_text("")
    assert checkpoints.read_partition_metadata(tmp_path) is None


def test_clean_shutdown_marker(tmp_path: Path) -> None:
    assert checkpoints.read_clean_shutdown(tmp_path) is None
    checkpoints.write_clean_shutdown(tmp_path, 42)
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version": "0", "broker_epoch": "42"}'
    assert checkpoints.read_clean_shutdown(tmp_path) == 42
    (tmp_path / ".kafka_cleanshutdown").write_text("")
    assert checkpoints.read_clean_shutdown(tmp_path) == -1
    checkpoints.remove_clean_shutdown(tmp_path)
    assert checkpoints.read_clean_shutdown(tmp_path) is None


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint"
    checkpoints.write_offsets(path, {("a", 0): 1})

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        checkpoints.write_offsets(path, {("a", 0): 2})
    assert checkpoints.read_offsets(path) == {("a", 0): 1}


def test_a_small_file_is_written_over_and_any_other_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    inodes = []
    for contents in (b"new", b"longer", b"short", b"x" * 512, b"x" * 513, b""):
        checkpoints.write_unflushed(path, contents)
        assert path.read_bytes() == contents
        inodes.append(path.stat().st_ino)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    # Only what grows and fits a sector can be written over without the danger of a mixture.
    changed = [before != after for before, after in pairwise(inodes)]
    assert changed == [False, True, False, True, True]


def test_a_small_file_for_which_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    monkeypatch.setattr("os.pwrite", lambda fd, contents, position: len(contents) - 1)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.write_unflushed(path, b"new")
