"""Disks that are full, out of inodes, read-only or refuse to be written: told to producers, and nothing is lost by it.

The disks are small file systems in memory, mounted for one test. The kernel makes no disk read-only under open files,
so a running broker is met by a limit on the size of its files instead, which fails its writes in the same way.
"""

from __future__ import annotations

import random
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.records import decode_records, iter_headers
from tidelog.testing.raw_client import RawClient, fetch_request, produce_request

if TYPE_CHECKING:
    from tests.chaos.conftest import ServedBroker, StartServed

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
VALUE_BYTES = 30_000
TOPICS = {
    "plain": {"segment.bytes": "1000000"},
    "flushed": {"segment.bytes": "1000000", "flush.messages": "1"},
}


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of its own with these options; it is gone after the test."""
    directories: list[Path] = []

    def mount(options: str) -> Path:
        directory = tmp_path / f"disk-{len(directories)}"
        directory.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tidelog-test", str(directory)], capture_output=True, text=True
        )
        assert done.returncode == 0, f"these tests mount small disks and need the right to do so: {done.stderr}"
        directories.append(directory)
        return directory

    yield mount
    for directory in directories:
        # Lazily, as a broker that a failed test left behind may still hold files.
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


class Writer:
    """Writes records of its own making to all topics and remembers those that were acknowledged."""

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker
        self._source = random.Random(7)
        self.acknowledged: dict[str, dict[int, bytes]] = {name: {} for name in TOPICS}

    def write_until_refused(self, limit: int = 2_000) -> None:
        """Write to each topic until it answers KAFKA_STORAGE_ERROR; any other error fails the test."""
        with RawClient(self._broker.port) as client:
            for name in TOPICS:
                for _ in range(limit):
                    if self.write(client, name) == STORAGE_ERROR:
                        break
                else:
                    raise AssertionError(f"{name} was never refused")

    def write(self, client: RawClient, topic: str) -> int:
        value = self._source.randbytes(VALUE_BYTES)
        produced = client.ask(PRODUCE, produce_request(topic, value), ProduceResponse, 9)
        (answer,) = produced.responses[0].partition_responses
        assert answer.error_code in (0, STORAGE_ERROR)
        if answer.error_code == 0:
            assert answer.base_offset not in self.acknowledged[topic]
            self.acknowledged[topic][answer.base_offset] = value
        return answer.error_code

    def check(self, *, may_hold_more: bool = False) -> None:
        """All that was acknowledged is there, in its place, and nothing beside it unless the caller says so."""
        with RawClient(self._broker.port) as client:
            for topic, acknowledged in self.acknowledged.items():
                found = read_all(client, topic, max(acknowledged, default=-1) + 1)
                if may_hold_more:
                    found = {offset: value for offset, value in found.items() if offset in acknowledged}
                assert found.keys() == acknowledged.keys(), topic
                assert found == acknowledged, topic


def read_all(client: RawClient, topic: str, end: int) -> dict[int, bytes]:
    """What the topic holds. Below `end` it waits for records: a topic that flushes shows them after its first flush."""
    found: dict[int, bytes] = {}
    offset = 0
    while True:
        max_wait_ms = 10_000 if offset < end else 0
        fetched = client.ask(FETCH, fetch_request(topic, offset, max_wait_ms=max_wait_ms), FetchResponse, 11)
        (answer,) = fetched.responses[0].partitions
        assert answer.error_code == 0, f"{topic} at {offset}: {ErrorCode(answer.error_code).name}"
        if offset >= answer.high_watermark:
            return found
        assert isinstance(answer.records, memoryview)
        for position, header in iter_headers(answer.records, allow_partial=True):
            for record in decode_records(answer.records, position):
                found[record.offset] = record.value or b""
            offset = header.next_offset


def lives(broker: ServedBroker) -> bool:
    with RawClient(broker.port) as client:
        topics = client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, 9).topics
        return {topic.name for topic in topics} >= TOPICS.keys()


def can_make_topic(broker: ServedBroker, name: str) -> bool:
    """Whether a topic is made; where the metadata can't be written, the answer says so."""
    with RawClient(broker.port) as client:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        (created,) = client.ask(CREATE_TOPICS, request, CreateTopicsResponse, 5).topics
        # A controller that could not write gives up its office, and is elected again when it can.
        assert created.error_code in (0, STORAGE_ERROR, ErrorCode.NOT_CONTROLLER)
        return created.error_code == 0


def start(serve: StartServed, log_dir: Path) -> ServedBroker:
    # Checkpoints are written often, so that they meet the trouble too.
    often_ms = 20
    broker = serve(
        {
            "log.dirs": log_dir,
            "replica.high.watermark.checkpoint.interval.ms": often_ms,
            "log.flush.offset.checkpoint.interval.ms": often_ms,
        }
    )
    for name, configs in TOPICS.items():
        broker.create_topic(name, configs=configs)
    return broker


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_full_disk(serve: StartServed, mount: Callable[[str], Path], ending: str) -> None:
    disk = mount("size=16m")
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    broker = start(serve, disk / "logs")
    writer = Writer(broker)
    writer.write_until_refused()
    assert lives(broker)
    writer.check()
    can_make_topic(broker, "another")
    # Again and again: what fails must be undone every time.
    for _ in range(3):
        writer.write_until_refused()
    writer.check()
    getattr(broker, ending)()
    ballast.unlink()
    broker.start()
    writer.check()
    with RawClient(broker.port) as client:
        for topic in TOPICS:
            for _ in range(20):
                assert writer.write(client, topic) == 0
    writer.check()
    assert "Traceback" not in broker.output()


def test_room_is_used_without_a_restart(
    serve: StartServed, mount: Callable[[str], Path], wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    disk = mount("size=16m")
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    broker = start(serve, disk / "logs")
    writer = Writer(broker)
    writer.write_until_refused()
    fill(disk / "rest")
    wait_until(lambda: "checkpoint can't be written" in broker.output(), "a checkpoint finds no room")
    ballast.unlink()
    with RawClient(broker.port) as client:
        for topic in TOPICS:
            for _ in range(20):
                assert writer.write(client, topic) == 0
    writer.check()
    assert can_make_topic(broker, "another")
    assert "Traceback" not in broker.output()


def test_a_start_on_a_full_disk(serve: StartServed, mount: Callable[[str], Path]) -> None:
    """After a kill, too, though recovery writes: the broker serves what is there, or says in one line why not."""
    disk = mount("size=16m")
    broker = start(serve, disk / "logs")
    writer = Writer(broker)
    writer.write_until_refused()
    broker.kill()
    ballast = disk / "ballast"
    fill(ballast)
    try:
        broker.start()
    except RuntimeError:
        code, lines = broker.fail_to_start()
        assert (code, len(lines)) == (2, 1), lines
    else:
        assert lives(broker)
        broker.kill()
    ballast.unlink()
    broker.start()
    writer.check()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size_bytes in (1 << 16, 4096, 1):
            try:
                while file.write(bytes(size_bytes)) == size_bytes:
                    pass
            except OSError:
                continue


def test_a_disk_without_inodes(serve: StartServed, mount: Callable[[str], Path]) -> None:
    """Records still fit, new segments do not."""
    disk = mount("size=64m,nr_inodes=60")
    broker = start(serve, disk / "logs")
    writer = Writer(broker)
    writer.write_until_refused()
    assert lives(broker)
    broker.kill()
    subprocess.run(["mount", "-o", "remount,nr_inodes=10000", str(disk)], check=True)
    broker.start()
    writer.check(may_hold_more=True)
    with RawClient(broker.port) as client:
        assert [writer.write(client, topic) for topic in TOPICS] == [0, 0]


def test_a_read_only_disk(serve: StartServed, mount: Callable[[str], Path]) -> None:
    disk = mount("size=16m")
    broker = start(serve, disk / "logs")
    writer = Writer(broker)
    with RawClient(broker.port) as client:
        for topic in TOPICS:
            for _ in range(20):
                assert writer.write(client, topic) == 0
    broker.stop()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    code, lines = broker.fail_to_start()
    assert (code, len(lines)) == (2, 1), lines
    assert str(disk) in lines[0]
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    broker.start()
    writer.check()


def test_writes_that_fail_in_a_running_broker(serve: StartServed, tmp_path: Path) -> None:
    broker = start(serve, tmp_path / "logs")
    writer = Writer(broker)
    with RawClient(broker.port) as client:
        for topic in TOPICS:
            assert writer.write(client, topic) == 0
    _, hard_limit = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    # A record would end above it in the log, half of it written.
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (VALUE_BYTES * 3 // 2, hard_limit))
    with RawClient(broker.port) as client:
        for topic in TOPICS:
            assert writer.write(client, topic) == STORAGE_ERROR
    writer.check()
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
    with RawClient(broker.port) as client:
        for topic in TOPICS:
            assert writer.write(client, topic) == 0
    broker.kill()
    broker.start()
    writer.check()


def test_metadata_on_a_full_disk(
    serve: StartServed, mount: Callable[[str], Path], wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    """All that a broker writes lies on the disk that fills up, its output aside."""
    disk = mount("size=16m")
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    broker = serve(start=False)
    broker.data_dir.parent.mkdir(parents=True)
    broker.data_dir.symlink_to(disk)
    broker.start()
    for name, configs in TOPICS.items():
        broker.create_topic(name, configs=configs)
    writer = Writer(broker)
    writer.write_until_refused()
    fill(disk / "rest")
    assert not can_make_topic(broker, "too-much")
    assert lives(broker)
    writer.check()
    ballast.unlink()
    # The controller may have lost its office, as it could not renew it, and takes it again.
    wait_until(lambda: can_make_topic(broker, "after"), "topics can be made once there is room")
    broker.kill()
    broker.start()
    writer.check()
    assert can_make_topic(broker, "in-the-end")
    assert "Traceback" not in broker.output()
