"""What is possible on which cluster and machine, and what clusters are told apart by."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tidelog.bench.brokers import free_port
from tidelog.torture import clocks, programs
from tidelog.torture.cluster import ForeignCluster, settings_for
from tidelog.torture.clusters import make_cluster
from tidelog.torture.errors import TortureError
from tidelog.torture.fault_kinds import (
    CLOCK_KINDS,
    DISK_KINDS,
    FAULT_KINDS,
    FOREIGN_KINDS,
    NETWORK_KINDS,
    STORE_KINDS,
)

PROCESS_KINDS = {"kill", "kill-two", "kill-controller", "pause", "stop-start", "rolling-restart"}


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where nothing is missing."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(programs, "find", lambda program: f"/bin/{program}")
    monkeypatch.setattr(shutil, "which", lambda program, **_: f"/bin/{program}")
    monkeypatch.setattr(Path, "exists", lambda _path: True)
    monkeypatch.setattr(Path, "is_dir", lambda _path: True)


def possible(kind: str, brokers: int = 3) -> set[str]:
    cluster = make_cluster(kind, Path("/nowhere"), brokers=brokers, bootstrap="127.0.0.1:1")
    return {fault for fault in FAULT_KINDS if cluster.can(fault) is None}


@pytest.mark.usefixtures("everything")
def test_what_each_cluster_can() -> None:
    everything = set(FAULT_KINDS)
    assert possible("tidelog-zookeeper") == everything
    assert possible("tidelog-sqlite") == everything - STORE_KINDS - {"cut-from-store"}
    assert possible("kafka") == everything - STORE_KINDS
    assert possible("foreign") == FOREIGN_KINDS


@pytest.mark.usefixtures("everything")
def test_what_takes_several_brokers() -> None:
    assert "kill-two" not in possible("tidelog-zookeeper", brokers=2)
    assert "cut-halves" in possible("tidelog-zookeeper", brokers=2)
    alone = possible("tidelog-zookeeper", brokers=1)
    assert not alone & {"cut-halves", "cut-bridge", "failing-disk", "reassign", "kill-two"}
    assert alone >= {"kill", "pause", "full-disk", "clock-jump", "kill-store"}


@pytest.mark.usefixtures("everything")
def test_a_user_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert possible("tidelog-sqlite") == PROCESS_KINDS | CLOCK_KINDS | FOREIGN_KINDS
    cluster = make_cluster("tidelog-zookeeper", Path("/nowhere"))
    for kind in NETWORK_KINDS | DISK_KINDS:
        assert "sudo" in str(cluster.can(kind)), kind


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize(
    ("program", "kind", "package"),
    [
        ("ip", "cut-halves", "iproute2"),
        ("tc", "slow-link", "iproute2"),
        ("nsenter", "cut-store", "util-linux"),
        ("mkfs.ext4", "full-disk", "e2fsprogs"),
        ("findmnt", "failing-disk", "util-linux"),
        ("cc", "clock-jump", "gcc"),
    ],
)
def test_a_missing_program_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, program: str, kind: str, package: str
) -> None:
    def find(name: str, **_: object) -> str | None:
        return None if name == program else f"/bin/{name}"

    monkeypatch.setattr(programs, "find", find)
    monkeypatch.setattr(shutil, "which", find)
    reason = make_cluster("tidelog-zookeeper", Path("/nowhere")).can(kind)
    assert reason is not None
    assert f"{program} was not found" in reason
    assert package in reason


def test_a_kind_that_the_cluster_lacks_names_the_cluster_to_use() -> None:
    cluster = make_cluster("tidelog-sqlite", Path("/nowhere"))
    for kind in (*STORE_KINDS, "cut-from-store"):
        assert "--cluster tidelog-zookeeper" in str(cluster.can(kind))


def test_only_what_was_asked_for_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_cluster("tidelog-sqlite", Path("/nowhere"), faults=["kill"]).faults == {"kill"}
    assert make_cluster("tidelog-sqlite", Path("/nowhere"), faults=["none"]).faults == frozenset()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not make_cluster("tidelog-sqlite", Path("/nowhere")).faults & (NETWORK_KINDS | DISK_KINDS)


def test_an_unknown_cluster_is_refused() -> None:
    with pytest.raises(TortureError, match="tidelog-sqlite, tidelog-zookeeper, kafka"):
        make_cluster("redpanda", Path("/nowhere"))


def test_a_foreign_cluster_that_does_not_answer(unused_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.torture.cluster._ASK_MS", 50)
    cluster = ForeignCluster(f"127.0.0.1:{unused_port}", "torture")
    with pytest.raises(TortureError, match="--bootstrap"):
        cluster.start()
    cluster.close()


@pytest.fixture
def unused_port() -> int:
    return free_port()


@pytest.mark.parametrize(("brokers", "factor", "min_isr"), [(1, "1", "1"), (2, "2", "2"), (3, "3", "2"), (5, "3", "2")])
def test_settings_fit_the_brokers(brokers: int, factor: str, min_isr: str) -> None:
    settings = settings_for(brokers)
    assert settings["default.replication.factor"] == settings["transaction.state.log.replication.factor"] == factor
    assert settings["min.insync.replicas"] == settings["transaction.state.log.min.isr"] == min_isr


def test_clocks_need_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _program: None)
    assert "gcc" in str(clocks.reason_against_clocks())
