"""The records of __consumer_offsets beside Kafka's own: the same bytes, and Kafka's tools read what a broker wrote."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tidelog.bench.brokers import kafka_jars
from tidelog.coordinator import group_records as records
from tidelog.coordinator.actions import GroupRecord
from tidelog.coordinator.group_records import decode_record, encode_record
from tidelog.coordinator.offsets import CommittedOffset, offset_tombstone
from tidelog.testing import Broker

pytestmark = pytest.mark.compat

TOPIC_ID = uuid.UUID(int=(1 << 64) | 2)


def ours() -> dict[str, GroupRecord]:
    """What tests/compat/java/GroupRecords.java prints, made here."""
    offset = CommittedOffset(5, 7, "where ü", 1000)
    classic_member = records.GroupMetadataMember(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="/h",
        rebalance_timeout=1,
        session_timeout=2,
        subscription=b"\1",
        assignment=b"\2",
    )
    classic = records.GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m",
        current_state_timestamp=5,
        members=[classic_member],
    )
    current = records.AssignedTopicPartitions(topic_id=TOPIC_ID, partitions=[1, 2], assignment_epochs=[3, 3])
    classic_protocols = records.ClassicMemberMetadata(
        session_timeout_ms=7, supported_protocols=[records.ClassicProtocol(name="range", metadata=b"\x09")]
    )
    return {
        "commit": offset.record("g", "t", 3),
        "commit-with-topic-id": offset._replace(topic_id=TOPIC_ID).record("g", "t", 3),
        "commit-that-expires": offset._replace(expire_timestamp_ms=2000).record("g", "t", 3),
        "commit-tombstone": offset_tombstone("g", "t", 3),
        "classic": encode_record(records.GroupMetadataKey(group="g"), classic),
        "classic-tombstone": encode_record(records.GroupMetadataKey(group="g"), None),
        "epoch": encode_record(
            records.ConsumerGroupMetadataKey(group_id="g"),
            records.ConsumerGroupMetadataValue(epoch=4, metadata_hash=99),
        ),
        "epoch-tombstone": encode_record(records.ConsumerGroupMetadataKey(group_id="g"), None),
        "subscription-metadata-tombstone": encode_record(records.ConsumerGroupPartitionMetadataKey(group_id="g"), None),
        "target-metadata": encode_record(
            records.ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
            records.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=4, assignment_timestamp=77),
        ),
        "member": encode_record(records.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"), _member(None)),
        "member-of-the-classic-protocol": encode_record(
            records.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"), _member(classic_protocols)
        ),
        "target-member": encode_record(
            records.ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
            records.ConsumerGroupTargetAssignmentMemberValue(
                topic_partitions=[records.TargetTopicPartitions(topic_id=TOPIC_ID, partitions=[1, 2])]
            ),
        ),
        "current": encode_record(
            records.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
            records.ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=3, previous_member_epoch=2, state=1, assigned_partitions=[current]
            ),
        ),
        "regular-expression": encode_record(
            records.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="a.*"),
            records.ConsumerGroupRegularExpressionValue(topics=["a", "b"], version=4, timestamp=5),
        ),
    }


def _member(classic: records.ClassicMemberMetadata | None) -> records.ConsumerGroupMemberMetadataValue:
    return records.ConsumerGroupMemberMetadataValue(
        instance_id="i",
        client_id="c",
        client_host="/h",
        subscribed_topic_names=["a", "b"],
        rebalance_timeout_ms=8,
        server_assignor="range",
        classic_member_metadata=classic,
    )


def java(*arguments: str | Path) -> str:
    command = ["java", "-Xmx256m", "-cp", f"{kafka_jars()}/*", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_records_have_the_bytes_that_kafka_writes() -> None:
    theirs = {}
    for line in java(Path(__file__).parent / "java" / "GroupRecords.java").splitlines():
        name, key, value = line.split()
        theirs[name] = GroupRecord(bytes.fromhex(key), None if value == "-" else bytes.fromhex(value))
    made = ours()
    assert theirs == made
    for record in theirs.values():
        decoded = decode_record(record)
        assert decoded is not None
        version = None if record.value is None else int.from_bytes(record.value[:2], "big")
        assert encode_record(decoded.key, decoded.value, version) == record


@pytest.fixture
def committed() -> Iterator[Broker]:
    """A broker with the offsets of a consumer that assigned itself, and of one that joined a group."""
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        commit_offsets(broker)
        yield broker


def commit_offsets(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    broker.create_topic("read", partitions=2)
    for number in range(10):
        producer.produce("read", b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0
    options = {"bootstrap.servers": broker.bootstrap, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    alone = Consumer(options | {"group.id": "alone"})
    alone.commit(offsets=[TopicPartition("read", 1, 4, metadata="by hand")], asynchronous=False)
    alone.close()
    member = Consumer(options | {"group.id": "together"})
    member.subscribe(["read"])
    deadline_s = time.monotonic() + 60
    seen = 0
    while seen < 10:
        assert time.monotonic() < deadline_s
        seen += len(member.consume(10, timeout=0.5))
    member.commit(asynchronous=False)
    member.close()


def test_kafkas_own_formatters_read_the_topic(committed: Broker) -> None:
    offsets = consume(committed, "OffsetsMessageFormatter")
    found = {
        (row["key"]["data"]["group"], row["key"]["data"]["topic"], row["key"]["data"]["partition"]): (
            row["value"]["version"],
            row["value"]["data"]["offset"],
            # librdkafka sends the zero that ends the text in its memory.
            row["value"]["data"]["metadata"].rstrip("\0"),
        )
        for row in offsets
    }
    assert found == {
        ("alone", "read", 1): (4, 4, "by hand"),
        ("together", "read", 0): (4, 5, ""),
        ("together", "read", 1): (4, 5, ""),
    }
    groups = [
        row
        for row in consume(committed, "GroupMetadataMessageFormatter")
        if row["value"] is not None and row["key"]["data"]["group"] != "console"
    ]
    assert {row["key"]["data"]["group"] for row in groups} == {"together"}
    assert [len(row["value"]["data"]["members"]) for row in groups][-1] == 0
    assert any(row["value"]["data"]["protocol"] == "range" for row in groups)


def consume(broker: Broker, formatter: str) -> list[dict[str, Any]]:
    """All records of __consumer_offsets that this formatter of Kafka's console consumer prints."""
    output = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        broker.bootstrap,
        "--topic",
        "__consumer_offsets",
        "--formatter",
        f"org.apache.kafka.tools.consumer.{formatter}",
        "--from-beginning",
        "--timeout-ms",
        "10000",
        "--command-property",
        "enable.auto.commit=false",
        "--command-property",
        "group.id=console",
    )
    # It prints one object after the other, without anything between them.
    decoder, rows, position = json.JSONDecoder(), [], output.find("{")
    while position >= 0:
        row, end = decoder.raw_decode(output, position)
        rows.append(row)
        position = output.find("{", end)
    return rows


def test_kafkas_log_dump_decodes_the_files(committed: Broker) -> None:
    committed.stop()
    logs = [path for path in committed.data_dir.rglob("__consumer_offsets-*/*.log") if path.stat().st_size]
    output = java(
        "org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", ",".join(map(str, sorted(logs)))
    )
    keys = [part for line in output.splitlines() if "payload:" in line for part in _decoded(line)]
    assert {"alone", "together"} <= set(keys)


def _decoded(line: str) -> Iterable[str]:
    key = json.loads(line.partition("key: ")[2].partition(" payload: ")[0])
    yield key["data"].get("group", "")
