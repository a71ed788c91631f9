"""Sends Fetch requests for the consumer and the Spark source, according to a consumer's settings."""

from __future__ import annotations

from tidelog.client.consumer.fetch_session import SessionRequest
from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.network.connection import Connection
from tidelog.protocol.messages.k01_fetch import FETCH, FetchRequest, FetchResponse

_TOPIC_IDS_FROM = 13


async def send_fetch(
    connection: Connection, settings: ConsumerSettings, request: SessionRequest, max_bytes: int, *, rack_id: str = ""
) -> FetchResponse:
    """Send one fetch and wait for its response, allowing for the time the broker may wait for records.

    A leader that knows the client's rack may name another replica to read from, and send no records (KIP-392).
    """
    message = FetchRequest(
        max_wait_ms=settings.fetch_max_wait_ms,
        min_bytes=settings.fetch_min_bytes,
        max_bytes=max_bytes,
        isolation_level=1 if settings.is_read_committed else 0,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=request.topics,
        forgotten_topics_data=request.forgotten,
        rack_id=rack_id,
    )
    return await connection.request(
        FETCH,
        message,
        FetchResponse,
        version=connection.version_for(FETCH, at_most=None if request.has_topic_ids else _TOPIC_IDS_FROM - 1),
        timeout_s=settings.cluster.request_timeout_s + settings.fetch_max_wait_ms / 1000,
    )
