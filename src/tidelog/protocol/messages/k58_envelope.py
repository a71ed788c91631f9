"""Envelope: a broker passes a client's request on to the controller (KIP-590).

Tidelog's brokers add the metadata's revision to the answer, so that the one that passed the request on can wait until
it knows of the change itself.
"""

from __future__ import annotations

from typing import Final

from tidelog.protocol.declare import Api, request, response, v
from tidelog.protocol.types import Bytes, Int16, Int64

ENVELOPE = Api(58, versions="0", flexible="0+")

METADATA_REVISION_TAG: Final = 10_000
"""Kafka counts tags from 0, so that it never comes near."""


@request(ENVELOPE)
class EnvelopeRequest:
    request_data: Bytes = b""
    request_principal: Bytes | None = b""
    client_host_address: Bytes = b""


@response(ENVELOPE)
class EnvelopeResponse:
    response_data: Bytes | None = None
    error_code: Int16 = 0
    metadata_revision: Int64 = v(default=-1, tag=METADATA_REVISION_TAG)
