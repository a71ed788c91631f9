"""Transactions: whole or not at all, consumed once, lists that grow, and no cycles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torture_histories import STRANGE, A, B, C, D, E, Run, found

X, Y = "append-0", "append-1"


def append(key: str, value: int, offset: int | None) -> list[Any]:
    return ["append", key, value, offset]


def txn(run: Run, number: int, *events: list[Any], outcome: str = "ok", at: tuple[int, int] | None = None) -> None:
    run.add(f"append-{number}", "txn", list(events), outcome, at)


def finish(run: Run, **lists: list[int]) -> None:
    for name, values in lists.items():
        run.add("append-final", "final", [["list", {"x": X, "y": Y}[name], values]])


def test_transactions_in_turn_are_sound(tmp_path: Path) -> None:
    run = Run(tmp_path)
    txn(run, 0, ["list", X, []], append(X, A, 0), append(Y, B, 0))
    txn(run, 1, ["list", Y, [B]], ["list", X, [A]], append(X, C, 2))
    txn(run, 1, ["list", X, [A, C]], append(X, STRANGE, 4), outcome="fail")
    txn(run, 0, ["list", X, [A, C]], append(X, D, None), append(Y, E, None), outcome="unknown")
    txn(run, 1, ["list", X, [A, C, D]], ["list", Y, [B, E]])
    run.final(X, {0: A, 2: C, 6: D})
    run.final(Y, {0: B, 2: E})
    checked = run.check("append")
    assert found(checked) == []
    assert checked.counts["transactions_committed"] == 3
    assert checked.counts["transactions_aborted"] == 1
    assert checked.counts["transactions_unknown"] == checked.counts["transactions_unknown_found"] == 1
    assert checked.counts["lists"] == 7


def test_senders_may_interleave_in_any_way(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.add("q-worker-0", "txn", [["send", "q-0", [A], [0]], ["send", "q-1", [B], [1]]], at=(0, 50))
    run.add("q-worker-1", "txn", [["send", "q-0", [C], [1]], ["send", "q-1", [D], [0]]], at=(10, 60))
    run.final("q-0", {0: A, 1: C})
    run.final("q-1", {0: D, 1: B})
    checked = run.check("transactions")
    assert found(checked) == []
    assert checked.counts["write_cycles_allowed"] == 1


def test_a_reader_may_be_held_back_between_two_records_of_a_transaction(tmp_path: Path) -> None:
    run = Run(tmp_path)
    txn(run, 0, append(X, A, 0), append(X, C, 2), at=(0, 50))
    txn(run, 1, append(X, B, 1), at=(10, 90), outcome="fail")
    txn(run, 2, ["list", X, [A]], at=(60, 70))
    run.final(X, {0: A, 2: C})
    assert found(run.check("append")) == []


def write_cycle(run: Run) -> None:
    txn(run, 0, append(X, A, 0), append(Y, B, 1), at=(0, 50))
    txn(run, 1, append(X, C, 1), append(Y, D, 0), at=(10, 60))
    finish(run, x=[A, C], y=[D, B])


def write_after_the_end(run: Run) -> None:
    txn(run, 0, append(X, A, 1))
    txn(run, 1, append(X, B, 0))
    finish(run, x=[B, A])


def aborted_read(run: Run) -> None:
    txn(run, 0, append(X, A, 0), outcome="fail")
    txn(run, 1, ["list", X, [A]])
    finish(run, x=[])


def intermediate_read(run: Run) -> None:
    txn(run, 0, append(X, A, 0), append(X, B, 1))
    txn(run, 1, ["list", X, [A]])
    finish(run, x=[A, B])


def reads_of_each_other(run: Run) -> None:
    txn(run, 0, ["list", Y, [B]], append(X, A, 0), at=(0, 50))
    txn(run, 1, ["list", X, [A]], append(Y, B, 0), at=(10, 60))
    finish(run, x=[A], y=[B])


def ring_of_reads(run: Run) -> None:
    txn(run, 0, ["list", Y, [C, B]], append(X, A, 0), at=(0, 50))
    txn(run, 1, ["list", X, [A]], append(Y, B, 1), at=(10, 60))
    txn(run, 2, append(Y, C, 0), at=(5, 70))
    finish(run, x=[A], y=[C, B])


def read_and_write_cycle(run: Run) -> None:
    txn(run, 0, append(X, A, 0), append(Y, B, 1), at=(0, 50))
    txn(run, 1, ["list", X, [A]], append(Y, C, 0), at=(10, 60))
    finish(run, x=[A], y=[C, B])


def read_of_its_own(run: Run) -> None:
    txn(run, 0, append(X, A, 0), ["list", X, [A]])
    finish(run, x=[A])


def polls_of_each_other(run: Run) -> None:
    run.add("q-worker-0", "txn", [["poll", "q-1", [0], [B]], ["send", "q-0", [A], [0]]], at=(0, 50))
    run.add("q-worker-1", "txn", [["poll", "q-0", [0], [A]], ["send", "q-1", [B], [0]]], at=(10, 60))
    run.final("q-0", {0: A})
    run.final("q-1", {0: B})


def polled_beyond_an_open_transaction(run: Run) -> None:
    """The reader saw nothing of the other transaction, but got past its record before it was decided."""
    run.add("q-worker-0", "txn", [["poll", "q-0", [2], [C]], ["send", "q-1", [B], [0]]], at=(0, 50))
    run.add("q-worker-1", "txn", [["poll", "q-1", [0], [B]], ["send", "q-0", [A], [0]]], at=(10, 60))
    run.send("q-send-0", "q-0", [C], [2], at=(5, 30))
    run.final("q-0", {0: A, 2: C})
    run.final("q-1", {0: B})


def committed_in_part(run: Run) -> None:
    txn(run, 0, append(X, A, None), append(Y, B, None), outcome="unknown")
    finish(run, x=[A], y=[])


def list_lost_a_value(run: Run) -> None:
    txn(run, 0, append(X, A, 0), append(X, B, 1), outcome="unknown")
    txn(run, 1, ["list", X, [A, B]])
    finish(run, x=[])


def list_skips(run: Run) -> None:
    txn(run, 0, append(X, A, 0))
    txn(run, 0, append(X, B, 2))
    txn(run, 1, ["list", X, [B]])
    finish(run, x=[A, B])


def list_in_disorder(run: Run) -> None:
    txn(run, 0, append(X, A, 0))
    txn(run, 0, append(X, B, 2))
    txn(run, 1, ["list", X, [B, A]])
    finish(run, x=[A, B])


def list_with_a_double(run: Run) -> None:
    txn(run, 0, append(X, A, 0))
    txn(run, 1, ["list", X, [A, A]])
    finish(run, x=[A])


def list_with_a_phantom(run: Run) -> None:
    txn(run, 0, append(X, A, 0))
    txn(run, 1, ["list", X, [A, STRANGE]])
    finish(run, x=[A])


def consumed_twice(run: Run) -> None:
    run.send("q-send-0", "q-0", [A, B, C], [0, 1, 2])
    run.rebalance("q-worker-0", "assigned", "q-0")
    run.add("q-worker-0", "txn", [["poll", "q-0", [0, 1], [A, B]], ["commit", "q-0", 2]])
    run.rebalance("q-worker-1", "assigned", "q-0")
    run.add("q-worker-1", "txn", [["poll", "q-0", [1, 2], [B, C]], ["commit", "q-0", 3]])
    run.final("q-0", {0: A, 1: B, 2: C})


@pytest.mark.parametrize(
    ("plant", "kind", "shown", "also"),
    [
        (write_cycle, "G0", ["append-0", "append-1"], set()),
        (write_after_the_end, "G0", ["append-0", "append-1"], set()),
        (aborted_read, "G1a", ["append-0", "append-1"], set()),
        (intermediate_read, "G1b", ["append-0", "append-1"], set()),
        (reads_of_each_other, "G1c", ["append-0", "append-1"], set()),
        (ring_of_reads, "G1c", ["append-0", "append-1"], set()),
        (read_and_write_cycle, "G1c", ["append-0", "append-1"], set()),
        (read_of_its_own, "G1c", ["append-0"], set()),
        (polls_of_each_other, "G1c", ["q-worker-0", "q-worker-1"], set()),
        (polled_beyond_an_open_transaction, "G1c", ["q-worker-0", "q-worker-1"], {"unseen"}),
        (committed_in_part, "aborted-read", ["append-0"], set()),
        (list_lost_a_value, "lost-write", ["append-1", "append-0"], set()),
        (list_skips, "skipped-poll", ["append-1", "append-0"], set()),
        (list_in_disorder, "reordered-poll", ["append-1", "append-0"], set()),
        (list_with_a_double, "duplicate", ["append-1", "append-0"], set()),
        (list_with_a_phantom, "phantom", ["append-1"], set()),
        (consumed_twice, "copy-duplicate", ["q-worker-0", "q-worker-1"], {"commit-went-back"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_an_anomaly_is_found(
    tmp_path: Path, plant: Callable[[Run], None], kind: str, shown: list[str], also: set[str]
) -> None:
    run = Run(tmp_path)
    plant(run)
    checked = run.check("append")
    assert (kind, shown) in [(one[0], one[2]) for one in found(checked)], found(checked)
    assert set(checked.found) <= {kind, *also}, found(checked)


def test_a_cycle_is_told_step_by_step(tmp_path: Path) -> None:
    run = Run(tmp_path)
    reads_of_each_other(run)
    (anomaly,) = run.check("append").anomalies
    steps = [
        f"append-0 (at 0.000 s) wrote {A} at offset 0 of {X}",
        f"append-1 (at 0.000 s) read up to offset 0 of {X} or further",
        f"append-1 (at 0.000 s) wrote {B} at offset 0 of {Y}",
        f"append-0 (at 0.000 s) read up to offset 0 of {Y} or further",
    ]
    assert anomaly.detail == "; ".join(steps)


def test_a_lost_value_does_not_make_cycles_of_what_was_read(tmp_path: Path) -> None:
    """Lists with the value are longer than the log was, so their length says nothing about it."""
    run = Run(tmp_path)
    txn(run, 0, append(X, A, 0))
    txn(run, 1, ["list", X, [A]], append(X, B, 2))
    txn(run, 0, ["list", X, [A, B]], append(X, C, 4))
    run.final(X, {2: B, 4: C})
    checked = run.check("append")
    assert checked.found == {"lost-write": 3}  # acknowledged, and read twice
