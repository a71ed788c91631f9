"""What the sender has to ask brokers before it can send: connections, leaders, and a producer id.

What always holds: each question is asked once at a time and again, after growing pauses, for as long as its failure may
pass; every answer makes the sender look again. A batch that waits for an answer in vain fails by its own time-out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from tidelog.client.errors import BrokerError, ClientError, ClosedError, RetriableError, raise_for
from tidelog.client.network.backoff import Backoff
from tidelog.client.network.cluster import Cluster
from tidelog.client.producer.idempotence import Idempotence
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

log = logging.getLogger(__name__)

_NEVER_MS = float("inf")
_NO_TRANSACTION_TIMEOUT_MS = 0x7FFFFFFF  # it means nothing without transactions; Kafka's client says the same


class SenderQuestions:
    """The sender's questions to brokers, as tasks on the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        backoff: Backoff,
        now_ms: Callable[[], float],
        *,
        on_answer: Callable[[], None],
        on_unreachable: Callable[[int, ClientError], None],
        on_topic_refused: Callable[[str, ClientError], None],
        on_no_producer_id: Callable[[ClientError], None],
    ) -> None:
        self.stale_topics: set[str] = set()  # whose leaders have to be asked for
        self._cluster = cluster
        self._backoff = backoff
        self._now_ms = now_ms
        self._on_answer = on_answer
        self._on_unreachable = on_unreachable
        self._on_topic_refused = on_topic_refused
        self._on_no_producer_id = on_no_producer_id
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting: set[int] = set()
        self._is_asking_leaders = False
        self._leader_failures = 0
        self._ask_leaders_at_ms = 0.0
        self._is_asking_producer_id = False

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Connections

    def connect(self, node_id: int, topics: Iterable[str]) -> None:
        """Make a connection to this broker, which leads partitions of these topics."""
        if node_id not in self._connecting:
            self._connecting.add(node_id)
            self._start(self._connect(node_id, frozenset(topics)))

    async def _connect(self, node_id: int, topics: frozenset[str]) -> None:
        try:
            await self._cluster.connection_to(node_id)
        except ClosedError:
            return
        except ClientError as error:
            log.warning("a producer can't reach broker %d, trying again: %s", node_id, error)
            self.stale_topics |= topics
            self._on_unreachable(node_id, error)
        finally:
            self._connecting.discard(node_id)
        self._on_answer()

    # Leaders

    def ask_leaders(self, now_ms: float) -> float:
        """Ask about the stale topics, if there are any, with a pause after the last time; says when to come back."""
        if not self.stale_topics or self._is_asking_leaders:
            return _NEVER_MS
        if self._ask_leaders_at_ms > now_ms:
            return self._ask_leaders_at_ms
        topics, self.stale_topics = self.stale_topics, set()
        self._is_asking_leaders = True
        self._start(self._ask_leaders(topics))
        return _NEVER_MS

    async def _ask_leaders(self, topics: set[str]) -> None:
        try:
            told = await self._cluster.refresh(topics)
        except ClosedError:
            return
        except ClientError as error:
            self._leader_failures += 1
            self.stale_topics |= topics
            log.warning("a producer can't find the leaders of its partitions, trying again: %s", error)
        else:
            self._leader_failures = self._leader_failures + 1 if told.errors else 0
            for name, code in told.errors.items():
                if not code.retriable:
                    self._on_topic_refused(name, BrokerError(code, subject=f"topic {name}"))
        finally:
            self._is_asking_leaders = False
        self._ask_leaders_at_ms = self._now_ms() + self._backoff.pause_s(max(self._leader_failures, 1)) * 1000
        self._on_answer()

    # Producer id

    def ask_producer_id(self, idempotence: Idempotence) -> None:
        """Get an id for a producer without transactions."""
        if not self._is_asking_producer_id:
            self._is_asking_producer_id = True
            self._start(self._ask_producer_id(idempotence))

    async def _ask_producer_id(self, idempotence: Idempotence) -> None:
        failures = 0
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS)
        try:
            while True:
                try:
                    response = await self._cluster.call(INIT_PRODUCER_ID, request, InitProducerIdResponse)
                    raise_for(response.error_code, subject="producer id")
                    break
                except RetriableError as error:
                    failures += 1
                    log.warning("a producer can't get its id, trying again: %s", error)
                    await asyncio.sleep(self._backoff.pause_s(failures))
            idempotence.set_producer_id(response.producer_id, response.producer_epoch)
        except ClosedError:
            return
        except ClientError as error:
            self._on_no_producer_id(error)
        finally:
            self._is_asking_producer_id = False
        self._on_answer()
