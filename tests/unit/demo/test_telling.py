"""How the demo speaks, and what it says is missing."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
from pathlib import Path

import pytest

from tidelog.demo import story
from tidelog.demo.processes import DemoError
from tidelog.demo.telling import Teller


def test_chapters_commands_and_what_they_print(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(quietly=False)
    with teller.chapter("A [broker]"):
        teller.command("tidelog serve")
        teller.quote("x" * 500 + "\n" + "[bold]line[/]\n" * 50)
        teller.good("all is well")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == ["1. A [broker]", "   $ tidelog serve"]
    assert len(lines[3]) < 200
    assert lines[4] == "     [bold]line[/]", "what a command prints is no markup"
    assert lines[-3].strip() == "... and 27 more lines"
    assert lines[-2] == "   ✓ all is well"
    assert list(teller.chapters) == ["A [broker]"]


def test_nothing_is_said_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(quietly=True)
    with teller.chapter("A broker"):
        teller.say("ready")
    assert capsys.readouterr().out == ""
    assert teller.chapters["A broker"] >= 0


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> importlib.machinery.ModuleSpec | None:
        return None if name in ("pyspark", "matplotlib") else importlib.machinery.ModuleSpec(name, None)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(DemoError) as raised:
        story.check_pieces()
    assert "pip install 'tidelog[spark,charts]'" in str(raised.value)
    assert "openjdk-17-jre-headless" in str(raised.value)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/java")
    with pytest.raises(DemoError, match="pyspark and matplotlib") as raised:
        story.check_pieces()
    assert "openjdk" not in str(raised.value)


def test_java_may_be_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    story.check_pieces()


def test_the_second_version_differs_in_one_line() -> None:
    first, second = ((Path(story.__file__).parent / name).read_text() for name in story.FILES.values())
    assert story.lines_added(first, second).splitlines() == [
        "+ orders = orders.where(\"status != 'cancelled'\")  # version 1 counted what nobody paid for",
        "+ version=2,",
    ]
