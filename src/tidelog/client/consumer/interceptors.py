"""User code around a consumer: it sees records before the user does, and commits after they are done.

What always holds: interceptors run in the order given, each on the result of the one before. An interceptor that raises
is logged and skipped, as in Kafka's clients, because monitoring code must not stop the work.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tidelog.client.types import OffsetAndMetadata, TopicPartition
from tidelog.records.kernel_consume import ConsumerRecord

logger = logging.getLogger(__name__)


class ConsumerInterceptor:
    """Subclass it and override what you need."""

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Called by `poll` with the records it is about to return; the result is returned instead."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Called after these offsets were committed, on the client's own thread or loop."""

    def close(self) -> None:
        """Called when the consumer is closed."""


class Interceptors:
    """All interceptors of a consumer as one."""

    def __init__(self, interceptors: Sequence[ConsumerInterceptor]) -> None:
        self._interceptors = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        for interceptor in self._interceptors:
            try:
                records = interceptor.on_consume(records)
            except Exception:
                logger.warning("interceptor %s failed in on_consume", type(interceptor).__name__, exc_info=True)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for interceptor in self._interceptors:
            try:
                interceptor.on_commit(offsets)
            except Exception:
                logger.warning("interceptor %s failed in on_commit", type(interceptor).__name__, exc_info=True)

    def close(self) -> None:
        for interceptor in self._interceptors:
            try:
                interceptor.close()
            except Exception:
                logger.warning("interceptor %s failed in close", type(interceptor).__name__, exc_info=True)
