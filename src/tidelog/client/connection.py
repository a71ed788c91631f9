"""One connection to one broker: framing, version negotiation, and matching answers to requests.

What always holds: a request goes out in the highest version that both sides know; brokers answer in the order of the
requests, and an answer that does not fit its request closes the connection; after any failure the connection is closed
and stays so. It does not retry and knows nothing of topics: that is `tidelog.client.cluster`.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidelog import __version__
from tidelog.client.address import Address
from tidelog.client.errors import (
    ConnectError,
    ConnectionLostError,
    InvalidResponseError,
    RequestTimeoutError,
    UnsupportedVersionError,
    error_code,
)
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

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0  # Kafka's request.timeout.ms
RESPONSE_BYTES_MAX = 256 * 1024 * 1024  # no answer we ask for comes near; a larger size means another protocol
CLIENT_SOFTWARE_NAME = "tidelog"

_SIZE = struct.Struct(">i")  # of a frame; a response's correlation id has the same form
_ERROR_CODE = struct.Struct(">h")
_SENDMSG_PARTS_MAX = 512  # below IOV_MAX everywhere

ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class InFlight(Generic[ResponseT]):
    """A request that was sent; give it to `receive` for its answer."""

    api: Api
    version: int
    correlation_id: int
    response_class: type[ResponseT]


class Connection:
    """A connected socket that has negotiated versions.

    `request` sends and waits; `send` and `receive` apart let several requests be under way at once.
    """

    def __init__(
        self,
        address: Address,
        *,
        client_id: str = CLIENT_SOFTWARE_NAME,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._request_timeout_s = request_timeout_s
        self._next_correlation_id = 0
        self._awaited: deque[int] = deque()
        self._frames: dict[int, bytearray] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket: socket.socket | None = _connect(address, connect_timeout_s)
        try:
            self._negotiate(connect_timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def in_flight(self) -> int:
        return len(self._awaited)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._awaited.clear()

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

    def request(
        self,
        api: Api,
        message: object,
        response_class: type[ResponseT],
        *,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> ResponseT:
        return self.receive(self.send(api, message, response_class, version=version), timeout_s=timeout_s)

    def send(
        self, api: Api, message: object, response_class: type[ResponseT], *, version: int | None = None
    ) -> InFlight[ResponseT]:
        """Send without waiting for the answer."""
        if version is None:
            version = self.version_for(api)
        sent = self._send(api, version, message, response_class)
        self._awaited.append(sent.correlation_id)
        return sent

    def send_unanswered(self, api: Api, message: object, *, version: int | None = None) -> None:
        """Send a request that the broker does not answer: a produce with acks=0."""
        self._send(api, self.version_for(api) if version is None else version, message, type(None))

    def receive(self, sent: InFlight[ResponseT], *, timeout_s: float | None = None) -> ResponseT:
        """The answer to this request; answers to earlier ones that arrive on the way are kept for their askers."""
        while (frame := self._frames.pop(sent.correlation_id, None)) is None:
            self._receive_next(timeout_s or self._request_timeout_s, sent.api.name)
        try:
            _, position = decode_response_header(sent.api, sent.version, frame)
            return decode(sent.response_class, frame, _answered_version(sent, frame, position), position)
        except ProtocolError as error:
            self.close()
            raise InvalidResponseError(
                f"broker at {self.address} sent an answer to {sent.api.name} that can't be read: {error}"
            ) from error

    def _common_versions(self, api: Api) -> tuple[int, int] | None:
        broker = self._versions.get(api.key)
        if broker is None:
            return None
        low, high = max(api.versions[0], broker[0]), min(api.versions[1], broker[1])
        return (low, high) if low <= high else None

    def _negotiate(self, timeout_s: float) -> None:
        """Ask for the broker's versions with our newest request; an older broker answers 35 and its own range."""
        request = ApiVersionsRequest(client_software_name=CLIENT_SOFTWARE_NAME, client_software_version=__version__)
        version = API_VERSIONS.versions[1]
        while True:
            sent = self._send(API_VERSIONS, version, request, ApiVersionsResponse)
            self._awaited.append(sent.correlation_id)
            response = self.receive(sent, timeout_s=timeout_s)
            ranges = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
            code = error_code(response.error_code)
            if code is ErrorCode.NONE:
                self._versions = ranges
                return
            # A broker that lists nothing with its refusal still knows version 0.
            fallback = ranges.get(API_VERSIONS.key, (0, 0))[1]
            if code is not ErrorCode.UNSUPPORTED_VERSION or not 0 <= fallback < version:
                raise UnsupportedVersionError(
                    f"broker at {self.address} refused to tell its versions: {code.description} ({code.name})"
                )
            version = fallback

    def _send(self, api: Api, version: int, message: object, response_class: type[ResponseT]) -> InFlight[ResponseT]:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        header = encode_request_header(
            RequestHeader(
                api_key=api.key, api_version=version, correlation_id=correlation_id, client_id=self._client_id
            )
        )
        parts: list[memoryview] = [memoryview(header)]
        for part in encode_parts(message, version):
            if not isinstance(part, (bytes, bytearray, memoryview)):
                raise TypeError("a client sends records from memory, not from a file")
            parts.append(memoryview(part).cast("B"))
        parts.insert(0, memoryview(_SIZE.pack(sum(len(part) for part in parts))))
        self._send_all(parts)
        return InFlight(api, version, correlation_id, response_class)

    def _send_all(self, parts: list[memoryview]) -> None:
        open_socket = self._require_socket()
        open_socket.settimeout(self._request_timeout_s)
        try:
            while parts:
                sent = open_socket.sendmsg(parts[:_SENDMSG_PARTS_MAX])
                while parts and sent >= len(parts[0]):
                    sent -= len(parts[0])
                    del parts[0]
                if sent:
                    parts[0] = parts[0][sent:]
        except TimeoutError as error:
            self.close()
            raise RequestTimeoutError(
                f"broker at {self.address} took no data for {self._request_timeout_s:g} s; is it overloaded?"
            ) from error
        except OSError as error:
            raise self._lost(error) from error

    def _receive_next(self, timeout_s: float, api_name: str) -> None:
        frame = self._receive_frame(timeout_s, api_name)
        expected = self._awaited.popleft() if self._awaited else None
        (correlation_id,) = _SIZE.unpack_from(frame)
        if correlation_id != expected:
            self.close()
            raise InvalidResponseError(
                f"broker at {self.address} answered request {correlation_id} where {expected} was next"
            )
        self._frames[correlation_id] = frame

    def _receive_frame(self, timeout_s: float, api_name: str) -> bytearray:
        deadline = time.monotonic() + timeout_s
        try:
            size = _SIZE.unpack(self._receive_exactly(_SIZE.size, deadline))[0]
            if not _SIZE.size <= size <= RESPONSE_BYTES_MAX:
                self.close()
                raise InvalidResponseError(
                    f"what listens at {self.address} does not speak Kafka's protocol in plain text; check host and port"
                )
            return self._receive_exactly(size, deadline)
        except TimeoutError as error:
            self.close()
            raise RequestTimeoutError(
                f"broker at {self.address} did not answer {api_name} within {timeout_s:g} s; is it overloaded?"
            ) from error
        except OSError as error:
            raise self._lost(error) from error

    def _receive_exactly(self, size: int, deadline: float) -> bytearray:
        open_socket = self._require_socket()
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            open_socket.settimeout(remaining_s)
            received = open_socket.recv_into(view)
            if not received:
                raise self._lost(None)
            view = view[received:]
        return buffer

    def _require_socket(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLostError(f"the connection to the broker at {self.address} is closed")
        return self._socket

    def _lost(self, error: OSError | None) -> ConnectionLostError:
        self.close()
        reason = _reason(error) if error is not None else "closed by the broker"
        return ConnectionLostError(f"lost the connection to the broker at {self.address}: {reason}")


def _answered_version(sent: InFlight[ResponseT], frame: bytearray, position: int) -> int:
    """A broker that finds our ApiVersions too new answers in version 0, which only its error code tells."""
    if sent.api.key == API_VERSIONS.key and len(frame) >= position + _ERROR_CODE.size:
        (code,) = _ERROR_CODE.unpack_from(frame, position)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            return 0
    return sent.version


def _connect(address: Address, timeout_s: float) -> socket.socket:
    try:
        connected = socket.create_connection((address.host, address.port), timeout=timeout_s)
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
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()
