"""What a workload leaves out where a piece is missing, and how it says so."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from tidelog.torture.workloads import Place
from tidelog.torture.workloads.copy import CopyWorkload
from tidelog.torture.workloads.handover import HandoverWorkload


def prepared_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, libs: Path | None) -> CopyWorkload:
    monkeypatch.setattr(CopyWorkload, "errand", lambda self, errand, **order: None)
    copy = CopyWorkload()
    copy.prepare(Place("127.0.0.1:1", tmp_path / "copy", java_libs=libs))
    return copy


def test_without_jars_there_is_no_copier_in_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = prepared_copy(monkeypatch, tmp_path, None)
    assert copy.notes.left_out == {
        "copier java": "the jars of Kafka's client are not here; Maven brings them: "
        "apt-get install maven openjdk-17-jdk-headless"
    }
    assert [name.rpartition("-")[2] for name in copy.topics()] == ["source", "tidelog", "confluent"]
    copy = prepared_copy(monkeypatch, tmp_path, tmp_path)
    assert copy.notes.left_out == {"copier java": f"there is no kafka-clients-*.jar in {tmp_path}"}


def test_without_a_jdk_there_is_no_copier_in_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kafka-clients-4.3.1.jar").touch()
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "javac" else f"/usr/bin/{program}")
    copy = prepared_copy(monkeypatch, tmp_path, tmp_path)
    assert copy.notes.left_out == {"copier java": "javac was not found: apt-get install openjdk-17-jdk-headless"}


def test_without_confluent_kafka_ours_copies_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    copy = prepared_copy(monkeypatch, tmp_path, None)
    assert copy.notes.left_out["copier confluent"] == ("confluent-kafka is not installed: pip install 'tidelog[bench]'")
    assert [name.rpartition("-")[2] for name in copy.topics()] == ["source", "tidelog"]


@pytest.mark.parametrize(
    ("features", "protocols"), [({"group.version": 1}, ["classic", "consumer"]), ({}, ["classic"])]
)
def test_an_old_cluster_has_classic_groups_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, features: dict[str, int], protocols: list[str]
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def errand(self: HandoverWorkload, errand: str, **order: Any) -> Any:
        asked.append((errand, order))
        return features if errand == "features" else None

    monkeypatch.setattr(HandoverWorkload, "errand", errand)
    handover = HandoverWorkload()
    handover.prepare(Place("127.0.0.1:1", tmp_path / "handover", replication_factor=2, min_isr=1))
    assert [name.rpartition("-")[2] for name in handover.topics()] == protocols
    assert list(handover.notes.left_out) == ([] if len(protocols) == 2 else ["consumer protocol"])
    errand_name, order = asked[-1]
    assert errand_name == "create"
    assert order["topics"] == handover.topics()
    assert order["replication_factor"] == 2
    assert order["configs"] == {"min.insync.replicas": "1"}
