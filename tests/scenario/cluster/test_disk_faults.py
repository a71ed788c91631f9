"""Disks of replicas that are full or have failed: who leads, who is waited for, and what comes back by itself."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from replica_nodes import ReplicaCluster, ReplicaNode, run_cluster, until
from tidelog.broker import disk_room, replica_fetcher
from tidelog.broker.disk_room import HOLD_FIRST_MS, DiskRoom
from tidelog.common.clock import VirtualClock
from tidelog.protocol import ErrorCode

REPLICAS = (1, 2, 3)
MIN_TWO = {"min.insync.replicas": "2"}
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


class FullDisks:
    """The disks of some nodes take no more bytes; what is there can be read, and cut."""

    def __init__(self, cluster: ReplicaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self._full: dict[int, Path] = {}
        self.refuses_files = False
        self._cluster = cluster
        self._clocks = {node_id: VirtualClock() for node_id in cluster.nodes}
        for node_id, node in cluster.nodes.items():
            node.replicas.room = DiskRoom(self._clocks[node_id])
        monkeypatch.setattr(disk_room, "has_room", lambda path: path not in self._full.values())
        write, open_file = os.pwrite, os.open

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            self._check(Path(os.readlink(f"/proc/self/fd/{fd}")))
            return write(fd, data, offset)

        def open_new(path: str | Path, flags: int, *args: int, **kwargs: int) -> int:
            if self.refuses_files and flags & os.O_CREAT and not Path(path).exists():
                self._check(Path(path))
            return open_file(path, flags, *args, **kwargs)

        monkeypatch.setattr(os, "pwrite", pwrite)
        monkeypatch.setattr(os, "open", open_new)

    def _check(self, path: Path) -> None:
        if any(path.is_relative_to(full) for full in self._full.values()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def fill(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self._full[node_id] = self._cluster[node_id].path

    async def make_room(self, *node_ids: int) -> None:
        for node_id in node_ids:
            del self._full[node_id]
            self._clocks[node_id].advance(ms=HOLD_FIRST_MS)
            _, check_room = self._cluster[node_id].replicas.background_tasks()
            await check_room.run()


async def write(node: ReplicaNode, count: int = 1, *, topic: str = "t", acks: int = -1) -> None:
    for number in range(count):
        answer = await node.produce(topic, [b"%d" % number], acks=acks)
        assert answer.error_code == 0, ErrorCode(answer.error_code)


def log_end(node: ReplicaNode, topic: str = "t") -> int:
    return node.replicas.find(topic, 0).log.log_end_offset


def test_others_lead_at_once_when_a_leaders_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        disks = FullDisks(cluster, monkeypatch)
        await cluster.create("t", REPLICAS, configs=MIN_TWO)
        await cluster.create("quiet", REPLICAS, configs=MIN_TWO)
        await cluster.create("sole", (1,))
        await write(cluster[1], 3)
        await write(cluster[1], 1, topic="sole")
        disks.fill(1)
        assert (await cluster[1].produce("t", [b"refused"])).error_code == STORAGE_ERROR
        await until(lambda: cluster.controller.state("t").leader == 2)
        assert cluster.controller.state("t").isr == (2, 3)
        # What shares the disk does not wait until a write fails there, too.
        await until(lambda: cluster.controller.state("quiet").leader == 2)
        await write(cluster[2], 3)
        # Nobody else has the sole replica: it is read, and each write tries its luck.
        assert (await cluster[1].produce("sole", [b"refused"])).error_code == STORAGE_ERROR
        assert cluster.controller.state("sole").leader == 1
        assert log_end(cluster[1], "sole") == 1
        requests = cluster.controller.isr_requests
        await disks.make_room(1)
        await cluster.until_isr("t", 1, 2, 3)
        await cluster.until_isr("quiet", 1, 2, 3)
        assert await cluster.until_equal("t") == 6
        await write(cluster[1], 1, topic="sole")
        assert cluster.controller.state("t").leader == 2
        assert cluster.controller.isr_requests - requests <= 2

    run_cluster(tmp_path, scenario)


def test_nobody_waits_for_a_follower_whose_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        disks = FullDisks(cluster, monkeypatch)
        await cluster.create("t", REPLICAS, configs=MIN_TWO)
        await cluster.create("quiet", (1, 3), configs={"min.insync.replicas": "1"})
        await write(cluster[1], 3)
        await cluster.until_equal("t")
        disks.fill(3)
        # Long before replica.lag.time.max.ms.
        async with asyncio.timeout(10):
            await write(cluster[1], 3)
            await cluster.until_isr("t", 1, 2)
            await cluster.until_isr("quiet", 1)
        for topic in ("t", "quiet"):
            assert cluster.controller.state(topic).elr == ()
        requests = cluster.controller.isr_requests
        await write(cluster[1], 20)
        # A follower at the end of a log at rest could join without a write, and a new leader epoch begins anew.
        epoch = cluster.controller.state("quiet").leader_epoch
        cluster.controller.change("quiet", leader_epoch=epoch + 1)
        for _ in range(3):
            for node in cluster.nodes.values():
                check_isrs, _ = node.replicas.background_tasks()
                await check_isrs.run()
            await write(cluster[1])
        assert cluster.controller.isr_requests == requests, "it joins and leaves"
        assert log_end(cluster[3]) == 3
        await disks.make_room(3)
        await cluster.until_isr("t", *REPLICAS)
        await cluster.until_isr("quiet", 1, 3)
        assert await cluster.until_equal("t") == 29

    run_cluster(tmp_path, scenario)


def test_min_insync_replicas_holds_while_disks_are_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        disks = FullDisks(cluster, monkeypatch)
        await cluster.create("t", REPLICAS, configs=MIN_TWO)
        await write(cluster[1], 2)
        disks.fill(2, 3)
        # In the log of the leader alone: it is not acknowledged, however it ends.
        answer = await cluster[1].produce("t", [b"not acknowledged"], timeout_ms=500)
        assert answer.error_code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        await cluster.until_isr("t", 1)
        assert (await cluster[1].produce("t", [b"refused"])).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert cluster[1].replicas.find("t", 0).log.high_watermark == 2
        disks.fill(1)
        assert (await cluster[1].produce("t", [b"refused"], acks=1)).error_code == STORAGE_ERROR
        assert cluster.controller.state("t").leader == 1, "there is nobody to hand over to"
        await disks.make_room(2)
        # It takes over as soon as it has what the leader has.
        await until(lambda: cluster.controller.state("t").leader == 2)
        assert (await cluster[2].produce("t", [b"refused"])).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        await disks.make_room(1, 3)
        await cluster.until_isr("t", *REPLICAS)
        await write(cluster[2])
        # Whether the record that was not acknowledged is there is left to chance.
        assert await cluster.until_equal("t") in (3, 4)

    run_cluster(tmp_path, scenario)


def test_a_full_follower_deletes_what_its_leader_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_fetcher, "_FULL_PAUSE_S", 0.01)

    async def scenario(cluster: ReplicaCluster) -> None:
        disks = FullDisks(cluster, monkeypatch)
        await cluster.create("t", (1, 2))
        await write(cluster[1], 5)
        await cluster.until_equal("t")
        disks.fill(2)
        await write(cluster[1], 5)
        await cluster.until_isr("t", 1)
        leader, follower = (cluster[node_id].replicas.find("t", 0) for node_id in (1, 2))
        cluster[1].replicas.delete_records_before(leader, 4)
        await until(lambda: follower.log.log_start_offset == 4)
        # It even starts over, which needs no room.
        cluster[1].replicas.delete_records_before(leader, 8)
        await until(lambda: follower.log.log_start_offset == 8)
        await disks.make_room(2)
        await cluster.until_isr("t", 1, 2)
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (8, 10)

    run_cluster(tmp_path, scenario)


def test_a_leader_with_a_full_disk_can_be_cut_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it alone had is removed without room for a checkpoint, and its directory stays in use."""

    async def scenario(cluster: ReplicaCluster) -> None:
        disks = FullDisks(cluster, monkeypatch)
        await cluster.create("t", REPLICAS, configs=MIN_TWO)
        await write(cluster[1], 2)
        await cluster.until_equal("t")
        cluster.controller.cut_off.add(1)
        for node_id in (2, 3):
            fetching = cluster[node_id].replicas._fetching
            assert fetching is not None
            fetching.unfollow(cluster[node_id].replicas.find("t", 0))
        cluster.controller.change("t", leader=2, isr=(2, 3))
        await until(lambda: cluster[2].replicas.find("t", 0).is_leader)
        assert (await cluster[1].produce("t", [b"mine"], acks=1)).error_code == 0
        disks.fill(1)
        cluster.controller.cut_off.clear()
        cluster.controller.update(1)
        await write(cluster[2], 2)
        await until(lambda: log_end(cluster[1]) == 2)
        assert not cluster[1].replicas.find("t", 0).log.is_offline
        await disks.make_room(1)
        await cluster.until_isr("t", *REPLICAS)
        assert await cluster.until_equal("t") == 4

    run_cluster(tmp_path, scenario)


def test_a_topic_that_is_made_while_a_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replica there has no files, and leads nothing; it gets them once there is room."""

    async def scenario(cluster: ReplicaCluster) -> None:
        disks = FullDisks(cluster, monkeypatch)
        disks.refuses_files = True
        disks.fill(1)
        await cluster.create("t", REPLICAS, configs=MIN_TWO)
        await cluster.create("other", (2, 1, 3), configs=MIN_TWO)
        await until(lambda: cluster.controller.state("t").leader == 2)
        await cluster.until_isr("other", 2, 3)
        await write(cluster[2], 2)
        await write(cluster[2], 2, topic="other")
        assert list(cluster[1].replicas.partitions()) == []
        cluster[1].replicas._open_again_s = 0.0
        await disks.make_room(1)
        for topic in ("t", "other"):
            await cluster.until_isr(topic, *REPLICAS)
            assert await cluster.until_equal(topic) == 2

    run_cluster(tmp_path, scenario)


def test_nobody_waits_for_a_follower_whose_disk_failed(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS, configs=MIN_TWO)
        await write(cluster[1], 3)
        failed = cluster[3].replicas.find("t", 0)
        cluster[3].logs.directories.fail(failed.log.parent, "a test")
        async with asyncio.timeout(10):  # long before replica.lag.time.max.ms
            await cluster.until_isr("t", 1, 2)
            await write(cluster[1], 3)
        assert cluster.controller.state("t").elr == ()
        # It is out for good: that it held everything a moment ago lets it in no more.
        requests = cluster.controller.isr_requests
        for node in cluster.nodes.values():
            check_isrs, _ = node.replicas.background_tasks()
            await check_isrs.run()
        await write(cluster[1])
        assert cluster.controller.isr_requests == requests

    run_cluster(tmp_path, scenario)
