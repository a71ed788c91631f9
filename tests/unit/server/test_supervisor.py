"""The supervisor of several brokers, over small programs that behave as brokers do."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from tidelog.server import supervisor as supervisor_module
from tidelog.server.supervisor import BrokerPlan, Supervisor, brokers_count

# It notes its start and its end in a file, and serves until SIGTERM.
BROKER = """
import os, signal, sys, time
name, journal = sys.argv[1:3]
def note(what):
    with open(journal, "a") as file:
        file.write(f"{what} {name}\\n")
def stop(*_):
    note("stopped")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
note("started")
print(f"tidelog broker {name} ready on 127.0.0.1:{9000 + int(name)}", flush=True)
print("a log line", file=sys.stderr, flush=True)
while True:
    signal.pause()
"""
REFUSES = "import sys; print('tidelog: the port is taken', file=sys.stderr); sys.exit(2)"


P = ParamSpec("P")


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a coroutine as a test."""

    @functools.wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        asyncio.run(test(*args, **options))

    return run


class Watched:
    """A supervisor under test: what it printed, and what its brokers noted."""

    def __init__(self, journal: Path, programs: dict[int, str]) -> None:
        self.journal = journal
        self.lines: list[str] = []
        self.printed = asyncio.Event()
        plans = [
            BrokerPlan(node_id, [sys.executable, "-c", program, str(node_id), str(journal)])
            for node_id, program in programs.items()
        ]
        self.supervisor = Supervisor(plans, print_line=self._print)

    def _print(self, line: str) -> None:
        self.lines.append(line)
        self.printed.set()

    def noted(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - files and processes tell nobody
                await asyncio.sleep(0.01)


@on_a_loop
async def test_one_line_says_that_all_are_ready_and_all_stop_in_turn(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "journal", dict.fromkeys((1, 2, 3), BROKER))
    running = asyncio.create_task(watched.supervisor.run())
    await watched.printed.wait()
    assert watched.lines == ["tidelog cluster of 3 brokers ready on 127.0.0.1:9001"]
    watched.supervisor.stop()
    assert await running == 0
    assert watched.noted()[-3:] == ["stopped 3", "stopped 2", "stopped 1"]


@on_a_loop
async def test_a_killed_broker_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger=supervisor_module.__name__)
    watched = Watched(tmp_path / "journal", {1: BROKER, 2: BROKER})
    running = asyncio.create_task(watched.supervisor.run())
    await watched.printed.wait()
    back = "broker 2 is back on 127.0.0.1:9002"
    for times in (2, 3):
        pid = watched.supervisor.pid(2)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await watched.until(lambda times=times: watched.noted().count("started 2") == times)  # type: ignore[misc]
        # One that is killed before it is ready is never reported to be back.
        await watched.until(lambda times=times: caplog.text.count(back) == times - 1)  # type: ignore[misc]
    assert "broker 2 was ended by signal SIGKILL; starting it again in 0.1 s" in caplog.text
    assert "broker 2 was ended by signal SIGKILL; starting it again in 0.2 s" in caplog.text
    watched.supervisor.stop()
    assert await running == 0
    assert watched.noted().count("started 1") == 1
    assert watched.lines == ["tidelog cluster of 2 brokers ready on 127.0.0.1:9001"]


@on_a_loop
async def test_a_broker_that_can_t_start_ends_all_with_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watched(tmp_path / "journal", {1: BROKER, 2: REFUSES})
    assert await watched.supervisor.run() == 2
    assert "[broker 2] tidelog: the port is taken" in capsys.readouterr().err
    assert watched.supervisor.pid(1) is None
    assert not watched.lines


@on_a_loop
async def test_a_second_stop_kills(tmp_path: Path) -> None:
    stubborn = BROKER.replace("def stop(*_):", "def stop(*_):\n    note('refused')\n    return")
    watched = Watched(tmp_path / "journal", {1: stubborn})
    running = asyncio.create_task(watched.supervisor.run())
    await watched.printed.wait()
    watched.supervisor.stop()
    await watched.until(lambda: "refused 1" in watched.noted())
    watched.supervisor.stop()
    assert await running == 0
    assert watched.supervisor.pid(1) is None


def test_the_number_of_brokers() -> None:
    assert brokers_count("3") == 3
    assert brokers_count("auto") == len(os.sched_getaffinity(0))
    for text in ("0", "-1", "three", "101", ""):
        with pytest.raises(ValueError, match="--brokers takes a number"):
            brokers_count(text)
