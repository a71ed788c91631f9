"""A connection ends every request with an answer or an error, whatever its peer does."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidelog.client.address import Address
from tidelog.client.errors import (
    ClientError,
    ConnectError,
    ConnectionLostError,
    InvalidResponseError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from tidelog.client.network.connection import Connection
from tidelog.common.event_loop import new_event_loop
from tidelog.protocol import ErrorCode, encode
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersion, ApiVersionsResponse

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def api_versions(correlation_id: int, *, code: int = 0, version: int = 3, newest: int = 4) -> bytes:
    rows = [
        ApiVersion(api_key=18, min_version=0, max_version=newest),
        ApiVersion(api_key=3, min_version=0, max_version=12),
    ]
    body = encode(ApiVersionsResponse(error_code=code, api_keys=rows), version)
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def metadata(correlation_id: int) -> bytes:
    body = encode(MetadataResponse(), 12)
    return struct.pack(">iib", len(body) + 5, correlation_id, 0) + body


async def read_request(reader: asyncio.StreamReader) -> tuple[int, int, int]:
    """Key, version and correlation id of the next request."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    key, version, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
    return key, version, correlation_id


@asynccontextmanager
async def peer(behave: Peer, *, negotiates: bool = True) -> Any:
    """A listener that answers ApiVersions and then behaves as the test wants."""
    ended: list[BaseException] = []

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if negotiates:
                _, version, correlation_id = await read_request(reader)
                writer.write(api_versions(correlation_id, version=version))
            await behave(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            ended.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    async with server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])


async def ask(connection: Connection, **options: Any) -> MetadataResponse:
    return await connection.request(METADATA, MetadataRequest(topics=[]), MetadataResponse, **options)


def run(test: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    # The loop that clients run on, which differs from asyncio's in what it tells of connections that were reset.
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(bounded())


def test_answers_come_in_the_order_of_the_requests() -> None:
    async def test() -> None:
        async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ids = [(await read_request(reader))[2] for _ in range(3)]
            for correlation_id in ids:
                writer.write(metadata(correlation_id))
            await reader.read()

        async with peer(answer_late) as address:
            connection = await Connection.open(address)
            futures = [connection.send(METADATA, MetadataRequest(topics=[]), MetadataResponse) for _ in range(3)]
            assert connection.in_flight == 3
            order: list[asyncio.Future[MetadataResponse]] = []
            for future in futures:
                future.add_done_callback(order.append)
            await asyncio.gather(*futures)
            assert order == futures
            assert connection.in_flight == 0
            connection.close()

    run(test())


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", ConnectionLostError),
        (b"\x00\x00", ConnectionLostError),
        (metadata(1)[:-1], ConnectionLostError),
        (metadata(7), InvalidResponseError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", InvalidResponseError),
        (struct.pack(">iib", 5, 1, 0), InvalidResponseError),
        (metadata(1)[:4] + metadata(1)[4:9] + b"\xff" * (len(metadata(1)) - 9), InvalidResponseError),
    ],
    ids=["closed", "half a size", "half an answer", "wrong id", "http", "no body", "garbage"],
)
def test_a_bad_answer_fails_what_waits_and_closes(sent: bytes, error: type[ClientError]) -> None:
    async def test() -> None:
        async def misbehave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            await read_request(reader)
            writer.write(sent)
            await writer.drain()

        async with peer(misbehave) as address:
            connection = await Connection.open(address)
            futures = [connection.send(METADATA, MetadataRequest(topics=[]), MetadataResponse) for _ in range(2)]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            assert isinstance(outcomes[0], error)
            assert all(isinstance(outcome, ClientError) for outcome in outcomes)
            assert not connection.is_open
            with pytest.raises(ConnectionLostError):
                await ask(connection)

    run(test())


def test_an_answer_and_a_reset_that_arrive_together_are_both_noticed() -> None:
    sent_all, has_reset = threading.Event(), threading.Event()

    def receive(connected: socket.socket) -> tuple[int, int]:
        size = struct.unpack(">i", connected.recv(4, socket.MSG_WAITALL))[0]
        _, version, correlation_id = struct.unpack_from(">hhi", connected.recv(size, socket.MSG_WAITALL))
        return version, correlation_id

    def answer_and_reset(listener: socket.socket) -> None:
        connected, _ = listener.accept()
        version, correlation_id = receive(connected)
        connected.sendall(api_versions(correlation_id, version=version))
        ids = [receive(connected)[1] for _ in range(2)]
        sent_all.wait(20)
        connected.sendall(metadata(ids[0]))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connected.close()
        has_reset.set()

    async def test(address: Address) -> None:
        connection = await Connection.open(address)
        futures = [connection.send(METADATA, MetadataRequest(topics=[]), MetadataResponse) for _ in range(2)]
        # The loop stands still meanwhile, so that it meets the answer and the end at once.
        sent_all.set()
        has_reset.wait(20)
        async with asyncio.timeout(10):
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(outcomes[0], MetadataResponse)
        assert isinstance(outcomes[1], ConnectionLostError)
        assert not connection.is_open

    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = threading.Thread(target=answer_and_reset, args=(listener,))
        broker.start()
        run(test(Address("127.0.0.1", listener.getsockname()[1])))
        broker.join(20)


def test_silence_is_an_error_after_the_time_given_and_closes() -> None:
    async def test() -> None:
        async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with peer(stay_silent) as address:
            connection = await Connection.open(address)
            patient = connection.send(METADATA, MetadataRequest(topics=[]), MetadataResponse, timeout_s=20)
            with pytest.raises(RequestTimeoutError, match=r"did not answer Metadata within 0.05 s"):
                await ask(connection, timeout_s=0.05)
            # Answers come in order: what waits behind a silent request can't be answered either.
            with pytest.raises(RequestTimeoutError):
                await patient
            assert not connection.is_open

    run(test())


def test_whoever_gives_up_does_not_disturb_the_others() -> None:
    async def test() -> None:
        go_on = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ids = [(await read_request(reader))[2] for _ in range(2)]
            await go_on.wait()
            writer.write(b"".join(metadata(correlation_id) for correlation_id in ids))
            await reader.read()

        async with peer(answer) as address:
            connection = await Connection.open(address)
            first = connection.send(METADATA, MetadataRequest(topics=[]), MetadataResponse)
            second = connection.send(METADATA, MetadataRequest(topics=[]), MetadataResponse)
            first.cancel()
            go_on.set()
            await second
            assert connection.is_open
            connection.close()

    run(test())


def test_an_old_broker_is_asked_again_in_its_own_version() -> None:
    asked: list[int] = []

    async def test() -> None:
        async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                _, version, correlation_id = await read_request(reader)
                asked.append(version)
                if version > 2:
                    writer.write(api_versions(correlation_id, code=ErrorCode.UNSUPPORTED_VERSION, version=0, newest=2))
                else:
                    writer.write(api_versions(correlation_id, version=version))

        async with peer(old, negotiates=False) as address:
            connection = await Connection.open(address)
            assert connection.version_for(METADATA) == 12
            assert connection.version_for(METADATA, at_most=5) == 5
            connection.close()

    run(test())
    assert asked == [API_VERSIONS.versions[1], 2]


def test_a_request_that_the_broker_does_not_offer_is_named() -> None:
    async def test() -> None:
        async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with peer(idle) as address:
            connection = await Connection.open(address)
            from tidelog.protocol.messages.k00_produce import PRODUCE

            assert not connection.supports(PRODUCE)
            with pytest.raises(UnsupportedVersionError, match="offers no version of Produce"):
                connection.version_for(PRODUCE)
            connection.close()

    run(test())


def test_nobody_listens() -> None:
    async def test() -> None:
        with pytest.raises(ConnectError, match="connection refused"):
            await Connection.open(Address("127.0.0.1", 1))
        with pytest.raises(ConnectError, match="host name is unknown"):
            await Connection.open(Address("no-such-host.invalid", 9092))

    run(test())


def test_a_peer_that_accepts_and_says_nothing() -> None:
    async def test() -> None:
        async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with peer(stay_silent, negotiates=False) as address:
            with pytest.raises(RequestTimeoutError):
                await Connection.open(address, connect_timeout_s=0.05)

    run(test())


def test_requests_larger_than_the_socket_takes_arrive_whole() -> None:
    async def test() -> None:
        sizes: list[int] = []

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(3):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                sizes.append(size)
                writer.write(metadata(struct.unpack_from(">hhi", frame)[2]))
            await reader.read()

        async with peer(slow) as address:
            connection = await Connection.open(address, send_buffer_bytes=8192)
            request = MetadataRequest(topics=[])
            from tidelog.protocol.messages.k03_metadata import MetadataRequestTopic

            request.topics = [MetadataRequestTopic(name="t" * 20_000) for _ in range(100)]
            futures = [connection.send(METADATA, request, MetadataResponse) for _ in range(3)]
            assert connection.unsent_bytes > 0
            await asyncio.gather(*futures)
            assert connection.unsent_bytes == 0
            connection.close()
        assert len(set(sizes)) == 1
        assert sizes[0] > 2_000_000

    run(test())
