"""`tidelog replay` as far as it goes without Spark: what it refuses, and ranges without events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker

Command = Any  # the class lives in the conftest, which can't be imported


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where replays are kept; commands have it as their working directory's default, which is left alone."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tidelog-pipelines"


def test_topics_that_are_missing_or_the_same(tidelog: Command, topic: str, state: Path) -> None:
    assert "there is no topic nowhere to replay" in tidelog("replay", "nowhere", "--into", topic).refused()
    missing = tidelog("replay", topic, "--into", "nowhere").refused()
    assert "tidelog topics create nowhere --partitions 3" in missing
    assert "--create" in missing
    assert "--same-topic" in tidelog("replay", topic, "--into", topic).refused()
    assert not state.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--from", "soon"], "'soon' is not a position in a topic"),
        (["--to", "-5x"], "'-5x' is not a time before now"),
        (["--from", "20", "--to", "10"], "the end is not after the start"),
        (["--from", "7:1"], "the topic has no partition 7"),
        (["--rate", "fast"], "'fast' is not a rate"),
        (["--at", "noon"], "'noon' is not a time of day"),
        (["--between", "1-2"], "not a time of day"),
        (["--name", "a/b"], "can't be a directory name"),
        (["--map", "nothing.py:f"], "there is no file nothing.py"),
        (["--map", "nothing.py"], "is not a function"),
    ],
)
def test_options_that_can_not_be_meant(
    tidelog: Command, topic: str, state: Path, options: list[str], words: str
) -> None:
    assert words in tidelog("replay", topic, "--into", f"{topic}-x", "--create", *options).refused(2)
    assert not (state / "replays").exists() or not list((state / "replays").glob("*/replay.json"))


def test_functions_that_are_not_there(tidelog: Command, topic: str, state: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "other.py").write_text("value = 1\n")
    arguments = ("replay", topic, "--into", f"{topic}-x", "--create")
    assert "broken.py:1: ModuleNotFoundError" in tidelog(*arguments, "--map", "broken.py:f").refused(2)
    assert "other.py has no function value" in tidelog(*arguments, "--transform", "other.py:value").refused(2)


def test_a_range_without_events_needs_no_spark(
    tidelog: Command, shared_broker: Broker, topic: str, state: Path
) -> None:
    into = f"{topic}-again"
    lines = tidelog("replay", topic, "--into", into, "--create").ok().text.splitlines()
    assert lines[0].startswith(f"replay {topic}-into-{into}-")
    assert ": 0 offsets of " in lines[0]
    assert lines[1].startswith("replayed 0 events in ")
    document = tidelog("replay", topic, "--into", into, "--json").ok().json()
    assert (document["offsets"], document["written"]) == (0, 0)
    assert document["finished_ms"] is not None
    kept = json.loads((state / "replays" / document["name"] / "replay.json").read_text())
    assert kept["finished_ms"] == document["finished_ms"], "it was finished by the first command"
    assert tidelog("replay", topic, "--into", into).ok().text.splitlines()[-1].startswith("nothing left to do")
    assert [row["topic"] for row in tidelog("topics", "list", "--json").ok().json() if row["topic"] == into] == [into]


def test_a_dry_run_of_nothing(tidelog: Command, topic: str, state: Path) -> None:
    into = f"{topic}-again"
    text = tidelog("replay", topic, "--into", into, "--create", "--rate", "10", "--dry-run").ok().text
    assert text.splitlines()[-1] == "nothing was written"
    assert "at 10 rows/s it takes at least 0.00 s" in text
    assert not state.exists()
    assert into not in [row["topic"] for row in tidelog("topics", "list", "--json").ok().json()]
