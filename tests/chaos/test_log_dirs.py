"""Several data directories, one of which fails: while the broker runs, or before it starts.

The faults are real ones: system calls that fail by name and path, a file system that the kernel makes read-only because
it found an error in it, disks that are full or not there.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.protocol.messages.k20_delete_topics import DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.k35_describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidelog.records import decode_records, iter_headers
from tidelog.testing.raw_client import RawClient, fetch_request, produce_request

if TYPE_CHECKING:
    from tests.chaos.conftest import MakeDisk, ServedBroker, StartServed, Trace

TOPIC = "topic"
PARTITIONS = range(4)
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
NO_ERROR = ErrorCode.NONE


class Records:
    """Writes to all partitions and remembers what was acknowledged."""

    def __init__(self, broker: ServedBroker, topic: str = TOPIC) -> None:
        self._broker = broker
        self._topic = topic
        self._source = random.Random(5)
        self.acknowledged: dict[int, dict[int, bytes]] = {partition: {} for partition in PARTITIONS}

    def write(self, partition: int, size_bytes: int = 2_000) -> ErrorCode:
        value = self._source.randbytes(size_bytes)
        with RawClient(self._broker.port) as client:
            request = produce_request(self._topic, value, partition=partition)
            (answer,) = client.ask(PRODUCE, request, ProduceResponse, 9).responses[0].partition_responses
        if answer.error_code == 0:
            assert answer.base_offset not in self.acknowledged[partition]
            self.acknowledged[partition][answer.base_offset] = value
        return ErrorCode(answer.error_code)

    def write_to_all(self, expected: dict[int, ErrorCode] | None = None) -> None:
        for _ in range(3):
            errors = {partition: self.write(partition) for partition in PARTITIONS}
            assert errors == (expected or dict.fromkeys(PARTITIONS, NO_ERROR))

    def check(self, partition: int) -> None:
        """All that was acknowledged is there, in its place."""
        acknowledged = self.acknowledged[partition]
        found: dict[int, bytes] = {}
        with RawClient(self._broker.port) as client:
            while len(found) < len(acknowledged):
                request = fetch_request(self._topic, len(found), partition=partition)
                (answer,) = client.ask(FETCH, request, FetchResponse, 11).responses[0].partitions
                assert answer.error_code == 0
                assert isinstance(answer.records, memoryview)
                batches = list(iter_headers(answer.records, allow_partial=True))
                assert batches, f"{TOPIC}-{partition} ends at {len(found)}"
                for position, _ in batches:
                    for record in decode_records(answer.records, position):
                        found[record.offset] = record.value or b""
        assert {offset: found[offset] for offset in acknowledged} == acknowledged


def partitions_in(directory: Path) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in directory.glob(f"{TOPIC}-[0-9]")}


def errors_where(failed: set[int]) -> dict[int, ErrorCode]:
    return {partition: STORAGE_ERROR if partition in failed else NO_ERROR for partition in PARTITIONS}


def directory_errors(broker: ServedBroker) -> dict[str, int]:
    with RawClient(broker.port) as client:
        answer = client.ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
    return {result.log_dir: result.error_code for result in answer.results}


def check_one_line(broker: ServedBroker, directory: Path, reason: str) -> None:
    """The failure is told once, with the directory, the reason and what to do, and nothing else is made of it."""
    (line,) = [line for line in broker.output().splitlines() if "goes offline" in line]
    for told in (f"log directory {directory} goes offline", reason, "restart the broker"):
        assert told in line
    assert "Traceback" not in broker.output()


@pytest.fixture
def two(serve: StartServed, tmp_path: Path) -> tuple[ServedBroker, Path, Path]:
    """A broker with two data directories, and these."""
    first, second = tmp_path / "first", tmp_path / "second"
    broker = serve({"log.dirs": f"{first},{second}"})
    return broker, first, second


@pytest.mark.parametrize(
    ("call", "error", "reason", "configs"),
    [
        ("pwrite64", "EIO", "Input/output error", {}),
        ("pwrite64", "EROFS", "Read-only file system", {}),
        ("fsync", "EIO", "Input/output error", {"flush.messages": "1"}),
        ("fsync", "ENOSPC", "No space left", {"flush.messages": "1"}),
    ],
)
def test_a_disk_that_fails_takes_its_own_partitions_along(
    two: tuple[ServedBroker, Path, Path], trace: Trace, call: str, error: str, reason: str, configs: dict[str, str]
) -> None:
    """63. A write whose fate is unknown is never acknowledged, and its disk never trusted again before a restart."""
    broker, first, second = two
    broker.create_topic(TOPIC, len(PARTITIONS), configs)
    records = Records(broker)
    records.write_to_all()
    failing = partitions_in(first)
    assert len(failing) == len(partitions_in(second)) == 2
    partition = min(failing)
    path = first / f"{TOPIC}-{partition}" / f"{0:020d}.log"
    tracing = trace(broker, "-P", str(path), "-e", f"trace={call}", "-e", f"inject={call}:error={error}")
    assert records.write(partition) == STORAGE_ERROR
    tracing.stop()
    # The disk works again, which proves nothing about what it lost.
    records.write_to_all(errors_where(failing))
    assert directory_errors(broker) == {str(first): STORAGE_ERROR, str(second): 0}
    check_one_line(broker, first, reason)
    for ending in (broker.stop, broker.kill):
        ending()
        broker.start()
        for index in PARTITIONS:
            records.check(index)
    # What was refused may be there all the same, so offsets are not compared any more.
    assert [records.write(index) for index in PARTITIONS] == [NO_ERROR] * len(PARTITIONS)
    assert set(directory_errors(broker).values()) == {0}


def test_a_file_system_that_the_kernel_makes_read_only(serve: StartServed, make_disk: MakeDisk, tmp_path: Path) -> None:
    disk = make_disk()
    first, second = disk.path / "logs", tmp_path / "second"
    broker = serve({"log.dirs": f"{first},{second}"})
    # What was not flushed is lost with the file system's journal, as by a power cut.
    broker.create_topic(TOPIC, len(PARTITIONS), {"flush.messages": "1"})
    records = Records(broker)
    records.write_to_all()
    failing = partitions_in(first)
    disk.break_file_system()
    records.write_to_all(errors_where(failing))
    assert directory_errors(broker) == {str(first): STORAGE_ERROR, str(second): 0}
    check_one_line(broker, first, "Read-only file system")
    # Still so at the next start, on which nothing of it may be made anew in the other directory.
    broker.kill()
    broker.start()
    records.write_to_all(errors_where(failing))
    assert partitions_in(second) == set(PARTITIONS) - failing
    broker.kill()
    disk.mend_file_system()
    broker.start()
    for partition in PARTITIONS:
        records.check(partition)
    assert set(directory_errors(broker).values()) == {0}
    assert [records.write(partition) for partition in PARTITIONS] == [NO_ERROR] * len(PARTITIONS)


def move_away(directory: Path) -> Callable[[], None]:
    aside = directory.with_name(f"{directory.name}-aside")
    directory.rename(aside)

    def bring_back() -> None:
        shutil.rmtree(directory)
        aside.rename(directory)

    return bring_back


def put_a_file_there(directory: Path) -> Callable[[], None]:
    aside = directory.with_name(f"{directory.name}-aside")
    directory.rename(aside)
    directory.write_bytes(b"")

    def bring_back() -> None:
        directory.unlink()
        aside.rename(directory)

    return bring_back


def make_read_only(directory: Path) -> Callable[[], None]:
    subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(directory)], check=True)

    def bring_back() -> None:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)

    return bring_back


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("make_unusable", [move_away, put_a_file_there, make_read_only])
def test_a_start_without_one_of_the_directories(
    two: tuple[ServedBroker, Path, Path], make_unusable: Callable[[Path], Callable[[], None]], ending: str
) -> None:
    """Its partitions wait for it, over any number of starts; all others are served, and new ones are made."""
    broker, first, second = two
    broker.create_topic(TOPIC, len(PARTITIONS))
    records = Records(broker)
    records.write_to_all()
    missing = partitions_in(first)
    getattr(broker, ending)()
    bring_back = make_unusable(first)
    try:
        for start in range(2):
            broker.start()
            records.write_to_all(errors_where(missing))
            broker.create_topic(f"new-{start}")
            assert Records(broker, f"new-{start}").write(0) == NO_ERROR
            getattr(broker, ending)()
        assert partitions_in(second) == set(PARTITIONS) - missing
        output = broker.output()
        assert f"{len(missing)} partitions of 1 topics are offline" in output
        assert output.count("partitions of 1 topics are offline") == 2
    finally:
        bring_back()
    broker.start()
    records.write_to_all()
    for partition in PARTITIONS:
        records.check(partition)
    assert set(directory_errors(broker).values()) == {0}
    assert "Traceback" not in broker.output()


def test_a_topic_made_anew_while_its_disk_was_away_stays_the_new_one(two: tuple[ServedBroker, Path, Path]) -> None:
    """Both directories hold partitions of that name then; those of the deleted topic are set aside."""
    broker, first, second = two
    broker.create_topic(TOPIC, len(PARTITIONS))
    Records(broker).write_to_all()
    broker.stop()
    bring_back = put_a_file_there(first)
    broker.start()
    with RawClient(broker.port) as client:
        request = DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=10_000)
        (deleted,) = client.ask(DELETE_TOPICS, request, DeleteTopicsResponse, 4).responses
    assert deleted.error_code == 0
    broker.create_topic(TOPIC, len(PARTITIONS))
    records = Records(broker)
    records.write_to_all()
    assert all(min(offsets) == 0 for offsets in records.acknowledged.values())
    broker.stop()
    bring_back()
    assert partitions_in(first) & partitions_in(second)
    broker.start()
    for partition in PARTITIONS:
        records.check(partition)
    records.write_to_all()
    assert partitions_in(first) == set()
    assert "Traceback" not in broker.output()


def test_no_directory_that_works_is_no_start(two: tuple[ServedBroker, Path, Path]) -> None:
    broker, *directories = two
    broker.stop()
    endings = [put_a_file_there(directory) for directory in directories]
    code, lines = broker.fail_to_start()
    assert (code, len(lines)) == (2, 1), lines
    assert all(str(directory) in lines[0] for directory in directories)
    for bring_back in endings:
        bring_back()
    broker.start()


def test_a_full_disk_is_left_and_comes_back(serve: StartServed, make_disk: MakeDisk) -> None:
    """ext4 gives blocks to data when it is written back, and must refuse in time what it will have none for."""
    disk = make_disk(size_mb=16)
    ballast = disk.path / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    broker = serve({"log.dirs": disk.path / "logs"})
    broker.create_topic(TOPIC, len(PARTITIONS), {"flush.messages": "1"})
    records = Records(broker)
    for _ in range(1_000):
        if records.write(0, size_bytes=50_000) == STORAGE_ERROR:
            break
    else:
        raise AssertionError("the disk never got full")
    broker.kill()
    disk.cut_power()
    ballast.unlink()
    broker.start()
    records.check(0)
    assert records.write(0) == NO_ERROR
