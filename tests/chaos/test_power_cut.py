"""What a power cut takes, by the flush settings: nothing acknowledged with flush.messages=1, else an unflushed end.

All that a broker writes lies on a disk of its own, an ext4 file system in a file. The power cut: the broker is killed,
and the disk is mounted anew as a copy of that file, in which nothing is that was not flushed.
"""

from __future__ import annotations

import ctypes
import os
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.protocol.messages.k20_delete_topics import DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.k23_offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.records import check_crc, decode_records, iter_headers
from tidelog.testing.raw_client import RawClient, fetch_request, produce_request

if TYPE_CHECKING:
    from tests.chaos.conftest import MakeDisk, ServedBroker, StartServed

    from tidelog.torture.disks import DiskImage

WaitUntil = Callable[[Callable[[], bool], str], None]

# How ext4 writes back: by default sizes of files follow their data; with the others they run ahead of it, and a file
# ends with bytes that never were written.
ORDERED = ""
SIZES_FIRST = "data=writeback,nodelalloc"
PAGE_BYTES = 4096
SYNC_FILE_RANGE_WAIT_AND_WRITE = 7


class Found(NamedTuple):
    """What a topic's first partition holds."""

    values: dict[int, bytes]
    epochs: list[int]


@pytest.fixture
def serve_on(serve: StartServed) -> Callable[..., ServedBroker]:
    def start(disk: DiskImage, settings: Mapping[str, object] | None = None) -> ServedBroker:
        broker = serve(settings, start=False)
        broker.data_dir.parent.mkdir(parents=True)
        broker.data_dir.symlink_to(disk.path)
        broker.start()
        return broker

    return start


def write(client: RawClient, topic: str, value: bytes, acks: int = -1) -> int:
    """The offset of an acknowledged record."""
    produced = client.ask(PRODUCE, produce_request(topic, value, acks=acks), ProduceResponse, 9)
    (answer,) = produced.responses[0].partition_responses
    assert answer.error_code == 0, ErrorCode(answer.error_code).name
    return answer.base_offset


def read(broker: ServedBroker, topic: str, end: int = 0) -> Found:
    """All that is served, each batch proved by its CRC. The first offset that is not there must be the end.

    Below `end` records are waited for: a topic that flushes every record shows what it found after its first flush.
    """
    found = Found({}, [])
    with RawClient(broker.port) as client:
        while True:
            offset = len(found.values)
            max_wait_ms = 10_000 if offset < end else 0
            fetched = client.ask(FETCH, fetch_request(topic, offset, max_wait_ms=max_wait_ms), FetchResponse, 11)
            (answer,) = fetched.responses[0].partitions
            assert answer.error_code == 0, f"{topic} at {offset}: {ErrorCode(answer.error_code).name}"
            if offset == answer.high_watermark:
                return found
            assert isinstance(answer.records, memoryview)
            for position, header in iter_headers(answer.records, allow_partial=True):
                check_crc(answer.records, header, position)
                found.epochs.append(header.partition_leader_epoch)
                for record in decode_records(answer.records, position):
                    assert record.offset == len(found.values)
                    found.values[record.offset] = record.value or b""


def cut_power(broker: ServedBroker, disk: DiskImage) -> None:
    broker.kill()
    disk.cut_power()
    broker.start()


def check_prefix(found: Found, acknowledged: Mapping[int, bytes]) -> None:
    """What is there is what was written, from the first record on; what was acknowledged and is missing is the end."""
    for offset, value in found.values.items():
        assert acknowledged.get(offset, value) == value
    assert found.epochs == sorted(found.epochs)


def check_goes_on(broker: ServedBroker, topic: str, found: Found) -> None:
    """The next record gets the next offset, in a newer epoch that the broker knows the start of."""
    end = len(found.values)
    with RawClient(broker.port) as client:
        assert write(client, topic, b"after the cut") == end
        again = read(broker, topic)
        assert again.values == {**found.values, end: b"after the cut"}
        assert again.epochs[-1] > max(found.epochs, default=-1)
        asked = OffsetForLeaderPartition(partition=0, leader_epoch=again.epochs[-1])
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
        )
        answer = client.ask(OFFSET_FOR_LEADER_EPOCH, request, OffsetForLeaderEpochResponse, 3)
        (told,) = answer.topics[0].partitions
        assert (told.error_code, told.end_offset) == (0, end + 1)


def produce_until_killed(broker: ServedBroker, acknowledged: dict[int, bytes], acks: int) -> None:
    """Kill the broker in the middle of the load of some producers, and note what was acknowledged."""
    enough = threading.Event()
    wanted = len(acknowledged) + 40

    def produce(seed: int) -> None:
        source = random.Random(seed)
        try:
            with RawClient(broker.port) as client:
                while True:
                    value = source.randbytes(source.randrange(10_000))
                    acknowledged[write(client, "safe", value, acks)] = value
                    if len(acknowledged) > wanted:
                        enough.set()
        except OSError:
            # The broker was killed.
            return

    producers = [threading.Thread(target=produce, args=(seed,)) for seed in range(4)]
    for producer in producers:
        producer.start()
    assert enough.wait(60), "the producers are not served"
    broker.kill()
    for producer in producers:
        producer.join()


@pytest.mark.parametrize("options", [ORDERED, SIZES_FIRST])
@pytest.mark.parametrize("acks", [1, -1])
def test_flush_messages_1_loses_nothing_acknowledged(
    make_disk: MakeDisk, serve_on: Callable[..., ServedBroker], options: str, acks: int
) -> None:
    """62 for a power cut, in the middle of the load of several producers, again and again on the same disk."""
    disk = make_disk(options=options)
    broker = serve_on(disk)
    broker.create_topic("safe", configs={"flush.messages": "1", "segment.bytes": "50000"})
    acknowledged: dict[int, bytes] = {}
    for _ in range(3):
        produce_until_killed(broker, acknowledged, acks)
        cut_power(broker, disk)
        found = read(broker, "safe", max(acknowledged) + 1)
        assert found.values.keys() >= acknowledged.keys()
        check_prefix(found, acknowledged)
        acknowledged = dict(found.values)
    check_goes_on(broker, "safe", found)


def test_by_default_the_unflushed_end_is_lost_and_nothing_else(
    make_disk: MakeDisk, serve_on: Callable[..., ServedBroker]
) -> None:
    """Also shows that the disk of these tests loses what was not flushed: else none of them could fail."""
    disk = make_disk()
    broker = serve_on(disk)
    broker.create_topic("default")
    source = random.Random(1)
    with RawClient(broker.port) as client:
        written = {write(client, "default", value): value for value in (source.randbytes(5_000) for _ in range(50))}
    broker.stop()
    broker.start()
    acknowledged = dict(written)
    with RawClient(broker.port) as client:
        for _ in range(200):
            value = source.randbytes(5_000)
            acknowledged[write(client, "default", value)] = value
    cut_power(broker, disk)
    found = read(broker, "default")
    # A clean stop flushes.
    assert found.values.keys() >= written.keys()
    assert len(found.values) < len(acknowledged), "nothing was lost: this disk does not lose its power"
    check_prefix(found, acknowledged)
    check_goes_on(broker, "default", found)


@pytest.mark.parametrize("seed", range(4))
def test_pages_that_reached_the_disk_out_of_order_are_not_served(
    make_disk: MakeDisk, serve_on: Callable[..., ServedBroker], seed: int
) -> None:
    """The file is as long as it was, but holds some of its pages only: all before the first lost one is served."""
    disk = make_disk(options=SIZES_FIRST)
    broker = serve_on(disk)
    broker.create_topic("torn", configs={"flush.messages": "100"})
    source = random.Random(seed)
    acknowledged: dict[int, bytes] = {}
    with RawClient(broker.port) as client:
        for _ in range(250):
            value = source.randbytes(source.randrange(3_000))
            acknowledged[write(client, "torn", value)] = value
    (log_path,) = broker.log_dir.glob("torn-0/*.log")
    size_bytes = log_path.stat().st_size
    broker.kill()
    write_back_some_pages(log_path, source)
    disk.cut_power()
    assert log_path.stat().st_size == size_bytes, "the size of the file was to reach the disk"
    broker.start()
    found = read(broker, "torn", 200)
    # 200 were flushed; of the other 50 some pages are there.
    assert 200 <= len(found.values) < 250
    check_prefix(found, acknowledged)
    check_goes_on(broker, "torn", found)


def write_back_some_pages(path: Path, source: random.Random) -> None:
    """Have the kernel write some pages of the file to the disk, and then the file's size."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDWR)
    try:
        for start in range(0, os.fstat(fd).st_size, PAGE_BYTES):
            if source.random() < 0.5:
                arguments = (ctypes.c_long(start), ctypes.c_long(PAGE_BYTES), SYNC_FILE_RANGE_WAIT_AND_WRITE)
                assert libc.sync_file_range(fd, *arguments) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(fd)
    # A commit of the file system's journal writes the sizes of all files.
    other = os.open(path.with_name("other"), os.O_WRONLY | os.O_CREAT)
    try:
        os.fsync(other)
    finally:
        os.close(other)
    path.with_name("other").unlink()


def test_flush_messages_loses_less_than_that_many(make_disk: MakeDisk, serve_on: Callable[..., ServedBroker]) -> None:
    disk = make_disk()
    broker = serve_on(disk)
    broker.create_topic("some", configs={"flush.messages": "10"})
    with RawClient(broker.port) as client:
        acknowledged = {write(client, "some", value): value for value in (b"%d" % index for index in range(105))}
    cut_power(broker, disk)
    found = read(broker, "some", 96)
    assert 95 < len(found.values) < 105
    check_prefix(found, acknowledged)


def test_flush_ms_keeps_what_is_older(
    make_disk: MakeDisk, serve_on: Callable[..., ServedBroker], wait_until: WaitUntil
) -> None:
    disk = make_disk()
    broker = serve_on(disk, {"log.flush.scheduler.interval.ms": 50, "log.flush.offset.checkpoint.interval.ms": 50})
    broker.create_topic("timed", configs={"flush.ms": "200"})
    with RawClient(broker.port) as client:
        acknowledged = {write(client, "timed", value): value for value in (b"%d" % index for index in range(100))}
    checkpoint = broker.log_dir / "recovery-point-offset-checkpoint"
    wait_until(lambda: checkpoint.exists() and "timed 0 100" in checkpoint.read_text(), "the flush by time")
    cut_power(broker, disk)
    found = read(broker, "timed")
    assert found.values == acknowledged
    check_goes_on(broker, "timed", found)


def test_topics_are_as_they_were_answered(make_disk: MakeDisk, serve_on: Callable[..., ServedBroker]) -> None:
    """Metadata is flushed before it is answered, so a cut right behind the answer changes nothing of it."""
    disk = make_disk()
    broker = serve_on(disk)
    broker.create_topic("gone")
    for index in range(5):
        broker.create_topic(f"there-{index}", partitions=3)
        with RawClient(broker.port) as client:
            write(client, "there-0", b"lost or not")
            request = DeleteTopicsRequest(topic_names=["gone"], timeout_ms=10_000)
            (deleted,) = client.ask(DELETE_TOPICS, request, DeleteTopicsResponse, 4).responses
        assert deleted.error_code == 0
        cut_power(broker, disk)
        assert topic_names(broker) == {f"there-{number}" for number in range(index + 1)}
        with RawClient(broker.port) as client:
            write(client, f"there-{index}", b"at once")
        broker.create_topic("gone")
        assert read(broker, "gone").values == {}
    assert "Traceback" not in broker.output()


def topic_names(broker: ServedBroker) -> set[str]:
    with RawClient(broker.port) as client:
        topics = client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, 9).topics
    assert all(topic.error_code == 0 for topic in topics)
    return {topic.name or "" for topic in topics}
