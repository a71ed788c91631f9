"""Directories of other brokers are recognized before anything is written to them, and our own are not mistaken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.server.foreign_data import foreign_data_problem

KAFKA = "cluster.id=MkU3OEVBNTcwNTJENDM2Qg\ndirectory.id=x\nnode.id=1\nversion=1\n"


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


FOREIGN: dict[str, dict[str, str]] = {
    "formatted by Kafka": {"meta.properties": KAFKA, "bootstrap.checkpoint": ""},
    "used by Kafka": {"meta.properties": KAFKA, "__cluster_metadata-0/00000000000000000000.log": "x"},
    "without Kafka's metadata log": {"meta.properties": KAFKA, "orders-0/00000000000000000000.log": "x"},
    "of Kafka with ZooKeeper": {"meta.properties": "version=0\nbroker.id=0\ncluster.id=x\n"},
    "topics alone": {"orders-0/00000000000000000000.log": "x", "orders-0/partition.metadata": ""},
    "an empty topic alone": {"orders-0/partition.metadata": ""},
}


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("place", ["data", "data/broker-1"])
def test_a_new_cluster_takes_over_no_logs(tmp_path: Path, files: dict[str, str], place: str) -> None:
    for name, text in files.items():
        write(tmp_path / place / name, text)
    data = tmp_path / "data"
    problem = foreign_data_problem(data, [data / "broker-1"], data / "metadata.sqlite")
    assert problem is not None
    assert str(tmp_path / place) in problem
    assert "\n" not in problem


@pytest.mark.parametrize("metadata", ["", "x"])
def test_no_cluster_takes_over_what_only_kafka_can_have_made(tmp_path: Path, metadata: str) -> None:
    write(tmp_path / "metadata.sqlite", metadata)
    write(tmp_path / "broker-1" / "meta.properties", KAFKA)
    ours = (tmp_path, [tmp_path / "broker-1"], tmp_path / "metadata.sqlite")
    assert foreign_data_problem(*ours) is None
    write(tmp_path / "broker-1" / "__cluster_metadata-0" / "00000000000000000000.log")
    assert foreign_data_problem(*ours) is not None


def test_with_metadata_in_zookeeper_only_the_log_directories_hold_logs(tmp_path: Path) -> None:
    write(tmp_path / "broker-1" / "meta.properties", KAFKA)
    write(tmp_path / "broker-1" / "orders-0" / "partition.metadata")
    assert foreign_data_problem(tmp_path, [tmp_path / "broker-1"], None) is None
    write(tmp_path / "meta.properties", KAFKA)
    problem = foreign_data_problem(tmp_path, [tmp_path / "broker-1"], None)
    assert problem is not None
    assert "MkU3OEVBNTcwNTJENDM2Qg" in problem


def test_new_and_unrelated_directories_are_free(tmp_path: Path) -> None:
    metadata = tmp_path / "metadata.sqlite"
    assert foreign_data_problem(tmp_path / "missing", [tmp_path / "missing" / "broker-1"], metadata) is None
    for name in ("notes.txt", "project-1/readme.md", "build-2/output.log", "broker-7/meta.properties", "lost+found/x"):
        write(tmp_path / name)
    assert foreign_data_problem(tmp_path, [tmp_path / "broker-1"], metadata) is None
