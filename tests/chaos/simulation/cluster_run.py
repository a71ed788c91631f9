"""Runs a simulated cluster under load, breaks what can break, and checks what is left: all from one seed.

What always holds: a run is decided by its seed; troubles end after a while, and from then on everything must come to
its end within a bounded time: every partition has a leader and all replicas in sync, every writer is done, every reader
has read everything. The referee looks at each step meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import random
import shutil
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from cluster_referee import Referee
from cluster_workload import PARTITIONS, SOURCE, TARGET, Copier, Member, Notes, Reader, Rows, Writer
from simulated_broker import Machines, SimulatedBroker
from simulated_disk import SimulatedDisk
from simulated_kill import KillSwitch
from simulated_loop import Process, SimulatedLoop
from simulated_network import SimulatedNetwork, Weather
from simulated_store import STORE_HOST, Ensemble, StoreWeather
from tidelog import AsyncAdmin
from tidelog.client.admin.types import NewTopic
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition
from tidelog.controller import layout
from tidelog.controller.image import ClusterImage
from tidelog.server.server import StartError

BROKERS = (1, 2, 3)
GROUP = "readers"

_LIMIT_S = 2_000.0
_STEPS_MAX = 3_000_000
# A disk that filled up again and again is left alone for up to five minutes.
_SETTLED_WITHIN_S = 400.0
_FIRST_PORT = 9092
_LOOK_S = 0.2
_ERRORS_SHOWN = 8

TROUBLES = (
    "kill",
    "kill in write",
    "kill controller",
    "stop",
    "pause",
    "cut pair",
    "cut one way",
    "cut off",
    "cut from store",
    "heal",
    "expire session",
    "slow disk",
    "wrong clock",
    "elect",
    "reassign",
    "kill member",
    "full disk",
    "failing disk",
    "repair disks",
    "power cut",
)

_UNCLEAN = ("kill", "kill in write", "failing disk", "full disk")

NETWORK, STORE = "bad network", "bad store"
"""What else a run may have against it, all the time."""


@dataclass
class Outcome:
    """What a run has seen, so that tests can tell whether it was worth anything."""

    digest: int
    steps: int
    acknowledged: int
    grouped: int
    copied: int
    broker_starts: int
    killed_in_writes: int
    broken_connections: int
    lost_to_cuts: int
    lost_at_store: int
    high_watermarks: int
    elections: int
    power_cuts: int
    refused_by_disks: int


@dataclass
class _Plan:
    weather: Weather
    store_weather: StoreWeather
    trouble_s: float
    pause_s: float
    troubles: list[str] = field(default_factory=list)


class ClusterRun:
    """One run, in a directory of its own."""

    def __init__(self, seed: int, base: Path, without: Collection[str] = ()) -> None:
        self._random = random.Random(seed)
        self._without = without
        self._loop = SimulatedLoop(self._rng())  # type: ignore[abstract]  # it has of a loop what brokers use
        self._plan = self._make_plan()
        self._network = SimulatedNetwork(self._loop, self._rng(), Weather())
        self._kills = KillSwitch(self._loop)
        self._machines = Machines(self._loop, self._network, self._kills)
        self._ensemble = Ensemble(self._loop, self._network, self._rng(), StoreWeather())
        self._referee = Referee(self._loop)
        self._notes = Notes()
        settings = self._broker_settings()
        self._brokers = {
            node_id: SimulatedBroker(
                self._machines,
                base / "disk" / _host(node_id),
                settings | {"node.id": node_id, "listeners": f"PLAINTEXT://127.0.0.1:{_FIRST_PORT + node_id}"},
                host=_host(node_id),
                open_store=self._ensemble.client,
            )
            for node_id in BROKERS
        }
        self._bootstrap = ",".join(f"127.0.0.1:{_FIRST_PORT + node_id}" for node_id in BROKERS)
        self._is_over = False
        self._waking: dict[Process, float] = {}
        self._members: dict[str, Process] = {}
        self._elections = 0
        self._copies = False
        self._victim = self._random.choice(list(self._brokers.values()))
        self._power_cuts = 0
        self._base = base
        self._starting: set[SimulatedBroker] = set()
        self._starts_failed: list[str] = []

    @property
    def errors(self) -> list[str]:
        """What applications were told that went wrong."""
        return self._notes.errors

    def _rng(self) -> random.Random:
        return random.Random(self._random.getrandbits(64))

    def _broker_settings(self) -> dict[str, object]:
        rng = self._random
        # What only one broker has is lost with its power.
        min_isr = 2 if "power cut" in self._plan.troubles else rng.choice((1, 2))
        return {
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.num.partitions": 1,
            "offsets.topic.replication.factor": 3,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.min.isr": min_isr,
            "default.replication.factor": 3,
            "min.insync.replicas": min_isr,
            "replica.lag.time.max.ms": rng.choice((1_000, 5_000, 30_000)),
            "group.initial.rebalance.delay.ms": 0,
            "log.segment.bytes": rng.choice((1 << 30, 2_000)),
            "tidelog.metadata": "zookeeper://store:2181/tidelog",
        }

    def _make_plan(self) -> _Plan:
        rng = self._random
        weather = Weather(
            delay_s=rng.choice((0.0005, 0.002, 0.02)),
            break_share=rng.choice((0.0, 0.0, 0.01)),
            split_share=rng.choice((0.0, 0.2)),
            late_share=rng.choice((0.0, 0.0, 0.02)),
        )
        store_weather = StoreWeather(
            delay_s=rng.choice((0.001, 0.01)),
            lost_share=rng.choice((0.0, 0.0, 0.02, 0.1)),
            stale_share=rng.choice((0.0, 0.2)),
            watch_delay_s=rng.choice((0.002, 0.2)),
        )
        if NETWORK in self._without:
            weather = Weather()
        if STORE in self._without:
            store_weather = StoreWeather()
        chosen = rng.sample(TROUBLES, rng.randint(1, len(TROUBLES)))
        return _Plan(weather, store_weather, rng.uniform(5.0, 40.0), rng.choice((0.3, 1.0, 4.0)), chosen)

    # The run

    def run(self) -> Outcome:
        disk_dir, shelf = self._base / "disk", self._base / "shelf"
        disk_dir.mkdir(parents=True)
        shelf.mkdir()
        self._disk = SimulatedDisk(disk_dir, shelf)
        # Kills come before the disk notes anything.
        with self._disk.installed(), self._machines.installed(self._rng()), self._referee.installed():
            # What a killed process was doing must not be collected while others run.
            gc.disable()
            try:
                self._loop.run(self._main(), _LIMIT_S, _STEPS_MAX)
            finally:
                for broker in self._brokers.values():
                    broker.kill()
                self._loop.over()
                gc.enable()
        return Outcome(
            digest=self._loop.digest,
            steps=self._loop.steps,
            acknowledged=len(self._notes.acknowledged),
            grouped=len(self._notes.grouped),
            copied=self._notes.copied,
            broker_starts=sum(broker.starts for broker in self._brokers.values()),
            killed_in_writes=self._kills.mid_write,
            broken_connections=self._network.broken,
            lost_to_cuts=self._network.lost_to_cuts,
            lost_at_store=self._ensemble.lost,
            high_watermarks=self._referee.high_watermarks,
            elections=self._elections,
            power_cuts=self._power_cuts,
            refused_by_disks=self._kills.refused,
        )

    async def _main(self) -> None:
        first, *others = self._brokers.values()
        await first.start()
        await asyncio.gather(*(broker.start() for broker in others))
        await self._create_topics()
        self._network.weather, self._ensemble.weather = self._plan.weather, self._plan.store_weather
        writers = self._start_writers()
        self._start_readers()
        looking = self._loop.spawn(self._loop.process("looker"), self._keep_looking())
        await self._trouble()
        await self._settle(writers)
        looking.cancel()
        await self._check()
        self._look()

    async def _create_topics(self) -> None:
        async def create() -> None:
            async with AsyncAdmin(bootstrap_servers=self._bootstrap) as admin:
                new = [NewTopic(name, partitions=PARTITIONS, replication_factor=3) for name in (SOURCE, TARGET)]
                results = await admin.create_topics(new)
                assert not results.errors, results

        await self._loop.spawn(self._loop.process("creator"), create())

    # Applications

    def _start_writers(self) -> list[asyncio.Task[None]]:
        rng = self._random
        tasks = []
        for number in range(rng.randint(1, 3)):
            count = rng.choice((20, 60))
            pace_s = self._plan.trouble_s / count
            writer = Writer(f"w{number}", self._bootstrap, self._notes, self._rng(), count, pace_s)
            tasks.append(self._spawn(f"writer {number}", writer.run))
        return tasks

    def _start_readers(self) -> None:
        reader = Reader(SOURCE, self._bootstrap, self._notes)
        self._spawn("reader", lambda: reader.run(self._is_done))
        for number in range(self._random.randint(0, 2)):
            self._start_member(f"member {number}")
        self._copies = self._random.random() < 0.7
        if self._copies:
            copier = Copier(self._bootstrap, self._notes, "copier", self._rng())
            self._spawn("copier", lambda: copier.run(self._is_done))

    def _start_member(self, name: str) -> None:
        protocol = self._random.choice(("classic", "consumer"))
        member = Member(self._bootstrap, self._notes, GROUP, protocol=protocol)
        self._members[name] = self._loop.process(name)
        task = self._loop.spawn(self._members[name], member.run(self._is_done))
        task.add_done_callback(self._on_end)

    def _is_done(self) -> bool:
        return self._is_over

    def _spawn(self, name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def main() -> None:
            await run()

        task = self._loop.spawn(self._loop.process(name), main())
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._loop.failures.append(f"an application failed: {task.exception()!r}")

    # Troubles

    async def _trouble(self) -> None:
        ends_s = self._loop.time() + self._plan.trouble_s
        while self._loop.time() < ends_s:
            await asyncio.sleep(self._random.expovariate(1 / self._plan.pause_s))
            self._look()
            for broker in self._brokers.values():
                if not broker.is_up and self._random.random() < 0.5:
                    self._start_again(broker)
            await self._make(self._random.choice(self._plan.troubles))

    def _start_again(self, broker: SimulatedBroker) -> None:
        """Start it, unless it runs or is about to."""
        is_alive = broker.process is not None and broker.process.is_alive
        if not is_alive and broker not in self._starting:
            self._starting.add(broker)
            self._loop.spawn(self._loop.outside, self._start(broker))

    async def _start(self, broker: SimulatedBroker) -> None:
        """Start it; a start that gives up, because others could not be reached, is made again by `_trouble`."""
        try:
            await broker.start()
        except StartError as error:
            self._starts_failed.append(str(error))
            broker.kill()
        finally:
            self._starting.discard(broker)

    async def _make(self, trouble: str) -> None:
        rng = self._random
        broker = rng.choice(list(self._brokers.values()))
        if "power cut" in self._plan.troubles and trouble in _UNCLEAN:
            # Two brokers that crash at once may both have lost something, and whoever leads then has less than both.
            broker = self._victim
        other = rng.choice([each for each in self._brokers.values() if each is not broker])
        if trouble in self._without:
            return
        match trouble:
            case "kill":
                broker.kill()
            case "kill in write":
                broker.kill_while_it_writes(rng.randrange(40), rng.choice((0.0, 0.5, 1.0)))
            case "kill controller":
                controller = self._controller()
                if controller is not None and (controller is self._victim or "power cut" not in self._plan.troubles):
                    controller.kill()
            case "stop" if broker.is_up:
                self._loop.spawn(self._loop.outside, broker.stop())
            case "pause" if broker.is_up:
                self._pause(broker, rng.choice((0.5, 3.0, 15.0)))
            case "cut pair":
                self._network.cut(broker.host, other.host)
                self._network.cut(other.host, broker.host)
            case "cut one way":
                self._network.cut(broker.host, other.host)
            case "cut off":
                for each in self._brokers.values():
                    if each is not broker:
                        self._network.cut(broker.host, each.host)
                        self._network.cut(each.host, broker.host)
            case "cut from store":
                self._network.cut(broker.host, STORE_HOST)
                if rng.random() < 0.5:
                    self._network.cut(STORE_HOST, broker.host)
            case "heal":
                self._network.heal()
            case "expire session":
                owner = self._ensemble.owner_of(layout.live_key(int(broker.host.split("-")[1])))
                if owner is not None:
                    self._ensemble.expire(owner)
            case "slow disk" if broker.process is not None:
                broker.process.thread_slowness = rng.choice((1.0, 20.0, 300.0))
            case "wrong clock":
                broker.clock.wrong_by_ms = rng.choice((0, -600_000, 600_000))
            case "elect" | "reassign":
                self._spawn_admin(trouble)
            case "full disk":
                self._kills.break_disk(broker.host, errno.ENOSPC)
            case "failing disk":
                self._kills.break_disk(broker.host, errno.EIO)
            case "repair disks":
                self._repair_disks()
            case "power cut":
                # A second one could take the only copy of what the first one left.
                self._victim.cut_power(self._disk, self._rng())
                self._power_cuts += 1
            case "kill member" if self._members:
                name = rng.choice(list(self._members))
                self._loop.kill(self._members[name])
                self._start_member(name)

    def _repair_disks(self) -> None:
        """Put in good disks; a broker looks at a disk that has failed when it starts."""
        self._kills.repair_disks()
        for broker in self._brokers.values():
            logs = broker.server.services.logs if broker.server is not None else None
            if logs is not None and (logs._offline or any(each.offline_reason for each in logs.directories)):
                broker.kill()

    def _pause(self, broker: SimulatedBroker, pause_s: float) -> None:
        process = broker.process
        assert process is not None
        process.is_paused = True
        self._loop.schedule(self._loop.outside, self._loop.time() + pause_s, setattr, process, "is_paused", False)

    def _spawn_admin(self, trouble: str) -> None:
        partition = TopicPartition(self._random.choice((SOURCE, TARGET)), self._random.randrange(PARTITIONS))
        replicas = self._random.sample(BROKERS, self._random.randint(2, 3))

        async def ask() -> None:
            try:
                async with AsyncAdmin(bootstrap_servers=self._bootstrap, request_timeout_ms=3_000) as admin:
                    if trouble == "elect":
                        await admin.elect_leaders()
                    else:
                        await admin.alter_partition_reassignments({partition: replicas})
                    self._elections += 1
            except (ClientError, TimeoutError):
                return  # an administrator may be refused, or find nobody

        self._loop.spawn(self._loop.process("administrator"), ask())

    # What must hold

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._look()

    def _look(self) -> None:
        image = self._image()
        if image is not None:
            self._referee.check_members(image, self._brokers)
        self._referee.check()
        self._notes.check()
        assert not self._loop.failures, self._loop.failures[:3]

    def _controller(self) -> SimulatedBroker | None:
        rec = self._ensemble.memory._records.get(layout.CONTROLLER)
        if rec is None:
            return None
        broker = self._brokers[layout.parse_controller(layout.decode(rec.value)).node_id]
        return broker if broker.is_up else None

    def _image(self) -> ClusterImage | None:
        """What the elected controller has written."""
        broker = self._controller()
        if broker is None or broker.server is None or not broker.server.services.controller.is_active:
            return None
        return broker.server.services.cluster.image

    async def _settle(self, writers: list[asyncio.Task[None]]) -> None:
        """The troubles are over: everybody must come to an end."""
        self._network.weather.calm()
        self._network.heal()
        self._ensemble.weather.calm()
        self._kills.spare_all()
        self._repair_disks()
        for broker in self._brokers.values():
            if broker.process is not None:
                broker.process.is_paused = False
                broker.process.thread_slowness = 1.0
        await self._until(self._all_up, "all brokers are up")
        await self._until(lambda: all(writer.done() for writer in writers), "the writers are done")
        await self._until(self._all_in_sync, "all replicas are in sync")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline_s = self._loop.time() + _SETTLED_WITHIN_S
        while not holds():
            assert self._loop.time() < deadline_s, f"not within {_SETTLED_WITHIN_S:g} s: {what}; {self._state()}"
            for broker in self._brokers.values():
                if not broker.is_up:
                    self._start_again(broker)
            await asyncio.sleep(0.5)
            self._look()

    def _all_up(self) -> bool:
        return all(broker.is_up for broker in self._brokers.values())

    def _all_in_sync(self) -> bool:
        image = self._image()
        return image is not None and all(
            state.leader >= 0 and set(state.isr) == set(state.replicas) and not state.adding
            for topic in image.topics.values()
            for state in topic.partitions
        )

    def _state(self) -> str:
        image = self._image()
        if image is None:
            return f"no controller; failed starts: {self._starts_failed[-2:]}"
        failed = f"failed starts: {self._starts_failed[-2:]}; " if self._starts_failed else ""
        return failed + "; ".join(
            f"{topic.name}-{index}: leader {state.leader} epoch {state.leader_epoch} isr {state.isr} of "
            f"{state.replicas}"
            for topic in image.topics.values()
            for index, state in enumerate(topic.partitions)
            if state.leader < 0 or set(state.isr) != set(state.replicas) or state.adding
        )

    async def _check(self) -> None:
        source = await self._read(SOURCE)
        self._notes.check_source(source)
        if self._copies:
            self._notes.check_copied(source, await self._read_copies(sum(map(len, source.values()))))
        if self._members:
            everything = {value for rows in source.values() for _, value in rows}
            await self._until(lambda: everything <= self._notes.grouped, "the group has read everything")
        self._is_over = True

    async def _read_copies(self, count: int) -> Rows:
        """All copies, once there are so many."""
        deadline_s = self._loop.time() + _SETTLED_WITHIN_S
        while True:
            target = await self._read(TARGET)
            found = sum(map(len, target.values()))
            if found >= count:
                return target
            assert self._loop.time() < deadline_s, f"{found} of {count} records are copied: {target}"
            await asyncio.sleep(1.0)

    async def _read(self, topic: str) -> Rows:
        """Everything in a topic, as a consumer of its own reads it now."""
        reader = Reader(topic, self._bootstrap, self._notes, is_committed=True)
        task = self._spawn(f"checker of {topic}", reader.read_to_end)
        await self._until(task.done, f"{topic} is read to its end")
        return reader.found


def _host(node_id: int) -> str:
    return f"broker-{node_id}"


def run_seed(seed: int, base: Path, without: Collection[str] = ()) -> Outcome:
    """Run it, leaving out these troubles; a failure names the seed."""
    run = ClusterRun(seed, base, without)
    try:
        return run.run()
    except BaseException as error:
        error.add_note(f"SIMULATION_SEED={seed}: CONTRIBUTING.md says how to run it again")
        for told in run.errors[-_ERRORS_SHOWN:]:
            error.add_note(f"an application was told: {told}")
        raise
    finally:
        shutil.rmtree(base, ignore_errors=True)
