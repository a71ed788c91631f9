"""The `tidelog` command as a process, and a broker for a module's tests to share."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from warm_commands import WarmCommands

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker

DEADLINE_S = 60
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    def json(self) -> Any:  # whatever the document holds
        return json.loads(self.out)

    def ok(self) -> Result:
        assert self.code == 0, self.err
        assert self.err == ""
        return self

    def refused(self, code: int = 1) -> str:
        """Asserts one line of complaint and no traceback; gives the line."""
        assert self.code == code, self
        assert self.err.startswith("tidelog: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err


class Command:
    """Runs `tidelog` in processes of its own against one broker."""

    def __init__(self, bootstrap: str, warm: WarmCommands) -> None:
        self.bootstrap = bootstrap
        self._warm = warm
        self._started = ExitStack()

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}
        return inherited | {"TIDELOG_BOOTSTRAP": self.bootstrap, "COLUMNS": "100"}

    def __call__(self, *arguments: str, stdin: bytes | int = b"") -> Result:
        """A command to its end, in a process that need not import anything first."""
        code, out, err = self._warm.run(arguments, self.environment(), stdin, DEADLINE_S)
        return Result(code, out, err.decode())

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command that goes on, started as users do; killed after the test when it still runs."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog", *arguments],
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._started.enter_context(process)
        self._started.callback(_kill, process)
        return process

    def close(self) -> None:
        self._started.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()


@pytest.fixture(scope="session")
def warm_commands() -> Iterator[WarmCommands]:
    """What commands are forked from."""
    with WarmCommands() as warm:
        yield warm


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[Broker]:
    """One broker for a module; tests use topics of their own, with records as old as they like."""
    from tidelog.testing.broker import Broker

    with Broker(settings={"log.initial.task.delay.ms": DAY_MS, "log.retention.check.interval.ms": DAY_MS}) as broker:
        yield broker


@pytest.fixture
def tidelog(shared_broker: Broker, warm_commands: WarmCommands) -> Iterator[Command]:
    """The command against the module's broker."""
    command = Command(shared_broker.bootstrap, warm_commands)
    yield command
    command.close()


@pytest.fixture
def make_command(warm_commands: WarmCommands) -> Iterator[Callable[[str], Command]]:
    """The command against a broker of the test's choice."""
    with ExitStack() as commands:

        def make(bootstrap: str) -> Command:
            command = Command(bootstrap, warm_commands)
            commands.callback(command.close)
            return command

        yield make


_numbers = itertools.count()


@pytest.fixture
def topic(shared_broker: Broker) -> str:
    """A fresh topic with three partitions on the module's broker."""
    name = f"topic{next(_numbers)}"
    shared_broker.create_topic(name, 3)
    return name
