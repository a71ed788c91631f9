"""The hooks through which transactions plug into the producer.

A producer with a `transactional.id` has an object with these methods; one without has none. The sender and the
accumulator call them; they call back through `ProducerCore` (`wake`, `idempotence`, `flush`, `fail_undrained`).

What always holds: `check_send` and `on_append` may be called from any thread and are short. All others are called on
the event loop's thread. `on_append` is called with the accumulator's lock held, at least once for each batch that is
opened and before its first record can be sent. A batch belongs to the transaction that was open when its first record
was appended. To end a transaction, first await `ProducerCore.flush`, after which no batch is open.
"""

from __future__ import annotations

from typing import Protocol

from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition


class TransactionHooks(Protocol):
    """What a transactional producer adds to a plain one."""

    @property
    def transactional_id(self) -> str:
        """The transactional fields of every Produce request."""
        ...

    @property
    def produce_version_at_most(self) -> int | None:
        """The newest Produce version that may be used: 11 if partitions are added by separate requests; None if the
        broker adds them itself (KIP-890), which version 12 asks for.
        """
        ...

    @property
    def is_completing(self) -> bool:
        """Whether a commit or an abort has begun, so that batches need not wait for `linger.ms`."""
        ...

    def check_send(self) -> None:
        """Raise unless a record may be sent now: TransactionStateError, AbortableError or a FatalError."""
        ...

    def on_append(self, topic_partition: TopicPartition) -> None:
        """A batch was opened for the partition, and so belongs to the transaction."""
        ...

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """Whether batches of the partition may go out. If not, `ProducerCore.wake` is called once that changes.

        The producer id and epoch are those of `ProducerCore.idempotence`; this is not called while it has none.
        """
        ...

    def on_batch_failed(self, topic_partition: TopicPartition, error: ClientError) -> None:
        """A batch failed, so the transaction can't be committed. The error decides what can still be done: after a
        FatalError nothing, otherwise an abort.
        """
        ...

    async def close(self) -> None:
        """The producer is closing: send no more requests."""
        ...
