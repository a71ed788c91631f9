"""Thousands of operations of clients of a sound cluster: no anomalies; and whatever is planted among them is found."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tidelog.torture.anomalies import Checked
from tidelog.torture.checker import check
from tidelog.torture.history import Operation
from torture_model import Model

SEED = int(os.environ.get("HISTORIES_SEED", "1"))
SEEDS = int(os.environ.get("HISTORIES_SEEDS", "20"))
STEPS = 1500


def checked(model: Model, directory: Path) -> Checked:
    model.write(directory)
    return check("run", sorted(directory.glob("*.jsonl")))


@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_what_a_sound_cluster_shows_is_sound(tmp_path: Path, seed: int) -> None:
    model = Model(seed)
    model.run(STEPS)
    found = checked(model, tmp_path)
    assert [(one.kind, one.key, one.detail) for one in found.anomalies] == []
    # The histories contain what could be mistaken for anomalies.
    for count in (
        "sends_acknowledged",
        "sends_unknown_found",
        "sends_failed",
        "transactions_aborted",
        "transactions_unknown_found",
        "lookups",
        "commits",
        "rebalances",
        "lists",
        "table_scans",
    ):
        assert found.counts[count] > 0, count


def rows(model: Model, f: str, *, least: int = 1, process: str = "run-") -> list[Operation]:
    """Successful operations whose first event has so many records."""
    return [
        row
        for row in model.rows
        if row.f == f
        and row.outcome == "ok"
        and row.process.startswith(process)
        and row.events
        and (f not in ("poll", "final", "send") or len(row.events[0][2]) >= least)
    ]


def drop_from_final(model: Model, rng: random.Random) -> None:
    sent = rng.choice(rows(model, "send")).events[0]
    for f in ("final", "final-uncommitted"):
        for row in rows(model, f, process=f"run-{f}"):
            _, key, offsets, values = row.events[0]
            if key == sent[1]:
                place = values.index(sent[2][0])
                del offsets[place], values[place]


def double_in_final(model: Model, rng: random.Random) -> None:
    _, _, offsets, values = rng.choice(rows(model, "final")).events[0]
    offsets.append(offsets[-1] + 50)
    values.append(rng.choice(values))


def swap_in_final(model: Model, rng: random.Random) -> None:
    values = rng.choice(rows(model, "final", least=2)).events[0][3]
    place = rng.randrange(len(values) - 1)
    values[place], values[place + 1] = values[place + 1], values[place]


def swap_in_poll(model: Model, rng: random.Random) -> None:
    _, _, offsets, values = rng.choice(rows(model, "poll", least=2)).events[0]
    place = rng.randrange(len(values) - 1)
    for part in (offsets, values):
        part[place], part[place + 1] = part[place + 1], part[place]


def drop_from_poll(model: Model, rng: random.Random) -> None:
    polls = rows(model, "poll", least=3, process="run-assign-0")
    _, _, offsets, values = rng.choice(polls).events[0]
    place = rng.randrange(1, len(values) - 1)
    del offsets[place], values[place]


def change_in_poll(model: Model, rng: random.Random) -> None:
    rng.choice(rows(model, "poll")).events[0][3][0] += 1


def invent_in_final(model: Model, rng: random.Random) -> None:
    _, _, offsets, values = rng.choice(rows(model, "final")).events[0]
    offsets.append(offsets[-1] + 50)
    values.append(777 << 32)


def show_aborted(model: Model, rng: random.Random) -> None:
    aborted = [row for row in model.rows if row.f == "txn" and row.outcome == "fail" and row.events[-1][0] == "send"]
    _, key, values, offsets = rng.choice(aborted).events[-1]
    (final,) = (row for row in rows(model, "final") if row.events[0][1] == key)
    _, _, shown, there = final.events[0]
    place = sum(offset < offsets[0] for offset in shown)
    shown.insert(place, offsets[0])
    there.insert(place, values[0])


def move_in_time(model: Model, rng: random.Random) -> None:
    """A send that got the last offsets was over before the first ones were sent."""
    sends = [row for row in rows(model, "send") if row.events[0][1] == "q-0"]
    last = max(sends, key=lambda row: row.events[0][3][0])
    last.start_ns, last.end_ns = -20, -10


def lower_commit(model: Model, rng: random.Random) -> None:
    commits = [row for row in rows(model, "commit") if row.events[0][1] == "q-0"]
    max(commits, key=lambda row: row.start_ns).events[0][2] = 0


def lower_watermark(model: Model, rng: random.Random) -> None:
    lookups = [row for row in rows(model, "lookup") if row.events[0][1] == "q-0"]
    max(lookups, key=lambda row: row.start_ns).events[0][2] = 0


def keep_both_owners(model: Model, rng: random.Random) -> None:
    """A member that gave a partition up long ago commits after all others."""
    callbacks = [row for row in model.rows if row.f == "rebalance" and row.process.startswith("run-member")]
    first = next(row for row in callbacks if row.events[0] == ["assigned", ["q-0"]])
    own = [row for row in model.rows if row.process == first.process]
    for row in own:
        if row.f in ("rebalance", "commit") and row is not first and "q-0" in str(row.events):
            model.rows.remove(row)
    model.now_ns += 10
    end = max(row.events[0][2] for row in rows(model, "commit") if row.events[0][1] == "q-0")
    model.note(first.process, "commit", "ok", model.now_ns, [["commit", "q-0", end]])


def forget_in_list(model: Model, rng: random.Random) -> None:
    lists = [event for row in rows(model, "txn") for event in row.events if event[0] == "list" and len(event[2]) > 1]
    del rng.choice(lists)[2][0]


def read_the_future(model: Model, rng: random.Random) -> None:
    """The first of two transactions that append to one list reads what the second one appended."""
    appending = [row for row in rows(model, "txn") if any(event[:2] == ["append", "l-0"] for event in row.events)]
    (final,) = (row for row in rows(model, "final") if row.events[0][1] == "l-0")
    appending[0].events.insert(0, ["list", "l-0", list(final.events[0][3])])


def stale_row(model: Model, rng: random.Random) -> None:
    (final,) = rows(model, "table", process="run-table-final")
    put = max((row for row in rows(model, "put") if row.events[0][3] is not None), key=lambda row: row.events[0][4])
    final.events[:] = [event for event in final.events if event[3] != put.events[0][2]]
    # Nobody deleted it afterwards.
    model.rows[:] = [
        row
        for row in model.rows
        if row.f != "put" or row.events[0][3] is not None or row.events[0][2] != put.events[0][2]
    ]


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (drop_from_final, "lost-write"),
        (double_in_final, "duplicate"),
        (swap_in_final, "inconsistent-offset"),
        (swap_in_poll, "reordered-poll"),
        (drop_from_poll, "skipped-poll"),
        (change_in_poll, "inconsistent-offset"),
        (invent_in_final, "phantom"),
        (show_aborted, "aborted-read"),
        (move_in_time, "nonmonotonic-send"),
        (lower_commit, "commit-went-back"),
        (lower_watermark, "watermark-went-back"),
        (keep_both_owners, "two-owners"),
        (forget_in_list, "skipped-poll"),
        (read_the_future, "G1c"),
        (stale_row, "lost-update-of-table"),
    ],
)
@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_what_is_planted_is_found(
    tmp_path: Path, plant: Callable[[Model, random.Random], None], kind: str, seed: int
) -> None:
    model = Model(seed)
    model.run(STEPS)
    plant(model, random.Random(seed))
    assert kind in checked(model, tmp_path).found
