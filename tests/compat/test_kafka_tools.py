"""Kafka's own log-dump tool reads the files that Tidelog wrote, and finds nothing to complain about."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from client_drivers.confluent import ConfluentDriver
from client_drivers.model import ProduceOptions, SentRecord
from tidelog.bench.brokers import kafka_jars
from tidelog.common.clock import VirtualClock
from tidelog.log import LogConfig
from tidelog.log.recovery import create_log
from tidelog.records import encode_batch
from tidelog.testing import Broker

pytestmark = pytest.mark.compat

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
ROUNDS = 4
RECORDS_PER_BATCH = 100


def dump(files: list[Path], *options: str) -> str:
    names = ",".join(str(file) for file in files)
    tool = ["java", "-Xmx256m", "-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.DumpLogSegments"]
    done = subprocess.run([*tool, *options, "--files", names], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def partition_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition with every codec, several segments, idempotent batches and a clean stop behind it."""
    data = tmp_path_factory.mktemp("dumped") / "data"
    with Broker(data_dir=data) as broker:
        client = ConfluentDriver(broker.bootstrap)
        client.create_topic("dumped", 1, {"segment.bytes": "1048576", "index.interval.bytes": "1024"})
        for compression in COMPRESSIONS:
            for round_number in range(ROUNDS):
                records = [
                    SentRecord(b"key-%d" % number, bytes([65 + number % 26]) * 5000, (("n", b"%d" % round_number),))
                    for number in range(RECORDS_PER_BATCH)
                ]
                client.produce("dumped", 0, records, ProduceOptions(compression, "all", idempotent=True))
    (directory,) = data.rglob("dumped-0")
    return directory


def test_log_files_are_read_record_by_record(partition_directory: Path) -> None:
    logs = sorted(partition_directory.glob("*.log"))
    assert len(logs) > 1
    output = dump(logs, "--deep-iteration", "--print-data-log")
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+) ", output, re.MULTILINE)]
    assert offsets == list(range(len(COMPRESSIONS) * ROUNDS * RECORDS_PER_BATCH))
    assert "isvalid: false" not in output
    for codec in COMPRESSIONS:
        assert f"compresscodec: {codec}" in output


@pytest.mark.parametrize("pattern", ["*.index", "*.timeindex"])
def test_index_files_agree_with_the_log(partition_directory: Path, pattern: str) -> None:
    files = sorted(partition_directory.glob(pattern))
    assert files
    output = dump(files, "--index-sanity-check" if pattern == "*.index" else "--verify-index-only")
    for complaint in (
        "Mismatches",
        "Found timestamp mismatch",
        "Found out of order",
        "Index file corrupt",
        "offset mismatch",
    ):
        assert complaint not in output


def test_producer_snapshots_are_read(partition_directory: Path) -> None:
    files = sorted(partition_directory.glob("*.snapshot"))
    assert files
    output = dump(files)
    assert re.search(r"producerId: \d+ producerEpoch: 0", output)


def test_indexes_of_aborted_transactions_are_read(tmp_path: Path) -> None:
    log = create_log("topic", 0, tmp_path / "topic-0", None, LogConfig(), VirtualClock(1_700_000_000_000))
    for sequence, commit in enumerate((False, True, False)):
        batch = encode_batch(
            [(b"key", b"value", (), 1_700_000_000_000)],
            producer_id=77,
            producer_epoch=3,
            base_sequence=sequence,
            is_transactional=True,
        )
        log.append_as_leader(memoryview(batch), leader_epoch=0)
        log.append_marker(77, 3, 5, commit=commit, leader_epoch=0)
    log.close()
    (index,) = (tmp_path / "topic-0").glob("*.txnindex")
    found = re.findall(
        r"version: 0 producerId: 77 firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", dump([index])
    )
    assert found == [("0", "1", "2"), ("4", "5", "6")]
    markers = re.findall(
        r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", dump([index.with_suffix(".log")], "--deep-iteration")
    )
    assert markers == [("ABORT", "5"), ("COMMIT", "5"), ("ABORT", "5")]
