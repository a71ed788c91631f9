"""Readers: what they got beside the log, and what may move their position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torture_histories import A, B, C, D, E, Run, found

KEY = "q-0"
LOG = {0: A, 1: B, 2: C, 3: D, 4: E}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.send("queue-send-0", KEY, list(LOG.values()), list(LOG))
    run.final(KEY, LOG)
    return run


def test_a_reader_may_be_moved(run: Run) -> None:
    run.add("queue-assign-0", "assign", [["assign", [KEY]], ["seek", KEY, 0]])
    run.poll("queue-assign-0", KEY, {0: A, 1: B, 2: C})
    run.add("queue-assign-0", "seek", [["seek", KEY, 1]])
    run.poll("queue-assign-0", KEY, {1: B})
    run.add("queue-assign-0", "assign", [["assign", ["q-1"]]])
    run.add("queue-assign-0", "assign", [["assign", [KEY]], ["seek", KEY, 2]])
    run.poll("queue-assign-0", KEY, {2: C, 3: D, 4: E})
    assert found(run.check()) == []


def test_a_restarted_reader_starts_anywhere(run: Run) -> None:
    run.poll("queue-assign-0", KEY, {0: A, 1: B, 2: C})
    run.poll("queue-assign-0.1", KEY, {0: A})
    run.poll("queue-assign-0.2", KEY, {3: D, 4: E})
    assert found(run.check()) == []


def test_members_may_get_records_again_after_a_rebalance(run: Run) -> None:
    run.rebalance("queue-subscribe-0", "assigned", KEY)
    run.poll("queue-subscribe-0", KEY, {0: A, 1: B})
    run.rebalance("queue-subscribe-0", "lost", KEY)
    run.rebalance("queue-subscribe-1", "assigned", KEY)
    run.poll("queue-subscribe-1", KEY, {0: A, 1: B, 2: C})
    run.rebalance("queue-subscribe-1", "revoked", KEY)
    run.rebalance("queue-subscribe-0", "assigned", KEY)
    run.poll("queue-subscribe-0", KEY, {2: C, 3: D, 4: E})
    assert found(run.check()) == []


def test_a_transaction_that_failed_is_read_again(run: Run) -> None:
    run.rebalance("q-worker-0", "assigned", KEY)
    run.add("q-worker-0", "txn", [["poll", KEY, [0, 1, 2, 3, 4], [A, B, C, D, E]]], "fail")
    run.add("q-worker-0", "txn", [["poll", KEY, [0, 1, 2, 3, 4], [A, B, C, D, E]]])
    assert found(run.check()) == []


def went_back(run: Run) -> None:
    run.poll("queue-assign-0", KEY, {0: A, 1: B, 2: C, 3: D, 4: E})
    run.poll("queue-assign-0", KEY, {4: E})


def went_back_in_one_poll(run: Run) -> None:
    run.poll("queue-assign-0", KEY, {0: A, 2: C, 1: B, 3: D, 4: E})


def below_a_seek(run: Run) -> None:
    run.poll("queue-assign-0", KEY, LOG)
    run.add("queue-assign-0", "seek", [["seek", KEY, 3]])
    run.poll("queue-assign-0", KEY, {2: C, 3: D, 4: E})


def kept_by_assign(run: Run) -> None:
    run.poll("queue-assign-0", KEY, LOG)
    run.add("queue-assign-0", "assign", [["assign", [KEY, "q-1"]]])
    run.poll("queue-assign-0", KEY, LOG)


def skipped(run: Run) -> None:
    run.poll("queue-assign-0", KEY, {0: A, 1: B})
    run.poll("queue-assign-0", KEY, {3: D, 4: E})


def skipped_in_one_poll(run: Run) -> None:
    run.poll("queue-assign-0", KEY, {0: A, 1: B, 3: D, 4: E})


def skipped_after_a_seek(run: Run) -> None:
    run.poll("queue-assign-0", KEY, {0: A, 1: B, 2: C})
    run.add("queue-assign-0", "seek", [["seek", KEY, 0]])
    run.poll("queue-assign-0", KEY, {1: B, 2: C, 3: D, 4: E})


def skipped_by_the_final_uncommitted(run: Run) -> None:
    run.final(KEY, {0: A, 1: B, 3: D, 4: E}, "final-uncommitted")


def skipped_between_members(run: Run) -> None:
    run.rebalance("queue-subscribe-0", "assigned", KEY)
    run.poll("queue-subscribe-0", KEY, {0: A, 1: B})
    run.rebalance("queue-subscribe-0", "revoked", KEY)
    run.rebalance("queue-subscribe-1", "assigned", KEY)
    run.poll("queue-subscribe-1", KEY, {3: D, 4: E})


def read_by_a_failed_transaction_only(run: Run) -> None:
    run.rebalance("q-worker-0", "assigned", KEY)
    run.add("q-worker-0", "txn", [["poll", KEY, [0, 1], [A, B]]], "fail")
    run.add("q-worker-0", "txn", [["poll", KEY, [2, 3, 4], [C, D, E]]])
    run.add("q-worker-0", "txn", [["poll", KEY, [], []]])


def stuck(run: Run) -> None:
    run.poll("queue-assign-0", KEY, LOG)
    run.poll("queue-assign-1", KEY, {0: A, 1: B, 2: C})


def group_is_stuck(run: Run) -> None:
    run.poll("queue-assign-0", KEY, LOG)
    run.rebalance("queue-subscribe-0", "assigned", KEY)
    run.poll("queue-subscribe-0", KEY, {0: A})


def partition_without_a_reader(run: Run) -> None:
    run.rebalance("queue-subscribe-0", "assigned", KEY, "q-1")
    run.poll("queue-subscribe-0", KEY, LOG)
    run.send("queue-send-1", "q-1", [(3 << 32) + 1], [0])
    run.final("q-1", {0: (3 << 32) + 1})


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (went_back, [("reordered-poll", KEY, ["queue-assign-0"])]),
        (went_back_in_one_poll, [("skipped-poll", KEY), ("reordered-poll", KEY), ("skipped-poll", KEY)]),
        (below_a_seek, [("reordered-poll", KEY, ["queue-assign-0"])]),
        (kept_by_assign, [("reordered-poll", KEY, ["queue-assign-0"])]),
        (skipped, [("skipped-poll", KEY, ["queue-assign-0", "queue-send-0"]), ("unseen", KEY)]),
        (skipped_in_one_poll, [("skipped-poll", KEY, ["queue-assign-0", "queue-send-0"]), ("unseen", KEY)]),
        (skipped_after_a_seek, [("skipped-poll", KEY, ["queue-assign-0", "queue-send-0"])]),
        (skipped_by_the_final_uncommitted, [("skipped-poll", KEY, ["run-final-uncommitted", "queue-send-0"])]),
        (skipped_between_members, [("unseen", KEY, ["queue-send-0", "queue-subscribe-1"])]),
        (read_by_a_failed_transaction_only, [("unseen", KEY, ["queue-send-0", "q-worker-0"])]),
        (stuck, [("stuck-consumer", KEY, ["queue-assign-1"])]),
        (group_is_stuck, [("stuck-consumer", KEY, ["queue-subscribe-0"])]),
        (partition_without_a_reader, [("stuck-consumer", "q-1", ["queue-subscribe-0"])]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_an_anomaly_is_found(run: Run, plant: Callable[[Run], None], expected: list[tuple[str, ...]]) -> None:
    plant(run)
    shown = found(run.check())
    assert [one[: len(wanted)] for one, wanted in zip(shown, expected, strict=False)] == expected, shown
    assert len(shown) == len(expected), shown
