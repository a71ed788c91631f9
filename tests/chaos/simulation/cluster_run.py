"""Runs a simulated cluster under load, breaks what can break, and checks what is left: all by a plan from one seed.

What always holds: a run is decided by its plan; troubles end after a while, and from then on everything must come to
its end within a bounded time: every partition has a leader and all replicas in sync, every writer is done, every reader
has read everything. The referee looks at each step meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster_admin import Administrator
from cluster_group import GROUP, Member, Ownership
from cluster_invariants import Invariant, InvariantError, Violations
from cluster_plan import BROKERS, START, Plan, Trouble, draw_plan, network_weather, store_weather
from cluster_referee import Referee
from cluster_troubles import Troubles
from cluster_workload import PARTITIONS, SOURCE, TARGET, Copier, Notes, Reader, Writer
from simulated_broker import Machines, SimulatedBroker
from simulated_disk import SimulatedDisk
from simulated_kill import KillSwitch
from simulated_loop import Process, SimulatedLoop, SimulationError
from simulated_network import SimulatedNetwork, Weather
from simulated_store import Ensemble, StoreWeather
from tidelog import AsyncAdmin
from tidelog.client.admin import NewTopic
from tidelog.controller.image import NO_LEADER, PartitionState

_LIMIT_S = 3_000.0
_STEPS_MAX = 3_000_000
# A disk that filled up again and again is left alone for up to five minutes.
_SETTLED_WITHIN_S = 400.0
_FIRST_PORT = 9092
_LOOK_S = 0.2
_PAUSE_S_MAX = 20.0
_ERRORS_SHOWN = 8
_LAST_WRITERS = 3


@dataclass
class Outcome:
    """What a run has seen, so that tests can tell whether it was worth anything."""

    digest: int
    steps: int
    acknowledged: int
    grouped: int
    handovers: int
    copied: int
    aborted: int
    changes: int
    ends_asked: int
    broker_starts: int
    killed_in_writes: int
    broken_connections: int
    lost_to_cuts: int
    lost_at_store: int
    high_watermarks: int
    requests_answered: int
    power_cuts: int
    refused_by_disks: int
    stalled_flushes: int


class ClusterRun:
    """One run, in a directory of its own."""

    def __init__(self, plan: Plan, base: Path) -> None:
        self._plan = plan
        self._base = base
        self._loop = SimulatedLoop(self._rng("loop"))  # type: ignore[abstract]  # it has of a loop what brokers use
        self._network = SimulatedNetwork(self._loop, self._rng("network"), Weather())
        self._kills = KillSwitch(self._loop)
        self._machines = Machines(self._loop, self._network, self._kills)
        self._ensemble = Ensemble(self._loop, self._network, self._rng("store"), StoreWeather())
        self._violations = Violations(self._loop.time)
        self._notes = Notes(self._violations)
        self._brokers: dict[int, SimulatedBroker] = {}
        self._referee = Referee(self._loop, self._violations, self._ensemble, self._brokers)
        for node_id in BROKERS:
            self._brokers[node_id] = SimulatedBroker(
                self._machines,
                base / "disk" / _host(node_id),
                _settings(plan, node_id),
                host=_host(node_id),
                open_store=self._ensemble.client,
            )
        self._bootstrap = ",".join(f"127.0.0.1:{_FIRST_PORT + node_id}" for node_id in BROKERS)
        self._troubles = Troubles(
            plan, self._loop, self._network, self._ensemble, self._kills, self._brokers, self._bootstrap
        )
        self._ownership = Ownership(self._notes, self._find_members)
        self._is_over = False
        # Processes of applications that come and go.
        self._members: dict[int, tuple[Process, Member]] = {}
        self._copier: Process | None = None
        self._copiers = 0
        self._administrator: Administrator | None = None

    @property
    def errors(self) -> list[str]:
        """What applications were told that went wrong."""
        return self._notes.errors

    def _rng(self, purpose: str) -> random.Random:
        """One a purpose, so that taking something out of a plan leaves the rest as it is."""
        return random.Random(f"{self._plan.seed} {purpose}")

    # The run

    def run(self) -> Outcome:
        disk_dir, shelf = self._base / "disk", self._base / "shelf"
        disk_dir.mkdir(parents=True)
        shelf.mkdir()
        self._disk = SimulatedDisk(disk_dir, shelf)
        # Kills come before the disk notes anything.
        with self._disk.installed(), self._machines.installed(self._rng("machines")), self._referee.installed():
            # What a killed process was doing must not be collected while others run.
            gc.disable()
            try:
                self._loop.run(self._main(), _LIMIT_S, _STEPS_MAX)
            except SimulationError as error:
                self._violations.check()
                raise InvariantError(Invariant.PROGRESS, str(error)) from error
            finally:
                for broker in self._brokers.values():
                    broker.kill()
                self._loop.over()
                gc.enable()
        return self._outcome()

    def _outcome(self) -> Outcome:
        return Outcome(
            digest=self._loop.digest,
            steps=self._loop.steps,
            acknowledged=len(self._notes.acknowledged),
            grouped=len(self._notes.grouped),
            handovers=self._ownership.handovers,
            copied=self._notes.copied,
            aborted=len(self._notes.aborted),
            changes=0 if self._administrator is None else self._administrator.changes,
            ends_asked=self._notes.ends_asked,
            broker_starts=sum(broker.starts for broker in self._brokers.values()),
            killed_in_writes=self._kills.mid_write,
            broken_connections=self._network.broken,
            lost_to_cuts=self._network.lost_to_cuts,
            lost_at_store=self._ensemble.lost,
            high_watermarks=self._referee.high_watermarks,
            requests_answered=self._troubles.requests_answered,
            power_cuts=self._troubles.power_cuts,
            refused_by_disks=self._kills.refused,
            stalled_flushes=self._kills.stalled_flushes,
        )

    async def _main(self) -> None:
        first, *others = self._brokers.values()
        await first.start()
        await asyncio.gather(*(broker.start() for broker in others))
        await self._create_topics()
        self._network.weather, self._ensemble.weather = network_weather(self._plan), store_weather(self._plan)
        writers = self._start_writers()
        self._start_readers()
        looking = self._loop.spawn(self._loop.process("looker"), self._keep_looking())
        await self._trouble()
        self._troubles.settle()
        await self._come_to_rest(writers)
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
        tasks = []
        for number, count in enumerate(self._plan.writers):
            pace_s = self._plan.trouble_s / count
            rng = self._rng(f"writer {number}")
            writer = Writer(f"w{number}", self._bootstrap, self._notes, rng, count, pace_s)
            tasks.append(self._spawn(f"writer {number}", writer.run))
        return tasks

    def _start_readers(self) -> None:
        reader = Reader(SOURCE, self._bootstrap, self._notes)
        self._spawn("reader", lambda: reader.run(self._is_done))
        for number in range(len(self._plan.members)):
            self._start_member(number)
        if self._plan.copies:
            self._start_copier()
            committed = Reader(TARGET, self._bootstrap, self._notes, is_committed=True)
            self._spawn("reader of copies", lambda: committed.run(self._is_done))
        if self._plan.administers:
            pace_s = self._plan.trouble_s / 12
            administrator = Administrator(self._bootstrap, self._notes, self._rng("administrator"), pace_s)
            self._administrator = administrator
            self._spawn("administrator", lambda: administrator.run(self._is_troubled))

    def _start_member(self, number: int) -> None:
        protocol = self._plan.members[number]
        member = Member(f"member {number}", self._bootstrap, self._notes, self._ownership, protocol=protocol)
        process = self._loop.process(f"member {number}")
        self._members[number] = process, member
        task = self._loop.spawn(process, member.run(self._is_done))
        task.add_done_callback(self._on_end)

    def _start_copier(self) -> None:
        self._copiers += 1
        name = f"c{self._copiers}"
        copier = Copier(self._bootstrap, self._notes, name, self._rng(name))
        self._copier = self._loop.process(name)
        task = self._loop.spawn(self._copier, copier.run(self._is_done))
        task.add_done_callback(self._on_end)

    def _is_done(self) -> bool:
        return self._is_over

    def _is_troubled(self) -> bool:
        """Whether an administrator has had its time."""
        return self._loop.time() > self._plan.trouble_s

    def _spawn(self, name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def main() -> None:
            await run()

        task = self._loop.spawn(self._loop.process(name), main())
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._loop.failures.append(f"an application failed: {task.exception()!r}")

    def _find_members(self) -> frozenset[str] | None:
        """The members of the group as its coordinator knows them; None while nobody is sure to be the coordinator."""
        for broker in self._brokers.values():
            server = broker.server
            if server is None or not server.services.replicas.is_serving:
                continue
            for held in server.services.groups._held.values():
                states = self._referee.states.get("__consumer_offsets", ())
                if not held.is_loaded or held.index >= len(states):
                    continue
                state = states[held.index]
                if held.leader_epoch == state.leader_epoch and broker is self._brokers[state.leader]:
                    group = held.shard.state.groups.get(GROUP)
                    return frozenset() if group is None else frozenset(_member_ids(group))
        return None

    # Troubles

    async def _trouble(self) -> None:
        for trouble in self._plan.troubles:
            await asyncio.sleep(max(0.0, trouble.at_s - self._loop.time()))
            self._look()
            self._make(trouble)
        await asyncio.sleep(max(0.0, self._plan.trouble_s - self._loop.time()))

    def _make(self, trouble: Trouble) -> None:
        match trouble.kind:
            case "kill member" | "pause member" if self._plan.members:
                self._end_member(trouble)
            case "replace copier" if self._copier is not None:
                # Its successor comes while it stands still, and it goes on as if nothing had happened.
                self._troubles.pause(self._copier, trouble.value)
                self._start_copier()
            case kind if kind == START:
                self._troubles.start_again(self._brokers[trouble.node])
            case _:
                self._troubles.make(trouble, self._disk)

    def _end_member(self, trouble: Trouble) -> None:
        number = trouble.node % len(self._plan.members)
        process, member = self._members[number]
        if trouble.kind == "pause member":
            self._troubles.pause(process, trouble.value)
            return
        self._loop.kill(process)
        self._ownership.on_gone(member)
        self._start_member(number)

    # What must hold

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._look()

    def _look(self) -> None:
        self._referee.check_all_members()
        if self._loop.failures:
            self._violations.note(Invariant.INTERNAL, self._loop.failures[0])
        self._violations.check()

    async def _come_to_rest(self, writers: list[asyncio.Task[None]]) -> None:
        """Everybody must come to an end."""
        await self._until(self._all_up, "all brokers are up")
        await self._until(lambda: all(writer.done() for writer in writers), "the writers are done")
        await self._until(self._all_in_sync, "all replicas are in sync")

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline_s = self._loop.time() + _SETTLED_WITHIN_S
        while not holds():
            if self._loop.time() >= deadline_s:
                state = f"not within {_SETTLED_WITHIN_S:g} s: {what}; {self._state()}"
                raise InvariantError(Invariant.PROGRESS, state)
            # One that was starting while its disk failed has found it so.
            self._troubles.kill_where_disks_had_failed()
            for broker in self._brokers.values():
                if not broker.is_up:
                    self._troubles.start_again(broker)
            await asyncio.sleep(0.5)
            self._look()

    def _all_up(self) -> bool:
        return all(broker.is_up for broker in self._brokers.values())

    def _all_in_sync(self) -> bool:
        states = self._referee.states
        return self._troubles.controller() is not None and all(
            map(_is_in_sync, (state for each in states.values() for state in each))
        )

    def _state(self) -> str:
        controller = self._troubles.controller()
        failed = f"failed starts: {self._troubles.starts_failed[-2:]}; " if self._troubles.starts_failed else ""
        return f"{failed}the controller is {controller and controller.host}; " + "; ".join(
            f"{topic}-{index}: leader {state.leader} epoch {state.leader_epoch} isr {state.isr} of {state.replicas}"
            for topic, states in self._referee.states.items()
            for index, state in enumerate(states)
            if not _is_in_sync(state)
        )

    async def _check(self) -> None:
        await self._write_at_last()
        source = (await self._read(SOURCE)).found
        self._notes.check_source(source)
        if self._plan.copies:
            copies = await self._read_copies(sum(map(len, source.values())))
            self._notes.check_copied(source, copies.found, copies.attempts)
        if self._plan.members:
            everything = {value for rows in source.values() for _, value in rows}
            await self._until(lambda: everything <= self._notes.grouped, "the group has read everything")
        if self._administrator is not None:
            checking = self._spawn("administrator at last", self._administrator.check)
            await self._until(checking.done, "the administrator has looked at everything")
        self._is_over = True
        await self._until(self._all_in_sync, "all replicas are in sync at the end")
        await self._until(self._is_alike, "all replicas hold the same")

    def _is_alike(self) -> bool:
        """Whether all replicas end where their leaders end; from then on they must be alike."""
        for topic in (SOURCE, TARGET):
            for index, state in enumerate(self._referee.states[topic]):
                replicas = [self._referee.replica(node_id, topic, index) for node_id in state.replicas]
                if len({None if each is None else each.log.log_end_offset for each in replicas}) > 1:
                    return False
        self._referee.check_alike((SOURCE, TARGET))
        return True

    async def _write_at_last(self) -> None:
        """New producers get on as well, with ids that nobody else was given, whoever was the controller meanwhile."""
        writers = [
            Writer(f"l{number}", self._bootstrap, self._notes, self._rng(f"last writer {number}"), 1, 0.01)
            for number in range(_LAST_WRITERS)
        ]
        tasks = [self._spawn("last writer", writer.run) for writer in writers]
        await self._until(lambda: all(task.done() for task in tasks), "new writers are done")

    async def _read_copies(self, count: int) -> Reader:
        """All copies, once there are so many."""
        deadline_s, pause_s = self._loop.time() + _SETTLED_WITHIN_S, 1.0
        while True:
            reader = await self._read(TARGET)
            found = sum(map(len, reader.found.values()))
            if found >= count:
                return reader
            if self._loop.time() >= deadline_s:
                raise InvariantError(Invariant.COPIES, f"{found} of {count} records are copied: {reader.found}")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    async def _read(self, topic: str) -> Reader:
        """Everything in a topic, as a consumer of its own reads it now."""
        reader = Reader(topic, self._bootstrap, self._notes, is_committed=True)
        task = self._spawn(f"checker of {topic}", reader.read_to_end)
        await self._until(task.done, f"{topic} is read to its end")
        return reader


def _host(node_id: int) -> str:
    return f"broker-{node_id}"


def _settings(plan: Plan, node_id: int) -> Mapping[str, object]:
    return {
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "offsets.topic.replication.factor": 3,
        "transaction.state.log.replication.factor": 3,
        "default.replication.factor": 3,
        "group.initial.rebalance.delay.ms": 0,
        # Some batches at a time: loading takes a while.
        "offsets.load.buffer.size": 1_000,
        "transaction.state.log.load.buffer.size": 1_000,
        # As the classic members have it: who stands still is removed before it goes on.
        "group.consumer.session.timeout.ms": 6_000,
        "group.consumer.heartbeat.interval.ms": 1_000,
        "tidelog.metadata": "zookeeper://store:2181/tidelog",
        "node.id": node_id,
        "listeners": f"PLAINTEXT://127.0.0.1:{_FIRST_PORT + node_id}",
        **plan.settings,
    }


def _is_in_sync(state: PartitionState) -> bool:
    return state.leader != NO_LEADER and set(state.isr) == set(state.replicas) and not state.adding


def _member_ids(group: object) -> list[str]:
    """Both kinds of groups know their members by id."""
    members = group.members  # type: ignore[attr-defined]  # not part of what groups have in common
    return list(members if isinstance(members, dict) else members._members)


def run_plan(plan: Plan, base: Path) -> Outcome:
    """Run it; a failure names its seed."""
    run = ClusterRun(plan, base)
    try:
        return run.run()
    except BaseException as error:
        error.add_note(f"SIMULATION_SEED={plan.seed}: CONTRIBUTING.md says how to run it again")
        for told in run.errors[-_ERRORS_SHOWN:]:
            error.add_note(f"an application was told: {told}")
        raise
    finally:
        shutil.rmtree(base, ignore_errors=True)


def run_seed(seed: int, base: Path) -> Outcome:
    return run_plan(draw_plan(seed), base)
