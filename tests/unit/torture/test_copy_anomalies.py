"""Copies: each record of the source once, in order; a transaction that failed may be copied again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from torture_histories import STRANGE, A, B, C, D, E, Run, found

FROM, OTHER, TO = "source-0", "source-1", "tidelog-0"


def copied(directory: Path, copy: Mapping[int, int], partition: str = TO) -> Run:
    """A source of two partitions, and a copy of it."""
    run = Run(directory)
    run.send("copy-send-0", FROM, [A, B, C], [0, 1, 2])
    run.send("copy-send-0", OTHER, [D, E], [0, 1])
    run.final(FROM, {0: A, 1: B, 2: C})
    run.final(OTHER, {0: D, 1: E})
    run.final(partition, copy)
    return run


def test_a_copy_may_choose_its_partitions(tmp_path: Path) -> None:
    checked = copied(tmp_path, {0: A, 2: D, 3: B, 5: E, 6: C}).check("copy")
    assert found(checked) == []
    assert checked.counts["copies"] == 1
    assert checked.counts["records_copied"] == 5


def test_what_a_failed_transaction_copied_is_copied_again(tmp_path: Path) -> None:
    run = copied(tmp_path, {3: A, 4: B, 5: C}, TO)
    run.add("copy-tidelog-0", "txn", [["poll", FROM, [0, 1], [A, B]], ["send", TO, [A, B], [0, 1]]], "fail")
    run.add("copy-tidelog-0", "txn", [["poll", FROM, [0, 1], [A, B]], ["send", TO, [A, B], [None, None]]], "unknown")
    run.add(
        "copy-tidelog-0",
        "txn",
        [["poll", FROM, [0, 1, 2], [A, B, C]], ["send", TO, [A, B, C], [3, 4, 5]], ["commit", FROM, 3]],
    )
    run.add("copy-tidelog-0", "txn", [["poll", OTHER, [0, 1], [D, E]], ["send", "tidelog-1", [D, E], [0, 1]]])
    run.final("tidelog-1", {0: D, 1: E})
    assert found(run.check("copy")) == []


def test_what_a_killed_worker_sent_without_noting_it_may_be_copied(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.send("copy-send-0", FROM, [A], [0])
    run.add("copy-tidelog-0", "txn", [["poll", FROM, [0, 1], [A, B]], ["send", TO, [A, B], [0, 1]]])
    run.final(FROM, {0: A, 1: B})
    run.final(TO, {0: A, 1: B})
    assert found(run.check("copy")) == []


@pytest.mark.parametrize(
    ("copy", "expected"),
    [
        ({0: A, 1: B, 2: C, 3: E}, ("copy-lost", "tidelog", ["copy-send-0", "run-final"])),
        ({}, ("copy-lost", "tidelog", ["copy-send-0", "run-final"])),
        ({0: A, 1: B, 2: C, 3: D, 4: E, 5: B}, ("copy-duplicate", TO, ["run-final"])),
        ({0: A, 1: C, 2: B, 3: D, 4: E}, ("copy-reordered", TO, ["run-final"])),
        ({0: A, 1: B, 2: C, 3: D, 4: E, 5: STRANGE}, ("phantom", TO, ["run-final"])),
    ],
)
def test_an_anomaly_is_found(tmp_path: Path, copy: dict[int, int], expected: tuple[str, str, list[str]]) -> None:
    checked = copied(tmp_path, copy).check("copy")
    assert expected in found(checked), found(checked)
    assert set(checked.found) - {"duplicate"} == {expected[0]}
