"""Sends and the log: each anomaly is found and named with the operations that show it, and nothing else is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.torture import anomalies
from tidelog.torture.checker import check
from tidelog.torture.history import HistoryError
from torture_histories import STRANGE, A, B, C, D, E, Run, found

KEY = "q-0"


def base(run: Run) -> None:
    """A sound beginning: three sends by two workers."""
    run.send("queue-send-0", KEY, [A, B], [0, 1])
    run.send("queue-send-1", KEY, [C], [2])


def test_a_sound_history_has_no_anomalies_and_is_counted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    base(run)
    run.send("queue-send-0", KEY, [D], [None], "unknown")
    run.send("queue-send-0", KEY, [E], [None], "fail")
    run.poll("queue-assign-0", KEY, {0: A, 1: B})
    run.poll("queue-assign-0", KEY, {2: C, 3: D})
    run.final(KEY, {0: A, 1: B, 2: C, 3: D})
    run.final(KEY, {0: A, 1: B, 2: C, 3: D}, "final-uncommitted")
    checked = run.check()
    assert found(checked) == []
    assert checked.is_sound
    assert checked.counts == {
        "operations": 8,
        "partitions": 1,
        "sends_acknowledged": 3,
        "sends_unknown": 1,
        "sends_unknown_found": 1,
        "sends_failed": 1,
        "records_polled": 4,
        "final_records": 4,
    }


def lost(run: Run) -> None:
    run.final(KEY, {0: A, 2: C})


def lost_though_read(run: Run) -> None:
    run.send("queue-send-1", KEY, [D], [None], "unknown")
    run.poll("queue-assign-0", KEY, {0: A, 1: B, 2: C, 3: D})
    run.add("queue-assign-0", "assign", [["assign", []]])
    run.final(KEY, {0: A, 1: B, 2: C})


def lost_though_read_uncommitted(run: Run) -> None:
    run.add("q-worker-0", "txn", [["send", KEY, [D], [3]]], "fail")
    run.poll("queue-assign-uncommitted-0", KEY, {0: A, 1: B, 2: C, 3: D})
    run.final(KEY, {0: A, 1: B, 2: C})
    run.final(KEY, {0: A, 1: B, 2: C}, "final-uncommitted")


def lost_with_the_partition(run: Run) -> None:
    run.send("queue-send-1", "q-1", [D], [0])
    run.final(KEY, {0: A, 1: B, 2: C})


def doubled(run: Run) -> None:
    run.final(KEY, {0: A, 1: B, 2: C, 3: A})


def moved(run: Run) -> None:
    run.final(KEY, {0: A, 1: B, 3: C})


def moved_after_a_poll(run: Run) -> None:
    run.send("queue-send-1", KEY, [D], [None], "unknown")
    run.poll("queue-assign-0", KEY, {0: A, 1: B, 2: C, 4: D})
    run.final(KEY, {0: A, 1: B, 2: C, 3: D})


def two_acknowledged_at_one_offset(run: Run) -> None:
    run.send("queue-send-0", KEY, [D], [2])
    run.final(KEY, {0: A, 1: B, 2: C, 3: D})


def polled_another_value(run: Run) -> None:
    run.poll("queue-assign-0", KEY, {0: A, 1: C})
    run.final(KEY, {0: A, 1: B, 2: C})


def two_values_beyond_the_log(run: Run) -> None:
    run.add("q-worker-0", "txn", [["send", KEY, [D], [4]]], "fail")
    run.final(KEY, {0: A, 1: B, 2: C})
    run.add("q-assign-uncommitted-0", "poll", [["poll", KEY, [0, 1, 2, 4], [A, B, C, D]]])
    run.final(KEY, {0: A, 1: B, 2: C, 4: E}, "final-uncommitted")


def burst_in_disorder(run: Run) -> None:
    run.send("queue-send-0", KEY, [D, E], [4, 3])
    run.final(KEY, {0: A, 1: B, 2: C, 3: E, 4: D})


def back_in_time(run: Run) -> None:
    run.send("queue-send-0", KEY, [D], [4])
    run.send("queue-send-1", KEY, [E], [3])
    run.final(KEY, {0: A, 1: B, 2: C, 3: E, 4: D})


def back_in_time_of_one_process(run: Run) -> None:
    run.send("queue-send-0", KEY, [D], [4], at=(100, 130))
    run.send("queue-send-0", KEY, [E], [3], at=(110, 140))
    run.final(KEY, {0: A, 1: B, 2: C, 3: E, 4: D})


def below_what_was_read(run: Run) -> None:
    run.send("queue-send-0", KEY, [D], [4], at=(100, 200))
    run.poll("queue-assign-0", KEY, {0: A, 1: B, 2: C, 4: D}, at=(110, 120))
    run.send("queue-send-1", KEY, [E], [None], "unknown", at=(130, 140))
    run.final(KEY, {0: A, 1: B, 2: C, 3: E, 4: D})


def below_another_transaction(run: Run) -> None:
    run.add("q-worker-0", "txn", [["send", KEY, [D], [4]]])
    run.add("q-worker-1", "txn", [["send", KEY, [E], [3]]])
    run.final(KEY, {0: A, 1: B, 2: C, 3: E, 4: D})


def invented(run: Run) -> None:
    run.final(KEY, {0: A, 1: B, 2: C, 3: STRANGE})


def invented_in_a_poll(run: Run) -> None:
    run.poll("queue-assign-0", KEY, {0: A, 1: B, 2: C, 3: STRANGE})
    run.final(KEY, {0: A, 1: B, 2: C})


def failed_send_is_there(run: Run) -> None:
    run.send("queue-send-1", KEY, [D], [None], "fail")
    run.final(KEY, {0: A, 1: B, 2: C, 3: D})


def aborted_is_there(run: Run) -> None:
    run.add("q-worker-0", "txn", [["send", KEY, [D], [3]]], "fail")
    run.final(KEY, {0: A, 1: B, 2: C, 3: D})


def aborted_was_polled(run: Run) -> None:
    run.add("q-worker-0", "txn", [["send", KEY, [D], [3]]], "fail")
    run.poll("queue-assign-0", KEY, {0: A, 1: B, 2: C, 3: D})
    run.final(KEY, {0: A, 1: B, 2: C})


def failed_send_was_polled_uncommitted(run: Run) -> None:
    run.send("queue-send-1", KEY, [D], [None], "fail")
    run.poll("queue-assign-uncommitted-0", KEY, {0: A, 1: B, 2: C, 3: D})
    run.final(KEY, {0: A, 1: B, 2: C})


def held_back(run: Run) -> None:
    run.add("q-worker-0", "txn", [["send", KEY, [D], [3]]])
    run.final(KEY, {0: A, 1: B, 2: C})
    run.final(KEY, {0: A, 1: B, 2: C, 3: D}, "final-uncommitted")


def final_contradicts_itself(run: Run) -> None:
    run.final(KEY, {0: A, 1: B, 2: C})
    run.final(KEY, {2: D})


def final_is_in_disorder(run: Run) -> None:
    run.final(KEY, {0: A, 2: C, 1: B})


@pytest.mark.parametrize(
    ("plant", "kind", "key", "shown"),
    [
        (lost, "lost-write", KEY, ["queue-send-0"]),
        (lost_though_read, "lost-write", KEY, ["queue-assign-0", "queue-send-1"]),
        (lost_though_read_uncommitted, "lost-write", KEY, ["queue-assign-uncommitted-0", "q-worker-0"]),
        (lost_with_the_partition, "lost-write", "q-1", ["queue-send-1"]),
        (doubled, "duplicate", KEY, ["queue-send-0", "run-final"]),
        (moved, "duplicate", KEY, ["queue-send-1"]),
        (moved_after_a_poll, "duplicate", KEY, ["queue-assign-0", "queue-send-1"]),
        (two_acknowledged_at_one_offset, "inconsistent-offset", KEY, ["queue-send-0", "run-final"]),
        (polled_another_value, "inconsistent-offset", KEY, ["queue-assign-0", "run-final"]),
        (two_values_beyond_the_log, "inconsistent-offset", KEY, ["q-assign-uncommitted-0", "run-final-uncommitted"]),
        (burst_in_disorder, "nonmonotonic-send", KEY, ["queue-send-0"]),
        (back_in_time, "nonmonotonic-send", KEY, ["queue-send-0", "queue-send-1"]),
        (back_in_time_of_one_process, "nonmonotonic-send", KEY, ["queue-send-0", "queue-send-0"]),
        (below_what_was_read, "nonmonotonic-send", KEY, ["queue-assign-0", "queue-send-1"]),
        (below_another_transaction, "G0", KEY, ["q-worker-0", "q-worker-1"]),
        (invented, "phantom", KEY, ["run-final"]),
        (invented_in_a_poll, "phantom", KEY, ["queue-assign-0"]),
        (failed_send_is_there, "aborted-read", KEY, ["queue-send-1", "run-final"]),
        (aborted_is_there, "aborted-read", KEY, ["q-worker-0", "run-final"]),
        (aborted_was_polled, "aborted-read", KEY, ["q-worker-0", "queue-assign-0"]),
        (failed_send_was_polled_uncommitted, "aborted-read", KEY, ["queue-send-1", "queue-assign-uncommitted-0"]),
        (held_back, "unseen", KEY, ["q-worker-0"]),
        (final_contradicts_itself, "inconsistent-offset", KEY, ["run-final"]),
        (final_is_in_disorder, "reordered-poll", KEY, ["run-final"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_an_anomaly_is_found(
    tmp_path: Path, plant: Callable[[Run], None], kind: str, key: str, shown: list[str]
) -> None:
    run = Run(tmp_path)
    base(run)
    plant(run)
    checked = run.check()
    assert (kind, key, shown) in found(checked), found(checked)
    # Two sides of one mistake may both be named, no others.
    assert set(checked.found) <= {kind, *ALSO.get(plant, set())}


# Moving a record makes it stand at two offsets; one offset with two values loses one of them.
ALSO: dict[Callable[[Run], None], set[str]] = {
    two_acknowledged_at_one_offset: {"nonmonotonic-send"},
    below_what_was_read: {"skipped-poll", "unseen"},
    polled_another_value: {"stuck-consumer", "unseen"},
    two_values_beyond_the_log: {"aborted-read", "lost-write"},
    moved_after_a_poll: {"stuck-consumer", "skipped-poll"},
    final_contradicts_itself: {"phantom"},
}


def test_unknown_and_unnoted_sends_may_or_may_not_be_there(tmp_path: Path) -> None:
    run = Run(tmp_path)
    base(run)
    run.send("queue-send-0", KEY, [D], [None], "unknown")
    run.send("queue-send-0", KEY, [E], [None], "unknown")
    run.final(KEY, {0: A, 1: B, 2: C, 3: D, 4: E + 100})  # its worker was killed before it noted the last
    checked = run.check()
    assert found(checked) == []
    assert checked.counts["sends_unknown_found"] == 1
    assert checked.counts["sends_unnoted"] == 1


@pytest.mark.parametrize("value", [A - 1, E + 10_001, (9 << 32) + 1, -4])
def test_a_value_that_no_killed_worker_can_have_sent_is_a_phantom(tmp_path: Path, value: int) -> None:
    run = Run(tmp_path)
    base(run)
    run.send("queue-send-0", KEY, [D, E], [3, 4])
    run.final(KEY, {0: A, 1: B, 2: C, 3: D, 4: E, 5: value})
    assert found(run.check()) == [("phantom", KEY, ["run-final"])]


def test_sends_that_overlap_may_get_any_order(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.send("queue-send-0", KEY, [A], [1], at=(0, 20))
    run.send("queue-send-1", KEY, [B], [0], at=(20, 40))
    run.final(KEY, {0: B, 1: A})
    assert found(run.check()) == []


def test_gaps_of_markers_and_aborted_records_are_no_anomaly(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.add("q-worker-0", "txn", [["send", KEY, [A, B], [0, 1]]])
    run.add("q-worker-0", "txn", [["send", KEY, [C], [3]]], "fail")
    run.add("q-worker-0", "txn", [["send", KEY, [D], [5]]])
    run.poll("q-assign-0", KEY, {0: A, 1: B, 5: D})
    run.poll("q-assign-uncommitted-0", KEY, {0: A, 1: B, 3: C, 5: D})
    run.final(KEY, {0: A, 1: B, 5: D})
    run.final(KEY, {0: A, 1: B, 3: C, 5: D}, "final-uncommitted")
    assert found(run.check()) == []


def test_without_a_final_read_nothing_counts_as_lost(tmp_path: Path) -> None:
    run = Run(tmp_path)
    base(run)
    run.poll("queue-assign-0", KEY, {0: A})
    run.add("run-final", "final", [], "fail", error="gave up")
    checked = run.check()
    assert found(checked) == []
    assert checked.counts["final_incomplete"] == 1


def test_a_final_read_that_was_started_again_counts_as_a_whole(tmp_path: Path) -> None:
    run = Run(tmp_path)
    base(run)
    run.final(KEY, {0: A})
    run.add("run-final", "final", [], "fail", error="gave up")
    run.add("run-final.1", "final", [["poll", KEY, [0, 1, 2], [A, B, C]]])
    assert found(run.check()) == []


def test_of_thousands_a_few_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    values = [(2 << 32) + number for number in range(3000)]
    run.send("queue-send-0", KEY, values, list(range(3000)))
    run.final(KEY, {0: values[0]})
    checked = run.check()
    assert checked.found == {"lost-write": 2999}
    assert len(checked.anomalies) == 5
    shown = checked.anomalies[3].operations[0].events[0]
    assert shown == ["send", KEY, values[1:8], list(range(1, 8))]  # what stands around the fourth that was lost


def test_a_log_that_is_all_wrong_is_counted(tmp_path: Path) -> None:
    count = 30_000
    run = Run(tmp_path)
    sent = [(2 << 32) + number for number in range(count)]
    run.send("queue-send-0", KEY, sent[::2], list(range(0, count, 2)))
    run.send("queue-send-0", KEY, sent[1::2], [None] * (count // 2), "fail")
    run.poll("queue-assign-0", KEY, dict(enumerate(sent[::-1])))
    run.poll("queue-assign-1", KEY, {offset: sent[offset] for offset in range(0, count, 3)})
    run.final(KEY, {offset: sent[offset] if offset % 4 else (800 << 32) + offset for offset in range(count)})
    checked = run.check()
    assert {kind: number for kind, number in checked.found.items() if number > count // 8} == {
        "inconsistent-offset": 30_000 + 2_500 + 7_500,  # of the first poller, of the second one, of sends
        "aborted-read": 15_000,
        "lost-write": 7_500,
        "phantom": 7_500,
        "skipped-poll": 9_999,
        "unseen": 7_500,
    }
    assert max(Counter((one.kind, one.key) for one in checked.anomalies).values()) == 5


def test_progress_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path)
    base(run)
    run.check()
    told: list[str] = []
    check("queue", sorted(tmp_path.glob("*.jsonl")), told.append)
    assert told == ["checked 1 of 1 partitions", "checked all transactions"]


def test_a_damaged_history_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    base(run)
    run.check()
    (tmp_path / "queue-send-1.jsonl").write_text("[1]\n[2]\n")
    with pytest.raises(HistoryError, match=r"queue-send-1\.jsonl, line 1: not a list of operation"):
        check("queue", sorted(tmp_path.glob("*.jsonl")))


def test_every_kind_is_explained() -> None:
    explained = (anomalies.__doc__ or "").split("What is counted")[0]
    assert {kind for kind in anomalies.KINDS if f"\n    {kind} " not in explained} == set()
