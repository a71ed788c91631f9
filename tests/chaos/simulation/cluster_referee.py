"""Watches all brokers of a simulated cluster from outside, and notes when one breaks a rule of replication.

What always holds: it changes nothing, and it looks at every step of a high watermark and every append of a leader when
they happen, so that a wrong moment is not missed because it was short. What it finds ends the run, not the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from simulated_broker import SimulatedBroker
from simulated_loop import Process, SimulatedLoop
from tidelog.broker.partition import Partition
from tidelog.controller.image import ClusterImage
from tidelog.log import PartitionLog
from tidelog.records import iter_headers

Place = tuple[str, int]
"""A topic and a partition of it."""

Batch = tuple[int, int, int]
"""Where a batch ends, the epoch of the leader that wrote it, and its checksum."""

_READ_BYTES = 1 << 20


class Referee:
    """What every replica must agree on, as far as it was ever committed."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.violations: list[str] = []
        self.high_watermarks = 0
        self._loop = loop
        self._committed: dict[Place, dict[int, Batch]] = {}
        self._leaders: dict[tuple[str, int, int], Process] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        advance = PartitionLog.advance_high_watermark
        append = Partition.append

        def watched_advance(log: PartitionLog, offset: int) -> None:
            before = log.high_watermark
            advance(log, offset)
            if log.high_watermark > before and self._loop.current.is_alive:
                self._on_committed(log, before)

        def watched_append(partition: Partition, *args: Any, **kwargs: Any) -> Any:
            result = append(partition, *args, **kwargs)
            self._on_led(partition)
            return result

        with (
            mock.patch.object(PartitionLog, "advance_high_watermark", watched_advance),
            mock.patch.object(Partition, "append", watched_append),
        ):
            yield

    def check(self) -> None:
        assert not self.violations, self.violations[:3]

    def committed_end(self, topic: str, partition: int) -> int:
        batches = self._committed.get((topic, partition), {})
        return max((end for end, _, _ in batches.values()), default=0)

    def check_members(self, image: ClusterImage, brokers: dict[int, SimulatedBroker]) -> None:
        """Whoever is in an ISR holds everything below its leader's high watermark."""
        for topic in image.topics.values():
            for index, state in enumerate(topic.partitions):
                leader = self._replica(brokers.get(state.leader), topic.name, index)
                if leader is None or not leader.is_leader or leader.leader_epoch != state.leader_epoch:
                    continue
                for member in state.isr:
                    replica = self._replica(brokers.get(member), topic.name, index)
                    if replica is not None and replica.log.log_end_offset < leader.log.high_watermark:
                        self._note(
                            f"broker {member} is in the ISR of {topic.name}-{index} and ends at "
                            f"{replica.log.log_end_offset}, below the high watermark {leader.log.high_watermark}"
                        )

    def _replica(self, broker: SimulatedBroker | None, topic: str, index: int) -> Partition | None:
        if broker is None or broker.server is None:
            return None
        for partition in broker.server.services.replicas.partitions():
            if (partition.topic, partition.partition) == (topic, index):
                return partition
        return None

    def _on_committed(self, log: PartitionLog, before: int) -> None:
        self.high_watermarks += 1
        batches = self._committed.setdefault((log.topic, log.partition), {})
        offset = max(before, log.log_start_offset)
        while offset < log.high_watermark:
            read = log.read(offset, _READ_BYTES, limit_offset=log.high_watermark, min_one_batch=True)
            data = b"".join(part.read() for part in read.slices)
            if not data:
                self._note(f"{self._loop.current} has nothing at {log.name} offset {offset}, which is committed")
                return
            for _, header in iter_headers(data, allow_partial=True):
                batch = header.next_offset, header.partition_leader_epoch, header.crc
                known = batches.setdefault(header.base_offset, batch)
                if known != batch:
                    self._note(
                        f"{self._loop.current} has {batch} committed at {log.name} offset {header.base_offset}, "
                        f"others have {known}"
                    )
                offset = header.next_offset

    def _on_led(self, partition: Partition) -> None:
        key = partition.topic, partition.partition, partition.leader_epoch
        first = self._leaders.setdefault(key, self._loop.current)
        if first is not self._loop.current:
            self._note(f"both {first} and {self._loop.current} lead {key}")

    def _note(self, violation: str) -> None:
        self.violations.append(f"at {self._loop.time():.3f} s: {violation}")
