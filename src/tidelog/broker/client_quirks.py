"""Malformed requests that widely used clients send, and what they mean.

What always holds: only the exact bytes that a named client is known to send are treated specially; any other malformed
request still closes its connection.
"""

from __future__ import annotations

from tidelog.protocol.messages.k03_metadata import METADATA

_METADATA_FLEXIBLE_FROM_VERSION = 9
_CLUSTER_OPERATIONS_UP_TO_VERSION = 10
_PLACEHOLDER = bytes(4)


def body_start(api_key: int, version: int, frame: memoryview, offset: int) -> int:
    """Where the request's body really starts.

    librdkafka, up to 2.16 at least, asks for the metadata of all topics with four bytes for the null array where a
    flexible version has one. Apache Kafka reads one of them, takes the rest for flags, and ignores the extra bytes at
    the end; skipping three yields the flags that the client meant.
    """
    if api_key != METADATA.key or version < _METADATA_FLEXIBLE_FROM_VERSION:
        return offset
    flags = 3 if version <= _CLUSTER_OPERATIONS_UP_TO_VERSION else 2
    is_padded = len(frame) - offset == len(_PLACEHOLDER) + flags + 1 and frame[offset : offset + 4] == _PLACEHOLDER
    return offset + 3 if is_padded and frame[-1] == 0 else offset
