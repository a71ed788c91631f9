"""How a well-behaved client fares beside greedy ones: `python benchmarks/fairness.py [--loads WORD,...]`.

A broker with many partitions and groups is asked for everything by many connections at once, over and over, while one
client alternates between a one-record produce and the metadata of one topic. The table has that client's times for each
load, and the broker's memory. The goal is a p99 under 100 ms in every row; `--check` fails where one is over it. In the
load `everything` each connection goes through all other requests in turn, beginning with another one. The good client
and the greedy ones are processes of their own; the greedy one throws the responses away unread, so what is measured is
the broker and not somebody's decoding.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.bench.brokers import TidelogBroker
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from tidelog.protocol.messages.k03_metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k15_describe_groups import DESCRIBE_GROUPS, DescribeGroupsRequest
from tidelog.protocol.messages.k16_list_groups import LIST_GROUPS, ListGroupsRequest
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from tidelog.protocol.messages.k35_describe_log_dirs import DESCRIBE_LOG_DIRS, DescribeLogDirsRequest
from tidelog.records import encode_batch
from tidelog.testing.raw_client import RawClient, frame

TOPICS = 20
QUIET_TOPIC = "quiet"
GROUP_ID_BYTES = 8000
TOPIC_RESOURCE = 2
# A request may have 20,000 array elements, topics included.
REQUEST_PARTITIONS_MAX = 19_000
REQUEST_TIMEOUT_MS = 120_000
P99_MS_MAX = 100.0


@dataclass(frozen=True)
class Load:
    """What the greedy connections ask for, one request after another, and whether they read the responses."""

    connections: int
    requests: Sequence[Callable[[int], bytes]]
    reads: bool = True


def topic_name(number: int) -> str:
    return f"topic-{number}"


def group_name(number: int) -> str:
    # The first one has many offsets, each of which repeats the name.
    return f"group-{number}-".ljust(GROUP_ID_BYTES if number else 0, "x")


def _spread(partitions: int) -> list[tuple[str, range]]:
    """This many partitions, by topic."""
    return [(topic_name(number), range(partitions // TOPICS)) for number in range(TOPICS)]


def _fetch(partitions: int) -> bytes:
    topics = [
        FetchTopic(topic=name, partitions=[FetchPartition(partition=i, partition_max_bytes=1 << 20) for i in indexes])
        for name, indexes in _spread(min(partitions, REQUEST_PARTITIONS_MAX))
    ]
    return frame(FETCH, FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics), 12, 1, "greedy")


def _produce(partitions: int) -> bytes:
    batch = encode_batch([(b"key", b"value", (), int(time.time() * 1000))])
    topics = [
        TopicProduceData(name=name, partition_data=[PartitionProduceData(index=i, records=batch) for i in indexes])
        for name, indexes in _spread(min(partitions, 5000))
    ]
    return frame(PRODUCE, ProduceRequest(acks=1, timeout_ms=REQUEST_TIMEOUT_MS, topic_data=topics), 9, 1, "greedy")


def _describe_configs(_: int) -> bytes:
    resources = [
        DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic_name(number), configuration_keys=None)
        for number in range(TOPICS)
    ]
    return frame(DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=resources), 4, 1, "greedy")


def _offset_fetch(_: int) -> bytes:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_name(0), topics=None)])
    return frame(OFFSET_FETCH, request, 8, 1, "greedy")


def _metadata(_: int) -> bytes:
    return frame(METADATA, MetadataRequest(topics=None), 9, 1, "greedy")


def _log_dirs(_: int) -> bytes:
    return frame(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), 4, 1, "greedy")


def _list_groups(_: int) -> bytes:
    return frame(LIST_GROUPS, ListGroupsRequest(), 4, 1, "greedy")


def _describe_groups(_: int) -> bytes:
    return frame(DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[group_name(1)] * 1900), 5, 1, "greedy")


EVERYTHING = (
    _metadata,
    _log_dirs,
    _list_groups,
    _describe_configs,
    _describe_groups,
    _fetch,
    _produce,
    _offset_fetch,
)
LOADS = {
    "metadata": Load(20, [_metadata]),
    "log-dirs": Load(20, [_log_dirs]),
    "list-groups": Load(20, [_list_groups]),
    "list-groups-deaf": Load(60, [_list_groups], reads=False),
    "describe-configs": Load(20, [_describe_configs]),
    "describe-groups": Load(5, [_describe_groups]),
    "fetch": Load(20, [_fetch]),
    "produce": Load(5, [_produce]),
    "offset-fetch": Load(5, [_offset_fetch]),
    "everything": Load(20, EVERYTHING),
}


def be_greedy(port: int, load: Load, partitions: int) -> None:
    """Ask for everything on many connections, each time the response before is there, until stopped."""
    requests = [request(partitions) for request in load.requests]
    selector = selectors.DefaultSelector()
    scratch = bytearray(1 << 20)
    left: dict[socket.socket, int] = {}
    coming: dict[socket.socket, Iterator[bytes]] = {}

    def connect(first: int) -> None:
        sock = socket.create_connection(("127.0.0.1", port))
        coming[sock] = itertools.cycle(requests[first:] + requests[:first])
        sock.sendall(next(coming[sock]))
        left[sock] = 0
        if load.reads:
            selector.register(sock, selectors.EVENT_READ)

    for number in range(load.connections):
        connect(number % len(requests))
    print("asking", flush=True)
    answers = 0
    if not load.reads:
        while not sys.stdin.read(1):
            time.sleep(1)
        print(answers, flush=True)
        return
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            sock = key.fileobj
            if not isinstance(sock, socket.socket):
                print(answers, flush=True)
                return
            if not left[sock]:
                head = sock.recv(4, socket.MSG_WAITALL)
                if len(head) < 4:
                    raise SystemExit("the broker closed a greedy connection")
                left[sock] = struct.unpack(">i", head)[0]
            received = sock.recv_into(scratch, min(left[sock], len(scratch)))
            left[sock] -= received
            if not received:
                raise SystemExit("the broker closed a greedy connection")
            if not left[sock]:
                answers += 1
                sock.sendall(next(coming[sock]))


def be_good(port: int, seconds: float) -> None:
    """Alternate between a produce and the metadata of one topic; print how long each took."""
    batch = encode_batch([(b"key", b"value", (), int(time.time() * 1000))])
    data = [TopicProduceData(name=QUIET_TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])]
    produce = ProduceRequest(acks=1, timeout_ms=REQUEST_TIMEOUT_MS, topic_data=data)
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name=QUIET_TOPIC)])
    taken_s: list[float] = []
    with RawClient(port) as client:
        client.sock.settimeout(REQUEST_TIMEOUT_MS / 1000)
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            began_s = time.perf_counter()
            produced = client.ask(PRODUCE, produce, ProduceResponse, 9).responses[0].partition_responses[0]
            taken_s.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            described = client.ask(METADATA, metadata, MetadataResponse, 9).topics[0]
            taken_s.append(time.perf_counter() - began_s)
            if produced.error_code or described.error_code:
                raise SystemExit(f"the good client got the errors {produced.error_code} and {described.error_code}")
            time.sleep(0.002)  # a client with other things to do; else it would be a load itself
    print(json.dumps(sorted(taken_s)), flush=True)


def prepare(port: int, partitions: int, groups: int) -> None:
    """Create topics in batches, put a record into each partition, and commit offsets of many groups."""
    per_topic = partitions // TOPICS
    with RawClient(port) as client:
        client.sock.settimeout(REQUEST_TIMEOUT_MS / 1000)
        wanted = [CreatableTopic(name=QUIET_TOPIC, num_partitions=1, replication_factor=1)]
        wanted += [
            CreatableTopic(name=topic_name(number), num_partitions=per_topic, replication_factor=1)
            for number in range(TOPICS)
        ]
        for topic in wanted:
            create = CreateTopicsRequest(topics=[topic], timeout_ms=REQUEST_TIMEOUT_MS)
            error = client.ask(CREATE_TOPICS, create, CreateTopicsResponse, 5).topics[0].error_code
            if error:
                raise SystemExit(f"creating {topic.name} failed with error {error}")
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
        client.ask(FIND_COORDINATOR, find, FindCoordinatorResponse, 4)
        for number in range(groups):
            indexes = range(per_topic) if number == 0 else range(1)
            rows = [OffsetCommitRequestPartition(partition_index=i, committed_offset=1) for i in indexes]
            commit = OffsetCommitRequest(
                group_id=group_name(number), topics=[OffsetCommitRequestTopic(name=topic_name(0), partitions=rows)]
            )
            answer = client.ask(OFFSET_COMMIT, commit, OffsetCommitResponse, 8)
            error = answer.topics[0].partitions[0].error_code
            if error:
                raise SystemExit(f"committing offsets failed with error {error}")


def _process(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a client ended with {process.wait()}")
    return line.strip()


def measure(port: int, load_name: str | None, seconds: float, partitions: int) -> tuple[list[float], str]:
    """The good client's times beside a load, sorted, and how many responses the greedy ones got."""
    greedy = None
    if load_name is not None:
        greedy = _process("--greedy", load_name, "--port", str(port), "--partitions", str(partitions))
        _said(greedy)
    try:
        good = _process("--good", str(seconds), "--port", str(port))
        times = json.loads(_said(good))
        good.wait()
        answers = "-"
        if greedy is not None:
            assert greedy.stdin is not None
            greedy.stdin.write("x")
            greedy.stdin.close()
            answers = _said(greedy)
    finally:
        if greedy is not None:
            greedy.kill()
            greedy.wait()
    return times, answers


def rss_mb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1_000_000


def run(names: list[str], seconds: float, partitions: int, groups: int) -> list[str]:
    """Print the table; the loads beside which the good client's p99 was over the goal."""
    over: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tidelog-fairness-") as directory:
        settings = {"group.initial.rebalance.delay.ms": "0"}
        with TidelogBroker(Path(directory), settings=settings) as broker:
            began_s = time.perf_counter()
            prepare(broker.port, partitions, groups)
            prepared_s = time.perf_counter() - began_s
            print(f"{partitions} partitions and {groups} groups, made in {prepared_s:.0f} s")
            print("| load | p50 | p99 | longest | requests | greedy responses | broker's memory |")
            print("|---|---|---|---|---|---|---|")
            for name in [None, *names]:
                times, answers = measure(broker.port, name, seconds, partitions)
                p50_ms, p99_ms = (times[int(len(times) * share)] * 1000 for share in (0.5, 0.99))
                if p99_ms > P99_MS_MAX:
                    over.append("none" if name is None else name)
                cells = [
                    "none" if name is None else f"{LOADS[name].connections}x {name}",
                    f"{p50_ms:.2f} ms",
                    f"{p99_ms:.2f} ms",
                    f"{times[-1] * 1000:.1f} ms",
                    str(len(times)),
                    answers,
                    f"{rss_mb(broker.pid)} MB",
                ]
                print(f"| {' | '.join(cells)} |", flush=True)
    return over


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", default=",".join(LOADS), help="which loads, comma-separated; all by default")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each load is measured")
    parser.add_argument("--partitions", type=int, default=20_000)
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--check", action="store_true", help=f"fail if a p99 is over {P99_MS_MAX:.0f} ms")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--greedy", help=argparse.SUPPRESS)
    parser.add_argument("--good", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.greedy:
        be_greedy(options.port, LOADS[options.greedy], options.partitions)
    elif options.good:
        be_good(options.port, options.good)
    else:
        names = [name for name in options.loads.split(",") if name]
        unknown = sorted(set(names) - set(LOADS))
        if unknown:
            parser.error(f"unknown loads: {', '.join(unknown)}; there are {', '.join(LOADS)}")
        over = run(names, options.seconds, options.partitions, options.groups)
        if over and options.check:
            raise SystemExit(f"the good client's p99 is over {P99_MS_MAX:.0f} ms beside: {', '.join(over)}")


if __name__ == "__main__":
    main()
