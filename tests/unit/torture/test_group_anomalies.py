"""Groups and lookups: owners, committed offsets, watermarks. What was accepted counts, not what was believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torture_histories import A, B, C, D, E, Run, found

KEY = "h-0"
LOG = {0: A, 1: B, 2: C, 3: D, 4: E}
FIRST, SECOND = "handover-classic-0", "handover-classic-1"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.send("handover-send-0", KEY, list(LOG.values()), list(LOG))
    return run


def take_over(run: Run, commit: int = 2, start: int = 2, end: str = "revoked") -> None:
    """A member reads two records and commits; another one goes on."""
    run.rebalance(FIRST, "assigned", KEY)
    run.poll(FIRST, KEY, {0: A, 1: B})
    run.commit(FIRST, KEY, commit)
    if end:
        run.rebalance(FIRST, end, KEY)
    run.rebalance(SECOND, "assigned", KEY)
    run.poll(SECOND, KEY, {offset: value for offset, value in LOG.items() if offset >= start})
    run.commit(SECOND, KEY, 5)


@pytest.mark.parametrize("end", ["revoked", "lost", ""])
def test_a_hand_over_is_sound(run: Run, end: str) -> None:
    take_over(run, end=end)
    run.final(KEY, LOG)
    assert found(run.check()) == []


def test_a_member_that_was_expelled_may_believe_what_it_likes(run: Run) -> None:
    take_over(run, end="")
    run.poll(FIRST, KEY, {2: C, 3: D})
    run.commit(FIRST, KEY, 4, "fail")
    run.commit(FIRST, KEY, 4, "unknown")
    run.rebalance(FIRST, "lost", KEY)
    run.commit(SECOND, KEY, 5)
    run.final(KEY, LOG)
    assert found(run.check()) == []


def test_a_callback_that_comes_late_proves_nothing(run: Run) -> None:
    """The second member was expelled before its callback ran."""
    run.rebalance(FIRST, "assigned", KEY)
    run.poll(FIRST, KEY, LOG)
    run.commit(FIRST, KEY, 2)
    run.rebalance(SECOND, "assigned", KEY)
    run.commit(SECOND, KEY, 1, "fail")
    run.commit(FIRST, KEY, 5)
    run.final(KEY, LOG)
    assert found(run.check()) == []


def test_groups_are_told_apart_by_the_names_of_their_members(run: Run) -> None:
    for group in ("classic", "consumer"):
        run.rebalance(f"handover-{group}-0", "assigned", KEY)
        run.poll(f"handover-{group}-0", KEY, LOG)
    for offset in (3, 5):
        for group in ("classic", "consumer"):
            run.commit(f"handover-{group}-0", KEY, offset)
    run.commit("handover-consumer-0", KEY, 5)
    run.add("handover-watch-0", "lookup", [["committed", KEY, 4]])
    run.final(KEY, LOG)
    assert found(run.check()) == []


def two_owners(run: Run) -> None:
    take_over(run, end="")
    run.commit(FIRST, KEY, 5)


def two_owners_in_transactions(run: Run) -> None:
    run.rebalance(FIRST, "assigned", KEY)
    run.add(FIRST, "txn", [["poll", KEY, [0, 1], [A, B]], ["commit", KEY, 2]])
    run.rebalance(SECOND, "assigned", KEY)
    run.add(SECOND, "txn", [["poll", KEY, [2], [C]], ["commit", KEY, 3]])
    run.add(FIRST, "txn", [["commit", KEY, 3]])
    run.add(SECOND, "txn", [["poll", KEY, [3, 4], [D, E]], ["commit", KEY, 5]])


def commit_went_back(run: Run) -> None:
    take_over(run)
    run.commit(SECOND, KEY, 4)


def lookup_went_back(run: Run) -> None:
    take_over(run)
    run.add("handover-watch-0", "lookup", [["committed", KEY, 4]])


def lookup_went_back_to_nothing(run: Run) -> None:
    take_over(run)
    run.add("handover-watch-0", "lookup", [["committed", KEY, None]])


def lookups_disagree(run: Run) -> None:
    take_over(run)
    run.add("handover-watch-0", "lookup", [["committed", KEY, 9]])
    run.add("handover-watch-0", "lookup", [["committed", KEY, 8]])


def began_below(run: Run) -> None:
    take_over(run, start=1)


def began_beyond(run: Run) -> None:
    take_over(run, start=3)


def watermark_below_another(run: Run) -> None:
    run.add("queue-assign-uncommitted-0", "lookup", [["high_watermark", KEY, 6]])
    run.add("queue-assign-uncommitted-1", "lookup", [["high_watermark", KEY, 5]])


def watermark_below_a_send(run: Run) -> None:
    run.add("queue-assign-uncommitted-0", "lookup", [["high_watermark", KEY, 4]])


def watermark_below_a_poll(run: Run) -> None:
    run.poll("queue-assign-0", KEY, LOG | {7: E + 1})
    run.send("queue-send-1", KEY, [E + 1], [None], "unknown")
    run.add("queue-assign-uncommitted-0", "lookup", [["high_watermark", KEY, 7]])


def out_of_range(run: Run) -> None:
    run.add("queue-assign-0", "poll", [], "fail", error="OffsetOutOfRangeError: offset 7 of h-0")


@pytest.mark.parametrize(
    ("plant", "kind", "shown", "also"),
    [
        (two_owners, "two-owners", [FIRST, SECOND, SECOND, FIRST], set()),
        (two_owners_in_transactions, "two-owners", [FIRST, SECOND, SECOND, FIRST], set()),
        (commit_went_back, "commit-went-back", [SECOND, SECOND], set()),
        (lookup_went_back, "commit-went-back", [SECOND, "handover-watch-0"], set()),
        (lookup_went_back_to_nothing, "commit-went-back", [SECOND, "handover-watch-0"], set()),
        (lookups_disagree, "commit-went-back", ["handover-watch-0", "handover-watch-0"], set()),
        (began_below, "commit-went-back", [FIRST, SECOND, SECOND], set()),
        (began_beyond, "skipped-poll", [FIRST, SECOND, SECOND], {"unseen"}),
        (
            watermark_below_another,
            "watermark-went-back",
            ["queue-assign-uncommitted-0", "queue-assign-uncommitted-1"],
            set(),
        ),
        (watermark_below_a_send, "watermark-went-back", ["handover-send-0", "queue-assign-uncommitted-0"], set()),
        (
            watermark_below_a_poll,
            "watermark-went-back",
            ["queue-assign-0", "queue-assign-uncommitted-0"],
            {"nonmonotonic-send", "lost-write"},
        ),
        (out_of_range, "watermark-went-back", ["queue-assign-0"], set()),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_an_anomaly_is_found(
    run: Run, plant: Callable[[Run], None], kind: str, shown: list[str], also: set[str]
) -> None:
    plant(run)
    run.final(KEY, LOG)
    checked = run.check("handover")
    assert (kind, shown) in [(one[0], one[2]) for one in found(checked)], found(checked)
    assert set(checked.found) <= {kind, *also}, found(checked)
