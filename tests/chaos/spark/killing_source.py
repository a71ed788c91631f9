"""The format `tidelog`, whose tasks and commits die, or have others die, at requests that a test has chosen.

A test leaves faults as files in a directory, and whichever process comes first takes one: `write-7-sent-kill` is for a
task, which is killed once its seventh request to the broker is sent. See `Victim` for who is killed.
"""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelog.client.network.connection import Connection
from tidelog.spark.data_source import TidelogDataSource
from tidelog.spark.sink import StreamSink, make_stream_writer

FAULTS_OPTION = "faultsDirectory"


class Victim(enum.Enum):
    """Who is killed with -9."""

    PROCESS = "process"  # the Python process itself: a task's worker, or the one that commits
    JVM = "jvm"  # the JVM above it: a task's executor
    DRIVER = "driver"  # the driver, and with it all that it started
    BROKER = "broker"


class SparkFault(NamedTuple):
    kind: str  # write or commit
    request: int
    moment: str  # before, sent or answered
    victim: Victim

    @property
    def file_name(self) -> str:
        return f"{self.kind}-{self.request}-{self.moment}-{self.victim.value}"

    @classmethod
    def parse(cls, file_name: str) -> SparkFault:
        kind, request, moment, victim = file_name.split("-")
        return cls(kind, int(request), moment, Victim(victim))


class KillingSource(TidelogDataSource):
    """Registered in place of the format."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        options = {name: value for name, value in self.options.items() if name.lower() != FAULTS_OPTION.lower()}
        return KillingSink(make_stream_writer(schema, options, overwrite)._settings, Path(self.options[FAULTS_OPTION]))


class KillingSink(StreamSink):
    def __init__(self, settings: Any, faults: Path) -> None:
        super().__init__(settings)
        self._faults = faults

    def write(self, iterator: Iterator[Any]) -> Any:
        _requests(self._faults).expect("write")
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        _requests(self._faults).expect("commit")
        super().commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        _requests(self._faults).expect("abort")
        super().abort(messages, batchId)


class _Requests:
    def __init__(self, faults: Path) -> None:
        self._faults = faults
        self._fault: SparkFault | None = None
        self._count = 0
        self._send = Connection.send
        hooked: Any = self._hooked
        Connection.send = lambda connection, *args, **kwargs: hooked(connection, *args, **kwargs)  # type: ignore[method-assign]

    def expect(self, kind: str) -> None:
        self._count, self._fault = 0, None
        for path in sorted(self._faults.glob(f"{kind}-*")):
            taken = path.with_name(f"taken-by-{os.getpid()}-{path.name}")
            try:
                path.rename(taken)
            except FileNotFoundError:
                continue  # another process was faster
            self._fault = SparkFault.parse(path.name)
            return

    def _hooked(self, connection: Connection, *args: Any, **kwargs: Any) -> Any:
        self._count += 1
        fault = self._fault
        if fault is None or self._count != fault.request:
            return self._send(connection, *args, **kwargs)
        self._fault = None
        if fault.moment == "before":
            self._strike(fault)
        answer: Any = self._send(connection, *args, **kwargs)
        if fault.moment == "sent":
            self._strike(fault)
        elif fault.moment == "answered":
            answer.add_done_callback(lambda _: self._strike(fault))
        return answer

    def _strike(self, fault: SparkFault) -> None:
        (self._faults / f"struck-{os.getpid()}-{fault.file_name}").touch()
        if fault.victim is Victim.PROCESS:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.victim is Victim.JVM:
            os.kill(_parent(os.getppid()), signal.SIGKILL)  # above the daemon that forks workers
        elif fault.victim is Victim.DRIVER:
            os.killpg(int((self._faults / "driver.pid").read_text()), signal.SIGKILL)
        else:
            os.kill(int((self._faults / "broker.pid").read_text()), signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


_hook: _Requests | None = None


def _requests(faults: Path) -> _Requests:
    global _hook
    if _hook is None:
        _hook = _Requests(faults)
    return _hook
