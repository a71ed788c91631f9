"""What is kept of a replay: it comes back as it was, and another command is not taken for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from power_cut import PowerCut
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.event_replay.range import OffsetRange
from tidelog.pipeline.event_replay.state import Counts, ReplaySpec, ReplayState, ReplayStore

SPEC = ReplaySpec("orders", "orders-again", "-2h", "latest", filter="offset % 2 = 0", map="fix.py:fix")


def state() -> ReplayState:
    ranges = {0: OffsetRange(5, 20), 1: OffsetRange(0, 10), 2: OffsetRange(3, 3)}
    return ReplayState("nightly", SPEC, "cluster-1", "abc", ranges, 1_700_000_000_000)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    store, saved = ReplayStore(tmp_path, "nightly"), state()
    assert store.load() is None
    store.save(saved)
    assert store.load() == saved
    saved.begin_chunk({0: OffsetRange(5, 9), 1: OffsetRange(0, 2)})
    store.save(saved)
    assert store.load() == saved
    saved.end_chunk(Counts(6, 5, 1))
    saved.finished_ms = 1_700_000_000_500
    store.save(saved)
    assert store.load() == saved
    assert saved.done == {0: 9, 1: 2, 2: 3}
    assert (saved.offsets_done, saved.offsets_total, saved.chunk_number) == (6, 25, 1)
    assert [path.name for path in store.directory.iterdir()] == ["replay.json"]


def test_it_is_there_after_a_power_cut(tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    saved = state()
    with PowerCut(before) as cut:
        for number in range(3):
            ReplayStore(before, "nightly").save(saved)
            assert ReplayStore(cut.leave(tmp_path / f"after-{number}"), "nightly").load() == saved
            saved.begin_chunk({0: OffsetRange(5 + number, 6 + number)})
        kept = ReplayStore(before, "nightly").set_aside(saved)
    after = cut.leave(tmp_path / "after")
    assert ReplayStore(after, "nightly").load() is None
    assert (after / kept.relative_to(before)).stat().st_size > 0


def test_counts_add_up() -> None:
    replay = state()
    for _ in range(2):
        replay.begin_chunk({0: OffsetRange(replay.done[0], replay.done[0] + 1)})
        replay.end_chunk(Counts(3, 2, 1))
    assert replay.counts == Counts(6, 4, 2)
    assert replay.done[0] == 7


def test_another_command_is_another_replay() -> None:
    names = {SPEC.default_name()}
    for field in dataclasses.fields(SPEC):
        changed: Any = True if field.name == "by_key" else "x"
        other = dataclasses.replace(SPEC, **{field.name: changed})
        names.add(other.default_name())
        assert state().difference_from(other, "cluster-1", "abc") is not None
    assert len(names) == 1 + len(dataclasses.fields(SPEC))
    assert SPEC.default_name() == dataclasses.replace(SPEC).default_name()
    assert SPEC.default_name().startswith("orders-into-orders-again-")


def test_a_changed_function_or_cluster_is_noticed() -> None:
    assert state().difference_from(SPEC, "cluster-1", "abc") is None
    assert state().difference_from(SPEC, None, "abc") is None
    assert "cluster-2" in (state().difference_from(SPEC, "cluster-2", "abc") or "")
    assert "changed" in (state().difference_from(SPEC, "cluster-1", "def") or "")


def test_a_finished_replay_is_set_aside(tmp_path: Path) -> None:
    store = ReplayStore(tmp_path, "nightly")
    store.save(state())
    kept = store.set_aside(state())
    assert kept.exists()
    assert store.load() is None


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": 99}', '{"format": 1}'])
def test_a_file_that_can_not_be_read_is_told_of(tmp_path: Path, content: str) -> None:
    store = ReplayStore(tmp_path, "nightly")
    store.directory.mkdir(parents=True)
    store.path.write_text(content)
    with pytest.raises(PipelineError, match=r"replay\.json"):
        store.load()
