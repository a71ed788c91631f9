"""What can go wrong between a client and its brokers, told so that the reader knows what to do next.

What always holds: every error the client raises on purpose is a `ClientError`, its text is one line, and it says
whether the broker was out of reach, silent, too different, or refused the request (`BrokerError`, with Kafka's code).
"""

from __future__ import annotations

from tidelog.protocol import ErrorCode

_CODES = {code.value: code for code in ErrorCode}


class ClientError(Exception):
    """Base of all the client raises; the text is one line meant for a person."""


class ConnectError(ClientError):
    """No connection could be made: nothing was sent, so trying again is always safe."""


class ConnectionLostError(ClientError):
    """The connection ended while requests were under way: the broker may or may not have carried them out."""


class RequestTimeoutError(ClientError):
    """No answer within the time given: the broker may or may not have carried the request out."""


class UnsupportedVersionError(ClientError):
    """The broker and this client have no version of a request in common."""


class InvalidResponseError(ClientError):
    """The broker's answer breaks the protocol."""


class BrokerError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, code: ErrorCode, message: str | None = None, *, subject: str | None = None) -> None:
        self.code = code
        self.message = message
        self.subject = subject
        reason = " ".join((message or code.description).split()).rstrip(".")
        prefix = f"{subject}: " if subject else ""
        super().__init__(f"{prefix}{reason} ({code.name})")

    @property
    def retriable(self) -> bool:
        return self.code.retriable


class NoSuchPartitionError(BrokerError):
    """The cluster was asked and knows no such topic, or no such partition of it: waiting will not help."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)

    @property
    def retriable(self) -> bool:
        return False


def raise_for(code: int, message: str | None = None, *, subject: str | None = None) -> None:
    """Raise BrokerError unless the code says that all went well."""
    if code != ErrorCode.NONE:
        raise BrokerError(error_code(code), message, subject=subject)


def error_code(code: int) -> ErrorCode:
    """The code by number; one from a newer Kafka than this client knows counts as UNKNOWN_SERVER_ERROR."""
    return _CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
