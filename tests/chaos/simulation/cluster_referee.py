"""Watches all brokers of a simulated cluster from outside, and notes when one breaks a rule of replication.

What always holds: it changes nothing, and it looks at every step of a high watermark, every append of a leader, every
write to the metadata store and every image when they happen, so that a wrong moment is not missed because it was short.
What it finds ends the run, not the broker. What the partitions' states are, it takes from the store itself: brokers may
not have heard of it yet.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from cluster_invariants import Invariant, Violations
from simulated_broker import SimulatedBroker
from simulated_loop import Process, SimulatedLoop
from simulated_store import Ensemble
from tidelog.broker.partition import Partition
from tidelog.broker.producer_ids import ProducerIdAllocator
from tidelog.controller import layout
from tidelog.controller.cluster_view import ClusterView
from tidelog.controller.image import PartitionState
from tidelog.log import PartitionLog
from tidelog.metadata.store import Op, Put
from tidelog.records import iter_headers

Place = tuple[str, int]
"""A topic and a partition of it."""

Batch = tuple[int, int, int]
"""Where a batch ends, the epoch of the leader that wrote it, and the checksum of its bytes as they are in this log.

The checksum that the batch holds itself would not show that its records are torn.
"""

_READ_BYTES = 1 << 20
_CONTROLLERS_OWN = (layout.TOPICS, layout.PARTITIONS, layout.BROKERS, layout.PRODUCER_IDS, layout.BROKER_CONFIGS)


class Referee:
    """What every replica must agree on, as far as it was ever committed."""

    def __init__(
        self,
        loop: SimulatedLoop,
        violations: Violations,
        ensemble: Ensemble,
        brokers: Mapping[int, SimulatedBroker],
    ) -> None:
        """`brokers` may still be empty."""
        self.high_watermarks = 0
        # The states of all partitions, by topic, as they are in the store.
        self.states: dict[str, list[PartitionState]] = {}
        self._loop = loop
        self._violations = violations
        self._brokers = brokers
        self._committed: dict[Place, dict[int, Batch]] = {}
        self._committed_ends: dict[Place, int] = {}
        self._leaders: dict[tuple[str, int, int], Process] = {}
        self._producer_ids: set[int] = set()
        self._names: dict[uuid.UUID, str] = {}
        self._elected_host = ""
        ensemble.observers.append(self._on_written)

    @contextmanager
    def installed(self) -> Iterator[None]:
        advance = PartitionLog.advance_high_watermark
        append = Partition.append
        write_marker = Partition.write_txn_marker
        publish = ClusterView.publish
        allocate = ProducerIdAllocator.allocate

        def watched_advance(log: PartitionLog, offset: int) -> None:
            before = log.high_watermark
            advance(log, offset)
            if log.high_watermark > before and self._loop.current.is_alive:
                self._on_committed(log, before)
                self.check_members(log.topic, log.partition)

        def watched_append(partition: Partition, *args: Any, **kwargs: Any) -> Any:
            result = append(partition, *args, **kwargs)
            self._on_led(partition)
            return result

        def watched_marker(partition: Partition, *args: Any, **kwargs: Any) -> Any:
            result = write_marker(partition, *args, **kwargs)
            self._on_led(partition)
            return result

        def watched_publish(view: ClusterView, *args: Any, **kwargs: Any) -> None:
            before = view.image.revision
            publish(view, *args, **kwargs)
            if view.image.revision < before:
                self._note(
                    Invariant.METADATA,
                    f"{self._loop.current} went back from revision {before} to {view.image.revision}",
                )

        async def watched_allocate(allocator: ProducerIdAllocator) -> int:
            producer_id = await allocate(allocator)
            if producer_id in self._producer_ids:
                self._note(Invariant.PRODUCER_IDS, f"{self._loop.current} gave {producer_id}, which somebody has")
            self._producer_ids.add(producer_id)
            return producer_id

        with (
            mock.patch.object(PartitionLog, "advance_high_watermark", watched_advance),
            mock.patch.object(Partition, "append", watched_append),
            mock.patch.object(Partition, "write_txn_marker", watched_marker),
            mock.patch.object(ClusterView, "publish", watched_publish),
            mock.patch.object(ProducerIdAllocator, "allocate", watched_allocate),
        ):
            yield

    def committed_end(self, topic: str, partition: int) -> int:
        """Where the highest high watermark was that any broker has had."""
        return self._committed_ends.get((topic, partition), 0)

    # Replicas

    def check_all_members(self) -> None:
        for topic, states in self.states.items():
            for index in range(len(states)):
                self.check_members(topic, index)

    def check_members(self, topic: str, index: int) -> None:
        """Whoever is in the ISR, or counts as eligible to lead, holds all that was ever committed, whoever led then."""
        states = self.states.get(topic, ())
        if index >= len(states):
            return
        state = states[index]
        end_offset = self.committed_end(topic, index)
        for member in (*state.isr, *state.elr):
            replica = self.replica(member, topic, index)
            if replica is not None and replica.log.log_end_offset < end_offset:
                self._note(
                    Invariant.MEMBERS,
                    f"broker {member} is in the {'ISR' if member in state.isr else 'ELR'} of {topic}-{index} and ends "
                    f"at {replica.log.log_end_offset}, although all is committed below {end_offset}",
                )

    def replica(self, node_id: int, topic: str, index: int) -> Partition | None:
        """A broker's replica, while that broker is up."""
        broker = self._brokers.get(node_id)
        if broker is None or broker.server is None:
            return None
        return broker.server.services.replicas._by_name.get((topic, index))

    def check_alike(self, topics: Sequence[str]) -> None:
        """All replicas hold the same batches, once they are in sync and nobody writes any more."""
        for topic in topics:
            for index, state in enumerate(self.states.get(topic, ())):
                held = {node_id: self._batches(node_id, topic, index) for node_id in state.replicas}
                if any(batches != held[state.leader] for batches in held.values()):
                    self._note(Invariant.REPLICAS, f"the replicas of {topic}-{index} differ: {held}")

    def _batches(self, node_id: int, topic: str, index: int) -> list[tuple[int, Batch]]:
        partition = self.replica(node_id, topic, index)
        if partition is None:
            return []
        log = partition.log
        log.open()
        return list(_read_batches(log, log.log_start_offset, log.log_end_offset))

    def _on_committed(self, log: PartitionLog, before: int) -> None:
        self.high_watermarks += 1
        place = log.topic, log.partition
        self._committed_ends[place] = max(log.high_watermark, self.committed_end(*place))
        batches = self._committed.setdefault(place, {})
        offset = max(before, log.log_start_offset)
        for base_offset, batch in _read_batches(log, offset, log.high_watermark):
            offset = batch[0]
            known = batches.setdefault(base_offset, batch)
            if known != batch:
                self._note(
                    Invariant.COMMITTED,
                    f"{self._loop.current} has {batch} committed at {log.name} offset {base_offset}, "
                    f"others have {known}",
                )
        if offset < log.high_watermark:
            self._note(
                Invariant.COMMITTED,
                f"{self._loop.current} has nothing at {log.name} offset {offset}, which is committed",
            )

    def _on_led(self, partition: Partition) -> None:
        key = partition.topic, partition.partition, partition.leader_epoch
        first = self._leaders.setdefault(key, self._loop.current)
        if first is not self._loop.current:
            self._note(Invariant.LEADER, f"both {first} and {self._loop.current} lead {key}")

    # Metadata

    def _on_written(self, writer: Process, ops: Sequence[Op]) -> None:
        for op in ops:
            if op.key == layout.CONTROLLER and isinstance(op, Put):
                self._elected_host = writer.host
            elif op.key.startswith(_CONTROLLERS_OWN):
                if writer.host != self._elected_host:
                    self._note(
                        Invariant.CONTROLLER,
                        f"{writer} wrote {op.key}; elected is who runs on {self._elected_host or 'no machine'}",
                    )
                if isinstance(op, Put):
                    self._take(op.key, layout.decode(op.value))

    def _take(self, key: str, record: layout.Record) -> None:
        if key.startswith(layout.TOPICS):
            name = key.removeprefix(layout.TOPICS)
            if layout.parse_tombstone(record) is not None:
                self.states.pop(name, None)
                return
            topic_id = layout.parse_topic(record).topic_id
            self._names[topic_id] = name
            # Its partitions are written first.
            self.states[name] = self.states.pop(str(topic_id), self.states.get(name, []))
        elif key.startswith(layout.PARTITIONS):
            self._take_states(*layout.parse_chunk_key(key), layout.parse_chunk(record))

    def _take_states(self, topic_id: uuid.UUID, chunk: int, states: list[PartitionState]) -> None:
        """No simulated topic has more than one chunk."""
        assert chunk == 0
        name = self._names.setdefault(topic_id, str(topic_id))
        for index, (before, after) in enumerate(zip(self.states.get(name, ()), states, strict=False)):
            if after.partition_epoch < before.partition_epoch or after.leader_epoch < before.leader_epoch:
                self._note(Invariant.METADATA, f"{name}-{index} went back from {before} to {after}")
        self.states[name] = states
        for index in range(len(states)):
            self.check_members(name, index)

    def _note(self, invariant: Invariant, text: str) -> None:
        self._violations.note(invariant, text)


def _read_batches(log: PartitionLog, offset: int, end_offset: int) -> Iterator[tuple[int, Batch]]:
    while offset < end_offset:
        read = log.read(offset, _READ_BYTES, limit_offset=end_offset, min_one_batch=True)
        data = b"".join(part.read() for part in read.slices)
        if not data:
            return
        for position, header in iter_headers(data, allow_partial=True):
            checksum = zlib.crc32(memoryview(data)[position : position + header.size_bytes])
            yield header.base_offset, (header.next_offset, header.partition_leader_epoch, checksum)
            offset = header.next_offset
