"""What a coordinator asks the broker to do, and what the broker passes in besides the request.

What always holds: actions are carried out in the order in which they are returned. An `Append` is one batch, and
`on_appended` reports outcomes in the order of the appends; if the log accepts a batch immediately, the outcome arrives
before anything else reaches the coordinator. An exchange is answered once; an answer to one that is gone is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

TimerKey = tuple[object, ...]
"""The first part is the id of the group or transaction whose timer it is, or "" for those of the coordinator itself."""

TopicPartition = tuple[str, int]


class Now(NamedTuple):
    """One moment on two clocks: monotonic for timeouts, wall clock for what is stored."""

    monotonic_ms: float
    wall_ms: int


class Client(NamedTuple):
    """Who sent a request, and in which version of its API."""

    client_id: str
    client_host: str
    api_version: int


class GroupRecord(NamedTuple):
    """One record of a coordinator's topic; without a value it is a tombstone, which deletes its key."""

    key: bytes
    value: bytes | None


class Answer(NamedTuple):
    """Send this response to the waiting request with this number."""

    exchange: int
    response: object


class Append(NamedTuple):
    """Write these records as one batch; `on_appended` is called with the token once they are committed or refused."""

    records: tuple[GroupRecord, ...]
    token: int


class AppendInTransaction(NamedTuple):
    """Write these records as one batch of a producer's transaction; `on_txn_appended` is called with the token.

    The permit came with the request: it confirms that the transaction may write to the partition.
    """

    records: tuple[GroupRecord, ...]
    producer_id: int
    producer_epoch: int
    permit: object
    token: int


class SetTimer(NamedTuple):
    """Call `on_timer` with this key at this monotonic time, unless it is set again or cancelled before."""

    key: TimerKey
    due_ms: float


class CancelTimer(NamedTuple):
    """Forget the timer of this key, if there is one."""

    key: TimerKey


class TxnMarker(NamedTuple):
    """How a transaction ended, to be written to its partitions; `transaction_version` 2 means its epoch was raised."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int


class SendMarkers(NamedTuple):
    """Write this marker to these partitions; `on_markers_written` is called with the token and the outcome of each."""

    marker: TxnMarker
    partitions: tuple[TopicPartition, ...]
    token: int


class AllocateProducerId(NamedTuple):
    """Get an unused producer id; `on_producer_id` is called with the token and the id, or with the error."""

    token: int


class Work(NamedTuple):
    """Long work: take these steps with pauses, in which others are served, and carry out what each of them returns.

    A step takes less than a millisecond. Requests, timers and outcomes reach the coordinator between two steps, so each
    step has to look at what it finds. The remaining steps are dropped once this broker is no longer the coordinator.
    """

    steps: ActionSteps


Action = Answer | Append | AppendInTransaction | SetTimer | CancelTimer | SendMarkers | AllocateProducerId | Work

ActionSteps = Generator[list[Action], None, None]

Prepared = Callable[[Now, int], list[Action]]
"""A request that was prepared in steps, to be carried out once; the number is the exchange that gets the answer."""
