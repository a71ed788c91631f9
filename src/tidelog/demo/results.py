"""The contents of the topics that the demo's pipeline writes, as a read_committed consumer sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from tidelog.client.consumer.consumer import Consumer
from tidelog.client.types import TopicPartition
from tidelog.demo.processes import DemoError
from tidelog.demo.totals import Slot, Sums
from tidelog.records.kernel_consume import ConsumerRecord

POLL_S = 1.0
IDLE_POLLS_MAX = 30


@dataclass(slots=True)
class Results:
    """The last value of every key, and how often it was updated."""

    slots: dict[Slot, Sums] = field(default_factory=dict)
    updates: int = 0
    repeated: list[str] = field(default_factory=list)  # updates that repeat the one before, in words


def read_topic(bootstrap: str, topic: str) -> Iterator[ConsumerRecord]:
    """All committed records of a topic, up to its current end."""
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        partitions = [TopicPartition(topic, each.partition) for each in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        idle_polls = 0
        while any(consumer.position(each) < ends[each] for each in partitions):
            records = consumer.poll(POLL_S)
            idle_polls = 0 if records else idle_polls + 1
            if idle_polls > IDLE_POLLS_MAX:
                raise DemoError(f"topic {topic} could not be read to its end")
            yield from records


def read_results(bootstrap: str, topic: str) -> Results:
    """The table in a keyed topic. Every update of the demo's pipeline counts more events than the one before."""
    results = Results()
    for record in read_topic(bootstrap, topic):
        row: dict[str, Any] = {**_document(record.key), **_document(record.value)}
        slot = Slot(row["minute"], row["category"])
        sums = Sums(row["revenue_cents"], row["orders"], row["clicks"])
        before = results.slots.get(slot)
        if before == sums:
            results.repeated.append(f"{slot.minute} {slot.category}: {sums.text()} was written twice")
        results.slots[slot] = sums
        results.updates += 1
    return results


def _document(content: Any) -> dict[str, Any]:
    """The JSON document in a key or value."""
    document: dict[str, Any] = orjson.loads(content)
    return document


@dataclass(frozen=True, slots=True)
class DeadLetter:
    version: int  # of the pipeline
    origin: str
    error: str
    content: str


def read_dead_letters(bootstrap: str, topic: str) -> list[DeadLetter]:
    letters = []
    for record in read_topic(bootstrap, topic):
        headers = {name: (content or b"").decode("utf-8", errors="replace") for name, content in record.headers}
        origin = "{}-{} at {}".format(*(headers[f"tidelog.origin.{part}"] for part in ("topic", "partition", "offset")))
        content = (record.value or b"").decode("utf-8", errors="replace")
        letters.append(
            DeadLetter(int(headers["tidelog.pipeline.version"]), origin, headers["tidelog.error.message"], content)
        )
    return letters
