"""From the bytes of a request to the bytes of its response: header, version check, decode, handler, encode.

What always holds: a request that this broker can't read or doesn't support closes its own connection and nothing else.
The one exception is ApiVersions in a version that is too new: it is answered in version 0 with UNSUPPORTED_VERSION, so
that the client can retry (KIP-511). If a handler fails, the traceback is logged and the client gets an error, provided
that the response has a field for one. Requests with many elements are decoded, handled and answered in steps, and other
requests get their turn in between (`tidelog.broker.turns`). This module knows neither sockets nor the order of
responses; `connection` does.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidelog.broker.client_quirks import body_start
from tidelog.broker.controller_channel import failure_response
from tidelog.broker.log_limit import LimitedLog
from tidelog.broker.memory import AnswerMemory
from tidelog.broker.registry import CloseConnection, Handler, find_handler
from tidelog.broker.request_context import ClientSession, RequestContext, RequestHolder
from tidelog.broker.turns import AnswerTooLargeError, Turns
from tidelog.common.steps import Steps, run_with_pauses
from tidelog.metadata import MetadataStoreError
from tidelog.protocol import (
    ErrorCode,
    KafkaError,
    ProtocolError,
    TooManyElementsError,
    decode,
    decode_client_id,
    decode_in_steps,
    encode_in_steps,
    encode_parts,
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
_SIZE = struct.Struct(">i")
_SIZE_BYTES = _SIZE.size

# A request with more elements than this is decoded in steps; up to here, decoding takes less than a millisecond.
_ELEMENTS_AT_ONCE_MAX = 512


class FrameHolder(RequestHolder, Protocol):
    """Whose memory a request is in while it waits to be decoded."""

    def hold_frame(self, size_bytes: int) -> None: ...
    def release_frame(self) -> None: ...


class Exchange:
    """One request and its response. `parts` is the response frame once `answered`; None means that none is expected.

    While `is_in_steps`, the handler may not have finished, so nothing after it may start.
    """

    __slots__ = ("answered", "correlation_id", "future", "handler", "is_in_steps", "is_large", "parts", "version")

    def __init__(self, handler: Handler, version: int, correlation_id: int) -> None:
        self.handler = handler
        self.version = version
        self.correlation_id = correlation_id
        self.future: asyncio.Future[Any] | None = None
        self.parts: list[Part] | None = None
        self.answered = False
        self.is_in_steps = False
        # Whether the response may be large, so that it has to be encoded in steps.
        self.is_large = False


class _Encoded(NamedTuple):
    """A response frame, as steps return it; None if no response is expected."""

    parts: list[Part] | None


def api_key_of(buffer: bytearray, position: int) -> int:
    """The API key of the frame body that starts there."""
    return (buffer[position] << 8) | buffer[position + 1]


class Dispatcher:
    """Passes requests to their handlers and turns the results into frames."""

    def __init__(
        self, services: BrokerServices, loop: asyncio.AbstractEventLoop, *, answer_bytes_max: int = 128 << 20
    ) -> None:
        self._services = services
        self._loop = loop
        self.answers = AnswerMemory(answer_bytes_max, loop)
        self._turns = Turns(self.answers, loop)
        self._log = LimitedLog(logger)
        self.requests_total: Counter[str] = Counter()
        # While a broker starts, its controller may be needed by others, but it can't serve clients yet.
        self.serves_clients = True

    def start(self, frame: memoryview, session: ClientSession, holder: FrameHolder) -> Exchange:
        """Start a request; the exchange is answered or has a future to wait for. Raises CloseConnection."""
        try:
            return self._start(frame, session, holder)
        except CloseConnection:
            raise
        except (ProtocolError, struct.error) as error:
            raise CloseConnection(f"sent a malformed request: {error}") from error
        except Exception as error:
            # A bug of ours in reading it; if the connection stayed open, the client would wait forever.
            self._log.log(logging.ERROR, "a request could not be read: %s", error, exc_info=error)
            raise CloseConnection("sent a request that could not be read") from error

    def finish(self, exchange: Exchange) -> None:
        """Take the result of the exchange's completed future; there may be another one to wait for then.

        Raises CloseConnection.
        """
        future = exchange.future
        assert future is not None  # only exchanges that wait are finished
        exchange.future = None
        exchange.is_in_steps = False
        if future.cancelled():
            raise CloseConnection("its request was cancelled")
        error = future.exception()
        if error is None:
            self._take(exchange, future.result())
        elif isinstance(error, CloseConnection):
            raise error
        elif isinstance(error, AnswerTooLargeError):
            raise CloseConnection(f"asked for too much by {exchange.handler.api.name}: {error}") from error
        elif isinstance(error, ProtocolError):
            raise CloseConnection(f"sent a malformed request: {error}") from error
        elif isinstance(error, Exception):
            self._answer_failure(exchange, error)
        else:
            raise error

    def abandon(self, exchange: Exchange) -> None:
        """The exchange's future is done, but its connection is gone: only a failure is worth logging."""
        future = exchange.future
        if future is None or future.cancelled():
            return
        error = future.exception()
        if error is None:
            result = future.result()
            if isinstance(result, (CoroutineType, GeneratorType)):
                result.close()
        elif isinstance(error, Exception) and not isinstance(error, (CloseConnection, KafkaError, ProtocolError)):
            self._log_failure(exchange, error)

    def _start(self, frame: memoryview, session: ClientSession, holder: FrameHolder) -> Exchange:
        api_key, version, correlation_id = _FIXED_HEADER.unpack_from(frame)
        handler = find_handler(api_key)
        if handler is None:
            raise CloseConnection(f"asked for API key {api_key}, which is not supported")
        exchange = Exchange(handler, version, correlation_id)
        if not handler.version_min <= version <= handler.version_max and not self._is_unstable(handler, version):
            self._refuse_version(exchange)
            return exchange
        client_id, body_offset = decode_client_id(frame, has_tags=version >= handler.request_tags_from)
        body_offset = body_start(api_key, version, frame, body_offset)
        context = RequestContext(
            handler.api, version, self._services, correlation_id, client_id, session, holder, len(frame)
        )
        if not self.serves_clients and not handler.is_internal and api_key != _API_VERSIONS_KEY:
            raise CloseConnection("asked before the broker has started")
        if handler.on_controller and not handler.is_partly_local and not self._services.controller.is_active:
            context.hold_request()
            exchange.future = self._loop.create_task(self._forward(exchange, bytes(frame), body_offset, context))
            return exchange
        try:
            request = decode(handler.request_class, frame, version, body_offset, elements_max=_ELEMENTS_AT_ONCE_MAX)
        except TooManyElementsError:
            holder.hold_frame(len(frame))
            exchange.is_large = True
            self._run_in_steps(exchange, self._read_and_handle(exchange, frame, body_offset, context, holder))
            return exchange
        self.requests_total[handler.api.name] += 1
        try:
            result = handler.handle(request, context)
        except (CloseConnection, ProtocolError):
            raise
        except Exception as error:  # noqa: BLE001 - one failing request must not harm any other
            self._answer_failure(exchange, error)
            return exchange
        self._take(exchange, result)
        return exchange

    async def _forward(self, exchange: Exchange, frame: bytes, body_offset: int, context: RequestContext) -> object:
        """The controller's answer, or this broker's own where there is no controller."""
        handler = exchange.handler
        self.requests_total[handler.api.name] += 1
        try:
            response = await self._services.forwarder.forward(frame, context.session)
            if response is not None:
                return _Encoded([_SIZE.pack(len(response)) + response])
            request = await run_with_pauses(
                decode_in_steps(handler.request_class, memoryview(frame), exchange.version, body_offset)
            )
        finally:
            context.release_request()
        return handler.handle(request, context)

    def _take(self, exchange: Exchange, result: object) -> None:
        """Continue with what a handler, or the steps of its work, returned."""
        if type(result) is exchange.handler.response_class and not exchange.is_large:
            self._answer(exchange, result)
        elif isinstance(result, asyncio.Future):
            exchange.future = result
        elif isinstance(result, CoroutineType):
            exchange.future = self._loop.create_task(result)
        elif isinstance(result, GeneratorType):
            self._run_in_steps(exchange, self._handle_and_encode(exchange, result))
        elif isinstance(result, _Encoded):
            exchange.answered = True
            exchange.parts = result.parts
        elif exchange.is_large and result is not None:
            self._run_in_steps(exchange, self._encode_in_steps(exchange, result))
        else:
            self._answer(exchange, result)

    def _run_in_steps(self, exchange: Exchange, steps: Steps[object]) -> None:
        exchange.future = self._turns.start(steps)
        exchange.is_in_steps = True
        if exchange.future.done():
            self.finish(exchange)

    def _read_and_handle(
        self, exchange: Exchange, frame: memoryview, body_offset: int, context: RequestContext, holder: FrameHolder
    ) -> Steps[object]:
        handler = exchange.handler
        request = yield from decode_in_steps(handler.request_class, frame, exchange.version, body_offset)
        del frame
        self.requests_total[handler.api.name] += 1
        try:
            result = handler.handle(request, context)
        finally:
            # Only now: the handler may need the bytes for longer, and then they have been counted all the time.
            holder.release_frame()
        if isinstance(result, GeneratorType):
            return (yield from self._handle_and_encode(exchange, result))
        return result

    def _handle_and_encode(self, exchange: Exchange, steps: Steps[object]) -> Steps[object]:
        result = yield from steps
        if result is None or isinstance(result, (asyncio.Future, CoroutineType)):
            exchange.is_large = True
            return result
        return (yield from self._encode_in_steps(exchange, result))

    def _encode_in_steps(self, exchange: Exchange, response: object) -> Steps[_Encoded]:
        try:
            body: list[Any] = yield from encode_in_steps(response, exchange.version)
            return _Encoded(self._frame(exchange, body))
        except Exception as error:
            raise self._not_encoded(exchange, error) from error

    def _is_unstable(self, handler: Handler, version: int) -> bool:
        return handler.version_max < version <= handler.last_version(self._services.settings)

    def _refuse_version(self, exchange: Exchange) -> None:
        handler = exchange.handler
        if handler.api.key != _API_VERSIONS_KEY:
            raise CloseConnection(
                f"asked for {handler.api.name} version {exchange.version}; "
                f"supported are {handler.version_min} to {handler.last_version(self._services.settings)}"
            )
        from tidelog.broker.handlers.k18_api_versions import refuse_version

        # The client reads this response as version 0, whatever it asked for.
        exchange.version = 0
        self._answer(exchange, refuse_version())

    def _answer(self, exchange: Exchange, response: object) -> None:
        exchange.answered = True
        if response is None:
            return
        try:
            exchange.parts = self._frame(exchange, encode_parts(response, exchange.version))
        except Exception as error:
            raise self._not_encoded(exchange, error) from error

    def _not_encoded(self, exchange: Exchange, error: Exception) -> CloseConnection:
        # The response is ours, so whatever this is, it is our bug.
        self._log_failure(exchange, error)
        return CloseConnection(f"its answer of {exchange.handler.api.name} could not be encoded")

    def _frame(self, exchange: Exchange, parts: list[Any]) -> list[Part]:
        head = _HEAD_WITH_TAGS if exchange.version >= exchange.handler.response_tags_from else _HEAD
        size = head.size - _SIZE_BYTES
        if len(parts) == 1:
            body = parts[0]
            return [head.pack(size + len(body), exchange.correlation_id) + body]
        for part in parts:
            size += len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size_bytes
        parts[0] = head.pack(size, exchange.correlation_id) + parts[0]
        return parts

    def _answer_failure(self, exchange: Exchange, error: Exception) -> None:
        """A handler raised an exception: report it in the response's own error field, or close the connection."""
        if isinstance(error, KafkaError):
            code, message = error.code, error.message
        else:
            self._log_failure(exchange, error)
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
            if isinstance(error, MetadataStoreError):
                code, message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        response = failure_response(exchange.handler, code, message)
        if response is None:
            raise CloseConnection(f"{exchange.handler.api.name} failed: {error}") from error
        self._answer(exchange, response)

    def _log_failure(self, exchange: Exchange, error: Exception) -> None:
        # A store that is unavailable has said all there is to say; anything else is a bug, and its traceback matters.
        is_known = isinstance(error, MetadataStoreError)
        self._log.log(
            logging.ERROR,
            "%s version %d failed: %s",
            exchange.handler.api.name,
            exchange.version,
            error,
            exc_info=None if is_known else error,
        )
