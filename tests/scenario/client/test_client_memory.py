"""Clients take as much memory as their settings allow, however much there is to read or to send."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog import Admin, NewTopic, Producer

if TYPE_CHECKING:
    from proxied_cluster import ProxiedCluster
    from tidelog.bench.brokers import BrokerProcess

MIB = 1024 * 1024
PARTITIONS = 4
BACKLOG_BYTES = 96 * MIB
BOUND_BYTES = 8 * MIB
# What an allocator and the interpreter take beside the data itself.
SLACK_BYTES = 24 * MIB

_RESIDENT = """
import json, os, sys, time
from tidelog import Consumer, Producer, TopicPartition
from tidelog.client.errors import BufferFullError

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

options = json.loads(sys.argv[1])
"""

_READ_SLOWLY = (
    _RESIDENT
    + """
with Consumer(options["settings"]) as consumer:
    consumer.assign([TopicPartition(options["topic"], number) for number in range(options["partitions"])])
    first = consumer.poll(30)
    before, highest, read = resident(), 0, 0
    ends_s = time.monotonic() + 60
    while read < options["records"] and time.monotonic() < ends_s:
        time.sleep(0.03)  # a reader that is slower than the network
        read += len(consumer.poll(1))
        highest = max(highest, resident())
print(json.dumps({"first": len(first), "read": read, "grown": highest - before}))
"""
)

_SEND_INTO_THE_VOID = (
    _RESIDENT
    + """
settings = {**options["settings"], "max.block.ms": 100}
with Producer({**settings, "max.block.ms": 30_000}) as producer:
    producer.send(options["topic"], b"first").result(30)
producer = Producer(settings)
producer.partitions_for(options["topic"])
before, sent = resident(), 0
print("ready", flush=True)
sys.stdin.readline()
value = bytes(1_000)
try:
    while sent < 1_000_000:
        producer.send_nowait(options["topic"], value, partition=sent % options["partitions"])
        sent += 1
    reason = "never"
except BufferFullError as error:
    reason = str(error)
print(json.dumps({"sent": sent, "reason": reason, "grown": resident() - before}), flush=True)
producer.close(0.1)
"""
)


def make_topic(bootstrap: str, name: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1)]).raise_for_errors()


def test_a_backlog_does_not_fill_the_memory_of_a_slow_reader(
    client_cluster: BrokerProcess, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("backlog")
    make_topic(client_cluster.bootstrap, topic)
    count = BACKLOG_BYTES // 4_096
    with Producer(bootstrap_servers=client_cluster.bootstrap, batch_size=64 * 1024) as producer:
        value = bytes(4_096)
        for number in range(count):
            producer.send_nowait(topic, value, partition=number % PARTITIONS)
    settings = {
        "bootstrap.servers": client_cluster.bootstrap,
        "auto.offset.reset": "earliest",
        "queued.max.bytes": BOUND_BYTES,
        "max.partition.fetch.bytes": MIB,
    }
    options = {"settings": settings, "topic": topic, "partitions": PARTITIONS, "records": count // 2}
    done = subprocess.run(
        [sys.executable, "-c", _READ_SLOWLY, json.dumps(options)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["read"] >= count // 2
    assert told["grown"] < BOUND_BYTES + SLACK_BYTES, told


def test_what_can_not_be_sent_does_not_fill_the_memory(
    proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("void")
    make_topic(proxied_cluster.bootstrap, topic)
    settings = {"bootstrap.servers": proxied_cluster.bootstrap, "buffer.memory": BOUND_BYTES}
    options = {"settings": settings, "topic": topic, "partitions": PARTITIONS}
    process = subprocess.Popen(
        [sys.executable, "-c", _SEND_INTO_THE_VOID, json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        proxied_cluster.proxy.stalled = True
        process.stdin.write("\n")
        process.stdin.flush()
        told = json.loads(process.stdout.readline())
    assert process.returncode == 0
    assert "buffer.memory" in told["reason"]
    assert BOUND_BYTES // 2 < told["sent"] * 1_000 <= BOUND_BYTES * 2  # what was under way may be sent already
    assert told["grown"] < BOUND_BYTES + SLACK_BYTES, told
