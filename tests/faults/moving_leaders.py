"""Two brokers in front of one, which seem to pass the leadership of partitions to and fro.

Each listens on a port of its own and hands requests to the one real broker, as replicas of one log would answer them;
metadata names both. Only the present leader of a partition takes what is meant for it: the other one answers
NOT_LEADER_OR_FOLLOWER, with or without telling who leads now. What always holds: a leader's epoch grows with every
move; what was written before a move is there after it. It runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from tidelog.protocol import (
    Api,
    ErrorCode,
    RequestHeader,
    api_by_key,
    decode,
    decode_request_header,
    decode_response_header,
    encode,
    encode_request_header,
    encode_response_header,
)
from tidelog.protocol.messages import k00_produce as produce
from tidelog.protocol.messages import k01_fetch as fetch
from tidelog.protocol.messages import k02_list_offsets as list_offsets
from tidelog.protocol.messages import k03_metadata as metadata
from tidelog.protocol.messages import k10_find_coordinator as find_coordinator
from tidelog.protocol.messages import k23_offset_for_leader_epoch as leader_epochs

ResponseT = TypeVar("ResponseT")

NODE_IDS = (1, 2)
_REFUSED = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_HOST = "127.0.0.1"


class MovingLeaders:
    """Forwards to `target_port`; the attributes may be set at any time."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.gives_hints = True
        self.refusals = 0
        self.ports: dict[int, int] = {}
        self._leaders: dict[int, int] = defaultdict(lambda: NODE_IDS[0])
        self._epochs: dict[int, int] = defaultdict(lambda: 10)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="moving-leaders", daemon=True)
        self._thread.start()
        self._run(self._listen())

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{_HOST}:{port}" for port in self.ports.values())

    def move(self, partition: int) -> None:
        """Let the other broker lead this partition, of whatever topic."""
        self._epochs[partition] += 1
        self._leaders[partition] = NODE_IDS[1] if self._leaders[partition] == NODE_IDS[0] else NODE_IDS[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, step: Any) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(20)

    async def _listen(self) -> None:
        for node_id in NODE_IDS:
            server = await asyncio.start_server(self._on_connection(node_id), _HOST, 0)
            self._servers.append(server)
            self.ports[node_id] = server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_connection(self, node_id: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                    await _Session(self, node_id, reader, writer).serve()
            finally:
                self._tasks.discard(task)
                writer.close()

        return serve

    def leader(self, partition: int) -> tuple[int, int]:
        """Who leads it, and in which epoch."""
        return self._leaders[partition], self._epochs[partition]


class _Session:
    """One connection of a client to one of the two, and its own connection to the broker behind them."""

    def __init__(
        self, leaders: MovingLeaders, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._leaders = leaders
        self._node_id = node_id
        self._reader = reader
        self._writer = writer
        self._handlers: dict[int, tuple[type, Callable[[Any, RequestHeader], Awaitable[object]]]] = {
            produce.PRODUCE.key: (produce.ProduceRequest, self._produce),
            fetch.FETCH.key: (fetch.FetchRequest, self._fetch),
            list_offsets.LIST_OFFSETS.key: (list_offsets.ListOffsetsRequest, self._list_offsets),
            metadata.METADATA.key: (metadata.MetadataRequest, self._metadata),
            find_coordinator.FIND_COORDINATOR.key: (find_coordinator.FindCoordinatorRequest, self._find_coordinator),
            leader_epochs.OFFSET_FOR_LEADER_EPOCH.key: (
                leader_epochs.OffsetForLeaderEpochRequest,
                self._end_of_epoch,
            ),
        }

    async def serve(self) -> None:
        self._up_reader, self._up_writer = await asyncio.open_connection(_HOST, self._leaders.target_port)
        try:
            while True:
                asked = await _read_frame(self._reader)
                header, offset = decode_request_header(asked)
                handler = self._handlers.get(header.api_key)
                if handler is None:
                    answer = await self._relay(asked)
                else:
                    api = api_by_key(header.api_key)
                    assert api is not None
                    message = await handler[1](decode(handler[0], asked, header.api_version, offset), header)
                    answer = encode_response_header(api, header.api_version, header.correlation_id)
                    answer += encode(message, header.api_version)
                self._writer.write(struct.pack(">i", len(answer)) + answer)
                await self._writer.drain()
        finally:
            self._up_writer.close()

    async def _relay(self, asked: bytes) -> bytes:
        self._up_writer.write(struct.pack(">i", len(asked)) + asked)
        await self._up_writer.drain()
        return await _read_frame(self._up_reader)

    async def _ask(self, api: Api, message: object, response: type[ResponseT], header: RequestHeader) -> ResponseT:
        version = header.api_version
        answer = await self._relay(encode_request_header(header) + encode(message, version))
        _, offset = decode_response_header(api, version, answer)
        return decode(response, answer, version, offset)

    # What depends on who leads; messages are changed as they pass.

    async def _produce(self, request: Any, header: RequestHeader) -> produce.ProduceResponse:
        refused: list[produce.TopicProduceResponse] = []
        for topic in request.topic_data:
            errors = [
                produce.PartitionProduceResponse(
                    index=each.index,
                    error_code=_REFUSED,
                    base_offset=-1,
                    current_leader=produce.LeaderIdAndEpoch(**self._hint(each.index)),
                )
                for each in topic.partition_data
                if not self._leads(each.index)
            ]
            if errors:
                refused.append(
                    produce.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=errors)
                )
                numbers = {each.index for each in errors}
                topic.partition_data = [each for each in topic.partition_data if each.index not in numbers]
        request.topic_data = [topic for topic in request.topic_data if topic.partition_data]
        answered = produce.ProduceResponse()
        if request.topic_data:
            answered = await self._ask(produce.PRODUCE, request, produce.ProduceResponse, header)
        answered.responses = [*answered.responses, *refused]
        answered.node_endpoints = [produce.NodeEndpoint(**each) for each in self._endpoints()]
        return answered

    async def _fetch(self, request: Any, header: RequestHeader) -> fetch.FetchResponse:
        refused: list[fetch.FetchableTopicResponse] = []
        for topic in request.topics:
            errors = [
                fetch.PartitionData(
                    partition_index=each.partition,
                    error_code=_REFUSED,
                    high_watermark=-1,
                    current_leader=fetch.LeaderIdAndEpoch(**self._hint(each.partition)),
                )
                for each in topic.partitions
                if not self._leads(each.partition)
            ]
            if errors:
                refused.append(
                    fetch.FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=errors)
                )
                numbers = {each.partition_index for each in errors}
                topic.partitions = [each for each in topic.partitions if each.partition not in numbers]
            for each in topic.partitions:
                each.current_leader_epoch = -1
        request.topics = [topic for topic in request.topics if topic.partitions]
        # Without a session, as from a broker that has none left, every request names all its partitions.
        request.session_id, request.session_epoch, request.forgotten_topics_data = 0, -1, []
        request.max_wait_ms = 0 if refused else min(request.max_wait_ms, 100)
        answered = fetch.FetchResponse()
        if request.topics:
            answered = await self._ask(fetch.FETCH, request, fetch.FetchResponse, header)
        answered.responses = [*answered.responses, *refused]
        answered.node_endpoints = [fetch.NodeEndpoint(**each) for each in self._endpoints()]
        return answered

    async def _list_offsets(self, request: Any, header: RequestHeader) -> list_offsets.ListOffsetsResponse:
        asked = [each for topic in request.topics for each in topic.partitions]
        strangers = {each.partition_index for each in asked if not self._leads(each.partition_index)}
        for each in asked:
            each.current_leader_epoch = -1
        answered = await self._ask(list_offsets.LIST_OFFSETS, request, list_offsets.ListOffsetsResponse, header)
        for topic in answered.topics:
            for row in topic.partitions:
                if row.partition_index in strangers:
                    self._leaders.refusals += 1
                    row.error_code, row.offset = _REFUSED, -1
        return answered

    async def _end_of_epoch(self, request: Any, header: RequestHeader) -> leader_epochs.OffsetForLeaderEpochResponse:
        asked = [each for topic in request.topics for each in topic.partitions]
        strangers = {each.partition for each in asked if not self._leads(each.partition)}
        for each in asked:
            each.current_leader_epoch = -1
        api, response = leader_epochs.OFFSET_FOR_LEADER_EPOCH, leader_epochs.OffsetForLeaderEpochResponse
        answered = await self._ask(api, request, response, header)
        for topic in answered.topics:
            for row in topic.partitions:
                if row.partition in strangers:
                    self._leaders.refusals += 1
                    row.error_code, row.end_offset = _REFUSED, -1
        return answered

    # Who is there

    async def _metadata(self, request: Any, header: RequestHeader) -> metadata.MetadataResponse:
        answered = await self._ask(metadata.METADATA, request, metadata.MetadataResponse, header)
        for topic in answered.topics:
            for each in topic.partitions:
                each.leader_id, each.leader_epoch = self._leaders.leader(each.partition_index)
                each.replica_nodes = each.isr_nodes = list(NODE_IDS)
        answered.brokers = [metadata.MetadataResponseBroker(**each) for each in self._addresses()]
        answered.controller_id = NODE_IDS[0]
        return answered

    async def _find_coordinator(self, request: Any, header: RequestHeader) -> find_coordinator.FindCoordinatorResponse:
        api, response = find_coordinator.FIND_COORDINATOR, find_coordinator.FindCoordinatorResponse
        answered = await self._ask(api, request, response, header)
        rows: list[Any] = [answered] if header.api_version < 4 else answered.coordinators
        for row in rows:
            row.node_id, row.host, row.port = NODE_IDS[0], _HOST, self._leaders.ports[NODE_IDS[0]]
        return answered

    def _leads(self, partition: int) -> bool:
        return self._leaders.leader(partition)[0] == self._node_id

    def _addresses(self) -> list[dict[str, Any]]:
        return [{"node_id": node_id, "host": _HOST, "port": port} for node_id, port in self._leaders.ports.items()]

    def _hint(self, partition: int) -> dict[str, int]:
        self._leaders.refusals += 1
        leader_id, epoch = self._leaders.leader(partition) if self._leaders.gives_hints else (-1, -1)
        return {"leader_id": leader_id, "leader_epoch": epoch}

    def _endpoints(self) -> list[dict[str, Any]]:
        return self._addresses() if self._leaders.gives_hints else []


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)
