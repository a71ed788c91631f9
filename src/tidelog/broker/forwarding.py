"""Requests that only the controller can answer, on their way from any broker to it and back (KIP-590).

What always holds: the bytes of a client's request and of its response pass through unchanged, unless part of the
request is for the broker that was asked, whose handler then passes on a request with the rest; the response reaches the
client after this broker itself knows of the change, as far as that does not take too long, so that a client that goes
on with the same broker sees what it has done. Where no controller is found, the broker's own handler answers, which
knows how its API says NOT_CONTROLLER. A request that has to be sent again, as its answer was lost with the connection,
is carried out once, as long as the controller stays the same.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidelog.broker.answered_once import AnsweredOnce
from tidelog.broker.controller_channel import failure_response, run_handler
from tidelog.broker.registry import find_handler
from tidelog.broker.request_context import ClientSession, RequestContext
from tidelog.common.ids import random_uuid
from tidelog.common.steps import run_with_pauses
from tidelog.protocol import (
    ErrorCode,
    KafkaError,
    ProtocolError,
    RequestHeader,
    decode_client_id,
    decode_in_steps,
    decode_response_header,
    encode_in_steps,
    encode_request_header,
    encode_response_header,
)
from tidelog.protocol.messages.k58_envelope import ENVELOPE, EnvelopeRequest, EnvelopeResponse

if TYPE_CHECKING:
    from tidelog.broker.controller_channel import ControllerChannel
    from tidelog.broker.replica_manager import ReplicaManager
    from tidelog.broker.services import BrokerServices
    from tidelog.controller.cluster_view import ClusterView

logger = logging.getLogger(__name__)

FORWARD_TIMEOUT_S: Final = 60.0
"""How long the controller may take to answer: the longest time-out that clients' requests have by default."""

CATCH_UP_S: Final = 5.0
"""How long a client waits for this broker to hear of its change, after the controller has answered."""

ResponseT = TypeVar("ResponseT")

_FIXED_HEADER = struct.Struct(">hhi")  # api key, api version, correlation id: the same in every header version


class Forwarder:
    """Passes requests on to the controller."""

    def __init__(self, channel: ControllerChannel, cluster: ClusterView, replicas: ReplicaManager) -> None:
        self._channel = channel
        self._cluster = cluster
        self._replicas = replicas
        # What this broker has answered to others, as the controller.
        self.answered = AnsweredOnce()

    async def forward(self, frame: bytes, session: ClientSession) -> bytes | None:
        """The response with its header, None if there is no controller; raises KafkaError."""
        envelope = EnvelopeRequest(
            request_data=frame,
            request_principal=session.principal.encode(),
            client_host_address=_packed_address(session.client_host),
            request_id=random_uuid(),
        )
        try:
            response = await self._channel.call(ENVELOPE, envelope, EnvelopeResponse, timeout_s=FORWARD_TIMEOUT_S)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise
            return None
        if response.error_code or response.response_data is None:
            raise KafkaError(ErrorCode(response.error_code))
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await self._cluster.wait_for_revision(response.metadata_revision)
                await self._replicas.settled()
        except TimeoutError:
            logger.info("answered a request before revision %d was known here", response.metadata_revision)
        return response.response_data

    async def forward_request(
        self, request: object, response_class: type[ResponseT], context: RequestContext
    ) -> ResponseT | None:
        """The answer to a request that a handler has made of its client's; None if there is no controller.

        Raises KafkaError.
        """
        version = context.version
        header = RequestHeader(context.api.key, version, context.correlation_id, context.client_id)
        body: list[Any] = await run_with_pauses(encode_in_steps(request, version))
        response = await self.forward(b"".join([encode_request_header(header), *body]), context.session)
        if response is None:
            return None
        _, offset = decode_response_header(context.api, version, response)
        return await run_with_pauses(decode_in_steps(response_class, memoryview(response), version, offset))


async def answer_envelope(envelope: EnvelopeRequest, services: BrokerServices) -> bytes:
    """The controller's answer to what another broker has passed on; raises KafkaError and ProtocolError."""
    return await services.forwarder.answered.answer(envelope.request_id, lambda: _carry_out(envelope, services))


async def _carry_out(envelope: EnvelopeRequest, services: BrokerServices) -> bytes:
    frame = memoryview(envelope.request_data)
    try:
        api_key, version, correlation_id = _FIXED_HEADER.unpack_from(frame)
    except struct.error as error:
        raise ProtocolError(f"the request in the envelope has no header: {error}") from error
    handler = find_handler(api_key)
    if handler is None or not handler.on_controller:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"API key {api_key} is not for the controller.")
    if not handler.version_min <= version <= handler.last_version(services.settings):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    client_id, offset = decode_client_id(frame, has_tags=version >= handler.request_tags_from)
    request = await run_with_pauses(decode_in_steps(handler.request_class, frame, version, offset))
    session = ClientSession(
        client_host=_address(envelope.client_host_address), principal=(envelope.request_principal or b"").decode()
    )
    context = RequestContext(handler.api, version, services, correlation_id, client_id, session)
    try:
        response = await run_handler(handler, request, context)
    except KafkaError as error:
        response = failure_response(handler, error.code, error.message)
        if response is None:
            raise
    body: list[Any] = await run_with_pauses(encode_in_steps(response, version))
    return b"".join([encode_response_header(handler.api, version, correlation_id), *body])


def _packed_address(host: str) -> bytes:
    """A client's address in the form that Kafka's Envelope has it; empty if it is not known."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, host)
        except OSError:
            continue
    return b""


def _address(packed: bytes) -> str:
    family = {4: socket.AF_INET, 16: socket.AF_INET6}.get(len(packed))
    return "" if family is None else socket.inet_ntop(family, packed)
