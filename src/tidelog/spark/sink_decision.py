"""The decision about which attempts count, stored as a committed offset of the sink's own group.

The offset is the version (the batch id) plus one, and its metadata names the winners. The driver writes it in a
transaction whose transactional id is the group's name; taking over that id fences every other driver of the same query.

What always holds: a version is decided once; once a driver holds the id and has read the decision, no earlier holder
can write another one. Brokers limit the size of metadata, so a long decision continues in additional groups, written in
the same transaction. This module doesn't end the transactions of tasks.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client.errors import BrokerError, ClientError
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.offset_requests import NAMES_UP_TO, STABLE_FROM, build_offset_fetch
from tidelog.client.network.routing import Coordinator, KeyType
from tidelog.client.producer.coordinator_asking import ask_coordinator
from tidelog.client.producer.foreign_transactions import (
    adds_partitions_itself,
    fence,
    gather_all,
)
from tidelog.client.producer.handover import HandedOver
from tidelog.client.producer.transaction_requests import (
    Asker,
    add_offsets,
    commit_offsets,
    end_transaction,
)
from tidelog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchResponse,
)
from tidelog.spark.sink_identity import NAME_BYTES, TaskName, WriteIdentity

NOTHING_DECIDED = -1  # the version of a record that only lists deposed runs
_FORMAT = 1
_METADATA_BYTES_MAX = 4000  # brokers accept 4096 by default, offset.metadata.max.bytes
_CHUNK_BYTES = _METADATA_BYTES_MAX * 3 // 4 - 3  # before encoding as base64
_DEPOSED_MAX = 64
_TRANSACTION_TIMEOUT_MS = 60_000  # of the driver's own transaction, which is open only for two requests


class Winner(NamedTuple):
    """The attempt that counts for a partition of the batch."""

    partition: int
    name: TaskName
    producer_id: int
    producer_epoch: int

    def transaction(self, base: str, coordinator_id: int | None = None) -> HandedOver:
        return HandedOver(self.name.of(base), self.producer_id, self.producer_epoch, coordinator_id)


@dataclass(frozen=True, slots=True)
class Decision:
    """Which attempts count for a version."""

    version: int
    topic: str  # one of the topics written to, because an offset must belong to a topic
    run: str
    write_id: str = ""
    winners: Sequence[Winner] = ()
    # Runs, or single writes, whose transactions may have been aborted, so they can no longer win. Latest last.
    deposed: Sequence[str] = field(default=())

    def winner_of(self, partition: int) -> Winner | None:
        return next((winner for winner in self.winners if winner.partition == partition), None)

    def with_deposed(self, runs: Sequence[str]) -> tuple[str, ...]:
        """Its deposed runs plus these, dropping the oldest beyond the limit."""
        return tuple(dict.fromkeys([*self.deposed, *runs]))[-_DEPOSED_MAX:]


def is_second_write(identity: WriteIdentity, decision: Decision) -> bool:
    """Whether the decision is about another write of the same batch, since a run never repeats a batch."""
    return (
        identity.is_implied
        and decision.version == identity.version
        and decision.run == identity.run
        and decision.write_id != identity.write_id
    )


# Encoding


def encode_decision(decision: Decision) -> bytes:
    """Everything except the version and the topic, which are in the committed offset itself."""
    out = bytearray([_FORMAT])
    out += bytes.fromhex(decision.run)
    write_id = bytes.fromhex(decision.write_id)
    out += bytes([len(write_id)]) + write_id
    _put(out, len(decision.deposed))
    for run in decision.deposed:
        out += bytes.fromhex(run)
    workers = list(dict.fromkeys((winner.name.run, winner.name.worker) for winner in decision.winners))
    _put(out, len(workers))
    for run, worker in workers:
        out += bytes.fromhex(run) + bytes.fromhex(worker)
    _put(out, len(decision.winners))
    last_producer_id = 0
    for winner in decision.winners:
        _put(out, workers.index((winner.name.run, winner.name.worker)))
        _put(out, winner.name.number)
        _put(out, winner.partition)
        _put(out, _zigzag(winner.producer_id - last_producer_id))
        _put(out, winner.producer_epoch)
        last_producer_id = winner.producer_id
    return bytes(out)


def decode_decision(version: int, topic: str, data: bytes) -> Decision:
    """The reverse of encode_decision; raises ValueError if the data is not a decision."""
    try:
        return _decode(version, topic, data)
    except (IndexError, struct.error) as error:
        raise ValueError(f"the decision of version {version} is truncated") from error


def _decode(version: int, topic: str, data: bytes) -> Decision:
    if data[0] != _FORMAT:
        raise ValueError(f"the decision of version {version} has unknown format {data[0]}; use a newer tidelog")
    reader = _Reader(data, 1)
    run = reader.name()
    write_id = reader.raw(reader.byte()).hex()
    deposed = [reader.name() for _ in range(reader.number())]
    workers = [(reader.name(), reader.name()) for _ in range(reader.number())]
    winners = []
    producer_id = 0
    for _ in range(reader.number()):
        worker = workers[reader.number()]
        number, partition = reader.number(), reader.number()
        producer_id += _unzigzag(reader.number())
        winners.append(Winner(partition, TaskName(*worker, number), producer_id, reader.number()))
    return Decision(version, topic, run, write_id, tuple(winners), tuple(deposed))


class _Reader:
    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def byte(self) -> int:
        self._position += 1
        return self._data[self._position - 1]

    def raw(self, size: int) -> bytes:
        self._position += size
        if self._position > len(self._data):
            raise IndexError(self._position)
        return self._data[self._position - size : self._position]

    def name(self) -> str:
        return self.raw(NAME_BYTES).hex()

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7


def _put(out: bytearray, number: int) -> None:
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _unzigzag(number: int) -> int:
    return number >> 1 if not number & 1 else -((number + 1) >> 1)


def split_metadata(data: bytes) -> list[str]:
    """The decision as texts small enough for brokers; the first starts with the number of texts."""
    chunks = [data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES)]
    texts = [base64.b64encode(chunk).decode() for chunk in chunks]
    return [f"{len(texts)} {texts[0]}", *texts[1:]]


def _group_names(base: str) -> Iterator[str]:
    yield base
    number = 1
    while True:
        yield f"{base}.{number}"
        number += 1


# Storage on the broker


class DecisionLog:
    """The decisions of one base. Use it only on the event loop of the cluster's connections."""

    def __init__(self, cluster: Cluster, base: str, *, timeout_s: float) -> None:
        self._cluster = cluster
        self._base = base
        self._timeout_s = timeout_s
        self._groups: dict[str, Coordinator] = {}
        self._writer: Asker | None = None
        # The last decision, if it was carried out here and no other driver is known to have taken over since.
        self.mine: Decision | None = None
        self.lists_by_pattern = True  # until a broker turns out not to support it
        self.looked_for_orphans_s = float("-inf")  # time of the last look, by the monotonic clock
        self._transaction_coordinator = Coordinator(cluster, KeyType.TRANSACTIONAL_ID, base)

    async def take_over(self) -> None:
        """Fence every other driver of the same base; a decision they were writing is now either complete or undone."""
        self.mine = None
        producer = await fence(
            self._cluster,
            self._base,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            timeout_s=self._timeout_s,
        )
        self._writer = Asker(self._base, *producer)

    async def read(self, *, stable: bool) -> Decision | None:
        """The last decision. If one is being written, `stable` waits for it; otherwise the previous one is returned.

        After `take_over`, no decision is being written.
        """
        first = await self._fetch(self._base, stable=stable)
        if not first:
            return None
        (topic, _), (offset, _, metadata) = max(first.items(), key=lambda entry: entry[1].offset)
        count, _, text = metadata.partition(" ")
        texts = [text]
        for group, _ in zip(_group_names(self._base), range(int(count)), strict=False):
            if group != self._base:
                texts.append(await self._continuation(group, topic, offset))
        return decode_decision(offset - 1, topic, b"".join(base64.b64decode(text) for text in texts))

    async def _continuation(self, group: str, topic: str, offset: int) -> str:
        for stable in (False, True):
            found = (await self._fetch(group, stable=stable)).get(TopicPartition(topic, 0))
            if found is not None and found.offset == offset:
                return found.metadata
        raise ValueError(f"the decision of version {offset - 1} is incomplete: group {group!r} holds another one")

    async def _fetch(self, group: str, *, stable: bool) -> Mapping[TopicPartition, OffsetAndMetadata]:
        async def ask(connection: Connection) -> Mapping[TopicPartition, OffsetAndMetadata]:
            return await _fetch_offsets(connection, group, stable=stable)

        return await ask_coordinator(self._group(group), self._cluster.settings.retry, ask, timeout_s=self._timeout_s)

    def _group(self, group: str) -> Coordinator:
        return self._groups.setdefault(group, Coordinator(self._cluster, KeyType.GROUP, group))

    async def write(self, decision: Decision) -> None:
        """Write a decision. Raises ProducerFencedError if another driver took over; nothing was written then.

        After any other error, it is unknown whether the decision was written.
        """
        assert self._writer is not None, "take_over comes first"
        writer = self._writer
        self.mine = None
        retry = self._cluster.settings.retry
        texts = split_metadata(encode_decision(decision))
        adds_itself = adds_partitions_itself(await self._cluster.any_connection())
        key = TopicPartition(decision.topic, 0)

        async def put(group: str, text: str) -> None:
            if not adds_itself:
                await ask_coordinator(
                    self._transaction_coordinator,
                    retry,
                    lambda connection: add_offsets(connection, writer, group),
                    timeout_s=self._timeout_s,
                )
            left = {key: OffsetAndMetadata(decision.version + 1, metadata=text)}
            await ask_coordinator(
                self._group(group),
                retry,
                lambda connection: commit_offsets(
                    connection, writer, ConsumerGroupMetadata(group), left, adds_itself=adds_itself
                ),
                timeout_s=self._timeout_s,
            )

        await gather_all(put(group, text) for group, text in zip(_group_names(self._base), texts, strict=False))
        renewed = await ask_coordinator(
            self._transaction_coordinator,
            retry,
            lambda connection: end_transaction(connection, writer, committed=True, adds_itself=adds_itself),
            timeout_s=self._timeout_s,
        )
        if renewed is not None:
            self._writer = Asker(self._base, *renewed)


async def _fetch_offsets(
    connection: Connection, group: str, *, stable: bool
) -> dict[TopicPartition, OffsetAndMetadata]:
    version = connection.version_for(OFFSET_FETCH, at_most=NAMES_UP_TO)
    if version < STABLE_FROM:
        raise ClientError(
            f"broker at {connection.address} can't return stable offsets; exactly-once needs Apache Kafka 2.5 or later"
        )
    request = build_offset_fetch(version, group, None, require_stable=stable)
    response = await connection.request(OFFSET_FETCH, request, OffsetFetchResponse, version=version)
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    rows = [(topic.name, row) for topic in response.topics for row in topic.partitions]
    codes = [response.error_code]
    for answer in response.groups:
        codes.append(answer.error_code)
        rows += [(named.name, row) for named in answer.topics for row in named.partitions]  # type: ignore[misc]
    for code in [*codes, *(row.error_code for _, row in rows)]:
        if code == ErrorCode.GROUP_ID_NOT_FOUND:
            return {}
        if code != ErrorCode.NONE:
            raise BrokerError(ErrorCode(code), subject=f"group {group!r}")
    for topic, row in rows:
        if row.committed_offset >= 0 and row.metadata:
            found[TopicPartition(topic, row.partition_index)] = OffsetAndMetadata(
                row.committed_offset, metadata=row.metadata
            )
    return found
