"""Tidelog: an event streaming platform for Python and Spark teams.

Importing this package is cheap on purpose: `tidelog serve` must answer its first client within half a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.client.admin import Admin, AsyncAdmin, NewTopic
    from tidelog.client.processing.async_deduplicator import AsyncDeduplicator
    from tidelog.client.processing.deduplicator import Deduplicator
    from tidelog.client.producer.async_producer import AsyncProducer
    from tidelog.client.producer.producer import Producer
    from tidelog.client.table import Table

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncDeduplicator",
    "AsyncProducer",
    "Deduplicator",
    "NewTopic",
    "Producer",
    "Table",
    "__version__",
]

__version__ = "0.1.0"

# What people import from here, and where it is; it is imported when it is first asked for.
_HOMES = {
    "AsyncProducer": "tidelog.client.producer.async_producer",
    "Producer": "tidelog.client.producer.producer",
    "Admin": "tidelog.client.admin.admin",
    "AsyncAdmin": "tidelog.client.admin.async_admin",
    "NewTopic": "tidelog.client.admin.topic_types",
    "AsyncDeduplicator": "tidelog.client.processing.async_deduplicator",
    "Deduplicator": "tidelog.client.processing.deduplicator",
    "Table": "tidelog.client.table",
}


# Type checkers would take every name for granted.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
