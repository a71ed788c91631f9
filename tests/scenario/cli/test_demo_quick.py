"""`tidelog demo --quick` shows a true round trip and leaves nothing behind, however it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker

Command = Any  # the class lives in the conftest, which can't be imported


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command makes its temporary directories."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_it_reads_what_it_wrote(tidelog: Command, temporary: Path) -> None:
    document = tidelog("demo", "--quick", "--json", "--seconds", "0.1").ok().json()
    assert document["verified"] is True
    assert document["consume"]["records"] == document["produce"]["records"] + document["round_trips"]["count"]
    assert document["consume"]["bytes"] > document["consume"]["records"] * 100
    assert 0 < document["round_trips"]["p50_ms"] <= document["round_trips"]["p99_ms"]
    assert document["start_seconds"] > 0
    assert document["bootstrap"] != tidelog.bootstrap, "the environment's broker is left alone"
    assert not list(temporary.iterdir())


def test_lines_for_people(tidelog: Command, temporary: Path) -> None:
    lines = tidelog("demo", "--quick", "--seconds", "0.1").ok().text.splitlines()
    starts = ["started a broker", "created topic", "sent", "wrote", "read", "compared: all", "Everything"]
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)


def test_another_broker_gets_its_topic_deleted_again(tidelog: Command, shared_broker: Broker) -> None:
    demo = tidelog("demo", "--quick", "--json", "--seconds", "0.1", "--bootstrap", shared_broker.bootstrap).ok().json()
    topic = demo["topic"]
    assert topic not in [row["topic"] for row in tidelog("topics", "list", "--json").ok().json()]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_early_end_leaves_nothing_behind(
    tidelog: Command,
    temporary: Path,
    wait_until: Callable[[Callable[[], bool], str], None],
    number: signal.Signals,
    code: int,
) -> None:
    process = tidelog.start("demo", "--quick", "--seconds", "60")
    assert process.stdout.readline().startswith(b"started a broker")
    (broker,) = psutil.Process(process.pid).children()
    assert process.stdout.readline().startswith(b"created topic")
    process.send_signal(number)
    process.wait(30)
    assert (process.returncode, process.stderr.read()) == (code, b"")
    wait_until(lambda: not broker.is_running(), "the demo's broker still runs")
    assert not list(temporary.iterdir())


def test_a_broker_that_is_not_there(tidelog: Command) -> None:
    assert "127.0.0.1:1" in tidelog("demo", "--quick", "--bootstrap", "127.0.0.1:1").refused()
