"""`tidelog` commands in processes of their own that are forked from one which has imported everything.

A Python that starts and imports a command's modules takes 0.2 s of processor time, which is most of what a command
takes. What always holds: a command has its own process, with its own standard streams, environment, directory, signals
and exit code, and ends as the interpreter does. What it does not show: that a command imports what it needs, and what a
start costs; tests of closed streams, of terminals, of signals and of a broker that runs start Python as users do.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import IO, NamedTuple, Self

_STREAMS = 3
# Commands import what they need of these when they run.
_IMPORTED_PACKAGES = (
    "tidelog.client.admin",
    "tidelog.client.consumer",
    "tidelog.client.network",
    "tidelog.client.producer",
    "tidelog.protocol.messages",
)


class Ended(NamedTuple):
    code: int
    out: bytes
    err: bytes


class WarmCommands:
    """The process that commands are forked from; one command runs at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._answers = ours.makefile("r", encoding="ascii")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._answers.close()
        self._process.wait()

    def run(
        self, arguments: tuple[str, ...], environment: Mapping[str, str], stdin: bytes | int, deadline_s: float
    ) -> Ended:
        """Run `tidelog` with these arguments to its end; raises TimeoutError if it has to be killed."""
        request = {"arguments": arguments, "environment": dict(environment), "directory": os.getcwd()}
        with contextlib.ExitStack() as ours:
            given: int | None = None
            if isinstance(stdin, bytes):
                read, given = os.pipe()
            else:
                read = os.dup(stdin)
            pipes = [os.pipe(), os.pipe()]
            theirs = [read, *(writer for _, writer in pipes)]
            socket.send_fds(self._socket, [b"\n"], theirs)
            self._socket.sendall(json.dumps(request).encode("ascii") + b"\n")
            for fd in theirs:
                os.close(fd)
            pid = int(self._answers.readline())
            killed = threading.Event()
            readers = [_Reader(ours.enter_context(open(fd, "rb"))) for fd, _ in pipes]
            timer = threading.Timer(deadline_s, _kill, (pid, killed))
            timer.start()
            try:
                if given is not None:
                    with contextlib.suppress(BrokenPipeError), open(given, "wb") as pipe:
                        pipe.write(stdin if isinstance(stdin, bytes) else b"")
                out, err = (reader.result() for reader in readers)
                code = int(self._answers.readline())
            finally:
                timer.cancel()
        if killed.is_set():
            raise TimeoutError(f"tidelog {' '.join(arguments)} took more than {deadline_s} s: {out!r} {err!r}")
        return Ended(code, out, err)


class _Reader:
    """Reads one stream to its end, while other streams are read and written."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._read = b""
        self._thread = threading.Thread(target=self._run, args=(pipe,))
        self._thread.start()

    def _run(self, pipe: IO[bytes]) -> None:
        self._read = pipe.read()

    def result(self) -> bytes:
        self._thread.join()
        return self._read


def _kill(pid: int, killed: threading.Event) -> None:
    killed.set()
    os.kill(pid, signal.SIGKILL)


def _serve(channel: socket.socket) -> None:
    """Fork for each request; returns in the child, whose standard streams and environment are those of the request."""
    requests = channel.makefile("rb", buffering=0)
    while True:
        received, fds, _, _ = socket.recv_fds(channel, 1, _STREAMS)
        if not received:
            os._exit(0)
        request = json.loads(requests.readline())
        pid = os.fork()
        if pid == 0:
            for stream, fd in enumerate(fds):
                os.dup2(fd, stream)
                os.close(fd)
            channel.detach()
            os.chdir(request["directory"])
            os.environ.clear()
            os.environ.update(request["environment"])
            sys.argv = ["tidelog", *request["arguments"]]
            return
        for fd in fds:
            os.close(fd)
        channel.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        channel.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def main() -> None:
    from tidelog.cli.main import build_app
    from tidelog.cli.main import main as tidelog

    build_app()
    for package in _IMPORTED_PACKAGES:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    assert len(os.listdir("/proc/self/task")) == 1, "a forked process would be without this process's threads"
    gc.freeze()  # a collection would copy all pages into each of them
    _serve(socket.socket(fileno=int(sys.argv[1])))
    tidelog()


if __name__ == "__main__":
    main()
