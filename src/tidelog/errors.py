"""Every error that clients raise on purpose, as people import them: `from tidelog.errors import RetriableError`.

What always holds: all of them are `ClientError`, and the type of one tells what a program may do: the same again
(`RetriableError`), abort the transaction (`AbortableError`), make a new client (`FatalError`). Each is loaded when it
is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.client.consumer.group_refusals import UnreleasedInstanceError
    from tidelog.client.errors import (
        AbortableBrokerError,
        AbortableError,
        AuthorizationError,
        BrokerError,
        BufferFullError,
        ClientError,
        ClosedError,
        CommitFailedError,
        ConcurrentUseError,
        ConfigError,
        ConnectError,
        ConnectionLostError,
        CorruptRecordError,
        DeliveryTimeoutError,
        FatalError,
        FencedInstanceError,
        ForkedError,
        InvalidResponseError,
        LogTruncationError,
        MissingExtraError,
        NoOffsetError,
        NoSuchPartitionError,
        OffsetOutOfRangeError,
        PollIntervalExceededError,
        ProducerFencedError,
        RecordDeserializationError,
        RecordTooLargeError,
        RequestTimeoutError,
        RetriableBrokerError,
        RetriableError,
        SerializationError,
        TooLargeBrokerError,
        TransactionStateError,
        UnsupportedVersionError,
        UsageError,
        WakeupError,
    )
    from tidelog.client.processing.errors import ClaimBusyError, ClaimLostError, ClaimStoreError, ProcessingFailedError
    from tidelog.client.producer.transaction_state import TransactionAbortedError
    from tidelog.client.producer.transactions import FatalTransactionError, TransactionTimeoutError
    from tidelog.client.serialization.registry_errors import (
        IncompatibleSchemaError,
        SchemaNotFoundError,
        SchemaRegistryError,
        SchemaRegistryUnavailableError,
    )
    from tidelog.client.table import TableError

__all__ = [
    "AbortableBrokerError",
    "AbortableError",
    "AuthorizationError",
    "BrokerError",
    "BufferFullError",
    "ClaimBusyError",
    "ClaimLostError",
    "ClaimStoreError",
    "ClientError",
    "ClosedError",
    "CommitFailedError",
    "ConcurrentUseError",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "CorruptRecordError",
    "DeliveryTimeoutError",
    "FatalError",
    "FatalTransactionError",
    "FencedInstanceError",
    "ForkedError",
    "IncompatibleSchemaError",
    "InvalidResponseError",
    "LogTruncationError",
    "MissingExtraError",
    "NoOffsetError",
    "NoSuchPartitionError",
    "OffsetOutOfRangeError",
    "PollIntervalExceededError",
    "ProcessingFailedError",
    "ProducerFencedError",
    "RecordDeserializationError",
    "RecordTooLargeError",
    "RequestTimeoutError",
    "RetriableBrokerError",
    "RetriableError",
    "SchemaNotFoundError",
    "SchemaRegistryError",
    "SchemaRegistryUnavailableError",
    "SerializationError",
    "TableError",
    "TooLargeBrokerError",
    "TransactionAbortedError",
    "TransactionStateError",
    "TransactionTimeoutError",
    "UnreleasedInstanceError",
    "UnsupportedVersionError",
    "UsageError",
    "WakeupError",
]

# In which module each of them is at home; those that are not named here are those of `tidelog.client.errors`.
_HOMES = {
    "ClaimBusyError": "processing.errors",
    "ClaimLostError": "processing.errors",
    "ClaimStoreError": "processing.errors",
    "FatalTransactionError": "producer.transactions",
    "IncompatibleSchemaError": "serialization.registry_errors",
    "ProcessingFailedError": "processing.errors",
    "SchemaNotFoundError": "serialization.registry_errors",
    "SchemaRegistryError": "serialization.registry_errors",
    "SchemaRegistryUnavailableError": "serialization.registry_errors",
    "TableError": "table",
    "TransactionAbortedError": "producer.transaction_state",
    "TransactionTimeoutError": "producer.transactions",
    "UnreleasedInstanceError": "consumer.group_refusals",
}


# Type checkers would take every name for granted.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"tidelog.client.{_HOMES.get(name, 'errors')}"), name)
