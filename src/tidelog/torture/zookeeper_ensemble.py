"""A real ZooKeeper ensemble whose servers are killed, stopped and started again.

What always holds: a server keeps its address and its data over restarts; `stop` ends all of them, the hung ones too.
Servers listen on loopback, or each in a network of its own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tidelog.bench.brokers import LOOPBACK, free_port
from tidelog.common.endpoint import Endpoint
from tidelog.server.zookeeper_process import ZooKeeperPlan, ZooKeeperProcess
from tidelog.torture.errors import TortureError

_READY_S_MAX = 120.0


class Ensemble:
    """Servers numbered from 1, all started at once; a context manager that stops them."""

    def __init__(
        self,
        directory: Path,
        servers: int,
        *,
        hosts: Sequence[str] = (),
        prefixes: Sequence[Sequence[str]] = (),
        logs: bool = False,
    ) -> None:
        """`hosts` are their addresses and `prefixes` the commands that enter their networks, if these are not loopback.

        With `logs`, what each one says is in a file `server-NUMBER.log`; else it goes where this process's errors go.
        """
        self.hosts = tuple(hosts) or (LOOPBACK,) * servers
        self._endpoints = [Endpoint("PLAINTEXT", host, free_port()) for host in self.hosts]
        peers = [f"{host}:{free_port()}:{free_port()}" for host in self.hosts]
        self._plans = [
            ZooKeeperPlan(
                endpoint,
                directory / f"server-{number}",
                number,
                peers if servers > 1 else (),
                prefix=tuple(prefixes[number - 1]) if prefixes else (),
                log_path=directory / f"server-{number}.log" if logs else None,
            )
            for number, endpoint in enumerate(self._endpoints, start=1)
        ]
        self._processes: dict[int, ZooKeeperProcess] = {}

    @property
    def address(self) -> str:
        """For `--metadata`, without a path."""
        return "zookeeper://" + ",".join(f"{endpoint.host}:{endpoint.port}" for endpoint in self._endpoints)

    @property
    def numbers(self) -> range:
        return range(1, len(self._plans) + 1)

    def __enter__(self) -> Self:
        try:
            for number in self.numbers:
                self.start(number)
            self.wait_until_serving()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, number: int) -> None:
        process = ZooKeeperProcess(self._plans[number - 1])
        process.start()
        self._processes[number] = process

    def pid_of(self, number: int) -> int | None:
        """None for a server that does not run."""
        process = self._processes.get(number)
        return None if process is None or process.exit_code is not None else process.pid

    def exit_code_of(self, number: int) -> int | None:
        """Of a server that ended by itself."""
        process = self._processes.get(number)
        return None if process is None else process.exit_code

    def is_serving(self, number: int) -> bool:
        """Whether a server answers clients: that takes a majority."""
        return number in self._processes and self._processes[number].is_serving()

    def kill(self, number: int) -> None:
        """End a server as a crash would."""
        process = self._processes.pop(number, None)
        if process is not None:
            if process.exit_code is None:
                os.kill(process.pid, signal.SIGKILL)
            process.stop()

    def stop_one(self, number: int, kill_after_s: float = 10.0) -> None:
        """End a server in order."""
        process = self._processes.pop(number, None)
        if process is not None:
            process.stop(kill_after_s)

    def pause(self) -> list[int]:
        """Stop all servers where they are, until `resume` gets what this returns."""
        pids = [process.pid for process in self._processes.values()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    def resume(self, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        self.wait_until_serving()

    def stop(self) -> None:
        for process in self._processes.values():
            if process.exit_code is None:
                os.kill(process.pid, signal.SIGCONT)
            process.stop()
        self._processes.clear()

    def leader(self) -> int | None:
        """The server that leads, if there is one."""
        return next((number for number in self._processes if b"Mode: leader" in self._mode(number)), None)

    def wait_until_serving(self) -> None:
        """Wait until all servers that run answer clients."""
        deadline_s = time.monotonic() + _READY_S_MAX
        waiting = dict(self._processes)
        while waiting:
            for number, process in tuple(waiting.items()):
                if process.exit_code is not None:
                    raise TortureError(f"ZooKeeper server {number} ended with exit code {process.exit_code}")
                if process.is_serving():
                    del waiting[number]
            if waiting and time.monotonic() > deadline_s:
                raise TortureError(f"ZooKeeper servers {sorted(waiting)} are not ready after {_READY_S_MAX:g} s")
            time.sleep(0.05)

    def _mode(self, number: int) -> bytes:
        return self._processes[number].status()
