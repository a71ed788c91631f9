"""A process that Spark would run: a Python worker with its tasks, or the one that commits. It can be told when to die.

It obeys commands from a pipe, one at a time, with the sink's own code. A command may bring a fault: what happens at
which of the requests that it makes to the broker, before it is sent, once it is sent, or once it is answered.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import planted_mistakes
from tidelog.client.network.connection import Connection
from tidelog.spark import sink, sink_tasks
from tidelog.spark.sink_identity import TaskReport
from tidelog.spark.sink_settings import SinkSettings


class Action(enum.Enum):
    KILL = "this process is killed"
    KILL_BROKER = "the broker is killed"
    STOP = "this process is stopped, and woken much later"


class Moment(enum.Enum):
    BEFORE = "before it is sent"
    SENT = "once it is sent"
    ANSWERED = "once it is answered"


class Fault(NamedTuple):
    action: Action
    request: int  # counted from 1, for each command anew
    moment: Moment
    api: str = ""  # the requests that are counted, as EndTxnRequest; all of them if empty


class Write(NamedTuple):
    settings: SinkSettings
    properties: dict[str, str]
    partition: int
    values: Sequence[str]
    is_repeated: bool
    fault: Fault | None


class End(NamedTuple):
    settings: SinkSettings
    reports: Sequence[TaskReport | None]
    is_commit: bool
    fault: Fault | None


class Done(NamedTuple):
    result: Any


class Failed(NamedTuple):
    error: str


class _Requests:
    """All requests of this process: counted, and the fault when it is due."""

    def __init__(self, broker_pid_file: Path) -> None:
        self._broker_pid_file = broker_pid_file
        self._fault: Fault | None = None
        self._count = 0
        self._send = Connection.send
        hooked: Any = self._hooked
        Connection.send = lambda connection, *args, **kwargs: hooked(connection, *args, **kwargs)  # type: ignore[method-assign]

    def expect(self, fault: Fault | None) -> None:
        self._fault, self._count = fault, 0

    def _hooked(self, connection: Connection, *args: Any, **kwargs: Any) -> Any:
        fault = self._fault
        if fault is not None and fault.api in ("", type(args[1]).__name__):
            self._count += 1
        if fault is None or self._count != fault.request:
            return self._send(connection, *args, **kwargs)
        self._fault = None
        if fault.moment is Moment.BEFORE:
            self._strike(fault.action)
        answer: Any = self._send(connection, *args, **kwargs)
        if fault.moment is Moment.SENT:
            self._strike(fault.action)
        elif fault.moment is Moment.ANSWERED:
            answer.add_done_callback(lambda _: self._strike(fault.action))
        return answer

    def _strike(self, action: Action) -> None:
        if action is Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif action is Action.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            with contextlib.suppress(ProcessLookupError):  # another process was faster
                os.kill(int(self._broker_pid_file.read_text()), signal.SIGKILL)


def main(pipe: Pipe, broker_pid_file: Path, mistake: str | None) -> None:
    """Obey until the pipe is closed."""
    requests = _Requests(broker_pid_file)
    if mistake is not None:
        planted_mistakes.plant(mistake)
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            os._exit(0)  # as Spark ends its workers: clients are not closed
        requests.expect(command.fault)
        answer: Done | Failed
        try:
            answer = Done(_obey(command))
        except Exception as error:  # noqa: BLE001  # whatever a task or commit raises, Spark goes on
            answer = Failed(f"{type(error).__name__}: {error}")
        requests.expect(None)
        pipe.send(answer)


def _obey(command: Write | End) -> Any:
    if isinstance(command, Write):
        half = (len(command.values) + 1) // 2
        batches = [_rows(command.values[:half]), _rows(command.values[half:])]
        return sink_tasks.write_rows(
            command.settings, command.properties, command.partition, iter(batches), is_repeated=command.is_repeated
        )
    driver = sink._driver(command.settings)
    end: Callable[..., Any] = driver.commit if command.is_commit else driver.abort
    return sink._run(command.settings, end(command.settings, command.reports))


def _rows(values: Sequence[str]) -> pa.RecordBatch:
    return pa.record_batch(
        {"key": pa.array(values, pa.string()), "value": pa.array([value.encode() for value in values], pa.binary())}
    )
