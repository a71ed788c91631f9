"""How a transaction of our producer ended, as far as the application can know.

What always holds: "ok" means that `commit_transaction` returned. "fail" means that it can't have been committed: nobody
asked for it, or the coordinator confirmed an abort after the attempt. All else is "unknown": the coordinator may have
committed it although its answer did not arrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog.client.errors import AbortableError, ClientError, FatalError, RetriableError
from tidelog.client.producer.producer import Producer
from tidelog.torture.history import FAIL, OK, UNKNOWN
from tidelog.torture.workers.worker import PATIENCE_S

_CALL_S: Final = 10.0
# Committed offsets of a worker that was killed hold up its group for as long.
TRANSACTION_TIMEOUT_MS: Final = 15_000


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of a transaction."""

    outcome: str
    error: ClientError | None = None
    is_usable: bool = True  # whether the producer may begin another one


def commit(producer: Producer, patience_s: float = PATIENCE_S) -> Ending:
    """Commit, as often as it takes; abort if only that is left."""
    try:
        error = _repeat(producer.commit_transaction, patience_s)
    except AbortableError as refused:
        # The transaction may not be committed any more. If it had been, this would be refused for good.
        ending = abort(producer, patience_s)
        outcome = FAIL if ending.is_usable else UNKNOWN
        return Ending(outcome, refused, ending.is_usable)
    except ClientError as lost:
        return Ending(UNKNOWN, lost, is_usable=False)
    return Ending(OK) if error is None else Ending(UNKNOWN, error, is_usable=False)


def abort(producer: Producer, patience_s: float = PATIENCE_S) -> Ending:
    """Abort a transaction that nobody tried to commit: it can't count whatever comes of this."""
    try:
        error = _repeat(producer.abort_transaction, patience_s)
    except ClientError as lost:
        return Ending(FAIL, lost, is_usable=False)
    return Ending(FAIL, error, is_usable=error is None)


def call_again(call: Callable[[float], object], patience_s: float = PATIENCE_S) -> None:
    """Call with a timeout until it doesn't run out of time; raises the last error when patience does."""
    error = _repeat(call, patience_s)
    if error is not None:
        raise error


def _repeat(call: Callable[[float], object], patience_s: float) -> RetriableError | None:
    """The error that is left when patience has run out, or None. Errors that no repetition helps are raised."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            call(_CALL_S)
        except RetriableError as error:
            if isinstance(error, (AbortableError, FatalError)):
                raise
            if time.monotonic() > deadline_s:
                return error
        else:
            return None
