"""Interceptors: they see every record before it is serialized, may change it, and are told its outcome.

What always holds: they run in the order given, each on the record that the one before returned. If one raises, that is
logged, and the next one gets the record unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tidelog.client.errors import ClientError
from tidelog.client.types import RecordMetadata

logger = logging.getLogger(__name__)


class ProducerRecord(NamedTuple):
    """A record before serialization, with key and value as the application passed them."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Any = None
    partition: int | None = None
    timestamp: int | None = None


class ProducerInterceptor(Protocol):
    """The methods of an interceptor; either may be missing."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Called in the thread of `send`; returns the record, changed or not."""
        ...

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        """Called in the producer's own thread once the record is stored or has failed."""
        ...


class InterceptorChain:
    """The interceptors of a producer."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        self._on_send = [one for one in interceptors if hasattr(one, "on_send")]
        self._on_acknowledgement = [one for one in interceptors if hasattr(one, "on_acknowledgement")]

    @property
    def wants_acknowledgements(self) -> bool:
        return bool(self._on_acknowledgement)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        for interceptor in self._on_send:
            try:
                record = interceptor.on_send(record)
            except Exception:  # a failing interceptor must not stop the record
                logger.exception("%s.on_send failed for a record to %s", type(interceptor).__name__, record.topic)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        for interceptor in self._on_acknowledgement:
            try:
                interceptor.on_acknowledgement(metadata, error)
            except Exception:  # the same
                logger.exception("%s.on_acknowledgement failed", type(interceptor).__name__)
