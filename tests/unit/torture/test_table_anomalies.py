"""Compacted tables: scans beside what had been put, with all that compaction may take away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torture_histories import STRANGE, A, B, C, D, Run, found

KEY = "table-0"
Records = Mapping[int, tuple[str, int | None]]


def put(
    run: Run,
    row: str,
    value: int | None,
    offset: int | None,
    outcome: str = "ok",
    at: tuple[int, int] | None = None,
    writer: int = 0,
) -> None:
    run.add(f"table-write-{writer}", "put", [["put", KEY, row, value, offset]], outcome, at)


def scan(run: Run, records: Records, process: str = "table-scan-0", at: tuple[int, int] | None = None) -> None:
    events = [["row", KEY, offset, row, value] for offset, (row, value) in records.items()]
    run.add(process, "table", events, at=at)


def test_compaction_may_take_away_what_is_replaced(tmp_path: Path) -> None:
    run = Run(tmp_path)
    put(run, "r1", A, 0)
    scan(run, {0: ("r1", A)})
    put(run, "r2", B, 1)
    put(run, "r1", C, 2)
    scan(run, {0: ("r1", A), 1: ("r2", B), 2: ("r1", C)})
    put(run, "r1", None, 3)
    put(run, "r1", STRANGE, None, "fail")
    scan(run, {1: ("r2", B), 3: ("r1", None)})
    scan(run, {1: ("r2", B)}, "table-final")
    checked = run.check("table")
    assert found(checked) == []
    assert checked.counts["table_scans"] == 4
    assert checked.counts["sends_acknowledged"] == 4


def test_a_scan_may_miss_what_is_replaced_meanwhile(tmp_path: Path) -> None:
    run = Run(tmp_path)
    put(run, "r1", A, 0, at=(0, 10))
    put(run, "r1", B, 1, at=(11, 20))
    put(run, "r1", C, 2, at=(40, 50))
    put(run, "r2", D, None, "unknown", at=(41, 90))
    scan(run, {0: ("r1", A)}, at=(30, 60))
    scan(run, {}, "table-scan-1", at=(31, 61))
    scan(run, {2: ("r1", C)}, "table-final", at=(100, 110))
    assert found(run.check("table")) == []


def test_an_unknown_tombstone_explains_an_absent_row(tmp_path: Path) -> None:
    run = Run(tmp_path)
    put(run, "r1", A, 0)
    put(run, "r1", None, None, "unknown")
    scan(run, {})
    scan(run, {}, "table-final")
    assert found(run.check("table")) == []


def older(run: Run) -> None:
    put(run, "r1", B, 1)
    scan(run, {0: ("r1", A)})
    scan(run, {1: ("r1", B)}, "table-final")


def older_than_another_scan(run: Run) -> None:
    put(run, "r1", B, None, "unknown", at=(11, 2000))
    scan(run, {1: ("r1", B)}, at=(1000, 1010))
    put(run, "r1", C, 5, at=(3000, 3010))
    scan(run, {0: ("r1", A)}, at=(3020, 3030))
    scan(run, {5: ("r1", C)}, "table-final", at=(4000, 4010))


def deleted_row_is_back(run: Run) -> None:
    put(run, "r1", None, 1)
    scan(run, {0: ("r1", A)}, "table-final")


def row_is_gone(run: Run) -> None:
    scan(run, {})
    scan(run, {0: ("r1", A)}, "table-final")


def row_is_gone_at_the_end(run: Run) -> None:
    put(run, "r1", B, None, "unknown")
    scan(run, {}, "table-final")


def older_at_the_end(run: Run) -> None:
    put(run, "r1", B, 1)
    put(run, "r1", C, None, "unknown")
    scan(run, {0: ("r1", A)}, "table-final")


def scan_in_disorder(run: Run) -> None:
    put(run, "r2", B, 1)
    scan(run, {1: ("r2", B), 0: ("r1", A)}, "table-final")


def two_rows_at_one_offset(run: Run) -> None:
    put(run, "r2", B, None, "unknown")
    scan(run, {0: ("r2", B)})
    scan(run, {0: ("r1", A)}, "table-final")


def one_record_at_two_offsets(run: Run) -> None:
    scan(run, {0: ("r1", A), 4: ("r1", A)}, "table-final")


def invented(run: Run) -> None:
    scan(run, {0: ("r1", A), 4: ("r7", STRANGE)}, "table-final")


def failed_put_is_there(run: Run) -> None:
    put(run, "r2", B, None, "fail", writer=1)
    scan(run, {0: ("r1", A), 4: ("r2", B)}, "table-final")


@pytest.mark.parametrize(
    ("plant", "kind", "shown"),
    [
        (older, "stale-table", ["table-write-0", "table-scan-0", "table-write-0"]),
        (older_than_another_scan, "stale-table", ["table-write-0", "table-scan-0", "table-write-0"]),
        (deleted_row_is_back, "lost-update-of-table", ["table-write-0", "table-final", "table-write-0"]),
        (row_is_gone, "lost-update-of-table", ["table-write-0", "table-scan-0"]),
        (row_is_gone_at_the_end, "lost-update-of-table", ["table-write-0", "table-final"]),
        (older_at_the_end, "lost-update-of-table", ["table-write-0", "table-final", "table-write-0"]),
        (scan_in_disorder, "reordered-poll", ["table-final"]),
        (two_rows_at_one_offset, "inconsistent-offset", ["table-write-0", "table-scan-0"]),
        (one_record_at_two_offsets, "duplicate", ["table-write-0", "table-final"]),
        (invented, "phantom", ["table-final"]),
        (failed_put_is_there, "aborted-read", ["table-write-1", "table-final"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_an_anomaly_is_found(tmp_path: Path, plant: Callable[[Run], None], kind: str, shown: list[str]) -> None:
    run = Run(tmp_path)
    put(run, "r1", A, 0)
    plant(run)
    checked = run.check("table")
    assert (kind, KEY, shown) in found(checked), found(checked)
    assert set(checked.found) <= {kind, *({"lost-update-of-table"} if plant is two_rows_at_one_offset else ())}
