"""The headers of requests and responses. Every message has one, so they are coded by hand.

A request header is version 2 (with tagged fields) if the request is flexible, else version 1; the client id has the
classic form in both. A response header is version 1 (with tagged fields) if the response is flexible, else version 0.
The header of an ApiVersions response is always version 0, because the client does not know yet what the broker speaks.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tidelog.protocol.declare import Api
from tidelog.protocol.errors import ProtocolError
from tidelog.protocol.registry import api_by_key
from tidelog.protocol.wire import skip_tags

_FIXED: Final = struct.Struct(">hhi")
_FIXED_AND_LENGTH: Final = struct.Struct(">hhih")
_LENGTH: Final = struct.Struct(">h")
_CORRELATION_ID: Final = struct.Struct(">i")
_CORRELATION_ID_NO_TAGS: Final = struct.Struct(">ix")
_API_VERSIONS_KEY: Final = 18


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def decode_request_header(buffer: bytes | bytearray | memoryview) -> tuple[RequestHeader, int]:
    """Return the header and the offset of the body.

    If the API or its version is unknown, only the fields that every header has are read: the client id is None and the
    offset points past the correlation id.
    """
    try:
        api_key, api_version, correlation_id = _FIXED.unpack_from(buffer)
        api = api_by_key(api_key)
        if api is None or not api.supports(api_version):
            return RequestHeader(api_key, api_version, correlation_id), _FIXED.size
    except struct.error as error:
        raise ProtocolError("the request ends inside its header") from error
    client_id, offset = decode_client_id(buffer, has_tags=api.is_flexible(api_version))
    return RequestHeader(api_key, api_version, correlation_id, client_id), offset


def decode_client_id(buffer: bytes | bytearray | memoryview, *, has_tags: bool) -> tuple[str | None, int]:
    """Return the client id and the offset of the body, for a caller that has read the fixed fields itself."""
    try:
        (length,) = _LENGTH.unpack_from(buffer, _FIXED.size)
        offset = _FIXED.size + _LENGTH.size
        client_id = None
        if length >= 0:
            if offset + length > len(buffer):
                raise ProtocolError(f"the client id has {length} bytes, but only {len(buffer) - offset} are left")
            client_id = str(buffer[offset : offset + length], "utf-8")
            offset += length
        if has_tags:
            offset = skip_tags(buffer, offset, len(buffer)) if buffer[offset] else offset + 1
    except (struct.error, IndexError) as error:
        raise ProtocolError("the request ends inside its header") from error
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the client id is not UTF-8: {error}") from error
    return client_id, offset


def encode_request_header(header: RequestHeader) -> bytes:
    api = api_by_key(header.api_key)
    if api is None or not api.supports(header.api_version):
        raise ProtocolError(f"API key {header.api_key} has no version {header.api_version}")
    client_id = b"" if header.client_id is None else header.client_id.encode()
    length = -1 if header.client_id is None else len(client_id)
    tags = b"\x00" if api.is_flexible(header.api_version) else b""
    try:
        fixed = _FIXED_AND_LENGTH.pack(header.api_key, header.api_version, header.correlation_id, length)
    except struct.error as error:
        raise ProtocolError(f"the request header cannot be encoded: {error}") from error
    return fixed + client_id + tags


def encode_response_header(api: Api, version: int, correlation_id: int) -> bytes:
    if response_header_has_tags(api, version):
        return _CORRELATION_ID_NO_TAGS.pack(correlation_id)
    return _CORRELATION_ID.pack(correlation_id)


def decode_response_header(api: Api, version: int, buffer: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Return the correlation id and the offset of the body."""
    try:
        correlation_id: int = _CORRELATION_ID.unpack_from(buffer)[0]
        offset = _CORRELATION_ID.size
        if response_header_has_tags(api, version):
            offset = skip_tags(buffer, offset, len(buffer))
    except (struct.error, IndexError) as error:
        raise ProtocolError("the response ends inside its header") from error
    return correlation_id, offset


def response_header_has_tags(api: Api, version: int) -> bool:
    return api.key != _API_VERSIONS_KEY and api.is_flexible(version)
