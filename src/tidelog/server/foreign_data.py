"""Recognizes directories that hold another broker's logs, Apache Kafka's above all, before anything is written there.

What always holds: a directory is only read here. Kafka's segments look like ours, but what they belong to is in its
own metadata: without those, a broker would take its partitions for strays. So a new cluster starts in directories
without any logs, and one whose metadata is there never takes over a directory that Kafka has formatted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tidelog.common.checks import offset_in_file_name, partition_of_directory
from tidelog.log.checkpoints import META_PROPERTIES_FILE, PARTITION_METADATA_FILE, read_properties
from tidelog.log.errors import CorruptCheckpointError

# What only Kafka has: its own metadata log, the file that formatting leaves, and the id of brokers with ZooKeeper.
_KAFKA_FILES = ("__cluster_metadata-0", "bootstrap.checkpoint")
_KAFKA_ID = "broker.id"


def foreign_data_problem(data_dir: Path, log_dirs: Sequence[Path], metadata_file: Path | None) -> str | None:
    """Why a broker must not start in these directories; None if it may. `metadata_file` is None for metadata elsewhere.

    What can't be read is no reason: the code that opens it can say more about it.
    """
    for directory in dict.fromkeys((data_dir, *log_dirs)):
        try:
            owner = _foreign_owner(directory, metadata_file, is_log_dir=directory in log_dirs)
        except (OSError, CorruptCheckpointError):
            continue
        if owner is not None:
            return f"{owner}; choose another directory with --data (or log.dirs), nothing was changed"
    return None


def _foreign_owner(directory: Path, metadata_file: Path | None, *, is_log_dir: bool) -> str | None:
    if not directory.is_dir():
        return None
    values = read_properties(directory / META_PROPERTIES_FILE)
    if _KAFKA_ID in values or any((directory / name).exists() for name in _KAFKA_FILES):
        return f"{directory} is a data directory of Apache Kafka, which Tidelog can't take over"
    # Partitions are below the data directory, in one directory for each broker, unless log.dirs says otherwise.
    may_hold_logs = is_log_dir if metadata_file is None else metadata_file.exists()
    if may_hold_logs:
        return None
    if "cluster.id" in values:
        return (
            f"{directory} belongs to cluster.id {values['cluster.id']}, perhaps of Apache Kafka, "
            f"and {metadata_file or 'the metadata'} of Tidelog is not there"
        )
    partition = next(_partitions(directory), None)
    if partition is None:
        return None
    return f"{directory} has logs of partitions, as {partition}, but no metadata of Tidelog to say whose they are"


def _partitions(directory: Path) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if partition_of_directory(entry.name) is not None and entry.is_dir() and _has_log(Path(entry.path)):
                yield entry.name


def _has_log(directory: Path) -> bool:
    with os.scandir(directory) as entries:
        return any(
            entry.name == PARTITION_METADATA_FILE
            or (entry.name.endswith(".log") and offset_in_file_name(entry.name.removesuffix(".log")) is not None)
            for entry in entries
        )
