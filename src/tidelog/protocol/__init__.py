"""Kafka's wire protocol: message declarations, their codecs, headers, and error codes.

Bytes in, messages out, and the reverse; no sockets and no state. Each API's declarations are imported, and each codec
compiled, on first use, so importing this package is cheap.
"""

from __future__ import annotations

from tidelog.protocol.codec import decode, decode_in_steps, encode, encode_in_steps, encode_parts
from tidelog.protocol.declare import Api, Message
from tidelog.protocol.errors import ErrorCode, KafkaError, ProtocolError, TooManyElementsError
from tidelog.protocol.headers import (
    RequestHeader,
    decode_client_id,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    response_header_has_tags,
)
from tidelog.protocol.registry import all_apis, api_by_key, request_class, response_class
from tidelog.protocol.types import RecordsSlice

__all__ = [
    "Api",
    "ErrorCode",
    "KafkaError",
    "Message",
    "ProtocolError",
    "RecordsSlice",
    "RequestHeader",
    "TooManyElementsError",
    "all_apis",
    "api_by_key",
    "decode",
    "decode_client_id",
    "decode_in_steps",
    "decode_request_header",
    "decode_response_header",
    "encode",
    "encode_in_steps",
    "encode_parts",
    "encode_request_header",
    "encode_response_header",
    "request_class",
    "response_class",
    "response_header_has_tags",
]
