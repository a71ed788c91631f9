from __future__ import annotations

import io
import sys
import time

import pytest

from tidelog.cli.progress import Durations, is_watched, progress, steps


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Somebody watches standard error; standard output goes elsewhere.

    Not a fixture: pytest sets both anew between those and the test.
    """
    shown = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    return shown


def test_nobody_watches_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not is_watched()


def test_a_bar_does_not_run_through_results(monkeypatch: pytest.MonkeyPatch) -> None:
    watched(monkeypatch)
    assert is_watched()
    assert is_watched(prints=True)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert is_watched()
    assert not is_watched(prints=True)


@pytest.mark.parametrize("total", [10.0, None])
def test_a_bar_says_what_is_done(monkeypatch: pytest.MonkeyPatch, total: float | None) -> None:
    terminal = watched(monkeypatch)
    with progress("copying", total, shown=True) as advance:
        advance(5, "5 of them")
        advance(99, "99 of them")
    assert "99 of them" in terminal.getvalue()
    assert ("100%" in terminal.getvalue()) == (total is not None)


def test_what_is_not_shown_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    with progress("copying", 10, shown=False) as advance:
        advance(5, "5 of them")
    assert terminal.getvalue() == ""


def test_steps_are_told_and_the_last_one_stays_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    told: list[str] = []
    with steps(told.append) as tell:
        tell("measuring [1]")
        tell("measuring [2]")
    assert told == ["measuring [1]", "measuring [2]"]
    assert "measuring [2]" in terminal.getvalue()


def test_without_a_terminal_steps_are_only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    told: list[str] = []
    with steps(told.append) as tell:
        tell("measuring")
    assert told == ["measuring"]


def test_the_steps_that_took_longest_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    durations = Durations()
    assert durations.summary() == "took 0 s"
    for step, took_s in (("short", 1), ("  longest", 30), ("long", 20), ("none", 0)):
        assert durations.begin(step) == now_s - 1000.0
        now_s += took_s
    assert durations.summary(2) == "took 51 s, most of it: 30 s longest; 20 s long"
