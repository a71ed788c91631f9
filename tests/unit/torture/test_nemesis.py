"""The nemesis on a cluster that only notes what is done to it: what is drawn, by which rules, and that it is undone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tidelog.client.admin import Admin
from tidelog.client.errors import ClientError
from tidelog.torture.clocks import WallClock
from tidelog.torture.cluster import TortureCluster
from tidelog.torture.disks import DiskImage
from tidelog.torture.errors import TortureError
from tidelog.torture.fault_kinds import DISK_KINDS, FAULT_KINDS, FOREIGN_KINDS, NETWORK_KINDS
from tidelog.torture.faults import DISKS, NETWORK, Fault, Refused, Scene, draw
from tidelog.torture.nemesis import AT_ONCE_MAX, CALM_EVERY, Nemesis
from tidelog.torture.networks import LinkSpeed, Networks
from tidelog.torture.nodes import ClosedError, Node, NodeError

REQUESTS = {"reassign", "elect"}


class NotedNode(Node):
    """A server that runs or does not."""

    def __init__(self, name: str, node_id: int) -> None:
        super().__init__(name, node_id)
        self.runs = True
        self.fails_to_start = 0
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return 1 if self.runs else None

    @property
    def exit_code(self) -> int | None:
        return None if self.runs else 7

    def launch(self) -> None:
        if self.fails_to_start:
            self.fails_to_start -= 1
            raise NodeError(f"{self.name} ended when it was started\nwhy")
        self.starts += not self.runs
        self.runs = True

    def wait_until_up(self) -> None:
        assert self.runs

    def _kill(self) -> None:
        self.runs = False

    def _stop(self, timeout_s: float) -> None:
        self.runs = False

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


class NotedDisk:
    """A disk whose state is noted."""

    def __init__(self) -> None:
        self.is_full = self.is_broken = self.is_frozen = False
        self.is_mounted = True

    def fill(self) -> None:
        self.is_full = True

    def make_room(self) -> None:
        self.is_full = False

    def break_file_system(self) -> None:
        self.is_broken = True

    def mend_file_system(self) -> None:
        self.is_broken = False

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False

    @property
    def is_harmed(self) -> bool:
        return self.is_full or self.is_broken or self.is_frozen


class NotedClock:
    """A clock that is wrong by some seconds."""

    wrong_by_s = 0.0

    def jump(self, wrong_by_s: float) -> None:
        self.wrong_by_s = wrong_by_s


class NotedNetworks:
    """Networks whose cuts and slow links are noted."""

    def __init__(self) -> None:
        self.cuts: set[tuple[str, str]] = set()
        self.slow: set[str] = set()

    def cut(self, source: str, *targets: str) -> None:
        self.cuts |= {(source, target) for target in targets}

    def cut_between(self, some: list[str], others: list[str]) -> None:
        assert some
        assert others
        assert not {*some} & {*others}
        self.cuts |= {(a, b) for a in some for b in others} | {(b, a) for a in some for b in others}

    def mend(self) -> None:
        self.cuts.clear()

    def slow_down(self, member: str, speed: LinkSpeed) -> str:
        assert speed.kbit_per_s > 0
        self.slow.add(member)
        return "slow"

    def speed_up(self, member: str) -> None:
        self.slow.discard(member)


class NotedCluster(TortureCluster):
    """Three brokers and three servers of a store."""

    kind = "noted"
    version = "1"
    bootstrap = "127.0.0.1:1"

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"), 3, FAULT_KINDS)
        self.nodes = [NotedNode(f"broker-{number}", number) for number in (1, 2, 3)]
        self.store_nodes = [NotedNode(f"zookeeper-{number}", number) for number in (1, 2, 3)]
        for node in self.nodes:
            node.disk = cast(DiskImage, NotedDisk())
            node.clock = cast(WallClock, NotedClock())
        self.networks = cast("Networks[str]", NotedNetworks())
        self.in_sync = True
        self.waits = 0
        self.heals = True
        self.ends_in_a_calm: NotedNode | None = None
        self.is_never_healthy = False

    def start(self) -> None: ...

    def controller(self) -> Node | None:
        return self.nodes[0]

    def can(self, kind: str) -> str | None:
        return None

    def compare_replicas(self) -> list[str]:
        return []

    def cut_from_store(self, node: Node) -> None:
        self.noted_networks.cut_between([node.name], [each.name for each in self.store_nodes])

    def is_in_sync(self) -> bool:
        return self.in_sync

    def wait_until_healthy(self, progress: Callable[[str], None], meanwhile: Callable[[], None] = lambda: None) -> None:
        self.waits += 1
        if self.ends_in_a_calm is not None:
            self.ends_in_a_calm.runs = False
            self.ends_in_a_calm = None
        while self.harm() or self.is_never_healthy:
            meanwhile()
        if not self.heals:
            raise TortureError("the cluster is not healthy")

    @contextmanager
    def admin(self, patience_ms: int = 0) -> Iterator[Admin]:  # type: ignore[override]  # nobody answers
        raise ClientError("nobody answers")
        yield

    @property
    def noted_networks(self) -> NotedNetworks:
        return cast(NotedNetworks, self.networks)

    @property
    def noted_nodes(self) -> list[NotedNode]:
        return cast("list[NotedNode]", [*self.nodes, *self.store_nodes])

    @property
    def disks(self) -> list[NotedDisk]:
        return cast("list[NotedDisk]", [node.disk for node in self.nodes])

    @property
    def clocks(self) -> list[NotedClock]:
        return cast("list[NotedClock]", [node.clock for node in self.nodes])

    def harm(self) -> list[str]:
        """All that is wrong now."""
        wrong = [node.name for node in self.noted_nodes if not node.is_up]
        wrong += ["disk"] * sum(disk.is_harmed for disk in self.disks)
        wrong += [f"clock {clock.wrong_by_s}" for clock in self.clocks if clock.wrong_by_s]
        return [*wrong, *map(str, self.noted_networks.cuts), *self.noted_networks.slow]


class Killed:
    """A workload whose clients are killed."""

    name = "queue"

    def __init__(self) -> None:
        self.kills = 0

    def kill_one(self, rng: random.Random) -> str:
        self.kills += 1
        return f"sender {rng.randint(1, 9)}"


@pytest.fixture
def cluster() -> NotedCluster:
    return NotedCluster()


class Run:
    """A nemesis and what it told."""

    def __init__(self, cluster: NotedCluster, tmp_path: Path, kinds: list[str], **more: Any) -> None:
        self.events: list[str] = []
        self.log = tmp_path / "faults.jsonl"
        self.client = Killed()
        self.nemesis = Nemesis(
            cluster, [self.client], random.Random(5), kinds, 0.0, self.log, self.events.append, **more
        )

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults don't last."""
    monkeypatch.setattr("tidelog.torture.faults._HOLDS_S", ((0.0, 0.01),))
    monkeypatch.setattr("tidelog.torture.faults._FLAP_S", (0.0, 0.01))
    monkeypatch.setattr("tidelog.torture.faults._STALL_S", (0.0, 0.01))
    monkeypatch.setattr("tidelog.torture.faults._BREATH_S", (0.0, 0.01))
    monkeypatch.setattr("tidelog.torture.nemesis._TICK_S", 0.001)
    monkeypatch.setattr("tidelog.torture.nemesis._BETWEEN_ATTEMPTS_S", 0.001)


def held_needs(fault: Fault, busy: set[str]) -> None:
    assert not fault.needs & busy, f"{fault.kind} takes what others use"
    busy |= fault.needs


@pytest.mark.parametrize("kind", sorted(set(FAULT_KINDS) - REQUESTS))
def test_each_kind_breaks_what_it_says_and_mends_it(cluster: NotedCluster, kind: str) -> None:
    client = Killed()
    for seed in range(50):
        fault = draw(kind, Scene(cluster, [client], random.Random(seed)))
        assert fault is not None
        assert fault.kind == kind
        assert fault.target
        harmed: list[bool] = []

        def hold(_seconds: float, harmed: list[bool] = harmed) -> bool:
            harmed.append(bool(cluster.harm()))
            return len(harmed) < 20

        fault.begin()
        if fault.during is None:
            hold(fault.hold_s)
        else:
            fault.during(hold)
        if kind not in ("kill-client", "rolling-restart"):
            assert any(harmed), f"{kind} with seed {seed} did nothing"
        fault.end()
        fault.end()
        assert not cluster.harm()
    assert client.kills == (50 if kind == "kill-client" else 0)
    if kind == "rolling-restart":
        assert min(node.starts for node in cluster.noted_nodes[:3]) > 0


def test_the_same_seed_draws_the_same_faults(cluster: NotedCluster) -> None:
    def drawn(seed: int) -> list[tuple[str, str, str]]:
        rng = random.Random(seed)
        scene = Scene(cluster, [Killed()], rng)
        faults = [draw(kind, scene) for kind in sorted(set(FAULT_KINDS) - REQUESTS) * 3]
        return [(fault.kind, fault.target, fault.detail) for fault in faults if fault is not None]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_one_disk_at_a_time(cluster: NotedCluster) -> None:
    busy: set[str] = set()
    for kind in sorted(DISK_KINDS):
        for seed in range(20):
            fault = draw(kind, Scene(cluster, [], random.Random(seed), busy))
            if fault is not None:
                held_needs(fault, busy)
                assert DISKS in fault.needs
    assert sum(need.startswith("broker") for need in busy) == 1


def test_no_disk_fails_unless_all_replicas_are_in_sync(cluster: NotedCluster) -> None:
    cluster.in_sync = False
    assert draw("failing-disk", Scene(cluster, [], random.Random(1))) is None
    assert draw("full-disk", Scene(cluster, [], random.Random(1))) is not None
    assert draw("failing-disk", Scene(cluster, [], random.Random(1), unsafe=True)) is not None


@pytest.mark.parametrize("kind", ["kill", "kill-two", "kill-controller"])
def test_nobody_is_killed_until_a_broker_whose_disk_failed_has_caught_up(cluster: NotedCluster, kind: str) -> None:
    busy: set[str] = set()
    fault = draw("failing-disk", Scene(cluster, [], random.Random(1)))
    assert fault is not None
    held_needs(fault, busy)
    assert draw(kind, Scene(cluster, [], random.Random(1), busy)) is None
    assert draw(kind, Scene(cluster, [], random.Random(1))) is not None
    assert draw("failing-disk", Scene(cluster, [], random.Random(1), {"broker-1"})) is None

    assert fault.during is not None
    cluster.in_sync = False
    turns = iter(range(100))

    def hold(_seconds: float) -> bool:
        cluster.in_sync = next(turns) == 5
        return True

    fault.during(hold)
    assert next(turns) == 6


def test_a_majority_of_the_store_always_runs(cluster: NotedCluster) -> None:
    busy: set[str] = set()
    for seed in range(20):
        for kind in ("kill-store", "pause-store"):
            fault = draw(kind, Scene(cluster, [], random.Random(seed), busy))
            if fault is not None:
                held_needs(fault, busy)
    assert len(busy) == 1
    cluster.store_nodes[0].kill()
    assert draw("kill-store", Scene(cluster, [], random.Random(1))) is None
    assert draw("kill-store", Scene(cluster, [], random.Random(1), unsafe=True)) is not None


def test_one_cut_at_a_time_and_nothing_twice_to_one_server(cluster: NotedCluster) -> None:
    for kind in NETWORK_KINDS - {"slow-link"}:
        assert draw(kind, Scene(cluster, [], random.Random(1), {NETWORK})) is None
    names = {node.name for node in cluster.nodes}
    for kind in ("kill", "pause", "stop-start", "kill-controller", "full-disk", "rolling-restart"):
        assert draw(kind, Scene(cluster, [], random.Random(1), names)) is None
    assert draw("kill-two", Scene(cluster, [], random.Random(1), {"broker-1", "broker-2"})) is None
    # But a network may be cut beside that, and all brokers may be killed.
    assert draw("cut-halves", Scene(cluster, [], random.Random(1), names)) is not None
    assert draw("kill", Scene(cluster, [], random.Random(1), {"broker-1", "broker-2"})) is not None


def test_clocks_stay_where_brokers_take_records(cluster: NotedCluster) -> None:
    for seed in range(300):
        fault = draw("clock-jump", Scene(cluster, [], random.Random(seed)))
        assert fault is not None
        fault.begin()
        assert 0 < max(abs(clock.wrong_by_s) for clock in cluster.clocks) <= 45 * 60
        fault.end()


def test_cuts_leave_a_bridge(cluster: NotedCluster) -> None:
    for seed in range(50):
        fault = draw("cut-bridge", Scene(cluster, [], random.Random(seed)))
        assert fault is not None
        fault.begin()
        cut = {name for pair in cluster.noted_networks.cuts for name in pair}
        assert len({node.name for node in cluster.nodes} - cut) == 1
        fault.end()


@pytest.mark.usefixtures("instant")
def test_a_run_breaks_everything_and_leaves_nothing_broken(cluster: NotedCluster, tmp_path: Path) -> None:
    kinds = sorted(set(FAULT_KINDS) - REQUESTS)
    run = Run(cluster, tmp_path, kinds)
    wanted = CALM_EVERY + len(kinds)
    most = 0

    def until() -> bool:
        nonlocal most
        most = max(most, len(run.nemesis.broken))
        return run.nemesis.count >= wanted and {row["kind"] for row in run.rows()} == set(kinds)

    run.nemesis.run(until)
    run.nemesis.heal()
    assert not cluster.harm()
    assert not run.nemesis.broken
    assert not run.nemesis.crashes
    assert 1 <= most <= AT_ONCE_MAX
    assert cluster.waits >= 1
    rows = run.rows()
    begun = {(row["kind"], row["target"], row["t0"]) for row in rows if row["t1"] is None}
    ended = {(row["kind"], row["target"], row["t0"]) for row in rows if row["t1"] is not None}
    assert begun == ended
    assert len(begun) == run.nemesis.count
    assert {row["kind"] for row in rows} == set(kinds)
    assert all(row["t1"] >= row["t0"] for row in rows if row["t1"] is not None)
    run.nemesis.close()


def test_heal_ends_faults_that_would_last(
    cluster: NotedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.torture.faults._HOLDS_S", ((1000.0, 1000.0),))
    run = Run(cluster, tmp_path, ["kill", "cut-halves", "clock-jump", "pause-store"])
    run.nemesis.run(lambda: len(cluster.harm()) > 3 and run.nemesis.count == 4)
    assert len(run.nemesis.broken) == 4
    run.nemesis.heal()
    assert not cluster.harm()
    assert sum(row["t1"] is not None for row in run.rows()) == 4
    run.nemesis.close()


@pytest.mark.usefixtures("instant")
def test_what_is_not_possible_now_keeps_nothing_else_waiting(cluster: NotedCluster, tmp_path: Path) -> None:
    cluster.in_sync = False
    run = Run(cluster, tmp_path, ["failing-disk", "pause"])
    run.nemesis.run(lambda: run.nemesis.count >= 5)
    run.nemesis.heal()
    assert {row["kind"] for row in run.rows()} == {"pause"}
    cluster.in_sync = True
    run.nemesis.run(lambda: run.nemesis.count >= 8)
    run.nemesis.heal()
    assert {row["kind"] for row in run.rows()} == {"pause", "failing-disk"}
    run.nemesis.close()


@pytest.mark.usefixtures("instant")
def test_a_server_that_ends_by_itself_is_started_again(cluster: NotedCluster, tmp_path: Path) -> None:
    run = Run(cluster, tmp_path, ["elect"])
    node = cluster.noted_nodes[1]
    node.runs = False
    node.fails_to_start = 2
    run.nemesis.run(lambda: node.starts == 1)
    run.nemesis.heal()
    assert run.nemesis.crashes == ["broker-2 ended by itself with exit code 7"]
    assert "starting again: broker-2 ended when it was started why" in run.events
    run.nemesis.close()


@pytest.mark.usefixtures("instant")
def test_a_server_that_never_starts_ends_the_run(cluster: NotedCluster, tmp_path: Path) -> None:
    run = Run(cluster, tmp_path, ["kill"])
    for node in cluster.noted_nodes:
        node.fails_to_start = 1000
    with pytest.raises(TortureError, match="ended when it was started"):
        run.nemesis.run(lambda: False)
    for node in cluster.noted_nodes:
        node.fails_to_start = 0
    run.nemesis.close()


@pytest.mark.usefixtures("instant")
def test_a_cluster_that_does_not_recover_is_found(cluster: NotedCluster, tmp_path: Path) -> None:
    cluster.heals = False
    run = Run(cluster, tmp_path, ["kill", "kill-client"])
    with pytest.raises(TortureError, match="not healthy"):
        run.nemesis.run(lambda: False)
    assert run.nemesis.count == CALM_EVERY
    run.nemesis.close()


@pytest.mark.usefixtures("instant")
def test_a_server_that_ends_while_all_is_calm_is_started_again(cluster: NotedCluster, tmp_path: Path) -> None:
    cluster.ends_in_a_calm = cluster.noted_nodes[0]
    run = Run(cluster, tmp_path, ["kill-client"])
    run.nemesis.run(lambda: any(event.startswith("healthy") for event in run.events))
    assert run.nemesis.crashes == ["broker-1 ended by itself with exit code 7"]
    run.nemesis.heal()
    run.nemesis.close()


@pytest.mark.usefixtures("instant")
def test_a_calm_ends_when_the_time_is_over(cluster: NotedCluster, tmp_path: Path) -> None:
    cluster.is_never_healthy = True
    run = Run(cluster, tmp_path, ["kill-client"])
    run.nemesis.run(lambda: cluster.waits == 1)
    assert not any(event.startswith("healthy") for event in run.events)
    run.nemesis.heal()
    run.nemesis.close()


@pytest.mark.usefixtures("instant")
def test_an_unexpected_error_is_not_lost(
    cluster: NotedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_self: NotedDisk) -> None:
        raise OSError("no such device")

    monkeypatch.setattr(NotedDisk, "fill", fails)
    run = Run(cluster, tmp_path, ["full-disk"])
    with pytest.raises(TortureError, match="no such device"):
        run.nemesis.run(lambda: False)
    assert not cluster.harm()
    run.nemesis.close()


@pytest.mark.usefixtures("instant")
def test_what_the_cluster_refuses_is_told_and_not_logged(cluster: NotedCluster, tmp_path: Path) -> None:
    run = Run(cluster, tmp_path, ["elect"])
    run.nemesis.run(lambda: any("did not take it" in event for event in run.events))
    run.nemesis.heal()
    assert run.rows() == []
    assert run.nemesis.count == 0
    run.nemesis.close()


@pytest.mark.usefixtures("instant")
def test_a_run_whose_cluster_was_closed_ends_quietly(cluster: NotedCluster, tmp_path: Path) -> None:
    def closed() -> None:
        raise ClosedError("the cluster is closed")

    run = Run(cluster, tmp_path, ["kill"])
    for node in cluster.noted_nodes:
        node.launch = closed  # type: ignore[method-assign]
    run.nemesis.run(lambda: run.nemesis.count > 0 and not run.nemesis.broken)
    run.nemesis.close()


def test_every_kind_is_described_and_can_be_drawn(cluster: NotedCluster) -> None:
    for kind, description in FAULT_KINDS.items():
        assert description
        draw(kind, Scene(cluster, [Killed()], random.Random(1)))
    assert FAULT_KINDS.keys() >= FOREIGN_KINDS


def test_refusals_are_no_findings() -> None:
    assert not issubclass(Refused, TortureError)
