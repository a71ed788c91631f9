"""Whole brokers as simulated processes: started, stopped, and killed at any moment.

What always holds: they are the brokers that `tidelog serve` runs, on real files, with the network, the time and the
threads of the simulation; after a kill its files are as it left them, its locks are free, and all else is gone. What a
broker takes from its surroundings, it gets from the `Machine` of the process that asks.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from simulated_clock import SimulatedClock
from simulated_disk import SimulatedDisk
from simulated_kill import KillSwitch
from simulated_loop import Process, SimulatedLoop
from simulated_network import SimulatedNetwork
from tidelog.broker import (
    coordinator_service,
    disk_room,
    group_loading,
    group_timers,
    half_closed,
    replica_fetcher,
    turns,
)
from tidelog.broker.handlers import k00_produce
from tidelog.client.address import Address
from tidelog.client.network import connection as connection_module
from tidelog.common import steps
from tidelog.common.endpoint import Endpoint
from tidelog.controller.requests import NewTopic
from tidelog.log import LogManager, boot_id
from tidelog.metadata import SqliteStore, Store
from tidelog.protocol import ErrorCode
from tidelog.server import server as server_module
from tidelog.server.server import BrokerServer
from tidelog.server.settings_load import load

T = TypeVar("T")

_FOR_EVER_S = 1e9


class SimulatedSqlThread:
    """The thread of a broker's metadata store: its calls run one after another, at times of the simulation's."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._process = loop.current
        # The loop runs the work of a pool with one thread in order.
        self._pool = ThreadPoolExecutor(1)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
                future.set_exception(error)

        self._loop.run_in_executor(self._pool, work)
        return future

    def repeat(self, call: Callable[[], object], interval_s: float) -> Callable[[], None]:
        is_stopped = False

        def beat() -> None:
            if not is_stopped:
                call()
                self._loop.schedule(self._process, self._loop.time() + interval_s, beat)

        def stop() -> None:
            nonlocal is_stopped
            is_stopped = True

        self._loop.schedule(self._process, self._loop.time() + interval_s, beat)
        return stop

    def shutdown(self) -> None:
        self._pool.shutdown(wait=False)


class Machines:
    """What brokers find around them: ports, the store, the clock, ids. Each process gets what belongs to it."""

    def __init__(self, loop: SimulatedLoop, network: SimulatedNetwork, kills: KillSwitch) -> None:
        self.loop = loop
        self.network = network
        self.kills = kills
        self._brokers: dict[Process, SimulatedBroker] = {}

    def add(self, process: Process, broker: SimulatedBroker) -> None:
        self._brokers[process] = broker

    def _boot_id(self) -> str:
        broker = self._brokers[self.loop.current]
        return f"{broker.host}-{broker.boots}"

    @contextmanager
    def installed(self, rng: random.Random) -> Iterator[None]:
        """While brokers and clients run."""
        loop, network = self.loop, self.network
        sendfile = os.sendfile

        def read_id(path: Path) -> str:
            return self._boot_id() if path == boot_id.BOOT_ID_PATH else real_read_id(path)

        real_read_id = boot_id._read

        def make_store(_: str, data_dir: Path) -> Store:
            return self._brokers[loop.current].make_store(data_dir)

        def make_logs(*args: Any) -> LogManager:
            return self._brokers[loop.current].make_logs(*args)

        def new_uuid() -> uuid.UUID:
            return uuid.UUID(int=rng.getrandbits(128), version=4)

        def bind(endpoint: Endpoint, **_: object) -> object:
            return network.listen((endpoint.host, endpoint.port))

        def send_file(out_fd: int, in_fd: int, offset: int, count: int) -> int:
            send = network.sendfile if network.owns(out_fd) else sendfile
            return send(out_fd, in_fd, offset, count)

        async def resolve(address: Address) -> list[Any]:
            return [(None, None, None, "", (address.host, address.port))]

        async def connect(family: object, kind: object, protocol: object, target: Any, *_: object) -> object:
            return await network.dial(target, may_be_late=True)

        with ExitStack() as patches:
            for where, name, instead in (
                (server_module, "make_store", make_store),
                (server_module, "LogManager", make_logs),
                (server_module, "bind", bind),
                (uuid, "uuid4", new_uuid),
                (os, "sendfile", send_file),
                (boot_id, "_read", read_id),
                (disk_room, "has_room", lambda _: not self.kills.is_full(loop.current.host)),
                (connection_module, "_resolve", resolve),
                (connection_module, "_connect_to", connect),
                (time, "monotonic", loop.time),
                (time, "monotonic_ns", lambda: math.ceil(loop.time() * 1e9)),
                (time, "time_ns", lambda: SimulatedClock(loop).now_ms() * 1_000_000),
                # How long work takes on this machine must not decide when it pauses for others.
                (turns, "SLICE_S", _FOR_EVER_S),
                (turns, "FRESH_WORK_S", _FOR_EVER_S),
                (turns, "SHORT_WORK_S", _FOR_EVER_S),
                (coordinator_service, "SLICE_S", _FOR_EVER_S),
                (group_timers, "SLICE_S", _FOR_EVER_S),
                # The small logs of coordinators are replayed in threads, as large ones are: others go on meanwhile.
                (group_loading, "_INLINE_BYTES_MAX", 0),
                (steps, "_PAUSE_AFTER_S", _FOR_EVER_S),
                (k00_produce, "_LOOP_S_MAX", _FOR_EVER_S),
                (replica_fetcher, "_TURN_S", _FOR_EVER_S),
                # The kernel knows nothing of simulated sockets.
                (half_closed, "select", SimpleNamespace()),
            ):
                patches.enter_context(mock.patch.object(where, name, instead))
            patches.enter_context(self.kills.installed())
            random.seed(rng.getrandbits(64))
            yield


class SimulatedBroker:
    """One broker and its restarts."""

    def __init__(
        self,
        machines: Machines,
        data_dir: Path,
        settings: Mapping[str, object],
        *,
        host: str = "broker",
        open_store: Callable[[], Store] | None = None,
    ) -> None:
        """`open_store` is for a store that brokers share; without it each has a SQLite file of its own."""
        self.process: Process | None = None
        self.starts = 0
        # Times the machine was switched on.
        self.boots = 1
        self.host = host
        self.clock = SimulatedClock(machines.loop)
        self._machines = machines
        self._loop = machines.loop
        self._kills = machines.kills
        self._data_dir = data_dir
        # The simulated disk has one arm, and its work is counted.
        self._settings = load(options={"num.recovery.threads.per.data.dir": 1, **settings})
        self._open_store = open_store
        self._server: BrokerServer | None = None
        self._store: SqliteStore | None = None
        self._logs: LogManager | None = None

    def make_store(self, data_dir: Path) -> Store:
        if self._open_store is not None:
            return self._open_store()
        thread = SimulatedSqlThread(self._loop)
        self._store = SqliteStore(data_dir / "metadata.sqlite", clock_ms=self.clock.monotonic_ms, thread=thread)
        return self._store

    def make_logs(self, *args: Any) -> LogManager:
        self._logs = LogManager(*args)
        return self._logs

    @property
    def server(self) -> BrokerServer | None:
        """None while it is not up."""
        return self._server if self.is_up else None

    @property
    def is_up(self) -> bool:
        """Whether it has started and was not killed since."""
        return self.process is not None and self.process.is_alive and self._server is not None

    async def start(self) -> None:
        """Start it; when it is killed while it starts, this returns as well."""
        assert self.process is None or not self.process.is_alive
        self.starts += 1
        process = self.process = self._loop.process(f"{self.host} {self.starts}", self.host)
        self._machines.add(process, self)
        died = self._loop.create_future()
        starting = self._loop.current

        def tell() -> None:
            self._loop.schedule(starting, self._loop.time(), _end, died)

        process.on_death.append(self._release)
        process.on_death.append(tell)
        server = BrokerServer(self._settings, self._data_dir, self.clock)

        async def run() -> None:
            try:
                await server.start()
                self._server = server
            finally:
                tell()

        task = self._loop.spawn(process, run())
        await died
        process.on_death.remove(tell)
        if process.is_alive:
            task.result()

    async def stop(self) -> None:
        """End it as SIGTERM does; it may still be killed on the way."""
        process, server = self.process, self._server
        assert process is not None
        assert server is not None
        self._server = None
        ended = self._loop.create_future()
        stopping = self._loop.current

        def tell() -> None:
            self._loop.schedule(stopping, self._loop.time(), _end, ended)

        process.on_death.append(tell)

        async def run() -> None:
            try:
                await server.stop()
            finally:
                self._loop.kill(process)

        task = self._loop.spawn(process, run())
        await ended
        if task.done():
            task.result()

    def kill(self) -> None:
        if self.process is not None:
            self._loop.kill(self.process)

    def cut_power(self, disk: SimulatedDisk, rng: random.Random) -> None:
        """Kill it, and lose of its files what was not flushed."""
        self.kill()
        self.boots += 1
        survived = self._data_dir.with_name(f"{self.host}-boot-{self.boots}")
        disk.power_cut(survived, rng, self._data_dir)
        disk.adopt(survived)
        self._data_dir = survived

    def kill_while_it_writes(self, changes: int, torn_share: float) -> None:
        """Kill it at the change to a file after so many from now on."""
        if self.process is not None and self.process.is_alive:
            self._kills.kill_at(self.process, changes, torn_share)

    async def create_topics(self, partitions: Mapping[str, int]) -> None:
        server, process = self._server, self.process
        assert server is not None
        assert process is not None
        topics = [
            NewTopic(name, partitions=count, replication_factor=1, configs={}) for name, count in partitions.items()
        ]

        async def create() -> None:
            results = await server.services.controller.create_topics(topics)
            assert not any(result.error for result in results), results
            await server.services.replicas.wait_until_opened([result.topic_id for result in results])

        await self._loop.spawn(process, create())

    def reload_coordinators(self) -> None:
        """Have the broker load all transactions and groups anew, as after writes whose outcome it could not tell."""
        server, process = self._server, self.process
        assert server is not None
        assert process is not None

        async def reload() -> None:
            for service in (server.services.transactions, server.services.groups):
                held: Any
                for held in tuple(service._held.values()):
                    if held.is_loaded:
                        service._reload(held, ErrorCode.REQUEST_TIMED_OUT)

        self._loop.spawn(process, reload())

    def _release(self) -> None:
        """What the kernel does for a dead process: its files are closed, and its locks are free."""
        self._server = None
        if self._logs is not None:
            self._logs.close(clean=False)
        database = self._store._database if self._store is not None else None
        if database is not None:
            for lock in database._locks.values():
                os.close(lock._fd)
            database._locks.clear()
            database.close()
        self._logs = self._store = None


def _end(waiting: asyncio.Future[None]) -> None:
    """It may be told twice of an end."""
    if not waiting.done():
        waiting.set_result(None)
