"""Keys go to the partitions that librdkafka chooses for them."""

from __future__ import annotations

import random
from collections.abc import Callable

import confluent_kafka

from tidelog.bench.brokers import BrokerProcess
from tidelog.records.kernel_build import partition_for_key

DEADLINE_S = 20.0


def test_keys_go_where_librdkafka_sends_them(client_cluster: BrokerProcess, make_topic: Callable[..., str]) -> None:
    topic = make_topic(partitions=7)
    source = random.Random(11)
    keys = list({source.randbytes(source.randrange(1, 40)) for _ in range(10_000)})
    chosen: dict[bytes, int] = {}

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        key, partition = message.key(), message.partition()
        assert error is None
        assert key is not None
        assert partition is not None
        chosen[key] = partition

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": client_cluster.bootstrap, "partitioner": "murmur2_random", "log_level": 2}
    )
    for key in keys:
        producer.produce(topic, key=key, value=b"", on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    assert chosen == {key: partition_for_key(key, 7) for key in keys}
