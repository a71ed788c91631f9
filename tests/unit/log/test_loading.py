"""Opening many logs: in threads for each directory, the largest first, with lines about it while it takes long."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidelog.log import LogStorageError, PartitionLog, loading
from tidelog.log.recovery import LastKnown, RecoveryProgress, bytes_to_check

WAIT_S = 30.0


@dataclass(frozen=True)
class Found:
    path: Path
    known: LastKnown = field(default_factory=LastKnown)


def make_log(directory: Path, *sizes: int, base_step: int = 100) -> Found:
    """Files of a log with so many bytes each; what is in them is never looked at here."""
    directory.mkdir(parents=True)
    for index, size in enumerate(sizes):
        (directory / f"{index * base_step:020d}.log").write_bytes(bytes(size))
    return Found(directory)


def refuse(item: Found, progress: RecoveryProgress) -> PartitionLog:
    raise LogStorageError(item.path.name)


def names(opened: list[tuple[Found, PartitionLog | LogStorageError]]) -> list[str]:
    return [item.path.name for item, _ in opened]


def test_the_largest_come_first(tmp_path: Path) -> None:
    found = [make_log(tmp_path / f"t-{size}", size) for size in (10, 3000, 200, 0)]
    taken: list[str] = []

    def open_one(item: Found, progress: RecoveryProgress) -> PartitionLog:
        taken.append(item.path.name)
        raise LogStorageError("not of interest")

    assert len(list(loading.open_all(found, open_one, 1))) == 4
    assert taken == ["t-3000", "t-200", "t-10", "t-0"]


def test_only_what_must_be_read_again_counts(tmp_path: Path) -> None:
    make_log(tmp_path / "t-0", 1000, 500, 20)
    sizes = {point: bytes_to_check(tmp_path / "t-0", LastKnown(recovery_point=point)) for point in (0, 150, 900)}
    assert sizes == {0: 1520, 150: 520, 900: 20}
    assert bytes_to_check(tmp_path / "t-0", LastKnown(is_clean=True)) == 0


def test_each_directory_has_its_threads(tmp_path: Path) -> None:
    found = [make_log(tmp_path / disk / f"t-{number}", 1) for disk in ("one", "two") for number in range(2)]
    together = threading.Barrier(4)

    def open_one(item: Found, progress: RecoveryProgress) -> PartitionLog:
        together.wait(WAIT_S)
        raise LogStorageError("all four were opened at once")

    assert len(list(loading.open_all(found, open_one, 2))) == 4


def test_one_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    found = [make_log(tmp_path / f"t-{number}", 1) for number in range(3)]
    opened = list(loading.open_all(found, refuse, 2))
    assert sorted(names(opened)) == ["t-0", "t-1", "t-2"]
    assert all(isinstance(result, LogStorageError) for _, result in opened)


def test_progress_is_told_while_one_log_takes_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_REPORT_INTERVAL_S", 0.02)
    found = [make_log(tmp_path / "t-0", 3 * 1024 * 1024)]
    was_told = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "1.0 of 3.0 MiB" in record.getMessage():
                was_told.set()

    def open_one(item: Found, progress: RecoveryProgress) -> PartitionLog:
        progress.bytes_done = 1024 * 1024
        assert was_told.wait(WAIT_S)
        raise LogStorageError("opened for the test")

    listener = Listener()
    loading.logger.addHandler(listener)
    try:
        with caplog.at_level(logging.INFO, logger="tidelog.log.loading"):
            list(loading.open_all(found, open_one, 1))
    finally:
        loading.logger.removeHandler(listener)
    assert "opened 0 of 1 logs, read 1.0 of 3.0 MiB that must be checked" in caplog.text
