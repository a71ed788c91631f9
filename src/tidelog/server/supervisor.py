"""Several brokers on one machine, a process each, and the process that starts, watches and restarts them.

What always holds: one line containing `ready on HOST:PORT` is printed once every broker serves clients; a broker that
ends by itself is started again, after a pause that grows with each failure in a row, and the log says why it ended; a
first start that fails ends everything with the broker's own exit code. SIGTERM or SIGINT stops the brokers one after
another, so that each can hand its partitions to those that still run, and the exit code is 0; a second signal kills
what is left. Brokers whose supervisor is killed stop by themselves (`serve`).

It knows nothing of what brokers do: it watches processes and the line that they print.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Final

from tidelog.common.light_dataclass import dataclass
from tidelog.server.supervision import SUPERVISOR_PID

logger = logging.getLogger(__name__)

RESTART_PAUSE_S_MIN: Final = 0.1
"""A broker that died once, such as by kill -9, is back within a second."""

RESTART_PAUSE_S_MAX: Final = 10.0
HEALTHY_AFTER_S: Final = 30.0
"""A broker that served for this long starts over with the shortest pause."""

_READY: Final = " ready on "
_KILL_GRACE_S: Final = 60.0
"""How long a broker may take to stop: it flushes all it has. Then it is killed, which loses nothing that was answered
either, but makes the next start slower."""


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """How one broker is started."""

    node_id: int
    command: Sequence[str]


@dataclass(slots=True)
class _Broker:
    plan: BrokerPlan
    process: asyncio.subprocess.Process | None = None
    address: str = ""
    failures: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return f"broker {self.plan.node_id}"


class CannotStartError(Exception):
    """A broker ended before it was ready for the first time; it has said why."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Supervisor:
    """Runs brokers until it is told to stop."""

    def __init__(
        self,
        plans: Sequence[BrokerPlan],
        *,
        environment: Mapping[str, str] | None = None,
        prefix_logs: bool = True,
        print_line: Callable[[str], object] = print,
    ) -> None:
        """`prefix_logs`: begin every log line with the broker it is from."""
        self._brokers = [_Broker(plan) for plan in plans]
        self._environment = {**(os.environ if environment is None else environment), SUPERVISOR_PID: str(os.getpid())}
        self._prefix_logs = prefix_logs
        self._print_line = print_line
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def pid(self, node_id: int) -> int | None:
        """The process of a broker, if it runs."""
        broker = next(each for each in self._brokers if each.plan.node_id == node_id)
        return None if broker.process is None or broker.process.returncode is not None else broker.process.pid

    def stop(self) -> None:
        """Have `run` stop all brokers and return; a second call kills them."""
        if self._stopping.is_set():
            for broker in self._brokers:
                if broker.process is not None:
                    with suppress(ProcessLookupError):
                        broker.process.kill()
        self._stopping.set()

    async def run(self) -> int:
        """Start all brokers and keep them running until `stop`; returns the exit code."""
        keepers = [asyncio.create_task(self._keep(broker)) for broker in self._brokers]
        stopping = asyncio.create_task(self._stopping.wait())
        announcing = asyncio.create_task(self._announce())
        try:
            await asyncio.wait([stopping, *keepers], return_when=asyncio.FIRST_COMPLETED)
            failed = [keeper for keeper in keepers if keeper.done() and keeper.exception() is not None]
            announcing.cancel()
            self._stopping.set()
            await self._stop_in_turn()
            await asyncio.gather(*keepers, return_exceptions=True)
            for keeper in failed:
                error = keeper.exception()
                if isinstance(error, CannotStartError):
                    return error.exit_code
                assert error is not None
                raise error
            return 0
        finally:
            stopping.cancel()
            announcing.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _announce(self) -> None:
        for broker in self._brokers:
            await broker.ready.wait()
        count = len(self._brokers)
        self._print_line(f"tidelog cluster of {count} brokers ready on {self._brokers[0].address}")

    async def _keep(self, broker: _Broker) -> None:
        """Start a broker, and start it again whenever it ends by itself."""
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started_s = loop.time()
            code = await self._run_once(broker)
            if self._stopping.is_set():
                return
            if not broker.address:
                raise CannotStartError(code if code > 0 else 1)
            if loop.time() - started_s >= HEALTHY_AFTER_S:
                broker.failures = 0
            pause_s = min(RESTART_PAUSE_S_MIN * 2**broker.failures, RESTART_PAUSE_S_MAX)
            broker.failures += 1
            logger.error("%s %s; starting it again in %.1f s", broker.name, _ending(code), pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _run_once(self, broker: _Broker) -> int:
        process = broker.process = await asyncio.create_subprocess_exec(
            *broker.plan.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if self._prefix_logs else None,
            env=self._environment,
            # Ctrl-C goes to the supervisor alone, which stops the brokers in order.
            start_new_session=True,
        )
        assert process.stdout is not None
        readers = [asyncio.create_task(self._read_output(broker, process.stdout))]
        if process.stderr is not None:
            readers.append(asyncio.create_task(self._pass_on(broker, process.stderr)))
        self._tasks.update(readers)
        for reader in readers:
            reader.add_done_callback(self._tasks.discard)
        code = await process.wait()
        # A process that the broker started may hold its pipes open; what the broker itself wrote is there by now.
        await asyncio.wait(readers, timeout=1.0)
        return code

    async def _read_output(self, broker: _Broker, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            text = line.decode(errors="replace").rstrip()
            if _READY in text:
                is_back = broker.ready.is_set()
                broker.address = text.rpartition(_READY)[2]
                broker.ready.set()
                if is_back:
                    logger.info("%s is back on %s", broker.name, broker.address)
            elif text:
                self._print_line(f"{broker.name}: {text}")

    async def _pass_on(self, broker: _Broker, errors: asyncio.StreamReader) -> None:
        while line := await errors.readline():
            sys.stderr.write(f"[{broker.name}] {line.decode(errors='replace')}")
            sys.stderr.flush()

    async def _stop_in_turn(self) -> None:
        """The last one first: brokers find each other by the first ones' addresses."""
        for broker in reversed(self._brokers):
            process = broker.process
            if process is None or process.returncode is not None:
                continue
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_KILL_GRACE_S):
                    await process.wait()
            except TimeoutError:
                logger.error("%s does not stop within %g s and is killed", broker.name, _KILL_GRACE_S)
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by signal {signal.Signals(-code).name}"
    return f"ended by itself with exit code {code}"


def brokers_count(text: str) -> int:
    """What `--brokers` says: a number, or `auto` for one broker a core. Raises ValueError."""
    if text == "auto":
        return max(1, len(os.sched_getaffinity(0)))
    if not text.isdecimal() or not 1 <= int(text) <= _BROKERS_MAX:
        raise ValueError(f"--brokers takes a number from 1 to {_BROKERS_MAX}, or auto for one a core, not {text!r}")
    return int(text)


_BROKERS_MAX: Final = 100


async def supervise(supervisor: Supervisor) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    return await supervisor.run()
