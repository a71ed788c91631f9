"""Runs a broker as a process: event loop, signals, one line on standard output, exit code.

What always holds: exactly one line containing `ready on HOST:PORT` is printed once clients are served; SIGTERM or
SIGINT leads to a controlled shutdown and exit code 0, and a second one ends the process immediately; a broker that
can't start says why in one line on standard error and exits with code 2. A broker of which a background task fails ends
as by a crash, with code 1: without that task it may serve what is no longer true, and who watches it can restart it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from tidelog.common.background import BACKGROUND_TASK
from tidelog.common.event_loop import new_event_loop
from tidelog.common.settings import SettingError, Settings
from tidelog.server.garbage import GarbagePauses
from tidelog.server.logging_setup import set_up_logging
from tidelog.server.server import DEFAULT_DATA_DIR, BrokerServer, StartError
from tidelog.server.supervision import SUPERVISOR_PID

EXIT_OK = 0
EXIT_CANNOT_START = 2
_EXIT_FAILED = 1
_EXIT_AT_ONCE = 130
_PARENT_CHECK_S = 1.0

logger = logging.getLogger(__name__)


def run(
    settings: Settings, *, data_dir: Path = DEFAULT_DATA_DIR, log_level: str = "info", log_json: bool = False
) -> int:
    """Serve until a signal says to stop; returns the exit code."""
    set_up_logging(log_level, as_json=log_json)
    _raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(settings, data_dir))
    except (StartError, SettingError) as error:
        print(f"tidelog: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    return EXIT_OK


def _raise_file_limit() -> None:
    """Raise the limit of open files as far as allowed: every connection and every partition in use needs one."""
    wanted, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    except (OSError, ValueError) as error:
        logger.warning("can't raise the limit of %d open files: %s", wanted, error)


async def _serve(settings: Settings, data_dir: Path) -> None:
    asyncio.get_running_loop().set_exception_handler(_end_without_background_task)
    stop = _stop_on_signals()
    server = BrokerServer(settings, data_dir)
    await server.start()
    GarbagePauses(asyncio.get_running_loop()).start()
    endpoint = server.endpoint
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    print(f"tidelog broker {server.node_id} ready on {host}:{endpoint.port}", flush=True)
    orphaned = asyncio.create_task(_stop_without_supervisor(stop))
    await stop.wait()
    orphaned.cancel()
    logger.info("shutting down")
    await server.stop()
    logger.info("shut down cleanly")


def _end_without_background_task(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if BACKGROUND_TASK not in context:
        loop.default_exception_handler(context)
        return
    # Everything acknowledged is where a crash leaves it, too; nothing that is still running can be trusted to stop.
    logger.critical("the broker stops because its task %r has failed", context[BACKGROUND_TASK])
    logging.shutdown()
    os._exit(_EXIT_FAILED)


async def _stop_without_supervisor(stop: asyncio.Event) -> None:
    """A broker of a supervised cluster ends with its supervisor, or nobody would know about it."""
    supervisor_pid = os.environ.get(SUPERVISOR_PID)
    while supervisor_pid is not None:
        if os.getppid() != int(supervisor_pid):
            logger.warning("the supervisor of this broker is gone")
            stop.set()
            return
        await asyncio.sleep(_PARENT_CHECK_S)


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(_EXIT_AT_ONCE)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop
