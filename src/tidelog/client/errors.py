"""What can go wrong between a client and its brokers, told so that the reader knows what to do next.

What always holds: every error that a client raises on purpose is a `ClientError`, and its text is one line for a
person: what happened, at which broker or partition, what to try. Its type says what a program may do: the same again
(`RetriableError`), abort the transaction and go on (`AbortableError`), or make a new client (`FatalError`). What a
broker answered with an error code is a `BrokerError`, and has the type that fits the code.
"""

from __future__ import annotations

from typing import Self

from tidelog.protocol import ErrorCode

_CODES = {code.value: code for code in ErrorCode}


class ClientError(Exception):
    """Base of all that clients raise; the text is one line meant for a person."""


class RetriableError(ClientError):
    """Trying the same again may help; clients have done so themselves for as long as their time-outs allow."""


class AbortableError(ClientError):
    """The transaction can only be aborted; after that the producer can go on."""


class FatalError(ClientError):
    """This client can't go on; close it and make a new one."""


class ConfigError(ClientError, ValueError):
    """A setting is unknown or its value can't be used."""


class ClosedError(ClientError):
    """The client was closed before."""


class ForkedError(FatalError):
    """The process was forked and this is the child: connections and threads of the parent can't be used here."""


class MissingExtraError(ClientError, ImportError):
    """A library is not installed that comes with one of Tidelog's extras; the text holds the command for it."""


class UsageError(ClientError):
    """A call at a moment, or with settings, for which it is not meant, as a poll before anything is subscribed to."""


class ConcurrentUseError(UsageError):
    """Two threads use a client at once that belongs to one at a time."""


# Between client and broker


class ConnectError(RetriableError):
    """No connection could be made: nothing was sent, so trying again is always safe."""


class ConnectionLostError(RetriableError):
    """The connection ended while requests were under way: the broker may or may not have carried them out."""


class RequestTimeoutError(RetriableError):
    """No answer within the time given: the broker may or may not have carried the request out."""


class UnsupportedVersionError(ClientError):
    """The broker and this client have no version of a request in common."""


class InvalidResponseError(ClientError):
    """The broker's answer breaks the protocol."""


# Producers


class BufferFullError(RetriableError):
    """The producer's buffer stayed full for as long as `max.block.ms` allows."""


class DeliveryTimeoutError(RetriableError):
    """A record could not be delivered within `delivery.timeout.ms`."""


class RecordTooLargeError(ClientError):
    """A record is larger than `max.request.size` or `buffer.memory` allow, or than the broker takes."""


class SerializationError(ClientError):
    """A key or value can't be turned into bytes, or back."""


class TransactionStateError(UsageError):
    """A transactional call at a wrong moment, as a send before the transaction was begun."""


# Consumers


class NoOffsetError(ClientError):
    """A partition has no committed offset, and `auto.offset.reset` is none."""


class OffsetOutOfRangeError(ClientError):
    """A partition no longer holds, or does not hold yet, the offset that was to be read."""


class LogTruncationError(OffsetOutOfRangeError):
    """The records before a partition's position are not the ones that were read: a new leader has less of the log."""


class CorruptRecordError(ClientError):
    """A partition holds a batch that can't be read; seek to `next_offset` to go on behind it."""

    def __init__(self, message: str, topic: str, partition: int, offset: int, next_offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.topic, self.partition, self.offset, self.next_offset))


class RecordDeserializationError(SerializationError):
    """A deserializer could not read a record; seek to the offset behind it to go on."""

    def __init__(self, message: str, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.topic, self.partition, self.offset))


class CommitFailedError(ClientError):
    """The offsets were not committed: the group has gone on without this member."""


class PollIntervalExceededError(ClientError):
    """`poll` was not called within `max.poll.interval.ms`, so the member left its group."""


class WakeupError(ClientError):
    """Another thread called `wakeup`."""


# What brokers answer


class BrokerError(ClientError):
    """The broker answered with an error code; made with one it has the subclass that fits the code."""

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
        """Whether trying the same again may help, by the code."""
        return self.code.retriable

    def __reduce__(self) -> tuple[object, ...]:
        return (_remake, (type(self), self.code.value, self.message, self.subject))


class RetriableBrokerError(BrokerError, RetriableError):
    """The broker can't do it now."""


class AuthorizationError(BrokerError):
    """The client may not do this."""


class ProducerFencedError(BrokerError, FatalError):
    """Another producer with the same transactional id has taken over."""


class FencedInstanceError(BrokerError, FatalError):
    """Another member with the same `group.instance.id` has taken over."""


class AbortableBrokerError(BrokerError, AbortableError):
    """The broker wants the transaction aborted."""


class TooLargeBrokerError(BrokerError, RecordTooLargeError):
    """A record is larger than the broker takes, by `message.max.bytes` or its topic's `max.message.bytes`."""


class NoSuchPartitionError(BrokerError):
    """The cluster was asked and knows no such topic, or no such partition of it: waiting will not help."""

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
    """Raise BrokerError unless the code says that all went well."""
    if code != ErrorCode.NONE:
        raise BrokerError(error_code(code), message, subject=subject)


def error_code(code: int) -> ErrorCode:
    """The code by number; one from a newer Kafka than this client knows counts as UNKNOWN_SERVER_ERROR."""
    return _CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def is_retriable(error: BaseException) -> bool:
    """Whether trying again, perhaps after a look at fresh metadata, may help."""
    return isinstance(error, RetriableError)
