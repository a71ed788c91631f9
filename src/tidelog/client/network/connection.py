"""One connection to one broker on an event loop: version negotiation, and matching responses to requests.

What always holds: requests are sent in the order they were submitted, in the highest version that both sides know
unless another is requested. Brokers answer in that order. A response that doesn't match closes the connection, and so
does one that is late, because those behind it can't arrive either. After any failure the connection is closed for good
and every pending request has failed. Records are not copied on sending or receiving. Nothing here retries or knows
about topics: that is `cluster`.

An idle connection can be lent to other threads, which then send and receive over it themselves. That saves two thread
switches per request.
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from tidelog import __version__
from tidelog.client.address import Address
from tidelog.client.errors import (
    ClientError,
    ConnectError,
    ConnectionLostError,
    InvalidResponseError,
    RequestTimeoutError,
    UnsupportedVersionError,
    error_code,
)
from tidelog.client.network.frames import FrameError, FrameReader
from tidelog.common.congestion import prevent_pacing_on_loopback, stop_pacing_on_loopback
from tidelog.protocol import (
    Api,
    ErrorCode,
    ProtocolError,
    RequestHeader,
    decode,
    decode_response_header,
    encode_parts,
    encode_request_header,
)
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse

CLIENT_SOFTWARE_NAME = "tidelog"

_SIZE = struct.Struct(">i")  # size of a frame; the correlation id of a response has the same form
_HEAD = struct.Struct(">ihhi")  # of a request: size of the frame, API key, version, correlation id
_ERROR_CODE = struct.Struct(">h")
_SENDMSG_PARTS_MAX = 512  # below IOV_MAX on all systems
# A connection receives at most this much per turn, so that a fetch of 50 MB does not hold up others on the loop.
_RECEIVES_AT_ONCE = 16

# Brokers close connections that have been idle for minutes.
_CHECKED_AFTER_S = 1.0

ResponseT = TypeVar("ResponseT")


class _InFlight:
    """A request that was sent, and the future that waits for its response."""

    __slots__ = ("api", "correlation_id", "deadline_s", "future", "response_class", "timeout_s", "version")

    def __init__(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        response_class: type,
        future: asyncio.Future[Any],
        timeout_s: float,
        deadline_s: float,
    ) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.response_class = response_class
        self.future = future
        self.timeout_s = timeout_s
        self.deadline_s = deadline_s


class Connection:
    """A connected socket with negotiated versions; created by `open`, used on one event loop."""

    def __init__(self, address: Address, connected: socket.socket, client_id: str, request_timeout_s: float) -> None:
        self.address = address
        self.node_id = -1  # unknown until the metadata names the broker
        self.features: Mapping[str, int] = {}
        self.last_used_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = connected
        self._client_id = client_id
        self._request_timeout_s = request_timeout_s
        self._next_correlation_id = 0
        self._header_ends: dict[tuple[int, int], bytes] = {}  # what follows the correlation id, by API and version
        self._awaited: deque[_InFlight] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._reader = FrameReader()
        self._unsent: deque[memoryview] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._poller: select.poll | None = None  # while it is lent to other threads
        self._loop.add_reader(connected, self._on_readable)

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        client_id: str = CLIENT_SOFTWARE_NAME,
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 30.0,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        software_name: str = CLIENT_SOFTWARE_NAME,
    ) -> Connection:
        """Connect and negotiate versions; raises ConnectError, because no request was sent yet."""
        connected = await _connect(address, connect_timeout_s, send_buffer_bytes, receive_buffer_bytes)
        connection = cls(address, connected, client_id, request_timeout_s)
        try:
            await connection._negotiate(software_name, connect_timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def in_flight(self) -> int:
        """Requests still waiting for their responses."""
        return len(self._awaited)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the socket has not accepted yet."""
        return sum(len(part) for part in self._unsent)

    def close(self, error: ClientError | None = None) -> None:
        """Close the connection; pending requests fail with the error."""
        if self._socket is None:
            return
        self._loop.remove_reader(self._socket)
        if self._unsent:
            self._loop.remove_writer(self._socket)
        self._socket.close()
        self._socket = None
        self._unsent.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        error = error or ConnectionLostError(f"the connection to the broker at {self.address} was closed")
        while self._awaited:
            sent = self._awaited.popleft()
            if not sent.future.done():
                sent.future.set_exception(error)
                # The caller may have given up, so avoid the warning that the error was never retrieved.
                sent.future.exception()

    # Versions

    def supports(self, api: Api) -> bool:
        return self._common_versions(api) is not None

    def version_for(self, api: Api, *, at_most: int | None = None) -> int:
        """The highest version of the request that both sides know; raises UnsupportedVersionError."""
        common = self._common_versions(api)
        if common is None or (at_most is not None and common[0] > at_most):
            broker = self._versions.get(api.key)
            offered = f"versions {broker[0]}-{broker[1]}" if broker else "no version"
            ours = api.versions
            raise UnsupportedVersionError(
                f"broker at {self.address} offers {offered} of {api.name}, this client speaks {ours[0]}-{ours[1]}"
            )
        return common[1] if at_most is None else min(common[1], at_most)

    def _common_versions(self, api: Api) -> tuple[int, int] | None:
        broker = self._versions.get(api.key)
        if broker is None:
            return None
        low, high = max(api.versions[0], broker[0]), min(api.versions[1], broker[1])
        return (low, high) if low <= high else None

    async def _negotiate(self, software_name: str, timeout_s: float) -> None:
        """Ask for the broker's versions with our newest request; an older broker answers with 35 and its own range."""
        request = ApiVersionsRequest(client_software_name=software_name, client_software_version=__version__)
        version = API_VERSIONS.versions[1]
        while True:
            response = await self.request(
                API_VERSIONS, request, ApiVersionsResponse, version=version, timeout_s=timeout_s
            )
            ranges = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
            code = error_code(response.error_code)
            if code is ErrorCode.NONE:
                self._versions = ranges
                self.features = {row.name: row.max_version_level for row in response.finalized_features}
                return
            # A broker that refuses without listing anything still knows version 0.
            fallback = ranges.get(API_VERSIONS.key, (0, 0))[1]
            if code is not ErrorCode.UNSUPPORTED_VERSION or not 0 <= fallback < version:
                raise UnsupportedVersionError(
                    f"broker at {self.address} refused to report its versions: {code.description} ({code.name})"
                )
            version = fallback

    # Requests

    async def request(
        self,
        api: Api,
        message: object,
        response_class: type[ResponseT],
        *,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> ResponseT:
        """Send and wait for the answer."""
        return await self.send(api, message, response_class, version=version, timeout_s=timeout_s)

    def send(
        self,
        api: Api,
        message: object,
        response_class: type[ResponseT],
        *,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> asyncio.Future[ResponseT]:
        """Send without waiting; the future gets the response or the error. Raises if nothing was sent."""
        if version is None:
            version = self.version_for(api)
        timeout_s = self._request_timeout_s if timeout_s is None else timeout_s
        correlation_id, parts = self._encode(api, version, message)
        future: asyncio.Future[ResponseT] = self._loop.create_future()
        deadline_s = self._loop.time() + timeout_s
        self._awaited.append(_InFlight(api, version, correlation_id, response_class, future, timeout_s, deadline_s))
        if self._timer is None or deadline_s < self._timer_at_s:
            self._start_timer(deadline_s)
        self._write(parts)
        return future

    def send_unanswered(self, api: Api, message: object, *, version: int | None = None) -> None:
        """Send a request that gets no response: a produce with acks=0."""
        version = self.version_for(api) if version is None else version
        self._write(self._encode(api, version, message)[1])

    def _encode(self, api: Api, version: int, message: object) -> tuple[int, list[memoryview]]:
        if self._socket is None:
            raise ConnectionLostError(f"the connection to the broker at {self.address} is closed")
        correlation_id = self._next_correlation_id
        header_end = self._header_ends.get((api.key, version))
        if header_end is None:
            header = encode_request_header(RequestHeader(api.key, version, correlation_id, self._client_id))
            header_end = self._header_ends[api.key, version] = header[_HEAD.size - _SIZE.size :]
        parts: list[memoryview] = []
        size = _HEAD.size - _SIZE.size + len(header_end)
        for part in encode_parts(message, version):
            if not isinstance(part, (bytes, bytearray, memoryview)):
                raise TypeError("a client sends records from memory, not from a file")
            view = memoryview(part).cast("B")
            size += len(view)
            parts.append(view)
        parts.insert(0, memoryview(_HEAD.pack(size, api.key, version, correlation_id) + header_end))
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        return correlation_id, parts

    def _write(self, parts: list[memoryview]) -> None:
        assert self._socket is not None  # _encode has checked this
        self.last_used_s = self._loop.time()
        waiting = bool(self._unsent)
        self._unsent.extend(parts)
        if not waiting:
            self._send_unsent()
            if self._unsent and self._socket is not None:
                self._loop.add_writer(self._socket, self._on_writable)

    def _send_unsent(self) -> None:
        assert self._socket is not None
        try:
            self._send_to(self._socket)
        except OSError as error:
            # The writer is not registered if the first attempt to send fails.
            self.close(self._lost(_reason(error)))

    def _send_to(self, target: socket.socket) -> None:
        """Send until nothing is left or the socket accepts no more."""
        unsent = self._unsent
        try:
            while unsent:
                parts = [unsent[number] for number in range(min(len(unsent), _SENDMSG_PARTS_MAX))]
                sent = target.sendmsg(parts)
                while unsent and sent >= len(unsent[0]):
                    sent -= len(unsent.popleft())
                if sent:
                    unsent[0] = unsent[0][sent:]
        except BlockingIOError:
            return

    def _on_writable(self) -> None:
        self._send_unsent()
        if not self._unsent and self._socket is not None:
            self._loop.remove_writer(self._socket)

    # Other threads

    def lend(self) -> None:
        """Stop watching an idle connection; other threads may then use it through `exchange`, one at a time."""
        if self._socket is None or self._awaited or self._poller is not None:
            raise RuntimeError("only an idle connection can be lent")
        self._loop.remove_reader(self._socket)
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)

    def has_ended(self) -> bool:
        """Whether a lent, idle connection was closed by the broker or received unexpected data; from any thread."""
        if self._poller is None:
            return True
        # If it was used a moment ago, the check isn't worth a system call: if it is dead, `exchange` will find out.
        return self._loop.time() - self.last_used_s > _CHECKED_AFTER_S and bool(self._poller.poll(0))

    def exchange(
        self, api: Api, message: object, response_class: type[ResponseT], *, version: int, timeout_s: float | None
    ) -> ResponseT | asyncio.Future[ResponseT]:
        """Send over a lent connection and wait for the response in the calling thread, without the event loop.

        If that takes too long or fails, it returns a future: call `take_back` on the loop, and the future will get the
        response or the error. Raises if nothing was sent.
        """
        poller, connected = self._poller, self._socket
        correlation_id, parts = self._encode(api, version, message)
        assert poller is not None  # it is lent, and _encode has checked that it is open
        assert connected is not None
        future: asyncio.Future[ResponseT] = self._loop.create_future()
        patience_s = self._request_timeout_s
        self.last_used_s = self._loop.time()
        sent = _InFlight(
            api, version, correlation_id, response_class, future, patience_s, self.last_used_s + patience_s
        )
        self._awaited.append(sent)
        deadline_s = time.monotonic() + min(patience_s, math.inf if timeout_s is None else timeout_s)
        self._unsent.extend(parts)
        try:
            self._send_to(connected)
            while not self._unsent:
                if not poller.poll(max(deadline_s - time.monotonic(), 0.0) * 1000):
                    return future
                frames = self._reader.read(connected)
                if frames is None:
                    raise self._lost("closed by the broker")
                if frames:
                    response: ResponseT = self._read_answer(sent, frames[0])
                    self._awaited.popleft()
                    return response
        except (OSError, FrameError) as error:
            problem = self._lost(_reason(error)) if isinstance(error, OSError) else self._not_kafka()
            self.end_lent(problem)
        except ClientError as error:
            self.end_lent(error)
        return future

    def end_lent(self, error: ClientError | None = None) -> None:
        """Close a lent connection; called by the thread that uses it."""
        connected = self._socket
        try:
            self._loop.call_soon_threadsafe(self._take_back_and_close, error)
        except RuntimeError:
            if connected is not None:
                connected.close()  # the loop is closed, so nobody is waiting any more

    def _take_back_and_close(self, error: ClientError | None) -> None:
        self.take_back()
        self.close(error)

    def take_back(self) -> None:
        """Watch a lent connection again: the loop takes over its pending requests. Called on the loop."""
        if self._poller is None or self._socket is None:
            return
        self._poller = None
        self._loop.add_reader(self._socket, self._on_readable)
        if self._unsent:
            self._loop.add_writer(self._socket, self._on_writable)
        if self._awaited:
            self._start_timer(min(sent.deadline_s for sent in self._awaited))

    def interrupt(self) -> None:
        """Close a lent connection that a thread is using; the thread notices and lets the loop clean up."""
        if self._socket is not None:
            with suppress(OSError):  # the broker may have closed it before
                self._socket.shutdown(socket.SHUT_RDWR)

    # Receiving

    def _on_readable(self) -> None:
        """Receive until there is nothing more. uvloop reports a reset connection only once, so unread bytes could hide
        its end forever.
        """
        for _ in range(_RECEIVES_AT_ONCE):
            if self._socket is None:
                return
            try:
                frames = self._reader.read(self._socket)
            except BlockingIOError:
                return
            except OSError as error:
                self.close(self._lost(_reason(error)))
                return
            except FrameError:
                self.close(self._not_kafka())
                return
            if frames is None:
                self.close(self._lost("closed by the broker"))
                return
            for frame in frames:
                self._answer(frame)
        self._loop.call_soon(self._on_readable)  # let others have their turn

    def _answer(self, frame: bytearray | memoryview) -> None:
        if self._socket is None:
            return
        sent = self._awaited[0] if self._awaited else None
        try:
            response: object = self._read_answer(sent, frame)
        except InvalidResponseError as error:
            self.close(error)
            return
        assert sent is not None  # a response without a request is invalid
        self._awaited.popleft()
        self.last_used_s = self._loop.time()
        if not sent.future.done():
            sent.future.set_result(response)

    def _read_answer(self, sent: _InFlight | None, frame: bytearray | memoryview) -> Any:
        """The response to the oldest request; raises InvalidResponseError."""
        (correlation_id,) = _SIZE.unpack_from(frame)
        if sent is None or correlation_id != sent.correlation_id:
            expected = "none" if sent is None else str(sent.correlation_id)
            raise InvalidResponseError(
                f"broker at {self.address} answered request {correlation_id} where {expected} was next"
            )
        try:
            _, position = decode_response_header(sent.api, sent.version, frame)
            return decode(sent.response_class, frame, _answered_version(sent, frame, position), position)
        except ProtocolError as error:
            raise InvalidResponseError(
                f"broker at {self.address} sent an answer to {sent.api.name} that can't be read: {error}"
            ) from error

    # Timeouts

    def _start_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self._loop.call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._awaited:
            return
        # One timer for all requests: usually the request it was set for has been answered by now.
        due = min(self._awaited, key=lambda sent: sent.deadline_s)
        if due.deadline_s > self._loop.time():
            self._start_timer(due.deadline_s)
            return
        self.close(
            RequestTimeoutError(
                f"broker at {self.address} did not answer {due.api.name} within {due.timeout_s:g} s; is it overloaded?"
            )
        )

    def _lost(self, reason: str) -> ConnectionLostError:
        return ConnectionLostError(f"lost the connection to the broker at {self.address}: {reason}")

    def _not_kafka(self) -> InvalidResponseError:
        return InvalidResponseError(f"the server at {self.address} does not speak plaintext Kafka; check host and port")


def _answered_version(sent: _InFlight, frame: bytearray | memoryview, position: int) -> int:
    """A broker that finds our ApiVersions too new answers in version 0, which only its error code reveals."""
    if sent.api.key == API_VERSIONS.key and len(frame) >= position + _ERROR_CODE.size:
        (code,) = _ERROR_CODE.unpack_from(frame, position)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            return 0
    return sent.version


async def _connect(
    address: Address, timeout_s: float, send_buffer_bytes: int, receive_buffer_bytes: int
) -> socket.socket:
    try:
        async with asyncio.timeout(timeout_s):
            found = await _resolve(address)
            first_error: OSError | None = None
            for family, kind, protocol, _, target in found:
                try:
                    return await _connect_to(family, kind, protocol, target, send_buffer_bytes, receive_buffer_bytes)
                except OSError as error:
                    first_error = first_error or error
            raise first_error or OSError("the host has no address")
    except socket.gaierror as error:
        raise ConnectError(f"cannot reach broker at {address}: the host name is unknown ({error.strerror})") from error
    except TimeoutError as error:
        raise ConnectError(
            f"cannot reach broker at {address}: no answer within {timeout_s:g} s - is the host right?"
        ) from error
    except ConnectionRefusedError as error:
        raise ConnectError(
            f"cannot reach broker at {address}: connection refused - is it running? start one with 'tidelog serve'"
        ) from error
    except OSError as error:
        raise ConnectError(f"cannot reach broker at {address}: {_reason(error)}") from error


async def _resolve(address: Address) -> list[Any]:
    return await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)


async def _connect_to(
    family: int, kind: int, protocol: int, target: Any, send_buffer_bytes: int, receive_buffer_bytes: int
) -> socket.socket:
    connected = socket.socket(family, kind, protocol)
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if send_buffer_bytes >= 0:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if receive_buffer_bytes >= 0:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        prevent_pacing_on_loopback(connected, target[0])
        await asyncio.get_running_loop().sock_connect(connected, target)
        stop_pacing_on_loopback(connected, target[0])
    except BaseException:
        connected.close()
        raise
    return connected


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
