"""Promotions and rollbacks killed with -9 wherever it may hurt, and run again: readers see each switch exactly once."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plain_shop import Shop, check_switch, wait_until
from tidelog.pipeline.versions.registry_rows import Switch
from tidelog.testing import Broker

FAULTS = Path(__file__).parents[1] / "faults"
STEPS = ("prepare", "stop-old", "catch-up", "write", "start-new", "keep")
POINTS = [*(f"{when}:{step}" for step in STEPS for when in ("before", "after")), "in-transaction", "after-commit"]
# How often a switch is killed at a random time; TIDELOG_CHAOS_ROUNDS asks for more.
ROUNDS = int(os.environ.get("TIDELOG_CHAOS_ROUNDS", "6"))
_DEADLINE_S = 60.0


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with Broker() as broker:
        opened = Shop(broker.bootstrap, tmp_path / "state", seed=11)
        try:
            opened.start_orders()
            opened.start_reader()
            yield opened
        finally:
            for version in (1, 2):
                _kill(opened, version)
            opened.close()


def _start_live(shop: Shop) -> None:
    shop.host(1, "live")
    shop.wait_for_batches(1, 3)


def _kill(shop: Shop, version: int) -> bool:
    """Kill the process of a version, unless it is a thread of this one; whether there was one."""
    run = shop.registry.running("totals", version)
    if run is None or run.pid == os.getpid():
        return False
    try:
        os.kill(run.pid, signal.SIGKILL)
    except ProcessLookupError:  # it has just come to its own end
        return False
    wait_until(lambda: shop.registry.running("totals", version) is None, "it to be gone")
    return True


def _start_process(shop: Shop, version: int, role: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        str(FAULTS / "plain_version.py"),
        str(shop.state_dir),
        shop.bootstrap,
        str(version),
        role,
    ]
    return subprocess.Popen(command)


def _switch(shop: Shop, kind: str, point: str) -> int:
    """The exit code of the command."""
    command = [sys.executable, str(FAULTS / "plain_switch.py"), str(shop.state_dir), shop.bootstrap, kind, point]
    return subprocess.run(command, timeout=_DEADLINE_S, check=False).returncode


def _has_ended(shop: Shop, version: int) -> bool:
    return version not in shop.hosts or not shop.hosts[version][1].is_alive()


def _switch_back_and_forth(shop: Shop, points: list[str]) -> list[Switch]:
    """One switch a point: killed there, then run again to its end."""
    for number, point in enumerate(points):
        # A promotion of version 2, then its rollback, then the next promotion.
        kind, new = ("promote", 2) if number % 2 == 0 else ("rollback", 1)
        wait_until(functools.partial(_has_ended, shop, new), "its last process to end")
        shop.host(new, "shadow")
        shop.wait_for_batches(new, 1)
        code = _switch(shop, kind, point)
        if code != 0:
            assert code == -signal.SIGKILL
            # What landed before the end is not begun again.
            if shop.registry.open_switch("totals") is not None or shop.registry.live_version("totals") != new:
                assert _switch(shop, kind, "none") == 0
        assert shop.registry.live_version("totals") == new
    return shop.registry.switches("totals")


def _check(shop: Shop, switches: list[Switch]) -> None:
    last = switches[-1].to_version
    shop.wait_for_batches(last, 2)
    shop.stop_orders()
    shop.wait_for_all(last)
    shop.wait_for_reader(shop.expected(last))
    for switch in switches:
        assert switch.outcome == "done"
        check_switch(shop, switch)
    tokens = {record.switch for record in shop.seen if record.switch is not None}
    assert tokens <= {switch.data["token"] for switch in switches}


@pytest.mark.timeout(600)
def test_killed_at_every_named_point(shop: Shop) -> None:
    _start_live(shop)
    switches = _switch_back_and_forth(shop, POINTS)
    assert len(switches) == len(POINTS)
    _check(shop, switches)


@pytest.mark.timeout(600)
def test_killed_at_random_times(shop: Shop) -> None:
    _start_live(shop)
    random_ = random.Random(3)
    points = [str(random_.randrange(1, 1200)) for _ in range(ROUNDS)]
    _check(shop, _switch_back_and_forth(shop, points))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(ROUNDS // 3))
def test_the_versions_are_killed_while_they_are_switched(shop: Shop, seed: int) -> None:
    """Killed in the middle of a batch, a version ends that batch where it began it before readers are switched."""
    random_ = random.Random(seed)
    processes = [_start_process(shop, 1, "live")]
    shop.wait_for_batches(1, 3)
    processes.append(_start_process(shop, 2, "shadow"))
    shop.wait_for_batches(2, 2)
    command = [sys.executable, str(FAULTS / "plain_switch.py"), str(shop.state_dir), shop.bootstrap, "promote", "none"]
    with subprocess.Popen(command) as promotion:
        try:
            wait_until(lambda: shop.registry.open_switch("totals") is not None, "the promotion to begin")
            kills = 0
            while promotion.poll() is None and kills < 4:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    promotion.wait(random_.uniform(0.01, 0.4))
                kills += _kill(shop, random_.choice([1, 2]))
            assert promotion.wait(_DEADLINE_S) == 0
        finally:
            promotion.kill()
    assert kills > 0
    if shop.registry.running("totals", 2) is None:
        processes.append(_start_process(shop, 2, "live"))
    _check(shop, shop.registry.switches("totals"))
    _kill(shop, 2)
    for process in processes:
        process.wait(_DEADLINE_S)
