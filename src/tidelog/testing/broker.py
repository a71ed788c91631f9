"""A real broker for tests: its own thread and event loop, a free port, a temporary directory.

What always holds: it serves what `tidelog serve` serves, over a socket, with the same settings except for
TEST_SETTINGS; `stop` and `start` keep port and data, `crash` loses what a killed process would lose; when the `with`
block ends, thread, port and temporary directory are gone. With a VirtualClock the broker's own time stands still until
the test advances it; waits that clients ask for stay real.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

from tidelog.common.clock import Clock, SystemClock
from tidelog.common.closing import Closing
from tidelog.common.event_loop import new_event_loop
from tidelog.controller.requests import NewTopic
from tidelog.server.server import BrokerServer
from tidelog.server.settings_load import load

T = TypeVar("T")

# Settings that differ from `tidelog serve`, unless the test sets them: a test knows its consumers, so a classic group
# need not wait three seconds for more of them.
TEST_SETTINGS: Mapping[str, object] = {"group.initial.rebalance.delay.ms": 0}

_DEADLINE_S = 60.0


class Broker(Closing):
    """A broker that a test starts, stops and inspects.

    >>> with Broker(settings={"num.partitions": 3}) as broker:
    ...     host, _, port = broker.bootstrap.partition(":")
    >>> host
    '127.0.0.1'
    """

    def __init__(
        self,
        clock: Clock | None = None,
        settings: Mapping[str, object] | None = None,
        data_dir: Path | str | None = None,
        port: int = 0,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.port: int = port
        self._given_settings = {**TEST_SETTINGS, **(settings or {})}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if data_dir is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tidelog-", ignore_cleanup_errors=True)
            data_dir = self._temporary.name
        self.data_dir: Path = Path(data_dir)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: BrokerServer | None = None
        self._end: asyncio.Future[Callable[[BrokerServer], Coroutine[Any, Any, None]]] | None = None
        self._ended: Future[None] = Future()

    @property
    def bootstrap(self) -> str:
        """What clients take as bootstrap.servers."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    @property
    def server(self) -> BrokerServer:
        """The broker's inside; use `call` to touch it on its own thread."""
        if self._server is None:
            raise RuntimeError("the broker is not running")
        return self._server

    def start(self) -> Self:
        """Start it and wait until it serves clients; after a stop it comes back with the same port and data."""
        if self._thread is not None:
            raise RuntimeError("the broker runs already")
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="tidelog-broker", daemon=True)
        self._thread.start()
        try:
            started.result(_DEADLINE_S)
        except BaseException:
            self._join()
            raise
        return self

    def stop(self) -> None:
        """Shut it down as SIGTERM would; it keeps its data and port."""
        self._finish(BrokerServer.stop)

    def crash(self) -> None:
        """Kill it as kill -9 would, as far as its files and clients can tell; `start` brings it back."""
        self._finish(BrokerServer.abort)

    def close(self) -> None:
        """Stop it if it is running, and remove its temporary directory."""
        if self._thread is not None:
            self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def call(self, make: Callable[[BrokerServer], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the broker's own event loop and return its result."""
        if self._loop is None:
            raise RuntimeError("the broker is not running")
        return asyncio.run_coroutine_threadsafe(make(self.server), self._loop).result(_DEADLINE_S)

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str | None] | None = None) -> None:
        """Create a topic without a client; raises ValueError if the broker refuses."""
        topic = NewTopic(name, partitions=partitions, replication_factor=1, configs=dict(configs or {}))

        async def create(server: BrokerServer) -> None:
            (result,) = await server.services.controller.create_topics([topic])
            if result.error:
                raise ValueError(f"topic {name!r} was not created: {result.message or result.error.name}")
            await server.services.replicas.wait_until_opened([result.topic_id])

        self.call(create)

    def __enter__(self) -> Self:
        if self._thread is None:
            self.start()
        return self

    def _run(self, started: Future[None]) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._main(started))

    async def _main(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_future()
        try:
            options = {"listeners": [f"PLAINTEXT://127.0.0.1:{self.port}"]} | self._given_settings
            server = BrokerServer(load(options=options), self.data_dir, self.clock)
            await server.start()
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits for the start
            started.set_exception(error)
            return
        self.port = server.endpoint.port
        self._server = server
        started.set_result(None)
        end = await self._end
        self._server = None
        try:
            await end(server)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits for the end
            self._ended.set_exception(error)
            return
        self._ended.set_result(None)

    def _finish(self, how: Callable[[BrokerServer], Coroutine[Any, Any, None]]) -> None:
        if self._loop is None or self._end is None:
            raise RuntimeError("the broker is not running")
        self._ended = Future()
        self._loop.call_soon_threadsafe(self._end.set_result, how)
        try:
            self._ended.result(_DEADLINE_S)
        finally:
            self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join(_DEADLINE_S)
            self._thread = None
        self._loop = None
        self._end = None
