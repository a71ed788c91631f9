"""An acknowledgement that waits for the disk: when it comes, and how many of them share one flush.

The kernel's calls are watched and slowed down, so that what waits for a flush is told apart from what does not.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tidelog.protocol.config_values import AlterOperation, ResourceType
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k44_incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.testing.raw_client import RawClient, produce_request

if TYPE_CHECKING:
    from tests.chaos.conftest import ServedBroker, StartServed, Trace

    from tidelog.torture.disks import Tracing

FSYNC_S = 0.2
PRODUCERS = 50
REQUESTS_EACH = 20


def write(client: RawClient, topic: str, *, acks: int = -1, partition: int = 0) -> float:
    """How long the acknowledgement took."""
    began_s = time.perf_counter()
    request = produce_request(topic, b"value", acks=acks, partition=partition)
    (answer,) = client.ask(PRODUCE, request, ProduceResponse, 9).responses[0].partition_responses
    assert answer.error_code == 0
    return time.perf_counter() - began_s


def alter(broker: ServedBroker, resource: ResourceType, name: str, setting: str, value: str | None) -> None:
    operation = AlterOperation.DELETE if value is None else AlterOperation.SET
    change = AlterableConfig(name=setting, config_operation=operation, value=value)
    request = IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=resource, resource_name=name, configs=[change])]
    )
    with RawClient(broker.port) as client:
        (answer,) = client.ask(INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse, 1).responses
    assert answer.error_code == 0, answer.error_message


def log_fsyncs(tracing: Tracing) -> list[str]:
    return [line for line in tracing.calls() if re.search(r"fsync\(\d+<[^>]*\.log>", line)]


@pytest.mark.parametrize("acks", [1, -1])
def test_an_acknowledgement_waits_for_the_fsync_where_settings_ask_for_it(
    serve: StartServed, trace: Trace, acks: int
) -> None:
    """By the topic's setting or the broker's, from the moment they are altered on."""
    broker = serve()
    broker.create_topic("topic")
    with RawClient(broker.port) as client:
        write(client, "topic", acks=acks)
        tracing = trace(broker, "-y", "-e", "trace=fsync", "-e", f"inject=fsync:delay_enter={int(FSYNC_S * 1e6)}")
        assert write(client, "topic", acks=acks) < FSYNC_S
        assert not log_fsyncs(tracing)
        for resource, name, setting in (
            (ResourceType.TOPIC, "topic", "flush.messages"),
            (ResourceType.BROKER, "", "log.flush.interval.messages"),
        ):
            alter(broker, resource, name, setting, "1")
            for _ in range(2):
                assert write(client, "topic", acks=acks) >= FSYNC_S
            alter(broker, resource, name, setting, None)
            assert write(client, "topic", acks=acks) < FSYNC_S
    assert log_fsyncs(tracing)


def test_producers_that_wait_share_one_fsync_and_the_event_loop_does_none(serve: StartServed, trace: Trace) -> None:
    """Each of them waits for every one of its records; what came while a flush ran is flushed together."""
    broker = serve()
    broker.create_topic("topic", configs={"flush.messages": "1"})
    tracing = trace(broker, "-y", "-e", "trace=fsync", "-e", "inject=fsync:delay_enter=10000")

    def produce() -> None:
        with RawClient(broker.port) as client:
            for _ in range(REQUESTS_EACH):
                write(client, "topic")

    producers = [threading.Thread(target=produce) for _ in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    tracing.stop()
    fsyncs = log_fsyncs(tracing)
    assert fsyncs
    assert len(fsyncs) <= PRODUCERS * REQUESTS_EACH / 10
    assert not [line for line in fsyncs if line.startswith(f"{broker.pid} ")]


def test_the_event_loop_waits_for_no_fsync_after_a_restart(serve: StartServed, trace: Trace) -> None:
    """Each partition begins a new leader epoch, each rolls, and nobody waits for the disk with it."""
    broker = serve()
    partitions = 50
    broker.create_topic("topic", partitions, configs={"segment.bytes": "150"})
    broker.stop()
    broker.start()
    tracing = trace(broker, "-e", "trace=fsync,fdatasync,msync,sync_file_range,syncfs")
    with RawClient(broker.port) as client:
        for partition in range(partitions):
            for _ in range(3):
                write(client, "topic", partition=partition)
    tracing.stop()
    assert not [line for line in tracing.calls() if line.startswith(f"{broker.pid} ")]
