"""Envelope: a broker passes a client's request on to the controller (KIP-590).

Tidelog's brokers add the metadata's revision to the answer, so that the one that passed the request on can wait until
it knows of the change itself. They give each request an id, so that one which is sent again is not carried out twice.
"""

from __future__ import annotations

from typing import Final

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, v
from tidelog.protocol.types import Bytes, Int16, Int64, Uuid

ENVELOPE = Api(58, versions="0", flexible="0+")

METADATA_REVISION_TAG: Final = 10_000
"""Kafka counts tags from 0, so that it never comes near."""

REQUEST_ID_TAG: Final = 10_000
"""Of requests, which number their tags for themselves."""


@request(ENVELOPE)
class EnvelopeRequest:
    request_data: Bytes = b""
    request_principal: Bytes | None = b""
    client_host_address: Bytes = b""
    request_id: Uuid = v(default=ZERO_UUID, tag=REQUEST_ID_TAG)


@response(ENVELOPE)
class EnvelopeResponse:
    response_data: Bytes | None = None
    error_code: Int16 = 0
    metadata_revision: Int64 = v(default=-1, tag=METADATA_REVISION_TAG)
