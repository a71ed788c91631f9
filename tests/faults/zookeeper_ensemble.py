"""A real ZooKeeper ensemble on loopback, whose servers tests kill, stop and start again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import TracebackType

from tidelog.bench.brokers import free_port
from tidelog.common.endpoint import Endpoint
from tidelog.server.zookeeper_process import ZooKeeperPlan, ZooKeeperProcess

_READY_S_MAX = 120.0


class Ensemble:
    """Servers numbered from 1, all started at once; a context manager that stops them."""

    def __init__(self, directory: Path, servers: int) -> None:
        ports = [free_port() for _ in range(3 * servers)]
        self._endpoints = [Endpoint("PLAINTEXT", "127.0.0.1", port) for port in ports[:servers]]
        peers = [
            f"127.0.0.1:{peer}:{election}"
            for peer, election in zip(ports[servers : 2 * servers], ports[2 * servers :], strict=True)
        ]
        self._plans = [
            ZooKeeperPlan(endpoint, directory / f"server-{number}", number, peers if servers > 1 else ())
            for number, endpoint in enumerate(self._endpoints, start=1)
        ]
        self._processes: dict[int, ZooKeeperProcess] = {}

    @property
    def address(self) -> str:
        """For `--metadata`, without a path."""
        return "zookeeper://" + ",".join(f"{endpoint.host}:{endpoint.port}" for endpoint in self._endpoints)

    def __enter__(self) -> Ensemble:
        try:
            for number in range(1, len(self._plans) + 1):
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

    def kill(self, number: int) -> None:
        """End a server as a crash would."""
        process = self._processes.pop(number)
        os.kill(process.pid, signal.SIGKILL)
        process.stop()

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
                    raise RuntimeError(f"ZooKeeper server {number} ended with exit code {process.exit_code}")
                if process.is_serving():
                    del waiting[number]
            if waiting and time.monotonic() > deadline_s:
                raise RuntimeError(f"ZooKeeper servers {sorted(waiting)} are not ready after {_READY_S_MAX:g} s")
            time.sleep(0.05)

    def _mode(self, number: int) -> bytes:
        return self._processes[number].status()
