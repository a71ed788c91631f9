"""Headers of requests and responses, in the versions that key and version of the request choose."""

from __future__ import annotations

import pytest

from tidelog.protocol import (
    ProtocolError,
    RequestHeader,
    all_apis,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from tidelog.protocol.messages.k03_metadata import METADATA
from tidelog.protocol.messages.k17_sasl_handshake import SASL_HANDSHAKE
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS

CLASSIC = bytes.fromhex("0003 0001 00000007 0003 617070")
FLEXIBLE = bytes.fromhex("0003 000c 00000007 0003 617070 00")


@pytest.mark.parametrize(("data", "version"), [(CLASSIC, 1), (FLEXIBLE, 12)])
def test_request_header(data: bytes, version: int) -> None:
    header = RequestHeader(3, version, 7, "app")
    assert encode_request_header(header) == data
    for buffer in (data + b"body", bytearray(data + b"body"), memoryview(data + b"body")):
        assert decode_request_header(buffer) == (header, len(data))


def test_null_client_id() -> None:
    header = RequestHeader(18, 3, -5, None)
    data = encode_request_header(header)
    assert data == bytes.fromhex("0012 0003 fffffffb ffff 00")
    assert decode_request_header(data) == (header, len(data))


def test_unknown_tags_in_headers_are_skipped() -> None:
    tags = bytes.fromhex("01 09 02 abcd")
    assert decode_request_header(FLEXIBLE[:-1] + tags) == (RequestHeader(3, 12, 7, "app"), len(FLEXIBLE) + 4)
    assert decode_response_header(METADATA, 9, bytes.fromhex("00000007") + tags) == (7, 9)


@pytest.mark.parametrize("key_and_version", [(18, 99), (18, -1), (0, 2), (999, 0), (-1, 0), (4, 0)])
def test_unknown_request_still_has_its_correlation_id(key_and_version: tuple[int, int]) -> None:
    key, version = key_and_version
    data = key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True) + bytes.fromhex("0000002a") + b"whatever"
    assert decode_request_header(data) == (RequestHeader(key, version, 42, None), 8)


@pytest.mark.parametrize("data", [CLASSIC, FLEXIBLE])
def test_truncated_request_header(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_request_header(data[:length])


def test_malformed_request_headers() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        decode_request_header(CLASSIC[:-1] + b"\xff")
    with pytest.raises(ProtocolError, match="tagged field"):
        decode_request_header(FLEXIBLE[:-1] + bytes.fromhex("01 00 ffffffff0f"))
    with pytest.raises(ProtocolError):
        encode_request_header(RequestHeader(3, 99, 7, "app"))
    with pytest.raises(ProtocolError):
        encode_request_header(RequestHeader(3, 1, 7, "a" * 0x8000))


def test_response_header() -> None:
    assert encode_response_header(METADATA, 8, 7) == bytes.fromhex("00000007")
    assert encode_response_header(METADATA, 9, 7) == bytes.fromhex("00000007 00")
    assert encode_response_header(SASL_HANDSHAKE, 1, 7) == bytes.fromhex("00000007")
    assert decode_response_header(METADATA, 8, b"\0\0\0\7rest") == (7, 4)
    with pytest.raises(ProtocolError):
        decode_response_header(METADATA, 9, b"\0\0\0\7")


@pytest.mark.parametrize("version", range(5))
def test_response_header_of_api_versions_never_has_tags(version: int) -> None:
    assert encode_response_header(API_VERSIONS, version, 7) == bytes.fromhex("00000007")
    assert decode_response_header(API_VERSIONS, version, b"\0\0\0\7\0") == (7, 4)


def test_header_follows_from_the_flexible_versions() -> None:
    for api in all_apis():
        for version in range(api.versions.first, api.versions.last + 1):
            data = encode_request_header(RequestHeader(api.key, version, 1, ""))
            assert len(data) == (11 if api.is_flexible(version) else 10)
            assert decode_request_header(data) == (RequestHeader(api.key, version, 1, ""), len(data))
