"""What the log says while a consumer's brokers are out of reach, which its polls don't raise."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition

if TYPE_CHECKING:
    from proxied_cluster import ProxiedCluster

DEADLINE_S = 60.0
QUICK = {"retry.backoff.ms": 10, "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50}


def poll_until(consumer: Consumer, is_done: Callable[[], bool]) -> list[bytes]:
    found = []
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline_s
        found += [record.value for record in consumer.poll(0.05)]
    return found


@pytest.mark.parametrize("in_group", [False, True], ids=["alone", "in a group"])
def test_brokers_out_of_reach_are_told_once_and_so_is_their_return(
    in_group: bool,
    proxied_cluster: ProxiedCluster,
    fresh_name: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tidelog.client")
    topic = fresh_name("topic")
    settings = {"bootstrap.servers": proxied_cluster.bootstrap, **QUICK}
    with Admin(settings) as admin, Producer(settings) as producer:
        admin.create_topics([NewTopic(topic, 1, 1)]).raise_for_errors()
        producer.send(topic, b"before").result(DEADLINE_S)
    caplog.clear()  # a broker that has just started may have kept the producer waiting, and been told of

    def told(words: str) -> list[str]:
        return [text for record in caplog.records if words in (text := record.getMessage())]

    chosen = {**settings, "auto.offset.reset": "earliest", **({"group.id": fresh_name("group")} if in_group else {})}
    with Consumer(chosen, client_id="reader") as consumer:
        if in_group:
            consumer.subscribe([topic])
        else:
            consumer.assign(TopicPartition(topic, 0))
        read: list[bytes] = []
        while not read:
            read += [record.value for record in consumer.poll(1.0)]
        assert not told("reaches")
        proxied_cluster.cut_off()
        poll_until(consumer, lambda: bool(told("client reader can't reach any broker, retrying: ")))
        poll_until(consumer, lambda: len(caplog.records) > 20)  # of which all but one are for those who want to know
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1, caplog.text
        proxied_cluster.proxy.reset()
        poll_until(consumer, lambda: bool(told("client reader has reached a broker again after ")))
        with Producer(settings) as producer:
            producer.send(topic, b"after").result(DEADLINE_S)
        while len(read) < 2:
            read += [record.value for record in consumer.poll(1.0)]
        assert read == [b"before", b"after"]
    assert len(told("can't reach any broker")) == len(told("has reached a broker again")) == 1
