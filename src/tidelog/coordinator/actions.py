"""What a coordinator asks the broker to do, and what the broker hands in besides the request.

What always holds: actions are carried out in the order in which they are returned; an `Append` is one batch, and its
outcome comes back by `on_appended` in the order of the appends, before anything else reaches the coordinator when the
log takes it at once. An exchange is answered once: answers to one that is gone are dropped without harm.
"""

from __future__ import annotations

from typing import NamedTuple

TimerKey = tuple[object, ...]
"""The first part is the id of the group or transaction whose timer it is, or "" for those of the coordinator itself."""

TopicPartition = tuple[str, int]


class Now(NamedTuple):
    """The two times of one moment: the monotonic one for time-outs, the wall clock's for what is written down."""

    monotonic_ms: float
    wall_ms: int


class Client(NamedTuple):
    """Who sent a request, and in which version of its API."""

    client_id: str
    client_host: str
    api_version: int


class GroupRecord(NamedTuple):
    """One record of a coordinator's topic; without a value it is a tombstone, which deletes what its key stands for."""

    key: bytes
    value: bytes | None


class Answer(NamedTuple):
    """Send this response to the request that waits under this number."""

    exchange: int
    response: object


class Append(NamedTuple):
    """Write these records as one batch; `on_appended` is called with the token when they are committed or refused."""

    records: tuple[GroupRecord, ...]
    token: int


class AppendInTransaction(NamedTuple):
    """Write these records as one batch of a producer's transaction; `on_txn_appended` is called with the token.

    The permit is what the broker handed in with the request: that the transaction may write to the partition.
    """

    records: tuple[GroupRecord, ...]
    producer_id: int
    producer_epoch: int
    permit: object
    token: int


class SetTimer(NamedTuple):
    """Call `on_timer` with this key at that monotonic time, unless it is set anew or cancelled before."""

    key: TimerKey
    due_ms: float


class CancelTimer(NamedTuple):
    """Forget the timer of this key, if there is one."""

    key: TimerKey


class TxnMarker(NamedTuple):
    """How a transaction ended, to be written into its partitions; `transaction_version` 2 says its epoch was raised."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int


class SendMarkers(NamedTuple):
    """Write this marker to these partitions; `on_markers_written` is called with the token and what came of each."""

    marker: TxnMarker
    partitions: tuple[TopicPartition, ...]
    token: int


class AllocateProducerId(NamedTuple):
    """Get a producer id that nobody has; `on_producer_id` is called with the token and the id, or why there is none."""

    token: int


Action = Answer | Append | AppendInTransaction | SetTimer | CancelTimer | SendMarkers | AllocateProducerId
