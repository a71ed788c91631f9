"""Three brokers copy each other's partitions: acknowledgements, failovers, divergence, moves, deletions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from replica_nodes import ReplicaCluster, ReplicaNode, run_cluster, until
from tidelog.broker import replica_fetcher
from tidelog.broker.delayed_produce import PendingAppend
from tidelog.client.address import Address
from tidelog.client.network.connection import Connection
from tidelog.log import PartitionLog
from tidelog.protocol import Api, ErrorCode
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from tidelog.protocol.messages.k21_delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.records import encode_batch

REPLICAS = (1, 2, 3)
# Whoever is not woken up waits for longer than any test does.
SETTINGS: Mapping[str, object] = {"replica.fetch.wait.max.ms": 100_000, "replica.socket.timeout.ms": 200_000}


def log_of(node: ReplicaNode, topic: str = "t", index: int = 0) -> PartitionLog:
    return node.replicas.find(topic, index).log


async def fill(node: ReplicaNode, count: int, *, acks: int = -1, topic: str = "t", size: int = 0) -> None:
    for number in range(count):
        answer = await node.produce(topic, [b"%d from %d" % (number, node.node_id) + bytes(size)], acks=acks)
        assert answer.error_code == 0


def test_records_reach_all_replicas(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS, configs={"min.insync.replicas": "3"})
        for number in range(20):
            answer = await cluster[1].produce("t", [b"value %d" % number])
            assert (answer.error_code, answer.base_offset) == (0, number)
        assert await cluster.until_equal("t") == 20
        assert cluster.controller.state("t").isr == REPLICAS

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_topics_made_later_do_not_wait_for_the_fetch_that_is_parked(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        for number in range(5):
            name = f"topic-{number}"
            await cluster.create(name, (1, 2), (2, 3), (3, 1))
            for index in range(3):
                answer = await cluster.leader(name, index).produce(name, [b"value"], index)
                assert answer.error_code == 0
                assert await cluster.until_equal(name, index) == 1

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_a_killed_leader_is_replaced_and_comes_back(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS, configs={"min.insync.replicas": "2"})
        await fill(cluster[1], 10)
        # What only the dead leader has was never acknowledged to anyone who asked for all.
        await cluster[1].produce("t", [b"lonely"], acks=1)
        await cluster.kill(1)
        assert cluster.controller.state("t").leader == 2
        await fill(cluster[2], 10)
        assert sorted(cluster.controller.state("t").isr) == [2, 3]
        await cluster[1].start()
        await cluster.until_isr("t", 1, 2, 3)
        await fill(cluster[2], 5)
        assert await cluster.until_equal("t") in (25, 26)
        assert [entry.epoch for entry in log_of(cluster[1]).epochs] == [0, 1]

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_what_a_deposed_leader_wrote_is_cut_off(tmp_path: Path) -> None:
    """It has not heard of its successor, and takes records with acks=1 that nobody copies."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS)
        await fill(cluster[1], 5)
        await cluster.until_equal("t")
        cluster.controller.cut_off.add(1)
        cluster.controller.change("t", leader=2, isr=(2, 3))
        await fill(cluster[1], 7, acks=1)
        await fill(cluster[2], 3)
        assert log_of(cluster[1]).log_end_offset == 12
        answer = await cluster[1].produce("t", [b"never committed"], timeout_ms=100)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert log_of(cluster[1]).high_watermark == 5
        cluster.controller.cut_off.clear()
        cluster.controller.update(1)
        await cluster.until_isr("t", 1, 2, 3)
        assert await cluster.until_equal("t") == 8

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_a_follower_keeps_what_it_shares_with_its_leader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It removes what differs, and not all that is above its high watermark, which lags (KIP-101)."""
    caplog.set_level(logging.INFO, replica_fetcher.__name__)

    async def scenario(cluster: ReplicaCluster) -> None:
        controller = cluster.controller
        await cluster.create("t", REPLICAS)
        # A member of the ISR that copies nothing keeps the high watermark where it is.
        hanging = cluster[2].replicas._fetching
        assert hanging is not None
        await hanging.close()
        controller.cut_off.add(2)
        await fill(cluster[1], 5, acks=1)
        await until(lambda: log_of(cluster[3]).log_end_offset == 5)
        controller.cut_off.add(1)  # it goes on as if it led, and copies nothing
        controller.change("t", leader=3)
        await fill(cluster[3], 2, acks=1)
        controller.cut_off.discard(1)
        controller.change("t", leader=1)
        await fill(cluster[1], 1, acks=1)
        await until(lambda: cluster[3].log_bytes("t") == cluster[1].log_bytes("t"))
        assert [log_of(cluster[node_id]).high_watermark for node_id in (1, 3)] == [0, 0]

    run_cluster(tmp_path, scenario, settings=SETTINGS)
    (cut,) = [message for message in caplog.messages if "differs from broker" in message]
    assert "cut from offset 7 to 5, the high watermark was 0" in cut


def test_several_divergences_take_several_steps(tmp_path: Path) -> None:
    """KIP-279: each of two replicas wrote in epochs that the other never heard of."""

    async def scenario(cluster: ReplicaCluster) -> None:
        controller = cluster.controller
        await cluster.create("t", (1, 2))
        await fill(cluster[1], 4)
        await cluster.until_equal("t")
        for leader, other in ((1, 2), (2, 1), (1, 2), (2, 1)):
            # Nobody copies from this leader before the other one takes over.
            controller.cut_off.add(other)
            controller.change("t", leader=leader, leader_epoch=controller.state("t").leader_epoch + 1)
            await fill(cluster[leader], 3, acks=1)
            controller.cut_off.clear()
            controller.cut_off.add(leader)
            controller.change("t", leader=-1)
            controller.cut_off.clear()
        controller.change("t", leader=1)
        controller.update(1)
        controller.update(2)
        await cluster.until_equal("t")
        controller.change("t", leader=2)
        await fill(cluster[2], 1)
        await cluster.until_equal("t")

    run_cluster(tmp_path, scenario, count=2, settings=SETTINGS)


def test_leaders_move_under_load(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS, configs={"min.insync.replicas": "2"})
        acknowledged: list[bytes] = []
        is_over = asyncio.Event()

        async def produce(name: bytes) -> None:
            number = 0
            while not is_over.is_set():
                value = b"%s %d" % (name, number)
                answer = await cluster.leader("t").produce("t", [value])
                if answer.error_code == 0:
                    acknowledged.append(value)
                    number += 1

        async def until_more(count: int) -> None:
            await until(lambda: len(acknowledged) >= count)

        producers = [asyncio.create_task(produce(name)) for name in (b"a", b"b")]
        for step in range(12):
            await until_more(len(acknowledged) + 3)
            await cluster.until_isr("t", 1, 2, 3)
            cluster.controller.change("t", leader=REPLICAS[step % 3])
        is_over.set()
        await asyncio.gather(*producers)
        await cluster.until_equal("t")
        contents = cluster[1].log_bytes("t")
        assert all(contents.count(value) >= 1 for value in acknowledged)

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_a_partition_moves_to_another_broker(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        controller = cluster.controller
        await cluster.create("t", (1, 2), (1, 2))
        await fill(cluster[1], 10)
        controller.change("t", replicas=(1, 2, 3), adding=(3,), removing=(1,))
        # The controller completes the move once the new replica is in sync.
        await cluster.until_isr("t", 2, 3)
        assert (cluster[3].path / "t-0").is_dir()
        await until(lambda: not (cluster[1].path / "t-0").exists())
        assert (cluster[1].path / "t-1").is_dir()
        await fill(cluster.leader("t"), 5)
        assert await cluster.until_equal("t") == 15
        # And back, to a broker that has deleted it.
        controller.change("t", replicas=(3, 2, 1), adding=(1,))
        await cluster.until_isr("t", 1, 2, 3)
        assert await cluster.until_equal("t") == 15

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_a_partition_that_moved_while_its_broker_was_down_is_removed(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS)
        await fill(cluster[1], 3)
        await cluster.until_equal("t")
        await cluster.kill(3)
        cluster.controller.change("t", replicas=(1, 2))
        await cluster[3].start()
        await until(lambda: not (cluster[3].path / "t-0").exists())

    run_cluster(tmp_path, scenario, settings=SETTINGS)


async def delete_records(node: ReplicaNode, offset: int, timeout_ms: int = 30_000) -> tuple[int, int]:
    topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    connection = await node.connection()
    response = await connection.request(
        DELETE_RECORDS, DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms), DeleteRecordsResponse
    )
    (row,) = response.topics[0].partitions
    return row.error_code, row.low_watermark


def test_records_are_deleted_in_all_replicas(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS)
        await fill(cluster[1], 10)
        assert await delete_records(cluster[1], 7) == (0, 7)
        assert [log_of(node).log_start_offset for node in cluster.nodes.values()] == [7, 7, 7]
        # A follower that is not there any more can't follow.
        await cluster[3].stop(clean=False)
        assert await delete_records(cluster[1], 8, timeout_ms=200) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        cluster.controller.fence(3)
        assert await delete_records(cluster[1], 9) == (0, 9)

    run_cluster(tmp_path, scenario, settings=SETTINGS)


@pytest.mark.parametrize("start", [12, 13], ids=["between batches", "within a batch"])
def test_a_follower_that_was_away_too_long_starts_over(tmp_path: Path, start: int) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (1, 2))
        await cluster[1].produce("t", [b"first"] * 4)
        await cluster.until_equal("t")
        await cluster.kill(2)
        for _ in range(4):
            assert (await cluster[1].produce("t", [b"later"] * 4)).error_code == 0
        assert await delete_records(cluster[1], start) == (0, start)
        await cluster[2].start()
        await cluster.until_isr("t", 1, 2)
        await until(lambda: log_of(cluster[2]).log_start_offset == start)
        assert log_of(cluster[2]).segments[0].base_offset == 12
        assert log_of(cluster[2]).log_end_offset == 20
        await fill(cluster[1], 3)
        await until(lambda: log_of(cluster[2]).high_watermark == 23)
        assert cluster[1].log_bytes("t").endswith(cluster[2].log_bytes("t"))

    run_cluster(tmp_path, scenario, count=2, settings=SETTINGS)


def test_an_unclean_leader_with_less_makes_others_forget(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        controller = cluster.controller
        await cluster.create("t", (1, 2))
        await fill(cluster[1], 3)
        await cluster.until_equal("t")
        await cluster.kill(2)
        await fill(cluster[1], 5)
        await cluster[1].stop(clean=True)
        controller.change("t", leader=-1, isr=())
        await cluster[2].start()
        controller.change("t", leader=2, isr=(2,))
        await fill(cluster[2], 1)
        await cluster[1].start()
        await cluster.until_isr("t", 1, 2)
        assert await cluster.until_equal("t") == 4

    run_cluster(tmp_path, scenario, count=2, settings=SETTINGS)


def test_a_follower_that_hangs_leaves_the_isr(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS, configs={"min.insync.replicas": "2"})
        await fill(cluster[1], 3)
        await cluster.until_equal("t")
        check, _ = cluster[1].replicas.background_tasks()
        await check.run()
        assert cluster.controller.state("t").isr == REPLICAS
        hanging = cluster[3].replicas._fetching
        assert hanging is not None
        await hanging.close()
        waiting = asyncio.create_task(fill(cluster[1], 1))
        await until(lambda: log_of(cluster[2]).log_end_offset == 4)
        assert not waiting.done()

        while not waiting.done():  # until replica.lag.time.max.ms is over
            await check.run()
            await asyncio.wait([waiting], timeout=0.01)
        await waiting
        await cluster.until_isr("t", 1, 2)
        assert log_of(cluster[1]).high_watermark == 4

    run_cluster(tmp_path, scenario, settings={**SETTINGS, "replica.lag.time.max.ms": 300})


def test_too_few_replicas_in_sync(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS, configs={"min.insync.replicas": "2"})
        await fill(cluster[1], 3)
        await cluster[2].stop(clean=False)
        await cluster[3].stop(clean=False)
        waiting = asyncio.create_task(cluster[1].produce("t", [b"too late"], timeout_ms=60_000))
        await until(lambda: log_of(cluster[1]).log_end_offset == 4)
        cluster.controller.fence(2)
        cluster.controller.fence(3)
        connection = await Connection.open(Address("127.0.0.1", cluster[1].port))
        cluster[1]._connection = connection
        answer = await cluster[1].produce("t", [b"refused"])
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert log_of(cluster[1]).high_watermark == 3
        await cluster[2].start()
        await cluster.until_isr("t", 1, 2)
        assert (await waiting).error_code == 0
        await fill(cluster[1], 1)
        assert await cluster.until_equal("t") == 5

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_transactions_and_sequences_are_known_to_followers(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS, configs={"segment.bytes": "1048576"})
        partition = cluster[1].replicas.find("t", 0)
        for sequence in range(4):
            batch = encode_batch([(None, b"value", (), 1)], producer_id=7, producer_epoch=1, base_sequence=sequence)
            assert (await cluster[1].send("t", batch)).error_code == 0
        guard = partition.log.begin_verification(8, 0, 0)
        begun = encode_batch(
            [(None, b"value", (), 1)], producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        cluster[1].replicas.append(partition, memoryview(begun), -1, guard=guard)
        await cluster.until_equal("t")
        for node in cluster.nodes.values():
            assert log_of(node).last_stable_offset == 4
        cluster[1].replicas.write_txn_marker(partition, 8, 0, 1, commit=False)
        await cluster.until_equal("t")
        for node in cluster.nodes.values():
            log = log_of(node)
            assert log.last_stable_offset == 6
            assert [entry.producer_id for entry in log.aborted_transactions(0, 6)] == [8]
            assert {entry.producer_id: entry.last_sequence for entry in log.active_producers()} == {7: 3, 8: 0}
        cluster.controller.change("t", leader=2)
        repeated = encode_batch([(None, b"value", (), 1)], producer_id=7, producer_epoch=1, base_sequence=3)
        answer = await cluster[2].send("t", repeated)
        assert (answer.error_code, answer.base_offset) == (0, 3)
        assert await cluster.until_equal("t") == 6

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_large_answers_and_many_small_batches(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (1, 2), configs={"segment.bytes": "1048576"})
        await cluster[2].stop(clean=False)
        cluster.controller.change("t", isr=(1,))
        partition = cluster[1].replicas.find("t", 0)
        for number in range(3000):
            batch = encode_batch([(None, b"%d" % number, (), 1)])
            cluster[1].replicas.append(partition, memoryview(batch), 1)
        await fill(cluster[1], 8, acks=1, size=900_000)
        await cluster[2].start()
        await cluster.until_isr("t", 1, 2)
        assert await cluster.until_equal("t") == 3008
        assert log_of(cluster[2]).segments_count > 3

    run_cluster(tmp_path, scenario, count=2, settings=SETTINGS)


def test_flushes_count_before_the_leader_may_acknowledge(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS, configs={"flush.messages": "1", "min.insync.replicas": "3"})
        for count in range(1, 6):
            await fill(cluster[1], 1)
            assert [log_of(node).flushed_offset for node in cluster.nodes.values()] == [count] * 3

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_a_client_that_pretends_to_be_a_replica_is_refused(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        topic = await cluster.create("t", (1, 2))
        await fill(cluster[1], 2)
        epochs = {node_id: broker.epoch for node_id, broker in cluster.controller.image.brokers.items()}
        connection = await Connection.open(Address("127.0.0.1", cluster[1].port))

        async def fetch(replica_id: int, replica_epoch: int, leader_epoch: int = 0) -> tuple[int, int]:
            wanted = FetchPartition(current_leader_epoch=leader_epoch, fetch_offset=2, partition_max_bytes=1000)
            request = FetchRequest(
                replica_state=ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch),
                topics=[FetchTopic(topic_id=topic.topic_id, partitions=[wanted])],
            )
            response = await connection.request(FETCH, request, FetchResponse)
            rows = [row.error_code for each in response.responses for row in each.partitions]
            return response.error_code, rows[0] if rows else 0

        assert await fetch(2, epochs[2] - 1) == (ErrorCode.STALE_BROKER_EPOCH, 0)
        assert await fetch(2, -1) == (ErrorCode.STALE_BROKER_EPOCH, 0)
        assert await fetch(7, 1) == (ErrorCode.STALE_BROKER_EPOCH, 0)
        assert await fetch(3, epochs[3]) == (0, ErrorCode.UNKNOWN_LEADER_EPOCH)
        assert await fetch(1, epochs[1]) == (0, ErrorCode.UNKNOWN_LEADER_EPOCH)
        assert await fetch(2, epochs[2], leader_epoch=-1) == (0, ErrorCode.FENCED_LEADER_EPOCH)
        assert await fetch(2, epochs[2], leader_epoch=1) == (0, ErrorCode.UNKNOWN_LEADER_EPOCH)
        assert await fetch(2, epochs[2]) == (0, 0)
        connection.close()

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_a_request_names_a_bounded_number_of_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[int] = []
    send = Connection.send

    def note(connection: Connection, api: Api, request: object, *rest: Any, **named_arguments: Any) -> Any:
        if isinstance(request, FetchRequest):
            named.append(sum(len(topic.partitions) for topic in request.topics))
        return send(connection, api, request, *rest, **named_arguments)

    monkeypatch.setattr(Connection, "send", note)
    monkeypatch.setattr(replica_fetcher, "NAMED_PER_REQUEST_MAX", 4)

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", *[(1, 2)] * 15, configs={"min.insync.replicas": "2"})
        for index in range(15):
            assert (await cluster[1].produce("t", [b"value"], index)).error_code == 0
            assert await cluster.until_equal("t", index) == 1
        assert max(named) == 4
        assert sum(named) >= 30

    run_cluster(tmp_path, scenario, count=2, settings=SETTINGS)


def test_a_debugging_consumer_reads_any_replica_and_all_of_it(tmp_path: Path) -> None:
    """Kafka's ReplicaVerificationTool has replica id -2: it compares replicas, with what is not committed yet, too."""

    async def scenario(cluster: ReplicaCluster) -> None:
        topic = await cluster.create("t", (1, 2), configs={"min.insync.replicas": "2"})
        await fill(cluster[1], 3)
        await cluster.until_equal("t")
        await cluster.kill(2)
        await fill(cluster[1], 2, acks=1)
        assert log_of(cluster[1]).high_watermark == 3
        await cluster[2].start(clean=True)
        await cluster.until_isr("t", 1, 2)
        end_offset = await cluster.until_equal("t")

        async def read(node_id: int, replica_id: int, offset: int) -> tuple[int, bool]:
            wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
            request = FetchRequest(
                max_wait_ms=1,
                max_bytes=100_000,
                replica_state=ReplicaState(replica_id=replica_id),
                topics=[FetchTopic(topic_id=topic.topic_id, partitions=[wanted])],
            )
            response = await (await cluster[node_id].connection()).request(FETCH, request, FetchResponse)
            (row,) = [row for each in response.responses for row in each.partitions]
            return row.error_code, bool(row.records)

        for node_id in (1, 2):
            assert await read(node_id, -2, 0) == (0, True)
            assert await read(node_id, -2, end_offset - 1) == (0, True)
            assert await read(node_id, -2, end_offset) == (0, False)
            assert await read(node_id, -2, end_offset + 1) == (ErrorCode.OFFSET_OUT_OF_RANGE, False)
        # Not committed: nobody has copied it, and two replicas have to.
        cluster.controller.cut_off.add(2)
        await cluster[2].stop(clean=False)
        await fill(cluster[1], 1, acks=1)
        assert await read(1, -1, end_offset) == (0, False)
        assert await read(1, -2, end_offset) == (0, True)

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_a_fenced_leader_stops_serving_until_it_has_a_new_epoch(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (1, 2), (1,))
        await fill(cluster[1], 2)
        cluster[1].replicas.fence()
        answer = await cluster[1].produce("t", [b"value"], acks=1)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        # Nobody else can lead a sole replica, but only a broker that is alone in its cluster serves while it is fenced.
        assert (await cluster[1].produce("t", [b"value"], 1)).error_code == 0
        cluster.controller.change("t", isr=(1,))
        assert (await cluster[1].produce("t", [b"value"], acks=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster[1].replicas.on_registered(cluster.controller.register(cluster[1], clean=True))
        await fill(cluster[1], 1)
        await cluster.until_isr("t", 1, 2)
        assert await cluster.until_equal("t") == 3

    run_cluster(tmp_path, scenario, count=2, settings=SETTINGS)


@dataclass
class Session:
    """As much of a session as a broker looks at before it answers."""

    is_over: bool = False
    id: str = "session"
    deadline_ms: float = 0.0
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def close(self) -> None:
        self.lost.set()


def test_past_its_deadline_a_broker_serves_nothing(tmp_path: Path) -> None:
    """Before anything here has heard of it: the process may have stood still."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (1, 2), (1,))
        replicas, session = cluster[1].replicas, Session()
        replicas.session = session
        await fill(cluster[1], 2)
        assert (await cluster[1].produce("t", [b"value"], 1)).error_code == 0
        session.is_over = True
        for index in (0, 1):
            answer = await cluster[1].produce("t", [b"value"], index)
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        session.is_over = False
        assert (await cluster[1].produce("t", [b"value"], 1)).error_code == 0

    run_cluster(tmp_path, scenario, count=2, settings=SETTINGS)


def test_a_fenced_broker_among_others_gives_up_sole_replicas_too(tmp_path: Path) -> None:
    """Coordinators and waiting produces hold on to the partition, and have to hear of it."""

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (1,))
        replicas = cluster[1].replicas
        partition = replicas.find("t", 0)
        heard: list[bool] = []
        replicas.leadership_listeners.append(lambda partition: heard.append(partition.is_leader))
        waiting = PendingAppend(partition, 1, partition.leader_epoch, -1, None)
        outcome = asyncio.create_task(replicas.wait_for_acknowledgement([waiting], 60_000))
        await asyncio.sleep(0)
        replicas.is_fenced = True
        replicas.fence()
        await outcome
        assert waiting.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert heard == [False]
        # The new registration gives it a new epoch.
        replicas.is_fenced = False
        replicas.on_registered(cluster.controller.register(cluster[1], clean=True))
        await fill(cluster[1], 1)

    run_cluster(tmp_path, scenario, count=2, settings=SETTINGS)


def test_a_fenced_leader_forgets_the_followers_that_start_anew_meanwhile(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (1, 2))
        await fill(cluster[1], 2)
        cluster[1].replicas.is_fenced = True  # as its registration does when its session is lost
        cluster[1].replicas.fence()
        cluster[2].replicas.on_registered(cluster.controller.register(cluster[2], clean=True))
        cluster[1].replicas.on_registered(cluster.controller.register(cluster[1], clean=True))
        cluster[1].replicas.is_fenced = False
        await fill(cluster[1], 1)
        await cluster.until_isr("t", 1, 2)
        assert await cluster.until_equal("t") == 3

    run_cluster(tmp_path, scenario, count=2, settings=SETTINGS)


def test_another_broker_leads_at_once_when_a_leaders_disk_fails(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS, (1,))
        await fill(cluster[1], 3)
        log = log_of(cluster[1])
        cluster[1].logs.directories.fail(log.parent, "a test")
        await until(lambda: cluster.controller.state("t").leader == 2)
        state = cluster.controller.state("t")
        assert (state.isr, state.elr) == ((2, 3), ())
        assert cluster.controller.state("t", 1).leader == 1, "nobody else has it"
        await fill(cluster[2], 1)

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_records_that_arrive_damaged_are_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = PartitionLog.append_as_follower
    damaged: list[PartitionLog] = []

    def damage_once(log: PartitionLog, records: memoryview, *, leader_epoch: int) -> None:
        if log not in damaged:
            damaged.append(log)
            records[-1] ^= 1
        append(log, records, leader_epoch=leader_epoch)

    monkeypatch.setattr(PartitionLog, "append_as_follower", damage_once)

    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", REPLICAS)
        await fill(cluster[1], 3)
        assert await cluster.until_equal("t") == 3
        assert len(damaged) == 2

    run_cluster(tmp_path, scenario, settings=SETTINGS)
