"""A client of the simulation: asks until it is answered, over as many connections as it takes.

What always holds: requests that are asked together are answered in order, and those that were not answered are sent
again in that order; an error that a client is to outlive is not seen by who asks. It knows nothing of transactions.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulated_network import ClientConnection, SimulatedNetwork
from tidelog.protocol import Api, ErrorCode, decode, decode_response_header
from tidelog.testing.raw_client import frame

_RETRIED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


class RefusedError(Exception):
    """The broker refuses, and asking again would not help."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(frozen=True)
class Question:
    """A request, and where its answer has its error."""

    api: Api
    request: object
    response: type
    version: int
    error_of: Callable[[Any], int]


class SimulatedClient:
    """One client; `may_be_late` as the network has it."""

    def __init__(self, network: SimulatedNetwork, rng: random.Random, *, may_be_late: bool, timeout_s: float) -> None:
        self._network = network
        self._random = rng
        self._may_be_late = may_be_late
        self._timeout_s = timeout_s
        self._connection: ClientConnection | None = None
        self._correlation_ids = itertools.count(1)
        # Told of every question whenever it is sent.
        self.on_sent: Callable[[Question], None] | None = None

    async def ask(self, question: Question) -> Any:
        """The answer; raises RefusedError."""
        (answer,) = await self.ask_all([question])
        return answer

    async def ask_all(self, questions: Sequence[Question]) -> list[Any]:
        """Ask without waiting for each answer; raises RefusedError for the first that is refused."""
        answers: dict[int, Any] = {}
        while len(answers) < len(questions):
            left = [index for index in range(len(questions)) if index not in answers]
            try:
                await self._round(questions, left, answers)
            except (ConnectionError, TimeoutError):
                self.disconnect()
            except BaseException:
                self.disconnect()  # answers to what was sent may still come
                raise
            if len(answers) < len(questions):
                await asyncio.sleep(self._random.uniform(0.005, 0.05))
        return [answers[index] for index in range(len(questions))]

    async def _round(self, questions: Sequence[Question], left: list[int], answers: dict[int, Any]) -> None:
        if self._connection is None:
            self._connection = await self._network.connect(may_be_late=self._may_be_late)
        connection = self._connection
        sent = []
        for index in left:
            question = questions[index]
            sent.append((index, next(self._correlation_ids)))
            if self.on_sent is not None:
                self.on_sent(question)
            connection.send(frame(question.api, question.request, question.version, sent[-1][1]))
        has_failed = False
        for index, correlation_id in sent:
            question = questions[index]
            data = await connection.receive(self._timeout_s)
            answered_id, offset = decode_response_header(question.api, question.version, data)
            assert answered_id == correlation_id, f"answer {answered_id} came for request {correlation_id}"
            answer: Any = decode(question.response, data, question.version, offset)
            code = ErrorCode(question.error_of(answer))
            # What follows one that has to be sent again comes too early.
            if code in _RETRIED or (code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and has_failed):
                has_failed = True
            elif code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                answers[index] = answer
            else:
                raise RefusedError(code)

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
