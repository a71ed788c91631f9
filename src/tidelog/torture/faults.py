"""The faults: how each kind is drawn, begun and undone.

What always holds: `begin`, `hold` and `end` of a fault run one after another in a thread of its own, and `end` runs
whatever happened before, so it undoes also what was only half begun, and may be called again. A fault names what it
`needs` for itself: two that need the same thing never overlap.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.client.admin import ElectionType
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition
from tidelog.torture.cluster import GLANCE_MS, TortureCluster
from tidelog.torture.disks import DiskImage
from tidelog.torture.errors import TortureError
from tidelog.torture.networks import LinkSpeed, Networks
from tidelog.torture.nodes import Node, NodeError, start_all, wait_for

# A fault lasts from an instant to longer than any session, lag time and request time-out of `settings_for`.
_HOLDS_S: Final = ((0.2, 2.0), (2.0, 7.0), (7.0, 20.0))
# Below an hour: that far from its own clock a broker takes records' timestamps. Nothing expires within it, either.
_JUMP_S_MAX: Final = 45 * 60
_LINKS: Final = (LinkSpeed(256, 200, 2.0), LinkSpeed(1_000, 80, 1.0), LinkSpeed(4_000, 30, 0.5))
_STALL_S: Final = (0.3, 3.0)
_BREATH_S: Final = (0.05, 0.5)
_FLAP_S: Final = (0.2, 3.0)
_PROBE_S: Final = 0.2

NETWORK: Final = "the network"
DISKS: Final = "disks"
"""One disk at a time: two that fail could take the last copies of a record with them."""
KILLS: Final = "killed brokers"
"""Those that run while a disk has failed have the last copies that are sure to be whole."""


class Refused(Exception):  # noqa: N818 - not an error
    """The cluster did not take a request now, which is no finding while things are broken; the text says why."""


class Client(Protocol):
    """A workload whose clients may be killed."""

    @property
    def name(self) -> str: ...
    def kill_one(self, rng: random.Random) -> str: ...


Hold = Callable[[float], bool]
"""Waits, and returns whether the time passed: False means that everything is to be healed."""


def _nothing() -> None:
    """For faults that are over at once."""


@dataclass(frozen=True)
class Fault:
    """Something to be broken, and how it is mended."""

    kind: str
    target: str
    needs: frozenset[str]
    begin: Callable[[], str | None]
    """Breaks it; returns what is worth telling beside `detail`."""
    end: Callable[[], None] = _nothing
    hold_s: float = 0.0
    detail: str = ""
    during: Callable[[Hold], None] | None = None
    """What happens instead of waiting for `hold_s`."""


class Scene:
    """What faults are drawn from: a cluster, its clients, and what is not already in use by other faults."""

    def __init__(
        self,
        cluster: TortureCluster,
        clients: Sequence[Client],
        rng: random.Random,
        busy: Collection[str] = (),
        *,
        unsafe: bool = False,
    ) -> None:
        self.cluster = cluster
        self.clients = clients
        self.rng = rng
        self.busy = busy
        self.unsafe = unsafe

    def is_free(self, *needs: str) -> bool:
        return not any(need in self.busy for need in needs)

    def free(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of the servers to which nothing is being done."""
        return [node for node in nodes if self.is_free(node.name) and node.is_up]

    def pick(self, nodes: Iterable[Node]) -> Node | None:
        free = self.free(nodes)
        return self.rng.choice(free) if free else None

    def hold_s(self) -> float:
        return round(self.rng.uniform(*self.rng.choice(_HOLDS_S)), 1)

    @property
    def networks(self) -> Networks[str]:
        if self.cluster.networks is None:
            raise TortureError("the servers of this cluster have no networks of their own")
        return self.cluster.networks


def draw(kind: str, scene: Scene) -> Fault | None:
    """A fault of a kind; None if it can't be begun now, for example because other faults are in its way."""
    return _DRAWS[kind](scene)


def _seconds(hold_s: float) -> str:
    return f"{hold_s:g} s"


# Processes


def _killed(scene: Scene, kind: str, nodes: Sequence[Node]) -> Fault:
    hold_s = scene.hold_s()

    def begin() -> None:
        for node in nodes:
            node.kill()

    return Fault(
        kind,
        ", ".join(node.name for node in nodes),
        frozenset(node.name for node in nodes),
        begin,
        lambda: start_all(nodes),
        hold_s,
        f"down for {_seconds(hold_s)}",
    )


def _to_kill(scene: Scene) -> list[Node]:
    return scene.free(scene.cluster.nodes) if scene.unsafe or scene.is_free(KILLS) else []


def _kill(scene: Scene) -> Fault | None:
    node = scene.pick(_to_kill(scene))
    return None if node is None else _killed(scene, "kill", [node])


def _kill_two(scene: Scene) -> Fault | None:
    free = _to_kill(scene)
    return None if len(free) < 2 else _killed(scene, "kill-two", scene.rng.sample(free, 2))


def _kill_controller(scene: Scene) -> Fault | None:
    node = scene.cluster.controller()
    if node is None or node not in _to_kill(scene):
        return None
    return _killed(scene, "kill-controller", [node])


def _kill_store(scene: Scene) -> Fault | None:
    node = _store_server(scene)
    return None if node is None else _killed(scene, "kill-store", [node])


def _store_server(scene: Scene) -> Node | None:
    """One that may be lacking: a majority of the servers always runs."""
    nodes = scene.cluster.store_nodes
    out = len(nodes) - len(scene.free(nodes))
    if not scene.unsafe and 2 * (out + 1) >= len(nodes):
        return None
    return scene.pick(nodes)


def _paused(scene: Scene, kind: str, node: Node | None) -> Fault | None:
    if node is None:
        return None
    hold_s = scene.hold_s()

    def end() -> None:
        node.resume()
        node.start()

    return Fault(kind, node.name, frozenset({node.name}), node.pause, end, hold_s, f"for {_seconds(hold_s)}")


def _pause(scene: Scene) -> Fault | None:
    return _paused(scene, "pause", scene.pick(scene.cluster.nodes))


def _pause_store(scene: Scene) -> Fault | None:
    return _paused(scene, "pause-store", _store_server(scene))


def _stop_start(scene: Scene) -> Fault | None:
    node = scene.pick(scene.cluster.nodes)
    if node is None:
        return None
    hold_s = scene.hold_s()
    return Fault(
        "stop-start",
        node.name,
        frozenset({node.name}),
        node.stop,
        node.start,
        hold_s,
        f"down for {_seconds(hold_s)}",
    )


def _rolling_restart(scene: Scene) -> Fault | None:
    nodes = list(scene.cluster.nodes)
    if len(scene.free(nodes)) < len(nodes):
        return None
    scene.rng.shuffle(nodes)
    cluster = scene.cluster

    def during(hold: Hold) -> None:
        for node in nodes:
            if not hold(0):
                return
            node.stop()
            node.start()
            # As one is told to do it: the next one stops when no replica is behind, unless other faults keep them so.
            patience_s = time.monotonic() + 20.0
            while not cluster.is_in_sync() and time.monotonic() < patience_s and hold(_PROBE_S):
                pass

    return Fault(
        "rolling-restart",
        ", ".join(node.name for node in nodes),
        frozenset(node.name for node in nodes),
        _nothing,
        lambda: start_all(nodes),
        during=during,
    )


# Networks


def _cut(scene: Scene, kind: str, target: str, cut: Callable[[Networks[str]], None]) -> Fault:
    networks, hold_s = scene.networks, scene.hold_s()
    return Fault(
        kind,
        target,
        frozenset({NETWORK}),
        lambda: cut(networks),
        networks.mend,
        hold_s,
        f"for {_seconds(hold_s)}",
    )


def _halves(scene: Scene, members: Sequence[Node]) -> tuple[list[str], list[str]]:
    """Two parts of the brokers, neither empty, with the store's servers spread over them."""
    brokers = [node.name for node in members]
    scene.rng.shuffle(brokers)
    size = scene.rng.randint(1, len(brokers) - 1)
    halves = brokers[:size], brokers[size:]
    for node in scene.cluster.store_nodes:
        scene.rng.choice(halves).append(node.name)
    return halves


def _named(*groups: Iterable[str]) -> str:
    return " | ".join(", ".join(sorted(group)) for group in groups)


def _cut_halves(scene: Scene) -> Fault | None:
    if not scene.is_free(NETWORK):
        return None
    some, others = _halves(scene, scene.cluster.nodes)
    return _cut(scene, "cut-halves", _named(some, others), lambda networks: networks.cut_between(some, others))


def _cut_bridge(scene: Scene) -> Fault | None:
    if not scene.is_free(NETWORK):
        return None
    nodes = scene.cluster.nodes
    bridge = scene.rng.choice(nodes)
    some, others = _halves(scene, [node for node in nodes if node is not bridge])
    target = f"{_named(some, others)}; {bridge.name} sees both"
    return _cut(scene, "cut-bridge", target, lambda networks: networks.cut_between(some, others))


def _cut_one_way(scene: Scene) -> Fault | None:
    if not scene.is_free(NETWORK):
        return None
    members = [node.name for node in (*scene.cluster.nodes, *scene.cluster.store_nodes)]
    source = scene.rng.choice(members)
    others = [name for name in members if name != source]
    targets = scene.rng.sample(others, scene.rng.randint(1, len(others)))
    described = f"{source} to {', '.join(sorted(targets))}"
    return _cut(scene, "cut-one-way", described, lambda networks: networks.cut(source, *targets))


def _cut_flapping(scene: Scene) -> Fault | None:
    if not scene.is_free(NETWORK):
        return None
    networks = scene.networks
    some, others = _halves(scene, scene.cluster.nodes)
    times_s = [scene.rng.uniform(*_FLAP_S) for _ in range(2 * scene.rng.randint(2, 8))]

    def during(hold: Hold) -> None:
        for cut_s, mended_s in zip(times_s[::2], times_s[1::2], strict=True):
            networks.cut_between(some, others)
            if not hold(cut_s):
                return
            networks.mend()
            if not hold(mended_s):
                return

    return Fault(
        "cut-flapping",
        _named(some, others),
        frozenset({NETWORK}),
        _nothing,
        networks.mend,
        sum(times_s),
        f"{len(times_s) // 2} times within {_seconds(round(sum(times_s), 1))}",
        during,
    )


def _cut_from_store(scene: Scene) -> Fault | None:
    if not scene.is_free(NETWORK):
        return None
    node = scene.rng.choice(scene.cluster.nodes)
    return _cut(scene, "cut-from-store", node.name, lambda _: scene.cluster.cut_from_store(node))


def _cut_store(scene: Scene) -> Fault | None:
    if not scene.is_free(NETWORK):
        return None
    nodes = scene.cluster.store_nodes
    node = scene.rng.choice(nodes)
    brokers = [each.name for each in scene.cluster.nodes]
    others = [each.name for each in nodes if each is not node]
    others += scene.rng.sample(brokers, scene.rng.randint(0, len(brokers)))
    target = _named([node.name], others)
    return _cut(scene, "cut-store", target, lambda networks: networks.cut_between([node.name], others))


def _slow_link(scene: Scene) -> Fault | None:
    free = [node for node in scene.cluster.nodes if scene.is_free(f"link of {node.name}")]
    if not free:
        return None
    networks, node, hold_s = scene.networks, scene.rng.choice(free), scene.hold_s()
    speed = scene.rng.choice(_LINKS)
    return Fault(
        "slow-link",
        node.name,
        frozenset({f"link of {node.name}"}),
        lambda: networks.slow_down(node.name, speed),
        lambda: networks.speed_up(node.name),
        hold_s,
        f"for {_seconds(hold_s)}",
    )


# Disks


def _disk_of(scene: Scene) -> tuple[Node, DiskImage] | None:
    if not scene.unsafe and not scene.is_free(DISKS):
        return None
    node = scene.pick(scene.cluster.nodes)
    if node is None or node.disk is None:
        return None
    return node, node.disk


def _disk_needs(scene: Scene, node: Node) -> frozenset[str]:
    # The broker may end by itself, or wait for its disk so that it can't be killed.
    return frozenset({node.name} if scene.unsafe else {node.name, DISKS})


def _full_disk(scene: Scene) -> Fault | None:
    found = _disk_of(scene)
    if found is None:
        return None
    (node, disk), hold_s = found, scene.hold_s()

    def during(hold: Hold) -> None:
        ends_s = time.monotonic() + hold_s
        while time.monotonic() < ends_s and hold(min(1.0, hold_s)):
            disk.fill()  # what retention or a restart gave back

    def end() -> None:
        disk.make_room()
        node.start()

    return Fault(
        "full-disk", node.name, _disk_needs(scene, node), disk.fill, end, hold_s, f"for {_seconds(hold_s)}", during
    )


def _failing_disk(scene: Scene) -> Fault | None:
    found, nodes = _disk_of(scene), scene.cluster.nodes
    # It loses what was not flushed: only where all other replicas have everything may it begin. A broker that is killed
    # counts as one that may have lost records, too, so none may be killed until this one has caught up.
    if found is None or not (scene.unsafe or (len(scene.free(nodes)) == len(nodes) and scene.cluster.is_in_sync())):
        return None
    (node, disk), hold_s, cluster = found, scene.hold_s(), scene.cluster

    def end() -> None:
        if disk.is_broken:
            node.kill()
            disk.mend_file_system()
        node.start()

    def during(hold: Hold) -> None:
        hold(hold_s)
        while hold(_PROBE_S):
            with contextlib.suppress(NodeError):  # other faults may keep it from starting
                end()
                if cluster.is_in_sync():
                    return

    return Fault(
        "failing-disk",
        node.name,
        _disk_needs(scene, node) | {KILLS},
        disk.break_file_system,
        end,
        detail=f"read-only for {_seconds(hold_s)}, then checked, and the broker restarted",
        during=during,
    )


def _slow_disk(scene: Scene) -> Fault | None:
    found = _disk_of(scene)
    if found is None:
        return None
    (node, disk), rng = found, random.Random(scene.rng.getrandbits(64))
    hold_s = scene.hold_s()

    def during(hold: Hold) -> None:
        ends_s = time.monotonic() + hold_s
        while time.monotonic() < ends_s:
            disk.freeze()
            goes_on = hold(rng.uniform(*_STALL_S))
            disk.thaw()
            if not goes_on or not hold(rng.uniform(*_BREATH_S)):
                return

    def end() -> None:
        disk.thaw()
        node.start()

    return Fault(
        "slow-disk",
        node.name,
        _disk_needs(scene, node),
        _nothing,
        end,
        hold_s,
        f"stalls for up to {_STALL_S[1]:g} s at a time, for {_seconds(hold_s)}",
        during,
    )


# Clocks


def _clock_jump(scene: Scene) -> Fault | None:
    free = [node for node in scene.cluster.nodes if node.clock is not None and scene.is_free(f"clock of {node.name}")]
    if not free:
        return None
    node = scene.rng.choice(free)
    clock = node.clock
    assert clock is not None  # as those were chosen
    # As often by seconds as by minutes.
    wrong_by_s = round(_JUMP_S_MAX ** scene.rng.random() * scene.rng.choice((-1, 1)), 1)
    hold_s = scene.hold_s()
    return Fault(
        "clock-jump",
        node.name,
        frozenset({f"clock of {node.name}"}),
        lambda: clock.jump(wrong_by_s),
        lambda: clock.jump(0),
        hold_s,
        f"wrong by {wrong_by_s:+g} s for {_seconds(hold_s)}",
    )


# What the cluster does by request, and clients


def _reassign(scene: Scene) -> Fault | None:
    """A partition moves to other brokers; where it has a replica on each, it loses one and gets it back."""
    # While it has a replica less, no disk may lose another one.
    if not scene.is_free("replicas", DISKS):
        return None
    cluster, rng = scene.cluster, scene.rng
    try:
        with cluster.admin(GLANCE_MS) as admin:
            brokers = [node.node_id for node in admin.describe_cluster().nodes]
            partitions = {
                partition: list(each.replicas)
                for partition, each in cluster.partitions(admin).items()
                if len(each.replicas) >= 2 and sorted(each.isr) == sorted(each.replicas)
            }
    except ClientError:
        return None  # it does not answer now
    if not partitions:
        return None
    partition = rng.choice(sorted(partitions))
    before = partitions[partition]
    others = [node_id for node_id in brokers if node_id not in before]
    after = rng.sample(before, len(before) - 1)
    if others:
        after.append(rng.choice(others))
    finally_ = after if others else rng.sample(before, len(before))
    rng.shuffle(after)

    def during(hold: Hold) -> None:
        while _is_moving(cluster, partition) and hold(_PROBE_S):
            pass

    return Fault(
        "reassign",
        f"{partition.topic}-{partition.partition}",
        frozenset({"replicas", DISKS}),
        lambda: _ask_to_move(cluster, partition, after),
        lambda: _insist_on(cluster, partition, finally_),
        detail=f"from {before} to {after}" + ("" if others else f" to {finally_}"),
        during=during,
    )


def _ask_to_move(cluster: TortureCluster, partition: TopicPartition, replicas: Sequence[int]) -> None:
    try:
        with cluster.admin() as admin:
            admin.alter_partition_reassignments({partition: replicas}).raise_for_errors()
    except ClientError as error:
        raise Refused(str(error)) from error


def _is_moving(cluster: TortureCluster, partition: TopicPartition) -> bool:
    try:
        with cluster.admin() as admin:
            return bool(admin.list_partition_reassignments([partition]))
    except ClientError:
        return True


def _insist_on(cluster: TortureCluster, partition: TopicPartition, replicas: Sequence[int]) -> None:
    """Ask for these replicas until the cluster has taken the request; it copies what they lack in its own time."""
    refusals: list[str] = []

    def is_taken() -> bool:
        try:
            with cluster.admin() as admin:
                known = cluster.partitions(admin).get(partition)
                # One that was deleted meanwhile needs none.
                if known is not None and sorted(known.replicas) != sorted(replicas):
                    admin.alter_partition_reassignments({partition: replicas}).raise_for_errors()
        except ClientError as error:
            refusals.append(str(error))
            return False
        return True

    name = f"{partition.topic}-{partition.partition}"
    wait_for(f"{name} gets replicas {[*replicas]}", is_taken, lambda: refusals[-1:])


def _elect(scene: Scene) -> Fault | None:
    if not scene.is_free("leaders"):
        return None
    cluster = scene.cluster

    def begin() -> str:
        try:
            with cluster.admin() as admin:
                partitions = cluster.partitions(admin)
                if not partitions:
                    # No partitions would mean all of them, and some may be somebody else's.
                    raise Refused("there are no topics yet")
                results = admin.elect_leaders(ElectionType.PREFERRED, partitions)
        except ClientError as error:
            raise Refused(str(error)) from error
        # Those that need no election are among the errors.
        return f"{len(partitions) - len(results.errors)} of {len(partitions)} partitions changed leaders"

    return Fault("elect", "all partitions", frozenset({"leaders"}), begin)


def _kill_client(scene: Scene) -> Fault | None:
    if not scene.clients:
        return None
    client, rng = scene.rng.choice(scene.clients), random.Random(scene.rng.getrandbits(64))
    return Fault("kill-client", client.name, frozenset(), lambda: client.kill_one(rng))


_DRAWS: Final[dict[str, Callable[[Scene], Fault | None]]] = {
    "kill": _kill,
    "kill-two": _kill_two,
    "kill-controller": _kill_controller,
    "pause": _pause,
    "stop-start": _stop_start,
    "rolling-restart": _rolling_restart,
    "cut-halves": _cut_halves,
    "cut-bridge": _cut_bridge,
    "cut-one-way": _cut_one_way,
    "cut-flapping": _cut_flapping,
    "cut-from-store": _cut_from_store,
    "slow-link": _slow_link,
    "full-disk": _full_disk,
    "failing-disk": _failing_disk,
    "slow-disk": _slow_disk,
    "clock-jump": _clock_jump,
    "kill-store": _kill_store,
    "pause-store": _pause_store,
    "cut-store": _cut_store,
    "reassign": _reassign,
    "elect": _elect,
    "kill-client": _kill_client,
}
