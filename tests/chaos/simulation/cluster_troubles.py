"""Carries out the troubles of a plan on a simulated cluster, one by one.

What always holds: a trouble that makes no sense at its moment, as stopping a broker that is down, does nothing; what it
does by chance is decided by the trouble itself. `settle` takes all of them back.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Mapping

from cluster_plan import Plan, Trouble, replicas_of
from cluster_workload import PARTITIONS, SOURCE, TARGET
from simulated_broker import SimulatedBroker
from simulated_disk import SimulatedDisk
from simulated_kill import KillSwitch
from simulated_loop import Process, SimulatedLoop
from simulated_network import SimulatedNetwork
from simulated_store import STORE_HOST, Ensemble
from tidelog import AsyncAdmin
from tidelog.client.admin import ConfigResource, ResourceType
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition
from tidelog.controller import layout
from tidelog.server.server import StartError


class Troubles:
    """What can be done to one cluster."""

    def __init__(
        self,
        plan: Plan,
        loop: SimulatedLoop,
        network: SimulatedNetwork,
        ensemble: Ensemble,
        kills: KillSwitch,
        brokers: Mapping[int, SimulatedBroker],
        bootstrap: str,
    ) -> None:
        self.requests_answered = 0
        self.power_cuts = 0
        self.starts_failed: list[str] = []
        self._plan = plan
        self._loop = loop
        self._network = network
        self._ensemble = ensemble
        self._kills = kills
        self._brokers = brokers
        self._bootstrap = bootstrap
        self._starting: set[SimulatedBroker] = set()

    def make(self, trouble: Trouble, disk: SimulatedDisk) -> None:
        """Troubles of brokers and networks; those of applications are up to who runs them."""
        broker = self._brokers.get(trouble.node)
        if broker is None:
            return
        match trouble.kind:
            case "kill" | "kill in write" | "kill controller" | "stop" | "pause":
                self._end(trouble, broker)
            case "cut pair" | "cut one way" | "cut off" | "cut from store" | "heal":
                self._cut(trouble, broker)
            case "expire session" | "depose controller":
                self._expire(trouble)
            case "wrong clock":
                broker.clock.wrong_by_ms = int(trouble.value)
            case "elect" | "reassign" | "alter topic":
                self._loop.spawn(self._loop.process("operator"), self._ask(trouble))
            case "power cut":
                # Of one broker only: a second one could take the only copy of what the first one left.
                broker.cut_power(disk, random.Random(int(trouble.value)))
                self.power_cuts += 1
            case _:
                self._spoil_disk(trouble, broker)

    def _end(self, trouble: Trouble, broker: SimulatedBroker) -> None:
        match trouble.kind:
            case "kill":
                broker.kill()
            case "kill in write":
                broker.kill_while_it_writes(int(trouble.value), trouble.share)
            case "kill controller":
                controller = self.controller()
                if controller is not None and (not self._plan.victim or controller is self._brokers[self._plan.victim]):
                    controller.kill()
            case "stop" if broker.is_up:
                self._loop.spawn(self._loop.outside, broker.stop())
            case "pause" if broker.is_up:
                assert broker.process is not None
                self.pause(broker.process, trouble.value)

    def _cut(self, trouble: Trouble, broker: SimulatedBroker) -> None:
        other = self._brokers.get(trouble.other, broker)
        match trouble.kind:
            case "cut pair":
                self._cut_both(broker, other)
            case "cut one way":
                self._network.cut(broker.host, other.host)
            case "cut off":
                for each in self._brokers.values():
                    if each is not broker:
                        self._cut_both(broker, each)
            case "cut from store":
                self._network.cut(broker.host, STORE_HOST)
                if trouble.share < 0.5:
                    self._network.cut(STORE_HOST, broker.host)
            case "heal":
                self._network.heal()

    def _cut_both(self, one: SimulatedBroker, other: SimulatedBroker) -> None:
        self._network.cut(one.host, other.host)
        self._network.cut(other.host, one.host)

    def _expire(self, trouble: Trouble) -> None:
        key = layout.CONTROLLER if trouble.kind == "depose controller" else layout.live_key(trouble.node)
        owner = self._ensemble.owner_of(key)
        if owner is not None:
            self._ensemble.expire(owner)

    def _spoil_disk(self, trouble: Trouble, broker: SimulatedBroker) -> None:
        match trouble.kind:
            case "slow disk" if broker.process is not None:
                broker.process.thread_slowness = trouble.value
            case "stalled disk" if broker.process is not None:
                broker.process.stalled_until_s = self._loop.time() + trouble.value
            case "stalled flushes":
                self._kills.stall_flushes(broker.host, self._loop.time() + trouble.value)
            case "full disk":
                self._kills.break_disk(broker.host, errno.ENOSPC)
            case "failing disk":
                self._kills.break_disk(broker.host, errno.EIO)
            case "repair disks":
                self._repair_disks()

    def pause(self, process: Process, pause_s: float) -> None:
        process.is_paused = True
        self._loop.schedule(self._loop.outside, self._loop.time() + pause_s, setattr, process, "is_paused", False)

    async def _ask(self, trouble: Trouble) -> None:
        """What an operator asks for, who may be refused, or find nobody."""
        topic = (SOURCE, TARGET)[trouble.other % 2]
        try:
            async with AsyncAdmin(bootstrap_servers=self._bootstrap, request_timeout_ms=3_000) as admin:
                match trouble.kind:
                    case "elect":
                        await admin.elect_leaders()
                    case "reassign":
                        partition = TopicPartition(topic, trouble.other // 2 % PARTITIONS)
                        await admin.alter_partition_reassignments({partition: replicas_of(trouble, self._plan)})
                    case "alter topic":
                        resource = ConfigResource(ResourceType.TOPIC, topic)
                        (await admin.incremental_alter_configs({resource: self._alteration(trouble)}))[resource]
                self.requests_answered += 1
        except (ClientError, TimeoutError):
            return

    def _alteration(self, trouble: Trouble) -> dict[str, str]:
        if trouble.share < 0.6 and not self._plan.victim:
            return {"min.insync.replicas": str(1 + int(trouble.value) % 2)}
        return {"segment.bytes": str((2_000, 100_000)[int(trouble.value) % 2])}

    # Brokers that are down

    def start_again(self, broker: SimulatedBroker) -> None:
        """Start it, unless it runs or is about to."""
        is_alive = broker.process is not None and broker.process.is_alive
        if not is_alive and broker not in self._starting:
            self._starting.add(broker)
            self._loop.spawn(self._loop.outside, self._start(broker))

    async def _start(self, broker: SimulatedBroker) -> None:
        """Start it; a start that gives up, because others could not be reached, is made again later."""
        try:
            await broker.start()
        except StartError as error:
            self.starts_failed.append(str(error))
            broker.kill()
        finally:
            self._starting.discard(broker)

    def controller(self) -> SimulatedBroker | None:
        rec = self._ensemble.memory._records.get(layout.CONTROLLER)
        if rec is None:
            return None
        broker = self._brokers[layout.parse_controller(layout.decode(rec.value)).node_id]
        return broker if broker.is_up else None

    def _repair_disks(self) -> None:
        self._kills.repair_disks()
        self.kill_where_disks_had_failed()

    def kill_where_disks_had_failed(self) -> None:
        """Have brokers look again at disks that they found failed: they do when they start."""
        for broker in self._brokers.values():
            logs = broker.server.services.logs if broker.server is not None else None
            if logs is not None and (logs._offline or any(each.offline_reason for each in logs.directories)):
                broker.kill()

    def settle(self) -> None:
        """The troubles are over."""
        self._network.weather.calm()
        self._network.heal()
        self._ensemble.weather.calm()
        self._kills.spare_all()
        self._repair_disks()
        for broker in self._brokers.values():
            if broker.process is not None:
                broker.process.is_paused = False
                broker.process.thread_slowness = 1.0
                broker.process.stalled_until_s = 0.0
