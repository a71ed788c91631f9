"""From the bytes of a request to the bytes of its answer: header, version check, decode, handler, encode.

What always holds: a request this broker can't read or does not serve closes its own connection and nothing else; the
one exception is ApiVersions in a version that is too new, which is answered in version 0 with UNSUPPORTED_VERSION so
that the client can ask again (KIP-511). A handler that fails is logged with its traceback and answered with an error
where its response has a place for one. It knows neither sockets nor the order of answers; `connection` does.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from tidelog.broker.client_quirks import body_start
from tidelog.broker.log_limit import LimitedLog
from tidelog.broker.registry import CloseConnection, Handler, find_handler
from tidelog.broker.request_context import ClientSession, RequestContext
from tidelog.metadata import MetadataStoreError
from tidelog.protocol import (
    ErrorCode,
    KafkaError,
    ProtocolError,
    decode,
    decode_client_id,
    encode_parts,
    response_class,
)

if TYPE_CHECKING:
    from tidelog.broker.outgoing import Part
    from tidelog.broker.services import BrokerServices

logger = logging.getLogger(__name__)

_API_VERSIONS_KEY = 18
_FIXED_HEADER = struct.Struct(">hhi")  # api key, api version, correlation id: the same in every header version
# A response's size and correlation id, and the empty tagged fields of a flexible response's header.
_HEAD = struct.Struct(">ii")
_HEAD_WITH_TAGS = struct.Struct(">iix")
_SIZE_BYTES = 4


class Exchange:
    """One request and its answer. `parts` is the answer's frame once `answered`; None means that none is expected."""

    __slots__ = ("answered", "correlation_id", "future", "handler", "parts", "version")

    def __init__(self, handler: Handler, version: int, correlation_id: int) -> None:
        self.handler = handler
        self.version = version
        self.correlation_id = correlation_id
        self.future: asyncio.Future[Any] | None = None
        self.parts: list[Part] | None = None
        self.answered = False


def api_key_of(buffer: bytearray, position: int) -> int:
    """The API key of the frame body that starts there."""
    return (buffer[position] << 8) | buffer[position + 1]


class Dispatcher:
    """Hands requests to their handlers and turns what these return into frames."""

    def __init__(self, services: BrokerServices, loop: asyncio.AbstractEventLoop) -> None:
        self._services = services
        self._loop = loop
        self._log = LimitedLog(logger)
        self.requests_total: Counter[str] = Counter()

    def start(self, frame: memoryview, session: ClientSession) -> Exchange:
        """Begin one request; the exchange is answered or has a future to wait for. Raises CloseConnection."""
        try:
            return self._start(frame, session)
        except CloseConnection:
            raise
        except (ProtocolError, struct.error) as error:
            raise CloseConnection(f"sent a malformed request: {error}") from error
        except Exception as error:
            # A mistake of ours in reading it; without an end of the connection the client would wait for ever.
            self._log.log(logging.ERROR, "a request could not be read: %s", error, exc_info=error)
            raise CloseConnection("sent a request that could not be read") from error

    def finish(self, exchange: Exchange) -> None:
        """Take the result of the exchange's future, which is done. Raises CloseConnection."""
        future = exchange.future
        assert future is not None  # only exchanges that wait are finished
        exchange.future = None
        if future.cancelled():
            raise CloseConnection("its request was cancelled")
        error = future.exception()
        if error is None:
            self._answer(exchange, future.result())
        elif isinstance(error, CloseConnection):
            raise error
        elif isinstance(error, ProtocolError):
            raise CloseConnection(f"sent a malformed request: {error}") from error
        elif isinstance(error, Exception):
            self._answer_failure(exchange, error)
        else:
            raise error

    def abandon(self, exchange: Exchange) -> None:
        """The exchange's future is done, but its connection is gone: only a failure is worth a word."""
        future = exchange.future
        if future is None or future.cancelled():
            return
        error = future.exception()
        if isinstance(error, Exception) and not isinstance(error, (CloseConnection, KafkaError, ProtocolError)):
            self._log_failure(exchange, error)

    def _start(self, frame: memoryview, session: ClientSession) -> Exchange:
        api_key, version, correlation_id = _FIXED_HEADER.unpack_from(frame)
        handler = find_handler(api_key)
        if handler is None:
            raise CloseConnection(f"asked for API key {api_key}, which is not served")
        exchange = Exchange(handler, version, correlation_id)
        if not handler.version_min <= version <= handler.version_max and not self._is_unstable(handler, version):
            self._refuse_version(exchange)
            return exchange
        client_id, body_offset = decode_client_id(frame, has_tags=version >= handler.request_tags_from)
        body_offset = body_start(api_key, version, frame, body_offset)
        request = decode(handler.request_class, frame, version, body_offset)
        context = RequestContext(handler.api, version, self._services, correlation_id, client_id, session)
        self.requests_total[handler.api.name] += 1
        try:
            result = handler.handle(request, context)
        except (CloseConnection, ProtocolError):
            raise
        except Exception as error:  # noqa: BLE001 - one failing request must not harm any other
            self._answer_failure(exchange, error)
            return exchange
        if isinstance(result, asyncio.Future):
            exchange.future = result
        elif isinstance(result, CoroutineType):
            exchange.future = self._loop.create_task(result)
        else:
            self._answer(exchange, result)
        return exchange

    def _is_unstable(self, handler: Handler, version: int) -> bool:
        return handler.version_max < version <= handler.last_version(self._services.settings)

    def _refuse_version(self, exchange: Exchange) -> None:
        handler = exchange.handler
        if handler.api.key != _API_VERSIONS_KEY:
            raise CloseConnection(
                f"asked for {handler.api.name} version {exchange.version}; "
                f"served are {handler.version_min} to {handler.last_version(self._services.settings)}"
            )
        from tidelog.broker.handlers.k18_api_versions import refuse_version

        # The client reads this answer as version 0, whatever it asked for.
        exchange.version = 0
        self._answer(exchange, refuse_version())

    def _answer(self, exchange: Exchange, response: object) -> None:
        exchange.answered = True
        if response is None:
            return
        try:
            exchange.parts = self._encode(exchange, response)
        except Exception as error:
            # The response is ours, so this is our mistake, whatever it is.
            self._log_failure(exchange, error)
            raise CloseConnection(f"its answer of {exchange.handler.api.name} could not be encoded") from error

    def _encode(self, exchange: Exchange, response: object) -> list[Part]:
        head = _HEAD_WITH_TAGS if exchange.version >= exchange.handler.response_tags_from else _HEAD
        parts: list[Any] = encode_parts(response, exchange.version)
        size = head.size - _SIZE_BYTES
        if len(parts) == 1:
            body = parts[0]
            return [head.pack(size + len(body), exchange.correlation_id) + body]
        for part in parts:
            size += len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size_bytes
        return [head.pack(size, exchange.correlation_id), *parts]

    def _answer_failure(self, exchange: Exchange, error: Exception) -> None:
        """A handler let an exception out: say it in the response's own error field, or close."""
        if isinstance(error, KafkaError):
            code, message = error.code, error.message
        else:
            self._log_failure(exchange, error)
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
        response = response_class(exchange.handler.api)()
        if not hasattr(response, "error_code"):
            raise CloseConnection(f"{exchange.handler.api.name} failed: {error}") from error
        response.error_code = int(code)
        if hasattr(response, "error_message"):
            response.error_message = message
        self._answer(exchange, response)

    def _log_failure(self, exchange: Exchange, error: Exception) -> None:
        # A store that can't be used says all there is to say; anything else is a mistake of ours, and where matters.
        is_known = isinstance(error, MetadataStoreError)
        self._log.log(
            logging.ERROR,
            "%s version %d failed: %s",
            exchange.handler.api.name,
            exchange.version,
            error,
            exc_info=None if is_known else error,
        )
