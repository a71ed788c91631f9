"""Tidelog: an event streaming platform for Python and Spark teams.

Importing this package is cheap on purpose: `tidelog serve` must answer its first client within half a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.client.admin.admin import Admin
    from tidelog.client.admin.async_admin import AsyncAdmin
    from tidelog.client.admin.types import NewTopic
    from tidelog.client.consumer.assignors import Assignor, MemberSubscription, TopicLayout
    from tidelog.client.consumer.async_consumer import AsyncConsumer
    from tidelog.client.consumer.consumer import Consumer
    from tidelog.client.consumer.interceptors import ConsumerInterceptor
    from tidelog.client.consumer.metrics import ConsumerMetrics
    from tidelog.client.consumer.rebalance import RebalanceListener
    from tidelog.client.processing.deduplicator import AsyncDeduplicator, Deduplicator
    from tidelog.client.processing.worker_pool import AsyncKeyedWorkerPool, KeyedWorkerPool
    from tidelog.client.producer.async_producer import AsyncProducer
    from tidelog.client.producer.futures import DeliveryFuture
    from tidelog.client.producer.interceptors import ProducerInterceptor, ProducerRecord
    from tidelog.client.producer.metrics import ProducerMetrics
    from tidelog.client.producer.producer import Producer
    from tidelog.client.table import Table
    from tidelog.client.types import (
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        RecordMetadata,
        TopicPartition,
    )
    from tidelog.records.kernel_consume import ConsumerRecord

__all__ = [
    "Admin",
    "Assignor",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncDeduplicator",
    "AsyncKeyedWorkerPool",
    "AsyncProducer",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerInterceptor",
    "ConsumerMetrics",
    "ConsumerRecord",
    "Deduplicator",
    "DeliveryFuture",
    "KeyedWorkerPool",
    "MemberSubscription",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "ProducerInterceptor",
    "ProducerMetrics",
    "ProducerRecord",
    "RebalanceListener",
    "RecordMetadata",
    "Table",
    "TopicLayout",
    "TopicPartition",
    "__version__",
]

__version__ = "0.1.0"

# What people import from here, and where it is; it is imported when it is first asked for.
_HOMES = {
    "Admin": "tidelog.client.admin.admin",
    "Assignor": "tidelog.client.consumer.assignors",
    "AsyncAdmin": "tidelog.client.admin.async_admin",
    "AsyncConsumer": "tidelog.client.consumer.async_consumer",
    "AsyncDeduplicator": "tidelog.client.processing.deduplicator",
    "AsyncKeyedWorkerPool": "tidelog.client.processing.worker_pool",
    "AsyncProducer": "tidelog.client.producer.async_producer",
    "Consumer": "tidelog.client.consumer.consumer",
    "ConsumerGroupMetadata": "tidelog.client.types",
    "ConsumerInterceptor": "tidelog.client.consumer.interceptors",
    "ConsumerMetrics": "tidelog.client.consumer.metrics",
    "ConsumerRecord": "tidelog.records.kernel_consume",
    "Deduplicator": "tidelog.client.processing.deduplicator",
    "DeliveryFuture": "tidelog.client.producer.futures",
    "KeyedWorkerPool": "tidelog.client.processing.worker_pool",
    "MemberSubscription": "tidelog.client.consumer.assignors",
    "NewTopic": "tidelog.client.admin.types",
    "OffsetAndMetadata": "tidelog.client.types",
    "OffsetAndTimestamp": "tidelog.client.types",
    "Producer": "tidelog.client.producer.producer",
    "ProducerInterceptor": "tidelog.client.producer.interceptors",
    "ProducerMetrics": "tidelog.client.producer.metrics",
    "ProducerRecord": "tidelog.client.producer.interceptors",
    "RebalanceListener": "tidelog.client.consumer.rebalance",
    "RecordMetadata": "tidelog.client.types",
    "Table": "tidelog.client.table",
    "TopicLayout": "tidelog.client.consumer.assignors",
    "TopicPartition": "tidelog.client.types",
}


# Type checkers would take every name for granted.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
