"""The records of __transaction_state: keys and values as Kafka 4.3 writes and reads them.

What always holds: whatever the bytes, `decode_transaction` returns a transactional id with its state (None for a
tombstone), returns None for an unknown kind of record, or raises ProtocolError.
"""

from __future__ import annotations

import struct as structs
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from tidelog.coordinator.actions import GroupRecord
from tidelog.coordinator.group_records import record_number
from tidelog.coordinator.transaction import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Transaction, TransactionState
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.declare import declaration_of, message, struct, v
from tidelog.protocol.errors import ProtocolError
from tidelog.protocol.types import Int8, Int16, Int32, Int64, String

_INT16: Final = structs.Struct(">h")
_KEY_TYPE: Final = 0
_VALUE_VERSION: Final = 1
"""The one that Kafka writes since its clusters have the feature transaction.version."""

_WRITTEN_STATES: Final = frozenset(range(TransactionState.DEAD))


@message(versions="0")
class TransactionLogKey:
    transactional_id: String = ""


@struct
class PartitionsSchema:
    topic: String = ""
    partition_ids: list[Int32] = v(factory=list)


@message(versions="0-1", flexible="1+")
class TransactionLogValue:
    producer_id: Int64 = 0
    previous_producer_id: Int64 = v("1+", default=-1, tag=0, ignorable=True)
    next_producer_id: Int64 = v("1+", default=-1, tag=1, ignorable=True)
    producer_epoch: Int16 = 0
    next_producer_epoch: Int16 = v("1+", default=-1, tag=3, ignorable=True)
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = v(factory=list)
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Int16 = v("1+", default=0, tag=2, ignorable=True)


class DecodedTransaction(NamedTuple):
    """A transactional id and its state in a record; no state if it was forgotten."""

    transactional_id: str
    transaction: Transaction | None


def encode_transaction(transaction: Transaction) -> GroupRecord:
    """The record with the whole state of a transactional id."""
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        next_producer_epoch=transaction.next_producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=_partitions(transaction),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
    )
    return GroupRecord(_key(transaction.transactional_id), _INT16.pack(_VALUE_VERSION) + encode(value, _VALUE_VERSION))


def encode_tombstone(transactional_id: str) -> GroupRecord:
    """The record that removes a transactional id."""
    return GroupRecord(_key(transactional_id), None)


def decode_transaction(record: GroupRecord) -> DecodedTransaction | None:
    """The contents of a record; None for a kind that Kafka may add one day."""
    if record_number(record.key) != _KEY_TYPE:
        return None
    transactional_id = decode(TransactionLogKey, record.key, 0, _INT16.size).transactional_id
    if record.value is None:
        return DecodedTransaction(transactional_id, None)
    if len(record.value) < _INT16.size:
        raise ProtocolError("a TransactionLogValue has no version")
    (version,) = _INT16.unpack_from(record.value)
    if not declaration_of(TransactionLogValue).versions.holds(version):
        raise ProtocolError(f"a TransactionLogValue has version {version}, which is unknown")
    value = decode(TransactionLogValue, record.value, version, _INT16.size)
    return DecodedTransaction(transactional_id, _transaction(transactional_id, value))


def _key(transactional_id: str) -> bytes:
    return _INT16.pack(_KEY_TYPE) + encode(TransactionLogKey(transactional_id=transactional_id), 0)


def _partitions(transaction: Transaction) -> list[PartitionsSchema] | None:
    """In order of topic and partition, so that the same transaction is always the same bytes."""
    if transaction.state is TransactionState.EMPTY:
        return None
    return [
        PartitionsSchema(topic=topic, partition_ids=[partition for _, partition in partitions])
        for topic, partitions in groupby(sorted(transaction.partitions), itemgetter(0))
    ]


def _transaction(transactional_id: str, value: TransactionLogValue) -> Transaction:
    if value.transaction_status not in _WRITTEN_STATES:
        raise ProtocolError(f"a transaction is written in state {value.transaction_status}, which does not exist")
    state = TransactionState(value.transaction_status)
    is_given_fresh_id = value.next_producer_id != NO_PRODUCER_ID and value.next_producer_epoch == NO_PRODUCER_EPOCH
    return Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        # Kafka writes it when the transaction is complete; its producer has the fresh id before that.
        previous_producer_id=value.producer_id if is_given_fresh_id else value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        next_producer_epoch=value.next_producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            (topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        last_update_ms=value.transaction_last_update_timestamp_ms,
        start_ms=value.transaction_start_timestamp_ms,
        client_version=value.client_transaction_version,
    )
