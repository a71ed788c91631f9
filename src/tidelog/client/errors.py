"""The errors of the clients, worded to tell the reader what to do next.

What always holds: every error that a client raises on purpose is a `ClientError`, and its message is one line for
people: what happened, at which broker or partition, and what to try. Its type tells a program what to do: retry
(`RetriableError`), abort the transaction and continue (`AbortableError`), or create a new client (`FatalError`). An
error code from a broker becomes a `BrokerError` of the type that fits the code.
"""

from __future__ import annotations

from typing import Self

from tidelog.protocol import ErrorCode

_CODES = {code.value: code for code in ErrorCode}


class ClientError(Exception):
    """Base class of all client errors; the message is one line meant for a person."""


class RetriableError(ClientError):
    """A retry may help; the client has already retried for as long as its timeouts allow."""


class AbortableError(ClientError):
    """The transaction can only be aborted; after that the producer is usable again."""


class FatalError(ClientError):
    """This client is no longer usable; close it and create a new one."""


class ConfigError(ClientError, ValueError):
    """A setting is unknown or its value is invalid."""


class ClosedError(ClientError):
    """The client has been closed."""


class ForkedError(FatalError):
    """The client was created before a fork; its connections and threads can't be used in the child process."""


class MissingExtraError(ClientError, ImportError):
    """A library from one of Tidelog's extras is not installed; the message says how to install it."""


class UsageError(ClientError):
    """A call that isn't valid at this point or with these settings, such as a poll before subscribing."""


class ConcurrentUseError(UsageError):
    """Two threads, or two tasks, used a consumer at the same time."""


# Between client and broker


class ConnectError(RetriableError):
    """The connection failed before anything was sent, so a retry is always safe."""


class ConnectionLostError(RetriableError):
    """The connection was lost with requests in flight: the broker may or may not have carried them out."""


class RequestTimeoutError(RetriableError):
    """No response in time; the broker may or may not have carried out the request."""


class UnsupportedVersionError(ClientError):
    """The broker and this client have no version of a request in common."""


class InvalidResponseError(ClientError):
    """The broker's response violates the protocol."""


# Producers


class BufferFullError(RetriableError):
    """The producer's buffer stayed full for as long as `max.block.ms` allows."""


class DeliveryTimeoutError(RetriableError):
    """A record could not be delivered within `delivery.timeout.ms`."""


class RecordTooLargeError(ClientError):
    """A record exceeds `max.request.size`, `buffer.memory` or the broker's limit."""


class SerializationError(ClientError):
    """A key or value can't be serialized or deserialized."""


class TransactionStateError(UsageError):
    """A transactional call at the wrong time, such as a send before the transaction has begun."""


# Consumers


class NoOffsetError(ClientError):
    """A partition has no committed offset, and `auto.offset.reset` is none."""


class OffsetOutOfRangeError(ClientError):
    """The position is outside the partition's log: the record is already deleted, or not written yet."""


class LogTruncationError(OffsetOutOfRangeError):
    """Records that were read are gone: the new leader's log is shorter."""


class CorruptRecordError(ClientError):
    """A batch can't be read; seek to `next_offset` to skip it."""

    def __init__(self, message: str, topic: str, partition: int, offset: int, next_offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.topic, self.partition, self.offset, self.next_offset))


class RecordDeserializationError(SerializationError):
    """A deserializer could not read a record; seek to `offset + 1` to skip it."""

    def __init__(self, message: str, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.topic, self.partition, self.offset))


class CommitFailedError(ClientError):
    """The offsets were not committed: the group has removed this member."""


class PollIntervalExceededError(ClientError):
    """`poll` was not called within `max.poll.interval.ms`, so the member left its group."""


class WakeupError(ClientError):
    """Another thread called `wakeup`."""


# Error codes from brokers


class BrokerError(ClientError):
    """The broker answered with an error code. Instantiating it picks the subclass that fits the code."""

    def __new__(cls, code: ErrorCode | str, *_: object, **__: object) -> Self:
        if cls is BrokerError and isinstance(code, ErrorCode):
            fitting = _CLASSES.get(code, RetriableBrokerError if code.retriable else BrokerError)
            return super().__new__(fitting)  # type: ignore[return-value]  # each is a subclass of this class
        return super().__new__(cls)

    def __init__(self, code: ErrorCode, message: str | None = None, *, subject: str | None = None) -> None:
        self.code = code
        self.message = message
        self.subject = subject
        reason = " ".join((message or code.description).split()).rstrip(".")
        prefix = f"{subject}: " if subject else ""
        super().__init__(f"{prefix}{reason} ({code.name})")

    @property
    def retriable(self) -> bool:
        """Whether a retry may help, according to the code."""
        return self.code.retriable

    def __reduce__(self) -> tuple[object, ...]:
        return (_remake, (type(self), self.code.value, self.message, self.subject))


class RetriableBrokerError(BrokerError, RetriableError):
    """The broker can't do it right now."""


class AuthorizationError(BrokerError):
    """The client isn't allowed to do this."""


class ProducerFencedError(BrokerError, FatalError):
    """Another producer with the same transactional id has taken over."""


class FencedInstanceError(BrokerError, FatalError):
    """Another member with the same `group.instance.id` has taken over."""


class AbortableBrokerError(BrokerError, AbortableError):
    """The broker requires the transaction to be aborted."""


class TooLargeBrokerError(BrokerError, RecordTooLargeError):
    """A record exceeds the broker's `message.max.bytes` or its topic's `max.message.bytes`."""


class NoSuchPartitionError(BrokerError):
    """The cluster says that the topic or partition doesn't exist, so waiting won't help."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)

    @property
    def retriable(self) -> bool:
        return False

    def __reduce__(self) -> tuple[object, ...]:
        return (NoSuchPartitionError, (self.message,))


_CLASSES: dict[ErrorCode, type[BrokerError]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationError,
    ErrorCode.PRODUCER_FENCED: ProducerFencedError,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFencedError,
    ErrorCode.FENCED_INSTANCE_ID: FencedInstanceError,
    ErrorCode.TRANSACTION_ABORTABLE: AbortableBrokerError,
    ErrorCode.MESSAGE_TOO_LARGE: TooLargeBrokerError,
    ErrorCode.RECORD_LIST_TOO_LARGE: TooLargeBrokerError,
}


def _remake(cls: type[BrokerError], code: int, message: str | None, subject: str | None) -> BrokerError:
    return cls(ErrorCode(code), message, subject=subject)


def raise_for(code: int, message: str | None = None, *, subject: str | None = None) -> None:
    """Raise BrokerError unless the code means success."""
    if code != ErrorCode.NONE:
        raise BrokerError(error_code(code), message, subject=subject)


def error_code(code: int) -> ErrorCode:
    """The code by number; one that this client doesn't know, from a newer Kafka, counts as UNKNOWN_SERVER_ERROR."""
    return _CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def is_retriable(error: BaseException) -> bool:
    """Whether a retry may help, perhaps after refreshing the metadata."""
    return isinstance(error, RetriableError)
