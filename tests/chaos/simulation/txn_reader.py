"""Reads a topic as a consumer does: committed records only, by the list of aborted transactions, or everything."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator

from simulated_client import Question, SimulatedClient
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.records import ControlRecordType, Record, decode_records, iter_headers, parse_control_record
from txn_ledger import Row

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class TopicReader:
    """All partitions of a topic, from their beginning on."""

    def __init__(
        self, client: SimulatedClient, rng: random.Random, topic: str, partitions: int, isolation_level: int
    ) -> None:
        self._client = client
        self._random = rng
        self._topic = topic
        self._isolation_level = isolation_level
        self._positions = dict.fromkeys(range(partitions), 0)
        # Partitions in which everything was read, and no transaction was open.
        self._ended: set[int] = set()
        self.rows: dict[int, list[Row]] = {partition: [] for partition in range(partitions)}
        self.on_row: Callable[[Row], None] = lambda row: None

    async def read_to_end(self) -> None:
        """Read until nothing is left, once no transaction is open any more."""
        self._ended.clear()
        while len(self._ended) < len(self._positions):
            await self.poll()

    async def poll(self) -> None:
        """Read what there is, or wait a little for more."""
        partitions = [
            FetchPartition(
                partition=index, fetch_offset=offset, partition_max_bytes=self._random.choice((100, 700, 4000))
            )
            for index, offset in self._positions.items()
        ]
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=8000,
            isolation_level=self._isolation_level,
            topics=[FetchTopic(topic=self._topic, partitions=partitions)],
        )
        answer = await self._client.ask(Question(FETCH, request, FetchResponse, 11, _first_error))
        for data in answer.responses[0].partitions:
            self._take(data)

    def _take(self, data: PartitionData) -> None:
        index = data.partition_index
        rows = self.rows[index]
        for record in visible_records(data, self._isolation_level):
            if record.offset >= self._positions[index]:
                assert record.value is not None
                rows.append(Row.decode(record.value))
                self.on_row(rows[-1])
        assert isinstance(data.records, bytes | memoryview | None)
        for _, header in iter_headers(data.records or b"", allow_partial=True):
            self._positions[index] = max(self._positions[index], header.next_offset)
        is_stable = self._isolation_level == READ_UNCOMMITTED or data.last_stable_offset == data.high_watermark
        if is_stable and self._positions[index] == data.high_watermark:
            self._ended.add(index)
        else:
            self._ended.discard(index)


def visible_records(data: PartitionData, isolation_level: int) -> Iterator[Record]:
    """The records of a fetched partition that a consumer hands out."""
    aborted = deque(sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions or ()))
    aborting: set[int] = set()
    contents = data.records or b""
    assert isinstance(contents, bytes | memoryview)
    for position, header in iter_headers(contents, allow_partial=True):
        batch = memoryview(contents)[position : position + header.size_bytes]
        if isolation_level == READ_COMMITTED:
            assert header.last_offset < data.last_stable_offset, "read past the last stable offset"
        while aborted and aborted[0][0] <= header.last_offset:
            aborting.add(aborted.popleft()[1])
        if header.is_control:
            (record,) = decode_records(batch)
            if parse_control_record(record).type is ControlRecordType.ABORT:
                aborting.discard(header.producer_id)
        elif isolation_level == READ_UNCOMMITTED or not header.is_transactional or header.producer_id not in aborting:
            yield from decode_records(batch)


def _first_error(answer: FetchResponse) -> int:
    codes = [data.error_code for topic in answer.responses for data in topic.partitions]
    return answer.error_code or next((code for code in codes if code), 0)
