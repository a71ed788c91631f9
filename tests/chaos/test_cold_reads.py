"""A consumer far behind reads what is on a slow disk only: it waits, and nobody else does.

The disk is slow for the broker alone: the kernel lets its processes read so many bytes a second from one device.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.records import decode_records, iter_headers
from tidelog.testing.raw_client import RawClient, fetch_request, produce_request

if TYPE_CHECKING:
    from tests.chaos.conftest import GoodClient, MakeDisk, ServedBroker, StartServed

    from tidelog.torture.disks import DiskImage

CGROUPS = Path("/sys/fs/cgroup")
BYTES_PER_S = 4 * 1024 * 1024
FETCH_BYTES = 1024 * 1024
BATCHES = 160
BATCH_BYTES = 50_000

Slow = Callable[["ServedBroker", "DiskImage"], None]


@pytest.fixture
def slow_disk() -> Iterator[Slow]:
    """Makes a disk slow to read for a broker, by a group of the kernel's (cgroup, in its first or second version)."""
    made: list[Path] = []

    def slow(broker: ServedBroker, disk: DiskImage) -> None:
        number = os.stat(disk.device).st_rdev
        device = f"{os.major(number)}:{os.minor(number)}"
        name = f"tidelog-test-{uuid.uuid4().hex}"
        if (CGROUPS / "blkio").is_dir():
            group, limit, text = CGROUPS / "blkio" / name, "blkio.throttle.read_bps_device", f"{device} {BYTES_PER_S}"
        elif "io" in (CGROUPS / "cgroup.controllers").read_text().split():
            (CGROUPS / "cgroup.subtree_control").write_text("+io")
            group, limit, text = CGROUPS / name, "io.max", f"{device} rbps={BYTES_PER_S}"
        else:
            raise AssertionError("this test slows a disk down and needs the kernel's blkio (or io) cgroup controller")
        group.mkdir()
        made.append(group)
        (group / limit).write_text(text)
        (group / "cgroup.procs").write_text(str(broker.pid))

    yield slow
    for group in made:
        for pid in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def evict(directory: Path) -> None:
    """Take all files out of memory, so that reading them needs the disk."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def test_a_consumer_far_behind_keeps_nobody_waiting(
    serve: StartServed,
    make_disk: MakeDisk,
    slow_disk: Slow,
    good_client: Callable[[ServedBroker], GoodClient],
) -> None:
    disk = make_disk()
    broker = serve({"log.dirs": disk.path / "logs"})
    broker.create_topic("old", configs={"segment.bytes": str(3 * FETCH_BYTES)})
    source = random.Random(3)
    written = [source.randbytes(BATCH_BYTES) for _ in range(BATCHES)]
    with RawClient(broker.port) as client:
        for value in written:
            client.ask(PRODUCE, produce_request("old", value), ProduceResponse, 9)
    broker.stop()
    broker.start()
    evict(disk.path / "logs" / "old-0")
    slow_disk(broker, disk)
    others = good_client(broker)
    others.report()
    read: list[bytes] = []
    offset = 0
    with RawClient(broker.port) as client:
        while offset < BATCHES:
            fetched = client.ask(FETCH, fetch_request("old", offset, max_bytes=FETCH_BYTES), FetchResponse, 11)
            (answer,) = fetched.responses[0].partitions
            assert answer.error_code == 0
            assert isinstance(answer.records, memoryview)
            for position, header in iter_headers(answer.records, allow_partial=True):
                read += [record.value or b"" for record in decode_records(answer.records, position)]
                offset = header.next_offset
    progress = others.finish()
    assert read == written
    # Each answer took the disk a quarter of a second; all together two.
    assert progress.round_trips > 20
    progress.check()
